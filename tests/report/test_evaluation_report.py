"""The report of evaluations: its words, tables, figures, files and page; a browser opens it elsewhere."""

import base64
import hashlib
import re
import sys
from itertools import pairwise
from subprocess import run

import numpy as np
import pytest
import torch
from msgspec import Struct
from msgspec.structs import replace
from scipy.stats import binomtest

from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import (
    PAIRED,
    Bins,
    ClassScores,
    Draws,
    EvaluationRecord,
    Number,
    RiskThresholdRecord,
)
from beliefmatch.experiments.paired_aurocs import PairedAurocs
from beliefmatch.metrics import bootstrap_differences, outcomes
from beliefmatch.report.evaluation import (
    evaluation_files,
    evaluation_page,
    evaluation_tables,
    summary_table,
)
from beliefmatch.report.evaluation_figures import (
    class_figures,
    confusion_figures,
    entropy_figure,
    often_mistaken,
    reliability_figure,
    risk_coverage_figure,
    roc_figure,
)
from beliefmatch.report.evaluation_scores import difference, score_names, stored_auroc_difference
from beliefmatch.report.figure import figure_name, inline_svg, paper_canvas, paper_files
from beliefmatch.report.page import render_page
from beliefmatch.report.table import to_csv
from evaluation_records import HOSTILE, evaluated, hostile, model, pair, predictions, single_example, three
from golden import assert_golden
from html_page import Page, outline
from rendered import STARTS, csv_rows


def rendered_page(*records):
    return render_page(evaluation_page(records), caller="test")


@pytest.fixture(scope="module")
def page():
    return Page(rendered_page(*three()))


@pytest.fixture(scope="module")
def hostile_page():
    return Page(rendered_page(*hostile()))


def small(**changes):
    return replace(model(examples=60), **changes)


def with_scores(record, **numbers):
    return replace(record, scores={**record.scores, **{key: Number(*of) for key, of in numbers.items()}})


def cells(records, table, key):
    found = next(one for one in evaluation_tables(records) if one.title == table)
    place = [column.key for column in found.columns].index(key)
    return [row.cells[place] for row in found.rows]


# Words


def test_the_page_of_two_models():
    assert_golden("report/evaluation_page.txt", outline(rendered_page(*pair())))


def test_one_model_is_described_by_its_error_and_its_calibration():
    over = with_scores(
        small(), error=(0.1, 0.05, 0.2), overconfidence=(0.05, 0.02, 0.08), mean_confidence=(0.95,)
    )
    assert (
        "errs on 10.0\u00a0% of 60 examples and is overconfident: right for 90.0"
        in evaluation_page([over]).verdict
    )
    under = with_scores(over, overconfidence=(-0.05, -0.08, -0.02))
    chance = with_scores(over, overconfidence=(0.05, -0.01, 0.11))
    assert "underconfident" in evaluation_page([under]).verdict
    assert "calibrated on average" in evaluation_page([chance]).verdict
    advice = " ".join(evaluation_page([over]).advice)
    assert "overconfident by 5.0 points" in advice and "overconfident by" not in " ".join(
        evaluation_page([chance]).advice
    )


def test_the_verdict_of_several_models_says_what_is_beyond_chance():
    base = replace(small(), draws=None)
    good = replace(
        with_scores(base, error=(0.1, 0.09, 0.11), ece=(0.01, 0.005, 0.02), nll=(0.3, 0.28, 0.32)),
        name="good",
    )
    bad = replace(
        with_scores(base, error=(0.3, 0.28, 0.32), ece=(0.2, 0.18, 0.22), nll=(0.9, 0.85, 0.95)), name="bad"
    )
    like = replace(
        with_scores(base, error=(0.105, 0.095, 0.115), ece=(0.2, 0.18, 0.22), nll=(0.9, 0.85, 0.95)),
        name="like",
    )
    assert evaluation_page([bad, good]).verdict.startswith(
        "good errs less than bad (10.0 against 30.0\u00a0%); it is also more honest about it"
    )
    verdict = evaluation_page([good, like]).verdict
    assert verdict.startswith(
        "good and like err equally often as far as 60 examples can tell (10.0 to 10.5\u00a0%); good is"
    )
    assert (
        "Take good" in evaluation_page([good, bad]).advice[0]
        and "may be as good" not in evaluation_page([good, bad]).advice[0]
    )
    twin = replace(good, name="twin")
    assert "twin may be as good" in evaluation_page([good, twin]).advice[0]


