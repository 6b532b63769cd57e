"""A comparison as tables, as a page and as files, from its record alone."""

import base64
import json
import re
from collections import Counter
from io import BytesIO
from statistics import fmean, stdev

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from beliefmatch._files import LEDGER, atomic_write_dir
from beliefmatch.cli import main
from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.report.comparison_files import comparison_files
from beliefmatch.report.comparison_page import render_comparison
from beliefmatch.report.comparison_text import comparison_csv, comparison_markdown
from beliefmatch.report.page import render_page
from beliefmatch.report.tables import comparison_tables
from commands import files_below, python, refused
from comparison_records import (
    ANGLES,
    FIVE,
    comparison,
    evaluations,
    evaluations_of_five,
    five,
    hostile_comparison,
)
from evaluation_records import HOSTILE
from golden import assert_golden
from html_page import Page, outline
from rendered import csv_rows, figures_drawn, markdown_rows, rounded, terminal

TWO = (FIVE[0], FIVE[4])
NUMBER = re.compile(r"\d+\.\d+")


@pytest.fixture(scope="module")
def page():
    return Page(render_comparison(five(), evaluations_of_five()))


def shown(record, width=120):
    return terminal(*comparison_tables(record), width=width)


def with_runs(record, change, *, of=0):
    """The record with the runs of one method changed, by their place."""
    methods = [*record.methods]
    runs = [change(place, run) for place, run in enumerate(methods[of].runs)]
    methods[of] = replace(methods[of], runs=runs)
    return replace(record, methods=methods)


def mean_and_sd(values, digits, scale=1):
    return f"{scale * fmean(values):.{digits}f} ± {scale * stdev(values):.{digits}f}"


def unmarked(cell):
    return cell.replace("**", "").removeprefix("≈ ")


def test_tables_of_five_and_of_two_methods():
    two = comparison(TWO, seeds=(0, 1), ood=("noise",))
    assert_golden("report/comparison_terminal.txt", shown(five()))
    assert_golden("report/comparison_terminal_of_two.txt", shown(two))
    assert_golden("report/comparison_markdown.txt", comparison_markdown(five()))
    assert_golden("report/comparison_csv.txt", rounded(comparison_csv(comparison(TWO[1:], seeds=(0,)))))


def test_the_page_of_two_methods():
    two = comparison(TWO, seeds=(0, 1), ood=("noise",))
    text = outline(render_comparison(two, evaluations(two, examples=60)))
    assert_golden("report/comparison_page.txt", text[: text.index("## Summary")])  # then as an evaluation's


# Numbers


def test_scores_are_means_and_deviations_over_the_seeds(page):
    text, rows = " ".join(shown(five()).split()), markdown_rows(comparison_markdown(five()))
    means = [fmean(run.test.error for run in method.runs) for method in five().methods]
    sds = [stdev(run.test.error for run in method.runs) for method in five().methods]
    best = means.index(min(means))
    for index, method in enumerate(five().methods):
        tests = [run.test for run in method.runs]
        cells = [
            mean_and_sd([getattr(scores, key) for scores in tests], digits, scale)
            for key, digits, scale in (("error", 2, 100), ("nll", 4, 1), ("brier", 4, 1), ("ece", 2, 100))
        ]
        pattern = " ".join(rf"[*≈]?{re.escape(cell)}" for cell in cells)
        assert re.search(f"{re.escape(method.label)} {pattern}", text), pattern
        found = rows[method.label.replace("_", r"\_")]
        assert [*map(unmarked, found[:4])] == cells
        close = means[index] - sds[index] <= means[best] + sds[best]
        mark = "best" if index == best else "close" if close else ""
        assert found[0].startswith({"best": "**", "close": "≈", "": cells[0]}[mark])
        cell = page.row("Error")[index]
        assert cell["text"].split()[-3:] == cells[0].split() and (not mark or mark in cell["class"].split())
        assert cell["title"] == ", ".join(f"seed {r.seed}: {100 * r.test.error:.2f}" for r in method.runs)


def test_one_seed_has_no_deviation_and_no_best():
    record = comparison(seeds=(7,), search=False)
    assert not re.search(r"±|\*", shown(record))
    assert "**" not in markdown_rows(comparison_markdown(record))["softmax"][0]


