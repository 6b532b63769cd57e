"""Compare methods: train them alike with several seeds, and collect their scores."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from beliefmatch._environment import provenance
from beliefmatch._errors import fail
from beliefmatch._utils import OnProgress, no_progress
from beliefmatch.experiments.build import (
    check_network,
    dataset,
    method_of,
    ood_sets,
    ood_training,
)
from beliefmatch.experiments.config import RunConfig, config_from, fingerprint, to_mapping
from beliefmatch.experiments.cost import Estimate, estimate
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.executors import LocalWorkers, Workers
from beliefmatch.experiments.grid import Cell, report_cells, resources_of, run_cells
from beliefmatch.experiments.method_spec import MethodSpec, label, label_of, with_spec
from beliefmatch.experiments.records import Compared, ComparisonRecord
from beliefmatch.experiments.rotation import DigitRotation
from beliefmatch.experiments.run import RunResult, evaluate_finished
from beliefmatch.experiments.run_dir import RunDirectory, require_directory_of
from beliefmatch.experiments.train_job import Candidates
from beliefmatch.experiments.training_inputs import (
    check_training_inputs,
    with_seed,
    with_teacher_fingerprint,
)

__all__ = ["Comparison", "ComparisonResult"]


class ComparisonResult(NamedTuple):
    """The record of a comparison, and the evaluation of each method's first run, in their order."""

    record: ComparisonRecord
    evaluations: list[EvaluationRecord]


class Comparison:
    """A comparison ready to run: what a user can get wrong is refused on construction.

    Every method trains the same network from the same initial weights on the same batches, but for dropout
    where it is the method.

    Args:
        mapping: settings of the runs, as `config_from` takes them; the method in it is ignored.
        methods: methods to compare, in the order to show them.
        seeds: seeds of the runs of each method. Options left to a search are chosen with the first.
        directory: directory of the runs; those that are finished are not run again.
        url: where the runs are kept, if not in the directory, which is then a copy without networks.
        workers: where the runs are executed; as many processes as this machine has cores for if not given.
    """

    def __init__(
        self,
        mapping: Mapping[str, Any],
        methods: Sequence[MethodSpec],
        *,
        seeds: Sequence[int],
        directory: Path,
        url: str | None = None,
        workers: Workers | None = None,
    ) -> None:
        if not methods or not seeds:
            raise fail("compare", "`methods` and `seeds` must be at least one each.")
        require_directory_of("comparison", directory, caller="compare")
        self.specs, self.seeds, self.directory = list(methods), list(seeds), directory
        configs = [replace(config_from(with_spec(mapping, spec)), seed=seeds[0]) for spec in methods]
        self.candidates = [Candidates.of(with_teacher_fingerprint(config)) for config in configs]
        self.workers, self.url = workers or LocalWorkers(), url
        self._check()

    @property
    def first(self) -> RunConfig:
        """The configuration of the first method and seed."""
        return self.candidates[0].config

    def _check(self) -> None:
        """Build every part once, so that a mistake is found before the first training."""
        data = dataset(self.first.data)
        for candidates in self.candidates:
            config = candidates.example
            method = method_of(config)
            check_network(config, method, data)
            ood_training(config, method, data)
            for seed in self.seeds:
                check_training_inputs(with_seed(config, seed), method, data)
        ood_sets(self.first, data)

    @property
    def cells(self) -> int:
        """Runs in all, those of searches among them."""
        return sum(len(candidates.configs) + len(self.seeds) - 1 for candidates in self.candidates)

    def estimates(self) -> list[tuple[RunConfig, Estimate]]:
        """What one run of each method will cost."""
        return [(candidates.config, estimate(candidates.example)) for candidates in self.candidates]

    def run(
        self, on_progress: OnProgress | None = None, *, command: Sequence[str] | None = None
    ) -> ComparisonResult:
        """Train and score every method with every seed.

        Predictions are evaluated while they are in memory, but for runs that were finished earlier.

        Args:
            on_progress: called with (fraction, description).
            command: command that repeats the comparison, for the record.
        """
        start, report = time.perf_counter(), on_progress or no_progress
        first = [config for candidates in self.candidates for config in candidates.known(self.seeds)]
        results = self._run(first, report, before=0)
        records = {name: result.record for name, result in results.items()}
        chosen = [candidates.choose(records) for candidates in self.candidates]
        seeded = [[with_seed(config, seed) for seed in self.seeds] for config, _ in chosen]
        left = [config for configs in seeded for config in configs if fingerprint(config) not in results]
        results |= self._run(left, report, before=len(results))
        methods, evaluations = [], []
        for spec, (config, trials), configs in zip(self.specs, chosen, seeded, strict=True):
            runs = [results[fingerprint(one)].record for one in configs]
            runs = [replace(record, search=list(trials)) for record in runs]
            methods.append(Compared(spec.key, label_of(config), runs))
            evaluations.append(self._evaluation(config, results[fingerprint(config)]))
        is_digits = self.first.data.name == "digits"
        record = ComparisonRecord(
            methods=methods,
            seeds=self.seeds,
            rotated_digit=DigitRotation.load().described() if is_digits else None,
            settings=self._settings() | ({} if command is None else {"command": list(command)}),
            **provenance(
                time.perf_counter() - start,
                "beliefmatch",
                "torch",
                "numpy",
                "scikit-learn",
                "scipy",
                "lightning-fabric",
            ),
        )
        return ComparisonResult(record, evaluations)

    def directory_of(self, config: RunConfig) -> Path:
        """Directory of one run, named by what decides its result."""
        return self.directory / self._name_of(config)

    @staticmethod
    def _name_of(config: RunConfig) -> str:
        return f"runs/{config.method.name}-seed{config.seed}-{fingerprint(config)}"

    def _run(
        self, configs: Sequence[RunConfig], on_progress: OnProgress, *, before: int
    ) -> dict[str, RunResult]:
        """The results of configurations, by their fingerprints; the longest runs begin first."""
        unique = {fingerprint(config): config for config in configs}.values()
        ordered = sorted(unique, key=lambda config: -method_of(config).members)
        cells = [
            Cell(
                config,
                self.directory_of(config),
                name=f"{label(config.method.name, {})}, seed {config.seed}",
                evaluated=config.seed == self.seeds[0],
                url=None if self.url is None else f"{self.url}/{self._name_of(config)}",
            )
            for config in ordered
        ]
        on_cell = report_cells(on_progress, [cell.name for cell in cells], before=before, total=self.cells)
        results = run_cells(cells, workers=self.workers, on_cell=on_cell)
        return {result.record.fingerprint: result for result in results}

    def _evaluation(self, config: RunConfig, result: RunResult) -> EvaluationRecord:
        """With the path as seen from the comparison's directory, which may be moved."""
        run_dir = RunDirectory(self.directory_of(config))
        evaluation = result.evaluation or evaluate_finished(run_dir)
        source = run_dir.predictions("test").relative_to(self.directory)
        return replace(evaluation, name=label_of(config), source=f"{source}")

    def _settings(self) -> dict[str, Any]:
        """Settings that all methods share."""
        every = [to_mapping(candidates.config) for candidates in self.candidates]
        shared = {key: value for key, value in every[0].items() if all(one[key] == value for one in every)}
        return {key: value for key, value in shared.items() if key not in ("method", "seed")} | {
            "workers": self.workers.describe(resources_of(self.first)),
            "directory": self.url or f"{self.directory}",
        }
