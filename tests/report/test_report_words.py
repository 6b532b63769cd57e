"""The page of an evaluation: what its captions, axes and marks say, and that it is so."""

import re

import pytest
from msgspec.structs import replace
from scipy.stats import binomtest

from beliefmatch.experiments.evaluation_record import Bins, Confusion, RiskThresholdRecord
from beliefmatch.report.evaluation_bins import joined, thin, wilson
from beliefmatch.report.page import render_page
from evaluation_records import model, single_example, three
from html_page import Page, data_of, row

BINS = Bins(
    [0.0, 0.2, 0.4, 0.6, 0.8],
    [0.2, 0.4, 0.6, 0.8, 1.0],
    [0, 30, 10, 9, 50],
    [None, 0.3, 0.5, 0.7, 0.9],
    [None, 0.4, 0.5, 1.0, 0.96],
)


@pytest.fixture(scope="module")
def text():
    return render_page(three())


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def notes(page):
    return [" ".join(element["text"].split()) for element in page.all("p", **{"class": "note"})]


def plot(page, name):
    (found,) = (plot for plot in data_of(page)["plots"] if plot["id"] == name)
    return found


@pytest.mark.parametrize(("right", "count"), [(0, 3), (3, 3), (7, 10), (480, 500), (1, 1)])
def test_intervals_of_the_accuracy_are_wilsons(right, count):
    truth = binomtest(right, count).proportion_ci(method="wilson")
    assert wilson(right / count, count) == pytest.approx((truth.low, truth.high), abs=1e-6)


def test_lines_join_neighbouring_groups_of_ten_examples_or_more():
    assert [group and group.examples for group in joined(BINS)] == [30, 10, None, 50]
    assert [group.examples for group in thin(BINS)] == [9]


def test_the_reliability_diagram_shows_how_sure_it_is():
    record = replace(model(examples=99, images=False), reliability=BINS)
    found = plot(Page(render_page([record])), "reliability")
    firm, pale, steps = (t for t in found["data"] if t.get("meta") == {"model": 0, "bins": "width"})
    assert firm["y"] == [0.4, 0.5, None, 0.96] and firm["connectgaps"] is False
    low, high = wilson(0.4, 30)
    assert firm["error_y"]["array"][0] == pytest.approx(high - 0.4, rel=1e-4)
    assert firm["error_y"]["arrayminus"][0] == pytest.approx(0.4 - low, rel=1e-4)
    assert pale["y"] == [1.0] and pale["mode"] == "markers" and pale["opacity"] < 0.5
    assert "9 of 99 examples" in pale["text"][0] and "30 of 99 examples" in firm["text"][0]
    assert "30 of 99 examples" in steps["text"][1]
    assert found["layout"]["yaxis2"]["title"]["text"].replace("<br>", " ") == "share of the examples"


def test_axes_and_rows_of_detection_say_what_is_flagged_and_what_passes(page):
    for name, ood, in_distribution in (("roc-0", "wrong", "right"), ("roc-1", "OOD", "in-distribution")):
        found = plot(page, name)
        axes = [found["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
        assert axes == [f"{in_distribution} flagged", f"{ood} flagged"]
        assert f"{in_distribution} flagged %{{x:.1%}}" in found["data"][1]["hovertemplate"]
        assert row(page, f"AUPR, {ood} positive") and row(page, f"AUPR, {in_distribution} positive")
        assert row(page, f"{ood[0].upper()}{ood[1:]} that pass where 95 % of {in_distribution} pass (FPR95)")


def test_old_and_wrong_words_are_gone(page, text):
    body = re.sub(r'<img src="[^"]*"', "", text[: text.index('<script type="application/json"')])
    for words in ("isclassification", "positive rate", "TPR", "told apart", "outside positive"):
        assert words not in body, words
    assert sum(note.count("AUROC: area under the ROC curve") for note in notes(page)) == 1
    assert sum(note.count("AUPR: area under the precision-recall curve") for note in notes(page)) == 1
    assert any("≈ its interval overlaps that of the best" in note for note in notes(page))


def test_precision_of_wrong_predictions_is_shown_with_chance_and_unmarked(page):
    cells = row(page, "AUPR, wrong positive")
    assert [cell["class"] for cell in cells] == ["num"] * 3
    for cell, record in zip(cells, three(), strict=True):
        assert cell["text"].endswith(f"chance {100 * record.scores['error'].value:.2f}")


def test_values_without_an_interval_have_no_mark(page):
    assert all(cell["class"] == "num" for cell in row(page, "Brier: reliability"))


def test_confusion_without_a_matrix_says_so(page):
    record = replace(model(examples=60, images=False), confusion=Confusion(None, [[0, 1, 3]]))
    without = notes(Page(render_page([record])))
    assert "Too many classes for a matrix: the most frequent mistakes." in without
    assert not any("blue" in note for note in without)
    assert any("blue" in note for note in notes(page)) and not any("Too many" in note for note in notes(page))


def test_promises_are_rounded_to_the_safe_side_or_answer_everything():
    kept = [
        RiskThresholdRecord(0.05, 0.05, 0.70001, 0.6, 0.01, 0.04),
        RiskThresholdRecord(0.2, 0.05, 0.0, 1.0, 0.1, 0.15),
    ]
    page = Page(render_page([replace(model(examples=60, images=False), risk_thresholds=kept)]))
    assert row(page, "error ≤ 5 %")[0]["text"] == "answers 60.0\u00a0%confidence ≥ 0.7001"
    assert row(page, "error ≤ 20 %")[0]["text"] == "answers everything"
    assert any("Open marks show a risk threshold and its coverage" in n for n in notes(page))
    (marks,) = (trace for trace in plot(page, "risk")["data"] if trace["mode"] == "markers")
    assert marks["text"][0].endswith("confidence ≥ 0.7001") and marks["text"][1].endswith(
        "answers everything"
    )


def test_numbers_have_units_and_stand_apart_from_names(page):
    heads = [" ".join(element["text"].split()) for element in page.all("th", scope="row")]
    assert any(head.startswith("Negative log-likelihood (nats)") for head in heads)
    assert any(head.startswith("Mean predictive entropy (nats)") for head in heads)
    details = [element["text"] for element in page.all("dd")]
    assert any(re.fullmatch(r"\w+ · \d+\.\d\u00a0%", detail) for detail in details)
    assert any(re.fullmatch(r"entropy \d\.\d\d\u00a0nats", detail) for detail in details)


def test_one_example_is_not_many():
    assert "of 1 example" in str(plot(Page(render_page([single_example()])), "reliability"))
    assert "1 examples" not in render_page([single_example()])


def test_the_worst_calibrated_classes_are_called_that():
    record = model(classes=[str(i) for i in range(200)], examples=400, ood=(), images=False)
    text = render_page([record])
    assert text.count("30 of 200 classes with the largest calibration error") == 2  # in sight and in words


def test_long_names_of_models_are_cut_in_the_middle_and_whole_in_the_title():
    name = "begin" + "x" * 90 + "end"
    page = Page(render_page([model(name, examples=60, images=False), model("short", index=1, examples=60)]))
    names = [e for e in page.all("bdi") if e["text"].startswith("begin")]
    assert len(names) > 8 and all(len(e["text"]) == 60 and "…" in e["text"] for e in names)
    assert {e["title"] for e in names} == {name} and names[0]["text"].endswith("end")
