"""What an evaluation found, in plain words: verdict, cards, advice and warnings."""

from collections.abc import Iterator, Sequence

from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number, RiskThresholdRecord
from beliefmatch.report.columns import score_title
from beliefmatch.report.evaluation_scores import (
    cell_of,
    detection_of,
    difference,
    has_same_examples,
    headline_score,
    ranked_by,
    score_value,
)
from beliefmatch.report.page import Card
from beliefmatch.report.table import is_below_chance
from beliefmatch.report.text import (
    answers_text,
    count_text,
    level_text,
    listed,
    number_text,
    ood_names,
    percent,
    threshold_text,
)

__all__ = [
    "evaluation_advice",
    "evaluation_cards",
    "evaluation_verdict",
    "miscalibration",
    "models_below_chance",
    "models_of_distributions",
    "ood_advice",
    "own_colour",
]

_MISCALIBRATED = 0.01  # least distance of confidence and accuracy that is worth a word


def models_below_chance(models: Sequence[EvaluationRecord]) -> list[str]:
    """Sentences on models that take an OOD set for more familiar than the test examples."""
    score, found = headline_score(models), []
    for name in ood_names(models):
        for model in models:
            one = detection_of(model, name, score)
            if one is not None and is_below_chance(cell_of(one.auroc)):
                fact = f"{model.name} detects {name} worse than chance (AUROC {percent(one.auroc.value)})"
                found.append(f"{fact}: it is surer of these examples than of the test examples.")
    return found


def models_of_distributions(models: Sequence[EvaluationRecord]) -> list[str]:
    """Sentences on models whose logits are probabilities by their looks."""
    looks = "lie in [0, 1] and every row sums to 1, as of probabilities"
    remedy = "pass probabilities as probs (--probs names the array of a file), or the calibration is wrong"
    found = [model.name for model in models if model.settings.get("logits_are_distributions")]
    return [f"The logits of {name} {looks}: {remedy}." for name in found]


def calibration_words(model: EvaluationRecord) -> str:
    """Such as "overconfident: it is right for 91.1 % and expects 96.5 %"."""
    gap, mean = model.scores.get("overconfidence"), model.scores.get("mean_confidence")
    error = model.scores.get("error")
    if gap is None or gap.value is None or error is None or error.value is None:
        return "of unknown calibration"
    shown = (
        "" if mean is None else f": right for {percent(1 - error.value)}, confident of {percent(mean.value)}"
    )
    side = miscalibration(model)
    return f"{side}{shown}" if side else f"calibrated on average{shown}"


def miscalibration(model: EvaluationRecord) -> str:
    """ "overconfident" or "underconfident" where that is beyond chance and worth a word, else empty."""
    gap = model.scores.get("overconfidence", Number(None))
    if gap.value is None or abs(gap.value) < _MISCALIBRATED:
        return ""
    if gap.low is not None and gap.high is not None and gap.low <= 0 <= gap.high:
        return ""
    return "overconfident" if gap.value > 0 else "underconfident"


def _is_clear(models: Sequence[EvaluationRecord], best: int, other: int, key: str) -> bool:
    """Whether one model is better than another beyond chance."""
    gap = difference(models[other], models[best], key)
    if gap.low is not None:
        return gap.low > 0
    low, high = (models[place].scores.get(key, Number(None)) for place in (other, best))
    return low.low is not None and high.high is not None and low.low > high.high


