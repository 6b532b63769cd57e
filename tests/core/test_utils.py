"""Small helpers: what they give, and what they cost."""

import pytest

from beliefmatch._utils import first_repeated
from beliefmatch.data.formats import CsvFile
from beliefmatch.data.predictions import read_class_names
from beliefmatch.evaluating import evaluate
from refusals import refusal


@pytest.mark.parametrize(
    ("names", "repeated"),
    [
        ([], None),
        (["a", "b", "c"], None),
        (["a", "b", "c", "b", "a"], "a"),
        (["a", "b", "c", "b"], "b"),
        (["", "a", ""], ""),
        ((n % 4 for n in range(7)), 0),
    ],
)
def test_the_first_name_that_occurs_again_is_found(names, repeated):
    assert first_repeated(names) == repeated


class CountedName(str):
    """A name that counts how often names are compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedName.comparisons += 1
        return str.__eq__(self, other)


def test_names_are_compared_a_few_times_each_however_many_there_are():
    CountedName.comparisons = 0
    names = [CountedName(f"n{k}") for k in range(5000)]
    assert first_repeated([*names, CountedName("n3")]) == "n3"
    assert CountedName.comparisons < 4 * len(names)


def test_a_name_among_fifty_thousand_that_occurs_twice_is_refused(tmp_path):
    names = [f"class {k}" for k in range(50_000)]
    names[40_000] = names[20]
    lines, heading = tmp_path / "names.txt", tmp_path / "heading.csv"
    lines.write_text("\n".join(names), encoding="utf-8")
    heading.write_text(",".join(names), encoding="utf-8")
    messages = [
        refusal(evaluate, logits=[[0.0, 1.0]] * 3, targets=[0, 1, 1], class_names=names),
        refusal(read_class_names, lines),
        refusal(CsvFile, heading, caller="read_predictions"),
    ]
    assert all("'class 20'" in message for message in messages)
