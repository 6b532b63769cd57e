"""One run, or where an option is to be chosen one for each of its values and the best of them kept."""

import shutil
from dataclasses import replace
from pathlib import Path

from beliefmatch.experiments.estimate import Estimate, estimate
from beliefmatch.experiments.grid import Cell, run_cells, usual_jobs
from beliefmatch.experiments.lessons import require_lessons
from beliefmatch.experiments.parts import (
    dataset,
    engine_for,
    foreign_sets,
    foreign_training,
    is_first_process,
    method_of,
    tried_network,
)
from beliefmatch.experiments.plan import RunPlan
from beliefmatch.experiments.run import execute
from beliefmatch.experiments.run_directory import RunDirectory
from beliefmatch.experiments.run_record import RunRecord, Trial
from beliefmatch.experiments.running import OnProgress
from beliefmatch.experiments.search import chosen, search_of, with_option
from beliefmatch.experiments.teacher import with_known_teacher
from beliefmatch.files import write_whole

__all__ = ["Training"]


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
