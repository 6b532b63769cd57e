"""What an adaptation can be told; read without torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Labels", "Wishes"]

Labels = Literal["auto", "same", "new"]
CONTROLS = ("softmax", "label_smoothing", "evidential")


@dataclass(frozen=True)
class Wishes:
    """How heads are fitted and which of them is taken.

    Args:
        labels: "same" repairs the existing head, "new" fits one for other classes; "auto" looks whether the
            existing head knows the classes.
        kl_weights: values of λ to try; `usual_kl_weights` of the number of classes if not given.
        priors: values of β to try.
        seeds: of first weights and of the order of batches.
        controls: heads to compare with: "softmax", "label_smoothing", "evidential".
        laplace: whether to compare with a Laplace approximation of the last layer, which needs an extra.
        choose_by: validation "nll" or "error".
        epochs: passes over the features.
        batch_size: rows of a step.
        learning_rate: of Adam; the paper's, in proportion to the batch, if not given.
        optimizer: "adam", or "lbfgs" for the convex heads.
        patience: epochs without a better validation value after which a head stops; None for never.
        norms: whether the affine parameters and statistics of BatchNorm layers are trained together with the
            chosen head afterwards, as the paper's published code does.
        risks: error rates to promise among answers.
        delta: with which probability such a promise may fail.
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
    norms: bool = False
    risks: Sequence[float] = (0.01, 0.05)
    delta: float = 0.05
