"""The honest table: which of the fitted heads are set beside each other."""

from collections.abc import Callable

from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.result import Adaptation

__all__ = ["shown"]

Belongs = Callable[[FittedHead], bool]


def shown(adaptation: Adaptation) -> dict[str, list[FittedHead]]:
    """By label, the heads of every seed: what there was, what is usual, and belief matching last.

    Of belief matching those with the chosen λ and prior, and of label smoothing those matched to this λ.
    Heads that diverged are left out.
    """
    chosen = adaptation.chosen.candidate
    matched = {"matched_kl_weight": chosen.options["kl_weight"]}
    lines: dict[str, Belongs] = {
        "untouched": lambda head: head.candidate.kind == "untouched",
        "temperature": lambda head: head.candidate.kind == "temperature",
        "softmax": lambda head: head.candidate.kind == "softmax",
        "label smoothing": lambda head: (
            head.candidate.kind == "label_smoothing" and dict(head.candidate.options) == matched
        ),
        "evidential": lambda head: head.candidate.kind == "evidential",
        "laplace": lambda head: str(head.candidate.kind) == "laplace",
        "belief matching": lambda head: (
            head.candidate.kind == chosen.kind and dict(head.candidate.options) == dict(chosen.options)
        ),
    }
    able = [head for head in adaptation.fitted if not head.diverged]
    found = {label: [head for head in able if belongs(head)] for label, belongs in lines.items()}
    return {label: heads for label, heads in found.items() if heads}
