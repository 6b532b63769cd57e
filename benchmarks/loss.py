"""Contenders for the loss: ours, torch's cross-entropy, the formula as pasted, other packages."""

import importlib
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from beliefmatch import belief_matching_loss
from contender import Contender, Shape, Task

__all__ = ["TASKS"]

SHAPES: tuple[Shape, ...] = (
    (128, 10),
    (128, 100),
    (256, 1000),
    (4096, 1000),
    (1024, 32000),
    (256, 128000),
)
VARIANT_SHAPES: tuple[Shape, ...] = ((256, 1000), (1024, 32000))
DENSE_SHAPES: tuple[Shape, ...] = ((8, 21, 128, 128),)


def kl_weight(logits: Tensor) -> float:
    """λ that asks for a confidence near 0.9 whatever the number of classes."""
    return 0.1 / logits.shape[1]


def ours(logits: Tensor, targets: Tensor) -> Tensor:
    return belief_matching_loss(logits, targets, kl_weight=kl_weight(logits))


def pasted_formula(logits: Tensor, targets: Tensor) -> Tensor:
    """The paper's formula as usually pasted, in the logits' own type."""
    alpha = logits.exp()
    total = alpha.sum(-1, keepdim=True)
    mean_log = torch.digamma(alpha) - torch.digamma(total)
    divergence = (
        torch.lgamma(total).squeeze(-1)
        - torch.lgamma(alpha).sum(-1)
        - torch.lgamma(torch.tensor(float(logits.shape[-1])))
        + ((alpha - 1) * mean_log).sum(-1)
    )
    return (kl_weight(logits) * divergence - mean_log.gather(-1, targets[:, None]).squeeze(-1)).mean()


def dec_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Evidential classification of torch-uncertainty; α = 1 + relu(logits), expected cross-entropy."""
    return _dec_loss(kl_weight(logits))(logits, targets)


@cache
def _dec_loss(reg_weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    losses = importlib.import_module("torch_uncertainty.losses")
    return losses.DECLoss(reg_weight=reg_weight, loss_type="digamma")


def edl_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Evidential classification of edl-pytorch; α = 1 + softplus(logits) as in its layer."""
    return _edl_loss()(F.softplus(logits) + 1, targets, lamb=kl_weight(logits))


@cache
def _edl_loss() -> Callable[..., Tensor]:
    return importlib.import_module("edl_pytorch").evidential_classification


def ours_with_prior(logits: Tensor, targets: Tensor, prior: Tensor) -> Tensor:
    return belief_matching_loss(logits, targets, kl_weight=kl_weight(logits), prior=prior)


def cross_entropy_without_prior(logits: Tensor, targets: Tensor, prior: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def ours_each(logits: Tensor, targets: Tensor) -> Tensor:
    return belief_matching_loss(logits, targets, kl_weight=kl_weight(logits), reduction="none").sum()


def cross_entropy_each(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none").sum()


def with_ids(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    rows, classes, *positions = shape
    logits = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    return logits, torch.randint(classes, (rows, *positions), generator=generator)


def with_soft_labels(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    logits, _ = with_ids(shape, dtype, generator)
    return logits, torch.randn(shape, generator=generator).softmax(1).to(dtype)


def with_prior(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (*with_ids(shape, dtype, generator), 0.5 + torch.rand(shape[1], generator=generator))


PLAIN = {"cross_entropy": Contender(F.cross_entropy), "beliefmatch": Contender(ours, "beliefmatch")}

TASKS = {
    "ids": Task(
        "class ids, forward and backward",
        SHAPES,
        with_ids,
        {
            **PLAIN,
            "formula as pasted": Contender(pasted_formula),
            "torch-uncertainty": Contender(dec_loss, "torch-uncertainty"),
            "edl-pytorch": Contender(edl_loss, "edl-pytorch"),
        },
    ),
    "soft": Task("soft labels, forward and backward", VARIANT_SHAPES, with_soft_labels, PLAIN),
    "prior": Task(
        "class ids and a prior for each class, forward and backward",
        VARIANT_SHAPES,
        with_prior,
        {
            "cross_entropy": Contender(cross_entropy_without_prior),
            "beliefmatch": Contender(ours_with_prior, "beliefmatch"),
        },
    ),
    "none": Task(
        'class ids, reduction="none", forward and backward of the sum',
        VARIANT_SHAPES,
        with_ids,
        {
            "cross_entropy": Contender(cross_entropy_each),
            "beliefmatch": Contender(ours_each, "beliefmatch"),
        },
    ),
    "dense": Task("class ids, classes in dimension 1, forward and backward", DENSE_SHAPES, with_ids, PLAIN),
    "forward": Task(
        "class ids, forward only",
        VARIANT_SHAPES,
        with_ids,
        {**PLAIN, "formula as pasted": Contender(pasted_formula)},
        backward=False,
    ),
}

# Compiled code brings a thread pool of its own, and two pools that wait for work hold each other up: these
# tasks run after all others, and among themselves.
COMPILED_TASKS = {
    "compiled": Task(
        "class ids, compiled, forward and backward",
        SHAPES,
        with_ids,
        {
            "cross_entropy compiled": Contender(F.cross_entropy, compiled=True),
            "beliefmatch compiled": Contender(ours, "beliefmatch", compiled=True),
        },
    ),
}
