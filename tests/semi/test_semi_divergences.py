"""The measures of consistency: oracles, laws, digits near equality, extremes."""

import math

import mpmath as mp
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional

import oracle
from beliefmatch import dirichlet_kl
from beliefmatch.semi import DIVERGENCES, categorical_kl, squared_distance
from small_classifiers import DOUBLE, drawn

NAMES = list(DIVERGENCES)


def exact_categorical(first, second):
    with mp.workdps(60):
        a, b = ([mp.mpf(z) for z in logits] for logits in (first, second))
        p, q = ([mp.exp(z) / mp.fsum(map(mp.exp, each)) for z in each] for each in (a, b))
        return mp.fsum(u * mp.log(u / v) for u, v in zip(p, q, strict=True))


@pytest.mark.parametrize("gap", [3.0, 1e-2, 1e-5, 1e-8])
def test_categorical_divergence_keeps_its_digits_as_the_two_approach(gap):
    first = 3 * drawn(5, 7)
    second = first + gap * drawn(5, 7, seed=1)
    ours = categorical_kl(first, second).tolist()
    exact = [exact_categorical(*pair) for pair in zip(first.tolist(), second.tolist(), strict=True)]
    # what one rounding of a logit can change
    bar = 1e-13 + 1e-14 / gap
    assert all(oracle.relative_error(own, truth) < bar for own, truth in zip(ours, exact, strict=True))


def test_categorical_divergence_equals_that_of_torch():
    first, second = drawn(5, 7), drawn(5, 7, seed=1)
    theirs = functional.kl_div(second.log_softmax(1), first.log_softmax(1), log_target=True, reduction="none")
    torch.testing.assert_close(categorical_kl(first, second), theirs.sum(1), rtol=1e-12, atol=0)


