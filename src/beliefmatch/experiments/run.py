"""One run: networks trained, their predictor judged, everything kept in a directory."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

from beliefmatch._config import plain
from beliefmatch._environment import hardware, versions
from beliefmatch._files import atomic_write
from beliefmatch.data.sources import Batch, Dataset, Source
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
from beliefmatch.experiments.records import Costs, Rotation, RunRecord, Trial
from beliefmatch.experiments.rotation import DigitRotation
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.scoring import Predicted, ood_scores, scores, to_npz
from beliefmatch.experiments.teacher import with_known_teacher
from beliefmatch.experiments.training_inputs import TrainingInputs, training_inputs
from beliefmatch.methods.base import Method, Predictor, facts_of
from beliefmatch.train.checkpoint import Checkpointing
from beliefmatch.train.engine import Engine
from beliefmatch.train.history import CsvLog, History, Log, Logs, Progress, TensorBoardLog
from beliefmatch.train.loop import NOT_FINITE_ADVICE, fit
from beliefmatch.train.predict import predict_all

__all__ = [
    "OnProgress",
    "Running",
    "Said",
    "execute",
    "finished",
]


OnProgress = Callable[[float, str], None]
"""Called with the share that is done, and what is being done."""

_TRAINING = 0.95  # share of a run that its bar gives to training
_FEW = 2000  # examples
_BATCH = 512  # examples at once when predicting


@dataclass(frozen=True, eq=False)
class Said:
    """What a predictor said of every set, and the seconds that the test set took."""

    validation: Predicted
    test: Predicted
    ood: Mapping[str, Predicted]
    ood_digests: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, eq=False)
class Running:
    """A run whose parts have been built."""

    config: RunConfig
    home: RunDirectory
    method: Method
    data: Dataset
    engine: Engine
    on_progress: OnProgress
    tensorboard: bool = False

    def train(self) -> tuple[list[nn.Module], list[History]]:
        """Train every network of the method, or load those that are trained."""
        ood = ood_training(self.config, self.method, self.data)
        learnt = training_inputs(self.config, self.method, self.data, self.engine)
        made = [self._train(member, learnt, ood) for member in range(self.method.members)]
        return [network for network, _ in made], [history for _, history in made]

    def _train(self, member: int, learnt: TrainingInputs, ood: Source | None) -> tuple[nn.Module, History]:
        place = self.home.network(member)
        network = network_of(self.config, self.method, self.data, member)
        logs: list[Log] = [CsvLog(place / "log.csv")]
        if self.tensorboard:
            logs.append(TensorBoardLog(place))
        history = fit(
            self.engine,
            network,
            learnt.source,
            self.config.training,
            objective_at=self.method.objective_at,
            seed=member_seed(self.config.seed, member),
            ood=self.method.ood,
            ood_source=ood,
            aux=learnt.aux,
            epoch_examples=learnt.epoch_examples,
            checkpointing=Checkpointing(place, configuration=self._identity()),
            log=Logs(logs),
            on_progress=lambda progress: self._tell(member, progress),
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

    def _tell(self, member: int, progress: Progress) -> None:
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

    def predict(self, predictor: Predictor) -> Said:
        """Ask it about every set."""
        validation = self._predict(predictor, self.data.validation)
        test, seconds = self._timed(predictor, self.data.test)
        ood, sources = {}, ood_sets(self.config, self.data)
        for name, source in sources.items():
            self.on_progress(_TRAINING, f"predicting {name}")
            ood[name] = self._predict(predictor, source)
        return Said(validation, test, ood, digests_of(sources), seconds)

    def _timed(self, predictor: Predictor, source: Source) -> tuple[Predicted, float]:
        """Predictions, and the seconds they take; of few examples the fastest of three times."""
        seconds = []
        for _ in range(2 if len(source) <= _FEW else 0):
            start = time.perf_counter()
            self._predict(predictor, source)
            seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        said = self._predict(predictor, source)
        return said, min([*seconds, time.perf_counter() - start])

    def _predict(self, predictor: Predictor, source: Source) -> Predicted:
        said = Predicted(*predict_all(self.engine, predictor, source, _BATCH))
        if not said.probs.isfinite().all():
            raise FloatingPointError(
                f"run: the predictions of the network are not finite. {NOT_FINITE_ADVICE}"
            )
        return said

    def _batches(self, source: Source) -> Iterator[Batch]:
        parts = torch.arange(len(source)).split(_BATCH)
        return source.batches(parts, device=self.engine.device)


def finished(directory: Path, config: RunConfig) -> RunRecord | None:
    """The record of a run of this config, if it is finished; a ValueError if another config's is there."""
    home = RunDirectory(directory)
    home.check(config)
    return home.record()


