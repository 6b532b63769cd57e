"""The two halves of a method and what they exchange with the rest of the house."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from beliefmatch.rows import work_dtype

if TYPE_CHECKING:
    from beliefmatch.belief import Belief

__all__ = ["Method", "NetworkPredictor", "Objective", "Prediction", "Predictor"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities (N, K), and the belief they are the mean of where the method has one."""

    probs: Tensor
    belief: Belief | None = None


class Predictor(Protocol):
    """Anything that turns inputs into a prediction."""

    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        ...


Objective = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits, targets)``, a scalar to minimise."""


@dataclass(frozen=True)
class Method:
    """What to minimise, how to read the trained network, and the options it was built with."""

    objective: Objective
    predictor: Callable[[nn.Module], Predictor]
    options: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkPredictor:
    """One network whose logits are read by one function.

    They are read in double precision where the device has it, so that the logarithm of a small
    probability stays finite. Leaves the network in eval mode.
    """

    network: nn.Module
    read: Callable[[Tensor], Prediction]

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        logits = self.network.eval()(x)
        return self.read(logits.to(work_dtype(logits.device)))
