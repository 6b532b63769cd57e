"""Scores of single predictions for which higher always means more foreign."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch import dirichlet, kernels
from beliefmatch.checks import fail
from beliefmatch.metrics._inputs import check_logits, check_probs, check_rows, the_given
from beliefmatch.metrics.outcomes import chunks, split_top
from beliefmatch.rows import result_dtype

__all__ = ["SCORES", "Score"]


@dataclass(frozen=True)
class Score:
    """A number for each prediction, from its probabilities or from its logits."""

    name: str
    meaning: str
    of_logits: Callable[[Tensor], Tensor]
    of_probs: Callable[[Tensor], Tensor] | None = None
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
        parts = []
        for _, rows in chunks(values):
            if name == "logits":
                check_logits(function, rows)
            else:
                check_probs(function, rows, rows.sum(1).double())
            parts.append(of(rows).to("cpu", torch.float64))
        return torch.cat(parts)


def _doubt_of_logits(logits: Tensor) -> Tensor:
    rest = split_top(logits)[1].sum(1).double()
    return rest / (1 + rest)  # 1 − max p, with its digits where that is nearly 0


def _doubt_of_probs(probs: Tensor) -> Tensor:
    return 1 - probs.amax(1).double()


def _entropy_of_probs(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(1)


def _measure(function: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda logits: kernels.measure(function, logits.to(result_dtype(logits.dtype)), 1)


def _negative_log_precision(logits: Tensor) -> Tensor:
    return -logits.logsumexp(1)


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
