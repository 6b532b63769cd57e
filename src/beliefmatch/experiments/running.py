"""The work of one run, step by step."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from beliefmatch.data.source import Batch, Dataset, Source
from beliefmatch.experiments.judging import Predicted, scores
from beliefmatch.experiments.lessons import Lessons, lessons
from beliefmatch.experiments.parts import (
    digests_of,
    foreign_sets,
    foreign_training,
    member_seed,
    network_of,
)
from beliefmatch.experiments.plan import RunPlan, fingerprint
from beliefmatch.experiments.run_directory import RunDirectory
from beliefmatch.methods.base import Method, Predictor
from beliefmatch.train.engine import Engine
from beliefmatch.train.evaluate import predict_all
from beliefmatch.train.fit import Saving, fit
from beliefmatch.train.guard import ADVICE
from beliefmatch.train.history import History, Progress
from beliefmatch.train.logs import CsvLog, Log, Logs, TensorBoardLog

__all__ = ["OnProgress", "Running", "Said"]

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
    foreign: Mapping[str, Predicted]
    foreign_digests: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, eq=False)
class Running:
    """A run whose parts have been built."""

    plan: RunPlan
    home: RunDirectory
    method: Method
    data: Dataset
    engine: Engine
    on_progress: OnProgress
    tensorboard: bool = False

    def train(self) -> tuple[list[nn.Module], list[History]]:
        """Train every network of the method, or load those that are trained."""
        foreign = foreign_training(self.plan, self.method, self.data)
        learnt = lessons(self.plan, self.method, self.data, self.engine)
        made = [self._train(member, learnt, foreign) for member in range(self.method.members)]
        return [network for network, _ in made], [history for _, history in made]

    def _train(self, member: int, learnt: Lessons, foreign: Source | None) -> tuple[nn.Module, History]:
        place = self.home.network(member)
        network = network_of(self.plan, self.method, self.data, member)
        logs: list[Log] = [CsvLog(place / "log.csv")]
        if self.tensorboard:
            logs.append(TensorBoardLog(place))
        history = fit(
            self.engine,
            network,
            learnt.source,
            self.plan.training,
            objective_at=self.method.objective_at,
            seed=member_seed(self.plan.seed, member),
            foreign=self.method.foreign,
            foreign_source=foreign,
            extra=learnt.extra,
            epoch_examples=learnt.epoch_examples,
            saving=Saving(place, configuration=self._identity()),
            log=Logs(logs),
            on_progress=lambda progress: self._tell(member, progress),
            validate=self._validate,
        )
        return network, history

    def _identity(self) -> dict[str, object]:
        """What a checkpoint must be of: other images in the same place are another training."""
        return {"plan": fingerprint(self.plan), "data": self.data.facts.get("digest")}

    def _validate(self, network: nn.Module) -> dict[str, float]:
        """Numbers for the curves."""
        found = scores(self._predict(self.method.watcher(network), self.data.validation))
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
        foreign, sources = {}, foreign_sets(self.plan, self.data)
        for name, source in sources.items():
            self.on_progress(_TRAINING, f"predicting {name}")
            foreign[name] = self._predict(predictor, source)
        return Said(validation, test, foreign, digests_of(sources), seconds)

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
            raise FloatingPointError(f"run: the predictions of the network are not finite. {ADVICE}")
        return said

    def _batches(self, source: Source) -> Iterator[Batch]:
        parts = torch.arange(len(source)).split(_BATCH)
        return source.batches(parts, device=self.engine.device)
