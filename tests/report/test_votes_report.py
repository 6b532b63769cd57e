"""The report on votes: its tables in terminal and Markdown, its words and its page."""

import csv
from io import StringIO

import pytest
from msgspec.structs import replace

from beliefmatch.experiments.votes_record import (
    AnnotatorRecord,
    ItemRecord,
    PrecisionRecord,
    SimulatedRule,
    Simulation,
    StoppingPoint,
    VotesConfig,
    VotesRecord,
)
from beliefmatch.report.page import render_page
from beliefmatch.report.table import to_markdown, to_rich
from beliefmatch.report.votes import csv_file, votes_files, votes_page, votes_tables
from golden import assert_golden
from html_page import Page, outline
from rendered import terminal

HOSTILE = "=<script>alert(1)</script>|*"
ALONE = "votes alone, without a model"
OWN = "model, its own precision times one scale"
ONE = "model, one precision for all items"


def points(*rows):
    return [StoppingPoint(confidence, votes, error, 0.02, 0.001) for confidence, votes, error in rows]


def record(**changes):
    """An analysis with a model, a replay and annotators, of whom one is unusual."""
    config = VotesConfig(confidence=0.93, repetitions=3)
    rules = [
        SimulatedRule(ALONE, points((0.9, 2.1, 0.05), (0.93, 2.4, 0.04), (0.95, 2.6, 0.03))),
        SimulatedRule(OWN, points((0.9, 1.1, 0.06), (0.93, 1.3, 0.05), (0.95, 1.5, 0.04)), 0.5),
        SimulatedRule(ONE, points((0.9, 0.9, 0.04), (0.93, 1.25, 0.03), (0.95, 1.4, 0.02)), 3.0),
    ]
    fixed = [StoppingPoint(0.0, float(n), 0.2 / n) for n in range(1, 6)]
    made = VotesRecord(
        source="votes.csv",
        form="long",
        recognised={"item": "task", "label": "label"},
        class_names=["cat", "dog", "fox"],
        items=40,
        votes=120,
        annotators=2,
        belief=f"model.npz: {ONE}",
        scale=3.25,
        prior=None,
        settled=30,
        votes_saved=50,
        votes_left=30,
        expected_error=0.043,
        expected_error_settled=0.012,
        disputed=[ItemRecord("b", [2, 2, 1], 0, 0.5, False, 0.0)],
        ask_next=[ItemRecord(HOSTILE, [1, 1, 0], 1, 0.52, False, 0.213)],
        confidences=[0] * 10 + [2, 0, 1, 1, 2, 2, 1, 1, 5, 25],
        annotator_records=[
            AnnotatorRecord("ann", 60, 0.55, 0.82, -5.4),
            AnnotatorRecord("bob", 60, 0.85, 0.84, 0.2),
        ],
        dawid_skene={"items": 40.0, "differs_from_consensus": 0.05, "differs_from_plurality": 0.025},
        simulation=Simulation(40, rules, fixed),
        settings={name: getattr(config, name) for name in VotesConfig.__struct_fields__},
        versions={"beliefmatch": "1.0"},
        hardware={"cpu": "some"},
        created="2026-01-01T00:00:00+00:00",
        wall_seconds=1.0,
        command=["beliefmatch", "votes", "votes.csv"],
        precisions=[PrecisionRecord(ONE, 3.25, 0.2512, 2.7), PrecisionRecord(OWN, 0.5, 0.1934, 2.1)],
        largest_votes=5,
    )
    return replace(made, **changes)


def rendered_page(one):
    return render_page(votes_page(one), caller="test")


def test_the_tables_in_a_terminal():
    text = "\n".join(terminal(to_rich(table), width=120) for table in votes_tables(record()))
    assert_golden("report/votes_terminal.txt", text)


def test_the_tables_in_markdown():
    assert_golden("report/votes_tables.md", "\n\n".join(map(to_markdown, votes_tables(record()))))


def test_the_page_of_a_replay_with_a_model():
    assert_golden("report/votes_page.txt", outline(rendered_page(record())))


def test_names_of_items_are_text_on_the_page():
    page = Page(rendered_page(record()))
    assert HOSTILE in " ".join(page.texts("td") + page.texts("th"))
    plain = Page(rendered_page(record(ask_next=[])))
    assert len(page.all("script")) == len(plain.all("script"))
    assert len(page.all("svg")) >= 2  # stopping, and how sure the consensus is


def test_the_card_of_the_replay_has_the_precision_and_the_confidence_of_the_analysis():
    (card,) = (card for card in votes_page(record()).cards if card.title.startswith("Replayed"))
    assert "1.25" in card.value
    swapped = record(precisions=record().precisions[::-1])
    (card,) = (card for card in votes_page(swapped).cards if card.title.startswith("Replayed"))
    assert "1.30" in card.value


def test_a_replay_that_errs_more_than_promised_and_a_model_that_costs_votes_are_warnings():
    assert not record().replay_doubts()
    simulation = record().simulation
    assert simulation is not None
    alone, _, one = simulation.rules
    sure = replace(one, points=points((0.9, 2.2, 0.182), (0.93, 2.3, 0.18), (0.95, 2.4, 0.17)))
    cheap = replace(alone, points=points((0.9, 1.0, 0.19), (0.93, 1.2, 0.17), (0.95, 2.6, 0.03)))
    changed = record(simulation=replace(simulation, rules=[cheap, sure]))
    first, second = changed.replay_doubts()
    assert "18.0 %" in first and "7.0 %" in first and "2.30" in second and "1.10" in second
    shown = votes_page(changed).warnings
    assert first in shown and second in shown
    ties = [replace(point, promised=0.19) for point in sure.points]  # panels that tie are never settled
    tied = replace(simulation, rules=[alone, replace(sure, points=ties)])
    assert not any("promised" in text for text in record(simulation=tied).replay_doubts())


