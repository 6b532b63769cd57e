"""Metrics of predictions that come in batches, on torchmetrics' base class.

Each class takes `update(preds, target)`, or `update(logits=logits, target=target)`; any split into batches,
and any split among processes, gives the result of the whole. The sums have a size of their own, whatever the
number of examples; only the areas under curves keep two numbers of each. All arithmetic is that of the
functions. States have names of their own, because torchmetrics takes metrics whose states have the same names
and, after the first batch, the same values for one and the same.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._validate import describe, fail
from beliefmatch.metrics._inputs import columns, require_at_least_one
from beliefmatch.metrics.bins import ReliabilityBins, bin_of
from beliefmatch.metrics.calibration import calibration_error
from beliefmatch.metrics.classwise import ClassBins, class_bins
from beliefmatch.metrics.detection import auroc
from beliefmatch.metrics.outcomes import Outcomes
from beliefmatch.metrics.selective import aurc
from beliefmatch.metrics.streaming_base import OfPredictions, Streaming

with needs("torchmetrics", extra="metrics", caller="beliefmatch.metrics.streaming"):
    from torchmetrics.utilities import dim_zero_cat

__all__ = [
    "AURC",
    "AUROC",
    "NLL",
    "Brier",
    "ClasswiseCalibrationError",
    "Error",
    "ExpectedCalibrationError",
    "MaximumCalibrationError",
    "Summary",
    "TopKError",
]


class _Mean(OfPredictions):
    """The mean of one number of each example."""

    def __init__(self, state: str, **options: Any) -> None:
        super().__init__(**options)
        self._state = state
        self._add_sum(state, 2)

    def _add_batch(self, targets: Tensor, probs: Tensor | None, logits: Tensor | None) -> None:
        value = self._values(self._observe(targets, probs, logits)).double()
        self._add(self._state, torch.stack([value.sum(), torch.tensor(len(value)).double()]))

    def compute(self) -> Tensor:
        """The mean over all examples; NaN if there were none."""
        total, examples = getattr(self, self._state)
        return total / examples

    def _values(self, seen: Outcomes) -> Tensor:
        raise NotImplementedError


class Error(_Mean):
    """Share of examples whose most probable class is not the target, as `error`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("wrong", **options)

    def _values(self, seen: Outcomes) -> Tensor:
        return ~seen.correct


class TopKError(_Mean):
    """Share of examples whose target is not among the k most probable classes, as `top_k_error`."""

    def __init__(self, *, k: int = 5, **options: Any) -> None:
        self.k = require_at_least_one("TopKError", "k", k)
        super().__init__(f"wrong_in_{k}", **options)

    def _values(self, seen: Outcomes) -> Tensor:
        return seen.rank >= self.k


class NLL(_Mean):
    """Mean negative log-likelihood in nats, as `nll`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("surprise", **options)

    def _values(self, seen: Outcomes) -> Tensor:
        return seen.nll


class Brier(_Mean):
    """Mean squared distance of the probabilities from the outcome, as `brier`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("squares", **options)

    def _values(self, seen: Outcomes) -> Tensor:
        return seen.brier


class _Calibration(OfPredictions):
    """A norm of the gaps between confidence and accuracy."""

    _norm: ClassVar[Literal["mean", "max"]]

    def __init__(self, *, n_bins: int = 15, **options: Any) -> None:
        super().__init__(**options)
        self.n_bins = require_at_least_one(type(self).__name__, "n_bins", n_bins)
        self._state = f"bins_of_{n_bins}"  # the same for both norms, which torchmetrics then updates once
        self._add_sum(self._state, 3, n_bins)

    def _add_batch(self, targets: Tensor, probs: Tensor | None, logits: Tensor | None) -> None:
        self._add(self._state, _bin_sums(self._observe(targets, probs, logits), self.n_bins))

    def reliability_bins(self) -> ReliabilityBins:
        """The reliability diagram of the examples of this process."""
        return _bins(getattr(self, self._state))

    def compute(self) -> Tensor:
        """The error over all examples; NaN if there were none."""
        value = calibration_error(self.reliability_bins(), norm=self._norm)
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class ExpectedCalibrationError(_Calibration):
    """Mean gap between confidence and accuracy over bins, as `expected_calibration_error`."""

    _norm = "mean"


class MaximumCalibrationError(_Calibration):
    """Largest gap between confidence and accuracy of a bin, as `maximum_calibration_error`."""

    _norm = "max"


