"""The page of an evaluation as text; a browser opens it in `test_browser.py`."""

import base64
import hashlib
import json
import re
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
import pytest
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from scipy.stats import binomtest

from beliefmatch.experiments.evaluation_record import (
    Bins,
    ClassScores,
    Confusion,
    Curve,
    EvaluationRecord,
    Number,
    RiskThresholdRecord,
)
from beliefmatch.report.evaluation_figures import evaluation_files
from beliefmatch.report.evaluation_tables import to_csv, to_markdown
from beliefmatch.report.page import render_page
from evaluation_records import HOSTILE, drawn, evaluated, hostile, model, pair, single_example, three
from golden import assert_golden
from html_page import Page, outline
from rendered import STARTS, figures_drawn, markdown_rows


@pytest.fixture(scope="module")
def text():
    return render_page(three())


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture(scope="module")
def hostile_page():
    return Page(render_page(hostile()))


def page_of(*records):
    return Page(render_page(records))


def small(**changes):
    """The record of a model on few examples, with some of its fields changed."""
    return replace(model(examples=60), **changes)


def words(page):
    """What plots say to those who do not see them, by id."""
    return {element["id"].removeprefix("plot-"): element["aria-label"] for element in page.all(role="img")}


def wilson(right, count):
    interval = binomtest(round(right), count).proportion_ci(method="wilson")
    return pytest.approx((interval.low, interval.high), abs=2e-4)


def test_the_page_of_two_models():
    assert_golden("report/evaluation_page.txt", outline(render_page(pair())))


def test_marks_are_those_of_the_markdown(page):
    rows = markdown_rows(to_markdown(three()))
    suffixes = {"Error": "% ↓", "Negative log-likelihood": "(nats) ↓", "Brier: reliability": "↓"}
    for title, suffix in suffixes.items():
        cells = rows[f"{title} {suffix}"]
        marks = ["best" if "**" in cell else "close" if "≈" in cell else "" for cell in cells]
        assert [" ".join(cell["class"].split()[1:]) for cell in page.row(title)] == marks, title
    one = page_of(model())
    assert not [cell for cell in one.all("td") if "best" in cell.get("class", "")]


@pytest.mark.parametrize("records", [[single_example()], pair(), hostile()], ids=len)
def test_any_number_of_models_is_shown(records):
    page = page_of(*records)
    assert len(page.all("input", type="checkbox")) == len(page.row("Brier score")) == len(records)


def test_headings_never_skip_a_level_and_ids_are_used_once(page, hostile_page):
    for found in (page, hostile_page):
        levels = [int(e["tag"][1]) for e in found.elements if re.fullmatch("h[1-6]", e["tag"])]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        ids = [element["id"] for element in found.elements if "id" in element]
        assert len(ids) == len(set(ids))
        assert {link["href"].removeprefix("#") for link in found.all("a")} <= {*ids}
        assert all(found.all(tag) for tag in ("main", "nav", "header", "footer"))


def test_every_control_has_a_name(page):
    labels = page.texts("label")
    assert all(labels) and len(labels) == len(page.all("input")) + len(page.all("select"))


# What is missing, odd or too much


def test_missing_numbers_say_why():
    why = 'because <b>"so"</b>'
    first = replace(three()[0], scores={**three()[0].scores, "nll": Number(None, why=why)})
    cell = page_of(first, *three()[1:]).row("Negative log-likelihood")[0]
    assert cell["title"] == why and cell["text"] == f"—{why}"


def test_one_example_without_ood_sets_makes_a_page():
    text = render_page([single_example()])
    assert not Page(text).all("section", id="entropy")
    assert "of 1 example" in str(Page(text).plots()["reliability"]) and "1 examples" not in text


