"""Scores of single predictions for which higher always means more foreign."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch import dirichlet, kernels
from beliefmatch.checks import fail
from beliefmatch.metrics._inputs import check_rows, the_given
from beliefmatch.metrics.outcomes import (
    Array,
    below_top,
    best_of_logits,
    best_of_probs,
    chunks,
    entropy_of_probs,
    row_sums,
)

__all__ = ["SCORES", "Score"]


class _Rows(NamedTuple):
    """Some rows of probabilities or logits, the best class and its value, and memory to work in."""

    values: Array
    best: Array
    top: Array
    scratch: Array


@dataclass(frozen=True)
class Score:
    """A number for each prediction, from its probabilities or from its logits."""

    name: str
    meaning: str
    of_logits: Callable[[_Rows], Array]
    of_probs: Callable[[_Rows], Array] | None = None
    """None where probabilities do not tell it."""

    @property
    def needs_logits(self) -> bool:
        """Whether probabilities will not do."""
        return self.of_probs is None

    def __call__(self, *, probs: Tensor | None = None, logits: Tensor | None = None) -> Tensor:
        """The score of each row of (N, K), float64 on the CPU."""
        function = f"SCORES[{self.name!r}]"
        name, values = the_given(function, probs, logits)
        check_rows(function, name, values)
        of = self.of_logits if name == "logits" else self.of_probs
        if of is None:
            fact = "needs `logits`, because probabilities do not tell how much evidence they rest on"
            raise fail(function, f"{fact}; got `probs`.", TypeError)
        check = best_of_logits if name == "logits" else best_of_probs
        parts = []
        for _, rows, scratch in chunks(values):
            best, top = check(function, rows)
            parts.append(of(_Rows(rows, best, top, scratch)))
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))


def _doubt_of_logits(rows: _Rows) -> Array:
    others = np.exp(below_top(rows.values, rows.top, rows.scratch), out=rows.scratch[0])
    np.put_along_axis(others, rows.best, 0, 1)
    rest = row_sums(others).astype(np.float64)
    return rest / (1 + rest)  # 1 − max p, with its digits where that is nearly 0


def _doubt_of_probs(rows: _Rows) -> Array:
    return 1 - rows.top[:, 0].astype(np.float64)


def _entropy_of_probs(rows: _Rows) -> Array:
    return entropy_of_probs(rows.values, rows.scratch)


def _measure(function: Callable[[Tensor, int], Tensor]) -> Callable[[_Rows], Array]:
    return lambda rows: kernels.measure(function, torch.from_numpy(rows.values), 1).numpy()  # as in `Belief`


def _negative_log_precision(rows: _Rows) -> Array:
    others = np.exp(below_top(rows.values, rows.top, rows.scratch), out=rows.scratch[0])
    return -(rows.top[:, 0] + np.log(row_sums(others)))


SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score("entropy", "entropy of the probabilities", _measure(dirichlet.entropy), _entropy_of_probs),
        Score("confidence", "1 − largest probability", _doubt_of_logits, _doubt_of_probs),
        Score("spread", "mutual information of label and belief", _measure(dirichlet.mutual_information)),
        Score("differential_entropy", "entropy of the density", _measure(dirichlet.differential_entropy)),
        Score("precision", "−ln α₀", _negative_log_precision),
        Score("energy", "−logsumexp of the logits", _negative_log_precision),
    )
}
"""By name. Under the reading of logits as ln α, "precision" and "energy" are the same number."""
