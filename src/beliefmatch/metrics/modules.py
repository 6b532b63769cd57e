"""Metrics of predictions that come in batches, on torchmetrics' base class.

Each class takes `update(preds, target)`, or `update(logits=logits, target=target)`; any split into batches,
and any split among processes, gives the result of the whole. The sums have a size of their own, whatever the
number of examples; only the areas under curves keep two numbers of each. All arithmetic is that of the
functions. States have names of their own, because torchmetrics takes metrics whose states have the same names
and, after the first batch, the same values for one and the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._validate import describe, fail
from beliefmatch.metrics._readings import (
    Outcomes,
    check_rows,
    columns,
    observe,
    only_given,
    require_at_least_one,
)
from beliefmatch.metrics.calibration import (
    ClassBins,
    ReliabilityBins,
    bin_of,
    calibration_error,
    class_bins_of,
)
from beliefmatch.metrics.ood import auroc
from beliefmatch.metrics.selective import aurc

with needs("torchmetrics", extra="metrics", caller="beliefmatch.metrics.modules"):
    from torchmetrics import Metric
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

_UNKNOWN = 0  # classes before the first batch


class _Streaming(Metric):
    """States that only a whole batch changes."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False  # so that `forward` of a batch updates once

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._before_batch: dict[str, Any] = {}
        """Copies of the states while `forward` computes the value of a batch alone."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value."""
        before = dict(self.__dict__)
        self._before_batch = {name: _copy(state) for name, state in self.metric_state.items()}
        try:
            value = super().forward(*args, **kwargs)
        except BaseException:  # torchmetrics would leave the states empty
            vars(self).update(before | self._before_batch)
            raise
        self._before_batch = {}
        return value

    @contextmanager
    def _uncounted_if_refused(self) -> Iterator[None]:
        """Do not count a batch that was refused."""
        try:
            yield
        except BaseException:
            self._update_count -= 1
            raise

    def _add_sum(self, name: str, *size: int) -> None:
        self.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")

    def _add(self, name: str, value: Tensor) -> None:
        state: Tensor = getattr(self, name)
        setattr(self, name, state + value.to(state.device))


class _OfPredictions(_Streaming):
    """A metric of predictions, which all have as many classes.

    Their number is a state like others: `reset` forgets it, and processes that meet must agree on it.
    """

    classes: Tensor

    def __init__(self, classes: int = _UNKNOWN, **options: Any) -> None:
        super().__init__(**options)
        self._given_classes = classes
        # The first state, so that a disagreement between processes is an error before any sum is changed.
        self.add_state("classes", torch.tensor(classes), dist_reduce_fx=_the_same)

    def update(
        self, preds: Tensor | None = None, target: Tensor | None = None, *, logits: Tensor | None = None
    ) -> None:
        """Add a batch.

        Args:
            preds: Probabilities (N, K); either these or `logits` are given.
            target: Class ids (N,).
            logits: Logits (N, K).
        """
        function = type(self).__name__
        with self._uncounted_if_refused():
            name, values = only_given(function, preds=preds, logits=logits)
            if target is None:
                raise fail(function, "`target` must be given, got None.", TypeError)
            check_rows(function, name, values)
            self._require_classes(name, values.shape[1])
            self._add_batch(name, values, target)
            self.classes = torch.full_like(self.classes, values.shape[1])

    def _require_classes(self, name: str, received: int) -> None:
        expected = int(self._before_batch.get("classes", self.classes))
        if expected not in (_UNKNOWN, received):
            known, remedy = (
                ("the number of `num_classes`", "construct the metric with that number")
                if self._given_classes
                else ("as in earlier batches", "call `reset` or use another metric")
            )
            fact = f"`{name}` must have {expected} classes, {known}, got {received}; {remedy}."
            raise fail(type(self).__name__, fact)

    def _add_batch(self, name: str, values: Tensor, target: Tensor) -> None:
        """Read the batch to its end, and only then change a state."""
        raise NotImplementedError

    def _observe(self, name: str, values: Tensor, target: Tensor) -> Outcomes:
        return observe(type(self).__name__, name, values, target, entropy=False)


class _Mean(_OfPredictions):
    """The mean of one number of each example."""

    def __init__(self, state: str, **options: Any) -> None:
        super().__init__(**options)
        self._state = state
        self._add_sum(state, 2)

    def _add_batch(self, name: str, values: Tensor, target: Tensor) -> None:
        column = self._values(self._observe(name, values, target)).double()
        self._add(self._state, torch.stack([column.sum(), torch.tensor(len(column)).double()]))

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


class _Calibration(_OfPredictions):
    """A norm of the gaps between confidence and accuracy."""

    _norm: ClassVar[Literal["mean", "max"]]

    def __init__(self, *, n_bins: int = 15, **options: Any) -> None:
        super().__init__(**options)
        self.n_bins = require_at_least_one(type(self).__name__, "n_bins", n_bins)
        self._state = f"bins_of_{n_bins}"  # the same for both norms, which torchmetrics then updates once
        self._add_sum(self._state, 3, n_bins)

    def _add_batch(self, name: str, values: Tensor, target: Tensor) -> None:
        self._add(self._state, _bin_sums(self._observe(name, values, target), self.n_bins))

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


