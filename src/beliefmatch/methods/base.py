"""The two halves of a method and what they exchange with the rest of the house."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from beliefmatch._rows import work_dtype

if TYPE_CHECKING:
    from beliefmatch.belief import Belief

__all__ = ["Calibrated", "Method", "NetworkPredictor", "Objective", "Prediction", "Predictor", "facts_of"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities (N, K), the belief they are the mean of and logits where the method has them."""

    probs: Tensor
    belief: Belief | None = None
    logits: Tensor | None = None
    """Whose softmax the probabilities are: of one network, or the log-concentrations of a belief."""


class Predictor(Protocol):
    """Anything that turns inputs into a prediction."""

    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        ...


@runtime_checkable
class Calibrated(Predictor, Protocol):
    """A predictor that has learnt more than its networks' weights hold, such as a temperature."""

    def facts(self) -> Mapping[str, Any]:
        """What it has learnt, as JSON can hold it; the method's `predictor` takes it back by these names."""
        ...


def facts_of(predictor: Predictor) -> dict[str, Any]:
    """What has to be kept beside the weights to have this predictor again; nothing for most."""
    return dict(predictor.facts()) if isinstance(predictor, Calibrated) else {}


Objective = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits, targets)``, a scalar to minimise."""


@dataclass(frozen=True)
class Method:
    """What to minimise, how to read the trained networks, and the options it was built with."""

    objective: Objective
    predictor: Callable[..., Predictor]
    """From the trained networks, one argument each, and by name what a `Calibrated` one has learnt."""
    options: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1
    """Networks to train, each from its own seed."""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    """What the network has to be built with, such as dropout."""
    schedule: Callable[[float], Objective] | None = None
    """The objective after a share of the training, for methods that change it on the way."""
    ood: Callable[[Tensor], Tensor] | None = None
    """A loss of the logits of examples that belong to no class, for methods that train on some."""
    calibrate: Callable[[Predictor, Iterable[tuple[Tensor, Tensor]]], Predictor] | None = None
    """A better predictor from validation batches of inputs and targets, for methods that need them."""
    quick: Callable[[nn.Module], Predictor] | None = None
    """A cheaper predictor of one network to watch it by while it trains, for methods that have one."""

    reads: Literal["softmax", "belief"] | None = None
    """How one network's logits are read: up to a constant, by softmax; as log-concentrations of a belief; or
    in another way, for which two predictions cannot be compared by their logits."""
    takes_counts: bool = False
    """Whether the objective takes votes (N, K) for class ids, as an example's own prior or as soft labels."""

    def watcher(self, network: nn.Module) -> Predictor:
        """What one network predicts on its own while it trains."""
        return (self.quick or self.predictor)(network)

    def objective_at(self, progress: float) -> Objective:
        """What to minimise after a share of the training."""
        return self.objective if self.schedule is None else self.schedule(progress)

    def restored(self, networks: Sequence[nn.Module], facts: Mapping[str, Any] | None = None) -> Predictor:
        """The predictor of networks that were trained before, with what `facts_of` said of it then."""
        if len(networks) != self.members:
            raise ValueError(f"restored: `networks` must be {self.members}, got {len(networks)}.")
        return self.predictor(*networks, **(facts or {}))


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
