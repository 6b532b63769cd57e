"""Run a reproduction at a scale: its configurations, their runs, and the record of what came out."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from beliefmatch._config import plain
from beliefmatch._environment import provenance
from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure
from beliefmatch._utils import OnProgress, no_progress, reason_of
from beliefmatch.experiments.build import check_network, dataset, method_of, ood_sets
from beliefmatch.experiments.config import RunConfig, config_from, fingerprint, overridden
from beliefmatch.experiments.executors import workers_on
from beliefmatch.experiments.grid import Cell, CellOutcome, attempt_cells, report_cells
from beliefmatch.experiments.records import Diverged, RunRecord, Trial
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.train_job import Candidates
from beliefmatch.experiments.training_inputs import check_training_inputs
from beliefmatch.reproduce import dataset_paths as paths
from beliefmatch.reproduce import protocol_diff
from beliefmatch.reproduce.config import ReproduceConfig
from beliefmatch.reproduce.record import ReproducedRun, ReproductionRecord
from beliefmatch.reproduce.registry import Reproduction
from beliefmatch.reproduce.scales import SMALL_SEEDS, scale_words, training_images, two_core_seconds
from beliefmatch.reproduce.tables import ArmResult, Outcome, Run
from beliefmatch.train.engine import local_processes

__all__ = ["Runner", "TrainingRunner", "arm_note"]

_TRIALS = 5  # of most tables of the paper
_OPTIONS = {"seed": "use `--seeds`", "data.directory": "use `--data-dir`"}
_NEAR_CHANCE = 0.95  # of the error of guessing


class Runner(ABC):
    """A reproduction at a scale; it reads and trains nothing before `check` and `run`.

    Subclasses run trainings of the arms, or transfers of a pretrained network. Both give an `Outcome`, which
    the rows and figures are read from.
    """

    fixed: tuple[str, ...]
    """Settings that identify rows, and those that have an option of their own."""
    packages: tuple[str, ...]
    """Packages whose versions are recorded."""
    configs: Mapping[str, Any]
    """Configurations, by arm or, of a transfer, by dataset."""

    def __init__(self, reproduction: Reproduction, config: ReproduceConfig) -> None:
        self.reproduction, self.config, self.id = reproduction, config, reproduction.id
        trials = SMALL_SEEDS.get(config.scale) or reproduction.trials or _TRIALS
        self.seeds = list(range(config.seeds or trials))
        self.workers = workers_on(config.on, jobs=config.jobs)
        self.settings = config.settings_of(transfers=bool(reproduction.transfers))
        self.directory = Path(config.out) / config.scale / self.id
        """Directory of the record, table and figures."""
        self.runs_directory = Path(config.out) / "runs"
        """Directory of the runs, named by their fingerprints so that reproductions share them."""
        for setting in self.settings:
            key = setting.partition("=")[0].strip()
            for name in (*self.fixed, *reproduction.fixed):
                if f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}."):  # or a section of it
                    remedy = _OPTIONS.get(name, "the rows are named by it")
                    raise fail("reproduce", f"`set` must leave {key} of {self.id} as it is; {remedy}.")

    def described(self) -> dict[str, dict[str, Any]]:
        """Every configuration as a plain mapping."""
        return {key: plain(config) for key, config in self.configs.items()}

    def scale_words(self, outcome: Outcome | None = None) -> str:
        """The scale, as it stands with every number."""
        if self.config.scale != "paper":
            return self._small_scale_words(outcome)
        return "paper scale with changed settings" if self._changes() else "paper scale"

    def differences(self, outcome: Outcome | None = None) -> list[str]:
        """Differences from the paper's protocol, each as a sentence; some show only in finished runs."""
        return [*self._changes(), *self.reproduction.notes, *self._run_notes(outcome)]

    def _changes(self) -> list[str]:
        """Settings and seeds that are not the paper's."""
        seeds, trials = len(self.seeds), self.reproduction.trials
        differ = trials is not None and seeds != trials
        return self._changed_settings() + ([f"Seeds: {seeds} instead of {trials}."] if differ else [])

    @abstractmethod
    def _small_scale_words(self, outcome: Outcome | None) -> str:
        """A scale other than the paper's in words."""

    @abstractmethod
    def _changed_settings(self) -> list[str]:
        """Settings that are not the paper's, each as a sentence."""

    @abstractmethod
    def _run_notes(self, outcome: Outcome | None) -> list[str]:
        """Differences of how numbers were computed."""

    @abstractmethod
    def _data_differences(self, outcome: Outcome) -> list[str]:
        """Datasets of which only some images or classes were there."""

    @abstractmethod
    def _portable_configs(self, outcome: Outcome) -> Mapping[str, Any]:
        """Configurations without the paths of this machine."""

    @abstractmethod
    def costs(self) -> dict[str, float | None]:
        """Rough seconds of each run on two cores, by its fingerprint; None where there is no estimate."""

    @abstractmethod
    def finished(self) -> int:
        """Number of runs that have ended; an EnvironmentFailure where one is damaged."""

    def check(self) -> None:
        """Read data and build networks once, so that mistakes show before anything is trained."""
        paths.require_datasets(self.id, list(self.configs.values()), self.config.data_dir)

    @abstractmethod
    def _execute(self, on_progress: OnProgress) -> Outcome:
        """Run what has not been run, and read all of it."""

    def run(
        self, on_progress: OnProgress | None = None, *, command: Sequence[str] = ()
    ) -> ReproductionRecord:
        """Run what has not been run, and read the rows and figures.

        Args:
            on_progress: Called with (fraction, description).
            command: Command that repeats it, for the record.
        """
        start = time.perf_counter()
        outcome = self._execute(on_progress or no_progress)
        data, words = self._data_differences(outcome), self.scale_words(outcome)
        try:
            rows, drawings = self.reproduction.rows(outcome), self.reproduction.drawings(outcome)
        except EnvironmentFailure:
            raise
        except ValueError as error:  # files of a finished run may have been damaged since
            remedy = "Remove the directory of that run, and the same command trains it again"
            raise fail(
                "reproduce",
                f"a finished run cannot be read: {reason_of(error)}. {remedy}.",
                EnvironmentFailure,
            ) from error
        return ReproductionRecord(
            id=self.id,
            title=self.reproduction.title,
            place=self.reproduction.place,
            scale=self.config.scale,
            scale_words=f"{words} on other images" if data and self.config.scale == "paper" else words,
            rows=rows,
            differences=[*data, *self.differences(outcome)],
            drawings=drawings,
            runs=[run for result in outcome.arms.values() for run in result.recorded],
            seeds=self.seeds,
            configs={key: plain(config) for key, config in self._portable_configs(outcome).items()},
            command=list(command),
            **provenance(time.perf_counter() - start, *self.packages),
        )


