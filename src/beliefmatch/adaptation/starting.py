"""The first weights of heads."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.checks import describe, fail
from beliefmatch.seeds import mixed

__all__ = ["Start", "first_weights", "require_start"]

Start = tuple[Tensor, Tensor]
"""Weight (K, F) and bias (K,) of a head that is there already."""

_FRESH = 5  # what a seed is for


def require_start(function: str, start: Start) -> Start:
    """Weight and bias of one head, in float32."""
    weight, bias = start
    if weight.dim() != 2 or bias.shape != weight.shape[:1]:
        got = f"{describe(weight)} and {describe(bias)}"
        raise fail(function, f"`start` must be a weight (K, F) and a bias (K,), got {got}.")
    if not bool(weight.isfinite().all() and bias.isfinite().all()):
        raise fail(function, "`start` must be finite, got weights that are not.")
    return weight.detach().cpu().float(), bias.detach().cpu().float()


def first_weights(candidates: Sequence[Candidate], start: Start | None, classes: int, width: int) -> Start:
    """Stacks (H, K, F) and (H, K): the same start for all, or what each seed draws.

    Drawn as `torch.nn.Linear` does: evenly between ±1/√F.
    """
    many = len(candidates)
    if start is not None:
        weight, bias = start
        return weight.expand(many, -1, -1).clone(), bias.expand(many, -1).clone()
    stacks = torch.empty(many, classes, width), torch.empty(many, classes)
    for place, candidate in enumerate(candidates):
        generator = torch.Generator().manual_seed(mixed(candidate.seed, _FRESH))
        for stack in stacks:
            stack[place].uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=generator)
    return stacks
