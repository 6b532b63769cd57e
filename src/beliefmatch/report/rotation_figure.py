"""The figure of the rotated digit: what each method calls it at each angle, and how sure it is."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from beliefmatch.experiments.records import Compared, ComparisonRecord, RotatedDigit, Rotation
from beliefmatch.report.figure_parts import drawn_text, model_line

__all__ = ["rotation_figure", "turned_figure"]

_RIGHT, _WRONG = "#0072B2", "#D55E00"  # of Okabe and Ito's, which colour-blind readers tell apart


def rotation_figure(record: ComparisonRecord, rotated_digit: RotatedDigit) -> Figure:
    """`turned_figure` of a comparison, by the first seed of each method."""
    labels = [method.label for method in record.methods]
    return turned_figure(labels, [_rotation(method) for method in record.methods], rotated_digit)


def turned_figure(labels: Sequence[str], seen: Sequence[Rotation], rotated_digit: RotatedDigit) -> Figure:
    """Pictures above a table of classes shaded by their confidence, and means over all digits below."""
    labels = [drawn_text(label, 36) for label in labels]
    width = 1.0 + 0.07 * max(map(len, labels)) + 0.52 * len(rotated_digit.angles)
    figure = Figure(figsize=(width, 3.6 + 0.42 * len(labels)), layout="constrained")
    figure.suptitle(f"How sure are the networks when a {rotated_digit.digit} is turned?", fontsize=13)
    ratios = [0.9 + 0.42 * len(labels), 2.4]
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=ratios).flat
    pictures, table = upper.subplots(2, 1, height_ratios=[1.3, len(labels)], sharex=True)
    _draw_pictures(pictures, rotated_digit)
    _draw_table(table, seen, rotated_digit)
    table.set_yticks(range(len(labels)), labels, fontsize=9)
    _draw_samples(table, len(labels))
    confidence, recognised = lower.subplots(1, 2, sharex=True, sharey=True)
    several = f"{rotated_digit.examples:,} test {rotated_digit.digit}s"
    for index, rotation in enumerate(seen):
        confidence.plot(
            rotated_digit.angles, rotation.mean_confidence, label=labels[index], **model_line(index)
        )
        recognised.plot(rotated_digit.angles, rotation.recognised, **model_line(index))
    confidence.set_title(f"mean confidence, all {several}")
    recognised.set_title(f"still taken for a {rotated_digit.digit}, share of all {several}")
    for axes in (confidence, recognised):
        axes.set(
            ylim=(0, 1.02),
            xticks=rotated_digit.angles[:: max(len(rotated_digit.angles) // 6, 1)],
            xlabel="degrees",
        )
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


def _draw_pictures(axes: Axes, rotated_digit: RotatedDigit) -> None:
    """Each image stands above its column."""
    axes.set_axis_off()
    for place, image in enumerate(rotated_digit.images):
        extent = (place - 0.44, place + 0.44, 0, 1)
        axes.imshow(image, cmap="gray_r", vmin=0, vmax=1, extent=extent, aspect="auto")
    axes.set(xlim=(-0.5, len(rotated_digit.images) - 0.5), ylim=(0, 1))


def _draw_table(axes: Axes, rotations: Sequence[Rotation], rotated_digit: RotatedDigit) -> None:
    """A cell holds the class and its confidence; the surer, the deeper, and wrong ones in another colour."""
    for row, seen in enumerate(rotations):
        for place, (predicted, confidence) in enumerate(zip(seen.predicted, seen.confidence, strict=True)):
            colour = _RIGHT if predicted == rotated_digit.digit else _WRONG
            cell = {"facecolor": colour, "alpha": 0.85 * confidence**2, "linewidth": 0}
            axes.add_patch(Rectangle((place - 0.48, row - 0.46), 0.96, 0.92, **cell))
            colour = "white" if confidence > 0.92 else "black"
            ink: dict[str, Any] = {"color": colour, "ha": "center", "va": "center"}
            axes.text(place, row - 0.14, f"{predicted}", fontsize=10, fontweight="bold", **ink)
            axes.text(place, row + 0.27, f"{100 * confidence:.0f} %", fontsize=6, **ink)
    axes.set(xlim=(-0.5, len(rotated_digit.angles) - 0.5), ylim=(len(rotations) - 0.5, -0.5))
    axes.set_xticks(
        range(len(rotated_digit.angles)), [f"{angle}°" for angle in rotated_digit.angles], fontsize=8
    )
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(
        f"class and confidence, first seed; blue: a {rotated_digit.digit}, "
        "orange: wrong; the deeper, the surer",
        fontsize=8,
    )
