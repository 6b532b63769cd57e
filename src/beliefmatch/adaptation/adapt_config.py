"""What an adaptation can be told; read without torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

__all__ = ["CONTROLS", "VAL_FRACTION", "AdaptConfig", "Labels"]

Labels = Literal["auto", "same", "new"]
CONTROLS = ("softmax", "label_smoothing", "evidential")
"""Heads that belief matching is compared with."""
VAL_FRACTION = 0.2
"""Share of the training rows that is held out for validation where no validation data are given."""


@dataclass(frozen=True)
class AdaptConfig:
    """How heads are fitted and which of them is taken.

    Args:
        labels: "same" repairs the existing head, "new" fits one for other classes; "auto" looks whether the
            existing head knows the classes.
        kl_weights: values of λ to try, positive; `default_kl_weights` of the number of classes if not given.
        priors: values of β to try.
        seeds: of first weights; where heads start from the existing one, of the order of batches.
        controls: heads to compare with: "softmax", "label_smoothing", "evidential".
        laplace: whether to compare with a Laplace approximation of the last layer, which needs an extra.
        choose_by: validation "nll" or "error".
        epochs: passes over the features.
        batch_size: rows of a step.
        learning_rate: of Adam; the paper's, in proportion to the batch, if not given.
        optimizer: "adam", or "lbfgs" for the convex heads.
        patience: epochs without a better validation value after which a head stops; None for never.
        batchnorm: whether the affine parameters and statistics of BatchNorm layers are trained together with
            the chosen head afterwards, as the paper's published code does.
        risks: error rates among answers to compute confidence thresholds for.
        delta: probability with which each threshold may fail.
    """

    labels: Labels = "auto"
    kl_weights: Sequence[float] | None = None
    priors: Sequence[float] = (1.0,)
    seeds: Sequence[int] = (0,)
    controls: Sequence[str] = CONTROLS
    laplace: bool = False
    choose_by: Literal["nll", "error"] = "nll"
    epochs: int = 100
    batch_size: int = 256
    learning_rate: float | None = None
    optimizer: Literal["adam", "lbfgs"] = "adam"
    patience: int | None = 10
    batchnorm: bool = False
    risks: Sequence[float] = (0.01, 0.05)
    delta: float = 0.05

    def __post_init__(self) -> None:
        _require_word("labels", self.labels, ("auto", "same", "new"))
        _require_word("choose_by", self.choose_by, ("nll", "error"))
        _require_word("optimizer", self.optimizer, ("adam", "lbfgs"))
        for name in ("kl_weights", "priors", "seeds", "controls"):
            _require_different(name, getattr(self, name))
        for value in self.kl_weights or ():
            _require_positive("kl_weights", value)
        for control in self.controls:
            _require_word("controls", control, CONTROLS)
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise ValueError(f"adapt: `{name}` must be at least 1, got {value!r}.")
        for name, values in (("risks", self.risks), ("delta", (self.delta,))):
            for value in values:
                if not 0 < value < 1:
                    raise ValueError(f"adapt: `{name}` must lie between 0 and 1, got {value!r}.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ValueError(f"adapt: `learning_rate` must be positive, got {self.learning_rate!r}.")


def _require_word(name: str, value: str, words: Sequence[str]) -> None:
    if value not in words:
        allowed = ", ".join(repr(word) for word in words)
        raise ValueError(f"adapt: `{name}` must be one of {allowed}, got {value!r}.")


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"adapt: `{name}` must be numbers, got {type(value).__name__} {value!r}.")
    if not 0 < float(value) < math.inf:
        raise ValueError(f"adapt: `{name}` must be positive and finite, got {value!r}.")


def _require_different(name: str, values: Sequence[object] | None) -> None:
    if values is None:
        return
    if isinstance(values, str):
        raise TypeError(f"adapt: `{name}` must be a list, got the text {values!r}.")
    if not hasattr(values, "__len__"):
        raise ValueError(f"adapt: `{name}` must be a list, got {values!r}.")
    if len(values) == 0 and name != "controls":
        raise ValueError(f"adapt: `{name}` must not be empty, got none.")
    if len({repr(value) for value in values}) < len(values):
        raise ValueError(f"adapt: `{name}` must differ, got {list(values)}.")