def test_squared_distance_is_that_of_the_paper():
    first, second = drawn(5, 7), drawn(5, 7, seed=1)
    expected = torch.linalg.vector_norm(first.softmax(1) - second.softmax(1), dim=1) ** 2
    torch.testing.assert_close(squared_distance(first, second), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_laws_of_every_divergence(name):
    measure, first, second = DIVERGENCES[name], drawn(6, 5), drawn(6, 5, seed=1)
    assert gradcheck(measure, (first[:3].requires_grad_(), second[:3].requires_grad_()))
    first, second = first.detach(), second.detach()
    value = measure(first, second)
    assert measure(first, first).abs().max() == 0 and value.min() > 0
    shuffled = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(measure(first[:, shuffled], second[:, shuffled]), value)
    dense, other = drawn(3, 5, 2, 4), drawn(3, 5, 2, 4, seed=1)  # classes along dimension 1
    assert measure(dense, other).shape == (3, 2, 4)
    torch.testing.assert_close(measure(dense, other)[:, 1, 2], measure(dense[:, :, 1, 2], other[:, :, 1, 2]))
    second[1, 2] = torch.nan
    assert measure(first, second).isnan().tolist() == [False, True, False, False, False, False]


def test_a_shift_of_the_logits_is_a_change_of_belief_but_not_of_the_mean():
    first, second = drawn(6, 5), drawn(6, 5, seed=1)
    for name in ("categorical", "squared"):
        value = DIVERGENCES[name](first, second)
        torch.testing.assert_close(DIVERGENCES[name](first + 3, second - 2), value, rtol=1e-10, atol=1e-14)
        assert DIVERGENCES[name](first, first + 1).max() < 1e-15
    assert DIVERGENCES["dirichlet"](first, first + 1).min() > 0.1


def test_divergence_of_sharp_beliefs_is_their_precision_times_that_of_their_means_the_other_way_round():
    """KL(Dir(sp) ‖ Dir(sq))/s → KL(q ‖ p): a Dirichlet's divergence weighs by its second argument."""
    first, second = (drawn(6, 5, seed=seed).log_softmax(1) for seed in (0, 1))
    reverse, forward = categorical_kl(second, first), categorical_kl(first, second)
    errors = []
    for log_precision in (8.0, 12.0, 16.0):
        scaled = dirichlet_kl(first + log_precision, second + log_precision) / math.exp(log_precision)
        errors.append((scaled / reverse - 1).abs().max().item())
        assert (scaled / forward - 1).abs().max() > 0.05
    assert errors[2] < 1e-5
    # the rest falls like 1/s
    assert errors[1] / errors[0] == pytest.approx(math.exp(-4), rel=0.1)
    assert errors[2] / errors[1] == pytest.approx(math.exp(-4), rel=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_both_orders_agree_to_second_order(name):
    """They share their Hessian where the two agree, so that the adversarial direction is the same."""
    first, step = drawn(6, 5), drawn(6, 5, seed=1)
    for size, bar in ((1e-2, 2e-2), (1e-4, 2e-4)):
        second = first + size * step
        forward, reverse = DIVERGENCES[name](first, second), DIVERGENCES[name](second, first)
        torch.testing.assert_close(forward, reverse, rtol=bar, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_give_finite_values_and_gradients(name):
    first = torch.tensor([[0.0, -800.0, 5.0], [40.0, 0.0, -40.0], [-80.0, 3.0, 80.0]], dtype=DOUBLE)
    second = first.flip(1).clone().requires_grad_()
    value = DIVERGENCES[name](first, second)
    (grad,) = torch.autograd.grad(value.sum(), second)
    assert value.isfinite().all() and grad.isfinite().all()


@pytest.mark.parametrize("name", ["categorical", "squared"])
def test_classes_that_are_ruled_out_in_both_count_for_nothing(name):
    first, second = drawn(4, 5), drawn(4, 5, seed=1)
    ruled_out = torch.full((4, 2), -torch.inf, dtype=DOUBLE)
    more = (torch.cat([logits, ruled_out], 1) for logits in (first, second))
    torch.testing.assert_close(DIVERGENCES[name](*more), DIVERGENCES[name](first, second))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_results_are_float32_at_least(name, dtype):
    first, second = drawn(3, 4).to(dtype), drawn(3, 4, seed=1).to(dtype)
    value = DIVERGENCES[name](first, second)
    assert value.dtype == torch.float32
    torch.testing.assert_close(
        value.double(), DIVERGENCES[name](first.double(), second.double()), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("move", [1e-2, 1e-4, 1e-6, 1e-8])
def test_squared_distance_keeps_its_digits_as_the_two_approach(move):
    rows = [[12.0, -2.0, 0.0], [30.25, 0.25, -3.125], [60.0, 0.25, -1.0], [0.5, 0.25, -1.0]]
    first = torch.tensor(rows, dtype=DOUBLE)
    second = first + torch.tensor([move, 0.0, 0.0], dtype=DOUBLE)
    with mp.workdps(60):
        for row, other, value in zip(first, second, squared_distance(first, second), strict=True):
            shares = []
            for logits in (row, other):
                powers = [mp.exp(mp.mpf(logit.item())) for logit in logits]
                shares.append([power / mp.fsum(powers) for power in powers])
            truth = mp.fsum((p - q) ** 2 for p, q in zip(*shares, strict=True))
            assert value.item() == pytest.approx(float(truth), rel=1e-5)


@pytest.mark.parametrize("measure", [categorical_kl, squared_distance])
@pytest.mark.parametrize(
    ("first", "second", "argument"),
    [
        (torch.zeros(3), torch.zeros(3), "second"),
        (torch.zeros(4, 3), torch.zeros(4, 1), "second"),
        ([[0.0]], torch.zeros(1, 1), "first"),
        (torch.zeros(2, 3), torch.zeros(2, 3).long(), "second"),
    ],
)
def test_what_is_no_pair_of_logits_is_refused(measure, first, second, argument):
    with pytest.raises((ValueError, TypeError), match=f"`{argument}`"):
        measure(first, second)
