"""The report on votes: verdict, pictures, the table of items, annotators and stopping."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import chain
from typing import Any

from beliefmatch.experiments.votes_record import ItemRecord, StoppingPoint, VotesRecord
from beliefmatch.report.figure import Axis, Figure, Panel, Series
from beliefmatch.report.page import Block, Card, Command, Facts, Page, Section, Text, facts_of, render_page
from beliefmatch.report.style import REFERENCE, Look, looks
from beliefmatch.report.table import Cell, Column, Row, Table, to_markdown
from beliefmatch.report.text import count_text, listed, number_text, percent, spreadsheet_text, tidy

__all__ = ["csv_file", "stopping_table", "votes_files", "votes_page", "votes_tables"]

_MOST_VOTES_SHOWN = 5  # classes of an item with their numbers of votes
_MOST_ANNOTATORS = 25
_LEAST, _LARGEST = 1.001e-6, 0.999e6
"""Scales and precisions from which on they are the ends of their range."""
_FIXED = "same number of votes for every item"


def votes_files(record: VotesRecord, items: tuple[Sequence[str], Sequence[Sequence[Any]]]) -> Iterator[Any]:
    """Name and content of every file: record, items, tables and page."""
    yield "record.json", record.to_json().encode()
    yield "items.csv", csv_file(*items)
    yield "tables.md", "\n\n".join(map(to_markdown, votes_tables(record))).encode()
    yield "report.html", render_page(votes_page(record), caller="votes").encode()


def csv_file(
    heading: Sequence[str], rows: Sequence[Sequence[Any]], *, for_spreadsheets: bool = True
) -> bytes:
    """A table as a file in which no spreadsheet takes text for a formula, or for programs, as it is."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([heading], rows):
        cells = [spreadsheet_text(cell) if isinstance(cell, str) else cell for cell in row]
        writer.writerow(cells if for_spreadsheets else row)
    return text.getvalue().encode()


# The page


def votes_page(record: VotesRecord) -> Page:
    """The page of an analysis of votes."""
    record = tidy(record)
    sections = [
        Section("Items to ask about next", [_items_table(record, record.ask_next, "Ask next")], folded=False),
        Section("Most disputed items", [_items_table(record, record.disputed, "Most disputed")]),
    ]
    if record.simulation is not None:
        sections.insert(0, Section("Votes and error of early stopping", [*_stopping_blocks(record)]))
    if record.precisions:
        sections.append(Section("Precision of the model", [_precision_table(record)]))
    if record.annotator_records:
        sections.append(Section("Annotators", [*_annotator_blocks(record)]))
    settings = {"Settings": facts_of(record.settings), "Votes": facts_of(record.recognised)}
    origin = {"Versions": facts_of(record.versions), "Hardware": facts_of(record.hardware)}
    blocks: list[Block] = [Facts({**settings, **origin})]
    if record.command:
        blocks.insert(0, Command(" ".join(record.command)))
    sections.append(Section("How this was made", blocks))
    return Page(
        command="votes",
        title="Votes",
        verdict=_verdict(record),
        lead=_lead(record),
        models=(),
        looks=(),
        warnings=_warnings(record),
        cards=_cards(record),
        pictures=_pictures(record),
        advice=_advice(record),
        sections=sections,
        version=record.versions.get("beliefmatch", ""),
    )


def _panel(record: VotesRecord) -> int:
    return int(record.settings["panel"])


def _confidence(record: VotesRecord) -> float:
    return float(record.settings["confidence"])


def _verdict(record: VotesRecord) -> str:
    verb = "is" if record.items == 1 else "are"
    share = f"{record.settled:,} of {count_text(record.items, 'item')} {verb} settled"
    sure = f"{100 * _confidence(record):g}\u00a0%"
    larger = " (of all votes, where an item has more)" if _has_larger(record) else ""
    known = f"the majority of {_panel(record)} votes{larger} is known with a probability of {sure} or more"
    possible = record.votes_saved + record.votes_left
    saved = f" Not asking about these saves {record.votes_saved:,} of {count_text(possible, 'vote')}."
    is_saved = record.votes_saved > 0 and not _rests_on_unknown_precision(record)
    return f"{share}: {known}.{saved if is_saved else ''}"


