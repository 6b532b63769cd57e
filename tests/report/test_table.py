"""One table, four renderings: the same numbers in each, names stay text, nothing is cut."""

import re

import pytest

from beliefmatch.report.page import facts_of
from beliefmatch.report.style import looks
from beliefmatch.report.table import (
    Cell,
    Column,
    Row,
    Table,
    column_parts,
    marked,
    to_csv,
    to_markdown,
    to_rich,
)
from beliefmatch.report.text import number_text, threshold_text
from evaluation_records import HOSTILE
from golden import assert_golden
from rendered import csv_rows, markdown_rows, terminal

COLUMNS = [
    Column("error", "Error", "%", "low", 2, 100.0),
    Column("nll", "NLL", "", "low", 4),
    Column("auroc", "AUROC", "%", "high", 1, 100.0, group="svhn"),
    Column("note", "Note"),
]
ROWS = [
    Row(
        "softmax",
        [Cell(0.0891, 0.08, 0.1), Cell(1 / 3, sd=0.25), Cell(None, note="no set"), Cell("a")],
    ),
    Row(
        "belief matching",
        [Cell(0.0712, 0.06, 0.09, mark="best"), Cell(-0.5), Cell(0.925), Cell("b", mark="close")],
    ),
]
TABLE = Table("Two models", COLUMNS, ROWS, caption="Brackets: intervals.")
LOW = [
    ([(1, 0.8, 1.2), (2, 1.8, 2.2)], ["best", ""]),
    ([(1, 0.8, 1.2), (1.1, 1.0, 1.3), (3, 2, 4)], ["best", "close", ""]),
    ([(1, 0.8, 1.2), (1, 0.9, 1.1), (2, 1.15, 3)], ["best", "best", "close"]),
    ([(1, 0.8, 1.2), (2, None, None)], ["", ""]),
    ([(1, 0.8, 1.2), (None, None, None)], ["", ""]),
    ([(1, 0.8, 1.2), (1, 0.8, 1.2)], ["", ""]),
]
ZERO = [
    ([(-0.1, -0.2, -0.05), (0.3, 0.25, 0.35)], ["best", ""]),
    ([(0.1, -0.1, 0.3), (-0.2, -0.25, -0.15)], ["best", "close"]),
]


def negated(number):
    value, low, high = number
    return tuple(None if part is None else -part for part in (value, high, low))


@pytest.mark.parametrize(
    ("better", "numbers", "expected"),
    [
        *[("low", *case) for case in LOW],
        *[("high", list(map(negated, numbers)), expected) for numbers, expected in LOW],
        *[("zero", *case) for case in ZERO],
        *[("", numbers, [""] * len(numbers)) for numbers, _ in LOW],
    ],
)
def test_the_best_is_marked_and_what_overlaps_it_if_all_have_intervals(better, numbers, expected):
    assert [cell.mark for cell in marked([Cell(*number) for number in numbers], better)] == expected


def test_deviations_over_seeds_mark_as_intervals_do():
    cells = [Cell(1.0, sd=0.2), Cell(1.15, sd=0.1), Cell(2.0, sd=0.3)]
    assert [cell.mark for cell in marked(cells, "low")] == ["best", "close", ""]


def test_the_renderings_of_a_table():
    text = "\n".join([terminal(to_rich(TABLE)), to_markdown(TABLE), to_csv([TABLE])])
    assert_golden("report/table.txt", text)


