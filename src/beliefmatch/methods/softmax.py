"""The usual classifier: softmax cross-entropy."""

from functools import partial

from torch import Tensor
from torch.nn import functional

from beliefmatch.methods.base import Method, NetworkPredictor, Prediction

__all__ = ["read", "softmax"]


def softmax() -> Method:
    """Train with cross-entropy; the probabilities are the softmax of the logits."""
    return Method(
        objective=functional.cross_entropy, predictor=partial(NetworkPredictor, read=read), reads="softmax"
    )


def read(logits: Tensor) -> Prediction:
    """The softmax of the logits."""
    return Prediction(probs=logits.softmax(-1), logits=logits)