def _has_larger(record: VotesRecord) -> bool:
    return (record.largest_votes or 0) > _panel(record)


def _lead(record: VotesRecord) -> str:
    people = f" of {count_text(record.annotators, 'annotator')}" if record.annotators else ""
    mean = record.votes / record.items
    return (
        f"{count_text(record.votes, 'vote')}{people} for {count_text(record.items, 'item')} "
        f"({mean:.2f} an item) and {len(record.class_names)} classes. "
        f"Belief before any vote: {record.belief}{_fitted_words(record)}."
    )


def _fitted_words(record: VotesRecord) -> str:
    if not record.precisions:
        return ""
    used = record.precisions[0]
    return f" (fitted to the votes: scale {used.scale:.3g}, temperature {used.temperature:.3g})"


def _warnings(record: VotesRecord) -> list[str]:
    found = []
    unusual = record.unusual_annotators
    if unusual:
        names = listed([one.name for one in unusual[:3]]) + (" and others" if unusual[3:] else "")
        verb = "agrees" if len(unusual) == 1 else "agree"
        found.append(f"{names} {verb} with the others less than chance explains; see Annotators.")
    if record.largest_votes == 1:
        found.append("The precision of the prior cannot be estimated from one vote an item.")
    return [*found, *_unbounded(record), *record.model_doubts(), *record.replay_doubts()]


def _unbounded(record: VotesRecord) -> list[str]:
    """What it means that the precision ends at an end of its range; nothing if every majority is certain."""
    if not _rests_on_unknown_precision(record):
        return []
    certain = "Only majorities that no further vote can change are certain."
    if _precision(record) <= _LEAST:
        return [
            "These votes are too few, or agree too well, to estimate how much the votes of an item differ: "
            f"one vote settles an item here. {certain} The other probabilities are not to be trusted until "
            "more items have two votes or more, and some of these differ."
        ]
    return [
        "These votes are too few, or differ too much within items, to estimate how much the items differ: "
        f"votes hardly change the belief about their item here. {certain} The other probabilities are not to "
        "be trusted until more items have two votes or more that agree better than by chance."
    ]


def _precision(record: VotesRecord) -> float:
    precision = record.scale if record.prior is None else sum(record.prior)
    return 1.0 if precision is None else precision


def _rests_on_unknown_precision(record: VotesRecord) -> bool:
    """Whether votes that are to come matter, and the given ones do not determine what is expected of them."""
    return not _LEAST < _precision(record) < _LARGEST and record.undecided != 0


def _cards(record: VotesRecord) -> list[Card]:
    settled = percent(record.settled / record.items)
    cards = [
        Card("Settled items", settled, f"majority of {_panel(record)} at {_confidence(record):.0%}"),
        Card("Expected error of the consensus", percent(record.expected_error), _error_words(record)),
    ]
    possible = record.votes_saved + record.votes_left
    if possible and not _rests_on_unknown_precision(record):
        saved = f"{record.votes_saved:,} of {possible:,} that complete panels would take"
        cards.append(Card("Votes saved", percent(record.votes_saved / possible), saved))
    point = _chosen_point(record)
    if point is not None and record.simulation is not None:
        value = f"{point.votes:.2f} votes"
        sure = f"an item, {percent(point.error, 2)} error against panels of {_panel(record)}"
        cards.append(Card("Replayed with early stopping", value, sure))
    return cards


def _error_words(record: VotesRecord) -> str:
    if record.expected_error_settled is None:
        return "no item is settled"
    return f"{percent(record.expected_error_settled, 2)} among settled items"


def _chosen_point(record: VotesRecord) -> StoppingPoint | None:
    return None if record.rule is None else record.rule.at(_confidence(record))


def _advice(record: VotesRecord) -> list[str]:
    advice = []
    if record.ask_next:
        first = listed([one.name for one in record.ask_next[:3]])
        advice.append(f"Ask next about {first}; `items.csv` has the order of all items that are not settled.")
    elif record.settled < record.items:
        advice.append(
            "There is no item to ask about: those that are not settled have complete panels that tie."
        )
    elif _rests_on_unknown_precision(record):
        advice.append(
            "Every item counts as settled, but by a precision that these votes do not determine. Ask for "
            "more votes about some items before you stop."
        )
    else:
        advice.append("Every item is settled: no further vote is needed at this confidence.")
    if record.scale is None:
        advice.append(
            "Give `--predictions` or `--features` of a model: as the belief before any vote it may save most "
            "of the votes. `--simulate` shows how many on the votes in hand."
        )
    elif record.simulation is None:
        advice.append("`--simulate` replays the votes in hand, to show what early stopping would have saved.")
    return advice


