"""A reproduction that was asked for at a scale: what all of them do alike, whatever it is that they run."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from beliefmatch._environment import hardware, versions
from beliefmatch._files import EnvironmentFailure, one_line
from beliefmatch.reproduce.asked import ReproduceConfig
from beliefmatch.reproduce.base import Reproduction
from beliefmatch.reproduce.differences import seeds_sentence
from beliefmatch.reproduce.record import ReproducedRun, ReproductionRecord
from beliefmatch.reproduce.scales import seeds_of

__all__ = ["OnProgress", "Work"]

OnProgress = Callable[[float, str], None]
"""Told the share that is done, and what is being done."""

Found = TypeVar("Found")


class Work(ABC, Generic[Found]):
    """A reproduction with all its configurations; nothing is read or trained before `check` and `run`.

    What a kind of work finds is what the rows and drawings of its reproductions are read of.
    """

    packages: ClassVar[tuple[str, ...]] = ("beliefmatch", "torch", "numpy")
    """Whose versions are told."""

    def __init__(self, what: Reproduction, asked: ReproduceConfig) -> None:
        self.what, self.asked = what, asked
        self.seeds = list(range(asked.seeds or seeds_of(asked.scale, what.trials)))

    @staticmethod
    @abstractmethod
    def takes(setting: str) -> bool:
        """Whether a single setting, as on the command line, is one of its configurations."""

    @property
    def directory(self) -> Path:
        """Of what this reproduction ends with."""
        return self.asked.directory / self.asked.scale / self.what.id

    @property
    def is_paper(self) -> bool:
        """Whether it is to be the paper's own scale."""
        return self.asked.scale == "paper"

    @property
    def words(self) -> str:
        """The scale, as it is said beside every number."""
        if not self.is_paper:
            return self._small_scale
        is_changed = self._changed or seeds_sentence(len(self.seeds), self.what.trials)
        return "paper scale with changed settings" if is_changed else "paper scale"

    @property
    def differences(self) -> list[str]:
        """From the paper's protocol, by the configurations."""
        seeds = seeds_sentence(len(self.seeds), self.what.trials)
        return [*self._changed, *seeds, *self.what.notes, *self._notes]

    @property
    @abstractmethod
    def _small_scale(self) -> str:
        """Another scale than the paper's in words."""

    @property
    @abstractmethod
    def _changed(self) -> list[str]:
        """Settings of the configurations that are not the paper's, each a sentence."""

    @property
    @abstractmethod
    def _notes(self) -> list[str]:
        """What is to be said of the configurations beside their settings."""

    @abstractmethod
    def described(self) -> dict[str, dict[str, Any]]:
        """Every configuration by its arm."""

    @abstractmethod
    def costs(self) -> dict[str, float | None]:
        """Seconds of each run on two cores, very roughly, by its fingerprint; None where none can tell."""

    @abstractmethod
    def finished(self) -> int:
        """How many of the runs have ended already."""

    @abstractmethod
    def check(self) -> None:
        """Read data and build networks once, so that a ValueError says now what is wrong or missing."""

    @abstractmethod
    def _find(self, tell: OnProgress) -> Found:
        """Run what was not, and read all of it."""

    @abstractmethod
    def _runs(self, found: Found) -> list[ReproducedRun]: ...

    @abstractmethod
    def _plans_of(self, found: Found) -> Mapping[str, Mapping[str, Any]]:
        """As they were run, without the places of this machine."""

    def _differences_of(self, found: Found) -> list[str]:
        """What only the data tell."""
        return []

    def _notes_of(self, found: Found) -> list[str]:
        """What only the runs tell."""
        return []

    def _words_of(self, found: Found) -> str:
        """The scale as it came out, where the data had less than was asked for."""
        return self.words

    def run(
        self, on_progress: OnProgress | None = None, *, command: Sequence[str] = ()
    ) -> ReproductionRecord:
        """Run what is not run, and read the rows and figures.

        Args:
            on_progress: told the share that is done, and what is being done.
            command: how to repeat it, for the record.
        """
        start = time.perf_counter()
        found = self._find(on_progress or (lambda share, doing: None))
        of_data, words = self._differences_of(found), self._words_of(found)
        with _readable():
            rows, drawings = self.what.rows(found), self.what.drawings(found)
        return ReproductionRecord(
            id=self.what.id,
            title=self.what.title,
            place=self.what.place,
            scale=self.asked.scale,
            scale_words=f"{words} on other images" if of_data and self.is_paper else words,
            rows=rows,
            differences=[*of_data, *self.differences, *self._notes_of(found)],
            drawings=drawings,
            runs=self._runs(found),
            seeds=self.seeds,
            configs={key: dict(config) for key, config in self._plans_of(found).items()},
            command=list(command),
            versions=versions(*self.packages),
            hardware=hardware(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            wall_seconds=time.perf_counter() - start,
        )


@contextmanager
def _readable() -> Iterator[None]:
    """What a finished run has kept may have been damaged since."""
    try:
        yield
    except EnvironmentFailure:
        raise
    except ValueError as error:
        remedy = "Remove the directory of that run, and the same command trains it again"
        raise EnvironmentFailure(
            f"reproduce: a finished run cannot be read: {one_line(error)}. {remedy}."
        ) from error