class ClasswiseCalibrationError(_OfPredictions):
    """Mean calibration error of the classes, as `classwise_calibration_error`."""

    def __init__(self, num_classes: int, *, n_bins: int = 15, **options: Any) -> None:
        super().__init__(
            require_at_least_one("ClasswiseCalibrationError", "num_classes", num_classes), **options
        )
        self.n_bins = require_at_least_one("ClasswiseCalibrationError", "n_bins", n_bins)
        self._state = f"class_bins_of_{n_bins}"
        self._add_sum(self._state, 3, num_classes, n_bins)

    def _add_batch(self, name: str, values: Tensor, target: Tensor) -> None:
        function = "ClasswiseCalibrationError"
        bins = class_bins_of(function, name, values, target, n_bins=self.n_bins)
        self._add(self._state, torch.stack([bins.count, bins.probability, bins.hits]))

    def class_bins(self) -> ClassBins:
        """The bins of every class, of the examples of this process."""
        return ClassBins(*getattr(self, self._state).cpu())

    def compute(self) -> Tensor:
        """The mean over the classes; NaN if there were no examples."""
        return self.class_bins().errors.mean().to(self.device)


class Summary(_OfPredictions):
    """Error, top-k error, NLL, Brier score and calibration errors from one look at each batch."""

    def __init__(self, *, k: int = 5, n_bins: int = 15, **options: Any) -> None:
        super().__init__(**options)
        self.k, self.n_bins = (
            require_at_least_one("Summary", *named) for named in (("k", k), ("n_bins", n_bins))
        )
        self._means, self._bins_state = f"means_with_{k}", f"summary_bins_of_{n_bins}"
        self._add_sum(self._means, 4)
        self._add_sum(self._bins_state, 3, n_bins)

    def _add_batch(self, name: str, values: Tensor, target: Tensor) -> None:
        seen = self._observe(name, values, target)
        each = (~seen.correct).double(), (seen.rank >= self.k).double(), seen.nll, seen.brier
        self._add(self._means, torch.stack([column.sum() for column in each]))
        self._add(self._bins_state, _bin_sums(seen, self.n_bins))

    def reliability_bins(self) -> ReliabilityBins:
        """The reliability diagram of the examples of this process."""
        return _bins(getattr(self, self._bins_state))

    def compute(self) -> dict[str, Tensor]:
        """By name: error, top_k_error, nll, brier, ece, mce."""
        bins = self.reliability_bins()
        means = getattr(self, self._means) / bins.count.sum().to(self.device)
        found = dict(zip(("error", "top_k_error", "nll", "brier"), means, strict=True))
        gaps = {"ece": calibration_error(bins), "mce": calibration_error(bins, norm="max")}
        return found | {name: means.new_tensor(value) for name, value in gaps.items()}


class AURC(_OfPredictions):
    """Area under the risk-coverage curve of the confidence, as `aurc`; keeps two numbers of each example."""

    confidence: list[Tensor]
    correct: list[Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("confidence", [], dist_reduce_fx="cat")
        self.add_state("correct", [], dist_reduce_fx="cat")

    def _add_batch(self, name: str, values: Tensor, target: Tensor) -> None:
        seen = self._observe(name, values, target)
        self.confidence.append(seen.confidence.to(self.device))
        self.correct.append(seen.correct.to(self.device))

    def compute(self) -> Tensor:
        """The area over all examples."""
        value = aurc(dim_zero_cat(self.confidence), dim_zero_cat(self.correct))
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class AUROC(_Streaming):
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


def _the_same(classes: Tensor) -> Tensor:
    """The number of classes that all who saw a batch have."""
    known = classes[classes != _UNKNOWN].unique()
    if len(known) > 1:
        received = " and ".join(str(number) for number in known.tolist())
        fact = f"`preds` or `logits` must have as many classes in all processes, got {received}."
        raise fail("beliefmatch.metrics", fact)
    return classes.amax(0)


def _copy(state: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    return list(state) if isinstance(state, list) else state  # tensors are replaced, never written to


def _bin_sums(seen: Outcomes, n_bins: int) -> Tensor:
    """Number, confidence and hits of each bin, shape (3, M)."""
    columns = torch.stack([torch.ones_like(seen.confidence), seen.confidence, seen.correct.double()])
    return columns.new_zeros(3, n_bins).index_add_(1, bin_of(seen.confidence, n_bins), columns)


def _bins(sums: Tensor) -> ReliabilityBins:
    count, confidence, hits = sums.cpu()
    edges = torch.arange(len(count) + 1, dtype=torch.float64) / len(count)
    return ReliabilityBins(edges[:-1], edges[1:], count.long(), confidence / count, hits / count)
