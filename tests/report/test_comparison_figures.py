"""Figures of a comparison."""

from io import BytesIO
from statistics import fmean, stdev
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from PIL import Image

from beliefmatch.report import figures
from beliefmatch.report.comparison_curves import learning_curves
from beliefmatch.report.comparison_rows import presentable_comparison
from beliefmatch.report.figures import comparison_figures
from beliefmatch.report.rotation_figure import rotation_figure
from comparison_records import EPOCHS, FIVE, comparison, five, hostile_comparison

THREE = comparison(FIVE[2:], ood=("noise",))
STARTS = {"svg": b"<?xml", "pdf": b"%PDF-", "png": b"\x89PNG\r\n\x1a\n"}


@pytest.fixture(scope="module")
def files():
    return dict(comparison_figures(THREE))


def test_each_figure_comes_as_svg_pdf_and_png(files):
    names = ["overview", "learning_curves", "rotated_digit"]
    assert sorted(files) == sorted(f"{name}.{kind}" for name in names for kind in STARTS)
    for name, content in files.items():
        assert content.startswith(STARTS[name.rpartition(".")[2]]), name


def test_pictures_have_a_readable_size_and_the_same_bytes_each_time(files, monkeypatch):
    for name in ("overview", "learning_curves", "rotated_digit"):
        assert Image.open(BytesIO(files[f"{name}.png"])).width >= 1200, name
    monkeypatch.setattr(figures, "_KINDS", ("svg",))
    name, content = next(comparison_figures(THREE))
    assert content == files[name]


def test_the_overview_shows_means_deviations_and_every_panel():
    drawn = figures._overview(five())
    panels = [axes for axes in drawn.axes if axes.get_visible()]
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in panels]
    assert titles == [
        "error ↓", "NLL (nats) ↓", "ECE ↓", "AUROC, natural patches ↑", "AUROC, rotated digits ↑",
        "AUROC, noise ↑", "training (s)", "prediction (ms an image)",
    ]  # fmt: skip
    for method, bar in zip(five().methods, panels[0].containers, strict=True):
        errors = [run.test.error for run in method.runs]
        assert bar.lines[0].get_xdata()[0] == pytest.approx(fmean(errors))
        ((left, _), (right, _)) = bar.lines[2][0].get_segments()[0]
        assert (right - left) / 2 == pytest.approx(stdev(errors))
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels == [label for _, label in FIVE]
    assert panels[-1].get_xscale() == "log" and panels[-2].get_xscale() == "linear"


def test_learning_curves_have_a_thin_line_a_network_and_a_thick_mean():
    drawn = figures._learning(five())
    loss, error = drawn.axes
    thin = [line for line in loss.lines if line.get_linewidth() < 1]
    thick = [line for line in loss.lines if line.get_linewidth() > 1]
    assert (len(thin), len(thick)) == (4 * 3 + 5 * 3, 5)
    first = [run.curves[0]["loss"] for run in five().methods[0].runs]
    assert thick[0].get_ydata() == pytest.approx([fmean(epoch) for epoch in zip(*first, strict=True)])
    assert list(thick[0].get_xdata()) == list(range(1, EPOCHS + 1))
    assert error.get_title(loc="left") or error.get_title() == "validation error"


def test_gaps_of_a_curve_are_left_out_of_the_mean():
    record = five()
    for place, value in ((0, None), (1, 4.0), (2, 8.0)):
        record.methods[0].runs[place].curves[0]["odd"] = [1.0, value][: 2 if place else 1]
    (found,) = learning_curves(record, "odd").values()
    assert found.mean == [1.0, 6.0]
    for run in record.methods[0].runs:
        del run.curves[0]["odd"]


def test_epochs_without_a_look_at_the_validation_set_are_no_points():
    record = five()
    for run in record.methods[0].runs:
        run.curves[0]["validation_odd"] = [0.5, None, None, 0.25]
    (found,) = learning_curves(record, "validation_odd").values()
    assert found == ([1, 4], [[0.5, 0.25]] * len(record.methods[0].runs), [0.5, 0.25])
    for run in record.methods[0].runs:
        del run.curves[0]["validation_odd"]


def test_the_rotated_digit_has_a_cell_a_method_and_angle():
    shown = presentable_comparison(five(), caller="test")
    drawn = rotation_figure(shown, shown.rotated_digit)
    pictures, table, confidence, recognised = drawn.axes
    assert len(pictures.images) == 13 and len(table.patches) == 5 * 13
    texts = [found.get_text() for found in table.texts]
    first = shown.methods[0].runs[0].rotation
    assert texts[:26:2] == [str(predicted) for predicted in first.predicted]
    assert texts[1:26:2] == [f"{100 * value:.0f} %" for value in first.confidence]
    assert list(confidence.lines[0].get_ydata()) == first.mean_confidence
    assert list(recognised.lines[4].get_ydata()) == shown.methods[4].runs[0].rotation.recognised


def test_hostile_names_are_drawn_as_text(monkeypatch):
    monkeypatch.setattr(figures, "_KINDS", ("svg",))
    record = replace(hostile_comparison(), methods=hostile_comparison().methods[:2])
    for name, content in comparison_figures(record):
        assert ElementTree.fromstring(content).tag.endswith("svg"), name


def test_what_is_not_recorded_is_not_drawn(monkeypatch):
    monkeypatch.setattr(figures, "_KINDS", ("svg",))
    record = comparison(FIVE[:1], seeds=(0,), ood=(), rotated_digit=False)
    record.methods[0].runs[0].curves.clear()
    assert [name for name, _ in comparison_figures(record)] == ["overview.svg"]
