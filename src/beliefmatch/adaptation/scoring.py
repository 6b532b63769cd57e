"""How good heads are on features: while they train by NLL and error, in the end by calibration too."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.fitted import FittedHead, HeadScores
from beliefmatch.adaptation.reading import labelled, ordered, require_labels
from beliefmatch.adaptation.types import Features
from beliefmatch.methods.base import Prediction
from beliefmatch.metrics import calibration_error
from beliefmatch.metrics.bins import bins_of

__all__ = ["Evaluator", "predicted", "product", "score", "scored"]

N_BINS = 15
_LOGITS = 16_000_000  # numbers of logits held at once
_HELD = 1 << 30  # bytes of validation rows that are kept in float32, since every epoch reads them


def product(weight: Tensor, bias: Tensor, rows: Tensor) -> Tensor:
    """Logits (H, K, B) of weights (H, K, F), biases (H, K) and rows (B, F): one matrix product."""
    heads, classes, width = weight.shape
    logits = torch.addmm(bias.reshape(-1, 1), weight.view(-1, width), rows.t())
    return logits.view(heads, classes, len(rows))


class Evaluator:
    """HeadScores of heads on the same features, rows that belong to no class left out.

    Args:
        features: rows and targets.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.places = labelled(features)
        if features.targets.dim() == 2:  # rows without votes tell nothing
            self.places = self.places[features.targets[self.places].sum(1) > 0]
        wanted = 4 * len(self.places) * features.rows.shape[1]
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

    def watch(self, candidates: Sequence[Candidate], weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """NLL and error of each head (H,), double."""
        softmaxed = [place for place, one in enumerate(candidates) if one.kind != "evidential"]
        others = [place for place, one in enumerate(candidates) if one.kind == "evidential"]
        nll, error = torch.zeros(2, len(candidates), dtype=torch.float64)
        for logits, targets in self.logits(weight, bias):
            shares = _shares(targets)
            if softmaxed:
                some = logits if len(softmaxed) == len(candidates) else logits[softmaxed]
                logs = torch.log_softmax(some, 1)
                nll[softmaxed] += _surprise(logs, shares)
                error[softmaxed] += _misses(logs, shares)
            for place in others:
                logs = candidates[place].read(logits[place].t()).probs.log().t()[None]
                nll[place] += _surprise(logs, shares)[0]
                error[place] += _misses(logs, shares)[0]
        return nll / len(self), error / len(self)

    def scores(self, candidates: Sequence[Candidate], weight: Tensor, bias: Tensor) -> list[HeadScores]:
        """All scores of each head; a head at a time, so that one head's columns are all that is held."""
        nll, error = self.watch(candidates, weight, bias)
        return [
            HeadScores(
                nll[place].item(), error[place].item(), self._ece(one, weight[place], bias[place]), len(self)
            )
            for place, one in enumerate(candidates)
        ]

    def _ece(self, candidate: Candidate, weight: Tensor, bias: Tensor) -> float:
        confidence, hits = [], []
        for logits, targets in self.logits(weight[None], bias[None]):
            probs = candidate.read(logits[0].t()).probs
            top, place = probs.max(1)
            confidence.append(top)
            hits.append(_taken(_shares(targets), place))
        columns = torch.cat(confidence).clamp(0, 1), torch.cat(hits)
        return calibration_error(bins_of(*columns, N_BINS, "width"))


def _shares(targets: Tensor) -> Tensor:
    """Class ids as they are; counts as shares of their row's votes, double."""
    return targets if targets.dim() == 1 else targets.double() / targets.double().sum(1, keepdim=True)


def _surprise(logs: Tensor, shares: Tensor) -> Tensor:
    """Sum over rows of −ln p of what came true, for log-probabilities (H, K, b)."""
    if shares.dim() == 1:
        own = logs.gather(1, shares.expand(len(logs), 1, -1))[:, 0]
        return -own.sum(1, dtype=torch.float64)
    weighed = torch.where(
        shares.t() > 0, shares.t() * logs, 0.0
    )  # no vote for an impossible class: 0, not NaN
    return -weighed.sum((1, 2), dtype=torch.float64)


def _misses(logs: Tensor, shares: Tensor) -> Tensor:
    """Sum over rows of what the most probable class missed."""
    best = logs.argmax(1)
    return (1 - torch.stack([_taken(shares, place) for place in best])).sum(1)


def _taken(shares: Tensor, place: Tensor) -> Tensor:
    """The share of each row's votes for one class, double."""
    return (shares == place).double() if shares.dim() == 1 else shares.gather(1, place[:, None])[:, 0]


def predicted(head: FittedHead, features: Features) -> Iterator[tuple[Prediction, Tensor]]:
    """What a head says of the rows that belong to a class, and their targets, some rows at a time."""
    evaluator, step = (
        Evaluator(features),
        max(1, _LOGITS // (4 * len(head.bias))),
    )  # in double, and more than once
    for rows, targets in evaluator.rows():
        for some, of_some in zip(rows.split(step), targets.split(step), strict=True):
            yield head.predict(some), of_some


def score(head: FittedHead, features: Features) -> HeadScores:
    """NLL, error and calibration error of a head on features, such as those of a test set."""
    classes, width = head.weight.shape
    require_labels("score", "features", features, classes, width)
    if head.is_linear:
        return Evaluator(features).scores([head.candidate], head.weight[None], head.bias[None])[0]
    return scored(predicted(head, features))


def scored(pairs: Iterable[tuple[Prediction, Tensor]]) -> HeadScores:
    """The scores of predictions by their targets, some rows at a time."""
    nll, confidence, hits = 0.0, [], []
    for prediction, targets in pairs:
        shares = _shares(targets)
        top, place = prediction.probs.max(1)
        nll += _surprise(prediction.probs.log().t()[None], shares).item()
        confidence.append(top)
        hits.append(_taken(shares, place))
    hit = torch.cat(hits)
    ece = calibration_error(bins_of(torch.cat(confidence).clamp(0, 1), hit, N_BINS, "width"))
    return HeadScores(nll / len(hit), 1 - hit.mean().item(), ece, len(hit))