def _pictures(record: VotesRecord) -> list[Figure]:
    pictures = [] if record.simulation is None else [_stopping_figure(record)]
    return [*pictures, _confidence_figure(record)]


def _confidence_figure(record: VotesRecord) -> Figure:
    bins = len(record.confidences)
    middles = [(place + 0.5) / bins for place in range(bins)]
    series = Series("items", middles, record.confidences, Look("#0072B2"), draw="bars", bar_width=0.9 / bins)
    panel = Panel(
        [series],
        Axis("probability of being the majority", 0.0, 1.0, percent=True),
        Axis("items", 0.0),
        title="How sure is the consensus?",
    )
    alt = "Histogram of the items by the probability that their consensus is the majority of the panel"
    return Figure("confidence", [panel], alt)


def _stopping_figure(record: VotesRecord) -> Figure:
    simulation = record.simulation
    assert simulation is not None
    names = [rule.name for rule in simulation.rules]
    series = [
        Series(
            rule.name,
            [one.votes for one in rule.points],
            [one.error for one in rule.points],
            look,
            marker=True,
            model=None,
        )
        for rule, look in zip(simulation.rules, _looks(names), strict=True)
    ]
    fixed = simulation.fixed
    series.append(
        Series(
            _FIXED,
            [p.votes for p in fixed],
            [p.error for p in fixed],
            Look(REFERENCE, "4 2", "s"),
            marker=True,
        )
    )
    panel = Panel(
        series,
        Axis("votes an item", 0.0),
        Axis(f"error against the panel of {_panel(record)}", 0.0, percent=True),
        title="Votes against error",
    )
    alt = "Error of the consensus against the mean number of votes of an item, for each way to stop"
    legend = [*zip(names, _looks(names), strict=True), (_FIXED, Look(REFERENCE, "4 2", "s"))]
    return Figure("stopping", [panel], alt, legend=legend)


def _looks(names: Sequence[str]) -> list[Look]:
    """Votes alone, then the variants of a model."""
    models = {"model, its own": "belief matching", "model, one": "label smoothing"}
    fixed = {"votes alone": "softmax", **models, "softmax head": "temperature"}
    known = [next((to for start, to in fixed.items() if name.startswith(start)), name) for name in names]
    return looks(known)


# Tables


def votes_tables(record: VotesRecord) -> list[Table]:
    """Every table of the report."""
    record = tidy(record)
    tables = [
        _items_table(record, record.ask_next, "Ask next"),
        _items_table(record, record.disputed, "Most disputed"),
    ]
    if record.simulation is not None:
        tables.insert(0, stopping_table(record))
    if record.precisions:
        tables.append(_precision_table(record))
    if record.annotator_records:
        tables.append(_annotator_table(record))
    return [table for table in tables if table.rows]


def stopping_table(record: VotesRecord) -> Table:
    """Votes and error of each way to stop, at the confidence of the analysis and at its neighbours."""
    simulation = record.simulation
    assert simulation is not None
    chosen = _confidence(record)
    shown = [c for c in (0.8, 0.9, 0.95, 0.98, 0.99, 0.995) if abs(c - chosen) > 1e-9]
    shown = sorted({chosen, *shown})
    columns = [
        Column("confidence", "stop at", "%", digits=1, scale=100),
        Column("votes", "votes an item", better="low"),
        Column("error", "error", "%", better="low", scale=100),
    ]
    rows = []
    for rule in simulation.rules:
        for point in rule.points:
            if any(abs(point.confidence - c) < 1e-9 for c in shown):
                cells = [Cell(point.confidence), Cell(point.votes, sd=point.votes_sd)]
                rows.append(Row(rule.name, [*cells, Cell(point.error, sd=point.error_sd)]))
    for point in simulation.fixed:
        cells = [Cell(None), Cell(point.votes), Cell(point.error, sd=point.error_sd)]
        rows.append(Row(_FIXED, cells))
    repetitions = record.settings["repetitions"]
    caption = (
        f"{count_text(simulation.items, 'item')} with {_panel(record)} votes or more, replayed "
        f"{count_text(repetitions, 'time')} in random order; ± is the standard deviation over these. Errors "
        f"are against the majority of the {_panel(record)} votes. A panel that ties errs "
        "by the share of the classes that were not chosen. Scales and priors are fitted on other items."
    )
    return Table("Early stopping, replayed", columns, rows, caption, row_title="belief")


