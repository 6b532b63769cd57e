"""Tables, page and files of an adaptation show the numbers of its record, losses as plainly as wins."""

import dataclasses
import math
import re
from io import BytesIO
from statistics import fmean, stdev
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from PIL import Image

from adaptations import NAMES, QUICK, adaptation, evaluations, record, with_background
from beliefmatch.cli import main
from beliefmatch.experiments.adapt_record import AdaptRecord, BestRecord, RiskThresholdCheck, VerdictRecord
from beliefmatch.experiments.adapted_evaluation import score_adaptation
from beliefmatch.experiments.evaluation_record import Number
from beliefmatch.report.adaptation import (
    adaptation_files,
    adaptation_markdown,
    adaptation_page,
    adaptation_summary,
    adaptation_tables,
    terminal_table,
    write_adaptation,
)
from beliefmatch.report.adaptation_choice import choice_series
from beliefmatch.report.adaptation_words import adaptation_verdict, findings
from beliefmatch.report.evaluation_scores import difference, stored_auroc_difference
from beliefmatch.report.figure import Figure, paper_canvas
from beliefmatch.report.page import render_page
from beliefmatch.report.table import Table, to_csv
from commands import python
from evaluation_records import CIRCUMSTANCES, HOSTILE
from golden import assert_golden
from html_page import Page
from rendered import STARTS, csv_rows, figure_outline, figures_drawn, markdown_rows, masked, terminal

KINDS = ("repair", "new", "votes", "batchnorm")
MAIN = ("error", "nll", "ece")


def tables(kind="repair"):
    """By title."""
    return {table.title: table for table in adaptation_tables(record(kind), evaluations(kind))}


def sentences(made, scored=()):
    """The caveats and findings of a record, as in its Markdown."""
    text = adaptation_markdown(made, scored)
    return [line for line in text.splitlines() if line.startswith(("> ", "- "))]


def outline(page):
    """What a page says, line by line; of tables and figures the headings."""
    lines = [f"# {page.title}", page.verdict, page.lead, f"models: {', '.join(page.models)}"]
    lines += [f"! {text}" for text in page.warnings]
    lines += [f"[{card.verdict}] {card.title}: {card.value} ({card.certainty})" for card in page.cards]
    lines += [f"picture: {figure.title} {figure.alt}" for figure in page.pictures]
    lines += [f"- {text}" for text in page.advice]
    for section in page.sections:
        lines.append(f"## {section.title}{'' if section.folded else ' (open)'}")
        for block in section.blocks:
            if isinstance(block, Table):
                heads = [", ".join(filter(None, (one.group, one.heading))) for one in block.columns]
                lines.append(f"table: {block.title}: {' | '.join(heads)}. {block.caption}")
            elif isinstance(block, Figure):
                lines.append(f"figure: {block.title}")
            else:
                lines += [f"{block.kind}: {getattr(block, 'text', getattr(block, 'title', ''))}"]
    return "\n".join(lines)


def test_an_ood_set_that_deceives_the_new_head_is_told_everywhere():
    made, scored = record(), [*evaluations()]
    place = made.row_labels.index(made.new_label)

    def deceived(one):
        low = [replace(found, auroc=Number(0.209, 0.15, 0.27)) for found in one.detections]
        return replace(one, detections=low) if one.name == "noise" else one

    scored[place] = replace(scored[place], ood=[deceived(one) for one in scored[place].ood])
    fact = "detects noise worse than chance (AUROC 20.9 %)"
    told = {
        "page": " ".join(adaptation_page(made, scored).warnings),
        "markdown": " ".join(sentences(made, scored)),
        "summary": adaptation_summary(made, scored),
    }
    assert {where: " ".join(text.split()).count(fact) for where, text in told.items()} == dict.fromkeys(
        told, 1
    )
    assert "worse than chance (" not in adaptation_summary(made, evaluations())


@pytest.mark.parametrize("kind", KINDS)
def test_the_terminal_shows_one_table_with_an_arrow_at_the_new_head(kind):
    text = terminal(terminal_table(record(kind), evaluations(kind)), width=160)
    assert_golden(f"report/adaptation_{kind}_terminal.txt", masked(text))


