"""Whether the network was trained on the validation rows: networks of which the truth is known."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from beliefmatch.adaptation.diagnostics import LEVEL, contamination, copied_share
from beliefmatch.adaptation.feature_rows import Features
from head_features import features

PIXELS = 64


class Trained(NamedTuple):
    """The last layer of a network, and its features of digits that it was and was not trained on."""

    head: tuple[torch.Tensor, torch.Tensor]
    seen: Features
    unseen: Features


NETWORKS = {
    "overfit": {"epochs": 60},
    "wrong labels by heart": {"epochs": 80, "noise": 0.1, "width": 256},
    "wrong labels, stopped early": {"epochs": 4, "noise": 0.2},
    "stopped early": {"epochs": 4},
    "weight decay": {"epochs": 30, "decay": 0.3},
    "label smoothing": {"epochs": 40, "smoothing": 0.1},
    "dropout": {"epochs": 30, "dropout": 0.5},
}


@cache
def network(name) -> Trained:
    """Train on every other digit; wrong labels are as frequent among the others."""
    from sklearn.datasets import load_digits

    config = {"noise": 0.0, "width": 64, "decay": 0.0, "smoothing": 0.0, "dropout": 0.0, **NETWORKS[name]}
    rng = np.random.default_rng(0)
    levels, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    pixels = torch.from_numpy(levels[order] / 16).float()
    labels = np.where(
        rng.random(len(order)) < config["noise"], rng.integers(0, 10, len(order)), labels[order]
    )
    targets = torch.from_numpy(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        width = config["width"]
        body = nn.Sequential(nn.Linear(PIXELS, width), nn.ReLU(), nn.Dropout(config["dropout"]))
        model = nn.Sequential(body, nn.Linear(width, 10))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=config["decay"])
        for _ in range(config["epochs"]):
            for some in torch.randperm(900).split(100):
                optimizer.zero_grad()
                smoothing = config["smoothing"]
                loss = functional.cross_entropy(model(pixels[some]), targets[some], label_smoothing=smoothing)
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        rows = body.eval()(pixels).numpy()
    sets = (Features(rows[some], targets[some], "") for some in (slice(900), slice(900, None)))
    return Trained((model[1].weight.detach(), model[1].bias.detach()), *sets)


def halves(data: Features) -> tuple[Features, Features]:
    return rows_of(data, slice(0, None, 2)), rows_of(data, slice(1, None, 2))


def rows_of(data: Features, places) -> Features:
    return Features(data.rows[places], data.targets[places], "")


@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_is_accused_or_acquitted_wrongly(name):
    head, seen, unseen = network(name)
    one, other = halves(seen)
    new, also_new = halves(unseen)
    assert contamination(unseen, train=seen, init=head).seen in (False, None)
    assert contamination(new, train=seen, init=head, test=also_new).seen in (False, None)
    assert contamination(new, train=also_new, init=head).seen in (False, None)
    assert contamination(one, train=other, init=head).seen in (True, None)
    assert contamination(one, train=other, init=head, test=unseen).seen in (True, None)
    assert contamination(one, train=unseen, init=head).seen in (True, None)


@pytest.mark.parametrize("name", ["overfit", "wrong labels by heart"])
def test_new_rows_are_recognised_where_the_network_has_learnt_others_by_heart(name):
    head, seen, unseen = network(name)
    verdict = contamination(unseen, train=seen, init=head)
    assert verdict.seen is False and "Fisher" in verdict.why
    one, other = halves(seen)
    assert contamination(one, train=other, init=head, test=unseen).seen is True


def test_overconfidence_shows_that_neither_set_was_seen():
    head, seen, unseen = network("wrong labels by heart")
    new, also_new = halves(unseen)
    verdict = contamination(new, train=also_new, init=head)
    assert verdict.seen is False and verdict.evidence["temperature"] > 1.5 and "score test" in verdict.why
    one, other = halves(seen)
    assert contamination(one, train=other, init=head).seen is None


def test_the_evidence_has_the_p_values_of_scipy():
    head, seen, unseen = network("label smoothing")
    evidence = contamination(unseen, train=seen, init=head, test=unseen).evidence
    right, surprise = {}, {}
    for name, data in (("seen", seen), ("unseen", unseen)):
        logits = (torch.from_numpy(data.rows) @ head[0].t() + head[1]).double()
        right[name] = int((logits.argmax(1) == data.targets).sum())
        surprise[name] = functional.cross_entropy(logits, data.targets, reduction="none").numpy()
    table = [[right[name], len(surprise[name]) - right[name]] for name in ("seen", "unseen")]
    assert evidence["train_accuracy"] == right["seen"] / 900
    assert evidence["train_accuracy_p"] == pytest.approx(stats.fisher_exact(table, "greater").pvalue)
    ranks = stats.mannwhitneyu(surprise["seen"], surprise["unseen"], alternative="less", use_continuity=False)
    assert evidence["train_surprise_p"] == pytest.approx(ranks.pvalue, rel=1e-3)


def answered(correct: int, many: int) -> Features:
    """Rows for a head that is right for so many of them, and as sure of each."""
    targets = torch.arange(many) % 10
    predicted = torch.where(torch.arange(many) < correct, targets, (targets + 1) % 10)
    noise = np.random.default_rng(many + correct).normal(size=(many, 5)).astype(np.float32)
    return Features(np.hstack([np.eye(10, dtype=np.float32)[predicted], noise]), targets, "")


def test_a_clear_difference_in_accuracy_decides():
    """94.0 % of 1000 against 98.9 % of 2000 is no accident; 98.5 % against 98.9 % may be one."""
    head = 5 * torch.eye(10, 15), torch.zeros(10)  # blind to the noise, which makes rows differ
    old = answered(1978, 2000)
    verdict = contamination(answered(940, 1000), train=old, init=head)
    assert verdict.seen is False and verdict.evidence["train_accuracy_p"] < LEVEL
    assert "94.0% of 1000 validation rows, 98.9% of 2000 training rows (Fisher" in verdict.why
    assert contamination(answered(985, 1000), train=old, init=head).seen is None
    better = contamination(old, train=answered(940, 1000), init=head)
    assert better.seen is None and "better than the training rows" in better.why
    assert contamination(answered(19_999, 20_000), train=answered(20_000, 20_000), init=head).seen is None


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
