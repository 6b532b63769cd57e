"""Figures of a comparison, drawn without touching matplotlib's global state."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from beliefmatch.report.labels import COLOURS, MARKERS, method_label

if TYPE_CHECKING:  # not at run time: it imports torch
    from beliefmatch.experiments.records import CompareRecord, RunRecord

__all__ = ["render", "rotation_figure", "rotation_files"]

# Where the predicted classes stand, above a confidence of one.
_ROWS_FROM = 1.12
_ROW_HEIGHT = 0.13


def render(figure: Figure, kind: str) -> bytes:
    """The bytes of a figure as a "png", "svg" or "pdf" file; the same figure gives the same bytes."""
    buffer = BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": "beliefmatch"}):
        figure.savefig(buffer, format=kind, dpi=160, metadata=undated)
    return buffer.getvalue()


def rotation_files(record: CompareRecord) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file that the figure of the turning digit is kept in."""
    figure = rotation_figure(record)
    for kind in ("png", "svg"):
        yield f"rotated_three.{kind}", render(figure, kind)


def rotation_figure(record: CompareRecord) -> Figure:
    """A digit turning upside down, and how sure the networks of the first seed are of it."""
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    figure.suptitle(f"How sure are the networks when a {record.digit} is turned?", fontsize=17)
    pictures, single, average = figure.subplots(3, 1, height_ratios=[1, 3, 3], sharex=True)
    _draw_pictures(pictures, record)
    for index, name in enumerate(record.config.methods):
        run = record.of(name)[0]
        _draw_single(single, record, run, index)
        _draw_average(average, record, run, index)
    single.set_ylim(0, _ROWS_FROM + _ROW_HEIGHT * len(record.config.methods))
    average.set_ylim(0, 1.05)
    _style(single, f"the {record.digit} above; on top the class that each network predicts")
    _style(
        average,
        f"mean of all {record.digit_examples} test {record.digit}s; "
        f"dashed: share still taken for a {record.digit}",
    )
    single.legend(loc="lower left", ncols=2, fontsize=12)
    average.set_xlabel("rotation in degrees", fontsize=13)
    return figure


def _draw_pictures(axes: Axes, record: CompareRecord) -> None:
    """Each image stands above its angle, on the x axis shared with the curves."""
    axes.set_axis_off()
    half = 0.46 * (record.angles[1] - record.angles[0])
    for angle, image in zip(record.angles, record.images, strict=True):
        axes.imshow(
            image,
            cmap="gray_r",
            vmin=0,
            vmax=1,
            extent=(angle - half, angle + half, 0, 1),
            aspect="auto",
        )
    axes.set_xlim(record.angles[0] - 1.1 * half, record.angles[-1] + 1.1 * half)
    axes.set_ylim(0, 1)


def _draw_single(axes: Axes, record: CompareRecord, run: RunRecord, index: int) -> None:
    """The confidence curve of one network, and its predicted classes in a row above the curves."""
    seen, colour = run.rotation, COLOURS[index % len(COLOURS)]
    top = _ROWS_FROM + _ROW_HEIGHT * (len(record.config.methods) - 1)
    axes.plot(record.angles, seen.confidence, label=method_label(run), **_line(index))
    for angle, predicted in zip(record.angles, seen.predicted, strict=True):
        axes.text(
            angle,
            top - _ROW_HEIGHT * index,
            f"{predicted}",
            ha="center",
            va="center",
            fontsize=13,
            fontweight="bold",
            color=colour,
        )


def _draw_average(axes: Axes, record: CompareRecord, run: RunRecord, index: int) -> None:
    seen = run.rotation
    axes.plot(record.angles, seen.mean_confidence, **_line(index))
    dashed = {"linestyle": "--", "marker": "", "linewidth": 1.6}
    axes.plot(record.angles, seen.recognised, **{**_line(index), **dashed})


def _line(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linewidth": 2.2,
        "markersize": 7,
    }


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=13)
    axes.set_ylabel("confidence", fontsize=13)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xticks(range(0, 181, 30))
    axes.tick_params(labelsize=12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
