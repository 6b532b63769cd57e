"""Errors of the single classes: which are shown, in what order, with which numbers and words."""

import re

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import binomtest

from beliefmatch.experiments.evaluation_record import ClassScores
from beliefmatch.report import evaluation_figures
from beliefmatch.report.evaluation_classes import (
    MOST_CLASSES,
    badly_calibrated,
    class_errors,
    error_ranks,
    often_mistaken,
)
from beliefmatch.report.page import render_page
from evaluation_records import HOSTILE, model, three
from html_page import Page, data_of


def with_errors(counts, *, name="m", index=0):
    """A record with these numbers of (wrong, all) examples by class."""
    scores = [
        ClassScores(at, total, total, wrong / total if total else None, 0.1, 0.01 * at)
        for at, (wrong, total) in enumerate(counts)
    ]
    names = [f"c{at}" for at in range(len(counts))]
    return replace(model(name, index=index, examples=60, images=False), class_names=names, classes=scores)


def plots(records):
    return {plot["id"]: plot for plot in data_of(Page(render_page(records)))["plots"]}


def test_errors_have_their_counts_and_wilsons_intervals():
    found = class_errors(with_errors([(3, 12), (0, 0), (5, 5)]))
    assert list(found) == [0, 2]  # a class without examples has no error
    assert (found[0].examples, found[0].wrong, found[0].error) == (12, 3, 0.25)
    truth = binomtest(3, 12).proportion_ci(method="wilson")
    assert (found[0].low, found[0].high) == pytest.approx((truth.low, truth.high), abs=1e-6)


def test_few_classes_are_ordered_by_the_mean_error_of_the_models():
    first = with_errors([(1, 10), (9, 10), (0, 0), (5, 10)])
    second = with_errors([(9, 10), (3, 10), (0, 0), (6, 10)], index=1)
    assert often_mistaken([first, second]) == [1, 3, 0]  # 60, 55 and 50 %
    assert badly_calibrated([first, second]) == [1, 3, 0, 2]


def test_of_many_classes_one_mistaken_example_does_not_come_first():
    rare, common = [(1, 1)] * 60, [(60 + at, 100) for at in range(MOST_CLASSES)]
    chosen = often_mistaken([with_errors([*rare, *common])])
    assert chosen == list(range(60 + MOST_CLASSES - 1, 59, -1))
    assert len(badly_calibrated([with_errors([*rare, *common])])) == MOST_CLASSES


def test_the_plot_shows_each_class_once_a_model_with_its_count_beside_the_name():
    records = three()
    found = plots(records)["class-errors"]
    order = often_mistaken(records)
    assert len(found["data"]) == 3
    for index, (trace, record) in enumerate(zip(found["data"], records, strict=True)):
        assert trace["meta"] == {"model": index}
        assert trace["x"] == pytest.approx([record.classes[at].error for at in order], rel=1e-4)
        low = np.subtract(trace["x"], trace["error_x"]["arrayminus"])
        assert low == pytest.approx([class_errors(record)[at].low for at in order], abs=1e-4)
        assert np.all(np.diff(trace["y"]) < 0)
        wrong, total = class_errors(record)[order[0]].wrong, record.classes[order[0]].examples
        assert f"{wrong} of {total} examples wrong" in trace["text"][0]
    ticks = found["layout"]["yaxis"]["ticktext"]
    same = [len({record.classes[at].examples for record in records}) == 1 for at in order]
    assert [("(" in tick) for tick in ticks] == same
    alone = plots(records[:1])["class-errors"]["layout"]["yaxis"]["ticktext"]
    first = often_mistaken(records[:1])[0]
    assert alone[0] == f"{records[0].class_names[first]} ({records[0].classes[first].examples})"


def test_words_and_numbers_tell_what_the_plot_shows():
    record = with_errors([(3, 12), (10, 20), (0, 7)])
    text = render_page([record])
    words = {element["id"]: element["aria-label"] for element in Page(text).all("div", role="img")}
    expected = "Error of 3 classes. m: worst c1 with 50.0\u00a0% of 20 examples, median 25.0\u00a0%."
    assert words["plot-class-errors"] == expected
    cells = [" ".join(element["text"].split()) for element in Page(text).all("tr")]
    assert any(re.fullmatch(r"m ?c1 ?20 ?10 ?50.0 % ?\[29.9, 70.1\]", cell) for cell in cells)
    assert "in the order of their error" in text and "class-ranks" not in text


def test_a_thousand_classes_are_ranked_and_the_worst_are_named():
    rng = np.random.default_rng(0)
    counts = [(int(wrong), 20) for wrong in rng.integers(0, 21, 1000)]
    record = with_errors(counts)
    x, y = error_ranks(record)
    assert len(x) == len(y) == 500 and x[-1] == 1 and y == sorted(y, reverse=True)
    assert (y[0], y[-1]) == (max(c for c, _ in counts) / 20, min(c for c, _ in counts) / 20)
    found = plots([record])
    assert len(found["class-errors"]["data"][0]["x"]) == MOST_CLASSES
    page = Page(render_page([record]))
    words = {element["id"]: element["aria-label"] for element in page.all("div", role="img")}
    above = sum(wrong > 10 for wrong, _ in counts) / 10
    assert f"{above:.1f}\u00a0% above 50\u00a0%" in words["plot-class-ranks"]
    assert "the 30 of 1,000 classes whose error is surely largest" in words["plot-class-errors"]


def test_classes_that_never_came_true_are_left_out_and_said_to_be():
    record = with_errors([(1, 5)] * 20 + [(0, 0)] * 20)
    text = render_page([record])
    assert "the 20 of 40 classes that came true" in text
    nothing = replace(record, classes=[])
    assert not Page(render_page([nothing])).all("section", id="classes")


def test_the_figure_shows_the_same_marks_and_ranks_of_many_classes():
    record = three()[0]
    (axes,) = evaluation_figures._class_error(three()).axes
    order = often_mistaken(three())
    assert list(axes.lines[0].get_xdata()) == [record.classes[at].error for at in order]
    assert len(axes.get_yticklabels()) == 10
    _, ranks = evaluation_figures._class_error([with_errors([(at % 7, 10) for at in range(100)])]).axes
    assert ranks.lines[0].get_ydata()[0] == 0.6 and ranks.get_xlabel() == "share of the classes"


def test_hostile_class_names_stay_text():
    record = model(classes=HOSTILE, examples=200, ood=(), images=False)
    text = render_page([record])
    assert "<script>alert(1)" not in text and "<img src=x" not in text
    ticks = plots([record])["class-errors"]["layout"]["yaxis"]["ticktext"]
    assert not any("<" in tick for tick in ticks)
    assert evaluation_figures._class_error([record]).axes


def test_of_like_errors_the_one_of_more_examples_comes_first():
    assert often_mistaken([with_errors([(1, 2), (4, 5), (50, 100), (5, 10)])]) == [1, 2, 3, 0]