class ClasswiseCalibrationError(OfPredictions):
    """Mean calibration error of the classes, as `classwise_calibration_error`."""

    def __init__(self, num_classes: int, *, n_bins: int = 15, **options: Any) -> None:
        super().__init__(
            require_at_least_one("ClasswiseCalibrationError", "num_classes", num_classes), **options
        )
        self.n_bins = require_at_least_one("ClasswiseCalibrationError", "n_bins", n_bins)
        self._state = f"class_bins_of_{n_bins}"
        self._add_sum(self._state, 3, num_classes, n_bins)

    def _add_batch(self, targets: Tensor, probs: Tensor | None, logits: Tensor | None) -> None:
        name = "ClasswiseCalibrationError"
        bins = class_bins(targets, probs=probs, logits=logits, n_bins=self.n_bins, function=name)
        self._add(self._state, torch.stack([bins.count, bins.probability, bins.hits]))

    def class_bins(self) -> ClassBins:
        """The bins of every class, of the examples of this process."""
        return ClassBins(*getattr(self, self._state).cpu())

    def compute(self) -> Tensor:
        """The mean over the classes; NaN if there were no examples."""
        return self.class_bins().errors.mean().to(self.device)


class Summary(OfPredictions):
    """Error, top-k error, NLL, Brier score and calibration errors from one look at each batch."""

    def __init__(self, *, k: int = 5, n_bins: int = 15, **options: Any) -> None:
        super().__init__(**options)
        self.k, self.n_bins = (
            require_at_least_one("Summary", *named) for named in (("k", k), ("n_bins", n_bins))
        )
        self._means, self._bins_state = f"means_with_{k}", f"summary_bins_of_{n_bins}"
        self._add_sum(self._means, 4)
        self._add_sum(self._bins_state, 3, n_bins)

    def _add_batch(self, targets: Tensor, probs: Tensor | None, logits: Tensor | None) -> None:
        seen = self._observe(targets, probs, logits)
        each = (~seen.correct).double(), (seen.rank >= self.k).double(), seen.nll, seen.brier
        self._add(self._means, torch.stack([column.sum() for column in each]))
        self._add(self._bins_state, _bin_sums(seen, self.n_bins))

    def compute(self) -> dict[str, Tensor]:
        """By name: error, top_k_error, nll, brier, ece, mce."""
        bins = _bins(getattr(self, self._bins_state))
        means = getattr(self, self._means) / bins.count.sum().to(self.device)
        found = dict(zip(("error", "top_k_error", "nll", "brier"), means, strict=True))
        gaps = {"ece": calibration_error(bins), "mce": calibration_error(bins, norm="max")}
        return found | {name: means.new_tensor(value) for name, value in gaps.items()}


class AURC(OfPredictions):
    """Area under the risk-coverage curve of the confidence, as `aurc`; keeps two numbers of each example."""

    confidence: list[Tensor]
    correct: list[Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("confidence", [], dist_reduce_fx="cat")
        self.add_state("correct", [], dist_reduce_fx="cat")

    def _add_batch(self, targets: Tensor, probs: Tensor | None, logits: Tensor | None) -> None:
        seen = self._observe(targets, probs, logits)
        self.confidence.append(seen.confidence.to(self.device))
        self.correct.append(seen.correct.to(self.device))

    def compute(self) -> Tensor:
        """The area over all examples."""
        value = aurc(dim_zero_cat(self.confidence), dim_zero_cat(self.correct))
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class AUROC(Streaming):
    """Probability that an OOD example has the higher score, as `auroc`; keeps all scores."""

    higher_is_better = True
    scores: list[Tensor]
    ood: list[Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("scores", [], dist_reduce_fx="cat")
        self.add_state("ood", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of scores `preds`, higher for more OOD; `target` is True where an example is OOD."""
        with self._uncounted_if_refused():
            (column,) = columns("AUROC", preds=preds)
            if not isinstance(target, Tensor) or target.dtype != torch.bool or target.shape != column.shape:
                expected = f"a bool tensor of shape {tuple(column.shape)}"
                raise fail("AUROC", f"`target` must be {expected}, got {describe(target)}.", TypeError)
            self.scores.append(column.to(self.device))
            self.ood.append(target.to(self.device))

    def compute(self) -> Tensor:
        """The area over all examples."""
        scores, ood = dim_zero_cat(self.scores), dim_zero_cat(self.ood)
        value = auroc(scores[~ood], scores[ood])
        return torch.tensor(value, dtype=torch.float64, device=self.device)


def _bin_sums(seen: Outcomes, n_bins: int) -> Tensor:
    """Number, confidence and hits of each bin, shape (3, M)."""
    columns = torch.stack([torch.ones_like(seen.confidence), seen.confidence, seen.correct.double()])
    return columns.new_zeros(3, n_bins).index_add_(1, bin_of(seen.confidence, n_bins), columns)


def _bins(sums: Tensor) -> ReliabilityBins:
    count, confidence, hits = sums.cpu()
    edges = torch.arange(len(count) + 1, dtype=torch.float64) / len(count)
    return ReliabilityBins(edges[:-1], edges[1:], count.long(), confidence / count, hits / count)
