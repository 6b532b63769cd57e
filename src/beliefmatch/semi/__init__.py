"""Learning from unlabelled examples: consistency under perturbation, and a teacher's belief as the prior.

    loss += weight * beliefmatch.semi.vat(network, unlabelled)   # or pi_model
    prior = beliefmatch.semi.teacher_prior(teacher(unlabelled))  # for belief_matching_loss(prior=...)

Names are loaded on first use, so that the configuration can be read without torch.
"""

from typing import TYPE_CHECKING

from beliefmatch._utils import lazy_names

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


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "config": "SemiConfig",
        "consistency": "DIVERGENCES Consistency Divergence adversarial_direction categorical_kl pi_model "
        "squared_distance vat",
        "teacher": "teacher_prior teacher_votes",
    },
)