def test_summary_and_markdown():
    assert_golden("report/adaptation_summary.txt", masked(adaptation_summary(record("new"))))
    markdown = adaptation_markdown(record("new"), evaluations("new"))
    all_but_the_tried_heads = markdown[: markdown.index("### All 12 heads")]
    assert_golden("report/adaptation_markdown.txt", masked(all_but_the_tried_heads))


@pytest.mark.parametrize("kind", KINDS)
def test_the_page(kind):
    made = replace(record(kind), **CIRCUMSTANCES, notes=["A <note>."])
    text = outline(adaptation_page(made, evaluations(kind)))
    details = text.index("## Out-of-distribution detection")  # then as an evaluation's page
    assert_golden(f"report/adaptation_{kind}_page.txt", masked(text[:details]))


THRESHOLD = RiskThresholdCheck(0.05, 0.05, 0.7, 0.8, 0.04, 0.75, 0.02)
SEEN, UNKNOWN, UNSEEN = (VerdictRecord(seen, "A reason.") for seen in (True, None, False))
COPIES = VerdictRecord(None, "Few are copies; only its own head could tell. (0.6% of them are copies.)")
CHANGES = {
    "seen": {"verdict": SEEN, "risk_thresholds": []},
    "unknown": {"verdict": UNKNOWN},
    "not seen": {"verdict": UNSEEN},
    "copies": {"verdict": COPIES},
    "seen, two thresholds": {"verdict": SEEN, "risk_thresholds": [THRESHOLD, THRESHOLD]},
    "threshold": {"risk_thresholds": [THRESHOLD]},
    "threshold that answers everything": {"risk_thresholds": [replace(THRESHOLD, threshold=1 / 3)]},
    "threshold without test examples": {"risk_thresholds": [replace(THRESHOLD, test_coverage=None)]},
    "threshold that answers all test examples": {"risk_thresholds": [replace(THRESHOLD, test_coverage=1.0)]},
    "threshold that answers no test example": {
        "risk_thresholds": [replace(THRESHOLD, test_coverage=0.0, test_risk=None)]
    },
    "no threshold": {"risk_thresholds": [replace(THRESHOLD, threshold=None)]},
    "BatchNorm layers that were restored": {
        "batchnorm": {
            "layers": 1,
            "taken": False,
            "validation_before": {"nll": 0.5},
            "validation_after": {"nll": 0.6},
        }
    },
    "notes": {"notes": ["Taken as the <same> classes."]},
}


def test_sentences_of_changed_records():
    """Only those that the change brings."""
    lines = []
    for kind, names in (("repair", [*CHANGES]), ("new", [*CHANGES][:4])):
        usual = sentences(record(kind))
        for name in names:
            made = replace(record(kind), **CHANGES[name])
            lines += [f"# {kind}: {name}", *(line for line in sentences(made) if line not in usual)]
    assert_golden("report/adaptation_sentences.txt", "\n".join(lines))


@pytest.mark.parametrize("kind", ["repair", "new"])
@pytest.mark.parametrize("verdict", [SEEN, UNKNOWN, UNSEEN], ids=["seen", "unknown", "not seen"])
def test_caveats_are_the_same_in_summary_and_page(kind, verdict):
    made = replace(record(kind), verdict=verdict)
    caveats = [line.removeprefix("> ") for line in sentences(made) if line.startswith(">")]
    assert any("seen" in line or "rely" in line for line in caveats) == (verdict.seen is not False)
    summary = " ".join(adaptation_summary(made).split())
    assert all(f"! {line}" in summary for line in caveats)
    page = adaptation_page(made, evaluations(kind))
    assert page.warnings[: len(caveats)] == caveats
    assert any("Adapt again" in text for text in page.advice) == (verdict.seen is True)


# Differences from other heads


def shifted(evaluation, reference, sides):
    """An evaluation whose metrics are below (-1), like (0) or above (1) those of a reference."""
    scores, draws = {**evaluation.scores}, {}
    for key, side in sides.items():
        scores[key] = Number(reference.scores[key].value + side)
        noise = [0.0 if side else (-1) ** place * 1e-3 for place in range(len(reference.draws.metrics[key]))]
        draws[key] = [value + side + e for value, e in zip(reference.draws.metrics[key], noise, strict=True)]
    return replace(evaluation, scores=scores, draws=replace(reference.draws, metrics=draws))


