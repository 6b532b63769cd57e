"""Tables of a comparison: the terminal at any width, Markdown, and lines for a spreadsheet."""

import csv
import re
from collections import Counter
from io import StringIO
from statistics import fmean, stdev

import pytest
from msgspec.structs import replace
from rich.console import Console

from beliefmatch.report.comparison_costs import choices, significant
from beliefmatch.report.comparison_rows import detection_row, presentable_comparison, score_rows
from beliefmatch.report.comparison_text import comparison_csv, comparison_markdown
from beliefmatch.report.tables import comparison_tables
from comparison_records import ANGLES, FIVE, SETS, comparison, five, hostile_comparison
from evaluation_records import HOSTILE

TWO = (FIVE[0], FIVE[4])
NUMBER = re.compile(r"\d+\.\d+")


def text(record, width=120):
    console = Console(file=StringIO(), width=width)
    console.print(*comparison_tables(record), crop=False)
    return console.file.getvalue()


def squeezed(words):
    return " ".join(words.split())


def with_runs(record, change, *, of=0):
    """The record with the runs of one method changed, by their place."""
    method = record.methods[of]
    runs = [change(place, run) for place, run in enumerate(method.runs)]
    methods = [*record.methods]
    methods[of] = replace(method, runs=runs)
    return replace(record, methods=methods)


def mean_and_sd(values, digits, scale=1):
    return f"{scale * fmean(values):.{digits}f} ± {scale * stdev(values):.{digits}f}"


def test_scores_are_means_and_deviations_over_the_seeds():
    shown = squeezed(text(five()))
    for method in five().methods:
        tests = [run.test for run in method.runs]
        cells = [
            mean_and_sd([scores.error for scores in tests], 2, 100),
            mean_and_sd([scores.nll for scores in tests], 4),
            mean_and_sd([scores.brier for scores in tests], 4),
            mean_and_sd([scores.ece for scores in tests], 2, 100),
        ]
        row = f"{method.label} " + " ".join(rf"[*≈]?{re.escape(cell)}" for cell in cells)
        assert re.search(re.escape(method.label) + row[len(method.label) :], shown), row
    assert "540 test images" in shown and "mean ± sd of 3 seeds; less is better" in shown


def test_the_best_mean_is_marked_and_so_are_those_that_overlap_it():
    error = score_rows(five())[0]
    means = [fmean(run.test.error for run in method.runs) for method in five().methods]
    sds = [stdev([run.test.error for run in method.runs]) for method in five().methods]
    best = means.index(min(means))
    for index, cell in enumerate(error.cells()):
        overlaps = means[index] - sds[index] <= means[best] + sds[best]
        assert cell.mark == ("best" if index == best else "close" if overlaps else ""), index


def test_one_seed_has_no_deviation_and_no_best():
    shown = text(comparison(seeds=(7,)))
    assert (
        "±" not in shown and "one seed" in shown and "*" not in shown.replace("*0.003", "").replace("* c", "")
    )


def test_an_infinite_score_makes_the_mean_infinite():
    def change(place, run):
        return replace(run, test=replace(run.test, nll=None)) if place else run

    record = with_runs(five(), change)
    nll = score_rows(record)[1]
    assert nll.cells()[0].value == "∞" and nll.cells()[0].mark == ""
    assert nll.cells()[0].seeds.startswith("seed 0: 0.1") and nll.cells()[0].seeds.endswith("seed 2: ∞")
    assert "∞" in text(record) and "| ∞ |" in comparison_markdown(record)
    rows = [row for row in read_csv(record) if row["method"] == "softmax" and row["metric"] == "nll"]
    assert [row["value"] for row in rows if row["part"] == "test"][1:] == ["inf", "inf"]


def test_detection_has_a_column_a_set_and_a_second_row_for_a_belief():
    shown = text(five())
    for name in SETS:
        values = [next(f for f in run.ood if f.name == name).auroc for run in five().methods[4].runs]
        assert mean_and_sd([areas["entropy"] for areas in values], 2, 100) in shown
        assert mean_and_sd([areas["mutual_information"] for areas in values], 2, 100) in shown
    assert shown.count("by mutual information") == 1
    assert [cell.value for cell in detection_row(five(), "noise", "mutual_information").cells()][:4] == [
        "—"
    ] * 4


