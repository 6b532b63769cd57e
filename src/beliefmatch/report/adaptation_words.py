"""What an adaptation changed, in plain words: losses as plainly as wins."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beliefmatch.experiments.adapt_record import BATCHNORM_LABEL, AdaptRecord, RiskThresholdCheck
from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number
from beliefmatch.report.adaptation_rows import (
    before_label,
    kl_weights,
    line_title,
    ood_sets,
    scored_on_text,
    softmax_label,
)
from beliefmatch.report.evaluation_marks import difference, has_interval
from beliefmatch.report.evaluation_metrics import score_title
from beliefmatch.report.evaluation_text import count_text, number_text, threshold_text

__all__ = ["Against", "Change", "against", "change_words", "findings"]

_NAMES = {"error": "error", "nll": "NLL", "brier": "Brier score", "ece": "ECE", "kl": "KL"}
_SHARES = ("error", "ece")
_TOLD = ("error", "nll", "ece")
_TABLED = ("error", "nll", "brier", "ece")
_HEADLINE = "entropy"
_OTHERS = {
    "untouched": "the network as it was",
    "softmax": "a softmax head on the same features",
    "softmax + temperature": "a softmax head with a temperature on the same features",
}


class Change(NamedTuple):
    """One metric of another head and of the new one; less is better."""

    key: str
    other: float | None
    ours: float | None
    difference: Number
    """Ours less the other's on the same draws of examples; no value where there are no draws."""

    @property
    def name(self) -> str:
        """In words."""
        return _NAMES[self.key]

    @property
    def verdict(self) -> str:
        """Whether the new head is "better" or "worse", "even" if the interval holds zero, "" if unknown."""
        if self.other is not None and self.other == self.ours:
            return "even"
        if not has_interval(self.difference):
            return ""
        low, high = self.difference.low or 0.0, self.difference.high or 0.0
        return "better" if high < 0 else "worse" if low > 0 else "even"

    def text(self, value: float | None) -> str:
        """A value as it is shown, without its unit."""
        return _number(self.key, value)

    @property
    def unit(self) -> str:
        """Percent sign or nothing."""
        return "\u00a0%" if self.key in _SHARES else ""

    @property
    def interval(self) -> str:
        """Of the difference, or nothing."""
        if not has_interval(self.difference):
            return ""
        return f"[{self.text(self.difference.low)}, {self.text(self.difference.high)}]"

    @property
    def signed(self) -> str:
        """The difference with its sign; a dash where there is none."""
        value = self.difference.value
        if value is None:
            value = None if self.ours is None or self.other is None else self.ours - self.other
        text = self.text(value)
        return f"+{text}" if value is not None and value > 0 and float(text.replace(",", "")) else text


class Against(NamedTuple):
    """The new head against one other line."""

    label: str
    title: str
    changes: list[Change]


def _number(key: str, value: float | None) -> str:
    share = key in _SHARES
    return number_text(value, 2 if share else 4, scale=100 if share else 1)


def against(
    record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = (), keys: Sequence[str] = _TABLED
) -> list[Against]:
    """The new head against each other line: the heads of the chosen one's seed.

    By their evaluations, one a line in the order of the lines, where they are given: these know what chance
    may have done. Else, and of votes, by the record alone.
    """
    labels = record.row_labels
    by_label = dict(zip(labels, evaluations, strict=True)) if evaluations else {}
    return [
        Against(
            label,
            line_title(record.delivered(label)),
            [_change(record, by_label, label, key) for key in keys],
        )
        for label in labels
        if label != record.new_label and _is_comparable(record, label)
    ]


def _is_comparable(record: AdaptRecord, label: str) -> bool:
    """Heads that have not converged are compared with no other."""
    return all(one.converged for one in record.scored if one.label in (label, record.new_label))


