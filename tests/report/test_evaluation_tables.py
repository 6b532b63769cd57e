"""Tables of evaluations in the terminal, in CSV and in Markdown, from records alone."""

import html
import re

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from beliefmatch.experiments.evaluation_record import Draws, EvaluationRecord, Number
from beliefmatch.metrics import bootstrap_differences, outcomes
from beliefmatch.report.evaluation_tables import terminal_table, to_csv, to_markdown
from beliefmatch.report.page import render_page
from commands import python
from evaluation_records import HOSTILE, evaluated, hostile, model, pair, single_example, three
from golden import assert_golden
from html_page import Page
from rendered import csv_rows, markdown_rows, rounded, terminal

NLL, AUROC = "Negative log-likelihood (nats) ↓", "AUROC: svhn % ↑"
SHOWN_HOSTILE = (*HOSTILE[:7], "[red]a␊b[/red] ␛[31m�</style>")


def mark(cell):
    return "best" if cell.startswith("**") else "close" if cell.startswith("≈") else ""


def marks(records, title):
    return [mark(cell) for cell in markdown_rows(to_markdown(records))[title]]


def csv_values(records, metric, **where):
    """The (value, low, high) of a metric of each model; None where a cell is empty."""
    rows = [row for row in csv_rows(to_csv(records)) if row["metric"] == metric]
    rows = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return [
        tuple(float(row[part]) if row[part] else None for part in ("value", "low", "high")) for row in rows
    ]


def test_tables_of_two_models():
    assert_golden("report/evaluation_terminal.txt", terminal(terminal_table(pair())))
    assert_golden("report/evaluation_markdown.txt", to_markdown(pair()))
    assert_golden("report/evaluation_csv.txt", rounded(to_csv(pair())))


def test_tables_of_one_example_explain_what_is_missing():
    assert_golden("report/evaluation_of_one_example.txt", to_markdown([single_example()]))
    rows = {row["metric"]: row for row in csv_rows(to_csv([single_example()]))}
    assert rows["top_k_error"]["value"] == "" and rows["top_k_error"]["note"]


# Which models are marked


def with_number(metric, number):
    """A record whose intervals decide on its marks, with this number in the place of one metric's."""
    record = replace(model(), draws=None)
    if metric != "auroc":
        return replace(record, scores={metric: number})
    (first, *_) = record.ood[0].detections
    return replace(record, ood=[replace(record.ood[0], detections=[replace(first, auroc=number)])])


LOW = [
    ([(1, 0.8, 1.2), (2, 1.9, 2.1)], ["best", ""]),
    ([(1, 0.8, 1.2), (2, 1.2, 2.8)], ["best", "close"]),
    ([(2, 1.9, 2.1), (1, 0.8, 1.95)], ["close", "best"]),
    ([(1, 0.9, 1.1), (1, 0.9, 1.1), (2, 1.9, 2.1)], ["best", "best", ""]),
    ([(1, None, None), (2, None, None)], ["", ""]),
    ([(1, 0.9, 1.1), (2, None, None), (3, 2.9, 3.1)], ["", "", ""]),
    ([(1, 0.9, 1.1), (1, 0.9, 1.1)], ["", ""]),
    ([(1, 0.8, 1.2), (None, None, None)], ["", ""]),
    ([(1, 0.8, 1.2), (None, None, None), (5, 4, 6)], ["best", "", ""]),
    ([(1, 0.8, 1.2)], [""]),
]
ZERO = [
    ([(-0.1, -0.2, -0.05), (0.3, 0.25, 0.4), (0.18, 0.15, 0.21)], ["best", "", "close"]),
    ([(0.2, -0.1, 0.5), (0.1, 0.05, 0.15)], ["close", "best"]),
]
NONE = [([(1, 0, 2), (2, 1, 3)], ["", ""])]


def negated(number):
    value, low, high = number
    return tuple(None if part is None else -part for part in (value, high, low))


