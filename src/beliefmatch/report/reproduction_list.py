"""The list of what can be reproduced, and what it costs."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import RenderableType

from beliefmatch.report.evaluation_text import MISSING
from beliefmatch.report.layout import Column, plain_table

__all__ = ["Listed", "list_tables"]


class Listed(NamedTuple):
    """One reproduction at the scales "paper" and "cpu"."""

    id: str
    title: str
    runs: tuple[int, int]
    seconds: tuple[float | None, float | None]
    """On two cores; None where that is not known."""


def list_tables(listed: Sequence[Listed], together: tuple[int, int]) -> tuple[RenderableType, ...]:
    """A line for each, and below what they come to together.

    Args:
        listed: in their order.
        together: different runs of all of them at each scale.
    """
    table = plain_table(
        Column("id", [one.id for one in listed], is_text=True, least=max(len(one.id) for one in listed)),
        Column("", [one.title for one in listed], is_text=True),
        Column("runs\npaper", [f"{one.runs[0]}" for one in listed]),
        Column("time\npaper", [_time(one.seconds[0]) for one in listed]),
        Column("runs\ncpu", [f"{one.runs[1]}" for one in listed]),
        Column("time\ncpu", [_time(one.seconds[1]) for one in listed]),
    )
    return (
        table,
        f"Runs are shared: all together are {together[0]} at paper scale and {together[1]} at CPU scale.\n"
        "Times are of two CPU cores and very rough; a run counts whole wherever it is needed.",
    )


def _time(seconds: float | None) -> str:
    """Hours, or days where they are many."""
    if seconds is None:
        return MISSING
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"
