"""The figure of the turning digit: what each method calls it at each angle, and how sure it is."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from beliefmatch.experiments.records import Compared, ComparisonRecord, Rotation, Turning
from beliefmatch.report.figure_parts import drawn_text, model_line

__all__ = ["turned_figure", "turning_figure"]

_RIGHT, _WRONG = "#0072B2", "#D55E00"  # of Okabe and Ito's, which colour-blind readers tell apart


def turning_figure(record: ComparisonRecord, turning: Turning) -> Figure:
    """`turned_figure` of a comparison, by the first seed of each method."""
    labels = [method.label for method in record.methods]
    return turned_figure(labels, [_rotation(method) for method in record.methods], turning)


def turned_figure(labels: Sequence[str], seen: Sequence[Rotation], turning: Turning) -> Figure:
    """Pictures above a table of classes shaded by their confidence, and means over all digits below."""
    labels = [drawn_text(label, 36) for label in labels]
    width = 1.0 + 0.07 * max(map(len, labels)) + 0.52 * len(turning.angles)
    figure = Figure(figsize=(width, 3.6 + 0.42 * len(labels)), layout="constrained")
    figure.suptitle(f"How sure are the networks when a {turning.digit} is turned?", fontsize=13)
    ratios = [0.9 + 0.42 * len(labels), 2.4]
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=ratios).flat
    pictures, table = upper.subplots(2, 1, height_ratios=[1.3, len(labels)], sharex=True)
    _draw_pictures(pictures, turning)
    _draw_table(table, seen, turning)
    table.set_yticks(range(len(labels)), labels, fontsize=9)
    _draw_samples(table, len(labels))
    confidence, recognised = lower.subplots(1, 2, sharex=True, sharey=True)
    several = f"{turning.examples:,} test {turning.digit}s"
    for index, rotation in enumerate(seen):
        confidence.plot(turning.angles, rotation.mean_confidence, label=labels[index], **model_line(index))
        recognised.plot(turning.angles, rotation.recognised, **model_line(index))
    confidence.set_title(f"mean confidence, all {several}")
    recognised.set_title(f"still taken for a {turning.digit}, share of all {several}")
    for axes in (confidence, recognised):
        axes.set(ylim=(0, 1.02), xticks=turning.angles[:: max(len(turning.angles) // 6, 1)], xlabel="degrees")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def _draw_samples(axes: Axes, methods: int) -> None:
    """Beside each name the line that stands for it below."""
    axes.tick_params(axis="y", pad=30)
    for index in range(methods):
        place = axes.get_yaxis_transform()
        axes.plot([-0.034, -0.006], [index] * 2, transform=place, clip_on=False, **model_line(index))


def _rotation(method: Compared) -> Rotation:
    seen = method.runs[0].rotation
    assert seen is not None  # who has none is not drawn
    return seen


def _draw_pictures(axes: Axes, turning: Turning) -> None:
    """Each image stands above its column."""
    axes.set_axis_off()
    for place, image in enumerate(turning.images):
        extent = (place - 0.44, place + 0.44, 0, 1)
        axes.imshow(image, cmap="gray_r", vmin=0, vmax=1, extent=extent, aspect="auto")
    axes.set(xlim=(-0.5, len(turning.images) - 0.5), ylim=(0, 1))


def _draw_table(axes: Axes, rotations: Sequence[Rotation], turning: Turning) -> None:
    """A cell holds the class and its confidence; the surer, the deeper, and wrong ones in another colour."""
    for row, seen in enumerate(rotations):
        for place, (predicted, confidence) in enumerate(zip(seen.predicted, seen.confidence, strict=True)):
            colour = _RIGHT if predicted == turning.digit else _WRONG
            cell = {"facecolor": colour, "alpha": 0.85 * confidence**2, "linewidth": 0}
            axes.add_patch(Rectangle((place - 0.48, row - 0.46), 0.96, 0.92, **cell))
            colour = "white" if confidence > 0.92 else "black"
            ink: dict[str, Any] = {"color": colour, "ha": "center", "va": "center"}
            axes.text(place, row - 0.14, f"{predicted}", fontsize=10, fontweight="bold", **ink)
            axes.text(place, row + 0.27, f"{100 * confidence:.0f} %", fontsize=6, **ink)
    axes.set(xlim=(-0.5, len(turning.angles) - 0.5), ylim=(len(rotations) - 0.5, -0.5))
    axes.set_xticks(range(len(turning.angles)), [f"{angle}°" for angle in turning.angles], fontsize=8)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(
        f"class and confidence, first seed; blue: a {turning.digit}, orange: wrong; the deeper, the surer",
        fontsize=8,
    )
