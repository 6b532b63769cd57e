"""Whole parts of a set of data, and which of their rows serve for what.

What a network says of an image does not depend on what the image is used for. So whoever keeps it goes
through whole parts in the order of the files and picks rows afterwards: another division of the same images
needs no new computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from beliefmatch.data.memory import MemorySource
from beliefmatch.data.source import Dataset
from beliefmatch.data.splits import TEST_SHARE, divided, halved
from beliefmatch.data.streamed import StreamedSource

if TYPE_CHECKING:
    from beliefmatch.data.config import DataConfig

__all__ = ["ROLES", "Parts", "Rows", "ValidationFrom", "assigned"]

ROLES = ("train", "validation", "test")
ValidationFrom = Literal["train", "test"]


class Rows(NamedTuple):
    """Some rows of a part, ascending; int64."""

    part: str
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Parts:
    """Sets of images as they were found, and their division.

    Args:
        name: of the data.
        sources: every part whole, in the order of its files: "train" and "test", perhaps "validation"; or
            "all".
        train: rows to fit on.
        validation: rows to choose settings on.
        test: rows to report on.
        class_names: by id.
        facts: as `Dataset` has them.
        unlabelled: rows whose labels are not to be used, where some are held back.
    """

    name: str
    sources: Mapping[str, MemorySource | StreamedSource]
    train: Rows
    validation: Rows
    test: Rows
    class_names: tuple[str, ...]
    facts: Mapping[str, Any]
    unlabelled: Rows | None = None

    @cached_property
    def digests(self) -> dict[str, str]:
        """What tells each part from other data, whatever the division; see `MemorySource.digest`.

        Computed when it is first asked for, since all bytes of images in memory go into it.
        """
        return {name: source.digest() for name, source in self.sources.items()}

    def rows(self, role: str) -> Rows:
        """Those of "train", "validation" or "test"."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[role]

    def dataset(self) -> Dataset:
        """The same images by what they are for."""
        return Dataset(
            self.name,
            **{role: self._source(self.rows(role)) for role in ROLES},
            class_names=self.class_names,
            unlabelled=None if self.unlabelled is None else self._source(self.unlabelled).unlabelled(),
            facts=self.facts,
        )

    def _source(self, rows: Rows) -> MemorySource | StreamedSource:
        whole = self.sources[rows.part]
        return whole if len(rows.rows) == len(whole) else whole.subset(rows.rows)


def assigned(
    labels: Mapping[str, np.ndarray], settings: DataConfig, *, validation_from: ValidationFrom
) -> dict[str, Rows]:
    """Rows by what they serve for.

    Args:
        labels: class ids of each part: of "train" and "test", perhaps "validation"; or of "all".
        settings: how much is for choosing, and the seed.
        validation_from: "train", where a part of its own may take the place; or "test", of which one half
            then is for choosing and the other for reporting, while all else is for fitting.
    """
    first, halves = "all" if "all" in labels else "train", validation_from == "test"
    has_own = "validation" in labels and not halves
    division = divided(
        labels[first],
        validation=0 if has_own or halves else settings.validation,
        test=TEST_SHARE if first == "all" else 0,
        limit=settings.limit,
        seed=settings.split_seed,
    )
    roles = {role: Rows(first, rows) for role, rows in division._asdict().items()}
    for role in ("validation",) * has_own + ("test",) * ("test" in labels):
        roles[role] = Rows(role, np.arange(len(labels[role])))
    if halves:
        part, rows = roles["test"]
        for role, half in zip(ROLES[1:], halved(labels[part][rows], settings.split_seed), strict=True):
            roles[role] = Rows(part, rows[half])
    return roles
