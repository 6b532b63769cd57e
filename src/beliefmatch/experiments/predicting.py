"""A finished run put to use: images in, probabilities, doubt and abstentions out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.data.predictions import read_predictions
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import Source
from beliefmatch.experiments.adapted_directory import adapted_network
from beliefmatch.experiments.build import engine_for, method_of
from beliefmatch.experiments.networks import trained_member
from beliefmatch.experiments.prediction_row import Row
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.methods.base import Prediction, Predictor
from beliefmatch.metrics import coverage_at_risk, outcomes
from beliefmatch.train.config import EngineConfig
from beliefmatch.train.engine import Engine

__all__ = ["Restored", "Row", "promised_confidence", "restore"]

_BATCH = 256


@dataclass(frozen=True, eq=False)
class Restored:
    """A trained predictor and what its inputs look like."""

    predictor: Predictor
    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    preprocessing: Preprocessing
    engine: Engine

    def rows(self, names: Sequence[str], source: Source, *, abstain: float | None = None) -> Iterator[Row]:
        """What is said of each image, in their order.

        Args:
            names: one for each image.
            source: the images, of this run's shape and preprocessing.
            abstain: the least confidence to answer at; every image is answered if not given.
        """
        parts = torch.arange(len(source)).split(_BATCH)
        with self.engine.running():
            for part, batch in zip(parts, source.batches(parts, device=self.engine.device), strict=True):
                with self.engine.autocast():
                    said = self.predictor.predict(batch.inputs)
                chosen: list[str] = [names[int(index)] for index in part]
                yield from self._rows(chosen, said, abstain)

    def _rows(self, names: Sequence[str], said: Prediction, abstain: float | None) -> Iterator[Row]:
        confidence, predicted = said.probs.max(-1)
        entropy = torch.special.entr(said.probs).sum(-1)
        mutual_information = (
            [None] * len(names) if said.belief is None else _list(said.belief.mutual_information())
        )
        columns = zip(
            names,
            _list(predicted),
            _list(confidence),
            _list(entropy),
            mutual_information,
            said.probs,
            strict=True,
        )
        for name, best, sure, unsure, wide, probs in columns:
            refused = abstain is not None and sure < abstain
            yield Row(name, best, self.class_names[best], sure, unsure, wide, refused, tuple(probs.tolist()))


def restore(directory: Path, *, engine: EngineConfig | None = None) -> Restored:
    """Build the predictor of a finished run again.

    Args:
        directory: of the run, or what `beliefmatch adapt` wrote.
        engine: where to compute; by default as the run says, alone.
    """
    home = RunDirectory(directory)
    if home.is_adapted:
        return _adapted(directory, engine or EngineConfig())
    config, facts = home.config(), home.read_model()
    method, shape = method_of(config), tuple(facts["shape"])
    machine = engine_for(
        engine or EngineConfig(precision=config.engine.precision, threads=config.engine.threads)
    )
    trained = [trained_member(home, member, caller="predict") for member in range(method.members)]
    networks = [machine.prepare(network).eval() for network in trained]
    return Restored(
        predictor=method.restored(networks, facts["learned"]),
        class_names=tuple(facts["class_names"]),
        shape=shape,
        preprocessing=Preprocessing.from_json(facts["preprocessing"]),
        engine=machine,
    )


def _adapted(directory: Path, engine: EngineConfig) -> Restored:
    found, machine = adapted_network(directory), engine_for(engine)
    return Restored(
        predictor=machine.prepare(found.network).eval(),  # type: ignore[arg-type]
        class_names=found.class_names,
        shape=found.shape,
        preprocessing=found.preprocessing,
        engine=machine,
    )


def promised_confidence(directory: Path, risk: float, *, delta: float = 0.05) -> float:
    """The least confidence to answer at for an error rate that is kept with probability 1 − delta.

    Found on the run's validation images, on which the networks were not fitted; but options that were chosen
    by them, and a temperature, have seen them.
    """
    home = RunDirectory(directory)
    home.ood_names()  # or nothing finished is here
    said = read_predictions(home.predictions("validation"))
    assert said.targets is not None
    seen = outcomes(said.targets, **{said.kind: said.values})
    found = coverage_at_risk(seen.confidence, seen.correct, risk=risk, delta=delta)
    if not found.coverage:
        raise fail(
            "predict",
            f"`risk` must be one that the {len(seen)} validation images can promise, got {risk:g}; "
            "ask for a larger one.",
        )
    return found.threshold


def _list(values: Tensor) -> list[Any]:
    return values.tolist()
