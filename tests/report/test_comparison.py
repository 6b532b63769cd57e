"""A comparison in words, tables, figures, a page and files, from its record alone."""

import json
import re
from collections import Counter
from statistics import fmean, stdev

import matplotlib
import pytest
from matplotlib import rc_context
from msgspec.structs import replace

from beliefmatch._files import LEDGER, atomic_write_dir
from beliefmatch.cli import main
from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.report.comparison import (
    comparison_csv,
    comparison_files,
    comparison_page,
    comparison_summary,
    comparison_tables,
)
from beliefmatch.report.comparison_figures import comparison_figures, overview_figure
from beliefmatch.report.comparison_words import comparison_advice, comparison_findings, comparison_verdict
from beliefmatch.report.figure import inline_svg, paper_canvas, paper_files
from beliefmatch.report.page import render_page
from beliefmatch.report.table import markdown_report, to_rich
from commands import files_below, python, refused
from comparison_records import (
    ANGLES,
    EPOCHS,
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
from rendered import STARTS, csv_rows, figure_outline, figures_drawn, markdown_rows, rounded, terminal

TWO = (FIVE[0], FIVE[4])
NUMBER = re.compile(r"\d+\.\d+")


def shown(record, width=120):
    return terminal(*map(to_rich, comparison_tables(record)), width=width)


def markdown(record):
    return markdown_report(comparison_tables(record))


def rendered(record, found=None):
    found = evaluations(record, examples=60) if found is None else found
    return render_page(comparison_page(record, found), caller="test")


@pytest.fixture(scope="module")
def page():
    return Page(rendered(five(), evaluations_of_five()))


@pytest.fixture(scope="module")
def two():
    return comparison(TWO, seeds=(0, 1), ood=("noise",))


def table_of(record, title):
    return next(table for table in comparison_tables(record) if table.title.startswith(title))


def column(table, key, group=None):
    """The cells of one column by the label of their row."""
    (place,) = [at for at, one in enumerate(table.columns) if one.key == key and group in (None, one.group)]
    return {row.label: row.cells[place] for row in table.rows}


def html_rows(page, title):
    """The texts of the cells of a table of the page, by the name of the row."""
    start = next(at for at, one in enumerate(page.elements) if one.get("aria-label") == title)
    rows, name = {}, ""
    for element in page.elements[start + 1 :]:
        if element.get("role") == "region":
            break
        if element["tag"] == "th" and element.get("scope") == "row":
            name = element["text"].strip()
        elif element["tag"] == "td" and name:
            rows.setdefault(name, []).append(element)
    return rows


def with_runs(record, change, *, of=0):
    """The record with the runs of one method changed, by their place."""
    methods = [*record.methods]
    runs = [change(place, run) for place, run in enumerate(methods[of].runs)]
    methods[of] = replace(methods[of], runs=runs)
    return replace(record, methods=methods)


def with_scores(record, of, key, values):
    """The record with other scores of the seeds of one method."""
    return with_runs(
        record, lambda place, run: replace(run, test=replace(run.test, **{key: values[place]})), of=of
    )


def mean_and_sd(values, digits, scale=1):
    return f"{scale * fmean(values):.{digits}f} ± {scale * stdev(values):.{digits}f}"


def unmarked(cell):
    return cell.replace("**", "").removeprefix("≈ ")


def test_tables_of_five_and_of_two_methods(two):
    assert_golden("report/comparison_terminal.txt", shown(five()))
    assert_golden("report/comparison_terminal_of_two.txt", shown(two))
    assert_golden("report/comparison_markdown.txt", markdown(five()))
    assert_golden("report/comparison_csv.txt", rounded(comparison_csv(comparison(TWO[1:], seeds=(0,)))))


def test_the_page_of_two_methods(two):
    text = outline(rendered(two))
    assert_golden("report/comparison_page.txt", text[: text.index("## Seed 0")])  # then as an evaluation's


# Words


def test_the_verdict_names_the_best_and_those_that_the_seeds_cannot_tell_from_it():
    assert comparison_verdict(five()).replace("\u00a0", " ") == (
        "ensemble of 5, belief matching and MC dropout err least of five methods (3.2 to 3.8 %; three seeds "
        "cannot tell them apart); they fit best too (NLL 0.129; the highest is 0.189, of softmax)."
    )
    clear = with_scores(five(), 0, "error", [0.001, 0.0011, 0.0012])
    verdict = comparison_verdict(clear).replace("\u00a0", " ")
    assert verdict.startswith("softmax errs least of five methods (0.1 ± 0.0 %), beyond the scatter of three")
    assert verdict.endswith("MC dropout fit best (NLL 0.129; the highest is 0.189, of softmax).")
    equal = five()
    for place in range(5):
        equal = with_scores(equal, place, "error", [0.04, 0.05 + 0.001 * place, 0.06])
    verdict = comparison_verdict(equal).replace("\u00a0", " ")
    assert verdict.startswith(
        "All five methods err equally often as far as three seeds can tell (5.0 to 5.1 %)"
    )


def test_one_seed_ranks_nothing_and_one_method_is_not_compared():
    record = comparison(seeds=(7,), search=False)
    errors = [100 * method.runs[0].test.error for method in record.methods]
    verdict = comparison_verdict(record).replace("\u00a0", " ")
    assert verdict.startswith("One seed cannot rank five methods") and f"{min(errors):.1f} % (" in verdict
    assert "Choose nothing yet" in comparison_advice(record)[0]
    assert not re.search(r"±|\*|≈", shown(record)) and "**" not in markdown(record)
    shown_page = comparison_page(record, evaluations(record, examples=60))
    assert not any(card.verdict == "better" for card in shown_page.cards)
    alone = comparison(FIVE[:1])
    assert "softmax errs on 4.6" in comparison_verdict(alone)
    assert "`--methods`" in comparison_advice(alone)[0]


def test_advice_follows_what_the_seeds_can_tell():
    unclear = " ".join(comparison_advice(five()))
    assert "Nothing here tells ensemble of 5, belief matching and MC dropout apart" in unclear
    assert "Training takes 5.0× as long with ensemble of 5 as with MC dropout" in unclear
    assert "Prediction takes 40× as long with MC dropout" in unclear and "Three seeds are few" in unclear
    both = with_scores(with_scores(five(), 3, "error", [0.001] * 3), 3, "nll", [0.01, 0.011, 0.012])
    assert comparison_advice(both)[0].startswith("Take ensemble of 5: no other is as good")
    assert "5.0× the training time of softmax" in comparison_advice(both)[0]
    apart = with_scores(both, 0, "nll", [0.001, 0.0011, 0.0012])
    assert comparison_advice(apart)[0].startswith("ensemble of 5 errs least and softmax fits best")


def test_an_area_below_chance_is_remarked_on_everywhere():
    def change(place, run):
        bad = replace(run.ood[2], auroc={**run.ood[2].auroc, "entropy": 0.31 + 0.01 * place})
        return replace(run, ood=[*run.ood[:2], bad])

    record = with_runs(five(), change)
    sentence = "softmax detects noise worse than chance (AUROC 32.0 %)"
    found = comparison_page(record, evaluations_of_five())
    assert any(sentence in text.replace("\u00a0", " ") for text in found.warnings)
    assert any(sentence in text.replace("\u00a0", " ") for text in comparison_findings(record))
    assert column(table_of(record, "540 test"), "auroc", "noise")["softmax"].note == "worse than chance"
    assert not comparison_page(five(), evaluations_of_five()).warnings


def test_the_terminal_has_at_most_three_sentences_and_one_table():
    found = comparison_findings(five())
    hardest = "OOD set natural patches, the hardest: AUROC from 90.2 % (softmax) to 96.2 % (belief matching)"
    assert len(found) == 3 and hardest in found[1].replace("\u00a0", " ")
    assert re.search(r"softmax trains in 3\.\d+ s; ensemble of 5 takes 5\.0× as long", found[2])
    assert comparison_summary(five()).title == "540 test images, 10 classes"


def test_cards_say_who_is_best_and_whether_that_is_beyond_the_scatter():
    cards = comparison_page(five(), evaluations_of_five()).cards
    assert [card.title for card in cards][:3] == [
        "Error", "Negative log-likelihood", "Calibration error (ECE)",
    ]  # fmt: skip
    error, _, ece, areas, cost = cards
    assert (error.model, error.verdict) == (3, "") and "cannot tell it from" in error.certainty
    assert (ece.model, ece.verdict) == (4, "better") and "beyond the scatter" in ece.certainty
    assert areas.title.startswith("OOD detection: natural patches, the hardest") and areas.model == 4
    assert cost.value == "1.0× to 5.0×" and "against softmax" in cost.certainty


# Numbers


def test_scores_are_means_and_deviations_over_the_seeds(page):
    summary, further = comparison_summary(five()), table_of(five(), "Further scores")
    text, rows = " ".join(shown(five(), 200).split()), markdown_rows(markdown(five()))
    means = [fmean(run.test.error for run in method.runs) for method in five().methods]
    sds = [stdev(run.test.error for run in method.runs) for method in five().methods]
    best = means.index(min(means))
    for index, method in enumerate(five().methods):
        tests = [run.test for run in method.runs]
        cells = [
            mean_and_sd([getattr(scores, key) for scores in tests], digits, scale)
            for key, digits, scale in (("error", 2, 100), ("nll", 4, 1), ("ece", 2, 100))
        ]
        pattern = " ".join(rf"[*≈]?{re.escape(cell)}" for cell in cells)
        assert re.search(f"{re.escape(method.label)} {pattern}", text), pattern
        found = rows[method.label.replace("_", r"\_")]
        assert [*map(unmarked, found[:3])] == cells
        close = means[index] - sds[index] <= means[best] + sds[best]
        mark = "best" if index == best else "close" if close else ""
        assert column(summary, "error")[method.label].mark == mark
        assert found[0].startswith({"best": "**", "close": "≈", "": cells[0]}[mark])
        cell = html_rows(page, "540 test images, 10 classes")[method.label][0]
        assert cell["text"].endswith(cells[0].replace(" ±", "±")) and mark in [*cell["class"].split(), ""]
        assert column(further, "brier")[method.label].value == fmean(scores.brier for scores in tests)
        validation = [run.validation.nll for run in method.runs]
        assert column(further, "nll")[method.label].value == fmean(validation)


def test_an_infinite_score_makes_the_mean_infinite_and_leaves_the_others_marked():
    record = with_runs(five(), lambda at, run: replace(run, test=replace(run.test, nll=None)) if at else run)
    cells = column(comparison_summary(record), "nll")
    assert cells["softmax"].value == "∞" and cells["ensemble of 5"].mark == "best"
    assert "∞" in shown(record) and markdown_rows(markdown(record))["softmax"][1] == "∞"
    names = [panel.y.names[0] for panel in overview_figure(record).panels]
    assert names[:3] == ["softmax", "softmax: ∞", "softmax"]
    found = {"method": "softmax", "part": "test", "metric": "nll"}
    rows = [row for row in csv_rows(comparison_csv(record)) if found.items() <= row.items()]
    assert [row["value"] for row in rows][1:] == ["inf", "inf"]


def test_detection_is_by_every_score_that_any_method_has():
    areas = [[found.auroc for found in run.ood] for run in five().methods[4].runs]
    for at, name in enumerate(("natural patches", "rotated digits", "noise")):
        table = table_of(five(), f"OOD set {name}")
        cells = column(table, "auroc", "mutual information")
        assert cells[FIVE[4][1]].value == fmean(run[at]["mutual_information"] for run in areas)
        assert [cells[label].value for _, label in FIVE[:4]] == [None] * 4
        assert column(table, "fpr95", "predictive entropy")["softmax"].value is not None


def test_costs_have_three_digits_and_are_multiples_of_the_first_method():
    seconds = (3.0, 0.012345, 12.345, 999.6, 1234567.8, 1e-7, None)
    record = comparison([(f"m{at}", f"m{at}") for at in range(len(seconds))], seeds=(0,))
    for at, value in enumerate(seconds):
        costs = replace(record.methods[at].runs[0].costs, train_seconds=value)
        record = with_runs(record, lambda _, run, costs=costs: replace(run, costs=costs), of=at)
    table = table_of(record, "Costs")
    values, ratios = column(table, "train_seconds"), column(table, "train_seconds_ratio")
    assert [(values[f"m{at}"].value, ratios[f"m{at}"].value) for at in range(len(seconds))] == [
        ("3", "1.0×"), ("0.0123", "0.0×"), ("12.3", "4.1×"), ("1000", "333×"), ("1,234,568", "411,523×"),
        ("0.000000100", "0.0×"), ("—", "—"),
    ]  # fmt: skip


def test_multiples_are_of_processor_time_where_every_run_has_it():
    def timed(wall, cpu):
        return lambda _, run: replace(
            run,
            costs=replace(
                run.costs,
                train_seconds=wall,
                train_cpu_seconds=cpu,
                predict_ms_per_image=wall,
                predict_cpu_ms_per_image=cpu,
            ),
        )

    record = with_runs(comparison([("a", "a"), ("b", "b")], seeds=(0,)), timed(10.0, 8.0), of=0)
    busy = with_runs(record, timed(26.0, 8.4), of=1)  # other programs had the machine during this run
    table = table_of(busy, "Costs")
    for key in ("train_seconds", "predict_ms_per_image"):
        assert [column(table, f"{key}_ratio")[name].value for name in "ab"] == ["1.0×", "1.1×"]
    assert column(table, "train_seconds")["b"].value == "26" and "processor time" in table.caption
    older = table_of(with_runs(record, timed(26.0, None), of=1), "Costs")
    assert column(older, "train_seconds_ratio")["b"].value == "2.6×" and "processor" not in older.caption


def test_choices_are_means_over_the_seeds_that_tried_a_value():
    def choose(place, run):
        chosen = 0.01 if place == 0 else 0.003
        return replace(run, search=[replace(trial, chosen=trial.value == chosen) for trial in run.search])

    record = with_runs(five(), choose, of=4)
    trials = [trial for run in record.methods[4].runs for trial in run.search if trial.value == 0.003]
    errors = [100 * trial.validation.error for trial in trials]
    nlls = [trial.validation.nll for trial in trials]
    for text in (shown(record), markdown(record)):
        assert f"{fmean(errors):.2f}" in text and f"{fmean(nlls):.4f}" in text
        assert "2 of 3" in text and "1 of 3" in text
    assert [row.is_chosen for row in table_of(record, "Chosen").rows] == [True, True, False]


def test_the_rotated_digit_is_shown_in_short_for_many_methods_and_at_every_angle_for_two():
    text = " ".join(shown(five(), 200).split())
    for method in five().methods:
        seen = method.runs[0].rotation
        wrong = mean_and_sd([run.rotation.wrong_confidence for run in method.runs], 2, 100)
        every = mean_and_sd([run.rotation.mean_wrong_confidence for run in method.runs], 2, 100)
        classes = "".join(map(str, seen.predicted))
        assert re.search(rf"{classes} {100 * fmean(seen.confidence):.1f} [*≈]?{wrong} [*≈]?{every}", text)
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
    assert f"{value} (2 of 3 seeds never wrong)" in markdown(record)
    assert value in shown(record) and "softmax: 2 of 3 seeds never wrong" in " ".join(shown(record).split())


def test_the_csv_has_a_line_a_method_seed_and_metric_in_full_precision():
    rows = csv_rows(comparison_csv(five()))
    names = ("method", "seed", "part", "set", "score", "metric")
    values = {tuple(row[name] for name in names): row["value"] for row in rows}
    assert len(values) == len(rows) == 3 * (5 * (10 + 3 * 5 + 8 + 1 + 2) + 3 * 2)
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
    wide, narrow = (shown(five(), columns) for columns in (220, width))
    assert "…" not in narrow
    # Labels stand before every part of a table, and hold numbers too.
    assert not Counter(NUMBER.findall(wide)) - Counter(NUMBER.findall(narrow))
    assert width < 45 or max(map(len, narrow.splitlines())) <= width


def test_parts_that_are_not_recorded_are_left_out():
    record = comparison(FIVE[:1], seeds=(3,), ood=(), rotated_digit=False, search=False)
    record.methods[0].runs[0].curves.clear()
    for text in (shown(record), markdown(record)):
        assert "Costs" in text and not re.search("AUROC|Chosen|Rotated", text)
    sections = [section.id for section in comparison_page(record, evaluations(record, examples=60)).sections]
    assert sections[:4] == [
        "scores-over-seeds", "costs", "training-settings", "seed-3-detection-of-wrong-predictions",
    ]  # fmt: skip
    assert [figure.name for figure in comparison_figures(record)] == ["overview"]


# Figures


def figure_of(record, name):
    return next(figure for figure in comparison_figures(record) if figure.name == name)


def test_each_figure_has_its_panels_and_comes_as_svg_pdf_and_png():
    figures = comparison_figures(five())
    with figures_drawn():
        canvases = {figure.name: paper_canvas(figure) for figure in figures}
        kinds = [name.rpartition(".")[2] for name, _ in paper_files(figures)]
    assert kinds == [*STARTS] * len(figures)
    assert_golden("report/comparison_figures.txt", figure_outline(canvases))


def test_files_of_figures_do_not_depend_on_the_readers_style():
    figures = [figure_of(five(), "rotated_digit")]
    first = dict(paper_files(figures))
    for name, content in first.items():
        assert content.startswith(STARTS[name.rpartition(".")[2]]), name
        assert b"CreationDate" not in content and b"<dc:date>" not in content
    with rc_context({"text.usetex": True, "lines.linewidth": 9.0, "font.size": 30}):
        before = dict(matplotlib.rcParams)
        assert dict(paper_files(figures, ["svg"]))["rotated_digit.svg"] == first["rotated_digit.svg"]
        assert dict(matplotlib.rcParams) == before


def test_the_overview_shows_means_deviations_and_every_seed():
    figure = overview_figure(five())
    error, *_, training, prediction = figure.panels
    for index, method in enumerate(five().methods):
        errors = [run.test.error for run in method.runs]
        seeds, mean = (series for series in error.series if series.model == index)
        assert seeds.x == errors and mean.x == [fmean(errors)]
        assert mean.high[0] - mean.low[0] == pytest.approx(2 * stdev(errors))
    assert prediction.x.log and not training.x.log
    assert len(figure.numbers.rows) == 15
    assert len(overview_figure(five(), most=4).panels) == 4


def test_learning_curves_have_a_thin_line_a_network_and_a_thick_mean():
    loss, _ = figure_of(five(), "learning_curves").panels
    thin = [series for series in loss.series if series.width < 1]
    thick = [series for series in loss.series if series.width > 1]
    assert (len(thin), len(thick)) == (4 * 3 + 5 * 3, 5)
    first = [run.curves[0]["loss"] for run in five().methods[0].runs]
    assert thick[0].y == pytest.approx([fmean(epoch) for epoch in zip(*first, strict=True)])
    assert list(thick[0].x) == list(range(1, EPOCHS + 1))


@pytest.mark.parametrize(
    ("key", "given", "epochs", "mean"),
    [
        ("loss", [[1.0], [1.0, 4.0], [1.0, 8.0]], [1, 2], [1.0, 6.0]),
        ("validation_error", [[0.5, None, None, 0.25]] * 3, [1, 4], [0.5, 0.25]),
    ],
    ids=["gaps are left out of the mean", "epochs without validation are no points"],
)
def test_learning_curves_with_gaps(key, given, epochs, mean):
    record = comparison(FIVE[:1])
    for run, values in zip(record.methods[0].runs, given, strict=True):
        run.curves[:] = [{key: values}]
    (panel,) = figure_of(record, "learning_curves").panels
    assert (list(panel.series[-1].x), list(panel.series[-1].y)) == (epochs, mean)


def test_the_rotated_digit_has_a_picture_an_angle_and_a_cell_a_method_and_angle():
    figure = figure_of(five(), "rotated_digit")
    classes, confidence, recognised = figure.panels
    seen = [method.runs[0].rotation for method in five().methods]
    assert classes.matrix.shares == [one.confidence for one in seen]
    assert classes.matrix.texts == [
        [f"{found}\n{100 * sure:.0f} %" for found, sure in zip(one.predicted, one.confidence, strict=True)]
        for one in seen
    ]
    assert classes.matrix.wrong == [[found != 3 for found in one.predicted] for one in seen]
    assert classes.matrix.pictures == five().rotated_digit.images
    assert list(confidence.series[0].y) == seen[0].mean_confidence
    assert list(recognised.series[4].y) == seen[4].recognised
    axes, *_ = paper_canvas(figure).axes
    assert len(axes.images) == 13 and len(axes.patches) == 5 * 13 == len(axes.texts)
    assert [image.get_array().tolist() for image in axes.images] == five().rotated_digit.images
    assert inline_svg(figure)[0].count("<image") == 13


# The page


def test_the_command_of_a_page_is_one_that_a_shell_takes():
    record = replace(five(), settings={"command": ["beliefmatch", "compare", "--set", "a b=<c>"]})
    page = Page(rendered(record, evaluations_of_five()))
    assert "beliefmatch compare --set 'a b=<c>'" in [one["text"] for one in page.all("code")]


def test_what_was_not_alike_is_told_by_method(two):
    facts = outline(rendered(with_runs(two, lambda _, run: replace(run, engine={"precision": "bf16"}))))
    assert "engine: precision | bf16" in facts and "option kl weight | 0.003" in facts


def test_the_page_has_every_method_every_section_and_no_loose_end(page):
    links = {element["href"] for element in page.all("a")}
    assert links <= {f"#{element.get('id')}" for element in page.elements}
    ids = [element["id"] for element in page.all("details") if "id" in element]
    assert ids[:7] == [
        "scores-over-seeds", "ood-detection-over-seeds", "costs", "chosen-on-validation-data",
        "learning-curves", "rotated-digit", "training-settings",
    ]  # fmt: skip
    assert "seed-0-selective-prediction" in ids and len(set(ids)) == len(ids)
    opened = [element["id"] for element in page.all("details") if "open" in element]
    assert opened == ["scores-over-seeds"]
    assert {label for _, label in FIVE} <= {*page.names()}
    assert all(len(element["aria-label"]) > 30 for element in page.all("div", role="img"))


# Names


def test_hostile_names_are_text_everywhere():
    record = hostile_comparison()
    options = {HOSTILE[0]: HOSTILE[1]}
    settings = {**options, "command": HOSTILE[0]}
    record = with_runs(record, lambda _, run: replace(run, options=options, learned=options))
    record = replace(record, settings=settings)
    page = Page(rendered(record))
    assert len(page.all("script")) == 1
    assert len(page.all("style")) == 1
    assert not page.all("b") + page.all("i") and {*HOSTILE[:7]} <= {*page.names()}
    assert not page.all("img")

    text = shown(record, 300)
    assert all(name in text for name in HOSTILE[:7])
    assert "[red]a␊b[/red] ␛[31m" in text and "\x1b" not in text
    cells = [cell for row in csv_rows(comparison_csv(record)) for cell in row.values()]
    assert "'=cmd()" in cells and not any(cell.lstrip()[:1] in tuple("=+@") for cell in cells if cell)
    assert "<" not in markdown(record)
    for table in markdown(record).split("### "):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) <= 1
    with figures_drawn("svg"):
        files = dict(paper_files(comparison_figures(record), ["svg"]))
    assert list(files) == ["overview.svg", "learning_curves.svg", "rotated_digit.svg"]
    assert not any(re.search(rb"<(script|a)\b", content) for content in files.values())


