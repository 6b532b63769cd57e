"""The table that a run prints line by line, and its notes on stderr."""

import math
import sys
from collections.abc import Collection, Mapping

from grid import TASKS, Cell
from measurement import Measured

__all__ = ["note", "print_head", "print_row", "progress", "three_digits"]

WIDTH = 13


def print_head(task: str, without: Collection[str]) -> None:
    """Title and columns of a task's table."""
    names = _names(task, without)
    print(f"\n{TASKS[task].title}")
    print(f"{'shape':>13} {'type':>8} {'threads':>7}", *(f"{name:>{_width(name)}}" for name in names))


def print_row(cell: Cell, found: Mapping[str, Measured], without: Collection[str]) -> None:
    """One line of a task's table; a dash stands for a contender that could not do it."""
    base = TASKS[cell.task].base
    texts = {name: _text(measured, name == base) for name, measured in found.items()}
    entries = [f"{texts.get(name, '-'):>{_width(name)}}" for name in _names(cell.task, without)]
    print(f"{cell.shape_name:>13} {cell.dtype:>8} {cell.threads:>7}", *entries, flush=True)


def _text(measured: Measured, is_base: bool) -> str:
    timing = measured.timing
    time = f"{three_digits(timing.seconds * 1e3)}ms" if is_base else f"{three_digits(timing.ratio)}x"
    return f"{time} {measured.peak_memory:.1f}m"


def three_digits(number: float) -> str:
    """Three digits or the whole part, without an exponent."""
    decimals = 2 - math.floor(math.log10(number)) if number > 0 else 0
    return f"{number:.{min(max(decimals, 0), 4)}f}"


def note(text: str) -> None:
    """A remark, apart from the table."""
    progress("")
    print(text, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """What is being measured: on a terminal one line that is written over, else a line each."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def _names(task: str, without: Collection[str]) -> list[str]:
    return [name for name, one in TASKS[task].contenders.items() if one.package not in without]


def _width(name: str) -> int:
    return max(len(name), WIDTH)
