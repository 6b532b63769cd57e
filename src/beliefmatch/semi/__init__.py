"""Learning from unlabelled examples: consistency under perturbation, and a teacher's belief as the prior.

    loss += weight * beliefmatch.semi.vat(network, unlabelled)   # or pi_model
    prior = beliefmatch.semi.teacher_prior(teacher(unlabelled))  # for belief_matching_loss(prior=...)

Names are loaded on first use, so that the configuration can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beliefmatch.semi.config import SemiConfig
    from beliefmatch.semi.consistency import (
        DIVERGENCES,
        Consistency,
        Divergence,
        adversarial_direction,
        categorical_kl,
        pi_model,
        squared_distance,
        vat,
    )
    from beliefmatch.semi.teacher import teacher_prior, teacher_votes

__all__ = [
    "DIVERGENCES",
    "Consistency",
    "Divergence",
    "SemiConfig",
    "adversarial_direction",
    "categorical_kl",
    "pi_model",
    "squared_distance",
    "teacher_prior",
    "teacher_votes",
    "vat",
]

_MODULES = {
    "DIVERGENCES": "consistency",
    "Consistency": "consistency",
    "Divergence": "consistency",
    "SemiConfig": "config",
    "adversarial_direction": "consistency",
    "categorical_kl": "consistency",
    "pi_model": "consistency",
    "squared_distance": "consistency",
    "teacher_prior": "teacher",
    "teacher_votes": "teacher",
    "vat": "consistency",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'beliefmatch.semi' has no attribute {name!r}")
    return getattr(import_module(f"beliefmatch.semi.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