def test_costs_are_means_and_multiples_of_the_first_method():
    first, ensemble = five().methods[0], five().methods[3]
    seconds = [fmean(run.costs.train_seconds for run in method.runs) for method in (first, ensemble)]
    row = next(line for line in text(five()).splitlines() if "ensemble of 5" in line and "×" in line)
    assert squeezed(row).startswith(
        f"ensemble of 5 5 60,170 {seconds[1]:.1f} {seconds[1] / seconds[0]:.1f}× "
    )
    assert row.rstrip().endswith("0.0615 5.0×")


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "—"), (0.0, "0"), (3.0, "3"), (0.012345, "0.0123"), (12.345, "12.3"), (999.6, "1000"),
     (1234567.8, "1,234,568"), (1e-7, "0.000000100")],
)  # fmt: skip
def test_three_digits_tell_a_cost(value, words):
    assert significant(value) == words


def test_choices_are_means_over_the_seeds_that_tried_a_value():
    found = choices(five())
    assert [(choice.value, choice.verdict) for choice in found] == [
        ("0.01", ""), ("0.003", "chosen"), ("0.001", ""),
    ]  # fmt: skip
    trials = [trial for run in five().methods[4].runs for trial in run.search if trial.value == 0.003]
    assert found[1].error == fmean(trial.validation.error for trial in trials)
    assert f"*0.003 {100 * found[1].error:.2f} {found[1].nll:.4f}" in squeezed(text(five()))


def test_seeds_that_chose_differently_are_counted():
    def change(place, run):
        chosen = 0.01 if place == 0 else 0.003
        return replace(run, search=[replace(t, chosen=t.value == chosen) for t in run.search])

    record = with_runs(five(), change, of=4)
    assert [choice.verdict for choice in choices(record)] == ["chosen by 1 of 3", "chosen by 2 of 3", ""]
    assert "*0.003 (2 of 3)" in text(record)
    assert "| chosen by 2 of 3 |" in comparison_markdown(record)


def test_a_row_a_method_tells_the_rotated_digit_in_short():
    lines = squeezed(text(five()))
    assert "°" in lines and not re.search(r"\b15°", lines)
    for method in five().methods:
        seen = method.runs[0].rotation
        classes = "".join(map(str, seen.predicted))
        wrong = mean_and_sd([run.rotation.wrong_confidence for run in method.runs], 2, 100)
        every = mean_and_sd([run.rotation.mean_wrong_confidence for run in method.runs], 2, 100)
        assert f"{classes} {100 * fmean(seen.confidence):.1f} {wrong} {every}" in lines


def test_two_methods_are_told_at_every_angle():
    record = comparison(TWO)
    shown = text(record)
    rows = [line.split() for line in shown.splitlines() if re.match(r"\s*\d+°", line)]
    assert [row[0] for row in rows] == [f"{angle}°" for angle in ANGLES]
    softmax, matching = (method.runs[0].rotation for method in record.methods)
    assert [int(row[1]) for row in rows] == softmax.predicted
    assert [float(row[5]) for row in rows] == [round(c, 2) for c in matching.confidence]
    wrong = [c for c, k in zip(softmax.confidence, softmax.predicted, strict=True) if k != 3]
    assert f"wrong {len(wrong)} {fmean(wrong):.2f}" in squeezed(shown)


def test_seeds_that_were_never_wrong_are_counted():
    def change(place, run):
        return replace(run, rotation=replace(run.rotation, wrong_confidence=None)) if place < 2 else run

    record = with_runs(five(), change)
    value = record.methods[0].runs[2].rotation.wrong_confidence
    assert f"{100 * value:.2f} (2)" in text(record) and "(n): n seeds never wrong" in squeezed(text(record))
    assert f"{100 * value:.2f} (2 of 3 seeds never wrong)" in comparison_markdown(record)


def test_parts_that_are_not_in_the_record_are_left_out():
    record = comparison(TWO, ood=(), rotated_digit=False, search=False)
    for shown in (text(record), comparison_markdown(record)):
        assert "Costs" in shown
        assert not re.search("AUROC|Chosen|upside", shown)