def _change(record: AdaptRecord, by_label: dict[str, EvaluationRecord], label: str, key: str) -> Change:
    if by_label and record.targets == "labels":
        other, ours = by_label[label], by_label[record.new_label]
        absent = Number(None)
        before, after = (one.scores.get(key, absent).value for one in (other, ours))
        return Change(key, before, after, _difference(ours, other, key))
    return Change(key, _value(record, label, key), _value(record, record.new_label, key), Number(None))


def _difference(ours: EvaluationRecord, other: EvaluationRecord, key: str) -> Number:
    return difference(ours, other, key) if key in other.scores else Number(None)


def _value(record: AdaptRecord, label: str, key: str) -> float | None:
    head = record.delivered(label)
    return head.kl if key == "kl" else getattr(head.scores, key)


def findings(record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()) -> list[str]:
    """At most six sentences, the verdict first.

    Losses beyond chance, or that the delivered head has not converged; the change from the network as it was
    or else from softmax; what was done; the best head; OOD detection; risk thresholds.
    """
    keys = ("error", "nll", "kl", "ece") if record.targets == "votes" else _TOLD
    found = against(record, evaluations, keys)
    reference = before_label(record)
    return [
        *_losses(record, found),
        *(_changed(record, one) for one in found if one.label == reference),
        _done(record),
        _best(record),
        *_ood(record, reference),
        *_risk_thresholds(record),
    ]


def _losses(record: AdaptRecord, found: Sequence[Against]) -> Iterator[str]:
    """Where the delivered head is worse than the obvious alternatives, beyond chance."""
    if not record.delivered(record.new_label).converged:
        yield "The new head has not converged, so it is compared with no other head."
    losses = {}
    for one in found:
        worse = [_loss_words(change) for change in one.changes if change.verdict == "worse"]
        if one.label in ("untouched", "softmax", softmax_label(record)) and worse:
            losses[one.label.partition(" +")[0]] = f"{_OTHERS[one.label]} ({', '.join(worse)})"
    if losses:
        yield f"The new head is worse than {' and than '.join(losses.values())}."


def _loss_words(change: Change) -> str:
    """Such as "NLL +0.0130 [0.0100, 0.0160]"."""
    points = "\u00a0% points" if change.key in _SHARES else ""
    return f"{change.name} {change.signed}{points} {change.interval}"


def _arrow(change: Change) -> str:
    return f"{change.name} {change.text(change.other)} → {change.text(change.ours)}{change.unit}"


def _done(record: AdaptRecord) -> str:
    head, chosen = record.head, record.chosen_head
    layer = f"layer `{head.name}`" if head and head.name else "last layer"
    of = f" of {record.model}" if head else ""
    aim = "" if record.labels == "same" else f" for {record.classes:,} classes"
    if chosen.kind == "untouched" and chosen.calibration is None:
        done = f"The {layer}{of} stays as it was: no head has a lower NLL on the validation examples."
    elif chosen.kind == "untouched":
        done = f"The {layer}{of} was rescaled and not fitted anew: {record.label}."
    else:
        settings = ", ".join(_settings(record))
        verb = "was fitted anew" if record.labels == "same" else "was fitted"
        done = f"The {layer}{of} {verb}{aim}: {record.label}{f' ({settings})' if settings else ''}."
    return " ".join([done, *batchnorm_outcome(record)])


def _settings(record: AdaptRecord) -> Iterator[str]:
    chosen = record.chosen_head
    weight = chosen.options.get("kl_weight")
    if weight is not None:
        count = len(kl_weights(record))
        yield f"λ = {weight:g}, chosen from {count} values" if count > 1 else f"λ = {weight:g}"
    if chosen.weight_decay:
        yield f"weight decay {chosen.weight_decay:g}"


def _best(record: AdaptRecord) -> str:
    """Which head has the lowest validation NLL, and how far the delivered one is from it."""
    best = record.best
    if best.label == record.label:
        return f"No other head has a lower NLL on the validation examples ({best.nll:.4f})."
    error = best.standard_error
    chance = "" if error is None else f" ± {error:.4f}"
    fact = f"The lowest NLL on the validation examples is that of {best.label}, {best.nll:.4f}"
    excess = f"{fact}; that of {record.label} is {best.excess:.4f}{chance} higher"
    if error is not None and best.excess <= 2 * error:
        return f"{excess}, which may be chance."
    return f"{excess}. With choose = best that head is delivered."