def test_an_auroc_below_chance_is_remarked_on():
    record = model("upside down", examples=120, ood=("svhn",))
    (ood,) = record.ood
    low = [replace(one, auroc=Number(0.1, 0.08, 0.12)) for one in ood.detections]
    worse = replace(record, ood=[replace(ood, detections=low)])
    assert "detects svhn worse than chance (AUROC 10.0" in evaluation_page([worse]).warnings[0]
    assert not evaluation_page([record]).warnings
    assert cells([worse], "OOD: svhn", "auroc")[0].note == "worse than chance"


def test_models_of_different_examples_are_warned_about_and_not_marked():
    other = model("other", examples=61)
    page = evaluation_page([small(), other])
    assert "different examples" in page.warnings[0] and "do not compare" in page.verdict
    assert not any(table.is_marked for table in evaluation_tables([small(), other]))


def test_advice_names_the_threshold_of_each_risk():
    kept = RiskThresholdRecord(0.01, 0.05, 0.93214, 0.8, 0.005, 0.0099)
    none = RiskThresholdRecord(0.001, 0.05, None, 0.0, None, None)
    advice = evaluation_page([small(risk_thresholds=[none, kept])]).advice
    assert any(one.startswith("No confidence threshold keeps") and "below 0.1 %" in one for one in advice)
    assert any("at most 1 % errors" in one and "0.9322 or more (80.0" in one for one in advice)


# Tables


N, K, DRAWS = 700, 6, 200
RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, K, N)
SHARED = RNG.normal(size=(N, K)) + 2 * np.eye(K)[TARGETS]
MODELS = {
    "good": SHARED + 0.15 * np.eye(K)[TARGETS],
    "like it": SHARED + 0.15 * np.eye(K)[TARGETS] + 0.1 * RNG.normal(size=(N, K)),
    "worse": SHARED + 0.1 * RNG.normal(size=(N, K)),
}
DIFFERENCES = "Paired bootstrap difference from the best"


def scored(name, *, targets=TARGETS, **options):
    return evaluated(MODELS[name], targets, name=name, **{"resamples": DRAWS, **options})


@pytest.fixture(scope="module")
def records():
    return [scored(name) for name in MODELS]


@pytest.mark.parametrize("key", PAIRED)
def test_differences_are_those_of_the_predictions(records, key):
    values = [record.scores[key].value for record in records]
    best = values.index(min(values))
    seen = [outcomes(torch.from_numpy(TARGETS), logits=torch.from_numpy(z)) for z in MODELS.values()]
    for place, (cell, one) in enumerate(zip(cells(records, DIFFERENCES, key), seen, strict=True)):
        truth = (
            tuple(bootstrap_differences(one, seen[best], resamples=DRAWS)[key]) if place != best else (0.0,)
        )
        assert (cell.value, cell.low, cell.high)[: len(truth)] == pytest.approx(truth, abs=1e-11)


def test_a_model_is_close_to_the_best_where_the_difference_may_be_none(records):
    """The same examples are hard for all models: intervals overlap where the difference is certain."""
    for key, table in (("error", "Scores"), ("nll", "Scores"), ("brier", "Scores"), ("ece", "Calibration")):
        differences = cells(records, DIFFERENCES, key)
        expected = ["best" if one.value == 0 else "close" if one.low <= 0 else "" for one in differences]
        assert [cell.mark for cell in cells(records, table, key)] == expected, key
    assert cells(records, "Scores", "brier")[2].mark == ""
    by_interval = [replace(record, draws=None) for record in records]
    assert cells(by_interval, "Scores", "brier")[2].mark == "close"


OUTSIDE = np.random.default_rng(5).normal(size=(N, K)) + 0.9 * np.eye(K)[TARGETS]
OUTSIDE_OF = {
    "good": OUTSIDE,
    "like it": OUTSIDE + 0.1 * np.random.default_rng(6).normal(size=(N, K)),
    "worse": 1.03 * OUTSIDE,
}


