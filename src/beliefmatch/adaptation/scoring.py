"""Heads read over rows of features, a bounded number at a time: predictions and their scores."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from beliefmatch.adaptation.feature_rows import Features, labelled, ordered
from beliefmatch.adaptation.fitted import Candidate, FittedHead, HeadScores, Init
from beliefmatch.adaptation.result import RiskThreshold
from beliefmatch.data.predictions import Predictions
from beliefmatch.methods.base import Prediction
from beliefmatch.metrics import calibration_error, coverage_at_risk
from beliefmatch.metrics.calibration import bins_of

__all__ = [
    "Evaluator",
    "answers",
    "head_logits",
    "predictions",
    "product",
    "risk_thresholds",
    "row_scores",
    "scorable",
    "score",
    "score_logits",
    "score_predictions",
    "stored_predictions",
    "untouched",
]

N_BINS = 15
MAX_LOGITS = 5_000_000
"""Logits that a calibration is fitted on; of more, evenly spaced rows."""
_LOGITS = 16_000_000  # numbers of logits held at once
_HELD = 1 << 30  # bytes of validation rows that are kept in float32, since every fit reads them

_Blocks = Iterable[tuple[Tensor, Tensor]]
"""Rows (n, F) and their targets, some at a time."""


def product(weight: Tensor, bias: Tensor, rows: Tensor) -> Tensor:
    """Logits (H, K, B) of weights (H, K, F), biases (H, K) and rows (B, F): one matrix product."""
    heads, classes, width = weight.shape
    logits = torch.addmm(bias.reshape(-1, 1), weight.reshape(-1, width), rows.t())
    return logits.view(heads, classes, len(rows))


def scorable(features: Features) -> Tensor:
    """Indices of the rows that have a class, or at least one vote."""
    indices = labelled(features)
    return indices if features.targets.dim() == 1 else indices[features.targets[indices].sum(1) > 0]


def predictions(
    head: FittedHead, features: Features, indices: Tensor | None = None
) -> Iterator[tuple[Prediction, Tensor]]:
    """What a head predicts for the rows at these indices, or for all, and their targets, in order."""
    indices = torch.arange(len(features)) if indices is None else indices
    return _predicted(head, ordered(features, indices))


def _predicted(head: FittedHead, blocks: _Blocks) -> Iterator[tuple[Prediction, Tensor]]:
    step = _LOGITS // (4 * len(head.bias))  # in double, and more than once
    return ((head.predict(rows), targets) for rows, targets in _split(blocks, step))


def _split(blocks: _Blocks, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    for rows, targets in blocks:
        yield from zip(rows.split(max(1, step)), targets.split(max(1, step)), strict=True)


@torch.no_grad()
def stored_predictions(
    head: FittedHead, features: Features, indices: Tensor, *, path: Path, dtype: torch.dtype = torch.float64
) -> tuple[Predictions, bool]:
    """What a head predicts for some rows, with their targets as they are, and whether it has a belief.

    The values are log-concentrations of a belief, a head's own logits, or probabilities where it has neither.
    """
    values, kind, has_belief = [], "probs", False
    for output, _ in predictions(head, features, indices):
        has_belief = output.belief is not None
        logits = output.logits if output.belief is None else output.belief.log_alpha
        kind = "probs" if logits is None else "logits"
        values.append((output.probs if logits is None else logits).to(dtype))
    return Predictions(path, kind, torch.cat(values), features.targets[indices], None, {}), has_belief


class Evaluator:
    """Scores of many heads on the rows of the same features that have a class or votes.

    Args:
        features: Rows and targets.
    """

    def __init__(self, features: Features) -> None:
        self.features, self.indices = features, scorable(features)
        is_small = 4 * len(self.indices) * features.width <= _HELD
        self._held = [*ordered(features, self.indices)] if is_small else None

    def __len__(self) -> int:
        return len(self.indices)

    def _blocks(self) -> _Blocks:
        return self._held or ordered(self.features, self.indices)

    def logits(self, weight: Tensor, bias: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits (H, K, b) and targets, a bounded number of rows at a time."""
        for rows, targets in _split(self._blocks(), _LOGITS // bias.numel()):
            yield product(weight, bias, rows), targets

    def scores(self, candidates: Sequence[Candidate], weight: Tensor, bias: Tensor) -> list[HeadScores]:
        """The scores of heads with weights (H, K, F) and biases (H, K)."""
        columns: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in candidates]
        for logits, targets in self.logits(weight, bias):
            for one, own, parts in zip(candidates, logits.mT, columns, strict=True):
                logs = own.log_softmax(1) if one.kind != "evidential" else one.read(own).probs.log()
                parts.append(row_scores(logs, targets))
        return [_means(parts) for parts in columns]

    def row_nll(self, head: FittedHead) -> Tensor:
        """−ln p of what came true, for each row."""
        pairs = _predicted(head, self._blocks())
        return torch.cat([row_scores(output.probs.log(), targets)[0] for output, targets in pairs])