@pytest.mark.parametrize(
    ("metric", "title", "numbers", "expected"),
    [
        *[("nll", NLL, *case) for case in LOW],
        *[("auroc", AUROC, list(map(negated, numbers)), expected) for numbers, expected in LOW],
        *[("overconfidence", "Overconfidence % →0", *case) for case in ZERO],
        *[("mean_confidence", "Mean confidence %", *case) for case in NONE],
    ],
)
def test_the_best_is_marked_and_what_overlaps_it_if_all_have_intervals(metric, title, numbers, expected):
    assert marks([with_number(metric, Number(*number)) for number in numbers], title) == expected


def test_one_model_is_best_of_nothing():
    assert not re.search(r"[*≈]", terminal(terminal_table([model()])))


def test_values_without_intervals_and_unknown_metrics_have_no_mark():
    records = [replace(r, scores={**r.scores, "new_one": Number(0.5 + i)}) for i, r in enumerate(three())]
    assert marks(records, "new one") == marks(records, "Brier: reliability ↓") == ["", "", ""]


def test_precision_of_wrong_predictions_has_no_best_but_a_chance_level():
    rows = markdown_rows(to_markdown(three()))
    errors = [100 * record.scores["error"].value for record in three()]
    for side, chances in (("wrong", errors), ("right", [100 - error for error in errors])):
        cells = rows[f"AUPR, {side} positive, predictive entropy % ↑"]
        assert [cell.partition(" (")[2] for cell in cells] == [f"chance {chance:.2f})" for chance in chances]
        assert not any(map(mark, cells))
    assert "best" in map(mark, rows["AUPR, OOD positive, predictive entropy % ↑"])


def test_models_of_different_targets_are_not_marked():
    apart = [replace(r, settings={**r.settings, "targets_sha256": r.name}) for r in three()[:2]]
    assert "best" in marks(three()[:2], NLL) and marks(apart, NLL) == ["", ""]
    for text in (to_markdown, render_page, lambda records: terminal(terminal_table(records))):
        assert "different targets" in text(apart) and "different targets" not in text(three()[:2])


def test_a_set_that_one_model_lacks_is_missing_for_it_alone():
    records = [model("a", ood=("svhn",)), model("b", index=1, ood=())]
    first, second = markdown_rows(to_markdown(records))[AUROC]
    assert not first.startswith("—") and second.startswith("—")


# Differences on the same draws of examples

MAIN = ("error", "nll", "brier", "ece")
VALUES = dict(zip(MAIN, ("Error % ↓", NLL, "Brier score ↓", "Expected calibration error % ↓"), strict=True))
N, K, DRAWS = 500, 4, 80
RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, K, N)
SHARED = RNG.normal(size=(N, K)) + 2 * np.eye(K)[TARGETS]
MODELS = {
    "good": SHARED + 0.15 * np.eye(K)[TARGETS],
    "like it": SHARED + 0.15 * np.eye(K)[TARGETS] + 0.1 * RNG.normal(size=(N, K)),
    "worse": SHARED + 0.1 * RNG.normal(size=(N, K)),
}


def scored(name, *, targets=TARGETS, **options):
    return evaluated(MODELS[name], targets, name=name, **{"resamples": DRAWS, **options})


@pytest.fixture(scope="module")
def records():
    return [scored(name) for name in MODELS]


def without_draws(record):
    """As the first version of the schema wrote it."""
    content = record.to_json().replace("beliefmatch.evaluation/2", "beliefmatch.evaluation/1")
    return replace(EvaluationRecord.from_json(content), draws=None)


def has_differences(records):
    return bool(csv_values(records, "error_difference"))


@pytest.mark.parametrize("key", MAIN)
def test_differences_are_those_of_the_predictions(records, key):
    assert all(len(record.draws.metrics[key]) == DRAWS for record in records)
    values = [record.scores[key].value for record in records]
    best = values.index(min(values))
    seen = [outcomes(torch.from_numpy(TARGETS), logits=torch.from_numpy(z)) for z in MODELS.values()]
    expected = [tuple(bootstrap_differences(one, seen[best], resamples=DRAWS)[key]) for one in seen]
    expected[best] = (0.0, None, None)
    for found, truth in zip(csv_values(records, f"{key}_difference"), expected, strict=True):
        assert found == pytest.approx(truth, abs=1e-11)