SOFTMAX = "softmax + temperature"  # the obvious control, as the new head has a temperature too
SCALED = "untouched + temperature"


def with_sides(**sides):
    """The evaluations, those of some lines shifted away from those of the new head."""
    labels, scored = record().row_labels, list(evaluations())
    ours = scored[labels.index(record().new_label)]
    for label, of in {**dict.fromkeys(("untouched", "softmax", SOFTMAX, SCALED), (0, 0, 0)), **sides}.items():
        place = labels.index(label)
        scored[place] = shifted(scored[place], ours, dict(zip(MAIN, of, strict=True)))
    return scored


def unfinished(label):
    """The record with a head that has not converged."""
    return replace(record(), scored=[replace(one, converged=one.label != label) for one in record().scored])


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        (
            (0, 0, 0),
            "Keep the new head only for its Dirichlet belief: .* right as often as before .*; "
            "its calibration has not clearly",
        ),
        ((0, 0, 1), "Keep the new head: .* right as often as before .* and .*honest about it .calibration"),
        ((0, 0, -1), "Do not keep the new head: the network as it was does better .ECE"),
        ((1, 1, 1), "Keep the new head: .* is right more often than before .* and .*honest about it"),
        ((-1, 1, 1), "Choose by what counts: .* is wrong more often than before .* but .*honest about it"),
        ((1, 0, -1), "Choose by what counts: .* is right more often than before .* but less honest about it"),
        ((-1, -1, -1), "Do not keep the new head: the network as it was does better .error.*NLL.*ECE"),
        ((0, -1, 0), "Do not keep the new head: the network as it was does better .NLL"),
        ((0, 1, 0), "Keep the new head: .* right as often as before .*; its probabilities fit better"),
    ],
)
def test_the_verdict_and_the_cards_follow_the_paired_differences(sides, words):
    page = adaptation_page(record(), with_sides(untouched=sides))
    assert re.match(words, page.verdict), page.verdict
    error, ece, nll, *_ = page.cards
    expected = ["even" if side == 0 else "better" if side > 0 else "worse" for side in sides]
    assert [error.verdict, nll.verdict, ece.verdict] == expected
    assert 3 <= len(page.cards) <= 5


@pytest.mark.parametrize(
    ("sides", "verdict", "advice"),
    [
        ({}, "Keep the new head only for its Dirichlet", "for probabilities alone use the network as it was"),
        (
            {"untouched": (0, 1, 0)},
            "Keep the new head: ",
            "for probabilities alone temperature scaling .* does as well",
        ),
        (
            {"untouched": (0, 1, 0), SCALED: (0, 1, 0)},
            "Keep the new head: ",
            "does better than temperature scaling",
        ),
        (
            {SCALED: (0, -1, 0)},
            "Keep the new head only for its Dirichlet belief: .*, but temperature scaling .* better .NLL",
            "for probabilities alone use temperature scaling of the old head",
        ),
        (
            {SOFTMAX: (0, 0, -1)},
            r"Keep the new head only for its Dirichlet belief: .*, but softmax \+ temperature does .*ECE",
            r"for probabilities alone use softmax \+ temperature",
        ),
        (
            {SCALED: (-1, 1, 0)},
            "Choose by what counts: .* scaling .* does better by error .*, the new head by NLL",
            "does better by error .*, the new head by NLL",
        ),
    ],
)
def test_the_verdict_names_the_simpler_head_that_is_better(sides, verdict, advice):
    page = adaptation_page(record(), with_sides(**sides))
    assert re.match(verdict, page.verdict), page.verdict
    assert re.search(advice, page.advice[0]), page.advice[0]


def test_a_softmax_head_that_is_better_in_nothing_is_no_gain():
    tried = (one.name for one in record().tried if (one.kind, one.calibration) == ("softmax", "temperature"))
    made = replace(record(), chosen=next(tried), label=SOFTMAX)
    labels, scored = made.row_labels, list(evaluations())
    ours = scored[labels.index(SOFTMAX)]
    for label in ("untouched", SCALED):
        place = labels.index(label)
        scored[place] = shifted(scored[place], ours, dict.fromkeys(MAIN, 0))
    page = adaptation_page(made, scored)
    assert page.verdict.startswith("No clear gain from the new head: the network is right as often as before")
    assert page.advice[0].startswith("Use the network as it was: the new head is better in nothing")