@pytest.fixture(scope="module")
def together():
    """Three models with an OOD set, evaluated together."""
    areas = PairedAurocs()
    made = []
    for name, logits in MODELS.items():
        ood = {"outside": predictions(OUTSIDE_OF[name], TARGETS)}
        given = predictions(logits, TARGETS, file=f"{name}.npz")
        made.append(evaluate(given, name=name, ood=ood, settings=EvaluateConfig(resamples=9), areas=areas))
    return areas.with_differences(made)


def test_areas_are_marked_by_their_paired_differences(together):
    """Intervals of the areas overlap where the difference of the areas is certain."""
    areas, apart = (cells(together, "OOD: outside", key) for key in ("auroc", "auroc_difference"))
    assert [one.mark for one in areas] == ["best", "close", ""]
    assert areas[2].high > areas[0].low
    assert apart[0].value == 0 and apart[1].low < 0 < apart[1].high and apart[2].high < 0
    assert apart[2].value == areas[2].value - areas[0].value
    by_interval = [
        replace(one, ood=[replace(of, detections=without_pairs(of.detections)) for of in one.ood])
        for one in together
    ]
    assert [one.mark for one in cells(by_interval, "OOD: outside", "auroc")] == ["best", "close", "close"]
    (mark,) = (row.cells[-1].mark for row in summary_table(together).rows if row.label == "worse")
    assert mark == ""


def without_pairs(detections):
    return [replace(one, auroc_differences=[]) for one in detections]


def test_a_difference_is_known_by_the_file_and_the_area_of_the_other_model(together):
    first, _, last = together
    known = stored_auroc_difference(last, first, "outside", "entropy")
    assert known.high < 0
    assert stored_auroc_difference(first, last, "outside", "entropy").low == pytest.approx(-known.high)
    assert stored_auroc_difference(last, replace(first, name="renamed"), "outside", "entropy") == known
    for other in (replace(first, source="other.npz"), replace(together[1], source=first.source)):
        assert stored_auroc_difference(last, other, "outside", "entropy").value is None
    assert stored_auroc_difference(last, first, None, "entropy").value is not None
    assert stored_auroc_difference(last, first, "elsewhere", "entropy").value is None


def is_paired(records, key="error"):
    return difference(records[1], records[0], key).low is not None


def test_draws_of_other_settings_or_targets_are_not_paired(records):
    for options in ({"seed": 1}, {"resamples": DRAWS + 1}, {"level": 0.9}):
        assert not is_paired([records[0], scored("worse", **options)])
    others = [records[0], scored("worse", n_bins=10)]
    assert is_paired(others) and not is_paired(others, "ece")
    other = scored("worse", targets=np.roll(TARGETS, 1))
    unknown = replace(records[2], settings={**records[2].settings, "targets_sha256": None})
    for compared in ([records[0], other], [records[0], unknown]):
        assert not is_paired(compared)
    uneven = replace(records[0], draws=Draws("x", {"error": [0.1], "nll": [0.1, 0.2]}))
    with pytest.raises(ValueError, match="`draws`"):
        EvaluationRecord.from_json(uneven.to_json())


def test_the_csv_holds_every_number_exactly():
    records = three()
    lines = csv_rows(to_csv(evaluation_tables(records)))
    for record in records:
        own = [line for line in lines if line["row"] == record.name]
        found = {
            line["metric"]: line
            for line in own
            if line["table"] in ("Scores", "Calibration", "Selective prediction")
        }
        for key, number in record.scores.items():
            shown = tuple(
                float(found[key][end]) if found[key][end] else None for end in ("value", "low", "high")
            )
            assert shown == (number.value, number.low, number.high), key
        for ood in record.ood:
            for one in ood.detections:
                if one.score in score_names(records):
                    (line,) = [
                        line
                        for line in own
                        if (line["table"], line["metric"]) == (f"OOD: {ood.name}", "auroc")
                        and line["group"].startswith(
                            ("predictive", "1 −", "mutual", "differential", "−ln", "energy", "negative")
                        )
                        and float(line["value"]) == one.auroc.value
                    ][:1]
                    assert float(line["low"]) == one.auroc.low


def test_the_summary_has_the_numbers_of_the_record():
    for row, record in zip(summary_table(three()).rows, three(), strict=True):
        values = [cell.value for cell in row.cells]
        expected = [record.scores[key].value for key in ("error", "nll", "brier", "ece")]
        expected += [
            next(d.auroc.value for d in ood.detections if d.score == "entropy") for ood in record.ood
        ]
        assert values == expected