class TrainingRunner(Runner):
    """Trainings of the arms of a reproduction, each with every seed."""

    fixed = (
        "method", "defaults", "data.name", "data.directory", "model.name", "semi.kind", "teacher", "seed",
    )  # fmt: skip
    packages = ("beliefmatch", "torch", "numpy", "lightning-fabric")

    def __init__(self, reproduction: Reproduction, config: ReproduceConfig) -> None:
        super().__init__(reproduction, config)
        self.arms = {arm.key: arm for arm in reproduction.arms(config.scale)}
        self.candidates: dict[str, Candidates] = {}
        for key, arm in self.arms.items():
            own = config_from(overridden(arm.settings, self.settings))
            own = replace(paths.with_data_dir(own, config.data_dir), seed=self.seeds[0])
            self.candidates[key] = Candidates.of(own)
        self.configs = {key: one.config for key, one in self.candidates.items()}
        self._digests: dict[Any, tuple[str | None, Mapping[str, str]]] = {}

    def _changed_settings(self) -> list[str]:
        paper = [(arm, arm.config) for arm in self.reproduction.arms("paper")]
        return protocol_diff.protocol_differences(
            paper, {key: paths.without_paths(one) for key, one in self.configs.items()}
        )

    def _run_notes(self, outcome: Outcome | None) -> list[str]:
        """Precision of the networks, and whether they were compiled, which no fingerprint shows."""
        notes = protocol_diff.precision_sentences(config.engine.precision for config in self.configs.values())
        results = () if outcome is None else outcome.arms.values()
        records = {run.record.fingerprint: run.record for result in results for run in result.finished}
        compiled = sum(bool(record.engine.get("compiled")) for record in records.values())
        which = "all" if compiled == len(records) else f"{compiled} of {len(records)}"
        sentence = f"Networks of {which} runs were compiled (`engine.compile`), which changes last digits."
        return [*notes, sentence] if compiled else notes

    def _data_differences(self, outcome: Outcome) -> list[str]:
        results = [result for result in outcome.arms.values() if result.finished]
        first = [(result.config, result.finished[0].record) for result in results]
        known = [
            protocol_diff.data_sentences(config, run.data["counts"], len(run.class_names))
            for config, run in first
        ]
        counts, classes = ([text for texts in known for text in texts[part]] for part in (0, 1))
        ood = {one.name: one.examples for _, run in first for one in run.ood}
        return [*dict.fromkeys(counts + classes), *protocol_diff.ood_sentences(ood)]

    def _small_scale_words(self, outcome: Outcome | None) -> str:
        """Images, epochs and width."""
        configs = list(self.configs.values())
        counts = [training_images(config) for config in configs]
        if outcome is not None:
            configs = [result.config for result in outcome.arms.values()]
            counts = [_trained_images(result) for result in outcome.arms.values()]
        return scale_words(self.config.scale, configs, counts)

    def _portable_configs(self, outcome: Outcome) -> dict[str, RunConfig]:
        """Configurations with the engine of the first run, which an earlier call may have made."""
        configs = {key: paths.without_paths(result.config) for key, result in outcome.arms.items()}
        for key, result in outcome.arms.items():
            if result.finished:
                engine = config_from(result.finished[0].record.config).engine
                configs[key] = replace(configs[key], engine=engine)
        return configs

    def directory_of(self, config: RunConfig) -> RunDirectory:
        """Directory of one run."""
        return RunDirectory(self.runs_directory / fingerprint(config))

    def expected(self) -> dict[str, RunConfig]:
        """Every run by its fingerprint; the first value of a search stands for a choice yet to be made."""
        configs = [config for one in self.candidates.values() for config in one.known(self.seeds)]
        for one in self.candidates.values():
            if one.search is not None:
                configs += [replace(self._likely(one), seed=seed) for seed in self.seeds[1:]]
        return {fingerprint(config): config for config in configs}

    def _likely(self, one: Candidates) -> RunConfig:
        """The chosen configuration where all candidates have ended, else that with the first value."""
        run_dirs = [self.directory_of(config) for config in one.known(self.seeds)]
        if not all(run_dir.is_ended for run_dir in run_dirs):
            return one.example
        records = [run_dir.record() for run_dir in run_dirs]
        return one.choose({record.fingerprint: record for record in records if record is not None})[0]

    def costs(self) -> dict[str, float | None]:
        """Rough seconds of each run on two cores, by its fingerprint."""
        return {name: two_core_seconds(config) for name, config in self.expected().items()}

    def finished(self) -> int:
        """Number of expected runs that have ended; an EnvironmentFailure where one is damaged."""
        return sum(self._ended(config) is not None for config in self.expected().values())

    def _ended(self, config: RunConfig) -> CellOutcome | None:
        run_dir = self.directory_of(config)
        return run_dir.record() or run_dir.diverged()

    def check(self) -> None:
        """Read the data and build each network once."""
        super().check()
        built: set[tuple[str, ...]] = set()
        for one in self.candidates.values():
            config = one.example
            local_processes(config.engine)
            with paths.explain_missing_data(self.id, list(self.configs.values()), self.config.data_dir):
                data = dataset(config.data)
                self._current_digests(config)
            paths.require_classes(config.data.name, len(data.class_names), scale=self.config.scale)
            method, model = method_of(config), config.model
            check_training_inputs(config, method, data)
            network = (config.data.name, model.name, f"{model.options}", f"{method.model_options}")
            if network not in built:
                check_network(config, method, data)
            built.add(network)
        for config in self.expected().values():
            self._require_same_images(config)

    def _execute(self, on_progress: OnProgress) -> Outcome:
        """Train first what depends on no choice, then the chosen configurations with the other seeds."""
        known = [config for one in self.candidates.values() for config in one.known(self.seeds)]
        total = len(self.expected())
        ran = self._train(known, on_progress, 0, total)
        records = {name: one for name, one in ran.items() if isinstance(one, RunRecord)}
        chosen = {key: one.choose(records) for key, one in self.candidates.items()}
        configs = [replace(config, seed=seed) for config, _ in chosen.values() for seed in self.seeds]
        left = [config for config in configs if fingerprint(config) not in ran]
        ran |= self._train(left, on_progress, len(ran), total)
        arms = {key: self._result(key, config, trials, ran) for key, (config, trials) in chosen.items()}
        return Outcome(self.config.scale, arms)

    def _train(
        self, configs: Sequence[RunConfig], on_progress: OnProgress, before: int, total: int
    ) -> dict[str, CellOutcome]:
        """How each training ended, by its fingerprint."""
        unique = {fingerprint(config): config for config in configs}
        for config in unique.values():
            self._require_same_images(config)
        cells = [
            Cell(
                config,
                self.directory_of(config).path,
                f"{config.method.name}, {config.model.name}, {config.data.name}, seed {config.seed}",
                may_diverge=True,
                url=None if self.config.url is None else f"{self.config.url}/runs/{name}",
            )
            for name, config in unique.items()
        ]
        on_cell = report_cells(on_progress, [cell.name for cell in cells], before=before, total=total)
        ended = attempt_cells(cells, workers=self.workers, on_cell=on_cell)
        return dict(zip(unique, ended, strict=True))

    def _result(
        self, key: str, config: RunConfig, trials: Sequence[Trial], ran: Mapping[str, CellOutcome]
    ) -> ArmResult[Run]:
        """Result of an arm with every seed."""
        runs: list[Run | None] = []
        recorded = []
        for seed in self.seeds:
            own = replace(config, seed=seed)
            ended = ran[fingerprint(own)]
            record = ended if isinstance(ended, RunRecord) else None
            runs.append(None if record is None else Run(record, self.directory_of(own), own))
            recorded.append(
                ReproducedRun(
                    arm=key,
                    seed=seed,
                    fingerprint=ended.fingerprint,
                    method=config.method.name,
                    options=dict(config.method.options),
                    train_seconds=None if record is None else record.costs.train_seconds,
                    skipped_steps=None if record is None else record.skipped_steps,
                    diverged=ended.message if isinstance(ended, Diverged) else None,
                    search=list(trials),
                )
            )
        seconds = [run.record.costs.train_seconds for run in runs if run is not None]
        search, settled = self.candidates[key].search, self.candidates[key].settled
        values = search.values if search is not None else ()
        lost = [value for value in values if isinstance(ran[fingerprint(settled(value))], Diverged)]
        return ArmResult(
            arm=self.arms[key],
            config=config,
            seeds=self.seeds,
            runs=runs,
            train_seconds=fmean(seconds) if seconds else None,
            note=arm_note(runs, trials, lost),
            recorded=recorded,
        )

    def _require_same_images(self, config: RunConfig) -> None:
        """A finished run must be of the current images, which its fingerprint does not cover."""
        ended, path = self._ended(config), self.directory_of(config).path
        if ended is None:
            return
        digest, ood = self._current_digests(config)
        if ended.data_digest != digest and config.data.name != "digits":  # which are always the same
            raise paths.changed_images(path, config.data.name, config.data.directory)
        before = ended.data.get("ood_digests", {}) if isinstance(ended, RunRecord) else {}
        for name, own in before.items():
            if own != ood.get(name):
                raise paths.changed_images(path, name, config.data.directory)

    def _current_digests(self, config: RunConfig) -> tuple[str | None, Mapping[str, str]]:
        """Digests of the current images: of the dataset, and of the OOD sets by name."""
        key = (config.data, config.ood)
        if key not in self._digests:
            data = dataset(config.data)
            ood = {name: source.digest() for name, source in ood_sets(config, data).items()}
            self._digests[key] = data.facts.get("digest"), ood
        return self._digests[key]


