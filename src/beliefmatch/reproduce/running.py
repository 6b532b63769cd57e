"""A reproduction at work: its configurations, their runs, and the record of what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from beliefmatch._files import EnvironmentFailure
from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.build import dataset, digests_of, method_of, ood_sets, tried_network
from beliefmatch.experiments.config import RunConfig, config_from, fingerprint, overridden, to_mapping
from beliefmatch.experiments.grid import Cell, Ran, attempt_cells, default_jobs
from beliefmatch.experiments.records import Diverged, RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.search import Candidates
from beliefmatch.experiments.training_inputs import check_training_inputs
from beliefmatch.reproduce.asked import ReproduceConfig, is_of_transfers
from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.differences import (
    Meant,
    class_sentences,
    compiled_sentences,
    count_sentences,
    differences,
    ood_sentences,
    precision_sentences,
)
from beliefmatch.reproduce.outcome import Outcome, Trained
from beliefmatch.reproduce.places import (
    anywhere,
    missing_data,
    other_images,
    require_classes,
    require_named,
    with_data_dir,
)
from beliefmatch.reproduce.record import ReproducedRun
from beliefmatch.reproduce.scales import scale_words, training_images, two_core_seconds
from beliefmatch.reproduce.working import OnProgress, Work
from beliefmatch.train.engine import local_processes

__all__ = ["Reproducing"]


class Digests(NamedTuple):
    """What tells the images of a configuration from others: known ones, and OOD ones by their sets."""

    known: str | None
    ood: Mapping[str, str]


class Reproducing(Work[Outcome]):
    """By training networks, each with every seed."""

    packages = (*Work.packages, "lightning-fabric")

    def __init__(self, what: Reproduction, asked: ReproduceConfig) -> None:
        super().__init__(what, asked)
        for setting in asked.of_runs:
            what.require_free(setting)
        self._digests: dict[tuple[DataConfig, tuple[str, ...]], Digests] = {}
        self.arms = {arm.key: arm for arm in what.arms(asked.scale)}
        self.candidates = {key: Candidates.of(self._config(arm)) for key, arm in self.arms.items()}
        self.configs = {key: candidates.config for key, candidates in self.candidates.items()}
        self.jobs = asked.jobs or default_jobs(next(iter(self.configs.values())))

    @staticmethod
    def takes(setting: str) -> bool:
        """All that does not begin with `transfer.`."""
        return not is_of_transfers(setting)

    def _config(self, arm: Arm) -> RunConfig:
        config = config_from(overridden(arm.settings, self.asked.of_runs))
        config = config if self.asked.data_dir is None else with_data_dir(config, self.asked.data_dir)
        return replace(config, seed=self.seeds[0])

    @property
    def _small_scale(self) -> str:
        return scale_words(self.asked.scale, list(self.configs.values()))

    @property
    def expected(self) -> dict[str, RunConfig]:
        """Every run by its fingerprint; of a choice that is not made yet its first value stands for it."""
        configs = [config for one in self.candidates.values() for config in one.known(self.seeds)]
        chosen = [self._likely(one) for one in self.candidates.values() if one.search is not None]
        configs += [replace(config, seed=seed) for config in chosen for seed in self.seeds[1:]]
        return {fingerprint(config): config for config in configs}

    def _likely(self, one: Candidates) -> RunConfig:
        """What is chosen, where all that it is chosen from has ended, or the first value."""
        homes = [RunDirectory(self.directory_of(config)) for config in one.known(self.seeds)]
        ended = [home.record() for home in homes if home.is_ended]
        if len(ended) < len(homes):
            return one.example
        return one.choose({record.fingerprint: record for record in ended if record is not None})[0]

    @property
    def _notes(self) -> list[str]:
        return precision_sentences(config.engine.precision for config in self.configs.values())

    @property
    def _changed(self) -> list[str]:
        paper = [Meant(arm.key, arm.group, arm.label, arm.config) for arm in self.what.arms("paper")]
        return differences(paper, {key: anywhere(config) for key, config in self.configs.items()})

    def _words_of(self, found: Outcome) -> str:
        if self.is_paper:
            return self.words
        configs = [one.config for one in found.trained.values()]
        return scale_words(self.asked.scale, configs, [_fitted_on(one) for one in found.trained.values()])

    def _notes_of(self, found: Outcome) -> list[str]:
        ended = {run.fingerprint: run for one in found.trained.values() for run in one.ended}
        records = [run for run in ended.values() if isinstance(run, RunRecord)]
        return compiled_sentences(sum(bool(run.engine.get("compiled")) for run in records), len(records))

    def _differences_of(self, found: Outcome) -> list[str]:
        """Sets of which only some images or classes were there."""
        firsts = [(one.config, one.first.record) for one in found.trained.values() if one.first is not None]
        known = [told for config, run in firsts for told in count_sentences(config, run.data["counts"])]
        known += [told for config, run in firsts for told in class_sentences(config, len(run.class_names))]
        seen = {one.name: one.examples for _, run in firsts for one in run.ood}
        return [*dict.fromkeys(known), *ood_sentences(seen)]

    def costs(self) -> dict[str, float | None]:
        """Seconds of each run on two cores, very roughly, by its fingerprint."""
        return {name: two_core_seconds(config) for name, config in self.expected.items()}

    def described(self) -> dict[str, dict[str, Any]]:
        """Every configuration by its arm."""
        return {key: to_mapping(config) for key, config in self.configs.items()}

    def finished(self) -> int:
        """How many of the expected runs have ended already; an EnvironmentFailure where one is damaged."""
        homes = [RunDirectory(self.directory_of(config)) for config in self.expected.values()]
        return sum((home.record() or home.diverged()) is not None for home in homes)

    def directory_of(self, config: RunConfig) -> Path:
        """Of one run: named by what decides its result, so that reproductions share it."""
        return self.asked.directory / "runs" / fingerprint(config)

    def check(self) -> None:
        """Read the data and build the networks once, so that a mistake is told now and not after an hour."""
        tried: set[tuple[Any, ...]] = set()
        configs = list(self.configs.values())
        if self.asked.data_dir is not None:
            require_named(self.what.id, configs, self.asked.data_dir)
        for one in self.candidates.values():
            config = one.example
            local_processes(config.engine)
            with missing_data(self.what.id, configs, self.asked.data_dir):
                data = dataset(config.data)
                self._digests_now(config)
            require_classes(config.data.name, len(data.class_names), scale=self.asked.scale)
            method = method_of(config)
            check_training_inputs(config, method, data)
            network = (
                config.data.name,
                config.model.name,
                f"{config.model.options}",
                f"{method.model_options}",
            )
            if network not in tried:
                tried_network(config, method, data)
            tried.add(network)
        for config in self.expected.values():
            self._require_same_data(config)

    def _runs(self, found: Outcome) -> list[ReproducedRun]:
        return [run for trained in found.trained.values() for run in _runs(trained)]

    def _plans_of(self, found: Outcome) -> dict[str, dict[str, Any]]:
        return {key: to_mapping(anywhere(_as_run(trained))) for key, trained in found.trained.items()}

    def _find(self, tell: OnProgress) -> Outcome:
        """First what depends on no choice, then the chosen with the other seeds."""
        known = [config for one in self.candidates.values() for config in one.known(self.seeds)]
        total = len(self.expected)
        ran = self._run(known, tell, 0, total)
        records = {name: one for name, one in ran.items() if isinstance(one, RunRecord)}
        found = {key: one.choose(records) for key, one in self.candidates.items()}
        configs = [replace(config, seed=seed) for config, _ in found.values() for seed in self.seeds]
        ran |= self._run(
            [config for config in configs if fingerprint(config) not in ran], tell, len(ran), total
        )
        trained = {}
        for key, (config, trials) in found.items():
            own = [replace(config, seed=seed) for seed in self.seeds]
            ended = [ran[fingerprint(one)] for one in own]
            homes = [RunDirectory(self.directory_of(one)) for one in own]
            lost = _lost(self.candidates[key], ran)
            trained[key] = Trained(self.arms[key], config, self.seeds, ended, homes, trials, lost)
        return Outcome(self.asked.scale, trained)

    def _run(self, configs: Sequence[RunConfig], tell: OnProgress, before: int, total: int) -> dict[str, Ran]:
        unique = list({fingerprint(config): config for config in configs}.values())
        for config in unique:
            self._require_same_data(config)
        cells = [Cell(config, self.directory_of(config), may_diverge=True) for config in unique]
        shares = [0.0] * len(cells)

        def on_cell(index: int, share: float, doing: str) -> None:
            shares[index] = share
            config = unique[index]
            words = (
                f"{config.method.name}, {config.model.name}, {config.data.name}, seed {config.seed}: {doing}"
            )
            tell((before + sum(shares)) / max(total, before + len(cells)), words)

        ended = attempt_cells(cells, jobs=self.jobs, on_cell=on_cell)
        return {fingerprint(config): one for config, one in zip(unique, ended, strict=True)}

    def _require_same_data(self, config: RunConfig) -> None:
        """A finished run must be of the images that are there now: its name tells nothing of them."""
        home = RunDirectory(self.directory_of(config))
        ended = home.record() or home.diverged()
        if ended is None:
            return
        known, ood = self._digests_now(config)
        if ended.data_digest != known and config.data.name != "digits":  # which are always the same
            raise EnvironmentFailure(other_images(home.path, config.data.name, config.data))
        before = ended.data.get("ood_digests", {}) if isinstance(ended, RunRecord) else {}
        for name, digest in before.items():
            if digest != ood.get(name):
                raise EnvironmentFailure(other_images(home.path, name, config.data))

    def _digests_now(self, config: RunConfig) -> Digests:
        """Of the images that are there now."""
        asked = (config.data, config.ood)
        if asked not in self._digests:
            data = dataset(config.data)
            self._digests[asked] = Digests(data.facts.get("digest"), digests_of(ood_sets(config, data)))
        return self._digests[asked]


def _as_run(trained: Trained) -> RunConfig:
    """The configuration with the engine of the first run; an earlier call may have had another."""
    if trained.first is None:
        return trained.config
    return replace(trained.config, engine=config_from(trained.first.record.config).engine)


def _fitted_on(trained: Trained) -> int | None:
    """Training images, those without labels too; by the configuration where no run has ended."""
    if trained.first is None:
        return training_images(trained.config)
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
        method=trained.config.method.name,
        options=dict(trained.config.method.options),
        train_seconds=None if record is None else record.costs.train_seconds,
        skipped_steps=None if record is None else record.skipped_steps,
        diverged=ended.message if isinstance(ended, Diverged) else None,
        search=list(trained.trials),
    )
