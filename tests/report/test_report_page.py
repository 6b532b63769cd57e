"""The page of an evaluation as text: what it holds. A browser opens it elsewhere."""

import json
import re
from itertools import pairwise

import plotly.graph_objects as go
import pytest
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from beliefmatch.experiments.evaluation_record import Confusion, Curve, EvaluationRecord, Number
from beliefmatch.report.evaluation_figures import evaluation_files
from beliefmatch.report.evaluation_tables import to_csv, to_markdown
from beliefmatch.report.page import render_page
from beliefmatch.report.page_words import at, median
from evaluation_records import hostile, model, single_example, three
from html_page import Page, data_of, row


@pytest.fixture(scope="module")
def text():
    return render_page(three())


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture(scope="module")
def hostile_page():
    return Page(render_page(hostile()))


def test_plotly_is_there_once_and_the_rest_is_small(text):
    assert text.count("* plotly.js v") == 1
    plotly = max(map(len, re.findall(r"<script>(.*?)</script>", text, re.DOTALL)))
    assert len(text) - plotly < 700_000


def test_every_plot_is_one_that_plotly_accepts(page, hostile_page):
    for found in (page, hostile_page):
        for plot in data_of(found)["plots"]:
            figure = go.Figure(
                {"data": plot["data"], "layout": plot["layout"]}
            )  # raises at what it does not know
            assert len(figure.data) == len(plot["data"]) > 0


def test_every_plot_has_a_place_with_words_that_give_its_numbers(page):
    plots = {f"plot-{plot['id']}" for plot in data_of(page)["plots"]}
    places = {element["id"]: element for element in page.all("div", role="img")}
    assert set(places) == plots and len(plots) == 1 + 2 * 3 + 3 + 1 + 2
    for record in three():
        assert (
            f"expected calibration error {100 * record.scores['ece'].value:.1f}\u00a0%"
            in (places["plot-reliability"]["aria-label"])
        )
        area = record.ood[0].detections[0].auroc.value
        assert f"{record.name}: AUROC {100 * area:.1f}\u00a0%" in places["plot-roc-1"]["aria-label"]
        assert (
            f"{100 * record.risk_coverage.y[-1]:.2f}\u00a0% when answering 100\u00a0%"
            in (places["plot-risk"]["aria-label"])
        )
    figures = page.all("figure")
    assert len(page.all("details")) == len(figures)  # and the numbers themselves


def test_every_trace_but_the_diagonal_belongs_to_a_model(page):
    for plot in data_of(page)["plots"]:
        models = [trace["meta"]["model"] for trace in plot["data"] if "meta" in trace]
        assert len(models) >= len(plot["data"]) - 1
        assert set(models) <= {0, 1, 2}


def test_curves_in_the_page_are_those_of_the_record(page):
    plots = {plot["id"]: plot for plot in data_of(page)["plots"]}
    for index, record in enumerate(three()):
        (curve,) = (
            trace
            for trace in plots["roc-2"]["data"]
            if trace.get("meta") == {"model": index, "score": "mutual_information"}
        )
        truth = record.ood[1].detections[2].roc
        assert curve["x"] == pytest.approx(truth.x, rel=1e-4) and curve["y"] == pytest.approx(
            truth.y, rel=1e-4
        )
        points, *_, steps = (
            trace
            for trace in plots["reliability"]["data"]
            if trace.get("meta") == {"model": index, "bins": "width"}
        )
        total = sum(record.reliability.count)
        assert sum(steps["y"][:-1]) == pytest.approx(1, rel=1e-3)
        assert f"of {total:,} examples" in points["text"][0]


def test_models_look_different_in_more_than_colour(page):
    (plot,) = (plot for plot in data_of(page)["plots"] if plot["id"] == "risk")
    lines = [trace["line"] for trace in plot["data"] if trace["mode"] == "lines"]
    assert len({line["color"] for line in lines}) == len({line["dash"] for line in lines}) == 3


def test_the_best_values_are_marked_for_eyes_and_ears(page):
    cells = row(page, "AUROC: svhn")
    assert [cell["class"].split()[1:] for cell in cells] == [[], [], ["best"]]
    assert cells[2]["text"].startswith("★best ")
    assert "close" in row(page, "Negative log-likelihood")[1]["class"]
    assert "interval overlaps that of the best" in row(page, "Negative log-likelihood")[1]["text"]
    assert all(cell["class"] == "num" for cell in row(page, "Mean confidence"))
    values = [record.scores["error"].value for record in three()]
    best = row(page, "Error")[values.index(min(values))]
    assert "best" in best["class"] and f"{100 * min(values):.2f}" in best["text"]


def test_one_model_is_best_of_nothing():
    page = Page(render_page([model(examples=80)]))
    assert not [cell for cell in page.all("td") if "best" in cell.get("class", "")]
    assert page.all("h1")[0]["text"] == "softmax"


