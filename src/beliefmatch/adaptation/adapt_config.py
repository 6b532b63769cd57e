"""The options of an adaptation; imports without torch."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from beliefmatch._config import Config, Count, Positive, Probability
from beliefmatch._errors import fail

__all__ = [
    "CONTROLS",
    "TOLERANCE",
    "VAL_FRACTION",
    "AdaptConfig",
    "Choice",
    "Control",
    "Labels",
    "Protocol",
    "require_no_background",
]

Labels = Literal["auto", "same", "new"]
Choice = Literal["belief_matching", "best"]
Protocol = Literal["default", "paper"]
Control = Literal["softmax", "label_smoothing", "evidential"]
CONTROLS: tuple[Control, ...] = ("softmax", "label_smoothing")
"""Heads that belief matching is compared with by default."""
TOLERANCE = 0.01
"""Relative distance of a head's objective to its minimum at which the head has converged."""
VAL_FRACTION = 0.2
"""Share of the training rows that is held out for validation where no validation data are given."""
_SOME = Meta(min_length=1)


class AdaptConfig(Config, frozen=True, kw_only=True):
    """How heads are fitted and which of them is delivered.

    Args:
        labels: "same" repairs the existing head, "new" fits one for other classes; "auto" looks whether the
            existing head knows the classes.
        choose: "belief_matching" delivers the best belief matching head, "best" the head of the lowest
            validation NLL of any kind.
        kl_weights: Values of λ to try; by default a path that starts where the number of classes makes λ weak
            and ends where the validation NLL rises.
        weight_decays: Values of the weight decay to try; by default a path that ends where the validation NLL
            rises.
        priors: Values of β to try.
        controls: Kinds of heads to compare with: "softmax", "label_smoothing", "evidential".
        laplace: Whether to compare with a Laplace approximation of the last layer, which needs an extra.
        heads: Number of additional heads that are fitted to resampled rows (the bootstrap); 0 for none.
        tolerance: Relative distance of a head's objective to its minimum at which the head has converged.
        protocol: "default", or "paper" for the training of the paper: Adam on minibatches, without
            weight decay.
        epochs: Passes over the rows with the protocol "paper", and over the images with `batchnorm`.
        batch_size: Rows of a step with the protocol "paper".
        learning_rate: Of Adam with the protocol "paper".
        seeds: Seeds of the first weights and of the order of batches with the protocol "paper".
        batchnorm: Whether the affine parameters and statistics of BatchNorm layers are trained together with
            the delivered head afterwards, as the paper's published code does.
        vote_scale: Whether the precision of the delivered belief is fitted to the validation votes, where
            targets are counts with two votes or more; the probabilities stay as they are.
        risks: Error rates among answers to compute confidence thresholds for.
        delta: Probability with which each threshold may fail.
    """

    labels: Labels = "auto"
    choose: Choice = "belief_matching"
    kl_weights: Annotated[Sequence[Positive], _SOME] | None = None
    weight_decays: Annotated[Sequence[Positive], _SOME] | None = None
    priors: Annotated[Sequence[Positive], _SOME] = (1.0,)
    controls: Sequence[Control] = CONTROLS
    laplace: bool = False
    heads: Annotated[int, Meta(ge=0, le=1000)] = 0
    tolerance: Positive = TOLERANCE
    protocol: Protocol = "default"
    epochs: Count = 100
    batch_size: Count = 64
    learning_rate: Positive = 3e-4
    seeds: Annotated[Sequence[int], _SOME] = (0,)
    batchnorm: bool = False
    vote_scale: bool = True
    risks: Sequence[Probability] = (0.01, 0.05)
    delta: Probability = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol == "default" and len(self.seeds) > 1:
            got = f"got {len(self.seeds)}: a head that has converged does not depend on its seed"
            raise fail("AdaptConfig", f"`seeds` must be one without the protocol paper, {got}.")
        for name in ("heads", "weight_decays") if self.protocol == "paper" else ():
            if value := getattr(self, name):
                fact = f"`{name}` must not come with the protocol paper, which has none"
                raise fail("AdaptConfig", f"{fact}, got {value!r}.")
        if self.batchnorm and (self.heads or self.choose == "best"):
            fact = f"`batchnorm` must not come with {'`heads`' if self.heads else '`choose` best'}"
            raise fail("AdaptConfig", f"{fact}: it trains one belief matching head.")
        if self.heads == 1:
            raise fail("AdaptConfig", "`heads` must be 0 or at least 2, got 1: one head cannot disagree.")

    @property
    def needs_softmax(self) -> bool:
        """Whether the table has a softmax head: as a control, or for a Laplace approximation around it."""
        return self.laplace or "softmax" in self.controls


def require_no_background(config: AdaptConfig, background: Any) -> None:
    """Refuse a background where BatchNorm layers are trained."""
    if config.batchnorm and background is not None:
        raise fail("adapt", "`batchnorm` must not come with `background`, which its training leaves out.")
