"""One run: train the networks of a method, predict every set, score the predictions, and keep it all."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import nn

from beliefmatch._config import plain
from beliefmatch._environment import hardware, versions
from beliefmatch._files import atomic_write
from beliefmatch.data.predictions import Predictions, read_predictions
from beliefmatch.data.sources import Batch, Dataset, MemorySource, Source
from beliefmatch.experiments.build import (
    dataset,
    digests_of,
    engine_for,
    member_seed,
    method_of,
    network_of,
    ood_sets,
    ood_training,
)
from beliefmatch.experiments.config import RunConfig, fingerprint, to_mapping
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.method_spec import label_of
from beliefmatch.experiments.records import Costs, RunRecord, Trial
from beliefmatch.experiments.rotation import DigitRotation
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.scoring import SetPredictions, ood_scores, scores, to_npz
from beliefmatch.experiments.teacher import with_known_teacher
from beliefmatch.experiments.training_inputs import TrainingInputs, training_inputs
from beliefmatch.methods.base import Method, Predictor, facts_of
from beliefmatch.train.checkpoint import Checkpointing
from beliefmatch.train.engine import Engine
from beliefmatch.train.history import CsvLog, History, Log, Logs, Progress, TensorBoardLog
from beliefmatch.train.loop import NOT_FINITE_ADVICE, fit
from beliefmatch.train.predict import predict_all

__all__ = ["OnProgress", "RunResult", "evaluate_finished", "execute", "execute_run", "finished"]

OnProgress = Callable[[float, str], None]
"""Called with (fraction, description)."""

_TRAINING = 0.95  # share of a run that its bar gives to training
_FEW = 2000  # examples
_BATCH = 512  # examples at once when predicting


@dataclass(frozen=True, eq=False)
class RunPredictions:
    """Predictions for every set, and the seconds that predicting the test set took."""

    validation: SetPredictions
    test: SetPredictions
    ood: Mapping[str, SetPredictions]
    ood_digests: Mapping[str, str]
    seconds: float


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
            checkpointing=Checkpointing(directory, configuration=self._identity()),
            log=Logs(logs),
            on_progress=lambda progress: self._report(member, progress),
            validate=self._validate,
        )
        return network, history

    def _identity(self) -> dict[str, object]:
        """What a checkpoint must be of: other images in the same place are another training."""
        return {"config": fingerprint(self.config), "data": self.data.facts.get("digest")}

    def _validate(self, network: nn.Module) -> dict[str, float]:
        """Numbers for the curves."""
        found = scores(self._predict(self.method.validation_predictor(network), self.data.validation))
        return {"error": found.error, "nll": math.inf if found.nll is None else found.nll, "ece": found.ece}

    def _report(self, member: int, progress: Progress) -> None:
        share = (member + progress.step / progress.steps) / self.method.members
        which = f", network {member + 1} of {self.method.members}" if self.method.members > 1 else ""
        rate, loss = progress.images_per_second, progress.loss
        doing = f"epoch {min(progress.epoch + 1, progress.epochs)} of {progress.epochs}{which}"
        self.on_progress(_TRAINING * share, f"{doing}, {rate:.0f} images/s, loss {loss:.3f}")

    def predictor(self, networks: list[nn.Module]) -> Predictor:
        """The networks as their method reads them, calibrated on the validation set where it asks so."""
        predictor = self.method.predictor(*networks)
        if self.method.calibrate is None:
            return predictor
        with self.engine.running(), self.engine.autocast():
            return self.method.calibrate(predictor, self._batches(self.data.validation))

    def predict(self, predictor: Predictor) -> RunPredictions:
        """Predict every set of the configuration."""
        validation = self._predict(predictor, self.data.validation)
        test, seconds = self._timed(predictor, self.data.test)
        ood, sources = {}, ood_sets(self.config, self.data)
        for name, source in sources.items():
            self.on_progress(_TRAINING, f"predicting {name}")
            ood[name] = self._predict(predictor, source)
        return RunPredictions(validation, test, ood, digests_of(sources), seconds)

    def _timed(self, predictor: Predictor, source: Source) -> tuple[SetPredictions, float]:
        """Predictions, and the seconds they take; of few examples the fastest of three times."""
        seconds = []
        for _ in range(2 if len(source) <= _FEW else 0):
            start = time.perf_counter()
            self._predict(predictor, source)
            seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        predictions = self._predict(predictor, source)
        return predictions, min([*seconds, time.perf_counter() - start])

    def _predict(self, predictor: Predictor, source: Source) -> SetPredictions:
        predictions = SetPredictions(*predict_all(self.engine, predictor, source, _BATCH))
        if not predictions.probs.isfinite().all():
            raise FloatingPointError(
                f"run: the predictions of the network are not finite. {NOT_FINITE_ADVICE}"
            )
        return predictions

    def _batches(self, source: Source) -> Iterator[Batch]:
        parts = torch.arange(len(source)).split(_BATCH)
        return source.batches(parts, device=self.engine.device)


@dataclass(frozen=True, eq=False)
class RunResult:
    """The record of a run, and the evaluation of its test predictions where one was made from memory."""

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
    search: Sequence[Trial] = (),
    tensorboard: bool = False,
    on_progress: OnProgress | None = None,
) -> RunRecord:
    """Train, predict and score by a configuration; a run that was stopped goes on from its last checkpoint.

    Args:
        config: all settings; none of its method's options may be left to a search.
        directory: directory of this run alone.
        search: trials by which an option of the configuration was chosen, for the record.
        tensorboard: whether logs for TensorBoard are written next to the CSV ones.
        on_progress: called with (fraction, description).
    """
    return execute_run(
        config, directory, search=search, tensorboard=tensorboard, on_progress=on_progress
    ).record


def execute_run(
    config: RunConfig,
    directory: Path,
    *,
    search: Sequence[Trial] = (),
    tensorboard: bool = False,
    evaluated: bool = False,
    on_progress: OnProgress | None = None,
) -> RunResult:
    """`execute`, with the full evaluation of the predictions if `evaluated`; a finished run gives none."""
    config = with_known_teacher(config, directory)
    done = finished(directory, config)
    if done is not None:
        return RunResult(done)
    start, run_dir = time.perf_counter(), RunDirectory(directory)
    method, data, engine = method_of(config), dataset(config.data), engine_for(config.engine)
    with run_dir.locked() if engine.is_main_process else nullcontext():
        engine.on_main_process(lambda: run_dir.begin(config))
        report = on_progress or (lambda share, doing: None)
        run = TrainingRun(config, run_dir, method, data, engine, report, tensorboard)
        networks, histories = run.train()
        predictor = run.predictor(networks)
        predictions = run.predict(predictor)
        seconds = sum(history.seconds for history in histories)
        images = data.epoch_images * sum(len(history.epochs) for history in histories)
        test = predictions.test
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
            validation=scores(predictions.validation),
            test=scores(test),
            ood=[ood_scores(name, test, others) for name, others in predictions.ood.items()],
            costs=Costs(
                networks=len(networks),
                parameters=sum(parameter.numel() for parameter in networks[0].parameters()),
                train_seconds=seconds,
                train_images_per_second=images / seconds if seconds else 0.0,
                predict_seconds=predictions.seconds,
                predict_ms_per_image=1000 * predictions.seconds / len(test.targets),
            ),
            search=list(search),
            learned=plain(facts_of(predictor)),
            rotation=DigitRotation.load().seen_by(predictor) if config.data.name == "digits" else None,
            engine=engine.describe(),
            versions=versions("beliefmatch", "torch", "numpy", "lightning-fabric"),
            hardware=hardware(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            wall_seconds=time.perf_counter() - start,
        )
        engine.on_main_process(lambda: _write(run, predictions, record))
        evaluation = None
        if evaluated:
            report(_TRAINING, "evaluating")
            evaluation = engine.on_main_process(lambda: _evaluation(run, predictions))
        report(1.0, "done")
    return RunResult(record, evaluation)


def evaluate_finished(run_dir: RunDirectory) -> EvaluationRecord:
    """The evaluation of a run that was finished earlier, from the predictions that it wrote."""
    config = run_dir.config()
    paths = run_dir.ood_predictions([one.name for one in run_dir.finished().ood])
    ood = {name: read_predictions(path, labelled=False) for name, path in paths.items()}
    return _evaluated(config, read_predictions(run_dir.predictions("test")), ood)


def _evaluation(run: TrainingRun, predictions: RunPredictions) -> EvaluationRecord:
    paths = run.run_dir.ood_predictions(list(predictions.ood))
    ood = {name: others.as_written(paths[name]) for name, others in predictions.ood.items()}
    return _evaluated(run.config, predictions.test.as_written(run.run_dir.predictions("test")), ood)


def _evaluated(config: RunConfig, test: Predictions, ood: Mapping[str, Predictions]) -> EvaluationRecord:
    data = dataset(config.data)
    if isinstance(data.test, MemorySource):
        test = replace(test, images=data.test.images)
    return evaluate(test, name=label_of(config), class_names=data.class_names, ood=ood)


def _curves(history: History) -> dict[str, list[float | None]]:
    names = ["loss", "rate", "gradient_norm", "seconds", "images_per_second", "skipped"]
    names += list(history.epochs[0].aux) if history.epochs else []
    own = {name: history.curve(name) for name in names}
    watched = list(history.epochs[0].validation) if history.epochs else []
    return own | {f"validation_{name}": history.curve(name) for name in watched}


def _write(run: TrainingRun, predictions: RunPredictions, record: RunRecord) -> None:
    """Write predictions, model and record; the record last, because it says that the run is finished."""
    run_dir = run.run_dir
    paths = run_dir.ood_predictions(list(predictions.ood))
    for name, others in predictions.ood.items():
        to_npz(paths[name], others)
    to_npz(run_dir.predictions("validation"), predictions.validation)
    to_npz(run_dir.predictions("test"), predictions.test)
    run_dir.write_model(
        {
            "class_names": list(run.data.class_names),
            "shape": list(run.data.test.shape),
            "preprocessing": run.data.facts["preprocessing"],
            "learned": record.learned,
        }
    )
    names = "".join(" ".join(name.split()) + "\n" for name in run.data.class_names)
    atomic_write(run_dir.classes_file, names.encode())
    atomic_write(run_dir.record_file, record.to_json().encode())