def test_an_infinite_score_makes_the_mean_infinite():
    record = with_runs(five(), lambda at, run: replace(run, test=replace(run.test, nll=None)) if at else run)
    assert "∞" in shown(record) and markdown_rows(comparison_markdown(record))["softmax"][1] == "∞"
    cell = Page(render_comparison(record, evaluations_of_five())).row("Negative log-likelihood")[0]
    assert re.fullmatch(r"seed 0: 0\.\d+, seed 1: ∞, seed 2: ∞", cell["title"])
    found = {"method": "softmax", "part": "test", "metric": "nll"}
    rows = [row for row in csv_rows(comparison_csv(record)) if found.items() <= row.items()]
    assert [row["value"] for row in rows][1:] == ["inf", "inf"]


def test_scores_of_ood_detection_that_a_method_lacks_are_left_out(page):
    belief = [[found.auroc for found in run.ood] for run in five().methods[4].runs]
    means = [mean_and_sd([run[at]["mutual_information"] for run in belief], 2, 100) for at in range(3)]
    sections = comparison_markdown(five()).split("### ")
    (table,) = (section for section in sections if "by mutual information" in section)
    assert [*map(unmarked, markdown_rows(table)[FIVE[4][1]])] == means and "softmax" not in table
    cells = page.row("AUROC, mutual information")
    assert [cell["text"].strip() for cell in cells[:4]] == ["—"] * 4 and means[0] in cells[4]["text"]


def test_costs_have_three_digits_and_are_multiples_of_the_first_method():
    seconds = (3.0, 0.012345, 12.345, 999.6, 1234567.8, 1e-7, None)
    record = comparison([(f"m{at}", f"m{at}") for at in range(len(seconds))], seeds=(0,))
    for at, value in enumerate(seconds):
        costs = replace(record.methods[at].runs[0].costs, train_seconds=value)
        record = with_runs(record, lambda _, run, costs=costs: replace(run, costs=costs), of=at)
    (table,) = (part for part in comparison_markdown(record).split("### ") if part.startswith("Costs"))
    found = [markdown_rows(table)[f"m{at}"][2] for at in range(len(seconds))]
    assert found == [
        "3 (1.0×)", "0.0123 (0.0×)", "12.3 (4.1×)", "1000 (333×)", "1,234,568 (411,523×)",
        "0.000000100 (0.0×)", "—",
    ]  # fmt: skip


def test_choices_are_means_over_the_seeds_that_tried_a_value():
    def choose(place, run):
        chosen = 0.01 if place == 0 else 0.003
        return replace(run, search=[replace(trial, chosen=trial.value == chosen) for trial in run.search])

    record = with_runs(five(), choose, of=4)
    trials = [trial for run in record.methods[4].runs for trial in run.search if trial.value == 0.003]
    errors = [100 * trial.validation.error for trial in trials]
    nlls = [trial.validation.nll for trial in trials]
    for text in (shown(record), comparison_markdown(record)):
        assert f"{fmean(errors):.2f}" in text and f"{fmean(nlls):.4f}" in text
        assert "2 of 3" in text and "1 of 3" in text


def test_the_rotated_digit_is_shown_in_short_for_many_methods_and_at_every_angle_for_two():
    text = " ".join(shown(five()).split())
    for method in five().methods:
        seen = method.runs[0].rotation
        wrong = mean_and_sd([run.rotation.wrong_confidence for run in method.runs], 2, 100)
        every = mean_and_sd([run.rotation.mean_wrong_confidence for run in method.runs], 2, 100)
        classes = "".join(map(str, seen.predicted))
        assert f"{classes} {100 * fmean(seen.confidence):.1f} {wrong} {every}" in text
    record = comparison(TWO)
    softmax, matching = (method.runs[0].rotation for method in record.methods)
    rows = [line.split() for line in shown(record).splitlines() if re.match(r"\s*\d+°", line)]
    assert [row[0] for row in rows] == [f"{angle}°" for angle in ANGLES]
    assert [int(row[1]) for row in rows] == softmax.predicted
    assert [float(row[5]) for row in rows] == [round(value, 2) for value in matching.confidence]


def test_seeds_that_were_never_wrong_are_counted():
    def change(place, run):
        return replace(run, rotation=replace(run.rotation, wrong_confidence=None)) if place < 2 else run

    record = with_runs(five(), change)
    value = f"{100 * record.methods[0].runs[2].rotation.wrong_confidence:.2f}"
    assert f"{value} (2)" in shown(record) and f"{value} (2 of 3 seeds" in comparison_markdown(record)