def test_minus_log_precision_is_listed_as_the_energy_alone():
    """Older records have both names, or the precision without the energy."""
    record = model(ood=("svhn",), examples=60)
    energy = next(one for one in record.misclassification if one.score == "energy")
    precision = replace(energy, score="precision")
    for found, names in (
        ([energy], ["energy"]),
        ([precision, energy], ["energy"]),
        ([precision], ["precision"]),
    ):
        older = replace(record, misclassification=found, ood=[])
        assert score_names([older]) == names


def test_cards_and_captions_name_the_level_of_the_intervals():
    record = scored("good", level=0.8)
    page = evaluation_page([record])
    assert [card for card in page.cards if "80 % interval" in card.certainty]
    assert "80 % intervals" in summary_table([record]).caption
    assert not any("95 %" in card.certainty for card in page.cards)


def test_aupr_of_wrong_predictions_has_no_best():
    found = next(table for table in evaluation_tables(three()) if table.title == "Wrong predictions")
    marks = {
        (column.key, cell.mark)
        for row in found.rows
        for column, cell in zip(found.columns, row.cells, strict=True)
    }
    assert not {mark for key, mark in marks if key.startswith("aupr")} - {""}
    assert ("auroc", "best") in marks


# Figures


def test_bins_have_wilsons_intervals_and_are_pale_where_examples_are_few():
    bins = Bins(
        [0.0, 0.25, 0.5, 0.75],
        [0.25, 0.5, 0.75, 1.0],
        [40, 9, 0, 51],
        [0.2, 0.4, None, 0.9],
        [0.1, 1 / 3, None, 0.8],
    )
    (panel,) = reliability_figure([small(reliability=bins)]).panels
    firm, few = panel.series
    assert [y for y in firm.y if y is not None] == [0.1, 0.8] and None in firm.y
    assert few.alpha < 0.5 and list(few.y) == [1 / 3]
    for share, count, low, high in (
        (0.1, 40, firm.low[0], firm.high[0]),
        (1 / 3, 9, few.low[0], few.high[0]),
    ):
        interval = binomtest(round(share * count), count).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((interval.low, interval.high), abs=2e-6)
    assert panel.below.series[0].y == [0.4, 0.09, 0.0, 0.51]


def test_bins_of_few_examples_are_left_out_beside_other_models_unless_there_are_no_others():
    edges, means = ([0.0, 0.5], [0.5, 1.0]), ([0.4, 0.9], [0.3, 0.8])
    many, few = (small(reliability=Bins(*edges, [51, count], *means)) for count in (60, 9))
    (panel,) = reliability_figure([many, few]).panels
    assert [[y for y in one.y if y is not None] for one in panel.series] == [[0.3, 0.8], [0.3]]
    assert "fewer than 10 examples are left out" in reliability_figure([many, few]).note
    rare = small(reliability=Bins(*edges, [3, 4], *means))
    (panel,) = reliability_figure([rare, rare]).panels
    assert [list(one.y) for one in panel.series if one.draw == "points"] == [[0.3, 0.8]] * 2


def test_the_peak_of_a_density_is_cut_where_it_would_hide_the_ood_examples_and_the_note_says_so():
    record = model("sure", examples=100, ood=("svhn",))
    steep = replace(record, entropy=replace(record.entropy, y=[40.0, *record.entropy.y[1:]]))
    highest = max(record.ood[0].entropy.y)
    figure = entropy_figure([steep], "svhn")
    assert highest < figure.panels[0].y.high < 2 * highest and "peaks reach 40" in figure.note
    assert figure.panels[0].series[0].y == steep.entropy.y
    flat = replace(record, entropy=replace(record.entropy, y=[highest / 2] * len(record.entropy.y)))
    assert entropy_figure([flat], "svhn").panels[0].y.high > highest
    assert "Cut" not in entropy_figure([flat], "svhn").note


