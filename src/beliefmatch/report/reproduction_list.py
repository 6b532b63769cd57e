"""The list of what can be reproduced, and what it costs."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import RenderableType

from beliefmatch.report.evaluation_text import MISSING
from beliefmatch.report.layout import Column, FirstThatFits, plain_table

__all__ = ["Listed", "list_tables"]


class Listed(NamedTuple):
    """One reproduction at the scales "paper" and "cpu"."""

    id: str
    title: str
    runs: tuple[int, int]
    seconds: tuple[float | None, float | None]
    """On two cores; None where nothing can be told."""


def list_tables(listed: Sequence[Listed], together: Listed) -> tuple[RenderableType, ...]:
    """A line for each, and below what they come to together.

    Args:
        listed: in their order.
        together: all of them, with each run counted once.
    """
    table = plain_table(
        Column("id", [one.id for one in listed], is_text=True, least=max(len(one.id) for one in listed)),
        Column("", [one.title for one in listed], is_text=True, least=12),
        Column("runs\npaper", [f"{one.runs[0]}" for one in listed]),
        Column("time\npaper", [_time(one.seconds[0]) for one in listed]),
        Column("runs\ncpu", [f"{one.runs[1]}" for one in listed]),
        Column("time\ncpu", [_time(one.seconds[1]) for one in listed]),
    )
    sums = [
        f"{runs} at {scale} scale ({_time(seconds)})"
        for scale, runs, seconds in zip(("paper", "CPU"), together.runs, together.seconds, strict=True)
    ]
    words = (
        "Times are of two CPU cores and very rough, without the transfers; above, a run counts wherever it "
        "is needed."
    )
    return FirstThatFits(table), f"Runs are shared: together they are {' and '.join(sums)}.\n{words}"


def _time(seconds: float | None) -> str:
    """Minutes, hours or days."""
    if seconds is None:
        return MISSING
    hours = seconds / 3600
    if hours < 1:
        return f"{max(seconds / 60, 1):.0f} min"
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"
