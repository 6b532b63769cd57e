"""Choosing a head, and what it is compared with."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from beliefmatch.adaptation.baselines import temperature, untouched
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.choosing import choose, table
from beliefmatch.adaptation.fitted import FittedHead, HeadScores
from beliefmatch.methods.temperature import fit_temperature
from head_features import CLASSES, WIDTH, features, votes


def _head(name, nll, error, ece=0.1, kind="belief_matching", **more):
    scores = None if nll is None else HeadScores(nll, error, ece, 10)
    return FittedHead(Candidate(name, kind), torch.zeros(2, 3), torch.zeros(2), 1, scores, **more)


HEADS = [
    _head("a", 0.5, 0.2),
    _head("b", 0.4, 0.3),
    _head("c", 0.4, 0.2, 0.2),
    _head("d", 0.4, 0.2, 0.1),
    _head("softmax", 0.1, 0.1, kind="softmax"),
    _head("lost", 0.0, 0.0, diverged=True),
    _head("nan", math.nan, 0.0),
    _head("none", None, None),
]


def test_the_lowest_value_is_chosen_and_ties_are_broken():
    assert choose(HEADS).candidate.name == "d"
    assert choose(HEADS[:2]).candidate.name == "b"
    assert choose(HEADS[:2], by="error").candidate.name == "a"
    assert choose(HEADS, kinds=("belief_matching", "softmax")).candidate.name == "softmax"
    twins = [HEADS[3], replace(HEADS[3], epoch=2)]
    assert choose(twins) is twins[0]


def test_the_table_has_all_the_best_first():
    assert [row["name"] for row in table(HEADS)] == ["softmax", "d", "c", "b", "a", "lost", "nan", "none"]
    assert table(HEADS, by="error")[1]["name"] == "d" and table(HEADS)[0]["ece"] == 0.1


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: choose(HEADS[4:]), "`fitted`"),
        (lambda: choose(HEADS, by="ece"), "`by`"),  # pyright: ignore
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, argument):
    with pytest.raises(ValueError, match=argument):
        call()


INIT = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1)), torch.full((CLASSES,), 0.1)


def test_the_untouched_head_has_the_scores_of_its_softmax():
    data = features()
    head = untouched(INIT, data)
    logits = torch.from_numpy(data.rows) @ INIT[0].t() + INIT[1]
    assert head.nll == pytest.approx(functional.cross_entropy(logits, data.targets).item(), rel=1e-5)
    assert torch.equal(head.weight, INIT[0]) and head.candidate.kind == "untouched"


def test_a_temperature_is_a_head_too():
    data = features()
    head = temperature(INIT, data)
    logits = (torch.from_numpy(data.rows) @ INIT[0].t() + INIT[1]).double()
    fitted = fit_temperature(logits, data.targets)
    assert head.candidate.options["temperature"] == pytest.approx(fitted, rel=1e-5)
    assert head.nll == pytest.approx(functional.cross_entropy(logits / fitted, data.targets).item(), rel=1e-5)
    assert head.nll <= untouched(INIT, data).nll and head.error == untouched(INIT, data).error


def test_a_temperature_of_few_rows_says_so(monkeypatch):
    monkeypatch.setattr("beliefmatch.adaptation.baselines.MOST_LOGITS", 45 * CLASSES)
    monkeypatch.setattr("beliefmatch.adaptation.reading.BLOCK_NUMBERS", 13 * WIDTH)
    data = features()
    logits = (torch.from_numpy(data.rows) @ INIT[0].t() + INIT[1]).double()
    head = temperature(INIT, data)
    assert head.notes == ("fitted on every 2th validation row",)
    fitted = fit_temperature(logits[::2], data.targets[::2])
    assert head.candidate.options["temperature"] == pytest.approx(fitted, rel=1e-5)


def test_a_temperature_of_votes_minimises_their_nll():
    data = votes()
    best = temperature(INIT, data).candidate.options["temperature"]
    some = data.targets[data.targets.sum(1) > 0]
    logits = (torch.from_numpy(data.rows)[data.targets.sum(1) > 0] @ INIT[0].t()).double() + INIT[1]

    def value(t):
        return functional.cross_entropy(logits / t, (some / some.sum(1, keepdim=True)).double())

    assert value(best) < min(value(best * 0.98), value(best * 1.02))