def _stopping_blocks(record: VotesRecord) -> Iterator[Block]:
    yield stopping_table(record)
    yield Text(
        "Voting on an item stops as soon as one class is the majority of its panel with this probability. "
        "The line of equal numbers of votes is what one does without any belief."
    )


def _votes_text(record: VotesRecord, item: ItemRecord) -> str:
    ranked = sorted(range(len(item.votes)), key=lambda k: -item.votes[k])
    seen = [f"{record.class_names[k]} {item.votes[k]}" for k in ranked if item.votes[k]]
    more = f", {len(seen) - _MOST_VOTES_SHOWN} more" if len(seen) > _MOST_VOTES_SHOWN else ""
    return (", ".join(seen[:_MOST_VOTES_SHOWN]) + more) or "none"


def _items_table(record: VotesRecord, items: Sequence[ItemRecord], title: str) -> Table:
    columns = [
        Column("votes", "votes"),
        Column("consensus", "consensus"),
        Column("prob_majority", "probability of majority", "%", digits=1, scale=100),
        Column("gain", "information gain of one more vote, nats", digits=3),
    ]
    rows = [
        Row(
            item.name,
            [
                Cell(_votes_text(record, item)),
                Cell(record.class_names[item.consensus]),
                Cell(item.prob_majority),
                Cell(None if item.settled else item.gain),
            ],
        )
        for item in items
    ]
    return Table(title, columns, rows, row_title="item")


def _precision_table(record: VotesRecord) -> Table:
    columns = [
        Column("scale", "fitted scale", digits=3),
        Column("temperature", "temperature", digits=3),
        Column("gain", "gain, nats an item", digits=4),
    ]
    rows = [
        Row(one.name, [Cell(one.scale), Cell(one.temperature), Cell(one.gain)], is_chosen=place == 0)
        for place, one in enumerate(record.precisions)
    ]
    caption = (
        "The scale is the factor on the concentrations, which is the precision where all items have one; the "
        "logits are divided by the temperature, above 1 where the model is too sure. Gain: log-likelihood of "
        "the votes of an item over that of independent draws from the model's probabilities. The belief "
        "before any vote has the precision of the larger gain."
    )
    return Table("Precision of the model", columns, rows, caption, row_title="precision")


def _annotator_table(record: VotesRecord) -> Table:
    columns = [
        Column("votes", "votes"),
        Column("agreement", "agreement", "%", digits=1, scale=100),
        Column("expected", "expected", "%", digits=1, scale=100),
        Column("deviation", "standard deviations", digits=1),
    ]
    unusual = record.unusual_annotators
    rows = [
        Row(
            one.name,
            [Cell(f"{one.votes:,}"), Cell(one.agreement), Cell(one.expected), Cell(one.deviation)],
            is_chosen=one in unusual,
        )
        for one in record.annotator_records[:_MOST_ANNOTATORS]
    ]
    count = len(record.annotator_records)
    more = f" The {_MOST_ANNOTATORS} lowest of {count}." if count > _MOST_ANNOTATORS else ""
    caption = (
        "Agreement of each annotator's votes with the consensus of the others, and the agreement that the "
        f"belief expects on the same items.{more}"
    )
    return Table("Annotators", columns, rows, caption, row_title="annotator")


def _annotator_blocks(record: VotesRecord) -> Iterator[Block]:
    yield _annotator_table(record)
    if record.dawid_skene is not None:
        ours = percent(record.dawid_skene["differs_from_consensus"])
        plurality = percent(record.dawid_skene["differs_from_plurality"])
        items = number_text(record.dawid_skene["items"], 0)
        yield Text(
            "The model of Dawid and Skene, which gives every annotator a confusion matrix (crowd-kit), "
            f"differs from this consensus on {ours} of {items} items, and from the plurality on {plurality}."
        )