def test_a_record_without_most_things_makes_a_page():
    nothing = Curve([], [])
    bare = small(
        scores={}, misclassification=[], ood=[], risk_thresholds=[], classes=[], mistakes=[], doubtful=[],
        conventions={}, settings={}, versions={}, hardware={}, entropy=nothing, risk_coverage=nothing,
        confusion=Confusion(None, []),
    )  # fmt: skip
    sections = [element["id"] for element in page_of(bare).all("section")]
    assert sections == ["summary", "calibration", "selection", "confusion", "examples", "method"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_no_number_that_is_not_finite_breaks_a_report(number):
    def spoil(value):
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spoil(item) for item in value]
        if isinstance(value, Struct):
            return replace(value, **{name: spoil(getattr(value, name)) for name in value.__struct_fields__})
        return number if isinstance(value, float) else value

    record = spoil(small())
    with pytest.raises(ValueError, match="not JSON"):
        EvaluationRecord.from_json(json.dumps(to_builtins(record)))
    assert not re.search("NaN|Infinity", json.dumps(page_of(record).plots()))
    assert ",nan," not in to_csv([record]) and "nan" not in to_markdown([record])
    with figures_drawn() as collect:
        assert len(collect(evaluation_files([record]))) == 5


def test_plotly_is_there_once_and_the_rest_is_small(text):
    classes = tuple(f"class {index}" for index in range(1000))
    records = [model(f"m{i}", index=i, classes=classes, ood=("x",)) for i in range(2)]
    for found in (text, render_page(records)):
        assert found.count("* plotly.js v") == 1
        plotly = max(map(len, re.findall(r"<script>(.*?)</script>", found, re.DOTALL)))
        assert len(found) - plotly < 700_000


def test_a_matrix_of_many_classes_is_drawn_and_a_huge_one_is_not():
    def drawn(classes):
        matrix = [[1] * classes for _ in range(classes)]
        record = model(classes=tuple(map(str, range(classes))), examples=200, ood=())
        page = page_of(replace(record, confusion=Confusion(matrix, [])))
        return [name for name in page.plots() if name.startswith("confusion")]

    assert (drawn(16), drawn(17), drawn(101)) == ([], ["confusion-0"], [])


def test_models_of_differing_numbers_of_examples_are_warned_about(text):
    warning = "different numbers of examples"
    assert warning in render_page([model("a", examples=50), model("b", index=1, examples=60)])
    assert warning not in text


def test_settings_are_shown_in_words():
    settings = {
        "n_bins": 15,
        "fields": {"probs": "p", "unused": "logits"},
        "ood_fields": {"my_set": {"logits": "z"}},
        "new_one": {"a": [1, 2]},
    }
    lines = outline(render_page([small(settings=settings)])).splitlines()
    expected = ["probabilities are called | p", "not used | logits", "my_set: logits are called | z"]
    assert {*expected, "confidence bins | 15", "new one | a: 1, 2"} <= {*lines}


# Plots


def test_every_plot_is_one_that_plotly_accepts_and_has_a_place(page, hostile_page):
    for found in (page, hostile_page):
        assert set(words(found)) == set(found.plots())
        for plot in found.plots().values():
            figure = go.Figure({"data": plot["data"], "layout": plot["layout"]})  # raises at unknown options
            assert len(figure.data) == len(plot["data"]) > 0
            of_models = [trace for trace in plot["data"] if "meta" in trace]
            assert len(of_models) >= len(plot["data"]) - 1  # all but the diagonal
        assert len(found.all("details")) == len(found.all("figure"))  # the numbers behind each


def test_curves_in_the_page_are_those_of_the_record(page):
    for index, record in enumerate(three()):
        (curve,) = (
            trace
            for trace in page.plots()["roc-2"]["data"]
            if trace.get("meta") == {"model": index, "score": "mutual_information"}
        )
        truth = record.ood[1].detections[2].roc
        assert curve["x"] == pytest.approx(truth.x, rel=1e-4)
        assert curve["y"] == pytest.approx(truth.y, rel=1e-4)


def test_words_and_numbers_of_plots_lie_on_the_curves():
    risk = Curve([0.2, 0.6, 1.0], [0.0, 0.08, 0.2])
    record = small(risk_coverage=risk, entropy=Curve([0.0, 1.0, 2.0], [1.0, 1.0, 3.0]))
    text = render_page([record])
    page = Page(text)
    coverages = (0.5, 0.8, 0.9, 0.95, 1.0)
    shown = [f"{100 * np.interp(coverage, risk.x, risk.y):.2f} %" for coverage in coverages]
    assert f"| softmax | {' | '.join(shown)}" in outline(text).splitlines()
    assert f"{shown[0]} when answering 50 %" in words(page)["risk"].replace("\u00a0", " ")
    assert "median 1.25 nats on test examples" in words(page)["entropy-0-0"]
    outside = page_of(small(risk_coverage=Curve([0.9], [0.1]), entropy=Curve([], [])))
    assert "— when answering 50" in words(outside)["risk"]
    assert "median — nats" in words(outside)["entropy-0-0"]


