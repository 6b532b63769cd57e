"""Predict with a finished run: probabilities, uncertainty and abstentions for new inputs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch._validate import fail, naming_arguments
from beliefmatch.adaptation.surgery import EnsembleLinear
from beliefmatch.data.loading import read_images
from beliefmatch.data.predictions import Predictions, read_predictions
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import Source
from beliefmatch.data.table_encoding import TableEncoding
from beliefmatch.data.tables import read_rows
from beliefmatch.data.text import TextSource, Tokenize, read_sentences
from beliefmatch.experiments.adapted_directory import adapted_network
from beliefmatch.experiments.build import method_of, trained_member
from beliefmatch.experiments.records import PredictionRow
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.methods.base import Prediction, Predictor
from beliefmatch.metrics import SCORES, conformal_threshold, coverage_at_risk, outcomes
from beliefmatch.train.config import EngineConfig
from beliefmatch.train.engine import Inference

__all__ = [
    "NoneOfThese",
    "TrainedPredictor",
    "none_of_these",
    "restore",
    "risk_threshold",
    "set_threshold",
]

Measure = Literal["mutual_information", "entropy"]
_BATCH = 256
_STRETCH = 16 * _BATCH


class NoneOfThese(NamedTuple):
    """The rule by which a prediction is that an input belongs to none of the classes.

    Args:
        measure: uncertainty that is compared.
        threshold: value above which the input is refused.
        rate: share of in-distribution inputs that are refused at most, on average.
        examples: validation examples that the threshold was found on.
    """

    measure: Measure
    threshold: float
    rate: float
    examples: int


@dataclass(frozen=True, eq=False)
class TrainedPredictor:
    """A trained predictor and the form of its inputs.

    That is the shape and preprocessing of images, a tokenizer of sentences, or the encoding of a table.
    """

    predictor: Predictor
    class_names: tuple[str, ...]
    engine: Inference
    has_belief: bool
    shape: tuple[int, ...] | None = None
    preprocessing: Preprocessing | None = None
    tokenize: Tokenize | None = None
    encoding: TableEncoding | None = None

    @property
    def noun(self) -> str:
        """What one input is: "image", "sentence" or "row"."""
        if self.encoding is not None:
            return "row"
        return "image" if self.tokenize is None else "sentence"

    @property
    def measure(self) -> Measure:
        """The uncertainty that tells best whether an input belongs to none of the classes.

        That is the mutual information of a belief. For bootstrap heads it is the entropy: in their mutual
        information the disagreement of the heads outweighs the spread of each, which is the better detector.
        """
        modules = self.predictor.modules() if isinstance(self.predictor, nn.Module) else ()
        is_ensemble = any(isinstance(module, EnsembleLinear) for module in modules)
        return "mutual_information" if self.has_belief and not is_ensemble else "entropy"

    def read(
        self,
        inputs: Sequence[str],
        *,
        corrupt: str = "stop",
        workers: int = 2,
        text_column: str | None = None,
    ) -> tuple[list[str], Source | TextSource]:
        """Names and content of the inputs: paths of images, sentences and files of them, or tables.

        Args:
            inputs: see `beliefmatch.data.loading.read_images`, `beliefmatch.data.text.read_sentences` and
                `beliefmatch.data.tables.read_rows`.
            corrupt: what to do with images that cannot be read, "stop" or "skip".
            workers: processes that read large images.
            text_column: name of the column of sentences in tables.
        """
        with naming_arguments("predict", "inputs", **dict.fromkeys(("paths", "path", "directory"), "inputs")):
            return self._read(inputs, corrupt, workers, text_column)

    def _read(
        self, inputs: Sequence[str], corrupt: str, workers: int, text_column: str | None
    ) -> tuple[list[str], Source | TextSource]:
        if self.tokenize is not None:
            texts = read_sentences(inputs, text_column=text_column)
            return texts, TextSource(texts, tokenize=self.tokenize)
        if text_column is not None:
            raise fail("predict", "`text_column` must be given for a network of sentences only.")
        if self.encoding is not None:
            return read_rows(inputs, self.encoding)
        assert self.shape is not None and self.preprocessing is not None
        form: dict[str, Any] = {"like_shape": self.shape, "preprocessing": self.preprocessing}
        return read_images(inputs, **form, corrupt=corrupt, workers=workers)

    def rows(
        self,
        names: Sequence[str],
        source: Source | TextSource,
        *,
        abstain: float | None = None,
        none_of_these: NoneOfThese | None = None,
        in_set: float | None = None,
    ) -> Iterator[PredictionRow]:
        """The prediction for each input, in their order.

        Args:
            names: one for each input.
            source: the inputs, as `read` returns them.
            abstain: confidence below which the prediction abstains; no prediction does if not given.
            none_of_these: rule by which inputs are refused; none is if not given.
            in_set: least probability of the classes in a prediction set; no sets if not given.
        """
        order = _by_length(source) if isinstance(source, TextSource) else torch.arange(len(source))
        indices = order.split(_BATCH)
        done: dict[int, PredictionRow] = {}  # predictions that wait for those of earlier rows
        following = 0
        with self.engine.running():
            for rows, batch in zip(indices, source.batches(indices, device=self.engine.device), strict=True):
                with self.engine.autocast():
                    prediction = self.predictor.predict(batch.inputs)  # type: ignore[arg-type]
                numbers: list[int] = rows.tolist()
                of_batch = [names[row] for row in numbers]
                found = self._rows(of_batch, prediction, abstain, none_of_these, in_set)
                done.update(zip(numbers, found, strict=True))
                while following in done:
                    yield done.pop(following)
                    following += 1

    def _rows(
        self,
        names: Sequence[str],
        prediction: Prediction,
        abstain: float | None,
        none_of_these: NoneOfThese | None,
        in_set: float | None,
    ) -> Iterator[PredictionRow]:
        confidence, predicted = prediction.probs.max(-1)
        entropy = torch.special.entr(prediction.probs).sum(-1)
        # a belief is not shown where it was made of logits that are no log-concentrations
        is_shown = self.has_belief or prediction.belief is None
        information = prediction.mutual_information() if is_shown else None
        is_none = torch.zeros(len(names), dtype=torch.bool)
        if none_of_these is not None:
            measured = entropy if none_of_these.measure == "entropy" else information
            assert measured is not None
            is_none = measured > none_of_these.threshold
        for row, name in enumerate(names):
            best, sure = int(predicted[row]), confidence[row].item()
            yield PredictionRow(
                name=name,
                predicted=best,
                class_name=self.class_names[best],
                confidence=sure,
                entropy=entropy[row].item(),
                mutual_information=None if information is None else information[row].item(),
                abstained=abstain is not None and sure < abstain,
                none_of_these=bool(is_none[row]),
                probs=tuple(prediction.probs[row].tolist()),
                prediction_set=None if in_set is None else self._set(prediction.probs[row], in_set),
            )

    def _set(self, probs: Tensor, least: float) -> tuple[str, ...]:
        """The classes at least so probable, the likeliest first."""
        ordered, classes = probs.sort(descending=True, stable=True)
        return tuple(self.class_names[index] for index in classes[ordered >= least].tolist())


def _by_length(source: TextSource) -> Tensor:
    """Rows in stretches of some batches, each with the longest sentences first: batches need less padding."""
    lengths = torch.tensor([len(text) for text in source.texts])
    stretches = torch.arange(len(source)).split(_STRETCH)
    return torch.cat([rows[lengths[rows].argsort(descending=True, stable=True)] for rows in stretches])


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
    machine = Inference(
        engine or EngineConfig(precision=config.engine.precision, threads=config.engine.threads)
    )
    trained = [trained_member(run_dir, member, caller="predict") for member in range(method.members)]
    networks = [machine.prepare(network).eval() for network in trained]
    return TrainedPredictor(
        predictor=method.restored(networks, facts["learned"]),
        class_names=tuple(facts["class_names"]),
        engine=machine,
        has_belief=method.reads != "softmax",
        shape=shape,
        preprocessing=None if "table" in facts else Preprocessing.from_json(facts["preprocessing"]),
        encoding=TableEncoding.from_json(facts["table"]) if "table" in facts else None,
    )


def _adapted(directory: Path, engine: EngineConfig) -> TrainedPredictor:
    found, machine = adapted_network(directory), Inference(engine)
    return TrainedPredictor(
        predictor=machine.prepare(found.network).eval(),  # type: ignore[arg-type]
        class_names=found.class_names,
        engine=machine,
        has_belief=found.has_belief,
        shape=found.shape,
        preprocessing=found.preprocessing,
        tokenize=found.tokenize,
    )


def none_of_these(directory: Path, rate: float, *, measure: Measure) -> NoneOfThese:
    """The rule that refuses at most this share of new in-distribution inputs, on average.

    The threshold is the value that all but this share of the run's validation examples stay below, by the
    rank of split conformal prediction: for inputs drawn like n validation examples, the probability to be
    refused is at most `rate`, over the draw of both. Where the examples have also chosen λ, it may be larger.

    Args:
        directory: of the run, or what `beliefmatch adapt` wrote.
        rate: strictly between 0 and 1.
        measure: uncertainty that is compared; the entropy where the run keeps probabilities alone.
    """
    prediction = _validation(directory)
    measure = measure if prediction.kind == "logits" else "entropy"
    scores = SCORES[measure](**{prediction.kind: prediction.values}).sort().values
    rank = math.ceil((1 - rate) * (len(scores) + 1))
    if rank > len(scores):
        expected = f"at least {1 / (len(scores) + 1):.2g}, as there are {len(scores)} validation examples"
        raise fail("predict", f"`none_of_these` must be {expected}, got {rate:g}.")
    return NoneOfThese(measure, scores[rank - 1].item(), rate, len(scores))


def set_threshold(directory: Path, coverage: float) -> float:
    """The least probability of a class in a prediction set that holds the true class with this probability.

    Split conformal prediction by 1 − p ("lac") on the run's validation examples: for inputs drawn like these,
    the set of classes at least so probable holds the true one with probability `coverage`, over the draw of
    both. Where the examples have also chosen λ, it may be a little less.
    """
    prediction = _validation(directory)
    assert prediction.targets is not None
    values = prediction.values.double()
    probs = values if prediction.kind == "probs" else values.softmax(1)
    threshold = conformal_threshold(probs, prediction.targets, alpha=1 - coverage)
    if math.isinf(threshold):
        most = len(probs) / (len(probs) + 1)
        expected = f"at most {most:.4g}, as there are {len(probs)} validation examples"
        raise fail("predict", f"`coverage` must be {expected}, got {coverage:g}.")
    return 1 - threshold - 1e-12  # so that rounding leaves no class out that is as probable


def risk_threshold(directory: Path, risk: float, *, delta: float = 0.05) -> float:
    """The confidence from which on the error rate stays below `risk` with probability 1 − delta.

    Found on the run's validation examples, on which the networks were not fitted; but options that were
    chosen by them, and a temperature, have seen them.
    """
    prediction = _validation(directory)
    assert prediction.targets is not None
    seen = outcomes(prediction.targets, **{prediction.kind: prediction.values})
    found = coverage_at_risk(seen.confidence, seen.correct, risk=risk, delta=delta)
    if not found.coverage:
        raise fail(
            "predict",
            f"`risk` must be one that {len(seen)} validation examples can guarantee, got {risk:g}; "
            "choose a larger one.",
        )
    return found.threshold


def _validation(directory: Path) -> Predictions:
    run_dir = RunDirectory(directory)
    run_dir.ood_names()  # or nothing finished is here
    return read_predictions(run_dir.predictions("validation"))
