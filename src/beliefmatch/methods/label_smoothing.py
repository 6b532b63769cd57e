"""Label smoothing (Szegedy et al. 2016): cross-entropy towards labels mixed with the uniform distribution."""

from functools import partial

from torch import nn

from beliefmatch.checks import fail
from beliefmatch.methods.base import Method, NetworkPredictor
from beliefmatch.methods.softmax import read

__all__ = ["label_smoothing", "matched_smoothing"]


def label_smoothing(*, smoothing: float = 0.1) -> Method:
    """Train towards (1 − ε) onehot + ε/K; the probabilities are the softmax of the logits."""
    if not 0 <= smoothing < 1:
        raise fail("label_smoothing", f"`smoothing` must lie in [0, 1), got {smoothing!r}.")
    return Method(
        objective=nn.CrossEntropyLoss(label_smoothing=smoothing),
        predictor=partial(NetworkPredictor, read=read),
        options={"smoothing": smoothing},
    )


def matched_smoothing(kl_weight: float, classes: int) -> float:
    """The ε that asks for the confidence that belief matching with this λ and β = 1 asks for: λK/(1 + λK).

    >>> round(matched_smoothing(0.01, 10), 4)
    0.0909
    """
    return kl_weight * classes / (1 + kl_weight * classes)
