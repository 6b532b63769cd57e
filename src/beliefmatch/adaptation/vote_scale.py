"""The precision of a fitted belief, by the scatter of held-out votes.

The means of a belief are fitted by the loss, and how sure it is by λ, which the probabilities alone choose.
Votes of the same example tell how sure it should be: `beliefmatch.votes.fit_scale`. Since α is e^logits, ln
of the scale is a shift of the bias, which leaves all probabilities as they are.
"""

import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor

from beliefmatch.adaptation.ensemble import EnsembleHead
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.result import Adaptation, VoteScale
from beliefmatch.adaptation.scoring import MAX_LOGITS, predictions, scorable
from beliefmatch.votes import UnboundedScale, fit_scale

__all__ = ["log_alpha_of", "scaled_to_votes", "vote_examples", "with_log_scale", "with_vote_scale"]

_MOST_STEPS, _CLOSE = (
    30,
    1e-4,
)  # of a mixture, whose precision does not follow that of its members in proportion


def with_vote_scale(made: Adaptation) -> Adaptation:
    """An adaptation whose belief matching heads have the precision of the validation votes, each its own.

    As it is if its configuration does not ask for that. Of the heads that were tried, those of the table are
    scaled.
    """
    if not made.adapt_config.vote_scale:
        return made
    chosen, found = scaled_to_votes(made.chosen, made.sets.validation)
    if found is None:
        return made
    new = {id(made.chosen): chosen}
    for head in (one for heads in made.table.values() for one in heads):
        new.setdefault(id(head), scaled_to_votes(head, made.sets.validation)[0])
    batchnorm = made.batchnorm
    if batchnorm is not None and batchnorm.is_taken:
        trained, found = scaled_to_votes(batchnorm.head, batchnorm.validation)
        batchnorm = replace(batchnorm, head=trained)
    elif batchnorm is not None:
        batchnorm = replace(batchnorm, head=chosen)
    return replace(
        made,
        chosen=chosen,
        table={label: [new[id(head)] for head in heads] for label, heads in made.table.items()},
        fitted=[new.get(id(head), head) for head in made.fitted],
        batchnorm=batchnorm,
        vote_scale=found,
    )


def scaled_to_votes(head: FittedHead, validation: Features) -> tuple[FittedHead, VoteScale | None]:
    """A head whose belief has the precision that makes the validation votes likeliest, and what was fitted.

    The head comes back as it is, with the reason, where nothing tells the precision. There is no reason to
    give for class ids: they are no votes.

    Args:
        head: Any head.
        validation: Rows that it was not fitted on.
    """
    if validation.targets.dim() == 1:
        return head, None
    if head.candidate.kind != "belief_matching":
        return head, VoteScale(None, f"the delivered head, {head.candidate.label}, has no belief")
    indices = vote_examples(validation)
    if indices is None:
        return head, VoteScale(None, "the targets are shares, not numbers of votes")
    if not len(indices):
        return head, VoteScale(None, "no validation example has two votes or more")
    log_scale, reason = _fitted(head, validation, indices)
    if reason:
        return head, VoteScale(None, reason, len(indices))
    return with_log_scale(head, log_scale), VoteScale(math.exp(log_scale), "", len(indices))


def vote_examples(features: Features, least: int = 2) -> Tensor | None:
    """Indices of the rows with this many votes or more, of very many evenly spaced ones; None for shares."""
    indices = scorable(features)
    votes = features.targets[indices]
    if not bool((votes == votes.round()).all()):
        return None
    indices = indices[votes.sum(1) >= least]
    return indices[:: max(1, -(-len(indices) * votes.shape[1] // MAX_LOGITS))]


def log_alpha_of(head: FittedHead, features: Features, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Log-concentrations (n, K) in double, and votes, of some rows."""
    found = []
    for prediction, votes in predictions(head, features, indices):
        assert prediction.belief is not None
        found.append((prediction.belief.log_alpha.double(), votes))
    log_alpha, votes = zip(*found, strict=True)
    return torch.cat(log_alpha), torch.cat(votes)


def with_log_scale(head: FittedHead, log_scale: float) -> FittedHead:
    """The head with this shift of all logits."""
    made = replace(head, bias=_shifted(head.bias, log_scale))
    if isinstance(made, EnsembleHead):
        made = replace(made, biases=_shifted(made.biases, log_scale))
    return replace(made, notes=(*head.notes, f"scale {math.exp(log_scale):.4g}"))


def _shifted(bias: Tensor, log_scale: float) -> Tensor:
    return (bias.double() + log_scale).to(bias.dtype)


def _fitted(head: FittedHead, validation: Features, indices: Tensor) -> tuple[float, str]:
    """ln of the scale, or why there is none. One step is exact for a linear head; a mixture takes several."""
    total = 0.0
    for _ in range(_MOST_STEPS if isinstance(head, EnsembleHead) else 1):
        log_alpha, votes = log_alpha_of(with_log_scale(head, total), validation, indices)
        with warnings.catch_warnings(record=True) as held:
            warnings.simplefilter("always", UnboundedScale)
            step = math.log(fit_scale(log_alpha, votes))
        if any(isinstance(one.message, UnboundedScale) for one in held):
            agree = (
                "the votes of an example always agree" if step < 0 else "they scatter as independent draws"
            )
            return 0.0, f"the validation votes have no likeliest precision: {agree}"
        total += step
        if abs(step) < _CLOSE or not isinstance(head, EnsembleHead):
            return total, ""
    return 0.0, "the heads disagree more than the validation votes allow"
