"""What an evaluation can be told; read without torch."""

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["EvaluateConfig", "ModelFiles"]


@dataclass(frozen=True)
class ModelFiles:
    """Where the predictions of one model are."""

    name: str
    path: Path
    ood: dict[str, Path] = field(default_factory=dict)
    """For OOD examples, by the name of the set."""


@dataclass(frozen=True)
class EvaluateConfig:
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

    n_bins: int = 15
    resamples: int = 1000
    level: float = 0.95
    seed: int = 0
    top_k: int = 5
    risks: tuple[float, ...] = (0.01, 0.05)
    delta: float = 0.05
    shown: int = 12

    def __post_init__(self) -> None:
        least = {"n_bins": 1, "resamples": 0, "seed": 0, "top_k": 1, "shown": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(
                    f"evaluate: `{name}` must be at least {smallest}, got {getattr(self, name)}."
                )
        if self.seed >= 2**63:  # what a torch generator takes
            raise ValueError(f"evaluate: `seed` must be below 2**63, got {self.seed}.")
        shares = [("level", self.level), ("delta", self.delta), *(("risk", risk) for risk in self.risks)]
        for name, share in shares:
            if not 0 < share < 1:
                raise ValueError(f"evaluate: `{name}` must lie strictly in (0, 1), got {share}.")
