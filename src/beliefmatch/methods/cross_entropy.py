"""Softmax classifiers: cross-entropy, label smoothing and the confidence penalty."""

from dataclasses import replace
from functools import partial

from torch import Tensor
from torch.nn import functional

from beliefmatch._validate import fail, require_finite_number
from beliefmatch.methods.base import Method, NetworkPredictor, Prediction

__all__ = ["confidence_penalty", "cross_entropy", "label_smoothing", "matched_smoothing", "read", "softmax"]


def softmax() -> Method:
    """Train with cross-entropy; the probabilities are the softmax of the logits."""
    return Method(
        objective=cross_entropy,
        predictor=partial(NetworkPredictor, read=read),
        reads="softmax",
        takes_counts=True,
    )


def cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy with class ids, or with votes (N, K) normalised to probabilities.

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


def label_smoothing(*, smoothing: float | None = None, matched_kl_weight: float | None = None) -> Method:
    """Train towards (1 − ε) onehot + ε/K; the probabilities are the softmax of the logits.

    Args:
        smoothing: ε, 0.1 if neither is given.
        matched_kl_weight: instead of ε, the λ of belief matching with the same target confidence
            (`matched_smoothing`): a control that has its target but not its loss.
    """
    if matched_kl_weight is None:
        smoothing = 0.1 if smoothing is None else smoothing
        if not 0 <= require_finite_number("label_smoothing", "smoothing", smoothing) < 1:
            raise fail("label_smoothing", f"`smoothing` must lie in [0, 1), got {smoothing!r}.")
        objective = partial(cross_entropy, label_smoothing=smoothing)
        options = {"smoothing": smoothing}
    else:
        if smoothing is not None:
            raise fail("label_smoothing", "`smoothing` or `matched_kl_weight` must be given, got both.")
        if not require_finite_number("label_smoothing", "matched_kl_weight", matched_kl_weight) >= 0:
            fact = "`matched_kl_weight` must not be negative"
            raise fail("label_smoothing", f"{fact}, got {matched_kl_weight!r}.")
        objective = partial(_matched_cross_entropy, kl_weight=matched_kl_weight)
        options = {"matched_kl_weight": matched_kl_weight}
    return replace(softmax(), objective=objective, options=options)


def _matched_cross_entropy(logits: Tensor, targets: Tensor, *, kl_weight: float) -> Tensor:
    """Cross-entropy with the mean of belief matching's optimum α = 1 + c/λ, for class ids or votes."""
    if targets.is_floating_point():
        return cross_entropy(logits, targets + kl_weight)
    return cross_entropy(logits, targets, label_smoothing=matched_smoothing(kl_weight, logits.shape[1]))


def matched_smoothing(kl_weight: float, classes: int) -> float:
    """The ε with the target confidence of belief matching with this λ and β = 1: λK/(1 + λK).

    >>> round(matched_smoothing(0.01, 10), 4)
    0.0909
    """
    return kl_weight * classes / (1 + kl_weight * classes)


def confidence_penalty(*, weight: float = 0.1) -> Method:
    """Train with cross-entropy − weight · H(softmax(logits)) (Pereyra et al. 2017)."""
    if not require_finite_number("confidence_penalty", "weight", weight) >= 0:
        raise fail("confidence_penalty", f"`weight` must not be negative, got {weight!r}.")
    return Method(
        objective=partial(_penalised_cross_entropy, weight=weight),
        predictor=partial(NetworkPredictor, read=read),
        options={"weight": weight},
        reads="softmax",
    )


def _penalised_cross_entropy(logits: Tensor, targets: Tensor, *, weight: float) -> Tensor:
    log_probs = logits.log_softmax(1)
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    return functional.nll_loss(log_probs, targets) - weight * entropy
