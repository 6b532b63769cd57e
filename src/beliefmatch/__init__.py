"""Belief Matching for PyTorch: classifiers that know what they do not know.

    loss = beliefmatch.BeliefMatchingLoss()(logits, targets)     # in place of CrossEntropyLoss
    belief = beliefmatch.Belief(logits)                          # probabilities, and uncertainty about them
    better = beliefmatch.adapt(model, data, validation=unseen)   # a belief head for a trained network
    found = beliefmatch.evaluate(logits=logits, targets=targets) # what predictions of any model are worth

Names are loaded on first use, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

from beliefmatch._utils import lazy_names

if TYPE_CHECKING:
    from beliefmatch.adapting import adapt
    from beliefmatch.belief import Belief, dirichlet_kl
    from beliefmatch.evaluating import Evaluation, evaluate
    from beliefmatch.integrations.export import export
    from beliefmatch.kl_weight import choose_kl_weight
    from beliefmatch.linear_loss import LinearBeliefMatchingLoss, linear_belief_matching_loss
    from beliefmatch.loss import BeliefMatchingLoss, belief_matching_loss
    from beliefmatch.votes import fit_scale, votes_log_likelihood

__all__ = [
    "Belief",
    "BeliefMatchingLoss",
    "Evaluation",
    "LinearBeliefMatchingLoss",
    "__version__",
    "adapt",
    "belief_matching_loss",
    "choose_kl_weight",
    "dirichlet_kl",
    "evaluate",
    "export",
    "fit_scale",
    "linear_belief_matching_loss",
    "votes_log_likelihood",
]

_load, __dir__ = lazy_names(
    __name__,
    {
        "adapting": "adapt",
        "belief": "Belief dirichlet_kl",
        "kl_weight": "choose_kl_weight",
        "integrations.export": "export",
        "evaluating": "Evaluation evaluate",
        "linear_loss": "LinearBeliefMatchingLoss linear_belief_matching_loss",
        "loss": "BeliefMatchingLoss belief_matching_loss",
        "votes": "fit_scale votes_log_likelihood",
    },
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("beliefmatch")
    return _load(name)
