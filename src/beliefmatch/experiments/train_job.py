"""Train one method; options set to "auto" are chosen on the validation set, a run for each value."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from beliefmatch._errors import fail
from beliefmatch._files import atomic_write
from beliefmatch._utils import OnProgress
from beliefmatch.experiments.build import (
    check_network,
    dataset,
    engine_for,
    is_main_process,
    method_of,
    ood_sets,
    ood_training,
)
from beliefmatch.experiments.config import RunConfig, fingerprint
from beliefmatch.experiments.cost import Estimate, estimate
from beliefmatch.experiments.executors import LocalWorkers, Workers
from beliefmatch.experiments.grid import Cell, report_cells, run_cells
from beliefmatch.experiments.records import RunRecord, Trial
from beliefmatch.experiments.run import execute
from beliefmatch.experiments.run_dir import RunDirectory, require_directory_of
from beliefmatch.experiments.storage import RemoteDirectory, mirrored, without_networks
from beliefmatch.experiments.training_inputs import (
    check_training_inputs,
    with_seed,
    with_teacher_fingerprint,
)
from beliefmatch.methods import AUTO, trials

__all__ = ["Candidates", "Search", "TrainJob"]


class Search(NamedTuple):
    """An option of a configuration's method and the values to try."""

    option: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Candidates:
    """A configuration with the first seed, and the runs it takes where an option is left to a search."""

    config: RunConfig
    search: Search | None

    @classmethod
    def of(cls, config: RunConfig) -> "Candidates":
        """The candidates of a configuration; a ValueError for an option that has no grid."""
        tried = trials(config.method.name, config.method.options)
        searched = [option for option, value in config.method.options.items() if value == AUTO]
        if not searched:
            return cls(config, None)
        return cls(config, Search(searched[0], tuple(options[searched[0]] for options in tried)))

    @property
    def configs(self) -> list[RunConfig]:
        """The configurations with the first seed: one, or one for each value of the search."""
        return [self.settled(value) for value in (self.search.values if self.search else (None,))]

    @property
    def example(self) -> RunConfig:
        """The configuration with the first value of the search."""
        return self.configs[0]

    def settled(self, value: Any) -> RunConfig:
        """The configuration with this value of the option that is searched for."""
        if self.search is None:
            return self.config
        method = self.config.method
        options = {**method.options, self.search.option: value}
        return replace(self.config, method=replace(method, options=options))

    def known(self, seeds: Sequence[int]) -> list[RunConfig]:
        """Runs that depend on no choice: all seeds, or of a search all values with the first seed."""
        return self.configs if self.search else [with_seed(self.config, seed) for seed in seeds]

    def choose(self, known: Mapping[str, RunRecord]) -> tuple[RunConfig, tuple[Trial, ...]]:
        """The configuration of the lowest validation error, the paper's rule; of equal ones the lowest NLL.

        Args:
            known: records of the candidates by fingerprint, without those that diverged.

        Returns:
            The configuration with nothing left to choose, and the trials that it was chosen from.
        """
        if self.search is None:
            return self.config, ()
        found = [(value, known.get(fingerprint(self.settled(value)))) for value in self.search.values]
        ran = [(value, record.validation) for value, record in found if record is not None]
        if not ran:  # all have diverged
            return self.example, ()
        best = min(ran, key=lambda one: (one[1].error, float("inf") if one[1].nll is None else one[1].nll))[0]
        tried = [Trial(self.search.option, value, scores, chosen=value == best) for value, scores in ran]
        return self.settled(best), tuple(tried)


class TrainJob:
    """A training ready to run: what a user can get wrong is refused on construction.

    Args:
        config: all settings.
        directory: directory of the run.
        tensorboard: whether logs for TensorBoard are written next to the CSV ones.
        url: where the run is kept, if not in the directory, which is then a copy without networks.
        workers: where the runs of a search are executed; processes of this machine if not given. A single
            training runs in this process.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        tensorboard: bool = False,
        url: str | None = None,
        workers: Workers | None = None,
    ) -> None:
        require_directory_of("run", directory, caller="train")
        self.config = with_teacher_fingerprint(config, directory)
        self.directory, self.tensorboard, self.url = directory, tensorboard, url
        self.candidates, self.workers = Candidates.of(self.config), workers or LocalWorkers()
        if self.workers.is_remote and self.candidates.search is None:
            remedy = "one training runs here, or on several machines by torchrun"
            raise fail("train", f"`on` must be local unless an option is set to auto; {remedy}.")
        first, run_dir = self.candidates.example, RunDirectory(directory)
        method, data = method_of(first), dataset(first.data)
        check_network(first, method, data)
        ood_training(first, method, data)
        if not run_dir.record_file.is_file():  # a finished run has learnt from them
            check_training_inputs(first, method, data)
        ood_sets(first, data)
        run_dir.check(*self.candidates.configs)

    @property
    def runs(self) -> int:
        """One, or one for each value of an option that is to be chosen."""
        return len(self.candidates.configs)

    def estimate(self) -> Estimate:
        """What one run will cost."""
        return estimate(self.candidates.example)

    def run(self, on_progress: OnProgress) -> RunRecord:
        """Train, score and write; return at once if that has been done."""
        search = self.candidates.search
        if search is None:
            return self._run_single(on_progress)
        names = [f"{search.option}={value}" for value in search.values]
        configs, trials = self.candidates.configs, [self.directory / "trials" / name for name in names]
        urls = [None if self.url is None else f"{self.url}/trials/{name}" for name in names]
        cells = [
            Cell(config, trial, name, url=url)
            for config, trial, name, url in zip(configs, trials, names, urls, strict=True)
        ]
        results = run_cells(cells, workers=self.workers, on_cell=report_cells(on_progress, names))
        records = {result.record.fingerprint: result.record for result in results}
        config, tried = self.candidates.choose(records)
        record = replace(records[fingerprint(config)], search=list(tried))
        chosen, url = trials[configs.index(config)], urls[configs.index(config)]
        if url is not None:
            RemoteDirectory(url).pull(chosen)
        engine_for(self.config.engine).on_main_process(lambda: self._adopt(chosen, record))
        return record

    def _run_single(self, on_progress: OnProgress) -> RunRecord:
        """Train here; behind a URL, in a mirror of all files, as the directory has no networks."""
        options: dict[str, Any] = {"tensorboard": self.tensorboard, "on_progress": on_progress}
        if self.url is None or RunDirectory(self.directory).record_file.is_file():
            return execute(self.config, self.directory, **options)
        with mirrored(self.url) as mirror:
            record = execute(self.config, mirror, **options)
        if is_main_process():  # another may be ahead of it, and would take back what is old by then
            RemoteDirectory(self.url).pull(self.directory, without_networks)
        return record

    def _adopt(self, trial: Path, record: RunRecord) -> None:
        """Make the chosen trial's files those of the run, the record last."""
        run_dir = RunDirectory(self.directory)
        with run_dir.locked():
            ignore = shutil.ignore_patterns(run_dir.record_file.name, ".lock")
            shutil.copytree(trial, self.directory, dirs_exist_ok=True, ignore=ignore)
            atomic_write(run_dir.record_file, record.to_json().encode())
