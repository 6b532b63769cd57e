"""Belief Matching for PyTorch: classifiers that know what they do not know.

    loss = beliefmatch.BeliefMatchingLoss()(logits, targets)     # in place of CrossEntropyLoss
    belief = beliefmatch.Belief(logits)                          # probabilities, and doubt about them
    better = beliefmatch.adapt(model, data, validation=unseen)   # a trained network gets its doubt back

Names are loaded on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beliefmatch.adapting import adapt
    from beliefmatch.belief import Belief, dirichlet_kl
    from beliefmatch.loss import BeliefMatchingLoss, belief_matching_loss

__all__ = ["Belief", "BeliefMatchingLoss", "__version__", "adapt", "belief_matching_loss", "dirichlet_kl"]

_MODULES = {
    "Belief": "belief",
    "BeliefMatchingLoss": "loss",
    "adapt": "adapting",
    "belief_matching_loss": "loss",
    "dirichlet_kl": "belief",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("beliefmatch")
    if name not in _MODULES:
        raise AttributeError(f"module 'beliefmatch' has no attribute {name!r}")
    return getattr(import_module(f"beliefmatch.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
