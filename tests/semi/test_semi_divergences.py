"""Divergences of two predictions: oracles, laws, digits near equality, extremes."""

import math

import mpmath as mp
import pytest
import torch
from torch.autograd import gradcheck

import oracle
from beliefmatch import dirichlet_kl
from beliefmatch.semi import DIVERGENCES, categorical_kl, squared_distance
from small_classifiers import DOUBLE, drawn

NAMES = list(DIVERGENCES)


def softmax(logits):
    powers = [mp.exp(mp.mpf(z)) for z in logits]
    return [power / mp.fsum(powers) for power in powers]


EXACT = {
    "categorical": lambda p, q: mp.fsum(u * mp.log(u / v) for u, v in zip(p, q, strict=True)),
    "squared": lambda p, q: mp.fsum((u - v) ** 2 for u, v in zip(p, q, strict=True)),
}
CONFIDENT = [[12.0, -2.0, 0.0], [30.25, 0.25, -3.125], [60.0, 0.25, -1.0], [0.5, 0.25, -1.0]]


@pytest.mark.parametrize("gap", [3.0, 1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("confident", [False, True])
def test_divergences_of_close_predictions_keep_their_digits(name, confident, gap):
    first, step = 3 * drawn(5, 7), drawn(5, 7, seed=1)
    if confident:
        first, step = torch.tensor(CONFIDENT, dtype=DOUBLE), torch.eye(1, 3, dtype=DOUBLE)
    second = first + gap * step
    values = DIVERGENCES[name](first, second).tolist()
    tolerance = 1e-13 + (1e-13 if confident else 1e-14) / gap  # what one rounding of a logit can change
    for row, other, value in zip(first.tolist(), second.tolist(), values, strict=True):
        with mp.workdps(60):
            truth = EXACT[name](softmax(row), softmax(other))
        assert oracle.relative_error(value, truth) < tolerance


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


def test_divergence_of_sharp_beliefs_is_the_precision_times_the_reverse_divergence_of_means():
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
def test_classes_with_probability_zero_in_both_predictions_do_not_count(name):
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
def test_arguments_that_are_no_pair_of_logits_are_refused(measure, first, second, argument):
    with pytest.raises((ValueError, TypeError), match=f"`{argument}`"):
        measure(first, second)
