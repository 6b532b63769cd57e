"""Tables of evaluations: what is best, what fits, and that no name is ever more than a name."""

import csv
import html
import io
import math
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number, RiskThresholdRecord
from beliefmatch.report.evaluation_marks import best
from beliefmatch.report.evaluation_rows import detection_sections, summary
from beliefmatch.report.evaluation_tables import terminal_table, to_csv, to_markdown
from beliefmatch.report.evaluation_text import (
    answers_text,
    count_text,
    number_text,
    presentable,
    shorten,
    threshold_text,
    tidy,
)
from beliefmatch.report.page import render_page
from commands import python
from evaluation_records import HOSTILE, hostile, model, single_example, three


def shown(records, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(terminal_table(records))
    return console.file.getvalue()


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    ("numbers", "better", "marks"),
    [
        ([(1, 0.8, 1.2), (2, 1.9, 2.1)], "low", ["best", ""]),
        ([(1, 0.8, 1.2), (2, 1.2, 2.8)], "low", ["best", "close"]),
        ([(1, 0.8, 1.2), (2, 1.9, 2.1)], "high", ["", "best"]),
        ([(1, 0.8, 1.95), (2, 1.9, 2.1)], "high", ["close", "best"]),
        ([(1, 0.9, 1.1), (1, 0.9, 1.1), (2, 1.9, 2.1)], "low", ["best", "best", ""]),
        ([(1, None, None), (2, None, None)], "low", ["", ""]),
        ([(1, 0.9, 1.1), (2, None, None), (3, 2.9, 3.1)], "low", ["", "", ""]),
        ([(1, 0.9, 1.1), (1, 0.9, 1.1)], "low", ["", ""]),
        ([(-0.1, -0.2, -0.05), (0.3, 0.25, 0.4), (0.18, 0.15, 0.21)], "zero", ["best", "", "close"]),
        ([(0.2, -0.1, 0.5), (0.1, 0.05, 0.15)], "zero", ["close", "best"]),
        ([(1, 0, 2), (2, 1, 3)], "", ["", ""]),
        ([(1, 0.8, 1.2), (None, None, None)], "low", ["", ""]),
        ([(1, 0.8, 1.2), (None, None, None), (5, 4, 6)], "low", ["best", "", ""]),
        ([(1, 0.8, 1.2)], "low", [""]),
    ],
)
def test_the_best_is_marked_and_what_overlaps_it_if_all_have_intervals(numbers, better, marks):
    assert best([Number(*number) for number in numbers], better) == marks


def test_negating_all_values_turns_low_into_high():
    numbers = [record.scores["nll"] for record in three()]
    turned = [Number(-n.value, -n.high, -n.low) for n in numbers]
    assert best(numbers, "low") == best(turned, "high")
    assert best(numbers, "low").count("best") == 1


def test_csv_holds_every_number_exactly():
    rows = read(to_csv(three()))
    for record in three():
        own = {row["metric"]: row for row in rows if row["model"] == record.name and not row["set"]}
        for key, number in record.scores.items():
            found = own[key]
            assert [float(found[name]) for name in ("value", "low", "high")] == [
                number.value,
                number.low,
                number.high,
            ]
        assert float(own["brier_resolution"]["value"]) == record.brier_shares.resolution
        for detection in record.ood[1].detections:
            (area,) = (
                float(row["value"])
                for row in rows
                if (row["model"], row["set"], row["score"], row["metric"])
                == (record.name, "noise", detection.score, "auroc")
            )
            assert area == detection.auroc.value


def test_csv_says_why_a_number_is_missing():
    (row,) = (row for row in read(to_csv([single_example()])) if row["metric"] == "debiased_ece")
    assert (row["value"], row["low"], row["note"]) == ("", "", "needs two examples in a group")


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@sum(a)", "\t=x", " =x", "＝1+1"])
def test_no_text_in_the_csv_starts_a_formula(name):
    rows = read(to_csv([model(name, ood=(name,), examples=50)]))
    assert {row["model"][0] for row in rows} <= {"'", "␉"}
    assert not [cell for row in rows for cell in (row["model"], row["set"]) if cell[:1] in tuple("=+-@\t\r ")]


def test_negative_numbers_in_the_csv_stay_numbers():
    (record,) = presentable([model(index=6, examples=200)], caller="test")
    assert record.scores["overconfidence"].value < 0
    (row,) = (row for row in read(to_csv([record])) if row["metric"] == "overconfidence")
    assert float(row["value"]) == record.scores["overconfidence"].value


def test_csv_has_one_line_a_number_whatever_the_names_hold():
    text = to_csv(hostile())
    assert len(text.splitlines()) == len(read(text)) + 1
    assert {row["model"] for row in read(text)} >= {HOSTILE[0], "'=cmd()", "[red]a␊b[/red] ␛[31m�</style>"}


