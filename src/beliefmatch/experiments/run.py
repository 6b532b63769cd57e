"""One run: train the networks of a method, predict every set, evaluate the predictions, and write it all."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from beliefmatch._config import plain
from beliefmatch._environment import provenance
from beliefmatch._files import atomic_write
from beliefmatch._utils import OnProgress, no_progress
from beliefmatch.data.predictions import Predictions, npz_bytes, read_predictions
from beliefmatch.data.sources import Batch, Dataset, MemorySource, Source
from beliefmatch.experiments.build import (
    dataset,
    engine_for,
    member_seed,
    method_of,
    network_of,
    ood_sets,
    ood_training,
)
from beliefmatch.experiments.config import RunConfig, fingerprint, to_mapping
from beliefmatch.experiments.evaluate import evaluate, headline_scores, ood_scores, scores_from, scores_of
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.method_spec import label_of
from beliefmatch.experiments.records import Costs, RunRecord, Scores
from beliefmatch.experiments.rotation import DigitRotation
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.training_inputs import (
    TrainingInputs,
    training_inputs,
    with_teacher_fingerprint,
)
from beliefmatch.methods.base import Method, Predictor, facts_of
from beliefmatch.metrics import outcomes, reliability_bins
from beliefmatch.train.checkpoint import Checkpointing
from beliefmatch.train.engine import Engine
from beliefmatch.train.history import CsvLog, History, Log, Logs, Progress, TensorBoardLog
from beliefmatch.train.loop import NOT_FINITE_ADVICE, fit
from beliefmatch.train.predict import PredictedSet, predict_all

__all__ = ["RunResult", "evaluate_finished", "execute", "execute_run", "finished"]

_TRAINING = 0.95  # fraction of the progress that training takes
_MAX_TIMED_EXAMPLES = 2000  # a test set of at most this size is predicted and timed three times
_BATCH = 512  # examples at once when predicting
_FULL = EvaluateConfig()
_VALUES = EvaluateConfig(resamples=0, shown=0)  # the same values without intervals and examples


@dataclass(frozen=True, eq=False)
class RunResult:
    """The record of a run, and the full evaluation of its test predictions, if it was made with the run."""

    record: RunRecord
    evaluation: EvaluationRecord | None = None


def finished(directory: Path, config: RunConfig) -> RunRecord | None:
    """The record of a run of this config, if it is finished; a ValueError if another config's is there."""
    run_dir = RunDirectory(directory)
    run_dir.check(config)
    return run_dir.record()


def execute(
    config: RunConfig,
    directory: Path,
    *,
    tensorboard: bool = False,
    on_progress: OnProgress | None = None,
) -> RunRecord:
    """Train, predict and score by a configuration; a run that was stopped resumes from its last checkpoint.

    Args:
        config: all settings; none of its method's options may be left to a search.
        directory: directory of this run alone.
        tensorboard: whether logs for TensorBoard are written next to the CSV ones.
        on_progress: called with (fraction, description).
    """
    return execute_run(config, directory, tensorboard=tensorboard, on_progress=on_progress).record


def execute_run(
    config: RunConfig,
    directory: Path,
    *,
    tensorboard: bool = False,
    evaluated: bool = False,
    on_progress: OnProgress | None = None,
) -> RunResult:
    """`execute`, with the evaluation in full if `evaluated`; a run that was finished earlier gives none.

    The predictions are evaluated once, while they are in memory; the scores of the record are read from the
    evaluation.
    """
    config = with_teacher_fingerprint(config, directory)
    done = finished(directory, config)
    if done is not None:
        return RunResult(done)
    start, run_dir, report = time.perf_counter(), RunDirectory(directory), on_progress or no_progress
    method, data, engine = method_of(config), dataset(config.data), engine_for(config.engine)
    with run_dir.locked() if engine.is_main_process else nullcontext():
        engine.on_main_process(lambda: run_dir.begin(config))
        run = TrainingRun(config, run_dir, method, data, engine, report, tensorboard)
        networks, histories = run.train()
        predictor = run.predictor(networks)
        predictions = run.predict(predictor)
        report(_TRAINING, "evaluating")
        settings, test, ood = _FULL if evaluated else _VALUES, predictions.test, predictions.ood
        evaluation = engine.on_main_process(
            lambda: _evaluation(config, data, test, ood, settings, has_belief=predictions.has_belief)
        )
        seconds = sum(history.seconds for history in histories)
        on_cpu = engine.device.type == "cpu" and engine.world_size == 1
        epochs = sum(len(history.epochs) for history in histories)
        images = config.training.epoch_examples(data.epoch_images) * epochs
        record = RunRecord(
            method=config.method.name,
            options=plain(method.options),
            seed=config.seed,
            config=to_mapping(config),
            fingerprint=fingerprint(config),
            data=plain({**data.facts, "ood_digests": predictions.ood_digests}),
            class_names=list(data.class_names),
            curves=[_curves(history) for history in histories],
            skipped_steps=sum(history.skipped for history in histories),
            validation=_scores_of(predictions.validation),
            test=scores_of(evaluation),
            ood=[*map(ood_scores, evaluation.ood)],
            costs=Costs(
                networks=len(networks),
                parameters=sum(parameter.numel() for parameter in networks[0].parameters()),
                train_seconds=seconds,
                train_images_per_second=images / seconds if seconds else 0.0,
                predict_seconds=predictions.seconds,
                predict_ms_per_image=1000 * predictions.seconds / evaluation.examples,
                train_cpu_seconds=_cpu_seconds(histories) if on_cpu else None,
                predict_cpu_ms_per_image=(
                    1000 * predictions.cpu_seconds / evaluation.examples if on_cpu else None
                ),
            ),
            search=[],
            learned=plain(facts_of(predictor)),
            rotation=DigitRotation.load().seen_by(predictor) if config.data.name == "digits" else None,
            engine=engine.describe(networks[0]),
            **provenance(time.perf_counter() - start, "beliefmatch", "torch", "numpy", "lightning-fabric"),
        )
        engine.on_main_process(lambda: _write(run, predictions, record))
        report(1.0, "done")
    return RunResult(record, evaluation if evaluated else None)


