"""Compare methods: train them alike with several seeds, and collect their scores."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from beliefmatch._environment import hardware, versions
from beliefmatch.experiments.build import (
    dataset,
    engine_for,
    is_main_process,
    method_of,
    network_of,
    ood_sets,
    ood_training,
    tried_network,
)
from beliefmatch.experiments.config import RunConfig, config_from, fingerprint, to_mapping
from beliefmatch.experiments.cost import Estimate, estimate
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.grid import Cell, default_jobs, run_cells
from beliefmatch.experiments.method_spec import MethodSpec, label, label_of, with_spec
from beliefmatch.experiments.records import Compared, ComparisonRecord, RunRecord, Trial
from beliefmatch.experiments.rotation import DigitRotation
from beliefmatch.experiments.run import OnProgress, RunResult, evaluate_finished
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.search import Candidates
from beliefmatch.experiments.teacher import with_known_teacher, with_seed
from beliefmatch.experiments.training_inputs import check_training_inputs

__all__ = ["Comparison", "ComparisonResult"]


class ComparisonResult(NamedTuple):
    """The record of a comparison, and the evaluation of each method's first run, in their order."""

    record: ComparisonRecord
    evaluations: list[EvaluationRecord]


@dataclass(frozen=True)
class _Entry:
    """One method to compare."""

    spec: MethodSpec
    candidates: Candidates

    @property
    def config(self) -> RunConfig:
        """With the first seed; an option may be left to a search."""
        return self.candidates.config


