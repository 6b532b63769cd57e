"""The options of an evaluation; imports without torch."""

from dataclasses import dataclass, field
from pathlib import Path

from beliefmatch._config import Config, Count, Index, Probability, Seed

__all__ = ["EvaluateConfig", "ModelFiles"]


@dataclass(frozen=True)
class ModelFiles:
    """Where the predictions of one model are."""

    name: str
    path: Path
    ood: dict[str, Path] = field(default_factory=dict)
    """For OOD examples, by the name of the set."""


class EvaluateConfig(Config, frozen=True, kw_only=True):
    """How predictions are judged.

    Args:
        n_bins: number of confidence bins; the paper's 15.
        resamples: of the bootstrap; 0 for no intervals.
        level: of the intervals.
        seed: of the bootstrap.
        top_k: how many classes `top_k_error` may name.
        risks: error rates for which to look for a threshold that keeps them.
        delta: probability with which each threshold may fail.
        shown: how many of the most confident mistakes, and of the most doubtful examples, are kept.
    """

    n_bins: Count = 15
    resamples: Index = 1000
    level: Probability = 0.95
    seed: Seed = 0
    top_k: Count = 5
    risks: tuple[Probability, ...] = (0.01, 0.05)
    delta: Probability = 0.05
    shown: Index = 12