def test_the_csv_has_a_line_a_method_seed_and_metric_in_full_precision():
    rows = csv_rows(comparison_csv(five()))
    names = ("method", "seed", "part", "set", "score", "metric")
    values = {tuple(row[name] for name in names): row["value"] for row in rows}
    assert len(values) == len(rows) == 3 * (5 * (10 + 3 * 5 + 6 + 1 + 2) + 3 * 2)
    for method in five().methods:
        for run in method.runs:
            of = (method.label, str(run.seed))
            expected = {
                ("test", "", "", "error"): run.test.error,
                ("validation", "", "", "nll"): run.validation.nll,
                ("costs", "", "", "train_seconds"): run.costs.train_seconds,
                ("rotation", "", "", "wrong_confidence"): run.rotation.wrong_confidence,
                **{("ood", o.name, score, "auroc"): a for o in run.ood for score, a in o.auroc.items()},
            }
            assert {place: float(values[(*of, *place)]) for place in expected} == expected


@pytest.mark.parametrize("width", [30, 45, 60, 80, 100])
def test_no_number_is_cut_short_in_a_narrow_terminal(width):
    wide, narrow = (shown(five(), columns) for columns in (200, width))
    assert "…" not in narrow
    # Labels stand before every part of a table, and hold numbers too.
    assert not Counter(NUMBER.findall(wide)) - Counter(NUMBER.findall(narrow))
    assert width < 45 or max(map(len, narrow.splitlines())) <= width
    if width == 80:  # mean and deviation of five methods on one line
        assert Counter(line.count("±") for line in narrow.splitlines())[4] == 5


def test_parts_that_are_not_recorded_are_left_out():
    record = comparison(FIVE[:1], seeds=(3,), ood=(), rotated_digit=False, search=False)
    record.methods[0].runs[0].curves.clear()
    for text in (shown(record), comparison_markdown(record)):
        assert "Costs" in text and not re.search("AUROC|Chosen|upside", text)
    page = Page(render_comparison(record, evaluations(record, examples=60)))
    ids = [element["id"] for element in page.all("section")]
    assert ids[:4] == ["over-seeds", "costs", "training", "summary"]
    alone = Page(render_page(evaluations(record, examples=60)))
    assert alone.all("section")[0]["id"] == "summary" and not alone.all("li", **{"class": "of-part"})


# The page


def test_the_command_of_a_page_is_one_that_a_shell_takes():
    record = replace(five(), settings={"command": ["beliefmatch", "compare", "--set", "a b=<c>"]})
    page = Page(render_comparison(record, evaluations_of_five()))
    assert page.all("code")[0]["text"] == "beliefmatch compare --set 'a b=<c>'"


def test_the_digit_is_pictured_at_every_angle(page):
    (table,) = page.all("table", **{"class": "rotation"})
    images = page.all("img")[: len(ANGLES)]
    assert table and [re.search(r"\d+°", image["alt"])[0] for image in images] == [f"{a}°" for a in ANGLES]
    for image, expected in zip(images, five().rotated_digit.images, strict=True):
        decoded = Image.open(BytesIO(base64.b64decode(image["src"].partition(",")[2])))
        shade = 1 - np.asarray(decoded, dtype=float) / 255
        np.testing.assert_allclose(shade, np.asarray(expected), atol=0.5 / 255)


def test_plots_hold_the_curves_of_every_network(page):
    plots = page.plots()
    traces = plots["learning-loss"]["data"]
    assert [sum(t["meta"]["model"] == index for t in traces) for index in range(5)] == [4, 4, 4, 16, 4]
    losses = [run.curves[0]["loss"] for run in five().methods[0].runs]
    assert traces[3]["y"] == pytest.approx([fmean(epoch) for epoch in zip(*losses, strict=True)], rel=1e-4)
    seen = five().methods[2].runs[0].rotation
    assert plots["rotation-kept"]["data"][2]["y"] == pytest.approx(seen.recognised, rel=1e-4)
    assert all(len(element["aria-label"]) > 30 for element in page.all("div", role="img"))


def test_links_of_the_page_lead_somewhere(page):
    links = {element["href"] for element in page.all("a")}
    assert links <= {f"#{element.get('id')}" for element in page.elements}


# Names


