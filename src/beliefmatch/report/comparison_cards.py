"""Plots of a comparison's page: how the methods learn, and how they see a rotated digit."""

import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from beliefmatch.experiments.records import ComparisonRecord, RotatedDigit, Rotation
from beliefmatch.report.comparison_curves import CURVES, Learning, learning_curves
from beliefmatch.report.evaluation_text import number_text
from beliefmatch.report.page_sections import Card
from beliefmatch.report.page_words import DataRow, DataTable, percent
from beliefmatch.report.plot_parts import Plot, as_text, axis, layout, line, stroke

__all__ = ["comparison_cards", "rotation_table"]

_MOST_ROWS = 25  # epochs of a method in the table of numbers


def comparison_cards(record: ComparisonRecord) -> dict[str, list[Card]]:
    """Every plot of the comparison, by its section."""
    found = [(key, title, learning_curves(record, key)) for key, title in CURVES]
    learning = [_learning_card(record, key, title, curves) for key, title, curves in found if curves]
    rotations, rotated_digit = _rotations(record), record.rotated_digit
    turned = (
        _rotation_cards(record, rotated_digit, rotations) if rotated_digit is not None and rotations else []
    )
    return {"learning": learning, "rotated_digit": turned}


def _learning_card(record: ComparisonRecord, key: str, title: str, curves: dict[int, Learning]) -> Card:
    is_share = key.endswith("error")
    form = ".2%" if is_share else ".4f"
    hover = f"<b>%{{fullData.name}}</b><br>epoch %{{x}}: %{{y:{form}}}<extra></extra>"
    traces = []
    for index, found in curves.items():
        common = {"name": as_text(record.methods[index].label), "meta": {"model": index}}
        epochs = [float(epoch) for epoch in found.epochs]
        for network in found.networks if len(found.networks) > 1 else []:
            thin = {"color": stroke(index)["color"], "width": 1}
            quiet = {"hoverinfo": "skip", "hovertemplate": None, "opacity": 0.3}
            traces.append(line(epochs, network, line=thin, **quiet, **common))
        traces.append(line(epochs, found.mean, line=stroke(index), hovertemplate=hover, **common))
    y = axis(title, tickformat=".0%" if is_share else "", rangemode="tozero" if is_share else "normal")
    plot = Plot(traces, layout(axis("epoch"), y))
    text = (lambda value: percent(value, 2)) if is_share else (lambda value: number_text(value, 4))
    table = _learning_table(record, title, curves, text)
    return Card(
        f"learning-{key}", title.capitalize(), _learning_words(record, title, curves, text), plot, table
    )


def _learning_words(
    record: ComparisonRecord, title: str, curves: dict[int, Learning], text: Callable[[float | None], str]
) -> str:
    parts = [
        f"{record.methods[index].label}: from {text(found.mean[0])} to {text(found.mean[-1])}"
        for index, found in curves.items()
    ]
    return f"{title.capitalize()} by epoch, mean of the networks. {'; '.join(parts)}."


def _learning_table(
    record: ComparisonRecord, title: str, curves: dict[int, Learning], text: Callable[[float | None], str]
) -> DataTable:
    """The means, of many epochs the last and some between."""
    rows = []
    for index, found in curves.items():
        last = len(found.mean) - 1
        step = max(-(-len(found.mean) // _MOST_ROWS), 1)
        for place in sorted({*range(0, last + 1, step), last}):
            cells = [record.methods[index].label, str(found.epochs[place]), text(found.mean[place])]
            rows.append(DataRow(cells, index))
    return DataTable(["model", "epoch", f"{title}, mean"], rows)


def _rotations(record: ComparisonRecord) -> list[Rotation]:
    """Of every method's first seed; none where one is missing."""
    found = [method.runs[0].rotation for method in record.methods]
    present = [seen for seen in found if seen is not None]
    return present if record.rotated_digit is not None and len(present) == len(found) else []


class TurnedCell(NamedTuple):
    """A class and how sure of it a method is."""

    predicted: int
    confidence: float
    right: bool


class TurnedTable(NamedTuple):
    """The digit at each angle, with a row of cells a method."""

    rotated_digit: RotatedDigit
    pictures: list[str]
    """PNG in base64, one an angle."""
    rows: list[list[TurnedCell]]


def rotation_table(record: ComparisonRecord) -> TurnedTable | None:
    """What each method's first network calls the digit at each angle."""
    rotations, rotated_digit = _rotations(record), record.rotated_digit
    if rotated_digit is None or not rotations:
        return None
    rows = [
        [
            TurnedCell(predicted, confidence, predicted == rotated_digit.digit)
            for predicted, confidence in zip(seen.predicted, seen.confidence, strict=True)
        ]
        for seen in rotations
    ]
    return TurnedTable(rotated_digit, [_png(image) for image in rotated_digit.images], rows)


def _rotation_cards(
    record: ComparisonRecord, rotated_digit: RotatedDigit, rotations: Sequence[Rotation]
) -> list[Card]:
    several = f"{rotated_digit.examples:,} test {rotated_digit.digit}s"
    views = (
        (
            "confidence",
            f"Confidence in the class, this {rotated_digit.digit}",
            [r.confidence for r in rotations],
        ),
        ("mean", f"Mean confidence, all {several}", [r.mean_confidence for r in rotations]),
        ("kept", f"Share of the {several} still taken for one", [r.recognised for r in rotations]),
    )
    return [_rotation_card(record, rotated_digit, *view) for view in views]


def _rotation_card(
    record: ComparisonRecord, rotated_digit: RotatedDigit, key: str, title: str, curves: Sequence[list[float]]
) -> Card:
    hover = "<b>%{fullData.name}</b><br>%{x}°: %{y:.1%}<extra></extra>"
    labels = [method.label for method in record.methods]
    angles = [float(angle) for angle in rotated_digit.angles]
    traces = [
        line(angles, values, line=stroke(i), name=as_text(labels[i]), meta={"model": i}, hovertemplate=hover)
        for i, values in enumerate(curves)
    ]
    x = axis("degrees", tickvals=rotated_digit.angles[:: max(len(angles) // 6, 1)])
    plot = Plot(traces, layout(x, axis("", range=[0, 1.02], tickformat=".0%")))
    means = "; ".join(f"{label}: {percent(fmean(v))}" for label, v in zip(labels, curves, strict=True))
    rows = [DataRow([labels[i], *(percent(value) for value in values)], i) for i, values in enumerate(curves)]
    table = DataTable(["model", *(f"{angle}°" for angle in rotated_digit.angles)], rows)
    words = f"{title}, by angle. Means over the angles: {means}."
    return Card(f"rotation-{key}", title, words, plot, table)


def _png(image: Sequence[Sequence[float]]) -> str:
    """A grey picture, ink on white, in base64."""
    grey = [bytes(round(255 * (1 - min(max(v, 0.0), 1.0))) for v in row) for row in image]
    header = struct.pack(">IIBBBBB", len(grey[0]) if grey else 0, len(grey), 8, 0, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + row for row in grey), 9)
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", lines), (b"IEND", b""))
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()
