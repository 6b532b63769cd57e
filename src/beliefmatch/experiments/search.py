"""Options chosen on the validation set: a value for each run of a grid, and the best of them."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from beliefmatch._files import atomic_write
from beliefmatch.experiments.build import (
    dataset,
    engine_for,
    is_main_process,
    method_of,
    ood_sets,
    ood_training,
    tried_network,
)
from beliefmatch.experiments.config import RunConfig, fingerprint
from beliefmatch.experiments.cost import Estimate, estimate
from beliefmatch.experiments.grid import Cell, default_jobs, run_cells
from beliefmatch.experiments.records import RunRecord, Trial
from beliefmatch.experiments.run import OnProgress, execute
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.teacher import with_known_teacher, with_seed
from beliefmatch.experiments.training_inputs import check_training_inputs
from beliefmatch.methods import AUTO, trials

__all__ = ["Candidates", "Search", "TrainJob", "chosen", "search_of", "with_option"]


class Search(NamedTuple):
    """An option of a configuration's method and the values to try."""

    option: str
    values: tuple[Any, ...]


def search_of(config: RunConfig) -> Search | None:
    """What is to be chosen in a configuration; a ValueError for an option that has no grid."""
    tried = trials(config.method.name, config.method.options)
    wanted = [option for option, value in config.method.options.items() if value == AUTO]
    return Search(wanted[0], tuple(options[wanted[0]] for options in tried)) if wanted else None


def with_option(config: RunConfig, option: str, value: Any) -> RunConfig:
    """The configuration with one option of its method set."""
    options = {**config.method.options, option: value}
    return replace(config, method=replace(config.method, options=options))


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
    """A configuration with the first seed, and the runs it takes where an option is left to a search."""

    config: RunConfig
    search: Search | None

    @classmethod
    def of(cls, config: RunConfig) -> "Candidates":
        """With what is to be chosen in the configuration."""
        return cls(config, search_of(config))

    @property
    def trials(self) -> int:
        """Runs of the first seed."""
        return 1 if self.search is None else len(self.search.values)

    @property
    def example(self) -> RunConfig:
        """The configuration with the first value of what is to be chosen."""
        return self.settled(self.search.values[0] if self.search else None)

    def settled(self, value: Any) -> RunConfig:
        """The configuration with the option set that was searched for."""
        return self.config if self.search is None else with_option(self.config, self.search.option, value)

    def known(self, seeds: Sequence[int]) -> list[RunConfig]:
        """Runs that depend on no choice: all seeds, or of a search all values with the first."""
        if self.search is not None:
            return [self.settled(value) for value in self.search.values]
        return [with_seed(self.config, seed) for seed in seeds]

    def choose(self, known: Mapping[str, RunRecord]) -> tuple[RunConfig, tuple[Trial, ...]]:
        """The config without anything left to choose, and how it was chosen among the runs that are known."""
        if self.search is None:
            return self.config, ()
        found = {value: known.get(fingerprint(self.settled(value))) for value in self.search.values}
        ran = {value: record for value, record in found.items() if record is not None}
        if not ran:  # all have diverged
            return self.example, ()
        value, trials = chosen(Search(self.search.option, tuple(ran)), list(ran.values()))
        return self.settled(value), trials


class TrainJob:
    """A training ready to run: what a user can get wrong is refused on construction."""

    def __init__(self, config: RunConfig, directory: Path, *, tensorboard: bool = False) -> None:
        config = with_known_teacher(config, directory)
        self.config, self.directory, self.tensorboard = config, directory, tensorboard
        self.search = search_of(config)
        values = self.search.values if self.search else (None,)
        self.configs = [with_option(config, self.search.option, v) if self.search else config for v in values]
        first = self.configs[0]
        self.method, self.data = method_of(first), dataset(first.data)
        self.network = tried_network(first, self.method, self.data)
        ood_training(first, self.method, self.data)
        if not RunDirectory(directory).record_file.is_file():  # what is finished has learnt them
            check_training_inputs(first, self.method, self.data)
        ood_sets(first, self.data)
        RunDirectory(directory).check(*self.configs)

    @property
    def runs(self) -> int:
        """One, or one for each value of an option that is to be chosen."""
        return len(self.configs)

    @property
    def is_main_process(self) -> bool:
        """Whether this process shows what came out; of several only the first."""
        return is_main_process()

    def estimate(self) -> Estimate:
        """What one run will cost."""
        return estimate(self.configs[0], self.data, self.method, self.network, engine_for(self.config.engine))

    def run(self, on_progress: OnProgress) -> RunRecord:
        """Train, judge and keep; return at once if that has been done."""
        if self.search is None:
            return execute(self.config, self.directory, tensorboard=self.tensorboard, on_progress=on_progress)
        directories = [
            self.directory / "trials" / f"{self.search.option}={value}" for value in self.search.values
        ]
        cells = [Cell(config, directory) for config, directory in zip(self.configs, directories, strict=True)]
        shares = [0.0] * len(cells)

        def report(index: int, share: float, doing: str) -> None:
            shares[index] = share
            on_progress(sum(shares) / len(cells), f"{directories[index].name}: {doing}")

        results = run_cells(cells, jobs=default_jobs(self.config), on_cell=report)
        value, trials = chosen(self.search, [result.record for result in results])
        trial = directories[self.search.values.index(value)]
        return engine_for(self.config.engine).on_main_process(lambda: self._adopt(trial, list(trials)))

    def _adopt(self, trial: Path, search: list[Trial]) -> RunRecord:
        """Make the chosen trial's files those of the run, the record last."""
        run_dir, own = RunDirectory(self.directory), RunDirectory(trial)
        record = own.record()
        assert record is not None
        record = replace(record, search=search)
        with run_dir.locked():
            names = {own.record_file.name, ".lock"}
            ignore = shutil.ignore_patterns(*names)
            shutil.copytree(trial, self.directory, dirs_exist_ok=True, ignore=ignore)
            atomic_write(run_dir.record_file, record.to_json().encode())
        return record
