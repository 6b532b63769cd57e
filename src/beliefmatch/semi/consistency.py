"""The settings of a consistency loss, made into what a training loop can call."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from beliefmatch.semi.adversarial import vat
from beliefmatch.semi.settings import SemiSettings
from beliefmatch.semi.stochastic import pi_model

__all__ = ["Consistency", "consistency_of"]


@dataclass(frozen=True)
class Consistency:
    """A consistency loss of unlabelled examples with a weight that grows.

    Example:
        >>> import torch
        >>> from beliefmatch.semi import SemiSettings, consistency_of
        >>> consistency = consistency_of(SemiSettings("vat", epsilon=1.0), has_belief=True)
        >>> network, images = torch.nn.Linear(5, 3), torch.randn(8, 5)
        >>> bool(consistency(network, images, seed=1, progress=0.5) > 0)
        True
    """

    settings: SemiSettings
    has_belief: bool

    def __call__(
        self, model: nn.Module, inputs: Tensor, seed: int, progress: float, others: Tensor | None = None
    ) -> Tensor:
        """The loss times its weight after a share of the training; no pass is made where that is zero.

        Args:
            model: in the mode it is trained in.
            inputs: unlabelled examples.
            seed: of all chance; another one for each step and process.
            progress: the share of the training that is done.
            others: of "pi", the same examples augmented another time.
        """
        weight = self.settings.weight_at(progress)
        if weight == 0:
            return torch.zeros((), device=inputs.device)
        return weight * self.loss(model, inputs, seed, others)

    def loss(self, model: nn.Module, inputs: Tensor, seed: int, others: Tensor | None = None) -> Tensor:
        """The loss without its weight, a mean over the examples."""
        settings, generator = self.settings, torch.Generator().manual_seed(seed)
        divergence = settings.divergence_for(has_belief=self.has_belief)
        if settings.kind == "pi":
            return pi_model(
                model,
                inputs,
                others,
                divergence=divergence,
                order=settings.order,
                target=settings.target,
                generator=generator,
            )
        return vat(
            model,
            inputs,
            divergence=divergence,
            epsilon=settings.epsilon,
            xi=settings.xi,
            iterations=settings.iterations,
            order=settings.order,
            direction=settings.direction_for(has_belief=self.has_belief),
            generator=generator,
        )


def consistency_of(settings: SemiSettings, *, has_belief: bool) -> Consistency:
    """The consistency loss of some settings.

    Args:
        settings: of the loss and its weight.
        has_belief: whether the network's logits are log-concentrations, as in belief matching, rather than
            known up to a constant, as in softmax. Decides what the divergence "auto" is.
    """
    return Consistency(settings, has_belief)
