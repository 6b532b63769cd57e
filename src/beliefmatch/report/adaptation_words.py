"""What an adaptation changed, in plain words: losses as plainly as wins."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from beliefmatch.experiments.adapt_record import (
    BATCHNORM_LABEL,
    AdaptRecord,
    RiskThresholdCheck,
    ScoredHead,
    TriedHead,
)
from beliefmatch.experiments.evaluation_record import PAIRED, EvaluationRecord, Number
from beliefmatch.report.columns import score_title
from beliefmatch.report.evaluation_scores import detection_of, difference, stored_auroc_difference
from beliefmatch.report.evaluation_words import miscalibration, models_below_chance, ood_advice
from beliefmatch.report.page import Card, Verdict
from beliefmatch.report.text import class_label, count_text, number_text, ood_names, percent, threshold_text

__all__ = [
    "HEADLINE",
    "Change",
    "adaptation_advice",
    "adaptation_cards",
    "adaptation_verdict",
    "batchnorm_outcome",
    "before_label",
    "caveats",
    "changes_from",
    "findings",
    "scored_on_text",
    "softmax_label",
    "value_of",
    "vote_scale_outcome",
]

HEADLINE = "entropy"
"""The paper's score of OOD examples."""
_SHARES = ("error", "ece")
_NAMES = {"error": "error", "nll": "NLL", "brier": "Brier score", "ece": "ECE", "kl": "KL"}
_SCALED = "untouched + temperature"
_LARGE_RISE = 0.005  # of the error, from which on "as often" needs a reservation
_CLEAR_KL = 0.02  # least share of the KL of votes, which has no interval, that is a difference
_FEWEST_MISTAKES = 3  # of one kind that are worth a word


# Lines and their differences


def before_label(record: AdaptRecord) -> str | None:
    """The first head to compare with: the head as it was, or else the softmax head."""
    first = ("untouched", softmax_label(record), "label smoothing")
    return next((label for label in first if label in record.row_labels and label != record.label), None)


def softmax_label(record: AdaptRecord) -> str:
    """The line of softmax to compare with: with a temperature if the new head has a calibration."""
    scaled = "softmax + temperature"
    is_scaled = record.chosen_head.calibration is not None and scaled in record.row_labels
    return scaled if is_scaled else "softmax"


def scored_on_text(record: AdaptRecord) -> str:
    """On what the numbers are, such as "540 test examples"."""
    given = record.config.get("given")
    is_text = isinstance(given, dict) and given.get("inputs") == "text"
    thing = f"{record.scored_on} {'sentence' if is_text else 'example'}"
    votes = " with votes" if record.targets == "votes" else ""
    return f"{count_text(record.scored[0].scores.examples, thing)}{votes}"


def value_of(head: ScoredHead, key: str) -> float | None:
    """A score of a head."""
    return head.kl if key == "kl" else getattr(head.scores, key)


class Change(NamedTuple):
    """One metric of another head and of the new one; less is better."""

    key: str
    other: float | None
    ours: float | None
    difference: Number
    """Ours less the other's, with an interval where both were scored on the same draws of examples."""

    @property
    def verdict(self) -> Verdict:
        """Whether the new head is "better" or "worse", "even" if the interval holds zero, "" if unknown."""
        low, high = self.difference.low, self.difference.high
        if self.other is not None and self.other == self.ours:
            return "even"
        if low is None or high is None:
            return ""
        return "better" if high < 0 else "worse" if low > 0 else "even"

    @property
    def verdict_text(self) -> str:
        """The verdict in a word; empty where it is unknown."""
        same = "the same" if self.difference.low is None else "indistinguishable"
        return same if self.verdict == "even" else self.verdict

    def text(self, value: float | None, digits: int | None = None) -> str:
        """A value as it is shown, without its unit."""
        return number_text(value, digits or (2 if self.unit else 4), scale=100 if self.unit else 1)

    @property
    def unit(self) -> str:
        """Percent sign or nothing."""
        return "\u00a0%" if self.key in _SHARES else ""

    @property
    def step(self) -> str:
        """Such as "NLL +0.0130 [0.0100, 0.0160]"."""
        value, text = self.difference.value, self.text(self.difference.value)
        sign = "+" if value is not None and value > 0 and text.strip("0.") else ""
        low, high = (self.text(end) for end in (self.difference.low, self.difference.high))
        interval = f" [{low},\u00a0{high}]" if self.difference.low is not None else ""
        return f"{sign}{text}{self.unit and f'{self.unit} points'}{interval}"

    @property
    def both(self) -> str:
        """Such as "NLL 0.137 against 0.245"; the other's comes first."""
        digits = 1 if self.unit else 3
        if self.text(self.other, digits) == self.text(self.ours, digits):
            digits += 1
        values = f"{self.text(self.other, digits)} against {self.text(self.ours, digits)}{self.unit}"
        return f"{_NAMES[self.key]} {values}"

    @property
    def arrow(self) -> str:
        """Both values with as few digits as show that they differ; one digit where that may be chance."""
        few, more = (1, 2) if self.unit else (3, 4)
        for digits in (few,) if self.verdict == "even" else (few, more):
            before, after = (self.text(value, digits) for value in (self.other, self.ours))
            if before != after:
                return f"{before}\u00a0→\u00a0{after}{self.unit}"
        return f"{self.text(self.ours, few)}{self.unit}"


