"""Choosing a head, what it is compared with, and whether the validation rows can be trusted."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from beliefmatch.adaptation.baselines import temperature, untouched
from beliefmatch.adaptation.batched import fit_heads
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.choosing import choose, contamination, table
from beliefmatch.adaptation.contamination import copied_share
from beliefmatch.adaptation.fitted import FittedHead, HeadScores
from beliefmatch.adaptation.types import Features
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
        (lambda: contamination(features()), "`train`"),
        (lambda: contamination(features(), train=features(width=3)), "`validation`"),
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


def _learnt(many=800):
    """A head that has its training rows by heart, those rows, and new ones."""
    width = 1000  # more than rows, so that all can be learnt, random labels too
    train, new = (features(many, seed, width=width) for seed in (0, 1))
    random_labels = torch.randint(CLASSES, (many,), generator=torch.Generator().manual_seed(0))
    train = Features(train.rows, torch.where(torch.arange(many) % 5 > 0, train.targets, random_labels), "")
    options = {"classes": CLASSES, "epochs": 25, "learning_rate": 0.01, "batch_size": 64}
    (head,) = fit_heads(train, [Candidate("softmax", "softmax")], **options)
    return (head.weight, head.bias), train, new


def _rows(features, places):
    return Features(features.rows[places], features.targets[places], "")


def _noisy(data):
    """Other pictures of the same things, such as mirrored ones: no copies, but known."""
    noise = np.random.default_rng(5).normal(size=data.rows.shape).astype(np.float32)
    return Features(data.rows + 0.05 * noise, data.targets, "")


def test_new_rows_are_distinguished_from_learnt_ones():
    init, train, new = _learnt()
    assert contamination(new, train=train, init=init).seen is False
    assert contamination(_noisy(train), train=train, init=init).seen is True
    assert contamination(new, train=_noisy(new), init=init).seen is None  # both or neither
    few = _rows(_noisy(train), np.arange(0, 800, 20))
    assert contamination(few, train=train, init=init).seen is None
    alone = [contamination(data, init=init) for data in (train, new)]
    assert [verdict.seen for verdict in alone] == [None, None] and alone[0].why != alone[1].why


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_copies_among_the_training_rows_are_found(kind):
    train, new = features(500, width=64), features(200, 1, width=64)
    part = Features(train.rows[100:150].astype(kind), train.targets[100:150], "")
    assert copied_share(part, train) == 1.0 and copied_share(new, train) == 0.0
    verdict = contamination(part, train=train)
    assert verdict.seen is True and "100%" in verdict.why
    assert contamination(new, train=train).seen is None
    rows = np.concatenate([new.rows, train.rows[:3]])
    mixed = Features(rows, torch.zeros(203).long(), "")
    assert copied_share(mixed, train) == pytest.approx(3 / 203)
    verdict = contamination(mixed, train=train)
    assert verdict.seen is None and "1.5%" in verdict.why


def test_empty_rows_are_no_copies():
    nothing = Features(np.zeros((9, 4), np.float32), torch.zeros(9).long(), "")
    assert copied_share(nothing, nothing) == 0.0
