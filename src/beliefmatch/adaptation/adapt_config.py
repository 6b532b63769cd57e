"""The options of an adaptation; imports without torch."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from beliefmatch._config import Config, Count, Positive, Probability

__all__ = ["CONTROLS", "VAL_FRACTION", "AdaptConfig", "Labels"]

Labels = Literal["auto", "same", "new"]
Control = Literal["softmax", "label_smoothing", "evidential"]
CONTROLS: tuple[Control, ...] = ("softmax", "label_smoothing", "evidential")
"""Heads that belief matching is compared with."""
VAL_FRACTION = 0.2
"""Share of the training rows that is held out for validation where no validation data are given."""
_SOME = Meta(min_length=1)


class AdaptConfig(Config, frozen=True, kw_only=True):
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
    kl_weights: Annotated[Sequence[Positive], _SOME] | None = None
    priors: Annotated[Sequence[float], _SOME] = (1.0,)
    seeds: Annotated[Sequence[int], _SOME] = (0,)
    controls: Sequence[Control] = CONTROLS
    laplace: bool = False
    choose_by: Literal["nll", "error"] = "nll"
    epochs: Count = 100
    batch_size: Count = 256
    learning_rate: Positive | None = None
    optimizer: Literal["adam", "lbfgs"] = "adam"
    patience: Count | None = 10
    batchnorm: bool = False
    risks: Sequence[Probability] = (0.01, 0.05)
    delta: Probability = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kl_weights", "priors", "seeds", "controls"):
            values = getattr(self, name) or ()
            if len(set(values)) < len(values):
                raise ValueError(f"AdaptConfig: `{name}` must differ, got {list(values)}.")
