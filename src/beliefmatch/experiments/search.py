"""Options chosen on the validation set: a value for each run of a grid, and the best of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from beliefmatch.experiments.plan import RunPlan
from beliefmatch.experiments.run_record import RunRecord, Trial
from beliefmatch.methods import SEARCH

__all__ = ["AUTO", "Search", "chosen", "search_of", "with_option"]

AUTO = "auto"
"""What an option is set to that is to be chosen."""


class Search(NamedTuple):
    """An option of a plan's method and the values to try."""

    option: str
    values: tuple[Any, ...]


def search_of(plan: RunPlan) -> Search | None:
    """What is to be chosen in a plan; a ValueError for an option that has no grid."""
    name, options = plan.method.name, plan.method.options
    wanted = [option for option, value in options.items() if value == AUTO]
    if not wanted:
        return None
    grids = SEARCH.get(name, {})
    unknown = [option for option in wanted if option not in grids]
    if unknown or len(wanted) > 1:
        known = ", ".join(grids) or "none"
        raise ValueError(
            f"search: one option of {name} at a time can be {AUTO!r}, of: {known}; got {', '.join(wanted)}."
        )
    return Search(wanted[0], tuple(grids[wanted[0]]))


def with_option(plan: RunPlan, option: str, value: Any) -> RunPlan:
    """The plan with one option of its method set."""
    options = {**plan.method.options, option: value}
    return replace(plan, method=replace(plan.method, options=options))


def chosen(search: Search, records: Sequence[RunRecord]) -> tuple[Any, tuple[Trial, ...]]:
    """The value of the lowest validation error, the paper's rule; of equal ones that of the lowest NLL."""

    def rank(index: int) -> tuple[float, float]:
        scores = records[index].validation
        return scores.error, float("inf") if scores.nll is None else scores.nll

    best = min(range(len(records)), key=rank)
    trials = tuple(
        Trial(search.option, value, record.validation, chosen=index == best)
        for index, (value, record) in enumerate(zip(search.values, records, strict=True))
    )
    return search.values[best], trials
