"""Options chosen on the validation set: a value for each run of a grid, and the best of them."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from beliefmatch._files import write_whole
from beliefmatch.experiments.build import (
    dataset,
    engine_for,
    foreign_sets,
    foreign_training,
    is_first_process,
    method_of,
    tried_network,
)
from beliefmatch.experiments.config import RunPlan, fingerprint
from beliefmatch.experiments.cost import Estimate, estimate
from beliefmatch.experiments.grid import Cell, run_cells, usual_jobs
from beliefmatch.experiments.records import RunRecord, Trial
from beliefmatch.experiments.run import OnProgress, execute
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.teacher import with_known_teacher, with_seed
from beliefmatch.experiments.training_inputs import require_lessons
from beliefmatch.methods import AUTO, trials

__all__ = ["Candidates", "Search", "Training", "chosen", "search_of", "with_option"]


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


class Training:
    """A training ready to run: what a user can get wrong is refused on construction."""

    def __init__(self, plan: RunPlan, directory: Path, *, tensorboard: bool = False) -> None:
        plan = with_known_teacher(plan, directory)
        self.plan, self.directory, self.tensorboard = plan, directory, tensorboard
        self.search = search_of(plan)
        values = self.search.values if self.search else (None,)
        self.plans = [with_option(plan, self.search.option, v) if self.search else plan for v in values]
        first = self.plans[0]
        self.method, self.data = method_of(first), dataset(first.data)
        self.network = tried_network(first, self.method, self.data)
        foreign_training(first, self.method, self.data)
        if not RunDirectory(directory).record_file.is_file():  # what is finished has learnt them
            require_lessons(first, self.method, self.data)
        foreign_sets(first, self.data)
        RunDirectory(directory).check(*self.plans)

    @property
    def runs(self) -> int:
        """One, or one for each value of an option that is to be chosen."""
        return len(self.plans)

    @property
    def speaks(self) -> bool:
        """Whether this process shows what came out; of several only the first."""
        return is_first_process()

    def estimate(self) -> Estimate:
        """What one run will cost."""
        return estimate(self.plans[0], self.data, self.method, self.network, engine_for(self.plan.engine))

    def run(self, on_progress: OnProgress) -> RunRecord:
        """Train, judge and keep; return at once if that has been done."""
        if self.search is None:
            return execute(self.plan, self.directory, tensorboard=self.tensorboard, on_progress=on_progress)
        places = [self.directory / "trials" / f"{self.search.option}={value}" for value in self.search.values]
        cells = [Cell(plan, place) for plan, place in zip(self.plans, places, strict=True)]
        shares = [0.0] * len(cells)

        def tell(index: int, share: float, doing: str) -> None:
            shares[index] = share
            on_progress(sum(shares) / len(cells), f"{places[index].name}: {doing}")

        records = run_cells(cells, jobs=usual_jobs(self.plan), on_cell=tell)
        value, trials = chosen(self.search, records)
        trial = places[self.search.values.index(value)]
        return engine_for(self.plan.engine).once(lambda: self._adopt(trial, list(trials)))

    def _adopt(self, trial: Path, search: list[Trial]) -> RunRecord:
        """Make the chosen trial's files those of the run, the record last."""
        home, own = RunDirectory(self.directory), RunDirectory(trial)
        record = own.record()
        assert record is not None
        record = replace(record, search=search)
        with home.locked():
            names = {own.record_file.name, ".lock"}
            ignore = shutil.ignore_patterns(*names)
            shutil.copytree(trial, self.directory, dirs_exist_ok=True, ignore=ignore)
            write_whole(home.record_file, record.to_json().encode())
        return record