def test_hostile_names_are_text_everywhere():
    record = hostile_comparison()
    options = {HOSTILE[0]: HOSTILE[1]}
    settings = {**options, "command": HOSTILE[0]}
    record = with_runs(record, lambda _, run: replace(run, options=options, learned=options))
    record = replace(record, settings=settings)
    page = Page(render_comparison(record, evaluations(record, examples=60)))
    assert len(page.all("script")) == 3 and len(page.all("style")) == 1
    assert not page.all("b") + page.all("i") and {*HOSTILE[:7]} <= {*page.names()}
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    traces = [trace for plot in page.plots().values() for trace in plot["data"]]
    assert not [t["name"] for t in traces if re.search(r"<(?!br>)|%\{|\$", t.get("name", ""))]

    text = shown(record, 200)
    assert all(name in text for name in HOSTILE[:7])
    assert "[red]a␊b[/red] ␛[31m" in text and "\x1b" not in text
    cells = [cell for row in csv_rows(comparison_csv(record)) for cell in row.values()]
    assert "'=cmd()" in cells and not any(cell.lstrip()[:1] in tuple("=+@") for cell in cells if cell)
    markdown = comparison_markdown(record)
    assert "<" not in markdown
    for table in markdown.split("### "):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) <= 1


def test_labels_are_unique():
    twins = comparison([("a", "same"), ("b", "same"), ("c", " ")])
    labels = dict.fromkeys(row["method"] for row in csv_rows(comparison_csv(twins)))
    assert list(labels) == ["same", "same (2)", "(no name)"]


@pytest.mark.parametrize("function", [comparison_tables, comparison_csv, comparison_markdown])
@pytest.mark.parametrize("methods", [[], [replace(five().methods[0], runs=[])]], ids=["methods", "runs"])
def test_records_without_runs_are_refused(function, methods):
    with pytest.raises(ValueError, match="`record`"):
        function(replace(five(), methods=methods))


def test_every_method_needs_its_evaluation():
    with pytest.raises(ValueError, match="`evaluations`"):
        render_comparison(five(), evaluations_of_five()[:4])


# Files


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """All files of a comparison of two methods."""
    directory = tmp_path_factory.mktemp("compare")
    record = comparison(FIVE[1:3], seeds=(0,), ood=("noise",))
    with figures_drawn():
        atomic_write_dir(directory, comparison_files(record, evaluations(record, examples=60)))
    return directory


def test_files_have_names_that_any_file_system_takes(place):
    assert [name for name in files_below(place) if not name.startswith("figures")] == [
        LEDGER,
        "comparison.json",
        "evaluations/label_smoothing_smoothing_0.01.json",
        "evaluations/mc_dropout_layers_last.json",
        "report.html",
        "summary.csv",
        "summary.md",
    ]
    record = ComparisonRecord.from_json((place / "comparison.json").read_text("utf-8"))
    assert (place / "summary.csv").read_text("utf-8") == comparison_csv(record)


def test_the_page_is_made_again_from_records_alone_without_torch(place, tmp_path):
    out = tmp_path / "again.html"
    command = ["report", f"{place / 'comparison.json'}", "--out", f"{out}"]
    finished = python(
        "import sys; sys.modules['torch'] = None\n"
        f"from beliefmatch.cli import main; code = main({command})\n"
        "heavy = [name for name in ('torch', 'matplotlib', 'scipy') if sys.modules.get(name)]\n"
        "sys.exit(code or str(heavy or ''))"
    )
    assert (finished.stderr.strip(), finished.stdout) == ("", f"{out}\n")
    assert out.read_bytes() == (place / "report.html").read_bytes()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, "evaluations/label_smoothing_smoothing_0.01.json"),
        ({"schema": "beliefmatch.comparison/0"}, "`schema`"),
        ({"methods": []}, "`RECORD`"),
    ],
    ids=["no evaluations", "schema", "no methods"],
)
def test_a_comparison_that_cannot_be_shown_is_refused(place, tmp_path, capsys, change, named):
    content = json.loads((place / "comparison.json").read_text("utf-8"))
    (tmp_path / "record.json").write_text(json.dumps({**content, **change}), encoding="utf-8")
    command = ["report", f"{tmp_path / 'record.json'}", "--out", f"{tmp_path / 'x.html'}"]
    assert named in refused(command, capsys)


def test_records_of_different_kinds_are_refused(place, capsys):
    (evaluation, *_) = (place / "evaluations").iterdir()
    assert main(["report", f"{place / 'comparison.json'}", f"{evaluation}"]) == 2
    assert "got 2" in capsys.readouterr().err