def test_several_heads_that_are_worse_than_one_are_not_to_be_kept():
    made = score_adaptation(with_background("belief_matching"), model_name="a", settings=QUICK)
    label, single = made.record.label, made.record.label.removesuffix(", 3 heads")
    assert label != single
    ours, one = (made.evaluations[made.record.row_labels.index(name)] for name in (label, single))
    for side, words in ((-1, "Do not keep the 3 heads: one head of belief matching"), (0, "the 3 heads")):
        scored = [
            shifted(made.evaluations[place], ours, dict.fromkeys(MAIN, side if name == single else 0))
            if name != label
            else ours
            for place, name in enumerate(made.record.row_labels)
        ]
        verdict = adaptation_verdict(made.record, scored)
        assert words in verdict and verdict.startswith("Do not keep") == (side < 0), verdict
        assert (adaptation_page(made.record, scored).advice[0] == "Adapt again without `--heads`.") == (
            side < 0
        )
    assert one is not ours


def test_page_summary_and_markdown_begin_with_the_same_verdict():
    for kind in KINDS:
        verdict = adaptation_page(record(kind), evaluations(kind)).verdict
        first, *_ = adaptation_summary(record(kind), evaluations(kind)).split("\n\n")
        assert " ".join(first.split()) == " ".join(verdict.split())
        bold = adaptation_markdown(record(kind), evaluations(kind)).split("\n\n")[1]
        assert bold.startswith("**") and verdict.partition(":")[0] in bold
        assert len(findings(replace(record(kind), risk_thresholds=[THRESHOLD] * 3))) <= 3


def test_a_head_that_has_not_converged_is_marked_and_compared_with_no_other():
    page = adaptation_page(unfinished(record().label), evaluations())
    assert page.verdict.startswith("Do not keep the new head yet: it has not converged")
    assert page.advice[0].endswith("until it converges.")
    assert not any(card.verdict or "→" in card.value for card in page.cards)
    assert "Differences from the other heads" not in [section.title for section in page.sections]
    scored = with_sides(**{SOFTMAX: (-1, -1, -1)})
    assert f"{SOFTMAX} does better" in adaptation_verdict(record(), scored)
    assert SOFTMAX not in adaptation_verdict(unfinished(SOFTMAX), scored)
    found = {table.title: table for table in adaptation_tables(unfinished(SOFTMAX), scored)}
    against = [row.label for row in found[f"{record().new_label} less each other head"].rows]
    assert "untouched" in against and not any(SOFTMAX in label for label in against)
    (row,) = (row for row in found["140 test examples"].rows if row.label == f"{SOFTMAX} (not converged)")
    assert not any(cell.mark for cell in row.cells[:4])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": "belief matching"}, "No other head"),
        ({"excess": 0.01, "standard_error": 0.02}, "may be chance"),
        ({"excess": 0.05, "standard_error": 0.02}, "choose = best"),
        ({"excess": 0.05, "standard_error": None}, "choose = best"),
    ],
)
def test_the_best_head_is_named_and_how_far_the_delivered_one_is_from_it(change, words):
    given = {"label": "softmax", "nll": 0.1234, "excess": 0.0, "standard_error": None, **change}
    made = replace(record(), label="belief matching", best=BestRecord(**given))
    (line,) = (line for line in sentences(made) if "0.1234" in line)
    assert words in line and (given["label"] == "belief matching" or "softmax" in line)


def test_the_network_stays_as_it_was_where_no_head_is_better():
    made = replace(record(), chosen="untouched", label="untouched")
    assert any("stays as it was" in line for line in sentences(made, evaluations()))
    page = adaptation_page(made, evaluations())
    assert page.verdict.startswith("Keep the network as it was")
    assert page.advice[0].startswith("Use the network as it is")
    assert "choice_of_lambda" in [figure.name for figure in page.figures()]


