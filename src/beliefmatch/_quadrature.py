"""Quantiles of the Beta marginals of a Dirichlet, and the probability of being the best class."""

import math

import torch
from torch import Tensor

from beliefmatch import _special as special
from beliefmatch._environment import needs
from beliefmatch._rows import work_dtype

__all__ = ["beta_quantile", "prob_of_being_best"]

NORMAL_FROM = 1e12
"""Where both parameters exceed this, the normal approximation is right to a millionth of the width."""


def beta_quantile(a: Tensor, b: Tensor, level: float, *, caller: str = "Belief.credible_interval") -> Tensor:
    """The `level` quantile of Beta(a, b), elementwise, in double precision on the CPU."""
    with needs("scipy", extra="stats", caller=caller):
        from scipy import special
    a, b = (x.clamp(1e-300, 1e300) for x in (a, b))
    large = torch.minimum(a, b) > NORMAL_FROM
    small_a, small_b = (torch.where(large, 1.0, x).cpu().numpy() for x in (a, b))
    exact = torch.from_numpy(special.betaincinv(small_a, small_b, level)).to(a.device)
    mean = 1 / (1 + b / a)
    deviation = (mean / (1 + a / b) / (1 + a + b)).sqrt()
    normal = mean + deviation * torch.special.ndtri(torch.full_like(a, level))
    return torch.where(large, normal, exact).clamp(0.0, 1.0)


NODES = 160
TAIL = 40.0
"""Both tails are cut where they weigh e^−40."""
LARGEST = math.log(1e12)
CHUNK = 4_000_000
"""Numbers held at once, 32 MB a buffer in double precision."""


def prob_of_being_best(log_alpha: Tensor) -> Tensor:
    """P(p_k = max p) of every class, for classes in the last dimension, in the working type."""
    rows = log_alpha.detach().to(work_dtype(log_alpha.device)).reshape(-1, log_alpha.shape[-1])
    step = max(1, CHUNK // (NODES * rows.shape[-1]))
    parts = [_integrate(_tame(part)) for part in rows.split(step)] or [rows]
    return torch.cat(parts).view_as(log_alpha)


def _tame(z: Tensor) -> Tensor:
    """Concentrations beyond 1e12 replaced by 1e12 at the same number of standard deviations apart.

    There ln Gamma(α) is normal with mean ln α and variance 1/α to a part in a million.
    """
    top = z.amax(-1, keepdim=True)
    spread = (0.5 * (top - LARGEST).clamp(0.0, 300.0)).exp()
    tamed = LARGEST + (z - top) * spread
    # Below e^−300 only the ratios count, and they are kept.
    raised = z + (-300.0 - top).clamp(min=0.0)
    return torch.where(top > LARGEST, tamed, raised).clamp(min=-600.0)


def _integrate(z: Tensor) -> Tensor:
    alpha = z.exp()
    nodes, weights = _nodes(z, alpha)
    y = nodes.unsqueeze(-1)
    log_cdf = torch.special.gammainc(alpha.unsqueeze(1).expand(-1, NODES, -1), y.exp()).log()
    log_density = _log_density(y, z.unsqueeze(1))
    all_below = log_cdf.sum(-1, keepdim=True)
    others = torch.where(all_below > -700, log_density - log_cdf + all_below, -torch.inf)
    mass = (others.exp() * weights.unsqueeze(-1)).sum(1)
    return mass / mass.sum(-1, keepdim=True)


def _log_density(y: Tensor, z: Tensor) -> Tensor:
    """ln of the density of y = ln Gamma(α): αy − e^y − lnΓ(α), without the cancellation at large α."""
    t = y - z
    return -(z.exp() * (t.expm1() - t) + special.lgamma_stirling(z))


def _nodes(z: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes y and weights |dy/dv| of each row, from below every notable value to above it."""
    largest = alpha.amax(-1)
    # Sub-gamma tails: X ≤ α + √(2αt) + t and X ≥ α − √(2αt) but for a probability e^−t.
    upper = (largest + (2 * largest * TAIL).sqrt() + TAIL + math.log(z.shape[-1])).log()
    near = (largest - (2 * largest * TAIL).sqrt()).clamp(min=1e-300).log()
    far = (torch.lgamma(1 + alpha).sum(-1) - TAIL) / alpha.sum(-1)
    lower = torch.maximum(near, far.clamp(max=-1.0))
    reach = (upper - lower).log1p()
    v = torch.linspace(0, 1, NODES, dtype=z.dtype, device=z.device) * reach.unsqueeze(-1)
    return upper.unsqueeze(-1) - v.expm1(), v.exp()