def test_every_rendering_has_the_same_numbers():
    rows = markdown_rows(to_markdown(TABLE))
    assert rows["softmax"] == ["8.91 [8.00, 10.00]", "0.3333 ± 0.2500", "— (no set)", "a"]
    assert rows["belief matching"] == ["**7.12** [6.00, 9.00]", "−0.5000", "92.5", "≈ b"]
    shown = terminal(to_rich(TABLE), width=120)
    for label in ("softmax", "belief matching"):
        assert all(cell.replace("*", "") in shown for cell in rows[label][:2])
    lines = csv_rows(to_csv([TABLE]))
    values = {(line["row"], line["metric"]): line for line in lines}
    assert float(values["softmax", "nll"]["value"]) == 1 / 3 and float(values["softmax", "nll"]["sd"]) == 0.25
    assert (
        values["softmax", "auroc"] | {"value": "", "note": "no set", "group": "svhn"}
        == values["softmax", "auroc"]
    )
    assert {line["table"] for line in lines} == {"Two models"} and len(lines) == 8


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_terminal_cuts_no_number(width):
    many = [Row(f"model {index}", [Cell(0.123456 * index, 0.1, 0.2) for _ in range(9)]) for index in range(3)]
    columns = [Column(f"m{index}", f"Metric {index}", "", "low", 4, group="a set") for index in range(9)]
    shown = terminal(to_rich(Table("wide", columns, many)), width=width)
    assert "…" not in shown and shown.count("[0.1000, 0.2000]") == 27
    assert max(map(len, shown.splitlines())) <= max(width, 45)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name):
    table = Table(name, [Column(name, name, group=name)], [Row(name, [Cell(name, note=name)])])
    visible = " ".join(name.split())
    markdown = to_markdown(table)
    assert "<script" not in markdown and "<img" not in markdown and not re.search(r"(?<!\\)\|\s*`", markdown)
    (line,) = csv_rows(to_csv([table]))
    assert all(not line[key].startswith(("=", "+", "-", "@")) for key in ("table", "row", "metric", "note"))
    assert line["row"].removeprefix("'") == name
    if name.isprintable():
        assert visible[:10] in terminal(to_rich(table), width=300)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (-0.00001, "0.00"), (-1.005, "−1.00"), (1234567.0, "1.23e+06"), (999999.0, "999999.00")],
)
def test_numbers_have_a_true_minus_sign_and_exponents_from_a_million(value, text):
    assert number_text(value, 2) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5000"), (0.99991, "0.999910"), (0.900001, "0.9001"), (None, "—")]
)
def test_thresholds_are_rounded_up_so_that_they_keep_the_risk(value, text):
    shown = threshold_text(value)
    assert shown == text and (value is None or float(shown) >= value)


def test_a_method_has_its_colour_whatever_stands_beside_it_and_no_two_look_alike():
    alone, beside = looks(["belief matching (λ = 0.01)"]), looks(["a", "b", "belief matching + temperature"])
    assert alone[0].colour == beside[2].colour != looks(["softmax"])[0].colour
    many = looks([f"model {index}" for index in range(20)])
    assert len({(look.colour, look.dash) for look in many}) == 20
    assert len({(one.colour, one.dash) for one in looks(["softmax", "softmax + temperature"])}) == 2


def test_colours_of_unknown_models_are_those_that_are_used_least():
    names = ["softmax", "ensemble", *(f"model {index}" for index in range(6)), "one more"]
    colours = [one.colour for one in looks(names)]
    assert len({*colours[:8]}) == 8 and colours.count(colours[8]) == 2
    assert len({(one.colour, one.dash) for one in looks(names)}) == 9


@pytest.mark.parametrize(("columns", "expected"), [(8, [8]), (12, [8, 4]), (10, [8, 2])])
def test_a_wide_table_is_divided_between_groups_and_keeps_every_cell(columns, expected):
    heads = [Column(f"{place}", "AUROC", group=f"score {place // 4}") for place in range(columns)]
    table = Table("Detection", heads, [Row("a", [Cell(float(place)) for place in range(columns)])])
    parts = column_parts(table)
    assert [len(part.columns) for part in parts] == expected
    assert [cell.value for part in parts for cell in part.rows[0].cells] == [*range(columns)]
    groups = [{column.group for column in part.columns} for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_facts_count_what_a_list_of_records_holds():
    assert facts_of({"tried": [{"mean": 0.5}, {"mean": 0.4}], "seeds": [0, 1]}) == {
        "tried": "2 entries, in the record",
        "seeds": "0, 1",
    }