def evaluate_finished(run_dir: RunDirectory) -> EvaluationRecord:
    """The evaluation of a run that was finished earlier, from the predictions that it wrote."""
    config = run_dir.config()
    paths = run_dir.ood_predictions([one.name for one in run_dir.finished().ood])
    test = read_predictions(run_dir.predictions("test"))
    ood = {name: read_predictions(path, labelled=False) for name, path in paths.items()}
    test, *others = (replace(one, values=one.values.double()) for one in (test, *ood.values()))
    return _evaluation(
        config,
        dataset(config.data),
        test,
        dict(zip(ood, others, strict=True)),
        _FULL,
        has_belief=method_of(config).reads != "softmax",
    )


def _evaluation(
    config: RunConfig,
    data: Dataset,
    test: Predictions,
    ood: Mapping[str, Predictions],
    settings: EvaluateConfig,
    *,
    has_belief: bool,
) -> EvaluationRecord:
    if isinstance(data.test, MemorySource):
        test = replace(test, images=data.test.images)
    return evaluate(
        test,
        name=label_of(config),
        class_names=data.class_names,
        ood=ood,
        settings=settings,
        has_belief=has_belief,
    )


def _scores_of(predictions: Predictions) -> Scores:
    """Scores of labelled examples that need no evaluation."""
    assert predictions.targets is not None
    given: dict[str, Any] = {predictions.kind: predictions.values}
    seen = outcomes(predictions.targets, **given)
    return scores_from(len(seen), headline_scores(seen, reliability_bins(seen.confidence, seen.correct)))


