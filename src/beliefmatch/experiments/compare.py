"""Methods trained alike, with several seeds, and set side by side."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from beliefmatch._environment import hardware, versions
from beliefmatch.data.memory import MemorySource
from beliefmatch.data.predictions import Predictions, read_predictions
from beliefmatch.experiments.build import (
    dataset,
    engine_for,
    foreign_sets,
    foreign_training,
    is_first_process,
    method_of,
    network_of,
    tried_network,
)
from beliefmatch.experiments.config import RunPlan, fingerprint, plan_from, to_mapping
from beliefmatch.experiments.cost import Estimate, estimate
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.grid import Cell, run_cells, usual_jobs
from beliefmatch.experiments.method_spec import MethodSpec, label, label_of, with_spec
from beliefmatch.experiments.records import Compared, ComparisonRecord, RunRecord, Trial
from beliefmatch.experiments.rotation import TurningDigit
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.search import Candidates
from beliefmatch.experiments.teacher import with_known_teacher, with_seed
from beliefmatch.experiments.training_inputs import require_lessons

__all__ = ["Comparison", "evaluations"]

OnProgress = Callable[[float, str], None]


@dataclass(frozen=True)
class _Entry:
    """One method to compare."""

    spec: MethodSpec
    candidates: Candidates

    @property
    def plan(self) -> RunPlan:
        """With the first seed; an option may be left to a search."""
        return self.candidates.plan


class Comparison:
    """A comparison ready to run: what a user can get wrong is refused on construction.

    Every method trains the same network from the same initial weights on the same batches, but for dropout
    where it is the method.

    Args:
        mapping: settings of the runs, as `plan_from` takes them; the method in it is left aside.
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
        self.jobs = usual_jobs(self.entries[0].plan) if jobs is None else jobs
        self._check()

    @property
    def cells(self) -> int:
        """Runs in all, those of searches among them."""
        return sum(entry.candidates.trials + len(self.seeds) - 1 for entry in self.entries)

    @property
    def speaks(self) -> bool:
        """Whether this process writes and shows what came out; of several only the first."""
        return is_first_process()

    def estimates(self) -> list[tuple[RunPlan, Estimate]]:
        """What one run of each method will cost."""
        found = []
        for entry in self.entries:
            plan = entry.candidates.example
            method, data = method_of(plan), dataset(plan.data)
            network = network_of(plan, method, data)
            found.append((entry.plan, estimate(plan, data, method, network, engine_for(plan.engine))))
        return found

    def run(
        self, on_progress: OnProgress | None = None, *, command: Sequence[str] | None = None
    ) -> ComparisonRecord:
        """Train and judge every method with every seed.

        Args:
            on_progress: told the share that is done, and what is being done.
            command: how to repeat it, for the record.
        """
        start, progress = time.perf_counter(), _Share(self.cells, on_progress)
        known = self._run(
            [plan for entry in self.entries for plan in entry.candidates.known(self.seeds)], progress
        )
        found = [entry.candidates.choose(known) for entry in self.entries]
        plans = [with_seed(plan, seed) for plan, _ in found for seed in self.seeds]
        known |= self._run([plan for plan in plans if fingerprint(plan) not in known], progress)
        methods = [
            self._compared(
                entry, plan, [known[fingerprint(with_seed(plan, seed))] for seed in self.seeds], trials
            )
            for entry, (plan, trials) in zip(self.entries, found, strict=True)
        ]
        return ComparisonRecord(
            methods=methods,
            seeds=self.seeds,
            turning=TurningDigit.load().described() if self.entries[0].plan.data.name == "digits" else None,
            settings=self._settings() | ({} if command is None else {"command": list(command)}),
            versions=versions("beliefmatch", "torch", "numpy", "scikit-learn", "scipy", "lightning-fabric"),
            hardware=hardware(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            wall_seconds=time.perf_counter() - start,
        )

    def directory_of(self, plan: RunPlan) -> Path:
        """Of one run: named by what decides its result."""
        return self.directory / "runs" / f"{plan.method.name}-seed{plan.seed}-{fingerprint(plan)}"

    def _check(self) -> None:
        """Build every part once, so that a mistake is told now and not after an hour."""
        data = dataset(self.entries[0].plan.data)
        for entry in self.entries:
            plan = entry.candidates.example
            method = method_of(plan)
            tried_network(plan, method, data)
            foreign_training(plan, method, data)
            for seed in self.seeds:
                require_lessons(with_seed(plan, seed), method, data)
        foreign_sets(self.entries[0].plan, data)

    def _run(self, plans: Sequence[RunPlan], progress: "_Share") -> dict[str, RunRecord]:
        """The records of plans, by their fingerprints; the longest runs begin first."""
        unique = {fingerprint(plan): plan for plan in plans}.values()
        ordered = sorted(unique, key=lambda plan: -method_of(plan).members)
        cells = [Cell(plan, self.directory_of(plan)) for plan in ordered]
        records = run_cells(cells, jobs=self.jobs, on_cell=progress.stage(ordered))
        return {record.fingerprint: record for record in records}

    def _compared(
        self, entry: _Entry, plan: RunPlan, records: Sequence[RunRecord], trials: Sequence[Trial]
    ) -> Compared:
        runs = [replace(record, search=list(trials)) for record in records]
        return Compared(entry.spec.key, label_of(plan), runs)

    def _settings(self) -> dict[str, Any]:
        every = [to_mapping(entry.plan) for entry in self.entries]
        shared = {key: value for key, value in every[0].items() if all(one[key] == value for one in every)}
        return {key: value for key, value in shared.items() if key not in ("method", "seed")} | {
            "jobs": self.jobs,
            "directory": f"{self.directory}",
        }


class _Share:
    """How much of all runs is done."""

    def __init__(self, cells: int, on_progress: OnProgress | None) -> None:
        self.cells, self.before, self.on_progress = cells, 0, on_progress

    def stage(self, plans: Sequence[RunPlan]) -> Callable[[int, float, str], None]:
        """A listener to the next runs."""
        shares, before = [0.0] * len(plans), self.before
        self.before += len(plans)

        def tell(index: int, share: float, doing: str) -> None:
            shares[index] = share
            if self.on_progress is not None:
                plan = plans[index]
                words = f"{label(plan.method.name, {})}, seed {plan.seed}: {doing}"
                self.on_progress((before + sum(shares)) / self.cells, words)

        return tell


def _entry(mapping: Mapping[str, Any], spec: MethodSpec, seed: int) -> _Entry:
    plan = with_known_teacher(replace(plan_from(with_spec(mapping, spec)), seed=seed))
    return _Entry(spec, Candidates.of(plan))


def evaluations(record: ComparisonRecord, work: Comparison) -> list[EvaluationRecord]:
    """One for each method, in their order."""
    return [_evaluation(compared.label, work, compared.runs[0].plan) for compared in record.methods]


def _evaluation(name: str, work: Comparison, mapping: dict) -> EvaluationRecord:
    plan = plan_from(mapping)
    home, data = RunDirectory(work.directory_of(plan)), dataset(plan.data)
    places = home.foreign_predictions([one.name for one in home.finished().foreign])
    foreign = {name: read_predictions(place, labelled=False) for name, place in places.items()}
    said = read_predictions(home.predictions("test"))
    if isinstance(data.test, MemorySource):
        said = replace(said, images=data.test.images)
    return evaluate(_placed(said, work.directory), name=name, class_names=data.class_names, foreign=foreign)


def _placed(said: Predictions, root: Path) -> Predictions:
    """With the path as seen from the comparison's directory, which may be moved."""
    return replace(said, path=said.path.relative_to(root))
