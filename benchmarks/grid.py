"""The cells of the benchmark: which task is measured at which shape, type and number of threads."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

import loss
import measures
from contender import Shape, Task

__all__ = ["DTYPES", "TASKS", "Cell", "Selection", "cells"]

TASKS: dict[str, Task] = {**loss.TASKS, **measures.TASKS, **loss.COMPILED_TASKS}
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
QUICK_LOGITS = 3_000_000  # below, a line takes its two seconds and little more
HUGE_LOGITS = 10_000_000  # from here a pass of a slow contender takes seconds


@dataclass(frozen=True)
class Cell:
    """One line of a table."""

    task: str
    shape: Shape
    dtype: str
    threads: int

    def __str__(self) -> str:
        return f"{self.task} {self.shape_name} {self.dtype} threads={self.threads}"

    @property
    def shape_name(self) -> str:
        """The shape as it is written on the command line."""
        return "x".join(map(str, self.shape))


@dataclass(frozen=True)
class Selection:
    """What was asked for; an empty list leaves the choice to the benchmark."""

    tasks: Sequence[str] = ()
    shapes: Sequence[Shape] = ()
    dtypes: Sequence[str] = ()
    threads: Sequence[int] = ()
    quick: bool = False


def cells(selection: Selection, all_threads: int) -> list[Cell]:
    """The cells to measure, those of one task together."""
    chosen = (
        Cell(task, shape, dtype, threads)
        for task in selection.tasks or TASKS
        for shape in _shapes(task, selection)
        for threads in selection.threads or _threads(task, selection.quick, all_threads)
        for dtype in selection.dtypes or _dtypes(task, shape, selection.quick, threads < all_threads)
    )
    return list(dict.fromkeys(chosen))


def _shapes(task: str, selection: Selection) -> Iterable[Shape]:
    own = TASKS[task].shapes
    if selection.shapes:
        return [shape for shape in selection.shapes if len(shape) == len(own[0])]
    if selection.quick:
        return [shape for shape in own if math.prod(shape) < QUICK_LOGITS]
    return own


def _threads(task: str, quick: bool, all_threads: int) -> Iterable[int]:
    return (1, all_threads) if task == "ids" and not quick else (all_threads,)


def _dtypes(task: str, shape: Shape, quick: bool, some_threads: bool) -> Iterable[str]:
    """All types of the plain loss, fewer where a line would take minutes."""
    if task != "ids" or quick:
        return ("float32",)
    if math.prod(shape) < HUGE_LOGITS:
        return DTYPES
    return ("float32",) if some_threads else ("float32", "bfloat16", "float16")