def test_a_model_is_close_to_the_best_where_the_difference_may_be_none(records):
    """The same examples are hard for all models: intervals overlap where the difference is certain."""
    for key, title in VALUES.items():
        differences = csv_values(records, f"{key}_difference")
        expected = ["best" if value == 0 else "close" if low <= 0 else "" for value, low, _ in differences]
        assert marks(records, title) == expected, key
    assert marks(records, VALUES["brier"])[2] == ""
    by_interval = [without_draws(record) for record in records]
    assert marks(by_interval, VALUES["brier"])[2] == "close" and not has_differences(by_interval)
    mixed = [*records[:2], by_interval[2]]
    assert marks(mixed, VALUES["brier"])[2] == "close"
    assert csv_values(mixed, "brier_difference")[2] == (None, None, None)


def test_page_terminal_and_markdown_show_the_same_differences(records):
    value, low, high = csv_values(records, "brier_difference")[2]
    shown = f"{value:.4f} [{low:.4f}, {high:.4f}]"
    assert shown in to_markdown(records) and shown in terminal(terminal_table(records), width=160)
    (row,) = (text for text in Page(render_page(records)).texts("tr") if shown.replace(" [", "[") in text)
    assert row.startswith("Brier score")


@pytest.mark.parametrize("options", [{"seed": 1}, {"resamples": DRAWS + 1}, {"level": 0.9}], ids=str)
def test_draws_of_other_settings_are_not_paired(records, options):
    assert not has_differences([records[0], scored("worse", **options)])


def test_draws_of_other_bins_leave_only_the_calibration_unpaired(records):
    others = [records[0], scored("worse", n_bins=10)]
    assert has_differences(others) and not csv_values(others, "ece_difference")


def test_models_of_other_or_unknown_targets_are_not_paired(records):
    other = scored("worse", targets=np.roll(TARGETS, 1))
    assert other.draws.rows_sha256 == records[0].draws.rows_sha256
    unknown = replace(records[2], settings={**records[2].settings, "targets_sha256": None})
    strange = [replace(r, settings={**r.settings, "level": "much"}) for r in records]
    for compared in ([records[0], other], [records[0], unknown], strange):
        assert not has_differences(compared)


def test_there_are_no_draws_without_intervals_or_of_an_infinite_likelihood():
    assert scored("good", resamples=0).draws is None and single_example().draws is None
    impossible = evaluated(np.eye(K)[np.roll(TARGETS, 1)], TARGETS, kind="probs", resamples=DRAWS)
    assert tuple(impossible.draws.metrics) == ("error", "brier", "ece")
    compared = [scored("good"), impossible, scored("worse")]
    assert csv_values(compared, "nll_difference")[1] == (None, None, None)
    assert EvaluationRecord.from_json(impossible.to_json()) == impossible


def test_draws_of_differing_counts_are_refused(records):
    uneven = replace(records[0], draws=Draws("x", {"error": [0.1], "nll": [0.1, 0.2]}))
    with pytest.raises(ValueError, match="`draws`"):
        EvaluationRecord.from_json(uneven.to_json())


# Numbers and names


def test_csv_holds_every_number_exactly():
    for key in three()[0].scores:
        expected = [(n.value, n.low, n.high) for n in (record.scores[key] for record in three())]
        assert csv_values(three(), key) == expected
    assert [value for value, *_ in csv_values(three(), "brier_resolution")] == [
        record.brier_shares.resolution for record in three()
    ]
    for place, detection in enumerate(three()[0].ood[1].detections):
        found = csv_values(three(), "auroc", set="noise", score=detection.score)
        assert [value for value, *_ in found] == [r.ood[1].detections[place].auroc.value for r in three()]