@dataclass(frozen=True, eq=False)
class RunPredictions:
    """Predictions for every set, each with the path of its file."""

    validation: Predictions
    test: Predictions
    ood: Mapping[str, Predictions]
    ood_digests: Mapping[str, str]
    seconds: float
    """Time of predicting the test set."""
    cpu_seconds: float
    """Processor time of the same."""
    has_belief: bool


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A run whose parts have been built."""

    config: RunConfig
    run_dir: RunDirectory
    method: Method
    data: Dataset
    engine: Engine
    on_progress: OnProgress
    tensorboard: bool = False

    def train(self) -> tuple[list[nn.Module], list[History]]:
        """Train every network of the method, or load those that are trained."""
        ood = ood_training(self.config, self.method, self.data)
        inputs = training_inputs(self.config, self.method, self.data, self.engine)
        made = [self._train(member, inputs, ood) for member in range(self.method.members)]
        return [network for network, _ in made], [history for _, history in made]

    def _train(self, member: int, inputs: TrainingInputs, ood: Source | None) -> tuple[nn.Module, History]:
        directory = self.run_dir.network(member)
        network = network_of(self.config, self.method, self.data, member)
        logs: list[Log] = [CsvLog(directory / "log.csv")]
        if self.tensorboard:
            logs.append(TensorBoardLog(directory))
        # a checkpoint must be of this configuration and of these images
        identity = {"config": fingerprint(self.config), "data": self.data.facts.get("digest")}
        history = fit(
            self.engine,
            network,
            inputs.source,
            self.config.training,
            objective_at=self.method.objective_at,
            seed=member_seed(self.config.seed, member),
            ood=self.method.ood,
            ood_source=ood,
            aux=inputs.aux,
            epoch_examples=inputs.epoch_examples,
            checkpointing=Checkpointing(directory, configuration=identity),
            log=Logs(logs),
            on_progress=lambda progress: self._report(member, progress),
            validate=self._validate,
        )
        return network, history

    def _validate(self, network: nn.Module) -> dict[str, float]:
        """Scores for the curves."""
        predicted = self._predict(self.method.validation_predictor(network), self.data.validation)
        found = _scores_of(_in_memory(predicted, Path()))
        return {"error": found.error, "nll": math.inf if found.nll is None else found.nll, "ece": found.ece}

    def _report(self, member: int, progress: Progress) -> None:
        members, epoch = self.method.members, min(progress.epoch + 1, progress.epochs)
        fraction = (member + progress.step / progress.steps) / members
        which = f", network {member + 1} of {members}" if members > 1 else ""
        speed = f"{progress.images_per_second:.0f} examples/s, loss {progress.loss:.3f}"
        self.on_progress(_TRAINING * fraction, f"epoch {epoch} of {progress.epochs}{which}, {speed}")

    def predictor(self, networks: list[nn.Module]) -> Predictor:
        """The predictor of the networks, calibrated on the validation set where the method does so."""
        predictor = self.method.predictor(*networks)
        if self.method.calibrate is None:
            return predictor
        with self.engine.running(), self.engine.autocast():
            return self.method.calibrate(predictor, self._batches(self.data.validation))

    def predict(self, predictor: Predictor) -> RunPredictions:
        """Predict every set of the configuration; the test set thrice if it is small, to time it."""
        validation = self._predict(predictor, self.data.validation)
        rounds = range(3 if len(self.data.test) <= _MAX_TIMED_EXAMPLES else 1)
        timed = [self._timed(predictor, self.data.test) for _ in rounds]
        test = timed[-1][0]
        sources = ood_sets(self.config, self.data)
        paths, ood = self.run_dir.ood_predictions(list(sources)), {}
        for name, source in sources.items():
            self.on_progress(_TRAINING, f"predicting {name}")
            ood[name] = _in_memory(self._predict(predictor, source), paths[name])
        return RunPredictions(
            validation=_in_memory(validation, self.run_dir.predictions("validation")),
            test=_in_memory(test, self.run_dir.predictions("test")),
            ood=ood,
            ood_digests={name: source.digest() for name, source in sources.items()},
            seconds=min(seconds for _, seconds, _ in timed),
            cpu_seconds=min(seconds for *_, seconds in timed),
            has_belief=test.has_belief,
        )

    def _timed(self, predictor: Predictor, source: Source) -> tuple[PredictedSet, float, float]:
        """Predictions, the seconds that they took, and the processor time of it."""
        start, cpu_start = time.perf_counter(), time.process_time()
        predicted = self._predict(predictor, source)
        return predicted, time.perf_counter() - start, time.process_time() - cpu_start

    def _predict(self, predictor: Predictor, source: Source) -> PredictedSet:
        predicted = predict_all(self.engine, predictor, source, _BATCH)
        if not predicted.probs.isfinite().all():
            raise FloatingPointError(f"The predictions of the network are not finite. {NOT_FINITE_ADVICE}")
        return predicted

    def _batches(self, source: Source) -> Iterator[Batch]:
        indices = torch.arange(len(source)).split(_BATCH)
        return source.batches(indices, device=self.engine.device)


def _in_memory(predicted: PredictedSet, path: Path) -> Predictions:
    """Predictions as they are read from the file at `path`, once it is written; OOD ones have no targets."""
    kind, values = ("probs", predicted.probs) if predicted.logits is None else ("logits", predicted.logits)
    is_labelled = len(predicted.targets) > 0 and int(predicted.targets.min()) >= 0
    fields = {kind: kind, "targets": "targets"} if is_labelled else {kind: kind}
    information = predicted.mutual_information
    fields |= {} if information is None else {"mutual_information": "mutual_information"}
    targets = predicted.targets if is_labelled else None
    return Predictions(path, kind, values, targets, None, fields, mutual_information=information)


def _cpu_seconds(histories: list[History]) -> float | None:
    found = [history.cpu_seconds for history in histories]
    return None if None in found else sum(seconds for seconds in found if seconds is not None)


def _curves(history: History) -> dict[str, list[float | None]]:
    names = ["loss", "rate", "gradient_norm", "seconds", "images_per_second", "skipped"]
    names += list(history.epochs[0].aux) if history.epochs else []
    validated = list(history.epochs[0].validation) if history.epochs else []
    curves = {name: history.curve(name) for name in names}
    return curves | {f"validation_{name}": history.curve(name) for name in validated}


def _write(run: TrainingRun, predictions: RunPredictions, record: RunRecord) -> None:
    """Write predictions, model and record; the record last, because it marks the run as finished."""
    for one in (*predictions.ood.values(), predictions.validation, predictions.test):
        assert one.path is not None
        one.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(one.path, npz_bytes(one))
    run.run_dir.write_model(
        {
            "class_names": list(run.data.class_names),
            "shape": list(run.data.test.shape),
            **{key: run.data.facts[key] for key in ("preprocessing", "table") if key in run.data.facts},
            "learned": record.learned,
        }
    )
    names = "".join(" ".join(name.split()) + "\n" for name in run.data.class_names)
    atomic_write(run.run_dir.classes_file, names.encode())
    atomic_write(run.run_dir.record_file, record.to_json().encode())
