"""Means of softmax predictions and of beliefs over members, against definitions in many digits."""

import itertools
import math
import random

import mpmath
import pytest
import torch
from torch import nn

from beliefmatch import Belief
from beliefmatch.methods import build, mixture
from beliefmatch.methods.ensemble import combine
from beliefmatch.methods.mixture import mean_softmax

LOGITS = 2 * torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def combined_oracle(members):
    """ln α₀ of the Dirichlet with the mean and the summed variance of the mixture, as it is defined."""
    with mpmath.workdps(900):
        alphas = [[mpmath.exp(mpmath.mpf(z)) for z in member] for member in members]
        totals = [mpmath.fsum(alpha) for alpha in alphas]
        means = [[one / total for one in alpha] for alpha, total in zip(alphas, totals, strict=True)]
        mean = [mpmath.fsum(column) / len(members) for column in zip(*means, strict=True)]
        variance = mpmath.fsum(
            one * (1 - one) / (total + 1) + (one - middle) ** 2
            for row, total in zip(means, totals, strict=True)
            for one, middle in zip(row, mean, strict=True)
        )
        gini = mpmath.fsum(one * (1 - one) for one in mean)
        return float(mpmath.log(gini * len(members) / variance - 1))


def combined_members():
    """Members that agree, nearly agree, agree up to the precision, and contradict each other."""
    draw = random.Random(0)
    for classes, count, scale, offset in itertools.product(
        (2, 5), (1, 2, 5), (0.01, 5, 60, 300), (-40, 0, 40)
    ):
        first = [draw.gauss(0, scale) + offset for _ in range(classes)]
        near = 10 ** draw.uniform(-12, 0)
        yield [[draw.gauss(0, scale) + offset for _ in range(classes)] for _ in range(count)]
        yield [[one + draw.gauss(0, near) for one in first] for _ in range(count)]
        yield [first] * count
        yield [[round(one) + member for one in first] for member in range(count)]


@pytest.mark.parametrize(
    ("members", "log_precision"),
    [([[15, 0, 0], [18, 0, 0]], 14.53), ([[39, 0, 0], [0, 39, 0]], -36.9), ([[900, 0], [0, 900]], -898.614)],
)
def test_beliefs_are_combined_where_members_are_sure_or_contradict_each_other(members, log_precision):
    found = combine([Belief(torch.tensor([member], dtype=torch.float64)) for member in members])
    assert found.log_precision.item() == pytest.approx(log_precision, abs=0.05)
    assert found.log_precision.item() == pytest.approx(combined_oracle(members), rel=1e-13)
    if log_precision < 0:
        assert found.mutual_information().item() == pytest.approx(math.log(2), abs=1e-12)


def test_the_precision_of_combined_beliefs_equals_its_definition_in_many_digits():
    for members in combined_members():
        parts = [Belief(torch.tensor([member], dtype=torch.float64)) for member in members]
        expected = combined_oracle(members)
        assert combine(parts).log_precision.item() == pytest.approx(expected, rel=1e-12, abs=1e-12), members


def test_one_class_and_single_precision_are_combined_too():
    assert combine([Belief(torch.tensor([[2.0]])), Belief(torch.tensor([[4.0]]))]).log_alpha.tolist() == [
        [3.0]
    ]
    assert combine([Belief(LOGITS.float())] * 2).log_alpha.dtype == torch.float32


LOWEST = -math.inf


@pytest.mark.parametrize("low", [-3e4, -1e5])
@pytest.mark.parametrize(
    "members",
    [
        [[1.0, 2.0, LOWEST]],
        [[1.0, 2.0, LOWEST], [0.0, 1.5, LOWEST]],
        [[1.0, 2.0, LOWEST], [0.0, 1.0, 2.0]],
        [[0.0, 1.0, 2.0], [1.0, 2.0, LOWEST]],
        [[1.0, LOWEST, LOWEST]],
        [[-1e4, LOWEST, LOWEST], [-1e4, LOWEST, LOWEST]],
        [[1.0, LOWEST, LOWEST], [2.0, LOWEST, LOWEST]],
    ],
)
def test_a_logit_of_minus_infinity_is_the_limit_of_low_ones(members, low):
    rows = torch.tensor(members, dtype=torch.float64)[:, None]
    found, limit = (combine([Belief(member) for member in part]) for part in (rows, rows.clamp(min=low)))
    excluded = rows.isneginf().all(0)
    assert (found.log_alpha[excluded] == LOWEST).all()
    torch.testing.assert_close(found.log_alpha[~excluded], limit.log_alpha[~excluded], rtol=1e-11, atol=0)
    torch.testing.assert_close(found.probs, mean_softmax(rows).probs, rtol=1e-12, atol=0)