@pytest.mark.parametrize(("largest", "votes", "warned"), [(1, 25, True), (3, 40, False), (None, 40, False)])
def test_one_vote_an_item_is_warned_of_by_the_largest_number_and_not_by_the_mean(largest, votes, warned):
    one = record(
        largest_votes=largest, votes=votes, scale=None, precisions=[], simulation=None, annotator_records=[]
    )
    assert any("one vote an item" in text for text in votes_page(one).warnings) is warned


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": 1e-6}, "agree too well"),
        ({"scale": 1e6}, "differ too much"),
        ({"scale": None, "precisions": [], "prior": [4e-7, 4e-7, 2e-7]}, "agree too well"),
        ({"scale": None, "precisions": [], "prior": [9e5, 1e5, 0.0]}, "differ too much"),
        ({}, None),
        ({"scale": None, "precisions": [], "prior": [0.5, 0.2, 0.1]}, None),
    ],
)
def test_votes_that_tell_no_precision_are_warned_of_in_words(changes, words):
    warned = [text for text in votes_page(record(**changes)).warnings if "not to be trusted" in text]
    assert len(warned) == (words is not None) and all(words in text for text in warned)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_precision_that_votes_do_not_determine_is_no_advice_to_stop(scale):
    open_panels = record(scale=scale, ask_next=[], settled=40, undecided=12)
    page = votes_page(open_panels)
    assert any("not to be trusted" in text for text in page.warnings)
    assert not any("no further vote" in text for text in page.advice)
    assert any("before you stop" in text for text in page.advice)
    assert "saves" not in page.verdict and not any(card.title == "Votes saved" for card in page.cards)
    decided = votes_page(record(scale=scale, ask_next=[], settled=40, undecided=0))
    assert not any("not to be trusted" in text for text in decided.warnings)
    assert any("no further vote" in text for text in decided.advice)


def test_ties_are_said_to_be_complete_and_not_every_panel():
    (advice, *_) = votes_page(record(ask_next=[], votes_saved=50)).advice
    assert advice.startswith("There is no item to ask about") and "Every panel" not in advice


def test_items_with_more_votes_than_the_panel_are_named_in_the_verdict():
    assert "where an item has more" in votes_page(record(largest_votes=6)).verdict
    assert "where an item has more" not in votes_page(record(largest_votes=5)).verdict


def test_as_many_annotators_are_marked_as_chance_does_not_explain():
    unusual = AnnotatorRecord("ann", 60, 0.65, 0.82, -3.4)
    others = [AnnotatorRecord(f"{n}", 60, 0.85, 0.84, 0.2) for n in range(2000)]
    assert 0.05 / 2000 < unusual.chance < 0.05 / 20
    for count, marked in ((1, True), (20, True), (2000, False)):
        one = record(annotator_records=[unusual, *others[: count - 1]])
        assert [a.name for a in one.unusual_annotators] == ["ann"] * marked
        assert any("less than chance" in text for text in votes_page(one).warnings) is marked


def test_a_model_without_information_is_warned_of():
    assert not record(model_gain=40.0).model_doubts() and not record().model_doubts()
    (doubt,) = record(model_gain=0.4).model_doubts()
    assert doubt in votes_page(record(model_gain=0.4)).warnings and "order of the classes" in doubt


def test_a_model_that_does_as_well_as_the_votes_alone_is_warned_of():
    simulation = record().simulation
    assert simulation is not None
    alone, own, one = simulation.rules
    equal = replace(simulation, rules=[alone, own, replace(one, points=alone.points)])
    (doubt,) = record(simulation=equal).replay_doubts()
    assert "does not clearly save votes" in doubt and "2.40 votes an item with it and 2.40" in doubt


def test_a_record_of_an_earlier_version_has_a_page():
    old = record(precisions=[], largest_votes=None)
    assert "items are settled" in rendered_page(VotesRecord.from_json(old.to_json()))


def test_the_files_hold_the_record_the_items_and_what_the_page_shows():
    files = dict(votes_files(record(), (["item", "votes"], [[HOSTILE, 2]])))
    assert set(files) == {"record.json", "items.csv", "tables.md", "report.html"}
    assert VotesRecord.from_json(files["record.json"].decode()) == record()
    assert list(csv.reader(StringIO(files["items.csv"].decode()))) == [
        ["item", "votes"],
        [f"'{HOSTILE}", "2"],
    ]
    assert csv_file(["-a"], [[-1]]) == b"'-a\n-1\n"


def test_names_that_are_numbers_are_no_formulas():
    names = ["-1", "+2", "-1.5e-3", "-1+1", "--1", "-", "-.5"]
    (written,) = csv.reader(StringIO(csv_file(names, []).decode()))
    assert written == ["-1", "+2", "-1.5e-3", "'-1+1", "'--1", "'-", "-.5"]


def test_a_file_for_programs_holds_the_names_as_they_are():
    assert csv_file([HOSTILE], [["=a", "-b"]], for_spreadsheets=False).decode() == f"{HOSTILE}\n=a,-b\n"