Changes = Mapping[str, Mapping[str, Change]]
"""By the label of the other line, then by metric."""


def changes_from(
    record: AdaptRecord, evaluations: Sequence[EvaluationRecord], keys: Sequence[str] = ()
) -> Changes:
    """The new head against each other line: the heads of the chosen one's seed.

    By their evaluations, one a line in the order of the lines, where they are given: these know what chance
    may have done. Else, and of votes, by the record alone. Heads that have not converged are compared with
    no other.
    """
    by_label = dict(zip(record.row_labels, evaluations, strict=True)) if evaluations else {}
    unfinished = {one.label for one in record.scored if not one.converged}
    keys = keys or (("error", "nll", "kl", "ece") if record.targets == "votes" else ("error", "nll", "ece"))
    return {
        label: {key: _change(record, by_label, label, key) for key in keys}
        for label in record.row_labels
        if label != record.new_label and not {label, record.new_label} & unfinished
    }


def _change(record: AdaptRecord, by_label: dict[str, EvaluationRecord], label: str, key: str) -> Change:
    paired = Number(None)
    if by_label and record.targets == "labels":
        other, ours = by_label[label], by_label[record.new_label]
        before, after = (one.scores.get(key, paired).value for one in (other, ours))
        paired = difference(ours, other, key) if key in PAIRED else paired
    else:
        before, after = (value_of(record.delivered(one), key) for one in (label, record.new_label))
    if paired.value is None and before is not None and after is not None:
        paired = Number(after - before)
    return Change(key, before, after, paired)


# Findings


def findings(record: AdaptRecord) -> list[str]:
    """What the verdict and the table of scores leave open: what was done, the best head, risk thresholds."""
    return [_done(record), _best(record), *_risk_thresholds(record)]


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
    return " ".join([done, *batchnorm_outcome(record), *vote_scale_outcome(record)])


def _settings(record: AdaptRecord) -> Iterator[str]:
    chosen = record.chosen_head
    weight = chosen.options.get("kl_weight")
    if weight is not None:
        tried = [one for one in record.tried if one.kind == "belief_matching"]
        count = len({one.options.get("kl_weight") for one in tried})
        yield f"λ = {weight:g}, chosen from {count} values" if count > 1 else f"λ = {weight:g}"
    if chosen.weight_decay:
        yield f"weight decay {chosen.weight_decay:g}"


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


def vote_scale_outcome(record: AdaptRecord) -> Iterator[str]:
    """The precision of the belief that was fitted to votes, or why none was."""
    found = record.vote_scale
    if found is None:
        return
    if found.scale is None:
        yield f"The precision of the belief was not fitted to votes: {found.reason}."
        return
    of = count_text(found.examples, "validation example")
    change = ""
    if found.nll is not None and found.nll_before is not None:
        values = f"{found.nll:.4f} nats on the {record.scored_on} votes, {found.nll_before:.4f} without it"
        change = f" A vote after those before it has {values}."
    yield f"The precision of the belief was fitted to the votes of {of}: scale {found.scale:.4g}.{change}"


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


def _risk_thresholds(record: AdaptRecord) -> Iterator[str]:
    """All thresholds in one sentence: they differ in the error rate that they keep."""
    found = record.risk_thresholds
    if not found:
        return
    sure = percent(1 - max(one.delta for one in found), 0)
    parts = [
        f"below {100 * one.risk:g}\u00a0% {_threshold(record, one)}{_kept(record, one)}" for one in found
    ]
    spoilt = "Do not rely on this: the network has seen the validation examples."
    doubt = f" {spoilt}" if record.verdict.seen else ""
    yield f"Error among answers, with probability {sure}: {'; '.join(parts)}.{doubt}"


