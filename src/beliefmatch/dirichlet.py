r"""What a Dirichlet knows, as functions of its log-concentrations z = ln α.

Each takes tensors with the classes along `dim` and is a plain differentiable expression in the functions
of `special`. Results of one number a row drop `dim`.
"""

import torch
from torch import Tensor

from beliefmatch import special
from beliefmatch.rows import Rows, split

__all__ = ["expected_surprisal"]


def expected_surprisal(logits: Tensor, dim: int = -1) -> Tensor:
    """−E[ln p_k] = ψ(α₀) − ψ(α_k) ≥ 0 of every class, in the compute type (saturating)."""
    rows = split(logits, dim)
    log_total = rows.log_total.to(rows.z.dtype)
    bounded = special.digamma_next(log_total) - special.digamma_next(rows.z)
    each = bounded + special.exp_saturating(-rows.z) * (1 - rows.share)
    top = special.digamma_next(rows.log_total) - special.digamma_next(rows.top)
    pole = special.exp_saturating(-rows.top) * rows.rest_share
    return rows.with_top(special.saturate(each), top + pole)
