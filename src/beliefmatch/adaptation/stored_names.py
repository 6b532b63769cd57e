"""What the arrays of a file of features are called."""

from dataclasses import dataclass

from beliefmatch.data.predictions import SPELLINGS as OF_PREDICTIONS

__all__ = ["HEAD", "SPELLINGS", "FeatureNames"]

SPELLINGS: dict[str, tuple[str, ...]] = {
    "features": ("features", "feature", "embeddings", "embedding", "x"),
    "targets": OF_PREDICTIONS["targets"],
    "counts": ("counts", "count", "votes"),
    "weight": ("weight",),
    "bias": ("bias",),
}
"""Names that leave no doubt, in any case, by what they are taken for."""

HEAD = ("weight", "bias")


@dataclass(frozen=True)
class FeatureNames:
    """What the arrays or columns are called; None for any of the default spellings."""

    features: str | None = None
    targets: str | None = None
    counts: str | None = None
    weight: str | None = None
    bias: str | None = None