def batchnorm_outcome(record: AdaptRecord) -> Iterator[str]:
    """One sentence on the training of BatchNorm layers, if it was requested."""
    if record.batchnorm is None:
        return
    layers = count_text(record.batchnorm["layers"], "BatchNorm layer")
    before, after = (record.batchnorm[f"validation_{when}"]["nll"] for when in ("before", "after"))
    if record.new_label == BATCHNORM_LABEL:
        yield f"{layers} trained together with the head: validation NLL {before:.4f} -> {after:.4f}."
    else:
        yield f"Training {layers} with the head did not improve the validation score; they were restored."


def _changed(record: AdaptRecord, one: Against) -> str:
    changes = ", ".join(map(change_words, one.changes))
    return (
        f"From {_OTHERS.get(one.label, one.title)} to the new head, on {scored_on_text(record)}: {changes}."
    )


def change_words(change: Change) -> str:
    """Such as "NLL 0.3450 → 0.2370 (better)"."""
    words = {"even": "indistinguishable" if change.interval else "the same", "": ""}
    verdict = words.get(change.verdict, change.verdict)
    return f"{_arrow(change)} ({verdict})" if verdict else _arrow(change)


def _ood(record: AdaptRecord, reference: str | None) -> Iterator[str]:
    parts = []
    for name in ood_sets(record):
        found = [_auroc(record, label, name) for label in (reference, record.new_label) if label]
        texts = [number_text(value, 1, scale=100) for value in found if value is not None]
        if texts:
            parts.append(f"{name} {' → '.join(texts)}\u00a0%")
    if parts:
        yield f"Out-of-distribution detection by {score_title(_HEADLINE)}, AUROC: {'; '.join(parts)}."


def _auroc(record: AdaptRecord, label: str, name: str) -> float | None:
    found = next((one for one in record.delivered(label).ood if one.name == name), None)
    return None if found is None else found.auroc.get(_HEADLINE)


def _risk_thresholds(record: AdaptRecord) -> Iterator[str]:
    """All thresholds in one sentence: they differ in the error rate that they keep."""
    found = record.risk_thresholds
    if not found:
        return
    sure = f"{100 * (1 - max(one.delta for one in found)):g}\u00a0%"
    parts = [f"below {100 * one.risk:g}\u00a0% {_threshold_words(record, one)}" for one in found]
    doubt = (
        " Do not rely on this: the network has seen the validation examples." if record.verdict.seen else ""
    )
    yield f"Error among answers, with probability {sure}: {'; '.join(parts)}.{doubt}"


def _threshold_words(record: AdaptRecord, one: RiskThresholdCheck) -> str:
    if one.threshold is None:
        return "at no confidence"
    if one.threshold * record.classes <= 1:  # no confidence is lower
        return f"at any confidence{_kept(one)}"
    return f"at a confidence of {threshold_text(one.threshold)} or more{_kept(one)}"


def _kept(one: RiskThresholdCheck) -> str:
    """Coverage and error of a risk threshold on test examples, or its coverage on validation examples."""
    if one.test_coverage is None:
        return f" ({_answered(one.coverage, 1)} of the validation examples answered)"
    wrong = (
        ""
        if one.test_risk is None
        else f", {number_text(one.test_risk, 2, scale=100)}\u00a0% of them wrongly"
    )
    return f" ({_answered(one.test_coverage, 2)} of the test examples answered{wrong})"


def _answered(share: float, digits: int) -> str:
    """In percent, or in a word where it is all or nothing."""
    words = {0.0: "none", 1.0: "all"}
    return words.get(share, f"{number_text(share, digits, scale=100)}\u00a0%")