@pytest.mark.parametrize("calibration", ["temperature", "vector_scaling", "matrix_scaling"])
def test_a_network_that_is_only_rescaled_is_named_by_its_calibration(calibration):
    words = {"temperature": "temperature scaling"}.get(calibration, calibration.replace("_", " "))
    base, scored = record(), evaluations()
    tried = [replace(one, calibration=calibration) if one.name == "untouched" else one for one in base.tried]
    made = replace(base, tried=tried, chosen="untouched", label="belief matching")
    assert f"the network with {words}" in adaptation_verdict(made, scored)
    advice = adaptation_page(made, scored).advice[0]
    assert advice.startswith(f"Use the network with {words}:"), advice


def test_scores_of_a_belief_are_shown_for_heads_with_a_belief_alone():
    own = {"mutual_information", "differential_entropy"}
    heads = {one.label: one.has_belief for one in record().scored}
    assert {*heads.values()} == {True, False}
    for label, evaluation in zip(record().row_labels, evaluations(), strict=True):
        assert {one.score for one in evaluation.ood[0].detections} >= {"entropy", "energy"}
        for detections in (evaluation.misclassification, *(ood.detections for ood in evaluation.ood)):
            assert (own <= {one.score for one in detections}) == heads[label]
            assert bool(own & {one.score for one in detections}) == heads[label]


def test_areas_of_heads_are_marked_by_their_paired_differences():
    """Some intervals overlap that of the best where the difference from it is certain."""
    cells = [row.cells[0] for row in tables()["OOD: noise"].rows]
    marks, best = [cell.mark for cell in cells], max(cells, key=lambda cell: cell.value)
    reference = evaluations()[cells.index(best)]
    gaps = [stored_auroc_difference(one, reference, "noise", "entropy") for one in evaluations()]
    expected = ["best" if one is reference else "" for one in evaluations()]
    for place, gap in enumerate(gaps):
        if not expected[place] and gap.high >= 0:
            expected[place] = "close"
    assert marks == expected
    assert any(cell.high >= best.low and not cell.mark for cell in cells)


def test_without_draws_nothing_is_claimed():
    page = adaptation_page(record(), [replace(one, draws=None) for one in evaluations()])
    assert page.verdict.startswith("These numbers cannot tell") and "as often as" not in page.verdict
    assert "cannot tell" in page.advice[0]
    assert not any(card.verdict for card in page.cards[:3])
    assert all(card.verdict for card in adaptation_page(record(), evaluations()).cards[:3])


def test_differences_are_those_of_the_evaluations():
    ours = evaluations()[record().row_labels.index(record().label)]
    table = tables()[f"{record().label} less each other head"]
    others = [one for one in evaluations() if one is not ours]
    for row, other in zip(table.rows, others, strict=True):
        for column, cell in zip(table.columns, row.cells, strict=True):
            wanted = difference(ours, other, column.key)
            assert (cell.value, cell.low, cell.high) == (wanted.value, wanted.low, wanted.high)


def test_trained_batchnorm_layers_make_another_head_that_is_delivered():
    made = record("batchnorm")
    assert made.new_label == made.row_labels[-1] == "belief matching and BatchNorm"
    (chosen,) = (line for line in adaptation_summary(made).splitlines() if line.strip().startswith("→"))
    assert "belief matching and BatchNorm" in chosen
    restored = replace(record(), batchnorm={**made.batchnorm, "taken": False})
    assert restored.new_label == record().label


# Numbers


def test_page_markdown_csv_and_terminal_hold_the_numbers_of_the_record():
    page = dataclasses.replace(adaptation_page(record(), evaluations()), pictures=[])
    page = Page(render_page(page, caller="test"))
    rows = markdown_rows(adaptation_markdown(record(), evaluations()))
    lines = csv_rows(to_csv(adaptation_tables(record(), evaluations())))
    shown = terminal(terminal_table(record(), evaluations()), width=300).splitlines()
    titles = [row.label for row in tables()["140 test examples"].rows]
    for title, label, one in zip(titles, record().row_labels, record().scored, strict=True):
        assert title == label or title.startswith(f"{label} (")
        texts = [f"{100 * one.scores.error:.2f}", f"{one.scores.nll:.4f}", f"{one.scores.brier:.4f}"]
        texts.append(f"{100 * one.scores.ece:.2f}")
        (in_terminal,) = (line for line in shown if line.strip(" →").startswith(f"{title}  "))
        for place, text in enumerate(texts):
            assert text in page.row(title)[place]["text"]
            assert text in rows[title.replace("\u00a0", " ")][place]
            assert re.search(rf"[ *≈]{re.escape(text)}\b", in_terminal)
        for key in (*MAIN, "brier", "mean_confidence"):
            (found,) = (
                line
                for line in lines
                if (line["table"], line["row"], line["metric"]) == ("140 test examples", title, key)
            )
            assert float(found["value"]) == getattr(one.scores, key)
            interval = evaluations()[record().row_labels.index(label)].scores[key]
            assert (float(found["low"]), float(found["high"])) == (interval.low, interval.high)
        for ood in one.ood:
            for line in lines:
                if (line["table"], line["row"]) == (f"OOD: {ood.name}", title) and line["value"]:
                    assert float(line["value"]) in getattr(ood, line["metric"]).values()
    assert sum(line["table"].endswith("heads that were tried") for line in lines) == 5 * len(record().tried)