def arm_note(runs: Sequence[Run | None], trials: Sequence[Trial], lost: Sequence[float]) -> str:
    """What was chosen, how many seeds diverged, and how many are no better than guessing.

    Args:
        runs: By seed; None where training diverged.
        trials: Values that an option was chosen from.
        lost: Values of that option with which training diverged.
    """
    notes = []
    for trial in [trial for trial in trials if trial.chosen][:1]:
        names = {"kl_weight": "λ", "rate": "rate", "matched_kl_weight": "matched λ"}
        diverged = f" ({', '.join(f'{value:g}' for value in lost)} diverged)" if lost else ""
        notes.append(f"{names.get(trial.option, trial.option)} = {trial.value:g} by validation{diverged}")
    records = [run.record for run in runs if run is not None]
    if len(records) < len(runs):
        notes.append(f"{len(runs) - len(records)} of {len(runs)} diverged")
    guessing = sum(one.test.error >= _NEAR_CHANCE * (1 - 1 / len(one.class_names)) for one in records)
    if guessing:
        notes.append(f"{guessing} of {len(runs)} at chance")
    return "; ".join(notes)


def _trained_images(result: ArmResult[Run]) -> int | None:
    """Training images, labelled or not; by the configuration where no run has ended."""
    if not result.finished:
        return training_images(result.config)
    counts = result.finished[0].record.data["counts"]
    return counts["train"] + counts.get("unlabelled", 0)