def test_markdown_tables_have_the_same_columns_in_every_line():
    for line in to_markdown(hostile()).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 10


def test_markdown_holds_no_html_and_no_live_sign_from_a_name():
    text = to_markdown(hostile())
    assert "<" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert r"🦊 fox \| \`tick\`" in text and r"\$x^2\$" in text and r"\_\_proto\_\_" in text
    head = next(line for line in text.splitlines() if line.startswith("|"))
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", head)[2:-1]]
    plain = [html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell)) for cell in cells]
    assert plain == [" ".join(record.name.split()) for record in presentable(hostile(), caller="test")]


def test_markdown_marks_the_best_and_explains_what_is_missing():
    records = [
        replace(three()[0], scores={**three()[0].scores, "nll": Number(None, why="a|b")}),
        *three()[1:],
    ]
    lines = {line.split("|")[1].strip(): line for line in to_markdown(records).splitlines() if "|" in line}
    assert r"— (a\|b)" in lines["Negative log-likelihood (nats) ↓"]
    assert lines["AUROC: svhn % ↑"].count("**") == 2
    value = 100 * three()[2].ood[0].detections[0].auroc.value
    assert f"**{value:.2f}**" in lines["AUROC: svhn % ↑"]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_terminal_table_fits_and_cuts_no_number(width):
    text = shown(three(), width)
    assert max(map(len, text.splitlines())) <= width
    for record in three():
        assert f"{100 * record.scores['error'].value:.2f}" in text
        assert f"{record.scores['nll'].low:.4f}, {record.scores['nll'].high:.4f}" in text
    assert "…" not in text


