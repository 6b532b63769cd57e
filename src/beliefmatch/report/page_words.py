"""What the plots of the page show, in words for those who cannot see them and in numbers for all."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from beliefmatch.experiments.evaluation_record import Bins, Curve, EvaluationRecord
from beliefmatch.report.evaluation_bins import drawn_bins
from beliefmatch.report.evaluation_metrics import score_title, set_title, sides
from beliefmatch.report.evaluation_scores import detection_of
from beliefmatch.report.evaluation_text import class_label, number_text

__all__ = ["DataRow", "DataTable"]


class DataRow(NamedTuple):
    """A line of numbers; shown while its model and its choice are."""

    cells: list[str]
    model: int
    choice: str = ""


class DataTable(NamedTuple):
    """The numbers behind a plot. The first column names the model; `control` is what the choices are of."""

    head: list[str]
    rows: list[DataRow]
    control: str = ""


def percent(value: float | None, digits: int = 1) -> str:
    """A share, in percent."""
    return "—" if value is None else f"{number_text(value, digits, scale=100)}\u00a0%"


def at(curve: Curve, x: float) -> float | None:
    """The curve's value at `x`, on straight lines between its points."""
    points = sorted(zip(curve.x, curve.y, strict=True))
    if not points or x < points[0][0] or x > points[-1][0]:
        return None
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return y1 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[0][1]


def median(density: Curve) -> float | None:
    """Where half of the mass below a density lies to the left."""
    steps = list(zip(density.x, density.x[1:], density.y, density.y[1:], strict=False))
    masses = [(right - left) * (a + b) / 2 for left, right, a, b in steps]
    half = sum(masses) / 2
    if half <= 0:
        return None
    for mass, (left, right, *_) in zip(masses, steps, strict=True):
        if half <= mass:
            return left + (right - left) * half / mass
        half -= mass
    return density.x[-1]


def _score(model: EvaluationRecord, key: str) -> float | None:
    number = model.scores.get(key)
    return number.value if number else None


def reliability_words(models: Sequence[EvaluationRecord]) -> str:
    """How far confidence and accuracy are apart."""
    parts = [
        f"{model.name}: mean confidence {percent(_score(model, 'mean_confidence'))}, "
        f"error {percent(_score(model, 'error'))}, expected calibration error {percent(_score(model, 'ece'))}"
        for model in models
    ]
    return f"Reliability diagram, accuracy against confidence. {'; '.join(parts)}."


def reliability_table(models: Sequence[EvaluationRecord]) -> DataTable:
    """Every bin that holds examples."""
    rows = [
        DataRow([model.name, *cells], index, choice)
        for index, model in enumerate(models)
        for choice, bins in (("width", model.reliability), ("mass", model.reliability_by_mass))
        for cells in _bin_cells(bins)
    ]
    head = ["model", "bin", "examples", "confidence", "accuracy", "95\u00a0% interval"]
    return DataTable(head, rows, "bins")


def _bin_cells(bins: Bins) -> list[list[str]]:
    return [
        [
            f"{drawn.lower:.3g}–{drawn.upper:.3g}",
            f"{drawn.examples:,}",
            percent(drawn.confidence),
            percent(drawn.accuracy),
            f"[{number_text(drawn.low, 1, scale=100)}, {number_text(drawn.high, 1, scale=100)}]",
        ]
        for drawn in drawn_bins(bins)
        if drawn
    ]


def entropy_words(model: EvaluationRecord, ood: str, strange: Curve | None) -> str:
    """Where the two densities have their middle."""
    known = f"median {number_text(median(model.entropy), 2)} nats on test examples"
    other = "not evaluated" if strange is None else f"{number_text(median(strange), 2)} nats"
    return f"Densities of the predictive entropy of {model.name}: {known}, {other} on {ood}."


def entropy_table(model: EvaluationRecord, index: int, ood: str, strange: Curve | None) -> DataTable:
    """Both densities at eleven places."""
    places = model.entropy.x[:: max(len(model.entropy.x) // 10, 1)]
    rows = [
        DataRow(
            [
                number_text(x, 2),
                number_text(at(model.entropy, x), 3),
                number_text(at(strange, x) if strange else None, 3),
            ],
            index,
        )
        for x in places
    ]
    return DataTable(["entropy", "test examples", ood], rows)


def roc_words(models: Sequence[EvaluationRecord], name: str | None, score: str) -> str:
    """The area under each curve."""
    parts = []
    for model in models:
        found = detection_of(model, name, score)
        area = f"AUROC {percent(found.auroc.value)}" if found else "not evaluated"
        parts.append(f"{model.name}: {area}")
    return f"ROC curves, detection of {set_title(name)} by {score_title(score)}. {'; '.join(parts)}."


def roc_table(models: Sequence[EvaluationRecord], name: str | None, scores: Sequence[str]) -> DataTable:
    """What is flagged rightly where a few are flagged falsely."""
    ood, in_distribution = sides(name)
    rates = (0.01, 0.05, 0.1, 0.2, 0.5)
    rows = [
        DataRow([model.name, *(percent(at(found.roc, rate)) for rate in rates)], index, score)
        for score in scores
        for index, model in enumerate(models)
        if (found := detection_of(model, name, score)) and found.roc.x
    ]
    heads = [f"{ood} flagged where {percent(rate, 0)} of {in_distribution} are" for rate in rates]
    return DataTable(["model", *heads], rows, "score")


_COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)


def risk_words(models: Sequence[EvaluationRecord]) -> str:
    """The error among half, most and all of the answers."""
    parts = [
        f"{model.name}: "
        + ", ".join(
            f"{percent(at(model.risk_coverage, coverage), 2)} when answering {percent(coverage, 0)}"
            for coverage in (0.5, 0.8, 1.0)
        )
        for model in models
    ]
    return f"Risk-coverage curves, error among the most confident answers. {'; '.join(parts)}."


def risk_table(models: Sequence[EvaluationRecord]) -> DataTable:
    """Risks at a few coverages."""
    rows = [
        DataRow([model.name, *(percent(at(model.risk_coverage, c), 2) for c in _COVERAGES)], index)
        for index, model in enumerate(models)
    ]
    return DataTable(["model", *(f"risk at {percent(c, 0)}" for c in _COVERAGES)], rows)


def confusion_words(model: EvaluationRecord) -> str:
    """The most frequent mistake."""
    if not model.confusion.pairs:
        return f"Confusion of {model.name}: no mistakes."
    target, predicted, count = model.confusion.pairs[0]
    pair = f"{class_label(model, target)} taken for {class_label(model, predicted)}, {count:,} times"
    return f"Confusion of {model.name}: most often {pair}."
