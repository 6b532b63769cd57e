"""What a reproduction consists of: arms to train, and how their runs become the paper's rows and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beliefmatch.experiments.config import RunConfig, config_from
from beliefmatch.reproduce.record import Drawing, Row

__all__ = ["FIXED", "Arm", "Reproduction"]

FIXED = ("method", "defaults", "data.name", "data.directory", "model.name", "semi.kind", "teacher", "seed")
"""Settings that rows are named by, everywhere, and those that have an option of their own."""
_OPTIONS = {"seed": "say how many with `--seeds`", "data.directory": "say where data lie with `--data-dir`"}


@dataclass(frozen=True)
class Arm:
    """One method on one set with one network: a row of a table, trained with every seed."""

    key: str
    """Unique in its reproduction, the same at every scale."""
    group: str
    """What it is set side by side in, such as "ResNet-18, CIFAR-10"."""
    label: str
    settings: Mapping[str, Any]
    """As `config_from` takes them; an option of the method may be left to a search."""

    @property
    def config(self) -> RunConfig:
        """With the seed of the recipe."""
        return config_from(self.settings)


def _no_arms(scale: str) -> list[Arm]:
    return []


def _no_rows(outcome: Any) -> list[Row]:
    return []


def _no_drawings(outcome: Any) -> list[Drawing]:
    return []


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper, or a control that it lacks.

    Args:
        id: as users type it.
        title: in words.
        place: where the paper has it.
        arms: what to train at a scale.
        rows: the numbers of what the worker found, beside the paper's where it has some.
        drawings: the figures, as data.
        trials: seeds of the paper; None where it tells none.
        worker: address of what runs it, called with this and what was asked.
        fixed: settings that its rows are named by, beside those of every reproduction (`FIXED`).
        notes: what differs from the paper at every scale, or is not told by it; in plain sentences.
    """

    id: str
    title: str
    place: str
    arms: Callable[[str], Sequence[Arm]] = _no_arms
    rows: Callable[[Any], list[Row]] = _no_rows
    drawings: Callable[[Any], list[Drawing]] = _no_drawings
    trials: int | None = None
    worker: str = "beliefmatch.reproduce.running:Reproducing"
    fixed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def require_free(self, setting: str, fixed: Sequence[str] = FIXED) -> None:
        """A setting over every config must leave alone what rows are named by; a ValueError if it does not.

        Args:
            setting: as on the command line.
            fixed: what rows are named by, beside what this reproduction fixes.
        """
        key = setting.partition("=")[0].strip()
        for name in (*fixed, *self.fixed):
            if f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}."):  # it, or all around it
                remedy = _OPTIONS.get(name, "the rows are named by it")
                raise ValueError(f"reproduce: `set` must leave {key} of {self.id} as it is; {remedy}.")