@pytest.mark.parametrize("width", [30, 45, 60, 80, 100])
def test_no_number_is_cut_short_in_a_narrow_terminal(width):
    wide, narrow = (text(five(), columns) for columns in (200, width))
    assert "…" not in narrow
    # Labels stand before every part of a table, and hold numbers too.
    missing = Counter(NUMBER.findall(wide)) - Counter(NUMBER.findall(narrow))
    assert not missing
    assert width < 45 or max(map(len, narrow.splitlines())) <= width


def test_five_methods_keep_mean_and_deviation_on_one_line_of_eighty_columns():
    lines = text(five(), 80).splitlines()
    assert sum(line.count("±") == 4 for line in lines) == 5
    assert sum(line.count("±") == 3 for line in lines) == 6


def test_names_are_text_in_the_terminal():
    shown = text(hostile_comparison(), 200)
    for name in HOSTILE[:7]:
        assert name in shown
    assert "[red]a␊b[/red] ␛[31m" in shown and "\x1b" not in shown


def read_csv(record):
    return list(csv.DictReader(StringIO(comparison_csv(record))))


def test_the_csv_has_a_line_a_method_seed_and_metric_in_full_precision():
    rows = read_csv(five())
    names = ("method", "seed", "part", "set", "score", "metric")
    places = [tuple(row[name] for name in names) for row in rows]
    assert len(set(places)) == len(places)
    values = dict(zip(places, (row["value"] for row in rows), strict=True))
    for method in five().methods:
        for run in method.runs:
            of = (method.label, str(run.seed))
            assert float(values[(*of, "test", "", "", "error")]) == run.test.error
            assert float(values[(*of, "validation", "", "", "nll")]) == run.validation.nll
            for found in run.ood:
                for score, area in found.auroc.items():
                    assert float(values[(*of, "ood", found.name, score, "auroc")]) == area
            assert float(values[(*of, "costs", "", "", "train_seconds")]) == run.costs.train_seconds
            assert (
                float(values[(*of, "rotation", "", "", "wrong_confidence")]) == run.rotation.wrong_confidence
            )
    assert len(rows) == 3 * (5 * (10 + 3 * 5 + 6 + 1 + 2) + 3 * 2)


def test_no_cell_of_the_csv_is_a_formula():
    cells = [cell for row in csv.reader(StringIO(comparison_csv(hostile_comparison()))) for cell in row]
    assert "'=cmd()" in cells
    assert not any(cell.lstrip()[:1] in tuple("=+@") for cell in cells)


def test_markdown_has_the_same_numbers_and_names_its_best():
    shown = comparison_markdown(five())
    errors = [[run.test.error for run in method.runs] for method in five().methods]
    means = [fmean(values) for values in errors]
    best = means.index(min(means))
    for index, values in enumerate(errors):
        mean, sd = f"{100 * fmean(values):.2f}", f"± {100 * stdev(values):.2f}"
        cell = f"**{mean}** {sd}" if index == best else f"{mean} {sd}"
        assert re.search(rf"\| {re.escape(five().methods[index].label)} \| (≈ )?{re.escape(cell)} \|", shown)
    for line in shown.splitlines():
        if line.startswith(("| softmax", "| ---")):
            assert line.endswith(" |")
    assert shown.count("### ") == 1 + 3 + 1 + 1 + 1


def test_names_are_text_in_markdown():
    shown = comparison_markdown(hostile_comparison())
    assert "<script>" not in shown and "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    tables = [line for line in shown.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (5, 7, 6, 4) for line in tables)


def test_labels_that_are_alike_are_numbered_and_empty_records_refused():
    twins = comparison([("a", "same"), ("b", "same"), ("c", " ")])
    shown = presentable_comparison(twins, caller="x")
    assert [method.label for method in shown.methods] == ["same", "same (2)", "(no name)"]
    with pytest.raises(ValueError, match="`record`"):
        comparison_csv(replace(twins, methods=[]))
    empty = replace(twins, methods=[replace(twins.methods[0], runs=[])])
    with pytest.raises(ValueError, match="`record`"):
        comparison_tables(empty)
