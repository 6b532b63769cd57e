"""The choice of λ: what every head that was tried reached on the validation examples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from beliefmatch.experiments.adapt_record import AdaptRecord, TriedHead
from beliefmatch.report.columns import CALIBRATION, PREDICTIONS
from beliefmatch.report.figure import Axis, Figure, Panel, Series
from beliefmatch.report.style import INK, Look, looks
from beliefmatch.report.table import Cell, Column, Row, Table
from beliefmatch.report.text import number_text

__all__ = ["ChoiceSeries", "Reached", "choice_figure", "choice_series", "choice_table", "tried_table"]

_METRICS = [column for column in (*PREDICTIONS, *CALIBRATION) if column.key in ("nll", "ece", "error")]
_BELIEF = "belief matching"
_CHOSEN = Look(INK, marker="o")


class Reached(NamedTuple):
    """What heads with one λ reached, by metric one value a seed."""

    kl_weight: float
    values: Mapping[str, list[float]]
    is_chosen: bool

    def mean(self, key: str) -> float | None:
        """Over the seeds that have a value."""
        return fmean(self.values[key]) if self.values[key] else None


class ChoiceSeries(NamedTuple):
    """One kind of heads over the values of λ, in growing order."""

    label: str
    """Of its line in the table of scores."""
    title: str
    points: list[Reached]


def choice_series(record: AdaptRecord) -> list[ChoiceSeries]:
    """Belief matching by prior and λ, and label smoothing by the λ that it was matched to."""
    plain = [
        one for one in record.tried if one.calibration is None and not one.background and one.members == 1
    ]
    matched = [one for one in plain if one.kind == "belief_matching"]
    smoothed = [one for one in plain if one.kind == "label_smoothing"]
    priors = list(dict.fromkeys(one.options.get("prior", 1) for one in matched))
    found = [
        ChoiceSeries(
            _BELIEF,
            _BELIEF if len(priors) == 1 else f"{_BELIEF}, β = {prior:.4g}",
            _points([one for one in matched if one.options.get("prior", 1) == prior], "kl_weight", record),
        )
        for prior in priors
    ]
    points = _points(smoothed, "matched_kl_weight", record)
    found.append(ChoiceSeries("label smoothing", "label smoothing to match", points))
    return [series for series in found if series.points and series.label in record.row_labels]


def _points(heads: Sequence[TriedHead], option: str, record: AdaptRecord) -> list[Reached]:
    """For each λ the heads of the weight decay that was best there, without those that have not converged."""
    chosen, made = record.chosen_head, []
    for weight in sorted({one.options[option] for one in heads if option in one.options}):
        here = [one for one in heads if one.options.get(option) == weight]
        best = min(here, key=lambda one: math.inf if one.nll is None else one.nll)
        here = [one for one in here if one.weight_decay == best.weight_decay]
        able = [one for one in here if one.converged]
        values = {column.key: _present(able, column.key) for column in _METRICS}
        is_chosen = option == "kl_weight" and any(one.options == chosen.options for one in here)
        made.append(Reached(float(weight), values, is_chosen))
    return made


def _present(heads: Sequence[TriedHead], key: str) -> list[float]:
    return [value for one in heads if (value := getattr(one, key)) is not None]


def choice_table(record: AdaptRecord, places: Mapping[str, int]) -> Table:
    """Means over the seeds for every λ.

    Args:
        record: the adaptation.
        places: number of each line on the page, by label.
    """
    columns = [Column("kl_weight", "λ"), *_METRICS, Column("choice", "")]
    rows = [
        Row(
            series.title,
            [
                Cell(f"{point.kl_weight:g}"),
                *(Cell(point.mean(column.key)) for column in _METRICS),
                Cell("chosen" if point.is_chosen else ""),
            ],
            model=places[series.label],
            is_chosen=point.is_chosen,
        )
        for series in choice_series(record)
        for point in series.points
    ]
    return Table("Every λ on the validation examples", columns, rows, row_title="head")


def tried_table(record: AdaptRecord) -> Table:
    """Every head, the lowest validation NLL first."""
    columns = [*_METRICS, Column("iterations", "Iterations"), Column("notes", "Notes")]
    rows = []
    for one in sorted(record.tried, key=lambda one: (one.nll is None, one.nll or 0.0)):
        is_chosen = one.name == record.chosen
        notes = [
            *(["chosen"] if is_chosen else []),
            *([] if one.converged else ["not converged"]),
            *one.notes,
        ]
        cells = [Cell(getattr(one, column.key)) for column in _METRICS]
        cells += [Cell(f"{one.iterations:,}" if one.iterations else None), Cell("; ".join(notes))]
        rows.append(Row(one.name, cells, is_chosen=is_chosen))
    return Table(f"All {len(rows)} heads that were tried", columns, rows, row_title="head")


def choice_figure(record: AdaptRecord, places: Mapping[str, int]) -> Figure | None:
    """A panel a metric: means by λ, each seed pale, the chosen one ringed; heads without a λ as levels."""
    found = choice_series(record)
    if not found:
        return None
    levels = {column.key: _levels(record, found, column.key) for column in _METRICS}
    titles = [
        *(series.title for series in found),
        *dict.fromkeys(label for of in levels.values() for label in of),
    ]
    look_of = dict(zip(titles, looks(titles), strict=True))
    weights = [point.kl_weight for series in found for point in series.points]
    panels = []
    for column in _METRICS:
        drawn = [one for series in found for one in _drawn(series, column.key, look_of, places)]
        for label, value in levels[column.key].items():
            ends = [min(weights), max(weights)], [value, value]
            style = {"model": places[label], "width": 1.0, "alpha": 0.8}
            drawn.append(Series(label, *ends, look_of[label], **style))
        axes = Axis("λ", log=True), Axis(percent=column.unit == "%")
        panels.append(Panel(drawn, *axes, title=f"Validation {column.title}"))
    chosen = [
        f" Chosen: λ = {one.kl_weight:g}." for series in found for one in series.points if one.is_chosen
    ]
    return Figure(
        "choice_of_lambda",
        panels,
        f"Validation error, NLL and ECE against λ. {_least(found)}.{''.join(chosen)}",
        title="What every λ reached on the validation examples",
        note="Ring: the chosen λ. Level lines: heads without a λ; those far worse are left out.",
        numbers=choice_table(record, places),
        legend=list(look_of.items()),
    )


def _drawn(
    series: ChoiceSeries, key: str, look_of: Mapping[str, Look], places: Mapping[str, int]
) -> Iterator[Series]:
    model, look = places[series.label], look_of[series.title]
    xs, ys = [one.kl_weight for one in series.points], [one.mean(key) for one in series.points]
    yield Series(series.title, xs, ys, look, model=model, marker=True)
    each = [(one.kl_weight, value) for one in series.points for value in one.values[key]]
    if len(each) > len(xs):
        seeds = [x for x, _ in each], [y for _, y in each]
        yield Series(series.title, *seeds, look, "points", model=model, alpha=0.35)
    for one in series.points:
        if one.is_chosen:
            ring = [one.kl_weight], [one.mean(key)]
            yield Series("chosen λ", *ring, _CHOSEN, "points", model=model, filled=False)


def _levels(record: AdaptRecord, found: Sequence[ChoiceSeries], key: str) -> dict[str, float]:
    """Lines without a λ, means over their seeds, by label; none that would press the others together."""
    spans = [value for series in found for one in series.points for value in one.values[key]]
    most = 2 * max(spans, default=0.0) - min(spans, default=0.0)
    tried, levels = {one.name: one for one in record.tried}, {}
    for label in record.row_labels:
        heads = [tried[one.name] for one in record.scored if one.label == label and one.name in tried]
        values = _present(heads, key)
        has_weight = any({"kl_weight", "matched_kl_weight"} & {*one.options} for one in heads)
        if values and not has_weight and fmean(values) <= most:
            levels[label] = fmean(values)
    return levels


def _least(found: Sequence[ChoiceSeries]) -> str:
    parts = []
    for series in found:
        means = {one.kl_weight: mean for one in series.points if (mean := one.mean("nll")) is not None}
        if means:
            weight = min(means, key=lambda weight: means[weight])
            parts.append(f"{series.title}: least NLL {number_text(means[weight], 4)} at λ = {weight:g}")
    return "; ".join(parts)
