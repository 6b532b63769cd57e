"""How good heads are on features: NLL, error and calibration error."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.fitted import FittedHead, HeadScores, Init
from beliefmatch.adaptation.result import RiskThreshold
from beliefmatch.adaptation.types import Features, labelled, ordered, require_init, require_labels
from beliefmatch.methods.base import Prediction
from beliefmatch.metrics import calibration_error, coverage_at_risk
from beliefmatch.metrics.calibration import bins_of

__all__ = [
    "Evaluator",
    "head_logits",
    "predicted",
    "product",
    "risk_thresholds",
    "score",
    "scored",
    "untouched",
]

N_BINS = 15
MOST_LOGITS = 5_000_000
"""Logits that a calibration is fitted on; of more, evenly spaced rows."""
_LOGITS = 16_000_000  # numbers of logits held at once
_HELD = 1 << 30  # bytes of validation rows that are kept in float32, since every fit reads them


def product(weight: Tensor, bias: Tensor, rows: Tensor) -> Tensor:
    """Logits (H, K, B) of weights (H, K, F), biases (H, K) and rows (B, F): one matrix product."""
    heads, classes, width = weight.shape
    logits = torch.addmm(bias.reshape(-1, 1), weight.reshape(-1, width), rows.t())
    return logits.view(heads, classes, len(rows))


class Evaluator:
    """Scores of heads on the same features; rows without a class or votes are left out.

    Args:
        features: Rows and targets.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.places = labelled(features)
        if features.targets.dim() == 2:
            self.places = self.places[features.targets[self.places].sum(1) > 0]
        self.targets = features.targets[self.places]
        wanted = 4 * len(self.places) * features.width
        self._held = [*ordered(features, self.places)] if wanted <= _HELD else None

    def __len__(self) -> int:
        return len(self.places)

    def rows(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Rows and targets, some at a time."""
        return self._held or ordered(self.features, self.places)

    def logits(self, weight: Tensor, bias: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits (H, K, b) and targets, a bounded number of rows at a time."""
        step = max(1, _LOGITS // bias.numel())
        for rows, targets in self.rows():
            for some, of_some in zip(rows.split(step), targets.split(step), strict=True):
                yield product(weight, bias, some), of_some

    def scores(self, candidates: Sequence[Candidate], weight: Tensor, bias: Tensor) -> list[HeadScores]:
        """The scores of heads with weights (H, K, F) and biases (H, K)."""
        columns: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in candidates]
        for logits, targets in self.logits(weight, bias):
            shares = _shares(targets)
            for place, one in enumerate(candidates):
                own = logits[place].t()
                logs = own.log_softmax(1) if one.kind != "evidential" else one.read(own).probs.log()
                columns[place].append(_row_scores(logs, shares))
        return [_scores(*map(torch.cat, zip(*parts, strict=True))) for parts in columns]

    def row_nll(self, head: FittedHead) -> Tensor:
        """−ln p of what came true, for each row."""
        parts = [_row_scores(output.probs.log(), _shares(of)) for output, of in predicted(head, self)]
        return torch.cat([nll for nll, _, _ in parts])


def _shares(targets: Tensor) -> Tensor:
    """Class ids as they are; counts as shares of their row's votes, double."""
    return targets if targets.dim() == 1 else targets.double() / targets.double().sum(1, keepdim=True)


def _row_scores(logs: Tensor, shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """NLL, confidence and share of right answers of each row, double, from log-probabilities (n, K)."""
    top, place = logs.max(1)
    if shares.dim() == 1:
        nll, hits = -logs.gather(1, shares[:, None])[:, 0], (shares == place)
    else:  # no vote for an impossible class: 0, not NaN
        nll = -torch.where(shares > 0, shares * logs, 0.0).sum(1)
        hits = shares.gather(1, place[:, None])[:, 0]
    return nll.double(), top.double().exp().clamp(0, 1), hits.double()


def _scores(nll: Tensor, confidence: Tensor, hits: Tensor) -> HeadScores:
    ece = calibration_error(bins_of(confidence, hits, N_BINS, "width"))
    return HeadScores(nll.mean().item(), 1 - hits.mean().item(), ece, len(hits))


def predicted(head: FittedHead, features: Features | Evaluator) -> Iterator[tuple[Prediction, Tensor]]:
    """What a head predicts for the rows that belong to a class, and their targets, some rows at a time."""
    evaluator = features if isinstance(features, Evaluator) else Evaluator(features)
    step = max(1, _LOGITS // (4 * len(head.bias)))  # in double, and more than once
    for rows, targets in evaluator.rows():
        for some, of_some in zip(rows.split(step), targets.split(step), strict=True):
            yield head.predict(some), of_some


def score(head: FittedHead, features: Features) -> HeadScores:
    """NLL, error and calibration error of a head on features, such as those of a test set."""
    classes, width = head.weight.shape
    require_labels("score", "features", features, classes, width)
    return scored(predicted(head, features))


def scored(pairs: Iterable[tuple[Prediction, Tensor]]) -> HeadScores:
    """The scores of predictions by their targets, some rows at a time."""
    parts = [_row_scores(prediction.probs.log(), _shares(targets)) for prediction, targets in pairs]
    return _scores(*map(torch.cat, zip(*parts, strict=True)))


def untouched(init: Init, features: Features) -> FittedHead:
    """An existing head with its scores."""
    weight, bias = require_init("untouched", init)
    head = FittedHead(Candidate("untouched"), weight, bias)
    return replace(head, validation=score(head, features))


def head_logits(init: Init, features: Features | Evaluator) -> tuple[Tensor, Tensor, int]:
    """Logits (n, K) in double and targets of every nth row that belongs to a class, and n."""
    weight, bias = init
    evaluator = features if isinstance(features, Evaluator) else Evaluator(features)
    step = -(-len(evaluator) * len(bias) // MOST_LOGITS)
    parts, labels, at = [], [], 0
    for logits, targets in evaluator.logits(weight[None], bias[None]):
        first = -at % step
        at += len(targets)
        parts.append(logits[0].t()[first::step].double())
        labels.append(targets[first::step])
    return torch.cat(parts), torch.cat(labels), step


def risk_thresholds(
    head: FittedHead, validation: Features, *, risks: Sequence[float], delta: float
) -> tuple[RiskThreshold, ...]:
    """For each risk the threshold of the largest coverage; see `beliefmatch.metrics.coverage_at_risk`.

    Of counts, the class of the most votes is the right one. The guarantee holds for rows drawn like these.
    Where the same rows have chosen the head it leans on them a little more than it may.

    Args:
        head: that answers.
        validation: rows it was not trained on.
        risks: error rates that the answers must not exceed.
        delta: probability with which each threshold may fail.
    """
    confidence, correct = [], []
    for prediction, targets in predicted(head, validation):
        top, place = prediction.probs.max(1)
        confidence.append(top)
        correct.append(place == (targets if targets.dim() == 1 else targets.argmax(1)))
    columns = torch.cat(confidence), torch.cat(correct)
    found = []
    for risk in risks:
        threshold, coverage, _, bound = coverage_at_risk(*columns, risk=risk, delta=delta)
        is_there = math.isfinite(threshold)
        found.append(
            RiskThreshold(risk, delta, threshold if is_there else None, coverage, bound if is_there else None)
        )
    return tuple(found)
