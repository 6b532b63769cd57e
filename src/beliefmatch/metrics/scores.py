"""Scores of single predictions for which higher always means more OOD."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch import dirichlet, kernels
from beliefmatch._validate import fail
from beliefmatch.kernels import LogitsReading, ProbsReading
from beliefmatch.metrics._inputs import check_rows, only_given
from beliefmatch.metrics.readings import best_of_logits, read_logits, read_probs

__all__ = ["SCORES", "Score"]

_OfRows = Callable[[str, Tensor], Tensor]
"""From the name of the caller and its probabilities or logits, which are checked, one number a row."""


@dataclass(frozen=True)
class Score:
    """A number for each prediction, from its probabilities or from its logits."""

    name: str
    meaning: str
    of_logits: _OfRows
    of_probs: _OfRows | None = None
    """None where it cannot be computed from probabilities."""

    @property
    def needs_logits(self) -> bool:
        """Whether it cannot be computed from probabilities."""
        return self.of_probs is None

    def __call__(self, *, probs: Tensor | None = None, logits: Tensor | None = None) -> Tensor:
        """The score of each row of (N, K), float64 on the CPU."""
        function = f"SCORES[{self.name!r}]"
        name, values = only_given(function, probs, logits)
        check_rows(function, name, values)
        of = self.of_logits if name == "logits" else self.of_probs
        if of is None:
            fact = "needs `logits`, because probabilities do not show how much evidence they rest on"
            raise fail(function, f"{fact}; got `probs`.", TypeError)
        return of(function, values)


def _logits(function: str, logits: Tensor) -> LogitsReading:
    return read_logits(function, logits, _any_class(logits), entropy=False)


def _probs(function: str, probs: Tensor, *, entropy: bool) -> ProbsReading:
    return read_probs(function, probs, _any_class(probs), entropy=entropy)


def _any_class(values: Tensor) -> Tensor:
    """Targets, of which scores know nothing."""
    return torch.zeros(len(values), dtype=torch.int64, device="cpu")


def _doubt_of_logits(function: str, logits: Tensor) -> Tensor:
    rest = _logits(function, logits).rest
    return rest / (1 + rest)  # 1 − max p, with its digits where that is nearly 0


def _doubt_of_probs(function: str, probs: Tensor) -> Tensor:
    return 1 - _probs(function, probs, entropy=False).top


def _entropy_of_probs(function: str, probs: Tensor) -> Tensor:
    return _probs(function, probs, entropy=True).entropy


def _measure(measure: Callable[[Tensor, int], Tensor]) -> _OfRows:
    def of_logits(function: str, logits: Tensor) -> Tensor:
        parts = []
        for _, rows in kernels.blocks(logits):
            best_of_logits(function, rows.numpy())
            parts.append(kernels.measure(measure, rows, 1).double())  # as in `Belief`
        return torch.cat(parts)

    return of_logits


def _negative_log_precision(function: str, logits: Tensor) -> Tensor:
    seen = _logits(function, logits)
    return -(seen.top + seen.rest.log1p())


SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score("entropy", "entropy of the probabilities", _measure(dirichlet.entropy), _entropy_of_probs),
        Score("confidence", "1 − largest probability", _doubt_of_logits, _doubt_of_probs),
        Score(
            "mutual_information",
            "mutual information of label and belief",
            _measure(dirichlet.mutual_information),
        ),
        Score("differential_entropy", "entropy of the density", _measure(dirichlet.differential_entropy)),
        Score("precision", "−ln α₀", _negative_log_precision),
        Score("energy", "−logsumexp of the logits", _negative_log_precision),
    )
}
"""By name. Under the reading of logits as ln α, "precision" and "energy" are the same number."""
