"""The two halves of a method and what they exchange with the rest of the house."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

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
    """What to minimise, how to read the trained networks, and the options it was built with."""

    objective: Objective
    predictor: Callable[..., Predictor]
    """From the trained networks, one argument each."""
    options: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1
    """Networks to train, each from its own seed."""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    """What the network has to be built with, such as dropout."""
    schedule: Callable[[float], Objective] | None = None
    """The objective after a share of the training, for methods that change it on the way."""
    foreign: Callable[[Tensor], Tensor] | None = None
    """A loss of the logits of examples that belong to no class, for methods that train on some."""
    calibrate: Callable[[Predictor, Tensor, Tensor], Predictor] | None = None
    """A better predictor from validation inputs and their targets, for methods that need them."""

    def objective_at(self, progress: float) -> Objective:
        """What to minimise after a share of the training."""
        return self.objective if self.schedule is None else self.schedule(progress)


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
