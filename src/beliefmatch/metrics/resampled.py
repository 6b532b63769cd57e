"""Metrics of many resamples at once: a row of weights counts how often each example was drawn."""

import torch
from torch import Tensor

from beliefmatch.metrics.bins import bin_of
from beliefmatch.metrics.detection import needed
from beliefmatch.metrics.outcomes import Outcomes

__all__ = ["DetectionCurves", "OutcomeSums"]


def _steps(totals: Tensor) -> Tensor:
    """What cumulated sums grow by."""
    return totals.diff(prepend=torch.zeros_like(totals[:, :1]))


class OutcomeSums:
    """The metrics of `bootstrap_outcomes`, as functions of weights (R, N) of the examples in `order`."""

    def __init__(self, seen: Outcomes, top_k: int, n_bins: int) -> None:
        self.n_bins = n_bins
        confidence, order = seen.confidence.sort()
        distinct, count = torch.unique_consecutive(confidence, return_counts=True)
        self.order, self.column = order, order.argsort()
        """The example of each column of the weights, and the column of each example."""
        self.last = None if len(distinct) == len(confidence) else count.cumsum(0) - 1
        wrong = (~seen.correct[order]).double()
        others = (seen.rank >= top_k).double(), seen.nll, seen.brier
        means = [wrong, *(column[order] for column in others), confidence, seen.entropy[order]]
        self.names = ["error", "top_k_error", "nll", "brier", "mean_confidence", "mean_entropy"]
        in_bin = torch.nn.functional.one_hot(bin_of(confidence, n_bins), n_bins).double()
        gap = confidence - 1 + wrong
        features = torch.stack(means, 1)
        self.infinite = features.isinf().double()
        self.features = torch.cat(
            [features.where(features.isfinite(), 0.0), in_bin * gap[:, None], in_bin], 1
        )
        self.confidence, self.wrong = confidence, wrong
        steps = torch.arange(1, len(seen) + 1, dtype=torch.float64)
        self.harmonic = torch.cat([torch.zeros(1, dtype=torch.float64), (1 / steps).cumsum(0)])

    def __call__(self, weights: Tensor) -> dict[str, Tensor]:
        """Every metric of every row of weights."""
        examples, count = weights.shape[1], len(self.names)
        sums = weights @ self.features / examples
        infinite = (weights @ self.infinite > 0) if self.infinite.any() else self.infinite[:1] > 0
        means = sums[:, :count].masked_fill(infinite, torch.inf)
        gaps, shares = sums[:, count:].split(self.n_bins, 1)
        found = dict(zip(self.names, means.T, strict=True))
        found["overconfidence"] = gaps.sum(1)
        found["ece"] = gaps.abs().sum(1)
        found["mce"] = (gaps.abs() / shares).nan_to_num(nan=0.0).amax(1)
        drawn, wrong = self._cumulated(weights), self._cumulated(weights * self.wrong)
        confidence = self._cumulated(weights * self.confidence)
        return found | self._by_mass(drawn, wrong, confidence) | self._areas(drawn, wrong)

    def _cumulated(self, weights: Tensor) -> Tensor:
        """Sums over the examples up to and including each distinct confidence."""
        total = weights.cumsum(1)
        return total if self.last is None else total[:, self.last]

    def _by_mass(self, drawn: Tensor, wrong: Tensor, confidence: Tensor) -> dict[str, Tensor]:
        """Bins of equal size; an example or a tie that two bins share is split between them."""
        examples = drawn[0, -1]
        ends = torch.arange(1, self.n_bins + 1) * int(examples) // self.n_bins
        at = torch.searchsorted(drawn, ends.double().expand(len(drawn), -1).contiguous())
        behind = drawn.gather(1, at) - ends
        size = _steps(drawn).gather(1, at)
        totals = []
        for sums in (wrong, confidence):
            step = _steps(sums).gather(1, at)
            upto = sums.gather(1, at) - step * (behind / size).nan_to_num(nan=0.0)
            totals.append(_steps(upto))
        counts = ends.diff(prepend=ends.new_zeros(1)).double()
        gap = totals[1] - counts + totals[0]
        accuracy = 1 - totals[0] / counts.clamp(min=1)
        chance = accuracy * (1 - accuracy) / (counts - 1).clamp(min=1)
        squares = (counts * ((gap / counts.clamp(min=1)).square() - chance)).sum(1) / examples
        return {
            "adaptive_ece": gap.abs().sum(1) / examples,
            "debiased_ece": squares.clamp(min=0).sqrt(),
        }

    def _areas(self, drawn: Tensor, wrong: Tensor) -> dict[str, Tensor]:
        """Risk-coverage from the surest down; within a tie the mistakes come evenly.

        A tie from k = a to b answers adds Σ (E_a + (k − a) s)/k = (E_a − a s)(H_b − H_a) + (b − a) s,
        with E_a the mistakes before it, s its share of mistakes and H the harmonic numbers.
        """
        examples, mistakes = int(drawn[0, -1]), wrong[:, -1:]
        size = _steps(drawn)
        share = _steps(wrong) / size.clamp(min=1)
        end = examples - drawn + size
        before, start = mistakes - wrong, examples - drawn
        harmonic = self.harmonic[end.long()] - self.harmonic[start.long()]
        area = ((before - start * share) * harmonic + size * share).sum(1) / examples
        right = examples - mistakes[:, 0]
        least = mistakes[:, 0] - right * (self.harmonic[examples] - self.harmonic[right.long()])
        return {"aurc": area, "excess_aurc": (area - least / examples).clamp(min=0)}


class DetectionCurves:
    """The metrics of `bootstrap_detection`, as functions of how often each distinct score was drawn."""

    def __init__(self, in_distribution: Tensor, ood: Tensor, tpr: float) -> None:
        scores, column = torch.unique(torch.cat([in_distribution, ood]), return_inverse=True)
        self.scores = len(scores)
        self.columns = column[: len(in_distribution)], column[len(in_distribution) :]
        """Index among the sorted distinct scores, of in-distribution and of OOD examples."""
        self.needed = needed(tpr, len(in_distribution))

    def __call__(self, in_distribution: Tensor, ood: Tensor) -> dict[str, Tensor]:
        """Every metric of every row of weights (R, number of scores)."""
        below_id, below_ood = in_distribution.cumsum(1), ood.cumsum(1)
        n_id, n_ood = below_id[:, -1:], below_ood[:, -1:]
        pairs = (ood * below_id).sum(1) - (ood * in_distribution).sum(1) / 2
        caught = n_ood - below_ood + ood
        flagged = (caught + n_id - below_id + in_distribution).clamp(min=1)
        at = torch.searchsorted(below_id, torch.full_like(n_id, self.needed))
        return {
            "auroc": pairs / (n_id * n_ood)[:, 0],
            "aupr_ood": (ood * caught / flagged).sum(1) / n_ood[:, 0],
            "aupr_id": (in_distribution * below_id / (below_id + below_ood).clamp(min=1)).sum(1) / n_id[:, 0],
            "fpr95": (below_ood.gather(1, at) / n_ood)[:, 0],
        }
