"""Which head to take, by rows that none of them has seen."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from beliefmatch.adaptation.candidates import Kind
from beliefmatch.adaptation.contamination import Verdict, contamination
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.checks import fail, require_choice

__all__ = ["By", "Verdict", "choose", "contamination", "table"]

By = Literal["nll", "error"]


def choose(
    fitted: Sequence[FittedHead], *, by: By = "nll", kinds: Sequence[Kind] = ("belief_matching",)
) -> FittedHead:
    """The head of the lowest validation value among those of these kinds.

    Ties are broken by the other value, then by the calibration error, then by the order given. Heads that
    diverged are not looked at. The validation value of the best of many is better than it deserves to be:
    judge the chosen head on rows that did not choose it.

    Args:
        fitted: heads with validation scores.
        by: "nll" or "error".
        kinds: kinds of heads that may be chosen; the others are there for comparison.
    """
    require_choice("choose", "by", by, ("nll", "error"))
    able = [head for head in fitted if _is_able(head) and head.candidate.kind in kinds]
    if not able:
        there = ", ".join(f"{head.candidate.name}{_why_not(head)}" for head in fitted) or "none"
        expected = f"a head of kind {' or '.join(kinds)} with finite validation scores"
        raise fail("choose", f"`fitted` must hold {expected}, got {there[:300]}.")
    return min(able, key=lambda head: _rank(head, by))


def table(fitted: Sequence[FittedHead], *, by: By = "nll") -> list[dict[str, Any]]:
    """All heads, the best first and those without scores last: name, kind, options, seed, scores, notes."""
    require_choice("table", "by", by, ("nll", "error"))
    return [
        {
            "name": head.candidate.name,
            "kind": head.candidate.kind,
            "options": dict(head.candidate.options),
            "seed": head.candidate.seed,
            "epoch": head.epoch,
            "nll": head.nll,
            "error": head.error,
            "ece": head.ece,
            "notes": list(head.notes),
        }
        for head in sorted(fitted, key=lambda head: (not _is_able(head), _rank(head, by)))
    ]


def _is_able(head: FittedHead) -> bool:
    scores = head.validation
    return not head.diverged and scores is not None and math.isfinite(scores.nll + scores.error)


def _why_not(head: FittedHead) -> str:
    if head.diverged:
        return " (diverged)"
    return "" if _is_able(head) else " (no finite validation scores)"


def _rank(head: FittedHead, by: By) -> tuple[float, ...]:
    scores = head.validation
    if scores is None:
        return math.inf, math.inf, math.inf
    values = (scores.nll, scores.error) if by == "nll" else (scores.error, scores.nll)
    return tuple(math.inf if math.isnan(one) else one for one in (*values, scores.ece))
