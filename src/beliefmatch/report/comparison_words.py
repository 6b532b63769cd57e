"""What a comparison says: verdict, findings, cards and advice.

A method is better than another if their means lie further apart than their deviations over the seeds reach.
Where they do not, the words say so.
"""

from collections.abc import Iterator, Mapping, Sequence

from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.report.columns import score_title
from beliefmatch.report.comparison_scores import (
    SCORES,
    Measure,
    Ranking,
    cost_ratios,
    detection,
    detection_scores,
    hardest_set,
    has_one_seed,
    mean_of,
    over_seeds,
    presentable_comparison,
    ranking,
    runs_of,
    short_names,
    significant,
    times_text,
)
from beliefmatch.report.page import Card
from beliefmatch.report.table import Cell, is_below_chance
from beliefmatch.report.text import MISSING, count_text, listed, number_text, ood_names, percent

__all__ = [
    "comparison_advice",
    "comparison_cards",
    "comparison_findings",
    "comparison_verdict",
    "methods_below_chance",
]

_FEW_SEEDS = 5
_COSTLY = 2.0  # times the cost of another that is worth a word
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def comparison_verdict(record: ComparisonRecord) -> str:
    """One sentence that a person can repeat."""
    error, nll, names = SCORES["error"], SCORES["nll"], short_names(record)
    by_error, by_nll = ranking(record, error), ranking(record, nll)
    if by_error is None:
        return f"{count_text(len(record.methods), 'method')} without a finite error."
    best = _best_text(error, by_error)
    if len(record.methods) == 1:
        fit = "" if by_nll is None else f" and has an NLL of {_best_text(nll, by_nll)}"
        return f"{names[0]} errs on {best} of the test images{fit}, over {_seeds(record)}."
    if has_one_seed(record):
        worst = by_error.order[-1]
        ends = (
            f"{best} ({names[by_error.best]}) to {_value_text(error, by_error.cells[worst])} ({names[worst]})"
        )
        return f"One seed cannot rank {_count(len(names))} methods: their errors are {ends}."
    leading, total = [by_error.best, *by_error.alike], f"{_count(len(names))} methods"
    ends = [number_text(by_error.mean(place), 1, scale=100) for place in (leading[0], leading[-1])]
    values = f"{' to '.join(dict.fromkeys(ends))}\u00a0%"
    if len(leading) == len(names):
        all_of_them = "Both methods" if len(names) == 2 else f"All {total}"
        first = f"{all_of_them} err equally often as far as {_seeds(record)} can tell ({values})"
    elif len(leading) > 1:
        who = _names(record, leading, 3)
        first = f"{who} err least of {total} ({values}; {_seeds(record)} cannot tell them apart)"
    else:
        first = f"{names[leading[0]]} errs least of {total} ({best}), beyond the scatter of {_seeds(record)}"
    if by_nll is None:
        return f"{first}."
    fitting, value = [by_nll.best, *by_nll.alike], f"NLL {_best_text(nll, by_nll)}"
    if {*fitting} == {*leading}:
        again = "fit equally well" if len(leading) == len(names) else "fit best too"
        who = f"they {again}" if len(leading) > 1 else "it fits best too"
    else:
        who = f"{_names(record, fitting, 3)} {'fits' if len(fitting) == 1 else 'fit'} best"
        who = "all fit equally well" if len(fitting) == len(names) else who
    worst = by_nll.order[-1]
    if worst not in fitting:
        value = f"{value}; the highest is {_value_text(nll, by_nll.cells[worst])}, of {names[worst]}"
    return f"{first}; {who} ({value})."


def comparison_findings(record: ComparisonRecord) -> list[str]:
    """The verdict, OOD detection and cost: at most three sentences for the terminal."""
    shown = presentable_comparison(record, caller="comparison_findings")
    found = [comparison_verdict(shown), *_ood_sentence(shown)]
    ratios, names = cost_ratios(shown, "train_seconds"), short_names(shown)
    known = [place for place, ratio in enumerate(ratios) if ratio is not None]
    if len(known) > 1:
        longest = max(known, key=lambda place: ratios[place] or 0.0)
        seconds = mean_of(shown.methods[0], lambda run: run.costs.train_seconds)
        most = (
            f"{names[longest]} takes {times_text(ratios[longest])} as long"
            if longest
            else "no other method takes longer"
        )
        found.append(f"{names[0]} trains in {significant(seconds)} s; {most}.")
    return found


