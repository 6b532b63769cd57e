"""How far one Dirichlet is from another."""

import torch
from torch import Tensor

from beliefmatch import kernels
from beliefmatch._validate import fail, require_floating, require_index

__all__ = ["dirichlet_kl"]


def dirichlet_kl(p_logits: Tensor, q_logits: Tensor, *, dim: int = -1) -> Tensor:
    r"""KL(Dir(e^p) ‖ Dir(e^q)) ≥ 0 of each row, zero where the two agree.

    .. math:: γ_0\,\mathrm{KL}_{cat}(γ/γ_0 \,\|\, α/α_0) + \sum_k E(γ_k, α_k) - E(γ_0, α_0)

    with α = e^p, γ = e^q and E(γ, α) = B(γ) − B(α) − (γ − α)B′(α), B(α) = lnΓ(α) − α ln α + α: the
    Bregman form of the divergence, its large part put as a divergence between the means. Differentiable
    in both arguments with closed-form gradients that keep their digits as the two approach each other.

    Args:
        p_logits: log-concentrations of the first Dirichlet.
        q_logits: log-concentrations of the second; the shapes broadcast.
        dim: the class dimension.

    Example:
        >>> import torch
        >>> from beliefmatch import dirichlet_kl
        >>> uniform, sharp = torch.zeros(3), torch.tensor([3.0, 0.0, 0.0])
        >>> round(dirichlet_kl(sharp, uniform).item(), 4)
        3.5001
    """
    name = "dirichlet_kl"
    require_floating(name, "p_logits", p_logits)
    require_floating(name, "q_logits", q_logits)
    if p_logits.device != q_logits.device:
        received = f"{p_logits.device} and {q_logits.device}"
        raise fail(name, f"`p_logits` and `q_logits` must be on one device, got {received}.")
    dim = require_index(name, "dim", dim)
    return kernels.divergence(*_broadcast_along_classes(name, p_logits, q_logits, dim))


def _broadcast_along_classes(
    name: str, p_logits: Tensor, q_logits: Tensor, dim: int
) -> tuple[Tensor, Tensor, int]:
    """Both in their common shape, and the class dimension counted from its front."""
    dims = max(p_logits.dim(), q_logits.dim())
    from_back = dim - dims if dim >= 0 else dim
    try:
        fits = from_back < 0 and p_logits.shape[from_back] == q_logits.shape[from_back] > 0
        if fits:
            return *torch.broadcast_tensors(p_logits, q_logits), dims + from_back
    except (RuntimeError, IndexError):
        pass
    received = f"{tuple(p_logits.shape)} and {tuple(q_logits.shape)} with dim={dim}"
    expected = "agree along the class dimension and broadcast elsewhere"
    raise fail(name, f"shapes of `p_logits` and `q_logits` must {expected}, got {received}.")
