"""Options chosen on the validation set: a value for each run of a grid, and the best of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from beliefmatch.experiments.plan import RunPlan, fingerprint
from beliefmatch.experiments.run_record import RunRecord, Trial
from beliefmatch.experiments.teacher import with_seed
from beliefmatch.methods import AUTO, trials

__all__ = ["Candidates", "Search", "chosen", "search_of", "with_option"]


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


@dataclass(frozen=True)
class Candidates:
    """A plan with the first seed, and the runs it takes where an option is left to a search."""

    plan: RunPlan
    search: Search | None

    @classmethod
    def of(cls, plan: RunPlan) -> "Candidates":
        """With what is to be chosen in the plan."""
        return cls(plan, search_of(plan))

    @property
    def trials(self) -> int:
        """Runs of the first seed."""
        return 1 if self.search is None else len(self.search.values)

    @property
    def example(self) -> RunPlan:
        """The plan with the first value of what is to be chosen."""
        return self.settled(self.search.values[0] if self.search else None)

    def settled(self, value: Any) -> RunPlan:
        """The plan with the option set that was searched for."""
        return self.plan if self.search is None else with_option(self.plan, self.search.option, value)

    def known(self, seeds: Sequence[int]) -> list[RunPlan]:
        """Runs that depend on no choice: all seeds, or of a search all values with the first."""
        if self.search is not None:
            return [self.settled(value) for value in self.search.values]
        return [with_seed(self.plan, seed) for seed in seeds]

    def choose(self, known: Mapping[str, RunRecord]) -> tuple[RunPlan, tuple[Trial, ...]]:
        """The plan without anything left to choose, and how it was chosen among the runs that are known."""
        if self.search is None:
            return self.plan, ()
        found = {value: known.get(fingerprint(self.settled(value))) for value in self.search.values}
        ran = {value: record for value, record in found.items() if record is not None}
        if not ran:  # all have diverged
            return self.example, ()
        value, trials = chosen(Search(self.search.option, tuple(ran)), list(ran.values()))
        return self.settled(value), trials
