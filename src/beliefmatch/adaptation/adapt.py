"""A trained classifier in, the same classifier with a new last layer and a measure of doubt out."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from beliefmatch.adaptation.baselines import temperature, untouched
from beliefmatch.adaptation.batched import BATCH_SIZE, fit_heads
from beliefmatch.adaptation.believing import Believing
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.candidates import CONTROLS, candidates
from beliefmatch.adaptation.choosing import choose, table
from beliefmatch.adaptation.contamination import Verdict, contamination
from beliefmatch.adaptation.features import extract
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.heads import Head, find_head, head_inputs
from beliefmatch.adaptation.starting import Start
from beliefmatch.adaptation.streams import as_stream
from beliefmatch.adaptation.surgery import with_head
from beliefmatch.adaptation.types import Features
from beliefmatch.checks import fail, level_of_caller, require_choice

__all__ = ["Adaptation", "Adapted", "adapt"]

Labels = Literal["auto", "same", "new"]
_BETTER_THAN_CHANCE = 3.0  # times: a head that is right so often has learnt these classes


@dataclass(frozen=True, eq=False)
class Adaptation:
    """How a classifier was adapted."""

    head: Head
    chosen: FittedHead
    fitted: Sequence[FittedHead]
    """All heads, the untrained ones first."""
    verdict: Verdict
    """Whether the validation data were seen before."""
    labels: Literal["same", "new"]


class Adapted(Believing):
    """What `adapt` adds to a classifier beside its belief."""

    adaptation: Adaptation

    def summary(self) -> str:
        """All heads with their validation scores, the best first; the chosen one has a star."""
        lines = [f"{'':2}{'head':40}{'error %':>9}{'NLL':>9}{'ECE %':>8}"]
        for row in table(self.adaptation.fitted):
            mark = "*" if row["name"] == self.adaptation.chosen.candidate.name else ""
            numbers = ("", "", "") if row["nll"] is None else _numbers(row)
            lines.append(f"{mark:2}{row['name']:40}{numbers[0]:>9}{numbers[1]:>9}{numbers[2]:>8}")
        return "\n".join([*lines, self.adaptation.verdict.why])


def _numbers(row: dict[str, Any]) -> tuple[str, str, str]:
    return f"{100 * row['error']:.2f}", f"{row['nll']:.4f}", f"{100 * row['ece']:.2f}"


def adapt(
    model: nn.Module,
    train: Any,
    *,
    validation: Any,
    labels: Labels = "auto",
    classes: int | None = None,
    head: str | None = None,
    kl_weights: Sequence[float] | None = None,
    controls: Sequence[str] = CONTROLS,
    choose_by: Literal["nll", "error"] = "nll",
    epochs: int = 100,
    batch_size: int = BATCH_SIZE,
    cache: FeatureCache | None = None,
    device: torch.device | str = "cpu",
    on_progress: Callable[[float, str], None] | None = None,
) -> nn.Module:
    """Refit the last layer of a trained classifier with belief matching; the rest stays as it is.

    What the last layer sees of the data is computed once. Every λ, and the heads to compare with, are fitted
    in one pass over it, and the choice is made on the validation data.

    Args:
        model: any classifier; it is left as it is.
        train: examples to fit on, in any form that `extract` takes: a source, a dataset, a DataLoader, a
            tuple of tensors. Targets are class ids or counts.
        validation: examples that the model was not trained on. Nothing is chosen on data that it has seen
            without a warning.
        labels: "same" repairs the existing head, "new" fits one for other classes; "auto" looks whether the
            existing head knows the classes.
        classes: K, where targets do not tell.
        head: name of the last layer, where it shall not be looked for.
        kl_weights: values of λ to try.
        controls: heads to compare with.
        choose_by: validation NLL or error.
        epochs: passes over the features.
        batch_size: rows of a step.
        cache: where features are kept for the next time.
        device: where the model computes them.
        on_progress: told the share of the fit that is done.

    Returns:
        A copy of the model with the new head: the same `forward` and the same names in `state_dict`, and
        beside them `belief`, `predict`, `abstains`, `summary` and `adaptation`.
    """
    require_choice("adapt", "labels", labels, ("auto", "same", "new"))
    first = as_stream(train, batch_size=8, device=torch.device(device)).first()
    found = find_head(model.to(device), first.inputs, name=head)
    rows = [_features(model, found, data, cache, device) for data in (train, validation)]
    many = _classes(classes, *rows)
    start = _start(found)
    kind = _labels(labels, found, start, rows[1], many)
    old = start if kind == "same" else None
    verdict = contamination(rows[1], train=rows[0], start=old)
    if verdict.seen:
        remedy = "give `validation` data that it has not seen"
        told = f"adapt: λ is chosen on data that the network was trained on; {remedy}. {verdict.why}"
        warnings.warn(told, stacklevel=level_of_caller())
    fitted = fit_heads(
        rows[0],
        candidates(many, kl_weights=kl_weights, controls=_possible(controls, rows[0])),
        validation=rows[1],
        classes=many,
        epochs=epochs,
        batch_size=batch_size,
        start=old,
        monitor=choose_by,
        on_progress=on_progress,
    )
    chosen = choose(fitted, by=choose_by)
    before = [] if old is None else [untouched(old, rows[1]), temperature(old, rows[1])]
    better = with_head(model, found, chosen.weight, chosen.bias, mixin=Adapted)
    better.adaptation = Adaptation(found, chosen, [*before, *fitted], verdict, kind)  # type: ignore[assignment]
    return better


def _features(
    model: nn.Module, head: Head, data: Any, cache: FeatureCache | None, device: torch.device | str
) -> Features:
    return extract(
        model,
        lambda inputs: head_inputs(model, head, inputs),
        data,
        key_parts={"head": head.name},
        cache=cache,
        device=device,
    )


def _start(head: Head) -> Start:
    bias = torch.zeros(head.out_features) if head.bias is None else head.bias
    return head.weight.detach().float().cpu().clone(), bias.detach().float().cpu().clone()


def _classes(given: int | None, *sets: Features) -> int:
    counts = {one.targets.shape[1] for one in sets if one.targets.dim() == 2}
    ids = [int(one.targets.max()) + 1 for one in sets if one.targets.dim() == 1]
    known = max([*counts, *ids]) if given is None else given
    if len(counts) > 1 or any(count != known for count in counts) or any(number > known for number in ids):
        raise fail("adapt", f"`classes` must fit the targets, got {known} for {sorted({*counts, *ids})}.")
    return known


def _labels(
    labels: Labels, head: Head, start: Start, validation: Features, classes: int
) -> Literal["same", "new"]:
    if labels == "same" and head.out_features != classes:
        raise fail(
            "adapt", f"`labels` must be new where the head has {head.out_features} classes, not {classes}."
        )
    if labels != "auto":
        return labels
    if head.out_features != classes:
        return "new"
    error = untouched(start, validation).error
    is_known = error is not None and 1 - error > min(0.5, _BETTER_THAN_CHANCE / classes)
    return "same" if is_known else "new"


def _possible(controls: Sequence[str], features: Features) -> list[str]:
    """Evidential heads cannot be trained on counts."""
    return [one for one in controls if one != "evidential" or features.targets.dim() == 1]