class Comparison:
    """A comparison ready to run: what a user can get wrong is refused on construction.

    Every method trains the same network from the same initial weights on the same batches, but for dropout
    where it is the method.

    Args:
        mapping: settings of the runs, as `config_from` takes them; the method in it is left aside.
        methods: to compare, in the order to show them.
        seeds: of the runs of each method. Options left to a search are chosen with the first.
        directory: where runs are kept; those that are finished are not run again.
        jobs: processes at a time; as many as the machine has cores for if not given.
    """

    def __init__(
        self,
        mapping: Mapping[str, Any],
        methods: Sequence[MethodSpec],
        *,
        seeds: Sequence[int],
        directory: Path,
        jobs: int | None = None,
    ) -> None:
        if not methods or not seeds:
            raise ValueError("compare: `methods` and `seeds` must be at least one each.")
        self.entries = [_entry(mapping, spec, seeds[0]) for spec in methods]
        self.seeds, self.directory = list(seeds), directory
        self.jobs = default_jobs(self.entries[0].config) if jobs is None else jobs
        self._check()

    @property
    def cells(self) -> int:
        """Runs in all, those of searches among them."""
        return sum(entry.candidates.trials + len(self.seeds) - 1 for entry in self.entries)

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes and shows what came out; of several only the first."""
        return is_main_process()

    def estimates(self) -> list[tuple[RunConfig, Estimate]]:
        """What one run of each method will cost."""
        found = []
        for entry in self.entries:
            config = entry.candidates.example
            method, data = method_of(config), dataset(config.data)
            network = network_of(config, method, data)
            found.append((entry.config, estimate(config, data, method, network, engine_for(config.engine))))
        return found

    def run(
        self, on_progress: OnProgress | None = None, *, command: Sequence[str] | None = None
    ) -> ComparisonResult:
        """Train and score every method with every seed.

        Predictions are evaluated while they are in memory, but for runs that were finished earlier.

        Args:
            on_progress: called with (fraction, description).
            command: command that repeats the comparison, for the record.
        """
        start, progress = time.perf_counter(), _Share(self.cells, on_progress)
        known = self._run(
            [config for entry in self.entries for config in entry.candidates.known(self.seeds)], progress
        )
        records = {name: result.record for name, result in known.items()}
        found = [entry.candidates.choose(records) for entry in self.entries]
        configs = [with_seed(config, seed) for config, _ in found for seed in self.seeds]
        known |= self._run([config for config in configs if fingerprint(config) not in known], progress)
        methods = [
            self._compared(
                entry,
                config,
                [known[fingerprint(with_seed(config, seed))].record for seed in self.seeds],
                trials,
            )
            for entry, (config, trials) in zip(self.entries, found, strict=True)
        ]
        record = ComparisonRecord(
            methods=methods,
            seeds=self.seeds,
            rotated_digit=DigitRotation.load().described()
            if self.entries[0].config.data.name == "digits"
            else None,
            settings=self._settings() | ({} if command is None else {"command": list(command)}),
            versions=versions("beliefmatch", "torch", "numpy", "scikit-learn", "scipy", "lightning-fabric"),
            hardware=hardware(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            wall_seconds=time.perf_counter() - start,
        )
        firsts = [known[fingerprint(config)] for config, _ in found]
        return ComparisonResult(
            record,
            [self._evaluation(*pair) for pair in zip(record.methods, firsts, strict=True)],
        )

    def directory_of(self, config: RunConfig) -> Path:
        """Of one run: named by what decides its result."""
        return self.directory / "runs" / f"{config.method.name}-seed{config.seed}-{fingerprint(config)}"

    def _check(self) -> None:
        """Build every part once, so that a mistake is found before the first training."""
        data = dataset(self.entries[0].config.data)
        for entry in self.entries:
            config = entry.candidates.example
            method = method_of(config)
            tried_network(config, method, data)
            ood_training(config, method, data)
            for seed in self.seeds:
                check_training_inputs(with_seed(config, seed), method, data)
        ood_sets(self.entries[0].config, data)

    def _run(self, configs: Sequence[RunConfig], progress: "_Share") -> dict[str, RunResult]:
        """The results of configurations, by their fingerprints; the longest runs begin first."""
        unique = {fingerprint(config): config for config in configs}.values()
        ordered = sorted(unique, key=lambda config: -method_of(config).members)
        cells = [
            Cell(config, self.directory_of(config), evaluated=config.seed == self.seeds[0])
            for config in ordered
        ]
        results = run_cells(cells, jobs=self.jobs, on_cell=progress.stage(ordered))
        return {result.record.fingerprint: result for result in results}

    def _compared(
        self, entry: _Entry, config: RunConfig, records: Sequence[RunRecord], trials: Sequence[Trial]
    ) -> Compared:
        runs = [structs.replace(record, search=list(trials)) for record in records]
        return Compared(entry.spec.key, label_of(config), runs)

    def _evaluation(self, compared: Compared, result: RunResult) -> EvaluationRecord:
        """With the path as seen from the comparison's directory, which may be moved."""
        run_dir = RunDirectory(self.directory_of(config_from(result.record.config)))
        evaluation = result.evaluation or evaluate_finished(run_dir)
        source = run_dir.predictions("test").relative_to(self.directory)
        return structs.replace(evaluation, name=compared.label, source=f"{source}")

    def _settings(self) -> dict[str, Any]:
        every = [to_mapping(entry.config) for entry in self.entries]
        shared = {key: value for key, value in every[0].items() if all(one[key] == value for one in every)}
        return {key: value for key, value in shared.items() if key not in ("method", "seed")} | {
            "jobs": self.jobs,
            "directory": f"{self.directory}",
        }


class _Share:
    """How much of all runs is done."""

    def __init__(self, cells: int, on_progress: OnProgress | None) -> None:
        self.cells, self.before, self.on_progress = cells, 0, on_progress

    def stage(self, configs: Sequence[RunConfig]) -> Callable[[int, float, str], None]:
        """A listener to the next runs."""
        shares, before = [0.0] * len(configs), self.before
        self.before += len(configs)

        def report(index: int, share: float, doing: str) -> None:
            shares[index] = share
            if self.on_progress is not None:
                config = configs[index]
                words = f"{label(config.method.name, {})}, seed {config.seed}: {doing}"
                self.on_progress((before + sum(shares)) / self.cells, words)

        return report


def _entry(mapping: Mapping[str, Any], spec: MethodSpec, seed: int) -> _Entry:
    config = with_known_teacher(structs.replace(config_from(with_spec(mapping, spec)), seed=seed))
    return _Entry(spec, Candidates.of(config))