def evaluation_verdict(models: Sequence[EvaluationRecord]) -> str:
    """One sentence that a person can repeat."""
    if len(models) == 1:
        first, error = models[0], percent(score_value(models[0], "error"))
        shown = f"{error} of {count_text(first.examples, 'example')}"
        return f"{first.name} errs on {shown} and is {calibration_words(first)}."
    if not has_same_examples(models):
        return f"{count_text(len(models), 'model')}, evaluated on different examples: they do not compare."
    by_error = ranked_by(models, "error")
    if not by_error:
        return f"{count_text(len(models), 'model')} without a finite score."
    best = by_error[0]
    alike = [place for place in by_error if place == best or not _is_clear(models, best, place, "error")]
    if len(alike) > 1:
        names = f"All {len(models)} models" if len(alike) == len(models) > 3 else _several(models, alike)
        reach = f"as far as {models[0].examples:,} examples can tell"
        first = f"{names} err equally often {reach} ({_range(models, alike, 'error')})"
    else:
        others = f", the others {_range(models, by_error[1:], 'error')}" if by_error[1:] else ""
        first = f"{models[best].name} errs least ({percent(score_value(models[best], 'error'))}{others})"
        if len(models) == 2 == len(by_error):
            names = f"{models[best].name} errs less than {models[by_error[1]].name}"
            first = f"{names} ({_range(models, by_error, 'error', ' against ')})"
    by_ece = ranked_by(models, "ece")
    if len(by_ece) < 2:
        return f"{first}."
    honest, worst = by_ece[0], by_ece[-1]
    values = f"calibration error {percent(score_value(models[honest], 'ece'))}"
    if not _is_clear(models, honest, worst, "ece"):
        return f"{first}; their calibration error does not differ clearly ({_range(models, by_ece, 'ece')})."
    most = "more" if len(models) == 2 else "the most"
    up_to = "" if len(models) == 2 else "up to "
    who = "it is also" if [honest] == alike else f"{models[honest].name} is"
    against = f"{values} against {up_to}{percent(score_value(models[worst], 'ece'))}"
    return f"{first}; {who} {most} honest about it ({against})."


def _several(models: Sequence[EvaluationRecord], places: Sequence[int]) -> str:
    return listed([models[place].name for place in places[:3]]) + (" and others" if places[3:] else "")


def _range(models: Sequence[EvaluationRecord], places: Sequence[int], key: str, to: str = " to ") -> str:
    """The first and the last value, such as "1.9 to 2.4 %"."""
    low, high = (
        number_text(score_value(models[place], key), 1, scale=100) for place in (places[0], places[-1])
    )
    return f"{low}\u00a0%" if low == high else f"{low}{to}{high}\u00a0%"


def evaluation_cards(models: Sequence[EvaluationRecord]) -> list[Card]:
    """Error, calibration, likelihood, OOD detection and selective prediction: the best, and how sure."""
    cards = [
        _card(models, "error", "Error"),
        _card(models, "ece", "Calibration error (ECE)"),
        _card(models, "nll", "Negative log-likelihood"),
    ]
    score = headline_score(models)
    for name in ood_names(models)[:1]:
        areas = {
            place: one.auroc
            for place, model in enumerate(models)
            if (one := detection_of(model, name, score)) is not None and one.auroc.value is not None
        }
        if areas:
            best = max(areas, key=lambda place: areas[place].value or 0.0)
            number = areas[best]
            sure = f"AUROC by {score_title(score)}{_interval(models[best], number, 1, 100)}"
            verdict = "worse" if is_below_chance(cell_of(number)) else ""
            cards.append(
                Card(f"OOD detection: {name}", percent(number.value), sure, verdict, own_colour(models, best))
            )
    kept = _best_threshold(models)
    if kept is not None:
        place, found = kept
        rule = answers_text(found)[1] or "at any confidence"
        sure = f"at most {100 * found.risk:g} % errors among the answers, {rule}"
        value = f"answers {number_text(found.coverage, 0, scale=100)}\u00a0%"
        cards.append(Card("Selective prediction", value, sure, model=own_colour(models, place)))
    return [card for card in cards if card is not None]


def own_colour(models: Sequence[EvaluationRecord], place: int) -> int | None:
    """The number of a model for its colour; none where there is only one."""
    return place if len(models) > 1 else None


def _interval(model: EvaluationRecord, number: Number, digits: int, scale: float) -> str:
    if number.low is None or number.high is None:
        return ""
    low, high = (number_text(end, digits, scale=scale) for end in (number.low, number.high))
    return f", {level_text(model)} interval {low} to {high}"


