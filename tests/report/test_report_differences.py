"""Models compared draw by draw in tables and on the page, from records alone."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from rich.console import Console

from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import Draws, EvaluationRecord
from beliefmatch.metrics import bootstrap_differences, outcomes
from beliefmatch.report.evaluation_rows import DIFFERENCES, has_differences, summary
from beliefmatch.report.evaluation_tables import terminal_table, to_csv, to_markdown
from beliefmatch.report.page import render_page
from evaluation_records import three
from html_page import Page, row

N, K, DRAWS = 500, 4, 80
MAIN = ("error", "nll", "brier", "ece")
RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, K, N)
SHARED = RNG.normal(size=(N, K)) + 2 * np.eye(K)[TARGETS]
MODELS = {
    "good": SHARED + 0.15 * np.eye(K)[TARGETS],
    "like it": SHARED + 0.15 * np.eye(K)[TARGETS] + 0.1 * RNG.normal(size=(N, K)),
    "worse": SHARED + 0.1 * RNG.normal(size=(N, K)),
}


def judged(name: str, *, targets=TARGETS, **options) -> EvaluationRecord:
    logits = torch.from_numpy(MODELS[name])
    given = Predictions(Path(f"{name}.npz"), "logits", logits, torch.from_numpy(targets), None, {})
    return evaluate(given, name=name, settings=EvaluateConfig(**{"resamples": DRAWS, **options}))


@pytest.fixture(scope="module")
def records() -> list[EvaluationRecord]:
    return [judged(name) for name in MODELS]


def rows_of(records, title):
    return {row.key: row for section in summary(records) if section.title == title for row in section.rows}


def all_rows(records):
    return {row.key: row for section in summary(records) for row in section.rows}


def test_a_record_keeps_the_draws_of_the_main_metrics(records):
    for record in records:
        assert record.draws is not None and tuple(record.draws.metrics) == MAIN
        assert {len(draws) for draws in record.draws.metrics.values()} == {DRAWS}
        assert record.draws.rows_sha256 == records[0].draws.rows_sha256
        assert EvaluationRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize("key", MAIN)
def test_differences_from_records_are_those_of_the_predictions(records, key):
    numbers = rows_of(records, DIFFERENCES)[f"{key}_difference"].numbers
    values = [record.scores[key].value for record in records]
    best = values.index(min(values))
    seen = [outcomes(torch.from_numpy(TARGETS), logits=torch.from_numpy(z)) for z in MODELS.values()]
    for index, number in enumerate(numbers):
        if index == best:
            assert (number.value, number.low) == (0.0, None)
        else:
            found = bootstrap_differences(seen[index], seen[best], resamples=DRAWS)[key]
            assert (number.value, number.low, number.high) == pytest.approx(tuple(found), abs=1e-11)


def test_what_may_differ_by_nothing_is_marked_as_close(records):
    rows = all_rows(records)
    for key in MAIN:
        differences = rows[f"{key}_difference"]
        for cell, twin, number in zip(
            rows[key].cells(), differences.cells(), differences.numbers, strict=True
        ):
            expected = "best" if number.value == 0 else "close" if number.low <= 0 else ""
            assert (cell.mark, twin.mark, cell.paired) == (expected, expected, True)
    marks = [cell.mark for cell in rows["nll"].cells()]
    assert marks[2] == "" and sorted(marks[:2]) == ["best", "close"]


def test_pairs_tell_apart_what_overlapping_intervals_do_not(records):
    """The same examples are hard for both models: their intervals overlap and their difference is sure."""
    row = all_rows(records)["brier"]
    assert row.marks()[2] == "close" and row.cells()[2].mark == ""
    low, value = row.numbers[2].low, row.numbers[0].high
    assert low is not None and value is not None and low < value


def test_page_terminal_markdown_and_csv_show_the_differences(records):
    number = rows_of(records, DIFFERENCES)["brier_difference"].numbers[2]
    shown = f"{number.value:.4f} [{number.low:.4f}, {number.high:.4f}]"
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(terminal_table(records))
    assert shown in console.file.getvalue() and "Brier score above the best" in console.file.getvalue()
    assert shown in to_markdown(records) and f"### {DIFFERENCES}" in to_markdown(records)
    page = Page(render_page(records))
    found = [
        element["text"] for element in page.all("tr") if element["text"].strip().startswith("Brier score")
    ]
    assert f"{number.value:.4f}[{number.low:.4f}, {number.high:.4f}]" in found[1]
    close = row(page, "Negative log-likelihood")[1]["text"] + row(page, "Negative log-likelihood")[0]["text"]
    assert "difference from the best may be none" in close
    (line,) = (
        line
        for line in csv.DictReader(io.StringIO(to_csv(records)))
        if (line["model"], line["metric"]) == ("worse", "brier_difference")
    )
    assert [float(line[part]) for part in ("value", "low", "high")] == [number.value, number.low, number.high]
    for text in (to_markdown(records), render_page(records), console.file.getvalue()):
        assert "where none is shown" in " ".join(text.split())


def test_records_read_back_give_the_same_tables_and_page(records):
    again = [EvaluationRecord.from_json(record.to_json()) for record in records]
    assert to_csv(again) == to_csv(records) and to_markdown(again) == to_markdown(records)
    assert render_page(again) == render_page(records)


def old(record: EvaluationRecord) -> EvaluationRecord:
    """As the first version wrote it."""
    content = json.loads(record.to_json())
    del content["draws"]
    return EvaluationRecord.from_json(json.dumps({**content, "schema": "beliefmatch.evaluation/1"}))


def test_records_of_the_first_version_are_read_and_compared_by_their_intervals(records):
    before = [old(record) for record in records]
    assert before == [replace(record, draws=None) for record in records]
    assert not has_differences(summary(before))
    row = all_rows(before)["brier"]
    assert [cell.mark for cell in row.cells()] == row.marks() and row.marks()[2] == "close"
    assert "where none is shown" not in to_markdown(before)


def test_a_record_without_draws_among_others_is_compared_by_its_interval(records):
    derive_seed = [records[0], records[1], old(records[2])]
    row = all_rows(derive_seed)["brier_difference"]
    assert (row.numbers[2].value, row.numbers[2].why) == (None, "not drawn alike")
    cells = all_rows(derive_seed)["brier"].cells()
    assert (cells[2].mark, cells[2].paired) == ("close", False)
    assert "not drawn alike" in render_page(derive_seed)


@pytest.mark.parametrize(
    "options", [{"seed": 1}, {"resamples": DRAWS + 1}, {"level": 0.9}], ids=["seed", "resamples", "level"]
)
def test_other_draws_are_not_paired(records, options):
    assert not has_differences(summary([records[0], judged("worse", **options)]))


def test_other_groups_leave_only_the_calibration_unpaired(records):
    assert set(rows_of([records[0], judged("worse", n_bins=10)], DIFFERENCES)) == {
        "error_difference",
        "nll_difference",
        "brier_difference",
    }


def test_models_of_other_targets_are_not_paired(records):
    other = judged("worse", targets=np.roll(TARGETS, 1))
    assert other.draws is not None and other.draws.rows_sha256 == records[0].draws.rows_sha256
    assert not has_differences(summary([records[0], other]))
    unknown = replace(records[2], settings={**records[2].settings, "targets_sha256": None})
    assert not has_differences(summary([records[0], unknown]))


def test_without_intervals_or_examples_there_are_no_draws():
    assert judged("good", resamples=0).draws is None
    values, targets = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    one = evaluate(Predictions(Path("m.npz"), "logits", values, targets, None, {}))
    assert one.draws is None


def test_an_impossible_likelihood_has_no_draws():
    probs = torch.eye(K, dtype=torch.float64)[torch.from_numpy(np.roll(TARGETS, 1))]
    given = Predictions(Path("m.npz"), "probs", probs, torch.from_numpy(TARGETS), None, {})
    record = evaluate(given, settings=EvaluateConfig(resamples=DRAWS))
    assert record.draws is not None and tuple(record.draws.metrics) == ("error", "brier", "ece")
    derive_seed = [judged("good"), record, judged("worse")]
    assert all_rows(derive_seed)["nll_difference"].numbers[1].value is None
    assert EvaluationRecord.from_json(record.to_json()) == record


def test_draws_of_unlike_numbers_are_refused(records):
    uneven = replace(records[0], draws=Draws("x", {"error": [0.1], "nll": [0.1, 0.2]}))
    with pytest.raises(ValueError, match="`draws`"):
        EvaluationRecord.from_json(uneven.to_json())


def test_a_level_that_is_none_does_not_break_a_report(records):
    strange = [replace(r, settings={**r.settings, "level": "much"}) for r in records]
    assert not has_differences(summary(strange)) and not has_differences(summary(three()))