def row_scores(logs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """NLL, confidence and share of right answers of each row, double, from log-probabilities (n, K)."""
    top, predicted = logs.max(1)
    if targets.dim() == 1:
        nll, hits = -logs.gather(1, targets[:, None])[:, 0], (targets == predicted)
    else:  # no vote for an impossible class: 0, not NaN
        shares = targets.double() / targets.double().sum(1, keepdim=True)
        nll = -torch.where(shares > 0, shares * logs, 0.0).sum(1)
        hits = shares.gather(1, predicted[:, None])[:, 0]
    return nll.double(), top.double().exp().clamp(0, 1), hits.double()


def _means(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> HeadScores:
    nll, confidence, hits = map(torch.cat, zip(*parts, strict=True))
    ece = calibration_error(bins_of(confidence, hits, N_BINS, "width"))
    return HeadScores(nll.mean().item(), 1 - hits.mean().item(), ece, len(hits))


def score(head: FittedHead, features: Features) -> HeadScores:
    """NLL, error and calibration error of a head on features, such as those of a test set."""
    return score_predictions(predictions(head, features, scorable(features)))


def score_predictions(pairs: Iterable[tuple[Prediction, Tensor]]) -> HeadScores:
    """The scores of predictions by their targets, some rows at a time."""
    return _means([row_scores(output.probs.log(), targets) for output, targets in pairs])


def score_logits(logits: Tensor, targets: Tensor) -> HeadScores:
    """The scores of logits (n, K) by class ids (n,) or counts (n, K), each with a vote."""
    return _means([row_scores(logits.double().log_softmax(1), targets)])


def untouched(init: Init, features: Features) -> FittedHead:
    """An existing head with its scores."""
    head = FittedHead(Candidate("untouched"), *init)
    return replace(head, validation=score(head, features))


def head_logits(init: Init, features: Features | Evaluator) -> tuple[Tensor, Tensor]:
    """Logits (n, K) in double and targets of the rows that have a class or votes; of many, of every nth."""
    weight, bias = init
    evaluator = features if isinstance(features, Evaluator) else Evaluator(features)
    step = -(-len(evaluator) * len(bias) // MAX_LOGITS)
    parts, labels, at = [], [], 0
    for logits, targets in evaluator.logits(weight[None], bias[None]):
        first = -at % step
        at += len(targets)
        parts.append(logits[0].t()[first::step].double())
        labels.append(targets[first::step])
    return torch.cat(parts), torch.cat(labels)


def answers(head: FittedHead, features: Features) -> tuple[Tensor, Tensor]:
    """Confidence and correctness of the answer to each row that has a class or votes.

    Of counts, the class of the most votes is the right one.
    """
    confidence, correct = [], []
    for prediction, targets in predictions(head, features, scorable(features)):
        top, predicted = prediction.probs.max(1)
        confidence.append(top)
        correct.append(predicted == (targets if targets.dim() == 1 else targets.argmax(1)))
    return torch.cat(confidence), torch.cat(correct)


def risk_thresholds(
    head: FittedHead, validation: Features, *, risks: Sequence[float], delta: float
) -> tuple[RiskThreshold, ...]:
    """For each risk the threshold of the largest coverage; see `beliefmatch.metrics.coverage_at_risk`.

    Right answers are those of `answers`. The guarantee holds for rows drawn like these. Where the same rows
    have chosen the head it leans on them a little more than it may.

    Args:
        head: The head that answers.
        validation: Rows that it was not trained on.
        risks: Error rates that the answers must not exceed.
        delta: Probability with which each threshold may fail.
    """
    confidence, correct = answers(head, validation)
    found = []
    for risk in risks:
        threshold, coverage, _, bound = coverage_at_risk(confidence, correct, risk=risk, delta=delta)
        pair = (threshold, bound) if math.isfinite(threshold) else (None, None)
        found.append(RiskThreshold(risk, delta, pair[0], coverage, pair[1]))
    return tuple(found)
