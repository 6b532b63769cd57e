"""The mean of several softmax predictions, of dropout masks or of networks, and how far they disagree."""

import math

import torch
from torch import Tensor

from beliefmatch import dirichlet
from beliefmatch._rows import work_dtype
from beliefmatch.methods.base import Entropies, Prediction

__all__ = ["disagreement", "mean_softmax"]

_BLOCK = 1 << 22  # values in double precision at a time, 32 MB


def mean_softmax(logits: Tensor) -> Prediction:
    r"""The mean over members of the softmax of their logits, with its entropies.

    With probabilities :math:`p_s` of the S members and their mean m, the entropy of m is the sum of

    .. math:: \frac{1}{S} \sum_s H(p_s) \quad\text{and}\quad \frac{1}{S} \sum_s \mathrm{KL}(p_s \,\|\, m),

    the expected entropy and the mutual information. The second is computed from terms that are not negative,
    so that it keeps its digits where members almost agree.

    Args:
        logits: shape (S, N, K), of any floating type; read in double precision where the device has it.

    Example:
        >>> import torch
        >>> from beliefmatch.methods.mixture import mean_softmax
        >>> sure_of_each = torch.tensor([[[40.0, 0.0]], [[0.0, 40.0]]])
        >>> round(mean_softmax(sure_of_each).mutual_information().item(), 6)  # ln 2
        0.693147
    """
    rows_at_once = max(1, _BLOCK // max(1, len(logits) * logits.shape[-1]))
    parts = [_block(rows) for rows in logits.split(rows_at_once, dim=1)]
    probs, expected, information = (torch.cat(part) for part in zip(*parts, strict=True))
    return Prediction(probs=probs, entropies=Entropies(expected, information))


def disagreement(logits: Tensor) -> Tensor:
    """Mutual information of label and member for logits (S, N, K) of S members, in nats, (N,)."""
    found = mean_softmax(logits).mutual_information()
    assert found is not None
    return found


def _block(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, expected entropy and mutual information of some rows."""
    logits = logits.to(work_dtype(logits.device))
    log_probs = logits.log_softmax(-1)
    log_mean = log_probs.logsumexp(0) - math.log(len(logits))
    mean = log_mean.exp()
    terms = dirichlet.categorical_kl_terms(mean, log_probs.exp(), log_probs - log_mean)
    expected = dirichlet.entropy(logits).mean(0)
    return mean, expected, terms.sum(-1).mean(0)