def _ood_sentence(record: ComparisonRecord) -> list[str]:
    """The range of the hardest OOD set, or who is worse than chance."""
    below, hardest, names = methods_below_chance(record), hardest_set(record), short_names(record)
    if below:
        more = f" ({count_text(len(below) - 1, 'more such case')})" if len(below) > 1 else ""
        return [f"{below[0].removesuffix('.')}{more}."]
    if hardest is None:
        return []
    name, score, ranked = hardest
    ends = [f"{percent(ranked.mean(place))} ({names[place]})" for place in (ranked.order[-1], ranked.best)]
    which = f"OOD set {name}" + (", the hardest" if len(ood_names(runs_of(record))) > 1 else "")
    values = f"from {ends[0]} to {ends[1]}" if ranked.order[-1] != ranked.best else ends[0]
    return [f"{which}: AUROC {values} by {score_title(score)}."]


def methods_below_chance(record: ComparisonRecord) -> list[str]:
    """Sentences on methods that take an OOD set for more familiar than the test images."""
    found, names = [], short_names(record)
    for score in detection_scores(record)[:1]:
        for name in ood_names(runs_of(record)):
            ranked = ranking(record, detection(name, score))
            if ranked is None:
                continue
            for place in sorted(ranked.order):
                if is_below_chance(ranked.cells[place]):
                    area = percent(ranked.mean(place))
                    fact = f"{names[place]} detects {name} worse than chance (AUROC {area})"
                    found.append(f"{fact}: it is surer of these images than of the test images.")
    return found


def comparison_cards(record: ComparisonRecord) -> list[Card]:
    """Error, likelihood, calibration, OOD detection and cost: the best, and whether seeds tell it apart."""
    titles = {"error": "Error", "nll": "Negative log-likelihood", "ece": "Calibration error (ECE)"}
    cards = [_card(record, title, SCORES[key]) for key, title in titles.items()]
    hardest = hardest_set(record)
    if hardest is not None:
        name, score, _ = hardest
        which = ", the hardest" if len(ood_names(runs_of(record))) > 1 else ""
        cards.append(_card(record, f"OOD detection: {name}{which}", detection(name, score)))
    cards.append(_cost_card(record))
    return [card for card in cards if card is not None]


def _card(record: ComparisonRecord, title: str, measure: Measure) -> Card | None:
    ranked = ranking(record, measure)
    if ranked is None:
        return None
    value, name = _best_text(measure, ranked), short_names(record)[ranked.best]
    cell = ranked.cells[ranked.best]
    verdict = "worse" if measure.column.key == "auroc" and is_below_chance(cell) else ""
    if len(record.methods) == 1:
        return Card(title, value, over_seeds(record), verdict)
    word = "highest" if measure.column.better == "high" else "lowest"
    if has_one_seed(record):
        return Card(title, value, f"{name}, {word} of one seed: may be chance", verdict, ranked.best)
    if ranked.is_clear:
        sure = f"{name}, {word} beyond the scatter of {_seeds(record)}"
        return Card(title, value, sure, verdict or "better", ranked.best)
    doubt = f"{name}, {word}; {_seeds(record)} cannot tell it from {_names(record, ranked.alike, 1)}"
    return Card(title, value, doubt, verdict, ranked.best)


def _cost_card(record: ComparisonRecord) -> Card | None:
    ratios, names = cost_ratios(record, "train_seconds"), short_names(record)
    known = [place for place, ratio in enumerate(ratios) if ratio is not None]
    seconds = mean_of(record.methods[0], lambda run: run.costs.train_seconds)
    if len(record.methods) == 1:
        return Card("Training time", f"{significant(seconds)} s", over_seeds(record))
    if not known:
        return None
    least, most = (choose(known, key=lambda place: ratios[place] or 0.0) for choose in (min, max))
    ends = dict.fromkeys(times_text(ratios[place]) for place in (least, most))
    sure = f"{names[least]} to {names[most]}, against {names[0]} ({significant(seconds)} s)"
    return Card("Cost of training", " to ".join(ends), sure)


def comparison_advice(record: ComparisonRecord) -> list[str]:
    """Which method and why; nothing where the seeds cannot tell; what it costs."""
    if len(record.methods) == 1:
        return ["Train a second method beside it (`--methods`): one alone is neither good nor bad."]
    if has_one_seed(record):
        return [
            "Choose nothing yet: one seed shows no scatter. Repeat with `--seeds 5`; finished runs are kept.",
            *_prediction_costs(record),
        ]
    advice = [*_choice_advice(record), *_calibration_advice(record), *_prediction_costs(record)]
    if max(len(method.runs) for method in record.methods) < _FEW_SEEDS:
        advice.append(
            f"{_seeds(record).capitalize()} are few: `--seeds {_FEW_SEEDS}` or more tell finer differences, "
            "and finished runs are kept."
        )
    return advice


