"""What is set side by side of an adaptation: heads, and the rows that each is scored by."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from beliefmatch._validate import fail
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.types import Features
from beliefmatch.experiments.adapt_record import BATCHNORM_LABEL
from beliefmatch.experiments.adapted_scores import scorable

__all__ = ["TableLine", "class_names_of", "lines", "scored_rows"]


class TableLine(NamedTuple):
    """A line of the honest table, and what its heads see of the data."""

    label: str
    heads: list[FittedHead]
    features: Features
    ood: Mapping[str, Features]


def lines(adaptation: Adaptation) -> list[TableLine]:
    """The lines of the table; at the end the network with trained BatchNorm layers, if it has such."""
    sets = adaptation.sets
    made = [
        TableLine(label, [*heads], scored_rows(sets)[0], sets.ood)
        for label, heads in adaptation.table.items()
    ]
    batchnorm = adaptation.batchnorm
    if batchnorm is not None and batchnorm.is_taken:
        features = batchnorm.validation if batchnorm.test is None else batchnorm.test
        made.append(TableLine(BATCHNORM_LABEL, [batchnorm.head], features, batchnorm.ood))
    return made


def scored_rows(sets: FeatureSets) -> tuple[Features, str]:
    """The rows to score on, and whether they are those of "test" or of "validation"."""
    features, name = (sets.validation, "validation") if sets.test is None else (sets.test, "test")
    if not len(scorable(features)):
        raise fail("adapt_record", f"`{name}` must have rows with a class or votes, got none.")
    return features, name


def class_names_of(classes: int, names: Sequence[str] | None) -> list[str]:
    """One name for each class, "0", "1", ... if none are given."""
    if names is not None and len(names) != classes:
        raise fail("adapt_record", f"`class_names` must be {classes}, one a class, got {len(names)}.")
    return [f"{place}" for place in range(classes)] if names is None else [*map(str, names)]