def test_of_many_models_the_pictures_show_the_best_by_nll_in_their_own_colours_and_all_are_below():
    records = [
        with_scores(replace(small(), name=f"model {place}"), nll=(2.0 - 0.1 * place, None, None))
        for place in range(9)
    ]
    page = evaluation_page(records)
    for figure in page.pictures:
        assert {one.model for panel in figure.panels for one in panel.series} == {3, 4, 5, 6, 7, 8}
        assert "The 6 models of the lowest NLL" in figure.note
    by_number = {one.model: one.look for one in page.pictures[0].panels[0].series}
    assert all(page.looks[number] == look for number, look in by_number.items())
    names = [figure.name for figure in page.figures()]
    assert all(names.count(figure.name) == 2 for figure in page.pictures)
    below = [one for one in page.figures() if one.name == "reliability"][1]
    assert {one.model for one in below.panels[0].series} == {*range(9)}


def test_curves_are_those_of_the_records():
    records = three()
    entropy = entropy_figure(records, "svhn")
    for panel, record in zip(entropy.panels, records, strict=True):
        assert (
            list(panel.series[0].y) == record.entropy.y and list(panel.series[1].y) == record.ood[0].entropy.y
        )
    risk = risk_coverage_figure(records).panels[0].series[::2]
    assert [list(one.y) for one in risk] == [record.risk_coverage.y for record in records]
    roc = roc_figure(records, "entropy", ["svhn", "noise"])
    assert [panel.title for panel in roc.panels] == ["svhn", "noise", "Wrong predictions"]
    detection = next(d for d in records[1].ood[1].detections if d.score == "entropy")
    assert list(roc.panels[1].series[1].y) == detection.roc.y


def classes(*errors, examples=50):
    return [ClassScores(i, examples, 0, error, 0.1, 0.01 * i) for i, error in enumerate(errors)]


def test_the_worst_classes_come_first_and_of_many_those_whose_error_is_certain():
    few = [
        small(classes=classes(0.1, 0.5, 0.3, *[0.0] * 7)),
        small(classes=classes(0.1, 0.1, 0.9, *[0.0] * 7)),
    ]
    assert often_mistaken(few)[:3] == [2, 1, 0]
    rows = [ClassScores(i, 1 if i == 0 else 100, 0, 1.0 if i == 0 else 0.3, 0.1, 0.0) for i in range(50)]
    chosen = often_mistaken([small(classes=rows, class_names=[f"{i}" for i in range(50)])])
    assert len(chosen) == 30 and 0 not in chosen  # one example, wrong: its error may be small


def test_a_matrix_of_many_classes_is_drawn_and_a_huge_one_is_not():
    for count, drawn in ((3, True), (40, True), (200, False)):
        names = tuple(f"class {index}" for index in range(count))
        (figure,) = confusion_figures([model("wide", classes=names, examples=220, ood=())])
        assert bool(figure.panels) == drawn and figure.numbers is not None


def test_files_for_a_paper_are_what_they_are_called_and_the_same_each_time():
    figures = [reliability_figure(pair()), *class_figures(pair())]
    first, again = (dict(paper_files(figures)) for _ in range(2))
    assert first == again and {name.rpartition(".")[0] for name in first} == {"reliability", "classes"}
    assert all(content.startswith(STARTS[name.rpartition(".")[2]]) for name, content in first.items())


def test_figures_of_hostile_names_hold_no_tag_and_have_tame_file_names():
    for figure in evaluation_page(hostile()[:3]).figures():
        assert re.fullmatch("[a-z0-9_]+", figure.name)
        for svg in inline_svg(figure):
            assert not re.search(r"<(script|img|b>|style)|onerror|\$x", svg.split("<defs>")[0].lower())
    texts = [text.get_text() for text in paper_canvas(reliability_figure(hostile())).legends[0].get_texts()]
    assert any(r"\$x^2\$" in text for text in texts) and any("□" in text for text in texts)
    assert figure_name("../../etc/passwd", {"etc_passwd"}) == "etc_passwd_2"


def test_every_curve_carries_its_model_and_no_two_elements_share_a_name(page):
    ids = [element["id"] for element in page.elements if "id" in element]
    assert len(ids) == len(set(ids))
    groups = [element for element in page.all("g") if "data-model" in element]
    assert {element["data-model"] for element in groups} == {"0", "1", "2"}


# Page


def test_headings_never_skip_a_level_and_controls_have_names(page, hostile_page):
    for one in (page, hostile_page):
        levels = [
            int(element["tag"][1]) for element in one.elements if re.fullmatch("h[1-6]", element["tag"])
        ]
        assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
        assert all(label.strip() for label in one.texts("label"))
        assert all(element["aria-label"] for element in one.all(role="img"))


