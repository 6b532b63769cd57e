"""Which head to take, by rows that none of them has seen."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from beliefmatch._validate import fail, require_choice
from beliefmatch.adaptation.candidates import Candidate, Kind
from beliefmatch.adaptation.fitted import FittedHead

__all__ = ["By", "choose", "choose_setting", "setting", "table"]

By = Literal["nll", "error"]


def choose(
    fitted: Sequence[FittedHead], *, by: By = "nll", kinds: Sequence[Kind] = ("belief_matching",)
) -> FittedHead:
    """The head of the lowest validation value among those of these kinds.

    Ties are broken by the other value, then by the calibration error, then by the order given. Heads that
    diverged are skipped. The validation score of the best of many is optimistic: evaluate the chosen head on
    rows that did not choose it.

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


def choose_setting(
    fitted: Sequence[FittedHead], *, by: By = "nll", kinds: Sequence[Kind] = ("belief_matching",)
) -> FittedHead:
    """The best head of the best setting, where several seeds were fitted with each.

    A setting is scored by the mean over its seeds, so that none is taken for one lucky seed. Settings of
    which a seed diverged are looked at only where there are no others. Ties as in `choose`.

    Args:
        fitted: heads with validation scores.
        by: "nll" or "error".
        kinds: kinds of heads that may be chosen.
    """
    choose(fitted, by=by, kinds=kinds)  # there must be one
    groups: dict[str, list[FittedHead]] = {}
    for head in fitted:
        if head.candidate.kind in kinds:
            groups.setdefault(setting(head.candidate), []).append(head)
    whole = [heads for heads in groups.values() if all(map(_is_able, heads))]
    parts = [able for heads in groups.values() if (able := [*filter(_is_able, heads)])]
    best = min(whole or parts, key=lambda heads: _mean_rank(heads, by))
    return min(best, key=lambda head: _rank(head, by))


def setting(candidate: Candidate) -> str:
    """The same text for candidates that differ by nothing but their seed."""
    return repr((candidate.kind, sorted(candidate.options.items())))


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


def _mean_rank(heads: Sequence[FittedHead], by: By) -> tuple[float, ...]:
    columns = zip(*(_rank(head, by) for head in heads), strict=True)
    return tuple(math.fsum(column) / len(heads) for column in columns)