def _threshold(record: AdaptRecord, one: RiskThresholdCheck) -> str:
    if one.threshold is None:
        return "at no confidence"
    if one.threshold * record.classes <= 1:  # no confidence is lower
        return "at any confidence"
    return f"at a confidence of {threshold_text(one.threshold)} or more"


def _kept(record: AdaptRecord, one: RiskThresholdCheck) -> str:
    """Coverage and error of a risk threshold on test examples, or its coverage on validation examples."""
    if one.threshold is None:
        return ""
    words = {0.0: "none", 1.0: "all"}
    if one.test_coverage is None:
        answered = words.get(one.coverage, percent(one.coverage))
        return f" ({answered} of the validation examples answered)"
    wrong = f", {_wrongly(record, one)}" if one.test_risk is not None else ""
    answered = words.get(one.test_coverage, percent(one.test_coverage))
    return f" ({answered} of the test examples answered{wrong})"


def _wrongly(record: AdaptRecord, one: RiskThresholdCheck) -> str:
    """The risk is of the class of the most votes, and the error on test examples of all votes."""
    what = "of their votes contradicted" if record.targets == "votes" else "of them wrongly"
    return f"{percent(one.test_risk, 2)} {what}"


# Caveats


def caveats(record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()) -> list[str]:
    """What has to be known before the numbers are believed, the gravest first.

    By the evaluations, one a line in the order of the lines, also which OOD sets deceive the new head.
    """
    found = [*_seen(record)]
    if record.scored_on == "validation":
        found.append(
            "There were no test examples: these numbers are of the validation examples that chose λ, weight "
            "decay and calibration, and are optimistic. Give test data for unbiased scores."
        )
    if record.targets == "votes":
        found.append(
            "Examples have votes: in scores each counts by the shares of its votes. What resamples examples "
            "takes the class of the most votes for the label."
        )
    delivered = [evaluations[record.row_labels.index(record.new_label)]] if evaluations else []
    return found + models_below_chance(delivered)


def _seen(record: AdaptRecord) -> Iterator[str]:
    """Whether the network knew the examples that chose, unless it clearly did not."""
    seen, why = record.verdict.seen, record.verdict.why
    if seen:
        spoilt = "the choice and the risk thresholds" if record.risk_thresholds else "the choice"
        if record.scored_on == "validation":
            spoilt = "any of these numbers"
        who = "the network has" if record.labels == "same" else "the heads have"
        yield (
            f"Do not rely on {spoilt}: λ was chosen on examples that {who} been trained on. {why} "
            "Choose it on examples that were never trained on."
        )
    elif seen is None:
        fact = "It is unknown whether the network has seen the validation examples"
        if record.labels == "same":
            yield f"{fact}: {why[:1].lower()}{why[1:]} If it has, the chosen λ may be wrong elsewhere."
            return
        _, bracket, measured = why.partition(" (")  # the rest says at length that there is no head to ask
        yield f"{fact}: it has no head for these classes.{bracket}{measured}"


# The verdict


def adaptation_verdict(record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()) -> str:
    """One sentence that a person can repeat: whether to keep the new head, and what it changed."""
    ours, chosen = record.delivered(record.new_label), record.chosen_head
    errs = f"errs on {percent(ours.scores.error)} of {scored_on_text(record)}"
    if not ours.converged:
        return f"Do not keep the new head yet: it has not converged and {errs}."
    if chosen.kind == "untouched" and chosen.calibration is None:
        return f"Keep the network as it was: no other head fits better, and it {errs}."
    changes = changes_from(record, evaluations)
    choice = _choice(record, changes)
    rival = "" if choice.rival is None else _rival_name(record, choice.rival)
    if choice.keep == "no":
        return f"Do not keep {_new_name(record)}: {rival} does better ({_listed(choice.lost)})."
    openings = {
        "yes": f"Keep {_new_name(record)}",
        "for its belief": f"Keep {_new_name(record)} only for its Dirichlet belief",
        "by what counts": "Choose by what counts",
        "no gain": f"No clear gain from {_new_name(record)}",
        "unknown": f"These numbers cannot tell whether to keep {_new_name(record)}",
    }
    but = ""
    if choice.keep == "for its belief" and choice.lost:
        but = f", but {rival} does better ({_listed(choice.lost[:1])})"
    if choice.keep == "by what counts" and choice.rival != before_label(record):
        but = f"; {rival} does better by {_listed(choice.lost)}, the new head by {_listed(choice.won)}"
    return f"{openings[choice.keep]}: {_outcome(record, evaluations, changes)}{but}."