def test_missing_numbers_say_why():
    why = 'because <b>"so"</b>'
    first = replace(three()[0], scores={**three()[0].scores, "nll": Number(None, why=why)})
    cell = row(Page(render_page([first, *three()[1:]])), "Negative log-likelihood")[0]
    assert cell["title"] == why and cell["text"] == f"—{why}"


def test_headings_never_skip_a_level_and_ids_are_used_once(page, hostile_page):
    for found in (page, hostile_page):
        levels = [
            int(element["tag"][1]) for element in found.elements if re.fullmatch("h[1-6]", element["tag"])
        ]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        ids = [element["id"] for element in found.elements if "id" in element]
        assert len(ids) == len(set(ids))
        for link in found.all("a"):
            assert link["href"].removeprefix("#") in ids
        assert found.all("main") and found.all("nav") and found.all("header") and found.all("footer")


def test_every_control_has_a_name(page):
    assert len(page.all("input", type="checkbox")) == 3
    labelled = [element["text"].split() for element in page.all("label")]
    assert all(labelled) and len(labelled) == len(page.all("input")) + len(page.all("select"))
    options = [element["value"] for element in page.all("option")]
    assert options[:2] == ["width", "mass"] and options[2] == "entropy" and len(options) == 8


@pytest.mark.parametrize("count", [1, 2, 8])
def test_any_number_of_models_is_shown(count):
    page = Page(render_page([model(f"m{i}", index=i, examples=60, images=False) for i in range(count)]))
    assert len(page.all("input", type="checkbox")) == count
    assert len(row(page, "Brier score")) == count


def test_one_example_without_ood_sets_makes_a_page():
    page = Page(render_page([single_example()]))
    assert not page.all("section", id="entropy")
    assert "1 labelled example, 2 classes" in page.all("p", **{"class": "lead"})[0]["text"]
    assert "one of the two groups is empty" in row(page, "AUROC: wrong predictions")[0]["text"]


def test_a_thousand_classes_keep_the_page_light():
    names = [f"class {index}" for index in range(1000)]
    records = [model(f"m{i}", index=i, classes=names, examples=1500, images=False) for i in range(2)]
    text = render_page(records)
    plotly = max(map(len, re.findall(r"<script>(.*?)</script>", text, re.DOTALL)))
    assert len(text) - plotly < 700_000
    assert "30 of 1,000 classes" in text and "Most frequent mistakes" in text


def test_a_matrix_of_many_classes_is_drawn_and_a_huge_one_is_not():
    def drawn(classes):
        record = model(classes=[str(i) for i in range(classes)], examples=200, ood=(), images=False)
        matrix = [[1] * classes for _ in range(classes)]
        page = Page(render_page([replace(record, confusion=Confusion(matrix, []))]))
        return [plot["id"] for plot in data_of(page)["plots"] if plot["id"].startswith("confusion")]

    assert (drawn(16), drawn(17), drawn(101)) == ([], ["confusion-0"], [])


def test_models_of_differing_size_are_warned_about():
    records = [model("a", examples=50), model("b", index=1, examples=60)]
    assert "different numbers of examples" in render_page(records)
    assert "different numbers of examples" not in render_page(three())


def test_a_record_without_most_things_makes_a_page():
    nothing = Curve([], [])
    record = model(examples=40, images=False)
    bare = replace(
        record, scores={}, misclassification=[], ood=[], risk_thresholds=[], classes=[], mistakes=[],
        doubtful=[], conventions={}, settings={}, versions={}, hardware={}, entropy=nothing,
        risk_coverage=nothing, confusion=Confusion(None, []),
    )  # fmt: skip
    assert not Page(render_page([bare])).all("section", id="detection")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_no_number_that_is_not_finite_breaks_the_page(number):
    def spoil(value):
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spoil(item) for item in value]
        if isinstance(value, Struct):
            return replace(value, **{name: spoil(getattr(value, name)) for name in value.__struct_fields__})
        return number if isinstance(value, float) else value

    record = spoil(model(examples=60, images=False))
    with pytest.raises(ValueError, match="not JSON"):
        EvaluationRecord.from_json(json.dumps(to_builtins(record)))
    data = data_of(Page(render_page([record])))
    assert "NaN" not in json.dumps(data) and "Infinity" not in json.dumps(data)
    assert ",nan," not in to_csv([record]) and "nan" not in to_markdown([record])
    assert len(dict(evaluation_files([record]))) == 15


def test_records_read_back_make_the_same_page(text):
    assert render_page([EvaluationRecord.from_json(record.to_json()) for record in three()]) == text


def test_curves_are_read_between_their_points():
    curve = Curve([0.0, 0.5, 1.0], [0.0, 1.0, 1.0])
    assert at(curve, 0.25) == 0.5 and at(curve, 1.0) == 1.0 and at(curve, 1.1) is None
    assert median(Curve([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])) == 1.0
    assert median(Curve([], [])) is None and at(Curve([0.3], [0.7]), 0.3) == 0.7


def test_no_records_are_refused():
    with pytest.raises(ValueError, match="`records`"):
        render_page([])
