"""The usual classifier: softmax cross-entropy."""

from functools import partial

from torch import Tensor
from torch.nn import functional

from beliefmatch.methods.base import Method, NetworkPredictor, Prediction

__all__ = ["cross_entropy", "read", "softmax"]


def softmax() -> Method:
    """Train with cross-entropy; the probabilities are the softmax of the logits."""
    return Method(
        objective=cross_entropy,
        predictor=partial(NetworkPredictor, read=read),
        reads="softmax",
        takes_counts=True,
    )


def cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Towards class ids, or towards the shares of votes (N, K), however many there are.

    >>> import torch
    >>> votes, ids = torch.tensor([[0.0, 3.0]]), torch.tensor([1])
    >>> torch.equal(cross_entropy(torch.ones(1, 2), votes), cross_entropy(torch.ones(1, 2), ids))
    True
    """
    if targets.is_floating_point():
        targets = targets / targets.sum(1, keepdim=True)
    return functional.cross_entropy(logits, targets, label_smoothing=label_smoothing)


def read(logits: Tensor) -> Prediction:
    """The softmax of the logits."""
    return Prediction(probs=logits.softmax(-1), logits=logits)