def test_models_look_different_in_more_than_colour(page):
    lines = [trace["line"] for trace in page.plots()["risk"]["data"] if trace["mode"] == "lines"]
    assert len({line["color"] for line in lines}) == len({line["dash"] for line in lines}) == 3


def test_the_reliability_diagram_has_wilsons_intervals_and_pales_where_examples_are_few():
    bins = Bins(
        [0.0, 0.2, 0.4, 0.6, 0.8],
        [0.2, 0.4, 0.6, 0.8, 1.0],
        [0, 30, 10, 9, 50],
        [None, 0.3, 0.5, 0.7, 0.9],
        [None, 0.4, 0.5, 1.0, 0.96],
    )
    traces = page_of(small(examples=99, reliability=bins)).plots()["reliability"]["data"]
    firm, pale, steps = (trace for trace in traces if trace.get("meta") == {"model": 0, "bins": "width"})
    assert firm["y"] == [0.4, 0.5, None, 0.96] and firm["connectgaps"] is False
    bars = firm["error_y"]
    for place, (right, count) in ((0, (12, 30)), (1, (5, 10)), (3, (48, 50))):
        low, high = firm["y"][place] - bars["arrayminus"][place], firm["y"][place] + bars["array"][place]
        assert (low, high) == wilson(right, count)
    assert pale["y"] == [1.0] and pale["mode"] == "markers" and pale["opacity"] < 0.5
    assert "9 of 99 examples" in pale["text"][0] and "30 of 99 examples" in steps["text"][1]
    assert sum(steps["y"][:-1]) == pytest.approx(1, rel=1e-3)