class _Choice(NamedTuple):
    """Whether to keep the new head, and the other head that decides it."""

    keep: Literal["yes", "no", "no gain", "for its belief", "by what counts", "unknown"]
    rival: str | None = None
    won: Sequence[Change] = ()
    lost: Sequence[Change] = ()


def _choice(record: AdaptRecord, changes: Changes) -> _Choice:
    """The first simpler head that is better in something and worse in nothing decides, else a mixed one.

    A head that is better than the untouched network in nothing is no gain either.
    """
    simpler = [label for label in ("untouched", _single_label(record)) if label in changes]
    rivals = [label for label in (*simpler, _SCALED, softmax_label(record)) if label in changes]
    found = {label: _won_and_lost(record, changes[label]) for label in rivals}
    has_belief = record.delivered(record.new_label).has_belief
    for label, (won, lost) in found.items():
        if lost and not won:
            return _Choice(
                "for its belief" if has_belief and label not in simpler else "no", label, won, lost
            )
    for label, (won, lost) in found.items():
        if won and lost:
            return _Choice("by what counts", label, won, lost)
    if rivals and record.targets == "labels" and not any(map(_has_interval, changes[rivals[0]].values())):
        return _Choice("unknown")
    if "untouched" in found and not any(found["untouched"]):
        return _Choice("for its belief" if has_belief else "no gain", "untouched")
    return _Choice("yes")


def _won_and_lost(
    record: AdaptRecord, changes: Mapping[str, Change]
) -> tuple[Sequence[Change], Sequence[Change]]:
    """Where the new head is better and worse beyond chance; by the KL of votes, which have no intervals."""
    if record.targets == "votes":
        fit = changes["kl"]
        least = _CLEAR_KL * (fit.other or 0.0)
        step = fit.difference.value or 0.0
        return [fit] * (step < -least), [fit] * (step > least)
    won, lost = ([one for one in changes.values() if one.verdict == word] for word in ("better", "worse"))
    return won, lost


def _has_interval(change: Change) -> bool:
    return change.difference.low is not None


def _single_label(record: AdaptRecord) -> str:
    """The line of the head that bootstrap heads or trained BatchNorm layers were added to; or empty."""
    if record.new_label != record.label:
        return record.label
    return record.label.rpartition(", ")[0] if record.chosen_head.members > 1 else ""


def _new_name(record: AdaptRecord) -> str:
    chosen = record.chosen_head
    if chosen.kind == "untouched":
        return f"the network with {_scaling(chosen)}"
    if record.new_label != record.label:
        return "the trained BatchNorm layers"
    return f"the {chosen.members} heads" if chosen.members > 1 else "the new head"


def _scaling(chosen: TriedHead) -> str:
    """The calibration of a head in words, such as "temperature scaling" and "matrix scaling"."""
    return f"{(chosen.calibration or '').removesuffix('_scaling')} scaling"


def _rival_name(record: AdaptRecord, label: str) -> str:
    if label == _single_label(record):
        return "the head without them" if record.new_label != record.label else f"one head of {label}"
    return {"untouched": "the network as it was", _SCALED: "temperature scaling of the old head"}.get(
        label, label
    )


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(one.both for one in changes)


def _outcome(record: AdaptRecord, evaluations: Sequence[EvaluationRecord], changes: Changes) -> str:
    """What became of the network, against the head as it was, or else against softmax."""
    ours, sizes = record.delivered(record.new_label).scores, scored_on_text(record)
    reference = before_label(record) or ""
    against = changes.get(reference, {})
    if record.targets == "votes":
        votes = f"of the votes on {sizes.removesuffix(' with votes')}"
        if against and reference == "untouched":
            return f"it contradicts {against['error'].arrow} {votes} (KL {against['kl'].arrow})"
        fit = number_text(record.delivered(record.new_label).kl, 3)
        return f"it contradicts {percent(ours.error)} {votes} (KL {fit})"
    if against and reference == "untouched":
        side = miscalibration(evaluations[record.row_labels.index(record.new_label)]) if evaluations else ""
        return f"the network {_rightness(against['error'], sizes)}{_honesty(against, side)}"
    alike = ""
    if against and not any(_won_and_lost(record, against)):
        value = f"{against['error'].text(against['error'].other, 1)}\u00a0%"
        is_known = bool(against["error"].verdict)
        alike = f"; {reference} does as well ({value})" if is_known else f"; {reference} errs on {value}"
    return (
        f"it errs on {percent(ours.error)} of {sizes} with a calibration error of {percent(ours.ece)}{alike}"
    )


