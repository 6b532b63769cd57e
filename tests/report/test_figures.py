"""Figures of evaluations and adaptations."""

import re
from io import BytesIO
from itertools import islice
from statistics import fmean
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib import rc_context
from msgspec.structs import replace
from PIL import Image
from scipy.stats import binomtest

import adaptations
from beliefmatch.experiments.evaluation_record import Bins, Curve
from beliefmatch.report.adaptation_figures import adaptation_figures
from beliefmatch.report.evaluation_figures import evaluation_files
from evaluation_records import hostile, model, single_example, three
from golden import assert_golden
from rendered import STARTS, figure_outline, figures_drawn


def adaptation_files():
    return adaptation_figures(adaptations.record("new"), adaptations.evaluations("new"))


REPORTS = {
    "evaluation": lambda: evaluation_files(three()),
    "adaptation": adaptation_files,
}


def drawn(files):
    with figures_drawn() as collect:
        return collect(files)


def curves(axes):
    return [line for line in axes.lines if line.get_linestyle() != "None"]


@pytest.mark.parametrize("report", REPORTS)
def test_each_figure_has_its_panels_and_comes_as_svg_pdf_and_png(report):
    with figures_drawn():
        kinds = [name.rpartition(".")[2] for name, _ in REPORTS[report]()]
    assert kinds == [*STARTS] * (len(kinds) // 3)
    assert_golden(f"report/{report}_figures.txt", figure_outline(drawn(REPORTS[report]())))


@pytest.mark.parametrize("report", REPORTS)
def test_files_are_what_they_are_called_and_the_same_each_time(report):
    first = dict(islice(REPORTS[report](), 3))  # one figure
    for name, content in first.items():
        assert content.startswith(STARTS[name.rpartition(".")[2]]), name
        assert b"CreationDate" not in content and b"<dc:date>" not in content
    (png,) = (content for name, content in first.items() if name.endswith("png"))
    assert Image.open(BytesIO(png)).width >= 600
    with figures_drawn("svg"), rc_context({"text.usetex": True, "lines.linewidth": 9.0, "font.size": 30}):
        before = dict(matplotlib.rcParams)
        name, content = next(REPORTS[report]())
        assert dict(matplotlib.rcParams) == before
    assert content == first[name]


def test_hostile_names_are_drawn_as_text_into_files_with_tame_names():
    records = [replace(record, name=f"{record.name} $") for record in hostile()[:4]]
    with figures_drawn("svg"):
        files = list(evaluation_files(records))
    assert len(files) == 3 * (4 + 2)
    for name, content in files:
        assert re.fullmatch(r"[a-z0-9_]+\.(svg|pdf|png)", name)
        if name.endswith("svg"):
            tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(content).iter()}
            assert not tags & {"script", "a"}, name


def test_dollars_are_no_mathematics_and_unknown_signs_become_boxes():
    names = ("$x^2$", "漢 🦊 é", "_private")
    sets = ("x" * 40,)
    figures = drawn(evaluation_files([model(name, index=i, ood=sets) for i, name in enumerate(names)]))
    texts = [text.get_text() for text in figures["risk_coverage"].legends[0].get_texts()]
    assert texts[:2] == [r"\$x^2\$", "□ □ é"]
    assert texts[2].strip() == "_private" and not texts[2].startswith("_")  # else matplotlib leaves it out
    panel = figures["roc"].axes[1]
    assert len(panel.get_title(loc="left") or panel.get_title()) == 24


def test_file_names_stay_inside_the_directory_and_apart():
    sets = ("../../etc/passwd", "a/b", "a b", "A B", "", "x" * 300, "שלום")
    names = [name for name in drawn(evaluation_files([model(ood=sets, examples=40)])) if "entropy" in name]
    assert len(names) == 7 and all(re.fullmatch(r"[a-z0-9_]{1,60}", name) for name in names)


def test_little_or_nothing_is_enough_for_a_figure():
    assert len(drawn(evaluation_files([single_example()]))) == 4
    nothing = Curve([], [])
    record = replace(model(examples=40), entropy=nothing, risk_coverage=nothing, misclassification=[])
    assert len(drawn(evaluation_files([record]))) == 6


def test_risk_coverage_curves_are_those_of_the_records():
    (axes,) = drawn(evaluation_files(three()))["risk_coverage"].axes
    for line, record in zip(curves(axes), three(), strict=True):
        assert list(line.get_xdata()) == record.risk_coverage.x
        assert list(line.get_ydata()) == record.risk_coverage.y


def test_bins_of_the_reliability_diagram_have_intervals_and_are_pale_where_examples_are_few():
    bins = Bins(
        [0.0, 0.25, 0.5, 0.75],
        [0.25, 0.5, 0.75, 1.0],
        [3, 20, 0, 40],
        [0.2, 0.4, None, 0.9],
        [0, 0.5, None, 1],
    )
    figures = drawn(evaluation_files([replace(model(examples=40), reliability=bins)]))
    upper, lower = figures["reliability"].axes
    firm, pale = upper.lines[1:]
    assert [y if y == y else None for y in firm.get_ydata()] == [0.5, None, 1]
    assert list(pale.get_ydata()) == [0] and pale.get_linestyle() == "None" and pale.get_alpha() < 0.5
    ends = [path.vertices[:, 1].tolist() for bars in upper.collections for path in bars.get_paths()]
    for found, (right, count) in zip(ends, ((10, 20), (40, 40), (0, 3)), strict=True):
        truth = binomtest(right, count).proportion_ci(method="wilson")
        assert found == pytest.approx([truth.low, truth.high], abs=1e-6)
    assert sum(patch.get_data().values.sum() for patch in lower.patches) == pytest.approx(1.0)


def test_class_errors_are_in_the_order_of_their_mean():
    (axes,) = drawn(evaluation_files(three()))["class_error"].axes
    errors = [[record.classes[at].error for record in three()] for at in range(10)]
    order = sorted(range(10), key=lambda at: (-fmean(errors[at]), -three()[0].classes[at].examples))
    for index, line in enumerate(axes.lines[:3]):
        assert list(line.get_xdata()) == [errors[at][index] for at in order]
    many = model(classes=tuple(map(str, range(50))), examples=400, ood=())
    _, ranks = drawn(evaluation_files([many]))["class_error"].axes
    assert ranks.lines[0].get_ydata()[0] == max(one.error for one in many.classes if one.error is not None)


def test_the_choice_of_lambda_shows_means_and_rings_the_chosen():
    record = adaptations.record("new")
    panel, *_ = drawn(adaptation_files())["choice_of_lambda"].axes
    lines = {line.get_label(): line for line in panel.get_lines()}
    tried = {weight: [] for weight in (0.01, 0.1)}
    for head in record.tried:
        if head.kind == "belief_matching":
            tried[head.options["kl_weight"]].append(head.nll)
    means = [fmean(values) for values in tried.values()]
    assert lines["belief matching"].get_xdata().tolist() == [*tried]
    assert lines["belief matching"].get_ydata().tolist() == pytest.approx(means)
    assert lines["chosen λ"].get_xdata().tolist() == [record.chosen_head.options["kl_weight"]]
    assert lines["chosen λ"].get_ydata()[0] == pytest.approx(min(means))
    softmax = [head.nll for head in record.tried if head.kind == "softmax"]
    levels = [line.get_ydata()[0] for line in panel.get_lines() if len({*line.get_ydata()}) == 1]
    assert any(level == pytest.approx(fmean(softmax)) for level in levels)
