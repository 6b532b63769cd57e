"""Figures of evaluations for a paper."""

import re
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib import rc_context
from msgspec.structs import replace

from beliefmatch.experiments.evaluation_record import Bins, Curve
from beliefmatch.report import evaluation_figures, figure_parts
from beliefmatch.report.evaluation_bins import drawn_bins, wilson
from beliefmatch.report.evaluation_figures import evaluation_files
from evaluation_records import hostile, model, single_example, three

STARTS = {"svg": b"<?xml", "pdf": b"%PDF-", "png": b"\x89PNG\r\n\x1a\n"}


@pytest.fixture(scope="module")
def files():
    return dict(evaluation_files(three()))


@pytest.fixture
def quick(monkeypatch):
    """Only the format that is quickest to write."""
    monkeypatch.setattr(evaluation_figures, "_KINDS", ("svg",))


def test_each_figure_comes_as_svg_pdf_and_png(files):
    figures = ["class_error", "entropy_noise", "entropy_svhn", "reliability", "risk_coverage", "roc"]
    assert sorted(files) == sorted(f"{name}.{kind}" for name in figures for kind in STARTS)
    for name, content in files.items():
        assert content.startswith(STARTS[name.rpartition(".")[2]]), name


def test_the_same_records_give_the_same_bytes(files):
    again = evaluation_files(three())
    for _ in range(6):  # two figures
        name, content = next(again)
        assert content == files[name], name
    assert b"CreationDate" not in files["roc.pdf"] and b"<dc:date>" not in files["roc.svg"]


@pytest.mark.usefixtures("quick")
def test_the_readers_settings_neither_matter_nor_change(files):
    with rc_context({"text.usetex": True, "lines.linewidth": 9.0, "font.size": 30}):
        before = dict(matplotlib.rcParams)
        name, content = next(evaluation_files(three()))
        assert dict(matplotlib.rcParams) == before
    assert content == files[name]


@pytest.mark.usefixtures("quick")
def test_hostile_names_are_drawn_as_text_into_files_with_tame_names():
    files = dict(evaluation_files([replace(record, name=f"{record.name} $") for record in hostile()[:4]]))
    assert all(re.fullmatch(r"[a-z0-9_]+\.svg", name) for name in files)
    assert len(files) == 4 + 3
    for content in files.values():
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(content).iter()}
        assert not tags & {"script", "image", "a"}


def test_dollars_are_no_mathematics_and_unknown_signs_become_boxes():
    label = figure_parts.drawn_text
    assert label("$x^2$") == r"\$x^2\$"
    assert label("漢 🦊 é") == "□ □ é"
    assert label("_private").strip() == "_private" and not label("_private").startswith("_")


def test_file_names_stay_inside_the_directory_and_apart():
    taken = {}
    for name in ("../../etc/passwd", "a/b", "a b", "A B", "", "x" * 300, "שלום"):
        made = evaluation_figures.figure_name(f"entropy_{name}", taken)
        assert re.fullmatch(r"[a-z0-9_]{1,60}", made)
        taken[made] = name
    assert len(taken) == 7


@pytest.mark.usefixtures("quick")
def test_legends_name_every_model():
    models = (model("_first", examples=40, ood=()), model("second", index=1, examples=40, ood=()))
    figure = evaluation_figures._risk_coverage(models)
    assert [text.get_text().strip() for text in figure.legends[0].get_texts()] == ["_first", "second"]


def test_curves_are_those_of_the_record():
    figure = evaluation_figures._risk_coverage(three())
    lines = [line for line in figure.axes[0].lines if line.get_linestyle() != "None"]
    for line, record in zip(lines, three(), strict=True):
        assert list(line.get_xdata()) == record.risk_coverage.x
        assert list(line.get_ydata()) == record.risk_coverage.y
    upper, lower = evaluation_figures.reliability_figure(three()).axes
    lines = [line for line in upper.lines[1:] if line.get_linestyle() != "None"]
    for line, record in zip(lines, three(), strict=True):
        drawn = [y for y in line.get_ydata() if y == y]
        assert drawn == [
            group.accuracy for group in drawn_bins(record.reliability) if group and group.examples >= 10
        ]
    shares = [patch.get_data().values.sum() for patch in lower.patches]
    assert shares == pytest.approx([1.0] * 3)


@pytest.mark.usefixtures("quick")
def test_one_example_and_no_ood_set_are_enough():
    assert len(dict(evaluation_files([single_example()]))) == 4


@pytest.mark.usefixtures("quick")
def test_empty_curves_are_drawn_empty():
    nothing = Curve([], [])
    record = replace(model(examples=40), entropy=nothing, risk_coverage=nothing, misclassification=[])
    assert len(dict(evaluation_files([record]))) == 6


def test_every_group_has_an_interval_and_thin_ones_are_pale():
    bins = Bins(
        [0.0, 0.25, 0.5, 0.75],
        [0.25, 0.5, 0.75, 1.0],
        [3, 20, 0, 40],
        [0.2, 0.4, None, 0.9],
        [0, 0.5, None, 1],
    )
    upper, lower = evaluation_figures.reliability_figure([replace(model(examples=40), reliability=bins)]).axes
    firm, pale = upper.lines[1:]
    assert [y if y == y else None for y in firm.get_ydata()] == [0.5, None, 1]
    assert list(pale.get_ydata()) == [0] and pale.get_linestyle() == "None" and pale.get_alpha() < 0.5
    ends = [path.vertices[:, 1].tolist() for bars in upper.collections for path in bars.get_paths()]
    assert ends == [pytest.approx(wilson(*seen)) for seen in ((0.5, 20), (1, 40), (0, 3))]
    assert lower.get_ylabel().split() == ["share", "of", "the", "examples"]


def test_the_axes_of_roc_curves_say_what_is_flagged():
    axes = evaluation_figures._roc(three()).axes
    assert [(a.get_title(), a.get_xlabel(), a.get_ylabel()) for a in axes if a.get_visible()] == [
        ("Wrong predictions", "right flagged", "wrong flagged"),
        ("svhn", "in-distribution flagged", "OOD flagged"),
        ("noise", "in-distribution flagged", "OOD flagged"),
    ]