def _rightness(error: Change, sizes: str) -> str:
    words = {"even": "right as often as", "better": "right more often than", "worse": "wrong more often than"}
    if not error.verdict:
        return f"has an error of {error.arrow}"
    is_far = error.verdict == "even" and (error.difference.value or 0.0) > _LARGE_RISE
    reach = f" as far as {sizes} can tell" if is_far else ""
    return f"is {words[error.verdict]} before{reach} (error {error.arrow})"


def _honesty(changes: Mapping[str, Change], side: str) -> str:
    error, ece, nll = (changes[key] for key in ("error", "ece", "nll"))
    values = f"calibration error {ece.arrow}"
    if ece.verdict == "better":
        honest = f"more honest about it, though still {side}" if side else "honest about it"
        words = f" {'but' if error.verdict == 'worse' else 'and'} {honest} ({values})"
    elif ece.verdict == "worse":
        words = f" {'and' if error.verdict == 'worse' else 'but'} less honest about it ({values})"
    else:
        words = f"; its calibration has not clearly changed ({values})" if ece.verdict else f", {values}"
    is_told = nll.verdict in ("even", "", ece.verdict)
    return words if is_told else f"{words}; its probabilities fit {nll.verdict} (NLL {nll.arrow})"


# The first screen of the page


def adaptation_cards(record: AdaptRecord, models: Sequence[EvaluationRecord]) -> list[Card]:
    """Error, calibration, likelihood, OOD detection and abstention: before and after, and how sure."""
    reference = before_label(record) or ""
    changes = changes_from(record, models).get(reference, {})
    titles = {"error": "Error", "ece": "Calibration error (ECE)", "nll": "Negative log-likelihood"}
    if record.targets == "votes":
        titles = {"error": "Votes contradicted", "ece": titles["ece"], "kl": "Divergence of the votes (KL)"}
    cards = []
    for key, title in titles.items():
        value = value_of(record.delivered(record.new_label), key)
        change = changes.get(key, Change(key, None, value, Number(None)))
        words = {"better": "better beyond chance", "worse": "worse beyond chance", "": "no interval"}
        sure = words.get(change.verdict, change.verdict_text)
        sure += f": {change.step}" if change.difference.low is not None else ""
        digits = 2 if change.unit else 3
        text = f"{change.text(change.ours, digits)}{change.unit}"
        if not changes:
            sure = "compared with no other head"
        elif reference == "untouched":
            text = f"{change.text(change.other, digits)} → {text}"
        else:
            sure = f"{reference} {change.text(change.other, digits)}{change.unit}; {sure}"
        cards.append(Card(title, text, sure, change.verdict))
    return [*cards, *_ood_cards(record, models, reference if changes else ""), *_abstention_cards(record)]


def _ood_cards(record: AdaptRecord, models: Sequence[EvaluationRecord], reference: str) -> Iterator[Card]:
    """AUROC of the first set; heads differ by their paired difference, or where intervals do not overlap."""
    by_label = dict(zip(record.row_labels, models, strict=True))
    for name in ood_names(record.scored)[:1]:
        compared = [by_label[label] for label in (reference, record.new_label) if label]
        areas = [one.auroc for model in compared if (one := detection_of(model, name, HEADLINE)) is not None]
        texts = [number_text(area.value, 1, scale=100) for area in areas]
        sure, verdict = f"AUROC by {score_title(HEADLINE)}", ""
        if len(areas) == 2 and all(area.low is not None and area.high is not None for area in areas):
            (other_low, other_high), (low, high) = ((area.low or 0.0, area.high or 0.0) for area in areas)
            paired, words = (
                stored_auroc_difference(compared[1], compared[0], name, HEADLINE),
                "the intervals overlap",
            )
            if paired.low is not None and paired.high is not None:
                (other_low, other_high), (low, high) = (0.0, 0.0), (paired.low, paired.high)
                ends = ",\u00a0".join(number_text(end, 2, scale=100) for end in (low, high))
                words = f"indistinguishable: {number_text(paired.value, 2, scale=100)} points [{ends}]"
            verdict = "better" if low > other_high else "worse" if high < other_low else "even"
            sure = f"{sure}; {words if verdict == 'even' else f'{verdict} beyond chance'}"
        if reference != "untouched":
            sure = "; ".join([*(f"{reference} {text}\u00a0%" for text in texts[:-1]), sure])
            texts = texts[-1:]
        if texts:
            yield Card(f"OOD detection: {name}", f"{' → '.join(texts)}\u00a0%", sure, verdict)


