"""The first weights of heads."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from beliefmatch._utils import derive_seed
from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.reading import labelled
from beliefmatch.adaptation.types import Features
from beliefmatch.loss import belief_matching_loss

__all__ = ["Init", "initial_weights", "require_init"]

Init = tuple[Tensor, Tensor]
"""Weight (K, F) and bias (K,) of a head that is there already."""

_FRESH = 5  # what a seed is for
_SOME, _LOGITS = 2000, 8_000_000  # rows that scale and shift are fitted on, and their logits, at most


def require_init(function: str, init: Init) -> Init:
    """Weight and bias of one head, in float32."""
    weight, bias = init
    if weight.dim() != 2 or bias.shape != weight.shape[:1]:
        got = f"{describe(weight)} and {describe(bias)}"
        raise fail(function, f"`init` must be a weight (K, F) and a bias (K,), got {got}.")
    if not bool(weight.isfinite().all() and bias.isfinite().all()):
        raise fail(function, "`init` must be finite, got weights that are not.")
    return weight.detach().cpu().float(), bias.detach().cpu().float()


def initial_weights(
    candidates: Sequence[Candidate],
    init: Init | None,
    classes: int,
    width: int,
    features: Features | None = None,
) -> Init:
    """Stacks (H, K, F) and (H, K): the given weights, or what each seed draws as `torch.nn.Linear` does.

    The logits z of an existing head are known up to a constant, and a belief is not: heads of belief matching
    start from s·z + c, with the two numbers of the lowest loss on some of the `features`. They predict the
    same classes. Without that, concentrations of e^20 next to e^−10 keep a head in place for many epochs.
    """
    many = len(candidates)
    if init is not None:
        weight, bias = (one.expand(many, *one.shape).clone() for one in init)
        fitting = [place for place, one in enumerate(candidates) if one.kind == "belief_matching"]
        if features is not None and fitting:
            rows, targets = _some(features, classes)
            logits = rows @ init[0].t() + init[1]
            for place in fitting:
                scale, shift = _rescaled(logits, targets, candidates[place])
                weight[place] *= scale
                bias[place] = bias[place] * scale + shift
        return weight, bias
    stacks = torch.empty(many, classes, width), torch.empty(many, classes)
    for place, candidate in enumerate(candidates):
        generator = torch.Generator().manual_seed(derive_seed(candidate.seed, _FRESH))
        for stack in stacks:
            stack[place].uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=generator)
    return stacks


def _some(features: Features, classes: int) -> tuple[Tensor, Tensor]:
    places, most = labelled(features), max(1, min(_SOME, _LOGITS // classes))
    places = places[:: -(-len(places) // most)]
    return torch.from_numpy(np.array(features.rows[places.numpy()], np.float32)), features.targets[places]


def _rescaled(logits: Tensor, targets: Tensor, candidate: Candidate) -> tuple[float, float]:
    """Scale and shift of the logits with the lowest belief matching loss; the scale is positive."""
    both = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # ln s, c
    beta = candidate.prior
    prior = torch.tensor(beta) if isinstance(beta, tuple) else beta
    mean, std = logits.mean().item(), max(logits.std().item(), 1e-6)
    evened = (logits.double() - mean) / std  # from here the steps are short, whatever the head's confidence
    optimizer = torch.optim.LBFGS([both], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        scaled = both[0].clamp(-5, 5).exp() * evened + both[1]
        value = belief_matching_loss(scaled, targets, kl_weight=candidate.kl_weight, prior=prior)
        value.backward()
        return value

    optimizer.step(loss)
    scale = both[0].clamp(-5, 5).exp().item() / std
    return scale, both[1].item() - scale * mean
