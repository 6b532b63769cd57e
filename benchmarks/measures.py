"""Contenders for reading a belief: each measure of `Belief`, beside a softmax of the same tensor."""

import torch
from torch import Tensor

from beliefmatch import Belief, dirichlet_kl
from contender import Contender, Shape, Task

__all__ = ["TASKS"]


def softmax(logits: Tensor, other: Tensor) -> Tensor:
    return logits.softmax(-1)


def entropy(logits: Tensor, other: Tensor) -> Tensor:
    return Belief(logits).entropy()


def expected_entropy(logits: Tensor, other: Tensor) -> Tensor:
    return Belief(logits).expected_entropy()


def mutual_information(logits: Tensor, other: Tensor) -> Tensor:
    return Belief(logits).mutual_information()


def differential_entropy(logits: Tensor, other: Tensor) -> Tensor:
    return Belief(logits).differential_entropy()


def two_logits(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    logits, other = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return logits, other


TASKS = {
    "measures": Task(
        "measures of a belief",
        ((256, 1000), (1024, 32000)),
        two_logits,
        {
            "softmax": Contender(softmax),
            "entropy": Contender(entropy, "beliefmatch"),
            "expected_entropy": Contender(expected_entropy, "beliefmatch"),
            "mutual_information": Contender(mutual_information, "beliefmatch"),
            "differential_entropy": Contender(differential_entropy, "beliefmatch"),
            "dirichlet_kl": Contender(dirichlet_kl, "beliefmatch"),
        },
        backward=False,
    ),
}
