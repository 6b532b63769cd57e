"""Quantiles of the Beta distribution, the marginal of a Dirichlet."""

import torch
from torch import Tensor

from beliefmatch.extras import needs

__all__ = ["beta_quantile"]

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