def test_several_seeds_are_a_mean_with_their_deviation_and_are_listed():
    made = record("new")
    table = tables("new")["120 validation examples"]
    for row, label in zip(table.rows, made.row_labels, strict=True):
        errors, nlls = (
            [getattr(one.scores, key) for one in made.scored if one.label == label]
            for key in ("error", "nll")
        )
        for cell, values in zip(row.cells, (errors, nlls), strict=False):
            assert (cell.value, cell.sd, cell.low) == (fmean(values), stdev(values), None)
    each = tables("new")["Scores of each seed"].rows
    assert [row.cells[1].value for row in each] == [
        one.scores.nll for label in made.row_labels for one in made.scored if one.label == label
    ]


def test_an_infinite_score_is_shown_and_nothing_is_marked_beside_it():
    scored = [
        replace(one, scores=replace(one.scores, nll=None)) if one.seed == 3 else one
        for one in record("new").scored
    ]
    table = adaptation_tables(replace(record("new"), scored=scored))[0]
    assert [row.cells[1].value for row in table.rows] == [math.inf] * 4 and table.columns[1].text(
        math.inf
    ) == "∞"
    assert not any(row.cells[1].mark for row in table.rows) and table.is_marked


def test_every_lambda_is_drawn_as_a_mean_over_seeds_and_the_chosen_is_ringed():
    made = record("new")
    (figure,) = (one for one in adaptation_page(made, evaluations("new")).figures() if "lambda" in one.name)
    panels = dict(zip(("error", "nll", "ece"), figure.panels, strict=True))
    tried = [head for head in made.tried if head.kind == "belief_matching"]
    softmax = [head for head in made.tried if head.kind == "softmax"]
    for key, panel in panels.items():
        by_weight = {
            weight: [getattr(head, key) for head in tried if head.options["kl_weight"] == weight]
            for weight in (0.01, 0.1)
        }
        means = {weight: fmean(values) for weight, values in by_weight.items()}
        line, seeds, ring, *others = panel.series
        assert (line.label, line.x, line.y) == ("belief matching", [*means], pytest.approx([*means.values()]))
        assert list(seeds.y) == [value for values in by_weight.values() for value in values]
        chosen = made.chosen_head.options["kl_weight"]
        assert (ring.label, ring.x, ring.y) == ("chosen λ", [chosen], [pytest.approx(means[chosen])])
        levels = {one.label: one.y for one in others if len({*one.y}) == 1 and len(one.y) == 2}
        mean = fmean(getattr(head, key) for head in softmax)
        assert levels.get("softmax", key) in (key, pytest.approx([mean, mean]))
        assert key != "nll" or "softmax" in levels
    assert len(paper_canvas(figure).axes) == 3


@pytest.mark.parametrize("choose", ["belief_matching", "best"])
def test_heads_with_background_and_of_resampled_rows_are_lines_and_no_lambdas(choose):
    made = with_background(choose)
    found, scored = score_adaptation(made, model_name="a", settings=QUICK)
    assert AdaptRecord.from_json(found.to_json()) == found
    assert {"belief matching with background", "softmax with outlier exposure"} <= {*found.row_labels}
    assert "belief matching with background, 3 heads" in found.row_labels
    (series,) = (one for one in choice_series(found) if one.label == "belief matching")
    assert [len(point.values["nll"]) for point in series.points] == [1, 1]
    assert any(name.startswith(found.label) for name in adaptation_page(found, scored).models)