def _choice_advice(record: ComparisonRecord) -> Iterator[str]:
    by_error, by_nll = (ranking(record, SCORES[key]) for key in ("error", "nll"))
    names = short_names(record)
    if by_error is None or by_nll is None:
        return
    as_right, as_fitting = ({ranked.best, *ranked.alike} for ranked in (by_error, by_nll))
    candidates = [place for place in by_nll.order if place in as_right & as_fitting]
    if not candidates:
        yield (
            f"{names[by_error.best]} errs least and {names[by_nll.best]} fits best, both beyond the scatter "
            "of the seeds: take the first if only the class counts, the second if probabilities are used."
        )
        return
    ratios = cost_ratios(record, "train_seconds")
    cheapest = min(candidates, key=lambda place: ratios[place] or 1.0)
    if len(candidates) == 1:
        times = times_text(ratios[cheapest])
        price = "" if times in (MISSING, "1.0×") else f", for {times} the training time of {names[0]}"
        yield f"Take {names[cheapest]}: no other is as good in both error and NLL{price}."
        return
    yield (
        f"Nothing here tells {_names(record, candidates, 5)} apart in error and NLL: choose by cost, or "
        "by the calibration and OOD detection that you need."
    )
    least = ratios[cheapest] or 1.0
    own = [None if ratio is None else ratio / least for ratio in ratios]
    yield from _costly(names, {place: own[place] for place in candidates}, "Training", names[cheapest])


def _costly(names: Sequence[str], ratios: Mapping[int, float | None], what: str, other: str) -> Iterator[str]:
    """Who takes how many times as long as another."""
    found = [
        f"{times_text(ratio)} as long with {names[place]}"
        for place, ratio in ratios.items()
        if ratio is not None and ratio >= _COSTLY
    ]
    if found:
        yield f"{what} takes {listed(found)} as with {other}."


def _calibration_advice(record: ComparisonRecord) -> Iterator[str]:
    ranked, names = ranking(record, SCORES["ece"]), short_names(record)
    if ranked is not None and len(ranked.alike) < len(record.methods) - 1 and len(ranked.order) > 1:
        alike = f" (or {_names(record, ranked.alike)}, as far as the seeds can tell)" if ranked.alike else ""
        worst = ranked.order[-1]
        ends = [_value_text(SCORES["ece"], ranked.cells[place]) for place in (ranked.best, worst)]
        yield (
            f"If confidences are to be taken at their word, {names[ranked.best]}{alike} is better calibrated "
            f"than {names[worst]} (ECE {ends[0]} against {ends[1]}); a temperature fitted on held-out labels "
            "may level that."
        )


def _prediction_costs(record: ComparisonRecord) -> Iterator[str]:
    names, ratios = short_names(record), cost_ratios(record, "predict_ms_per_image")
    yield from _costly(names, dict(enumerate(ratios)), "Prediction", names[0])


# Parts of sentences


def _count(number: int) -> str:
    return _COUNTS[number] if number < len(_COUNTS) else f"{number:,}"


def _seeds(record: ComparisonRecord) -> str:
    most = max(len(method.runs) for method in record.methods)
    return f"{_count(most)} seed{'s' if most > 1 else ''}"


def _names(record: ComparisonRecord, places: Sequence[int], most: int = 2) -> str:
    """The first names, and how many others there are."""
    names = [short_names(record)[place] for place in places]
    others = len(names) - most
    return listed(names) if others <= 0 else listed([*names[:most], count_text(others, "other")])


def _value_text(measure: Measure, cell: Cell) -> str:
    """A mean with its deviation, as sentences have it: with few digits."""
    if not isinstance(cell.value, float):
        return f"{cell.value}"
    if measure.column.unit == "%":
        sd = "" if cell.sd is None else f"\u00a0±\u00a0{number_text(cell.sd, 1, scale=100)}"
        return f"{number_text(cell.value, 1, scale=100)}{sd}\u00a0%"
    return number_text(cell.value, 3)


def _best_text(measure: Measure, ranked: Ranking) -> str:
    return _value_text(measure, ranked.cells[ranked.best])
