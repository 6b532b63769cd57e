"""Base classes of streaming metrics: a batch is added as a whole, or refused without a trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._validate import fail
from beliefmatch.metrics._inputs import check_rows, only_given
from beliefmatch.metrics.outcomes import Outcomes, observe

with needs("torchmetrics", extra="metrics", caller="beliefmatch.metrics.streaming"):
    from torchmetrics import Metric

__all__ = ["OfPredictions", "Streaming"]

_UNKNOWN = 0  # classes before the first batch


class Streaming(Metric):
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
        """Do not count a batch that was refused; errors name the arguments of `update`."""
        try:
            yield
        except BaseException as error:
            self._update_count -= 1
            if type(error) not in (ValueError, TypeError):
                raise
            text = f"{error}".replace("`probs`", "`preds`").replace("`targets`", "`target`")
            raise type(error)(text) from error

    def _add_sum(self, name: str, *size: int) -> None:
        self.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")

    def _add(self, name: str, value: Tensor) -> None:
        state: Tensor = getattr(self, name)
        setattr(self, name, state + value.to(state.device))


class OfPredictions(Streaming):
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
            name, values = only_given(function, preds, logits)
            if target is None:
                raise fail(function, "`target` must be given, got None.", TypeError)
            check_rows(function, name, values)
            self._require_classes(name, values.shape[1])
            self._add_batch(target, preds, logits)
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

    def _add_batch(self, targets: Tensor, probs: Tensor | None, logits: Tensor | None) -> None:
        """Read the batch to its end, and only then change a state."""
        raise NotImplementedError

    def _observe(self, targets: Tensor, probs: Tensor | None, logits: Tensor | None) -> Outcomes:
        return observe(type(self).__name__, targets, probs=probs, logits=logits, entropy=False)


def _the_same(classes: Tensor) -> Tensor:
    """The number of classes that all who saw a batch have."""
    known = classes[classes != _UNKNOWN].unique()
    if len(known) > 1:
        received = " and ".join(str(number) for number in known.tolist())
        fact = f"`probs` or `logits` must have as many classes in all processes, got {received}."
        raise fail("beliefmatch.metrics", fact)
    return classes.amax(0)


def _copy(state: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    return list(state) if isinstance(state, list) else state  # tensors are replaced, never written to