def test_heads_that_were_tried_are_listed_the_best_first():
    rows = tables()[f"All {len(record().tried)} heads that were tried"].rows
    assert {row.label for row in rows} == {head.name for head in record().tried}
    assert [row.label for row in rows if row.is_chosen] == [record().chosen]
    nlls = [row.cells[1].value for row in rows]
    assert nlls == sorted(nlls)


def test_votes_have_a_column_of_their_own_and_no_intervals():
    table = tables("votes")["140 test examples with votes"]
    place = [column.key for column in table.columns].index("kl")
    assert [row.cells[place].value for row in table.rows] == [one.kl for one in record("votes").scored]
    assert all(cell.low is None for row in table.rows for cell in row.cells)
    page = adaptation_page(record("votes"), evaluations("votes"))
    assert f"{record('votes').delivered(record('votes').label).kl:.3f}" in page.verdict


# Names and files


def test_the_page_shows_before_and_after_first_and_their_pictures_alone():
    page = adaptation_page(record(), evaluations())
    assert page.models[0] == "untouched" and page.models[1].startswith(record().label)
    assert len(page.models) == len(record().row_labels) == len({*page.looks})
    for figure in page.pictures:
        drawn = {one.model for panel in figure.panels for one in panel.series}
        assert drawn == {0, 1}
    assert [figure.name for figure in page.pictures] == ["reliability", "entropy_noise"]
    table = page.sections[0].blocks[0]
    assert [page.models[row.model] for row in table.rows] == [row.label for row in table.rows]
    assert [row.model for row in table.rows if row.is_chosen] == [1]


def hostile():
    """A record and evaluations whose names would like to be more than names."""
    names = dict(zip(("noise", "|pipes| & more"), HOSTILE, strict=False))
    scored = [
        replace(one, ood=[replace(ood, name=names[ood.name]) for ood in one.ood]) for one in record().scored
    ]
    made = replace(
        record(),
        model=HOSTILE[2],
        scored=scored,
        class_names=list(HOSTILE[:3]),
        notes=[*HOSTILE],
        command=["beliefmatch", *HOSTILE],
        data={HOSTILE[0]: HOSTILE[1]},
    )
    found = [
        replace(
            one,
            class_names=list(HOSTILE[:3]),
            ood=[replace(ood, name=names[ood.name]) for ood in one.ood],
        )
        for one in evaluations()
    ]
    return made, found


def test_names_are_data():
    made, scored = hostile()
    text = render_page(adaptation_page(made, scored), caller="test")
    page = Page(text)
    assert len(page.all("script")) == 1 and not page.all("img") and not page.all("b")
    assert HOSTILE[0] in page.names() and any(name.startswith('"><img src=x') for name in page.names())
    assert all(line.strip() and "\x1b" not in line for line in (HOSTILE[2], *page.texts("h1")))
    rendered = terminal(terminal_table(made, scored), width=300), adaptation_summary(made)
    assert all("\x1b" not in one and "<script>" in one for one in rendered)
    lines = csv_rows(to_csv(adaptation_tables(made, scored)))
    assert not any(value.startswith(("=", "+", "@")) for line in lines for value in line.values())
    markdown = adaptation_markdown(made, scored)
    assert "<script" not in markdown and "<b>" not in markdown
    pieces = [block for block in adaptation_markdown(record()).split("\n\n") if block.startswith("|")]
    assert r"\|pipes\| &amp; more" in "".join(pieces)
    for piece in pieces:
        assert len({line.replace(r"\|", "").count("|") for line in piece.splitlines()}) == 1
    assert NAMES[2] not in render_page(adaptation_page(record(), evaluations()), caller="test")