def _abstention_cards(record: AdaptRecord) -> Iterator[Card]:
    """The least risk that some confidence keeps."""
    kept = [one for one in record.risk_thresholds if one.threshold is not None and one.coverage > 0]
    for one in sorted(kept, key=lambda one: one.risk)[:1]:
        share = one.coverage if one.test_coverage is None else one.test_coverage
        wrong = "" if one.test_risk is None else f"; on test examples {_wrongly(record, one)}"
        sure = f"at most {100 * one.risk:g}\u00a0% errors among the answers, {_threshold(record, one)}{wrong}"
        yield Card("Selective prediction", f"answers {percent(share, 0)}", sure)


def adaptation_advice(record: AdaptRecord, models: Sequence[EvaluationRecord]) -> list[str]:
    """Which head to take, at which confidence to answer, which score to use, what to mend in the data."""
    ours = models[record.row_labels.index(record.new_label)]
    advice = [_which_head(record, changes_from(record, models))]
    for one in record.risk_thresholds:
        rule = f"answer {_threshold(record, one)}{_kept(record, one)}"
        if one.threshold is None:
            rule = "no confidence is high enough; more validation examples may find one"
        advice.append(f"For at most {100 * one.risk:g}\u00a0% errors among the answers, {rule}.")
    return [*advice, *ood_advice(ours), *_mending(record, ours)]


def _which_head(record: AdaptRecord, changes: Changes) -> str:
    """What to do about the verdict."""
    if not record.delivered(record.new_label).converged:
        longer = "more epochs" if record.adapt_config.get("protocol") == "paper" else "a larger weight decay"
        return f"Fit the new head again with {longer} until it converges."
    if record.chosen_head.kind == "untouched":
        scaled = f"with {_scaling(record.chosen_head)}" if record.chosen_head.calibration else "as it is"
        return f"Use the network {scaled}: fitting its last layer anew brings nothing."
    choice = _choice(record, changes)
    rival = "" if choice.rival is None else _rival_name(record, choice.rival)
    belief = "Dirichlet belief (intervals, mutual information, updates by votes)"
    if choice.keep == "no":
        remedies = {
            "untouched": "Keep the network as it was; more training or validation examples may help.",
            _single_label(record): f"Adapt again without {_addition(record)}.",
        }
        return remedies.get(choice.rival or "", f"Use {rival}; `--choose best` delivers the best head.")
    if choice.keep == "for its belief":
        return f"Use the new head where you need its {belief}; for probabilities alone use {rival}."
    if choice.keep == "no gain":
        return f"Use {rival}: {_new_name(record)} is better in nothing beyond chance."
    if choice.keep == "by what counts":
        return f"{rival} does better by {_listed(choice.lost)}, the new head by {_listed(choice.won)}."
    others = [label for label in (_SCALED, softmax_label(record)) if label in changes]
    if not others or not record.delivered(record.new_label).has_belief:
        return f"Use {record.new_label}, which was the choice on the validation examples."
    name = _rival_name(record, others[0])
    if choice.keep == "unknown":
        return f"Use the new head for its {belief}; whether it beats {name} these numbers cannot tell."
    won, _ = _won_and_lost(record, changes[others[0]])
    if won:
        return f"Use the new head: it does better than {name}, the cheapest repair ({_listed(won)})."
    return f"Use the new head for its {belief}; for probabilities alone {name} does as well."


def _addition(record: AdaptRecord) -> str:
    return "`--train-batchnorm`" if record.new_label != record.label else "`--heads`"


def _mending(record: AdaptRecord, ours: EvaluationRecord) -> Iterator[str]:
    if record.verdict.seen:
        yield "Adapt again with validation examples that the network has never been trained on."
    if record.scored_on == "validation":
        yield "Keep some labelled examples for testing and adapt again: these scores are optimistic."
    for target, predicted, count in ours.confusion.pairs[:1]:
        wrong = round((ours.scores.get("error", Number(None)).value or 0.0) * ours.examples)
        if count >= _FEWEST_MISTAKES and 5 * count >= wrong:
            pair = f"{class_label(ours, target)} taken for {class_label(ours, predicted)}"
            share = f"{count:,} of {count_text(wrong, 'error')}"
            yield f"The most frequent mistake is {pair} ({share}): look at the labels of these classes first."