def test_records_survive_rendering_and_the_file():
    before = [record.to_json() for record in three()]
    read_back = [EvaluationRecord.from_json(text) for text in before]
    for render in (to_csv, to_markdown, render_page):
        assert render(read_back) == render(three())
    assert [record.to_json() for record in three()] == before


def test_what_is_not_finite_becomes_missing():
    record = replace(model(), scores={"nll": Number(float("nan"), 0.0, 1.0), "error": Number(float("inf"))})
    rows = {row["metric"]: row for row in csv_rows(to_csv([record]))}
    for key in ("nll", "error"):
        assert rows[key]["value"] == rows[key]["low"] == "" and rows[key]["note"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(-0.00001, "0.0000"), (-1.5, "−1.5000"), (-1.25e6, "−1.2500e+06"), (999_999, "999999.0000")],
)
def test_numbers_have_a_true_minus_sign_and_exponents_from_a_million(value, text):
    record = replace(model(), scores={"nll": Number(value)})
    assert markdown_rows(to_markdown([record]))[NLL] == [text]
    assert csv_values([record], "nll") == [(value, None, None)]


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@sum(a)", "\t=x", " =x", "＝1+1"])
def test_no_text_in_the_csv_starts_a_formula(name):
    rows = csv_rows(to_csv([model(name, ood=(name,), examples=50)]))
    assert {row["model"][0] for row in rows} <= {"'", "␉"}
    assert not [cell for row in rows for cell in (row["model"], row["set"]) if cell[:1] in tuple("=+-@\t\r ")]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_terminal_table_fits_and_cuts_no_number(width):
    text = terminal(terminal_table(three()), width=width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    for record in three():
        assert f"{100 * record.scores['error'].value:.2f}" in text
        assert f"{record.scores['nll'].low:.4f}, {record.scores['nll'].high:.4f}" in text


def test_hostile_names_are_text_in_the_terminal():
    text = terminal(terminal_table(hostile()), width=80)
    assert "[red]" in text and "\x1b" not in text
    assert all(len(line.encode("utf-16-le")) // 2 <= 81 for line in text.splitlines())  # an emoji is two wide


def test_hostile_names_are_text_in_the_csv():
    text = to_csv(hostile())
    assert len(text.splitlines()) == len(csv_rows(text)) + 1
    assert {row["model"] for row in csv_rows(text)} == {*SHOWN_HOSTILE, "'=cmd()"} - {"=cmd()"}


def test_hostile_names_are_text_in_markdown():
    text = to_markdown(hostile())
    assert "<" not in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {10}
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", tables[0])[2:-1]]
    plain = [html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell)) for cell in cells]
    assert plain == list(SHOWN_HOSTILE)


def test_names_keep_what_can_be_seen_and_are_unique():
    names = ["naïve 🧑‍🔬 שלום", "a\x00\n\x7f\u202eb\ud800", "same", "same", " "]
    records = [replace(model(), name=name) for name in names]
    shown = list(dict.fromkeys(row["model"] for row in csv_rows(to_csv(records))))
    assert shown == ["naïve 🧑‍🔬 שלום", "a␀␊��b�", "same", "same (2)", "(no name)"]


@pytest.mark.parametrize("function", [terminal_table, to_csv, to_markdown, render_page])
def test_no_records_are_refused(function):
    with pytest.raises(ValueError, match=f"^{function.__name__}: `records`"):
        function([])


def test_no_part_of_the_report_imports_torch(tmp_path):
    (tmp_path / "record.json").write_text(model().to_json())
    finished = python(
        "import sys; sys.modules['torch'] = None; from pathlib import Path\n"
        "from beliefmatch.experiments.evaluation_record import EvaluationRecord\n"
        "from beliefmatch.report import page, evaluation_figures, evaluation_tables\n"
        f"record = EvaluationRecord.from_json(Path({str(tmp_path / 'record.json')!r}).read_text())\n"
        "page.render_page([record]); evaluation_tables.to_csv([record])\n"
        "next(evaluation_figures.evaluation_files([record]))"
    )
    assert finished.returncode == 0, finished.stderr