def test_eight_hostile_names_fit_eighty_columns_and_colour_nothing():
    text = shown(hostile(), 80)
    assert "[red]" in text and "\x1b" not in text
    assert all(len(line.encode("utf-16-le")) // 2 <= 81 for line in text.splitlines())  # an emoji is two wide


def test_the_terminal_names_no_best_of_one_model():
    text = shown([model()], 80)
    assert "*" not in text and "≈" not in text
    assert "*" in shown(three(), 80) and "≈" in shown(three(), 80)


def test_equal_names_are_told_apart():
    names = [record.name for record in presentable([model(), model(), model("")], caller="test")]
    assert names == ["softmax", "softmax (2)", "(no name)"]


def test_no_records_are_refused_in_one_line():
    for function in (terminal_table, to_csv, to_markdown):
        with pytest.raises(
            ValueError, match=f"^{function.__name__}: `records` must hold at least one record"
        ):
            function([])


def test_summary_and_detection_cover_all_scores_and_sets():
    titles = [row.title for section in summary(three()) for row in section.rows]
    passing = "OOD that pass where 95 % of in-distribution pass (FPR95): svhn"
    assert {"Top-5 error", passing, "AUROC: wrong predictions"} <= set(titles)
    sections = detection_sections(three())
    assert [section.set for section in sections] == [None, "svhn", "noise"]
    assert all(len(section.rows) == 6 * 4 for section in sections)
    assert [section.title for section in sections] == ["Wrong predictions", "svhn", "noise"]
    assert [[row.title for row in section.rows[:4]] for section in sections[:2]] == [
        [
            "AUROC",
            f"AUPR, {out} positive",
            f"AUPR, {into} positive",
            f"{out[0].upper() + out[1:]} that pass where 95 % of {into} pass (FPR95)",
        ]
        for out, into in (("wrong", "right"), ("OOD", "in-distribution"))
    ]


def test_precision_of_wrong_predictions_has_no_best_but_a_chance_level():
    wrong, ood, _ = detection_sections(three())
    areas = {row.key: row for row in wrong.rows if row.score == "entropy"}
    errors = [100 * record.scores["error"].value for record in three()]
    for key, chances in (("aupr_ood", errors), ("aupr_id", [100 - error for error in errors])):
        cells = areas[key].cells()
        assert [cell.mark for cell in cells] == ["", "", ""]
        assert [cell.chance for cell in cells] == [f"chance {chance:.2f}" for chance in chances]
    assert "best" in [cell.mark for cell in areas["auroc"].cells()]
    compared = next(row for row in ood.rows if row.key == "aupr_ood").cells()
    assert "best" in [cell.mark for cell in compared] and not any(cell.chance for cell in compared)
    lines = [line for line in to_markdown(three()).splitlines() if line.startswith("| AUPR, wrong positive")]
    assert len(lines) == 6 and all(line.count("(chance ") == 3 for line in lines)
    assert not any("**" in line or "≈" in line for line in lines)


def test_legends_spell_out_what_they_shorten():
    written, terminal = to_markdown(three()), " ".join(shown(three(), 120).split())
    for text in (written, terminal):
        assert "AUROC: area under the ROC curve" in text and "told apart" not in text
        assert "interval overlaps that of the best" in text
    assert "AUPR: area under the precision-recall curve" in written
    assert "FPR95: svhn" in terminal and "FPR95: OOD that pass where 95 % of in-distribution pass" in terminal
    assert "1 example, 2 classes" in to_markdown([single_example()])


def test_a_set_that_one_model_lacks_is_missing_for_it_alone():
    records = [model("a", ood=("x",), examples=60), model("b", index=1, ood=(), examples=60)]
    (row,) = (row for section in summary(records) for row in section.rows if row.title == "AUROC: x")
    first, second = row.cells()
    assert first.value != "—" and (second.value, second.why) == ("—", "not evaluated for this model")


def test_unknown_metrics_are_shown_without_a_best():
    records = [replace(r, scores={**r.scores, "new_one": Number(0.5 + i)}) for i, r in enumerate(three())]
    (row,) = next(section.rows for section in summary(records) if section.title == "Other")
    assert (row.title, row.better) == ("new one", "") and {cell.mark for cell in row.cells()} == {""}


def test_what_is_not_finite_becomes_missing():
    broken = Number(float("nan"), 0.0, 1.0)
    assert tidy(broken) == Number(None, why="no finite value")
    assert tidy([float("inf"), 1.0]) == [None, 1.0]
    record = replace(model(examples=50), scores={"nll": broken})
    assert read(to_csv([record]))[0]["note"] == "no finite value"


def test_texts_keep_what_can_be_seen():
    assert tidy("naïve 🧑‍🔬 שלום") == "naïve 🧑‍🔬 שלום"
    assert tidy("a\x00\n\x7f\u202eb\ud800") == "a␀␊��b�"
    assert tidy("a\ud800").encode() == "a�".encode()
    assert shorten("x" * 50, 9) == "xxxxx…xxx" and shorten("short", 9) == "short"
    assert number_text(-0.00001, 2) == "0.00" and number_text(-1.5, 1) == "−1.5"
    assert threshold_text(0.99998) == "0.999980" and threshold_text(0.5) == "0.5000"
    assert threshold_text(1.0) == "1.0000" and float(threshold_text(1 - 1e-9)) < 1
    assert number_text(999_999, 1) == "999999.0" and number_text(-1.25e6, 2) == "−1.25e+06"
    assert count_text(1, "example") == "1 example" and count_text(2000, "example") == "2,000 examples"


@pytest.mark.parametrize("threshold", [0.9, 0.12341, 0.99899, 0.99998123, 1 - 1e-9, 1 - 1e-13, 1e-6, 1.0])
def test_a_shown_threshold_keeps_the_promise(threshold):
    assert threshold <= float(threshold_text(threshold)) <= min(threshold + 1e-4, 1)
    assert threshold_text(0.12341) == "0.1235" and threshold_text(0.9) == "0.9000"


def test_a_threshold_of_nothing_answers_everything():
    for threshold in (0.0, -math.inf):
        threshold = tidy([RiskThresholdRecord(0.1, 0.05, threshold, 1.0, 0.01, 0.02)])[0]
        assert answers_text(threshold) == ("answers everything", "")
    some = RiskThresholdRecord(0.1, 0.05, 0.12341, 0.5, 0.01, 0.02)
    assert answers_text(some) == ("answers 50.0\u00a0%", "confidence ≥ 0.1235")


def test_rendering_changes_no_record_and_survives_the_file():
    before = [record.to_json() for record in three()]
    read_back = [EvaluationRecord.from_json(text) for text in before]
    assert to_csv(read_back) == to_csv(three()) and to_markdown(read_back) == to_markdown(three())
    assert [record.to_json() for record in three()] == before


def test_no_part_of_the_report_imports_torch():
    code = (
        "import sys; from beliefmatch.report import page, page_plots, evaluation_figures, evaluation_tables\n"
        "from evaluation_records import model\n"
        "record = model(examples=50)\n"
        "page.render_page([record]); evaluation_tables.to_csv([record])\n"
        "next(evaluation_figures.evaluation_files([record]))\n"
        "print('torch' in sys.modules)"
    )
    run = python(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{code}")
    assert run.stdout.strip() == "False", run.stderr


def test_models_judged_on_different_targets_are_not_marked():
    first, second = three()[:2]
    apart = [
        replace(record, settings={**record.settings, "targets_sha256": digest})
        for record, digest in ((first, "a"), (second, "b"))
    ]
    assert any(
        cell.mark for section in summary([first, second]) for row in section.rows for cell in row.cells()
    )
    assert not any(cell.mark for section in summary(apart) for row in section.rows for cell in row.cells())
    assert "different targets" in to_markdown(apart)
    assert "different targets" in render_page(apart)
    assert "different targets" not in to_markdown([first, second])