def test_axes_of_detection_say_what_is_flagged(page):
    for name, flagged, passing in (("roc-0", "wrong", "right"), ("roc-1", "OOD", "in-distribution")):
        layout = page.plots()[name]["layout"]
        axes = [layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
        assert axes == [f"{passing} flagged", f"{flagged} flagged"]


@pytest.mark.parametrize(
    ("threshold", "shown"),
    [(0.9, "0.9000"), (0.12341, "0.1235"), (0.70001, "0.7001"), (0.99899, "0.9990"), (0.99998123, "0.999982"),
     (1 - 1e-9, "0.99999999900"), (1e-6, "0.0001"), (1.0, "1.0000"), (0.0, ""), (-np.inf, "")],
)  # fmt: skip
def test_thresholds_are_rounded_up_so_that_they_keep_the_risk(threshold, shown):
    page = page_of(small(risk_thresholds=[RiskThresholdRecord(0.05, 0.05, threshold, 0.6, 0.01, 0.04)]))
    answers = f"answers 60.0\u00a0%confidence ≥ {shown}" if shown else "answers everything"
    assert page.row("error ≤ 5 %")[0]["text"] == answers
    (marks,) = (trace for trace in page.plots()["risk"]["data"] if trace["mode"] == "markers")
    assert marks["text"][0].endswith(f"confidence ≥ {shown}" if shown else "answers everything")
    assert not shown or threshold <= float(shown) <= min(threshold + 1e-4, 1)


def with_twins(record):
    """Without the difference that rounding makes: energy and −ln α₀ are one number."""

    def twins(found):
        kept = {detection.score: detection for detection in found}
        return [replace(kept["precision"], score=d.score) if d.score == "energy" else d for d in found]

    ood = [replace(each, detections=twins(each.detections)) for each in record.ood]
    return replace(record, misclassification=twins(record.misclassification), ood=ood)


def test_energy_is_listed_once_where_it_is_the_same_as_the_precision():
    def options(*records):
        return [element["value"] for element in page_of(*records).all("option")][2:]

    same = with_twins(three()[0])
    assert options(same)[-2:] == ["differential_entropy", "precision"]
    assert {row.partition(",energy,")[1] for row in to_csv([same]).splitlines()} == {"", ",energy,"}
    energies = [replace(d, auroc=Number(0.5)) if d.score == "energy" else d for d in same.misclassification]
    apart = replace(same, misclassification=energies)
    assert options(apart)[-2:] == ["precision", "energy"]
    plain = evaluated(*drawn(0, 10, 60, signal=2, seed=1), name="m")
    assert options(same, plain)[-1] == "precision"


# Classes


def with_errors(counts, *, name="m", index=0):
    """A record with these numbers of (wrong, all) examples by class."""
    scores = [
        ClassScores(at, total, total, wrong / total if total else None, 0.1, 0.01 * at)
        for at, (wrong, total) in enumerate(counts)
    ]
    names = [f"c{at}" for at in range(len(counts))]
    return replace(
        model(name, index=index, examples=60, ood=()),
        class_names=names, classes=scores, mistakes=[], doubtful=[], confusion=Confusion(None, []),
    )  # fmt: skip


def class_order(*records, plot="class-errors"):
    """The classes in the order of the plot, from the top."""
    layout = page_of(*records).plots()[plot]["layout"]
    return [tick.partition(" ")[0] for tick in layout["yaxis"]["ticktext"]]


def test_few_classes_are_ordered_by_the_mean_error_of_the_models():
    first = with_errors([(1, 10), (9, 10), (0, 0), (5, 10)])
    second = with_errors([(9, 10), (3, 10), (0, 0), (6, 10)], index=1)
    assert class_order(first, second) == ["c1", "c3", "c0"]  # 60, 55 and 50 %; c2 has no examples
    assert class_order(first, second, plot="classes") == ["c1", "c3", "c0", "c2"]
    alike = with_errors([(1, 2), (4, 5), (50, 100), (5, 10)])
    assert class_order(alike) == ["c1", "c2", "c3", "c0"]  # of like errors the one of more examples first


def test_of_many_classes_those_whose_error_is_certain_come_first():
    rare, common = [(1, 1)] * 60, [(60 + at, 100) for at in range(30)]
    record = with_errors([*rare, *common])
    assert class_order(record) == [f"c{at}" for at in range(89, 59, -1)]
    assert len(class_order(record, plot="classes")) == 30


def test_class_errors_have_their_counts_and_wilsons_intervals():
    records = [with_errors([(3, 12), (10, 20), (0, 7)]), with_errors([(6, 12), (2, 20), (1, 7)], index=1)]
    page = page_of(*records)
    for index, (trace, record) in enumerate(zip(page.plots()["class-errors"]["data"], records, strict=True)):
        assert trace["meta"] == {"model": index} and np.all(np.diff(trace["y"]) < 0)
        for place, at in enumerate((0, 1, 2)):  # by falling mean error
            seen = record.classes[at]
            wrong = round(seen.error * seen.examples)
            assert trace["x"][place] == pytest.approx(seen.error, rel=1e-4)
            bars = trace["error_x"]
            ends = trace["x"][place] - bars["arrayminus"][place], trace["x"][place] + bars["array"][place]
            assert ends == wilson(wrong, seen.examples)
            assert f"{wrong} of {seen.examples} examples wrong" in trace["text"][place]
    assert page.plots()["class-errors"]["layout"]["yaxis"]["ticktext"] == ["c0 (12)", "c1 (20)", "c2 (7)"]
    assert "class-ranks" not in page.plots()


def test_a_thousand_classes_are_ranked_and_the_worst_are_named():
    counts = [(int(wrong), 20) for wrong in np.random.default_rng(0).integers(0, 21, 1000)]
    page = page_of(with_errors(counts))
    (ranks,) = page.plots()["class-ranks"]["data"]
    assert ranks["y"] == sorted(ranks["y"], reverse=True) and ranks["x"][-1] == 1
    assert (ranks["y"][0], ranks["y"][-1]) == (max(counts)[0] / 20, min(counts)[0] / 20)
    assert len(page.plots()["class-errors"]["data"][0]["x"]) == 30
    above = sum(wrong > 10 for wrong, _ in counts) / 10
    assert f"{above:.1f}\u00a0% above 50\u00a0%" in words(page)["class-ranks"]
    assert "30 of 1,000 classes" in words(page)["class-errors"] and "30 of 1,000" in words(page)["classes"]


def test_classes_without_examples_have_no_error():
    assert "20 of 40 classes" in render_page([with_errors([(1, 5)] * 20 + [(0, 0)] * 20)])
    assert not page_of(replace(with_errors([(1, 5)]), classes=[])).all("section", id="classes")


def test_long_names_of_classes_are_cut_between_words_or_in_the_middle_and_whole_in_the_title():
    classes = (
        "ship sailing on the open ocean at night", "a" + 40 * "b", "cat, " + 32 * "x",
        "a great white shark of the oceans, male", "a great white shark of the oceans, female",
    )  # fmt: skip
    page = page_of(model(classes=classes, examples=80, ood=()))
    cut = {}  # as in the confusion matrix, which comes first
    for element in page.all("bdi"):
        cut.setdefault(element.get("title"), element["text"])
    assert [cut[name] for name in classes] == [
        "ship sailing on the open ocean at…", "a" + 34 * "b" + "…", "cat, " + 30 * "x" + "…",
        "a great white shark of…oceans, male", "a great white shark of…eans, female",
    ]  # fmt: skip


def test_long_names_of_models_are_cut_in_the_middle():
    name = "begin" + "x" * 90 + "end"
    page = page_of(model(name, examples=60), model("short", index=1, examples=60))
    names = [element for element in page.all("bdi") if element["text"].startswith("begin")]
    assert len(names) > 8 and all(len(e["text"]) == 60 and "…" in e["text"] for e in names)
    assert {e["title"] for e in names} == {name} and names[0]["text"].endswith("end")


# Safety


def test_the_page_asks_the_network_for_nothing(page):
    for element in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            value = element.get(name)
            assert value is None or value.startswith(("#", "data:")), element
        assert not any(name.startswith("on") for name in element), element
    (style,) = page.all("style")
    assert "url(" not in style["text"] and "@import" not in style["text"]
    assert not page.all("iframe") + page.all("object") + page.all("base")


def test_the_policy_allows_these_scripts_and_no_other(page):
    (policy,) = (meta["content"] for meta in page.all("meta", **{"http-equiv": "Content-Security-Policy"}))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in rules["script-src"]
    scripts = [element["text"] for element in page.all("script") if "type" not in element]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert len(scripts) == 2 and "plotly.js" in scripts[0][:60]


def test_hostile_names_are_text(hostile_page):
    assert len(hostile_page.all("script")) == 3 and len(hostile_page.all("style")) == 1
    assert not hostile_page.all("b") + hostile_page.all("i")
    assert all(image["src"].startswith("data:image/png;base64,") for image in hostile_page.all("img"))
    assert {*HOSTILE[:7], "[red]a␊b[/red] ␛[31m�</style>"} <= {*hostile_page.names()}


def test_hostile_names_in_plots_hold_no_tag_no_template_no_mathematics(hostile_page):
    def strings(value):
        if isinstance(value, dict):
            value = [item for key, item in value.items() if key not in ("hovertemplate", "meta", "alts")]
        if isinstance(value, list):
            return [text for item in value for text in strings(item)]
        return [value] if isinstance(value, str) else []

    found = strings([[plot["data"], plot["layout"]] for plot in hostile_page.plots().values()])
    assert not [string for string in found if re.search(r"<(?!br>)|%\{|\$", string)]
    assert "&#36;x^2&#36; &#37;{x} &lt;b&gt;bold&lt;/b&gt; &amp;lt;i&amp;gt;" in found
    templates = re.findall(r'"hovertemplate": "(.*?)"', json.dumps(hostile_page.plots()))
    fields = {name for text in templates for name in re.findall(r"%\{([^:}]*)", text)}
    assert fields <= {"fullData.name", "x", "y", "z", "text"}


def test_embedded_data_cannot_end_its_element():
    text = render_page([small(name="</script><!--\u2028 &amp;")])
    content = re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1)
    assert not re.search("[<>&\u2028]", content) and json.loads(content)["models"] == 1


def test_only_a_png_becomes_a_picture():
    first = three()[0]
    bad = ['" onerror="alert(1)', "iVBORw0KGgo<", "PHN2Zz4=", ""]
    mistakes = [replace(first.mistakes[0], image=image) for image in bad] + [first.mistakes[0]]
    (image,) = page_of(replace(first, mistakes=mistakes, doubtful=[])).all("img")
    assert base64.b64decode(image["src"].partition(",")[2]).startswith(STARTS["png"])
    assert image["alt"].startswith(f"example {first.mistakes[0].index}, ")