def test_the_page_shows_the_verdict_first_and_the_rest_folded(page):
    first = page.texts("h1")[0]
    assert first == " ".join(evaluation_page(three()).verdict.split())
    folded = page.all("details", **{"class": "section"})
    assert ["open" in element for element in folded] == [True] + [False] * (len(folded) - 1)
    assert 3 <= len(page.all("li", **{"class": "card "})) <= 5


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_no_number_that_is_not_finite_breaks_a_report(number):
    def broken(value):
        if isinstance(value, float):
            return number
        if isinstance(value, list):
            return [broken(item) for item in value]
        if isinstance(value, dict):
            return {key: broken(item) for key, item in value.items()}
        if isinstance(value, Struct):
            return replace(value, **{name: broken(getattr(value, name)) for name in value.__struct_fields__})
        return value

    records = [broken(model(examples=60, ood=("svhn",))), small()]
    assert not re.search(r"\b(nan|inf)\b", outline(rendered_page(*records)))
    assert not re.search(r"\b(nan|inf)\b", to_csv(evaluation_tables(records)))


@pytest.mark.parametrize("records", [(single_example(),), (small(ood=[], risk_thresholds=[], mistakes=[]),)])
def test_little_is_enough_for_a_page(records):
    text = rendered_page(*records)
    assert "<h1>" in text and Page(text).texts("h1")[0].strip()


def test_the_page_is_small_and_asks_the_network_for_nothing(page):
    text = rendered_page(*three())
    assert len(text) < 1_500_000
    addresses = [element[name] for element in page.elements for name in ("src", "href") if name in element]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"url\((?!#)", text) and "@import" not in text


def test_the_policy_allows_the_script_of_the_page_and_no_other(page):
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    (script,) = page.all("script")
    digest = base64.b64encode(hashlib.sha256(script["text"].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy["content"] and "default-src 'none'" in policy["content"]


def test_hostile_names_are_text(hostile_page):
    names = hostile_page.names()
    for name in HOSTILE[:7]:
        assert any(name in shown for shown in names), name
    assert not hostile_page.all("b") and not hostile_page.all("i")
    assert all("onerror" not in element for element in hostile_page.all("img"))


def test_only_a_png_becomes_a_picture():
    picture = three()[0].mistakes[0].image
    for image, count in ((picture, 1), ("javascript:alert(1)", 0), ('iVBORw0KGgo" onerror="x', 0), (None, 0)):
        record = small(mistakes=[replace(three()[0].mistakes[0], image=image)], doubtful=[])
        assert len(Page(rendered_page(record)).all("img")) == count


def test_records_survive_the_file_and_none_are_refused(tmp_path):
    files = dict(evaluation_files(pair(), figures=["svg"]))
    assert EvaluationRecord.from_json(files["softmax.json"].decode()) == pair()[0]
    assert {"summary.csv", "summary.md", "report.html", "figures/reliability.svg"} <= files.keys()
    for function in (evaluation_page, evaluation_tables, summary_table):
        with pytest.raises(ValueError, match="`records`"):
            function([])


def test_no_part_of_the_report_imports_torch(tmp_path):
    record, page = tmp_path / "a.json", tmp_path / "r.html"
    record.write_text(pair()[0].to_json(), "utf-8")
    code = (
        "import sys\nfrom beliefmatch.cli import main\n"
        f"assert main(['report', {str(record)!r}, '--out', {str(page)!r}]) == 0\n"
        "assert 'torch' not in sys.modules and 'plotly' not in sys.modules\n"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert page.stat().st_size > 10_000


@pytest.mark.parametrize("count", [2, 12, 30])
def test_the_legend_of_many_models_leaves_the_axes_their_room(count):
    first, *_ = three()
    models = [replace(first, name=f"model {index} with a name of some length") for index in range(count)]
    canvas = paper_canvas(roc_figure(models, "entropy", [first.ood[0].name]))
    legend = canvas.legends[0].get_window_extent()
    assert len(canvas.legends[0].get_texts()) == count
    assert legend.y0 >= 0 and legend.x0 >= 0 and legend.x1 <= canvas.bbox.x1
    for axes in canvas.axes:
        assert not legend.overlaps(axes.get_tightbbox())
        assert axes.get_position().height * canvas.get_figheight() > 2.0  # inches