def execute(
    config: RunConfig,
    directory: Path,
    *,
    search: Sequence[Trial] = (),
    tensorboard: bool = False,
    on_progress: OnProgress | None = None,
) -> RunRecord:
    """Train by a config, judge what came out, and keep it; a run that was stopped goes on where it was.

    Args:
        configuration: all settings; none of its method's options may be left to a search.
        directory: of this run alone.
        search: how an option of the configuration was chosen, for the record.
        tensorboard: write its logs beside the CSV ones.
        on_progress: told about progress.
    """
    config = with_known_teacher(config, directory)
    done = finished(directory, config)
    if done is not None:
        return done
    start, home = time.perf_counter(), RunDirectory(directory)
    method, data, engine = method_of(config), dataset(config.data), engine_for(config.engine)
    with home.locked() if engine.is_main_process else nullcontext():
        engine.on_main_process(lambda: home.begin(config))
        tell = on_progress or (lambda share, doing: None)
        run = Running(config, home, method, data, engine, tell, tensorboard)
        networks, histories = run.train()
        predictor = run.predictor(networks)
        said = run.predict(predictor)
        record = RunRecord(
            **_asked(config, run, said),
            **_trained(run, networks, histories, said),
            **_judged(said),
            search=list(search),
            learned=plain(facts_of(predictor)),
            rotation=_rotation(config, predictor),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            wall_seconds=time.perf_counter() - start,
        )
        engine.on_main_process(lambda: _keep(run, said, record))
        tell(1.0, "done")
    return record


def _asked(config: RunConfig, run: Running, said: Said) -> dict[str, Any]:
    return {
        "method": config.method.name,
        "options": plain(run.method.options),
        "seed": config.seed,
        "config": to_mapping(config),
        "fingerprint": fingerprint(config),
        "data": plain({**run.data.facts, "ood_digests": said.ood_digests}),
        "class_names": list(run.data.class_names),
    }


def _trained(
    run: Running, networks: Sequence[nn.Module], histories: Sequence[History], said: Said
) -> dict[str, Any]:
    seconds, images = (
        sum(h.seconds for h in histories),
        run.data.epoch_images * sum(len(h.epochs) for h in histories),
    )
    return {
        "curves": [_curves(history) for history in histories],
        "skipped_steps": sum(history.skipped for history in histories),
        "costs": Costs(
            networks=len(networks),
            parameters=sum(parameter.numel() for parameter in networks[0].parameters()),
            train_seconds=seconds,
            train_images_per_second=images / seconds if seconds else 0.0,
            predict_seconds=said.seconds,
            predict_ms_per_image=1000 * said.seconds / len(said.test.targets),
        ),
        "engine": run.engine.describe(),
        "versions": versions("beliefmatch", "torch", "numpy", "lightning-fabric"),
        "hardware": hardware(),
    }


def _judged(said: Said) -> dict[str, Any]:
    return {
        "validation": scores(said.validation),
        "test": scores(said.test),
        "ood": [ood_scores(name, said.test, other) for name, other in said.ood.items()],
    }


def _curves(history: History) -> dict[str, list[float | None]]:
    names = ["loss", "rate", "gradient_norm", "seconds", "images_per_second", "skipped"]
    names += list(history.epochs[0].aux) if history.epochs else []
    own = {name: history.curve(name) for name in names}
    watched = list(history.epochs[0].validation) if history.epochs else []
    return own | {f"validation_{name}": history.curve(name) for name in watched}


def _rotation(config: RunConfig, predictor: Predictor) -> Rotation | None:
    return DigitRotation.load().seen_by(predictor) if config.data.name == "digits" else None


def _keep(run: Running, said: Said, record: RunRecord) -> None:
    """Write everything down, the record last."""
    home = run.home
    places = home.ood_predictions(list(said.ood))
    for name, predicted in said.ood.items():
        to_npz(places[name], predicted)
    to_npz(home.predictions("validation"), said.validation)
    to_npz(home.predictions("test"), said.test)
    home.write_model(
        {
            "class_names": list(run.data.class_names),
            "shape": list(run.data.test.shape),
            "preprocessing": run.data.facts["preprocessing"],
            "learned": record.learned,
        }
    )
    atomic_write(home.classes_file, _lines(run.data.class_names))
    atomic_write(home.record_file, record.to_json().encode())


def _lines(names: Sequence[str]) -> bytes:
    return "".join(" ".join(name.split()) + "\n" for name in names).encode()