def test_figures_are_files_for_a_paper_that_are_the_same_each_time():
    made, scored = hostile()
    with figures_drawn("svg", "png") as collect:
        files = {name: content for name, content in adaptation_files(made, scored) if "figures/" in name}
        drawn = collect(files.items())
    assert [name.rpartition(".")[2] for name in files] == [*STARTS] * 3
    for name, content in files.items():
        assert re.fullmatch(r"figures/[a-z0-9_]+\.(svg|pdf|png)", name)
        assert content.startswith(STARTS[name.rpartition(".")[2]])
        if name.endswith("svg"):
            tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(content).iter()}
            assert not tags & {"script", "a"}, name
        elif name.endswith("png"):
            assert Image.open(BytesIO(content)).width >= 500
    assert len(drawn) == 3
    figures = [
        one
        for one in adaptation_page(record("new"), evaluations("new")).figures()
        if one.legend or one.panels
    ]
    chosen = [
        one for one in figures if one.name in ("reliability", "choice_of_lambda") or "entropy_" in one.name
    ]
    assert_golden(
        "report/adaptation_figures.txt", figure_outline({one.name: paper_canvas(one) for one in chosen})
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with all files of an adaptation."""
    directory = tmp_path_factory.mktemp("run")
    page = write_adaptation(directory, record(), evaluations(), head=b"weights")
    assert page == directory / "report.html" and (directory / "head.safetensors").read_bytes() == b"weights"
    return directory


def test_the_page_is_made_again_from_the_records(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for given, out in ((run, "again.html"), (run / "record.json", "again.html"), (run, None)):
        assert main(["report", f"{given}", *(["--out", out] if out else [])]) == 0
        made = tmp_path / (out or "report.html")  # the current directory is where it goes by default
        assert capsys.readouterr().out == f"{made.name}\n"
        assert made.read_bytes() == (run / "report.html").read_bytes()


def test_records_alone_make_the_page_without_torch(run, tmp_path):
    out = tmp_path / "page.html"
    done = python(
        "import sys; sys.modules['torch'] = None\n"
        f"from beliefmatch.cli import main; sys.exit(main(['report', {f'{run}'!r}, '--out', {f'{out}'!r}]))"
    )
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == (run / "report.html").read_bytes()


def test_a_directory_without_its_evaluations_is_refused(run, tmp_path, capsys):
    (tmp_path / "record.json").write_bytes((run / "record.json").read_bytes())
    assert main(["report", f"{tmp_path}"]) == 2
    assert "evaluations/untouched.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: list(adaptation_files(record(), evaluations()[:1])), "evaluations"),
        (lambda: adaptation_page(record(), []), "evaluations"),
        (lambda: adaptation_page(replace(record(), scored=record().scored[:1]), evaluations()), "record"),
        (lambda: adaptation_summary(replace(record(), scored=[])), "record"),
    ],
    ids=["evaluations", "no evaluations", "record", "summary"],
)
def test_incomplete_records_are_refused(call, argument):
    with pytest.raises(ValueError, match=f"`{argument}`"):
        call()


def test_distances_of_features_stand_beside_the_scores_of_the_delivered_head():
    made = record("repair")
    tables = adaptation_tables(made, evaluations("repair"))
    (table,) = (one for one in tables if one.title == "OOD detection by features")
    rows = {row.label: row.cells for row in table.rows}
    assert {"delivered head: predictive entropy", "delivered head: negative largest logit"} <= rows.keys()
    assert "delivered head: energy" in rows and "delivered head: −ln α₀" not in rows
    sets = [one.name for one in made.scored[0].ood]
    for one in made.feature_detection:
        title = {"mahalanobis_distance": "Mahalanobis distance"}.get(
            one.score, "k-nearest-neighbour distance"
        )
        cell = rows[f"features: {title}"][2 * sets.index(one.ood)]
        assert (cell.value, cell.low, cell.high) == (one.auroc.value, one.auroc.low, one.auroc.high)


def test_features_of_the_time_before_batchnorm_training_are_named_so():
    for kind, start in (("repair", "features:"), ("batchnorm", "features before BatchNorm training:")):
        found = adaptation_tables(record(kind), evaluations(kind))
        (table,) = (one for one in found if one.title == "OOD detection by features")
        labels = [row.label for row in table.rows if not row.label.startswith("delivered head")]
        assert len(labels) == 2 and all(label.startswith(start) for label in labels)


def test_the_level_of_the_intervals_is_that_of_the_evaluations():
    made = score_adaptation(adaptation(), model_name="a", settings=replace(QUICK, level=0.8))
    captions = [table.caption for table in adaptation_tables(*made)]
    assert "Brackets: 80 % intervals." in captions[0]
    assert "Brackets" not in adaptation_summary(*made)
