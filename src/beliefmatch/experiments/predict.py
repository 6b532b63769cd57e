"""Predict with a finished run: probabilities, uncertainty and abstentions for new images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from beliefmatch._validate import fail
from beliefmatch.data.predictions import read_predictions
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import Source
from beliefmatch.experiments.adapted_directory import adapted_network
from beliefmatch.experiments.build import engine_for, method_of, trained_member
from beliefmatch.experiments.records import PredictionRow
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.methods.base import Prediction, Predictor
from beliefmatch.metrics import coverage_at_risk, outcomes
from beliefmatch.train.config import EngineConfig
from beliefmatch.train.engine import Engine

__all__ = ["TrainedPredictor", "restore", "risk_threshold"]

_BATCH = 256


@dataclass(frozen=True, eq=False)
class TrainedPredictor:
    """A trained predictor and the preprocessing of its inputs."""

    predictor: Predictor
    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    preprocessing: Preprocessing
    engine: Engine

    def rows(
        self, names: Sequence[str], source: Source, *, abstain: float | None = None
    ) -> Iterator[PredictionRow]:
        """The prediction for each image, in their order.

        Args:
            names: one for each image.
            source: the images, of this run's shape and preprocessing.
            abstain: confidence below which the prediction abstains; no prediction does if not given.
        """
        indices = torch.arange(len(source)).split(_BATCH)
        with self.engine.running():
            for rows, batch in zip(indices, source.batches(indices, device=self.engine.device), strict=True):
                with self.engine.autocast():
                    prediction = self.predictor.predict(batch.inputs)
                batch_names: list[str] = [names[int(row)] for row in rows]
                yield from self._rows(batch_names, prediction, abstain)

    def _rows(
        self, names: Sequence[str], prediction: Prediction, abstain: float | None
    ) -> Iterator[PredictionRow]:
        confidence, predicted = prediction.probs.max(-1)
        entropy, belief = torch.special.entr(prediction.probs).sum(-1), prediction.belief
        information = [] if belief is None else belief.mutual_information().tolist()
        for row, name in enumerate(names):
            best, sure = int(predicted[row]), confidence[row].item()
            yield PredictionRow(
                name=name,
                predicted=best,
                class_name=self.class_names[best],
                confidence=sure,
                entropy=entropy[row].item(),
                mutual_information=None if belief is None else information[row],
                abstained=abstain is not None and sure < abstain,
                probs=tuple(prediction.probs[row].tolist()),
            )


def restore(directory: Path, *, engine: EngineConfig | None = None) -> TrainedPredictor:
    """Build the predictor of a finished run again.

    Args:
        directory: of the run, or what `beliefmatch adapt` wrote.
        engine: where to compute; by default in one process, as the run was configured.
    """
    run_dir = RunDirectory(directory)
    if run_dir.is_adapted:
        return _adapted(directory, engine or EngineConfig())
    config, facts = run_dir.config(), run_dir.read_model()
    method, shape = method_of(config), tuple(facts["shape"])
    machine = engine_for(
        engine or EngineConfig(precision=config.engine.precision, threads=config.engine.threads)
    )
    trained = [trained_member(run_dir, member, caller="predict") for member in range(method.members)]
    networks = [machine.prepare(network).eval() for network in trained]
    return TrainedPredictor(
        predictor=method.restored(networks, facts["learned"]),
        class_names=tuple(facts["class_names"]),
        shape=shape,
        preprocessing=Preprocessing.from_json(facts["preprocessing"]),
        engine=machine,
    )


def _adapted(directory: Path, engine: EngineConfig) -> TrainedPredictor:
    found, machine = adapted_network(directory), engine_for(engine)
    return TrainedPredictor(
        predictor=machine.prepare(found.network).eval(),  # type: ignore[arg-type]
        class_names=found.class_names,
        shape=found.shape,
        preprocessing=found.preprocessing,
        engine=machine,
    )


def risk_threshold(directory: Path, risk: float, *, delta: float = 0.05) -> float:
    """The confidence from which on the error rate stays below `risk` with probability 1 − delta.

    Found on the run's validation images, on which the networks were not fitted; but options that were chosen
    by them, and a temperature, have seen them.
    """
    run_dir = RunDirectory(directory)
    run_dir.ood_names()  # or nothing finished is here
    prediction = read_predictions(run_dir.predictions("validation"))
    assert prediction.targets is not None
    seen = outcomes(prediction.targets, **{prediction.kind: prediction.values})
    found = coverage_at_risk(seen.confidence, seen.correct, risk=risk, delta=delta)
    if not found.coverage:
        raise fail(
            "predict",
            f"`risk` must be one that {len(seen)} validation images can guarantee, got {risk:g}; "
            "choose a larger one.",
        )
    return found.threshold