def _card(models: Sequence[EvaluationRecord], key: str, title: str) -> Card | None:
    ranked = ranked_by(models, key)
    if not ranked:
        return None
    best, is_share = ranked[0], key != "nll"
    number = models[best].scores[key]
    value = percent(number.value, 2) if is_share else number_text(number.value, 3)
    if len(models) == 1:
        sure = _interval(models[0], number, 2 if is_share else 3, 100 if is_share else 1).removeprefix(", ")
        if key == "ece":
            sure = f"{miscalibration(models[0]) or 'calibrated on average'}; {sure}" if sure else ""
        return Card(title, value, sure or "no interval")
    if not has_same_examples(models) or len(ranked) < 2:
        return Card(title, value, f"{models[best].name}", model=best)
    clear = [place for place in ranked[1:] if _is_clear(models, best, place, key)]
    digits, scale = (1, 100) if is_share else (3, 1)
    others = [number_text(score_value(models[place], key), digits, scale=scale) for place in ranked[1:]]
    unit = "\u00a0%" if is_share else ""
    ends = f"{others[0]} to {others[-1]}{unit}" if others[0] != others[-1] else f"{others[0]}{unit}"
    who = "others" if len(others) > 1 else models[ranked[1]].name
    sure = "lowest beyond chance" if len(clear) == len(others) else "the difference may be chance"
    if 0 < len(clear) < len(others):
        sure = f"{count_text(len(others) - len(clear), 'other')} may be as low"
    return Card(title, value, f"{models[best].name}; {who} {ends}: {sure}", model=best)


def _best_threshold(models: Sequence[EvaluationRecord]) -> tuple[int, RiskThresholdRecord] | None:
    """The model that answers most at the least risk that any keeps."""
    kept = [
        (found.risk, -found.coverage, place, found)
        for place, model in enumerate(models)
        for found in model.risk_thresholds
        if found.threshold is not None and found.coverage > 0
    ]
    if not kept:
        return None
    _, _, place, found = min(kept, key=lambda one: one[:3])
    return place, found


def evaluation_advice(models: Sequence[EvaluationRecord]) -> list[str]:
    """What follows from the numbers: which model, which threshold, which score."""
    advice = []
    ranked = ranked_by(models, "nll")
    if len(models) > 1 and ranked and has_same_examples(models):
        best = models[ranked[0]]
        reason = f"its probabilities fit best (NLL {number_text(score_value(best, 'nll'), 3)})"
        close = [models[place].name for place in ranked[1:] if not _is_clear(models, ranked[0], place, "nll")]
        chance = f"; {listed(close[:3])} may be as good" if close else ""
        advice.append(f"Take {best.name}: {reason}{chance}.")
    best = models[ranked[0]] if ranked else models[0]
    side = miscalibration(best)
    if side:
        gap = number_text(abs(score_value(best, "overconfidence") or 0.0), 1, scale=100)
        remedy = "scale its temperature on held-out labels, or refit its last layer with `beliefmatch adapt`"
        advice.append(f"{best.name} is {side} by {gap} points: {remedy}.")
    for found in best.risk_thresholds:
        if found.threshold is None:
            advice.append(
                f"No confidence threshold keeps the errors of {best.name} below {100 * found.risk:g} %."
            )
        elif found.threshold > 0 and found.coverage < 1:
            rule = f"answer only at a confidence of {threshold_text(found.threshold)} or more"
            answered = f"{percent(found.coverage)} of the examples"
            advice.append(
                f"For at most {100 * found.risk:g} % errors among the answers, {rule} ({answered})."
            )
    advice += ood_advice(best)
    return advice


def ood_advice(model: EvaluationRecord) -> Iterator[str]:
    """Which score detects each OOD set best."""
    for ood in model.ood:
        known = [one for one in ood.detections if one.auroc.value is not None]
        if not known:
            continue
        best = max(known, key=lambda one: one.auroc.value or 0.0)
        passing = percent(best.fpr95.value)
        yield (
            f"To detect {ood.name} with {model.name}, {score_title(best.score)} does best "
            f"(AUROC {percent(best.auroc.value)}): where 95 % of the test examples pass, {passing} of "
            f"{ood.name} do."
        )
