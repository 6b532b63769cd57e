"""A reproduction at work: its plans, their runs, and the record of what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from beliefmatch._files import OutsideError
from beliefmatch.data.settings import DataSettings
from beliefmatch.experiments.build import dataset, digests_of, foreign_sets, method_of, tried_network
from beliefmatch.experiments.config import RunPlan, fingerprint, overridden, plan_from, to_mapping
from beliefmatch.experiments.grid import Cell, Ran, attempt_cells, usual_jobs
from beliefmatch.experiments.records import Diverged, RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.search import Candidates
from beliefmatch.experiments.training_inputs import require_lessons
from beliefmatch.reproduce.asked import Asked, is_of_transfers
from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.differences import (
    Meant,
    class_sentences,
    compiled_sentences,
    count_sentences,
    differences,
    foreign_sentences,
    precision_sentences,
)
from beliefmatch.reproduce.outcome import Outcome, Trained
from beliefmatch.reproduce.places import (
    anywhere,
    at_home,
    missing_data,
    other_images,
    require_classes,
    require_named,
)
from beliefmatch.reproduce.record import ReproducedRun
from beliefmatch.reproduce.scales import scale_words, training_images, two_core_seconds
from beliefmatch.reproduce.working import OnProgress, Work
from beliefmatch.train.engine import processes_here

__all__ = ["Reproducing"]


class Digests(NamedTuple):
    """What tells the images of a plan from others: known ones, and foreign ones by their sets."""

    known: str | None
    foreign: Mapping[str, str]


class Reproducing(Work[Outcome]):
    """By training networks, each with every seed."""

    packages = (*Work.packages, "lightning-fabric")

    def __init__(self, what: Reproduction, asked: Asked) -> None:
        super().__init__(what, asked)
        for setting in asked.of_runs:
            what.require_free(setting)
        self._digests: dict[tuple[DataSettings, tuple[str, ...]], Digests] = {}
        self.arms = {arm.key: arm for arm in what.arms(asked.scale)}
        self.candidates = {key: Candidates.of(self._plan(arm)) for key, arm in self.arms.items()}
        self.plans = {key: candidates.plan for key, candidates in self.candidates.items()}
        self.jobs = asked.jobs or usual_jobs(next(iter(self.plans.values())))

    @staticmethod
    def takes(setting: str) -> bool:
        """All that does not begin with `transfer.`."""
        return not is_of_transfers(setting)

    def _plan(self, arm: Arm) -> RunPlan:
        plan = plan_from(overridden(arm.settings, self.asked.of_runs))
        plan = plan if self.asked.data_dir is None else at_home(plan, self.asked.data_dir)
        return replace(plan, seed=self.seeds[0])

    @property
    def _small_scale(self) -> str:
        return scale_words(self.asked.scale, list(self.plans.values()))

    @property
    def expected(self) -> dict[str, RunPlan]:
        """Every run by its fingerprint; of a choice that is not made yet its first value stands for it."""
        plans = [plan for one in self.candidates.values() for plan in one.known(self.seeds)]
        chosen = [self._likely(one) for one in self.candidates.values() if one.search is not None]
        plans += [replace(plan, seed=seed) for plan in chosen for seed in self.seeds[1:]]
        return {fingerprint(plan): plan for plan in plans}

    def _likely(self, one: Candidates) -> RunPlan:
        """What is chosen, where all that it is chosen from has ended, or the first value."""
        homes = [RunDirectory(self.directory_of(plan)) for plan in one.known(self.seeds)]
        ended = [home.record() for home in homes if home.is_ended]
        if len(ended) < len(homes):
            return one.example
        return one.choose({record.fingerprint: record for record in ended if record is not None})[0]

    @property
    def _notes(self) -> list[str]:
        return precision_sentences(plan.engine.precision for plan in self.plans.values())

    @property
    def _changed(self) -> list[str]:
        paper = [Meant(arm.key, arm.group, arm.label, arm.plan) for arm in self.what.arms("paper")]
        return differences(paper, {key: anywhere(plan) for key, plan in self.plans.items()})

    def _words_of(self, found: Outcome) -> str:
        if self.is_paper:
            return self.words
        plans = [one.plan for one in found.trained.values()]
        return scale_words(self.asked.scale, plans, [_fitted_on(one) for one in found.trained.values()])

    def _notes_of(self, found: Outcome) -> list[str]:
        ended = {run.fingerprint: run for one in found.trained.values() for run in one.ended}
        records = [run for run in ended.values() if isinstance(run, RunRecord)]
        return compiled_sentences(sum(bool(run.engine.get("compiled")) for run in records), len(records))

    def _differences_of(self, found: Outcome) -> list[str]:
        """Sets of which only some images or classes were there."""
        firsts = [(one.plan, one.first.record) for one in found.trained.values() if one.first is not None]
        known = [told for plan, run in firsts for told in count_sentences(plan, run.data["counts"])]
        known += [told for plan, run in firsts for told in class_sentences(plan, len(run.class_names))]
        seen = {one.name: one.examples for _, run in firsts for one in run.foreign}
        return [*dict.fromkeys(known), *foreign_sentences(seen)]

    def costs(self) -> dict[str, float | None]:
        """Seconds of each run on two cores, very roughly, by its fingerprint."""
        return {name: two_core_seconds(plan) for name, plan in self.expected.items()}

    def described(self) -> dict[str, dict[str, Any]]:
        """Every plan by its arm."""
        return {key: to_mapping(plan) for key, plan in self.plans.items()}

    def finished(self) -> int:
        """How many of the expected runs have ended already; an OutsideError where one is damaged."""
        homes = [RunDirectory(self.directory_of(plan)) for plan in self.expected.values()]
        return sum((home.record() or home.diverged()) is not None for home in homes)

    def directory_of(self, plan: RunPlan) -> Path:
        """Of one run: named by what decides its result, so that reproductions share it."""
        return self.asked.directory / "runs" / fingerprint(plan)

    def check(self) -> None:
        """Read the data and build the networks once, so that a mistake is told now and not after an hour."""
        tried: set[tuple[Any, ...]] = set()
        plans = list(self.plans.values())
        if self.asked.data_dir is not None:
            require_named(self.what.id, plans, self.asked.data_dir)
        for one in self.candidates.values():
            plan = one.example
            processes_here(plan.engine)
            with missing_data(self.what.id, plans, self.asked.data_dir):
                data = dataset(plan.data)
                self._digests_now(plan)
            require_classes(plan.data.name, len(data.class_names), scale=self.asked.scale)
            method = method_of(plan)
            require_lessons(plan, method, data)
            network = (plan.data.name, plan.model.name, f"{plan.model.options}", f"{method.model_options}")
            if network not in tried:
                tried_network(plan, method, data)
            tried.add(network)
        for plan in self.expected.values():
            self._require_same_data(plan)

    def _runs(self, found: Outcome) -> list[ReproducedRun]:
        return [run for trained in found.trained.values() for run in _runs(trained)]

    def _plans_of(self, found: Outcome) -> dict[str, dict[str, Any]]:
        return {key: to_mapping(anywhere(_as_run(trained))) for key, trained in found.trained.items()}

    def _find(self, tell: OnProgress) -> Outcome:
        """First what depends on no choice, then the chosen with the other seeds."""
        known = [plan for one in self.candidates.values() for plan in one.known(self.seeds)]
        total = len(self.expected)
        ran = self._run(known, tell, 0, total)
        records = {name: one for name, one in ran.items() if isinstance(one, RunRecord)}
        found = {key: one.choose(records) for key, one in self.candidates.items()}
        plans = [replace(plan, seed=seed) for plan, _ in found.values() for seed in self.seeds]
        ran |= self._run([plan for plan in plans if fingerprint(plan) not in ran], tell, len(ran), total)
        trained = {}
        for key, (plan, trials) in found.items():
            own = [replace(plan, seed=seed) for seed in self.seeds]
            ended = [ran[fingerprint(one)] for one in own]
            homes = [RunDirectory(self.directory_of(one)) for one in own]
            lost = _lost(self.candidates[key], ran)
            trained[key] = Trained(self.arms[key], plan, self.seeds, ended, homes, trials, lost)
        return Outcome(self.asked.scale, trained)

    def _run(self, plans: Sequence[RunPlan], tell: OnProgress, before: int, total: int) -> dict[str, Ran]:
        unique = list({fingerprint(plan): plan for plan in plans}.values())
        for plan in unique:
            self._require_same_data(plan)
        cells = [Cell(plan, self.directory_of(plan), may_diverge=True) for plan in unique]
        shares = [0.0] * len(cells)

        def on_cell(index: int, share: float, doing: str) -> None:
            shares[index] = share
            plan = unique[index]
            words = f"{plan.method.name}, {plan.model.name}, {plan.data.name}, seed {plan.seed}: {doing}"
            tell((before + sum(shares)) / max(total, before + len(cells)), words)

        ended = attempt_cells(cells, jobs=self.jobs, on_cell=on_cell)
        return {fingerprint(plan): one for plan, one in zip(unique, ended, strict=True)}

    def _require_same_data(self, plan: RunPlan) -> None:
        """A finished run must be of the images that are there now: its name tells nothing of them."""
        home = RunDirectory(self.directory_of(plan))
        ended = home.record() or home.diverged()
        if ended is None:
            return
        known, foreign = self._digests_now(plan)
        if ended.data_digest != known and plan.data.name != "digits":  # which are always the same
            raise OutsideError(other_images(home.path, plan.data.name, plan.data))
        before = ended.data.get("foreign_digests", {}) if isinstance(ended, RunRecord) else {}
        for name, digest in before.items():
            if digest != foreign.get(name):
                raise OutsideError(other_images(home.path, name, plan.data))

    def _digests_now(self, plan: RunPlan) -> Digests:
        """Of the images that are there now."""
        asked = (plan.data, plan.foreign)
        if asked not in self._digests:
            data = dataset(plan.data)
            self._digests[asked] = Digests(data.facts.get("digest"), digests_of(foreign_sets(plan, data)))
        return self._digests[asked]


def _as_run(trained: Trained) -> RunPlan:
    """The plan with the engine of the first run; an earlier call may have had another."""
    if trained.first is None:
        return trained.plan
    return replace(trained.plan, engine=plan_from(trained.first.record.plan).engine)


def _fitted_on(trained: Trained) -> int | None:
    """Training images, those without labels too; by the plan where no run has ended."""
    if trained.first is None:
        return training_images(trained.plan)
    counts = trained.first.record.data["counts"]
    return counts["train"] + counts.get("unlabelled", 0)


def _lost(one: Candidates, ran: Mapping[str, Ran]) -> list[float]:
    """Values that were to be chosen from and diverged."""
    values = one.search.values if one.search is not None else ()
    return [value for value in values if isinstance(ran[fingerprint(one.settled(value))], Diverged)]


def _runs(trained: Trained) -> list[ReproducedRun]:
    return [
        _reproduced(trained, seed, ended) for seed, ended in zip(trained.seeds, trained.ended, strict=True)
    ]


def _reproduced(trained: Trained, seed: int, ended: Ran) -> ReproducedRun:
    record = ended if isinstance(ended, RunRecord) else None
    return ReproducedRun(
        arm=trained.arm.key,
        seed=seed,
        fingerprint=ended.fingerprint,
        method=trained.plan.method.name,
        options=dict(trained.plan.method.options),
        train_seconds=None if record is None else record.costs.train_seconds,
        skipped_steps=None if record is None else record.skipped_steps,
        diverged=ended.message if isinstance(ended, Diverged) else None,
        search=list(trained.trials),
    )