def test_point_masses_on_different_classes_are_combined_and_a_row_without_classes_stays_none():
    point, other, none = ([[0.0, LOWEST, LOWEST]], [[LOWEST, 3.0, LOWEST]], [[LOWEST] * 3])
    found = combine([Belief(torch.tensor(point)), Belief(torch.tensor(other))])
    assert found.probs.tolist() == [[0.5, 0.5, 0.0]]
    assert found.mutual_information().item() == pytest.approx(math.log(2), abs=1e-6)
    assert combine([Belief(torch.tensor(point)), Belief(torch.tensor(none))]).probs.isnan().all()


def entropies_oracle(members):
    """Expected entropy and mutual information of the mean softmax of members, each a list of logits."""
    with mpmath.workdps(60):
        weights = [[mpmath.exp(mpmath.mpf(z)) for z in member] for member in members]
        probs = [[one / mpmath.fsum(row) for one in row] for row in weights]
        mean = [mpmath.fsum(column) / len(members) for column in zip(*probs, strict=True)]
        entropy, *each = (-mpmath.fsum(p * mpmath.log(p) for p in row) for row in (mean, *probs))
        expected = mpmath.fsum(each) / len(members)
        return float(expected), float(entropy - expected)


@pytest.mark.parametrize("near", [1e-7, 1e-3, 1.0, 30.0])
def test_the_entropies_of_a_mean_softmax_keep_their_digits(near):
    generator = torch.Generator().manual_seed(7)
    first = 8 * torch.randn(6, 5, generator=generator, dtype=torch.float64)
    logits = first + near * torch.randn(4, 6, 5, generator=generator, dtype=torch.float64)
    found = mean_softmax(logits)
    torch.testing.assert_close(found.probs, logits.softmax(2).mean(0))
    for row in range(6):
        expected, information = entropies_oracle(logits[:, row].tolist())
        assert found.expected_entropy()[row].item() == pytest.approx(expected, rel=1e-12)
        assert found.mutual_information()[row].item() == pytest.approx(
            information, rel=1e-6 if near < 1 else 1e-12
        )
    total = found.expected_entropy() + found.mutual_information()
    torch.testing.assert_close(total, torch.special.entr(found.probs).sum(1))


def test_the_entropies_of_a_mean_softmax_at_its_limits(monkeypatch):
    agree = mean_softmax(LOGITS.expand(3, -1, -1))
    assert agree.mutual_information().abs().max() < 1e-15
    apart = mean_softmax(torch.tensor([[[1000.0, 0.0]], [[0.0, 1000.0]]]))
    assert apart.mutual_information().item() == pytest.approx(math.log(2), rel=1e-15)
    assert apart.expected_entropy().item() == 0
    logits = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0))
    whole = mean_softmax(logits)
    monkeypatch.setattr(mixture, "_BLOCK", 24)  # two rows at a time
    assert torch.equal(mean_softmax(logits).mutual_information(), whole.mutual_information())
    assert mean_softmax(logits[:, :0]).probs.shape == (0, 4)


def test_a_prediction_of_one_softmax_has_no_mutual_information():
    one = build("softmax").predictor(nn.Identity()).predict(LOGITS)
    assert one.mutual_information() is None and one.expected_entropy() is None
    belief = build("belief_matching", kl_weight=0.1).predictor(nn.Identity()).predict(LOGITS)
    assert torch.equal(belief.mutual_information(), Belief(LOGITS).mutual_information())
    assert torch.equal(belief.expected_entropy(), Belief(LOGITS).expected_entropy())
    members = [nn.Linear(4, 4).double() for _ in range(3)]
    several = build("ensemble", members=3).predictor(*members).predict(LOGITS)
    expected = mean_softmax(torch.stack([member(LOGITS).detach() for member in members]))
    torch.testing.assert_close(several.mutual_information(), expected.mutual_information())