def test_labels_are_unique():
    twins = comparison([("a", "same"), ("b", "same"), ("c", " ")])
    labels = dict.fromkeys(row["method"] for row in csv_rows(comparison_csv(twins)))
    assert list(labels) == ["same", "same (2)", "(no name)"]
    bare = comparison([("a", "belief matching (λ = 1)"), ("b", "belief matching (λ = 2)"), ("c", "x (y)")])
    assert all(name in comparison_verdict(bare) for name in ("belief matching (λ = 2)", "x"))
    assert "x (y)" not in comparison_verdict(bare)


@pytest.mark.parametrize("function", [comparison_tables, comparison_csv, comparison_figures])
@pytest.mark.parametrize("methods", [[], [replace(five().methods[0], runs=[])]], ids=["methods", "runs"])
def test_records_without_runs_are_refused(function, methods):
    with pytest.raises(ValueError, match="`record`"):
        function(replace(five(), methods=methods))


def test_every_method_needs_its_evaluation():
    with pytest.raises(ValueError, match="`evaluations`"):
        comparison_page(five(), evaluations_of_five()[:4])


# Files


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """All files of a comparison of two methods."""
    directory = tmp_path_factory.mktemp("compare")
    record = comparison(FIVE[1:3], seeds=(0,), ood=("noise",))
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
    figures = {name for name in files_below(place) if name.startswith("figures")}
    names = ("overview", "learning_curves", "rotated_digit")
    assert figures == {f"figures/{name}.{kind}" for name in names for kind in STARTS}
    record = ComparisonRecord.from_json((place / "comparison.json").read_text("utf-8"))
    assert (place / "summary.csv").read_text("utf-8") == comparison_csv(record)


def test_the_page_is_made_again_from_records_alone_without_torch(place, tmp_path):
    out = tmp_path / "again.html"
    command = ["report", f"{place / 'comparison.json'}", "--out", f"{out}"]
    finished = python(
        "import sys; sys.modules['torch'] = None\n"
        f"from beliefmatch.cli import main; code = main({command})\n"
        "heavy = [name for name in ('torch', 'scipy') if sys.modules.get(name)]\n"
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
