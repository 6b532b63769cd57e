"""The interface of a method: an objective to train with, and a predictor that reads trained networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from beliefmatch._errors import fail
from beliefmatch._rows import work_dtype

if TYPE_CHECKING:
    from beliefmatch.belief import Belief

__all__ = [
    "Calibrated",
    "Entropies",
    "Method",
    "NetworkPredictor",
    "Objective",
    "Prediction",
    "Predictor",
    "facts_of",
]


class Entropies(NamedTuple):
    """The two parts of the entropy of a mean prediction, (N,) each, in nats; their sum is that entropy."""

    expected_entropy: Tensor
    """Mean entropy of the members: the uncertainty about the label that each of them has."""
    mutual_information: Tensor
    """Mutual information of label and member: how far the members disagree."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities (N, K), and the belief and logits that they come from, if any."""

    probs: Tensor
    belief: Belief | None = None
    logits: Tensor | None = None
    """Logits of one network whose softmax the probabilities are, or the log-concentrations of a belief."""
    entropies: Entropies | None = None
    """Where the probabilities are the mean over dropout masks or over networks without a belief."""

    def mutual_information(self) -> Tensor | None:
        """Mutual information in nats, (N,): of the belief, else of masks or members; None for one softmax."""
        if self.belief is not None:
            return self.belief.mutual_information()
        return None if self.entropies is None else self.entropies.mutual_information

    def expected_entropy(self) -> Tensor | None:
        """Expected entropy in nats, (N,): under the belief, else over masks or members; None as above."""
        if self.belief is not None:
            return self.belief.expected_entropy()
        return None if self.entropies is None else self.entropies.expected_entropy


class Predictor(Protocol):
    """Predicts the classes of a batch of inputs."""

    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        ...


@runtime_checkable
class Calibrated(Predictor, Protocol):
    """A predictor that has fitted more than the weights of its networks, such as a temperature."""

    def facts(self) -> Mapping[str, Any]:
        """Fitted values, as JSON values; the method's `predictor` accepts them as keyword arguments."""
        ...


def facts_of(predictor: Predictor) -> dict[str, Any]:
    """What must be stored with the weights to restore this predictor; empty for most methods."""
    return dict(predictor.facts()) if isinstance(predictor, Calibrated) else {}


Objective = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits, targets)``, a mean over the batch."""


@dataclass(frozen=True)
class Method:
    """An objective, a predictor of trained networks, and the options that the method was built with."""

    objective: Objective
    predictor: Callable[..., Predictor]
    """Called with the trained networks, and by keyword with the fitted values of a `Calibrated` predictor."""
    options: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1
    """Number of networks to train, each from its own seed."""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    """Options that the network must be built with, such as dropout."""
    schedule: Callable[[float], Objective] | None = None
    """The objective at a fraction of the training, for methods whose objective changes."""
    ood: Callable[[Tensor], Tensor] | None = None
    """A loss of the logits of OOD examples, for methods that train on them."""
    calibrate: Callable[[Predictor, Iterable[tuple[Tensor, Tensor]]], Predictor] | None = None
    """Returns a calibrated predictor from validation batches of inputs and targets."""
    fast_predictor: Callable[[nn.Module], Predictor] | None = None
    """A cheaper predictor of one network for validation during training, for methods that have one."""

    reads: Literal["softmax", "belief"] | None = None
    """How the logits of one network are read: by softmax, or as log-concentrations of a belief. None if two
    predictions cannot be compared by their logits."""
    takes_counts: bool = False
    """Whether the objective also accepts votes (N, K) in place of class ids."""

    def validation_predictor(self, network: nn.Module) -> Predictor:
        """The predictor of one network for validation during training."""
        return (self.fast_predictor or self.predictor)(network)

    def objective_at(self, progress: float) -> Objective:
        """The objective at a fraction of the training."""
        return self.objective if self.schedule is None else self.schedule(progress)

    def restored(self, networks: Sequence[nn.Module], facts: Mapping[str, Any] | None = None) -> Predictor:
        """The predictor of networks that were trained before, with the stored result of `facts_of`."""
        if len(networks) != self.members:
            raise fail("restored", f"`networks` must be {self.members}, got {len(networks)}.")
        return self.predictor(*networks, **(facts or {}))


@dataclass(frozen=True)
class NetworkPredictor:
    """A predictor of one network, whose logits a function turns into a prediction.

    Logits are read in double precision where the device has it, so that the logarithm of a small probability
    stays finite. The network is left in eval mode.
    """

    network: nn.Module
    read: Callable[[Tensor], Prediction]

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        logits = self.network.eval()(x)
        return self.read(logits.to(work_dtype(logits.device)))
