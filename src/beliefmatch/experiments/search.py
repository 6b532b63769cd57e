"""Options chosen on the validation set: a value for each run of a grid, and the best of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from beliefmatch.experiments.plan import RunPlan
from beliefmatch.experiments.run_record import RunRecord, Trial
from beliefmatch.methods import AUTO, trials

__all__ = ["Search", "chosen", "search_of", "with_option"]


class Search(NamedTuple):
    """An option of a plan's method and the values to try."""

    option: str
    values: tuple[Any, ...]


def search_of(plan: RunPlan) -> Search | None:
    """What is to be chosen in a plan; a ValueError for an option that has no grid."""
    tried = trials(plan.method.name, plan.method.options)
    wanted = [option for option, value in plan.method.options.items() if value == AUTO]
    return Search(wanted[0], tuple(options[wanted[0]] for options in tried)) if wanted else None


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
    tried = tuple(
        Trial(search.option, value, record.validation, chosen=index == best)
        for index, (value, record) in enumerate(zip(search.values, records, strict=True))
    )
    return search.values[best], tried
