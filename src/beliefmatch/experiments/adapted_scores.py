"""What one head makes of features: a few numbers a row, read in blocks, so that memory stays bounded."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.reading import labelled, ordered
from beliefmatch.adaptation.types import Features
from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.evaluate import BELIEF_SCORES, score_columns
from beliefmatch.experiments.records import OODScores, Scores
from beliefmatch.metrics import auroc, calibration_error, fpr_at_tpr, outcomes
from beliefmatch.metrics.bins import bins_of

__all__ = [
    "Answers",
    "HeadOutput",
    "answers",
    "detection_scores",
    "doubts",
    "is_votes",
    "outputs_of",
    "scorable",
]

N_BINS = 15
_NUMBERS = 4_000_000  # of logits held at once


@dataclass(frozen=True, eq=False)
class Answers:
    """Of each row (N,), double; the shares of a row's votes count as so much of an example."""

    confidence: Tensor
    hits: Tensor
    """1 where the predicted class is the label, or the share of the votes for it."""
    nll: Tensor
    brier: Tensor
    kl: Tensor | None
    """KL(shares of the votes ‖ probabilities); None for labels."""

    def scores(self) -> Scores:
        """Means over the rows."""
        nll = self.nll.mean().item()
        return Scores(
            examples=len(self.hits),
            error=(1 - self.hits).mean().item(),
            nll=nll if math.isfinite(nll) else None,
            brier=self.brier.mean().item(),
            ece=calibration_error(bins_of(self.confidence.clamp(0, 1), self.hits, N_BINS, "width")),
            mean_confidence=self.confidence.mean().item(),
        )

    def mean_kl(self) -> float | None:
        """None for labels, and where it is infinite."""
        value = math.inf if self.kl is None else self.kl.mean().item()
        return value if math.isfinite(value) else None


def is_votes(features: Features) -> bool:
    """Whether rows have counts of several classes rather than a class."""
    return features.targets.dim() == 2


def scorable(features: Features) -> Tensor:
    """Places of the rows that have a class, or at least one vote."""
    places = labelled(features)
    return places[features.targets[places].sum(1) > 0] if is_votes(features) else places


class HeadOutput(NamedTuple):
    """What a head says of a block of rows."""

    kind: Literal["logits", "probs"]
    values: Tensor
    """(n, K): log-concentrations of a belief, a head's own logits, or probabilities where it has neither."""
    has_belief: bool
    targets: Tensor

    @property
    def logs(self) -> Tensor:
        """ln p, double."""
        return self.values.log_softmax(1) if self.kind == "logits" else self.values.log()


@torch.no_grad()
def outputs_of(head: FittedHead, features: Features, places: Tensor | None = None) -> Iterator[HeadOutput]:
    """What a head says of the rows at these places, or of all, a bounded number at a time, in order."""
    wanted = torch.arange(len(features)) if places is None else places
    step = max(1, _NUMBERS // len(head.bias))
    for rows, targets in ordered(features, wanted):
        for some, of_some in zip(rows.split(step), targets.split(step), strict=True):
            output = head.predict(some)
            logits = output.logits if output.belief is None else output.belief.log_alpha
            kind, values = ("probs", output.probs) if logits is None else ("logits", logits)
            yield HeadOutput(kind, values, output.belief is not None, of_some)


def answers(head: FittedHead, features: Features) -> Answers:
    """How a head answers the rows that have a class or votes."""
    read = _by_votes if is_votes(features) else _by_labels
    parts = [read(output) for output in outputs_of(head, features, scorable(features))]
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    return Answers(*columns, *([] if is_votes(features) else [None]))


def _by_labels(output: HeadOutput) -> tuple[Tensor, ...]:
    given: dict[str, Any] = {output.kind: output.values}
    seen = outcomes(output.targets, **given)
    return seen.confidence, seen.correct.double(), seen.nll, seen.brier


def _by_votes(output: HeadOutput) -> tuple[Tensor, ...]:
    """The expectation of each score over one vote drawn from the row's; of a label it is the score itself."""
    shares, logs = output.targets.double(), output.logs
    shares = shares / shares.sum(1, keepdim=True)
    probs, cast = logs.exp(), shares > 0
    confidence, predicted = probs.max(1)
    nll = -torch.where(cast, shares * logs, 0.0).sum(1)  # no vote for an impossible class: 0, not NaN
    hits = shares.gather(1, predicted[:, None])[:, 0]
    brier = probs.square().sum(1) - 2 * (probs * shares).sum(1) + 1
    return confidence, hits, nll, brier, nll - torch.special.entr(shares).sum(1)


def doubts(
    head: FittedHead, features: Features, places: Tensor | None = None
) -> tuple[dict[str, Tensor], bool]:
    """Every score of `metrics.SCORES` that a head allows, a column each, and whether it has a belief."""
    columns: dict[str, list[Tensor]] = {}
    has_belief = False
    for output in outputs_of(head, features, places):
        has_belief = output.has_belief
        read = Predictions(Path(), output.kind, output.values, None, None, {})
        for name, column in score_columns(read).items():
            columns.setdefault(name, []).append(column)
    return {name: torch.cat(parts) for name, parts in columns.items()}, has_belief


def detection_scores(
    name: str, in_distribution: Mapping[str, Tensor], ood: Mapping[str, Tensor], *, has_belief: bool
) -> OODScores:
    """How well each score separates OOD from in-distribution rows, given both `doubts`."""
    names = [score for score in in_distribution if has_belief or score not in BELIEF_SCORES]
    return OODScores(
        name=name,
        examples=len(ood["confidence"]),
        auroc={score: float(auroc(in_distribution[score], ood[score])) for score in names},
        fpr95={score: float(fpr_at_tpr(in_distribution[score], ood[score])) for score in names},
        mean_confidence=1 - ood["confidence"].mean().item(),
    )
