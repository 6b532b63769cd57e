"""A teacher's belief as votes and as a prior: Bayes' rule, the equality of the two, limits, bad arguments."""

import math

import pytest
import torch

from beliefmatch import Belief, belief_matching_loss
from beliefmatch.semi import teacher_prior, teacher_votes
from small_classifiers import DOUBLE, drawn

LAMBDA = 0.05


def gradient(student, counts, **options):
    student = student.detach().requires_grad_()
    loss = belief_matching_loss(student, counts, reduction="sum", **options)
    return torch.autograd.grad(loss, student)[0]


def fitted(counts, **options):
    """The free logits that minimise the loss."""
    student = torch.zeros_like(counts).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [student], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = belief_matching_loss(student, counts, reduction="sum", **options)
        loss.backward()
        return loss

    optimizer.step(closure)
    return student.detach()


def test_votes_are_proportional_to_the_mean():
    teacher = drawn(5, 4)
    votes = teacher_votes(teacher, strength=3.5)
    torch.testing.assert_close(votes, 3.5 * Belief(teacher).probs)
    torch.testing.assert_close(votes.sum(1), torch.full((5,), 3.5, dtype=DOUBLE))


def test_the_teachers_own_belief_is_the_prior_unless_a_strength_is_given():
    teacher, given = drawn(5, 4), {"strength": 2.0, "kl_weight": LAMBDA}
    torch.testing.assert_close(teacher_prior(teacher), teacher.exp())
    torch.testing.assert_close(teacher_prior(teacher + 3, **given), teacher_prior(teacher, **given))


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_temperature_changes_the_mean_and_not_the_precision(temperature):
    teacher = drawn(5, 4)
    prior = teacher_prior(teacher, temperature=temperature)
    torch.testing.assert_close(prior.sum(1), teacher.exp().sum(1))
    torch.testing.assert_close(prior / prior.sum(1, keepdim=True), (teacher / temperature).softmax(1))
    assert teacher_votes(teacher, temperature=1e-3).amax(1).min() > 0.99
    torch.testing.assert_close(teacher_votes(teacher, temperature=1e9), torch.full_like(teacher, 0.25))


def test_votes_and_the_prior_that_they_lead_to_have_the_same_gradient():
    teacher, student, labels = drawn(5, 4), drawn(5, 4, seed=1), drawn(5, 4, seed=2).abs()
    as_prior = teacher_prior(teacher, strength=2.0, temperature=0.7, kl_weight=LAMBDA, base=1.5)
    votes = teacher_votes(teacher, strength=2.0, temperature=0.7)
    by_prior = gradient(student, labels, prior=as_prior, kl_weight=LAMBDA)
    by_votes = gradient(student, labels + votes, prior=1.5, kl_weight=LAMBDA)
    torch.testing.assert_close(by_prior, by_votes, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("strength", [None, 0.5, 10.0])
def test_student_without_labels_learns_the_prior(strength):
    teacher = drawn(5, 4)
    prior = teacher_prior(teacher, strength=strength, kl_weight=LAMBDA)
    student = fitted(torch.zeros_like(teacher), prior=prior, kl_weight=LAMBDA)
    torch.testing.assert_close(student.exp(), prior, rtol=1e-5, atol=0)


def test_student_with_a_label_updates_the_prior_by_bayes_rule():
    teacher, label = drawn(5, 4), torch.eye(4, dtype=DOUBLE)[[0, 1, 2, 3, 0]]
    student = fitted(label, prior=teacher_prior(teacher), kl_weight=LAMBDA)
    updated = Belief(teacher).update(label / LAMBDA)
    torch.testing.assert_close(student, updated.log_alpha, rtol=1e-5, atol=1e-6)


def test_one_vote_of_a_certain_teacher_equals_a_label():
    teacher, ids = 200 * torch.eye(4, dtype=DOUBLE)[[2, 0, 1]], torch.tensor([2, 0, 1])
    student = drawn(3, 4)
    expected = gradient(student, ids, kl_weight=LAMBDA)
    torch.testing.assert_close(gradient(student, teacher_votes(teacher), kl_weight=LAMBDA), expected)


def test_a_teacher_with_strength_zero_leaves_the_base():
    teacher = drawn(5, 4)
    assert torch.equal(teacher_votes(teacher, strength=0.0), torch.zeros_like(teacher))
    assert torch.equal(teacher_prior(teacher, strength=0.0, base=2.0), torch.full_like(teacher, 2.0))


def test_the_teacher_gets_no_gradient():
    teacher = drawn(5, 4).requires_grad_()
    assert not teacher_prior(teacher).requires_grad
    assert not teacher_prior(teacher, strength=1.0).requires_grad
    assert not teacher_votes(teacher).requires_grad


@pytest.mark.parametrize("shape", [(4,), (5, 4), (5, 4, 2, 3)])
def test_layouts_are_those_of_the_loss(shape):
    teacher, student = drawn(*shape), drawn(*shape, seed=1)
    for prior in (teacher_prior(teacher), teacher_prior(teacher, strength=1.0)):
        loss = belief_matching_loss(student, teacher_votes(teacher), prior=prior, kl_weight=LAMBDA)
        assert loss.isfinite()
    total = teacher_votes(teacher).sum(min(len(shape) - 1, 1))
    torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_teachers_give_finite_priors(dtype):
    teacher = torch.tensor([[300.0, 0.0, -300.0], [-300.0, -300.0, -300.0], [80.0, 90.0, 10.0]]).to(dtype)
    for prior in (teacher_prior(teacher), teacher_prior(teacher, strength=1.0)):
        assert prior.dtype == torch.float32
        assert prior.isfinite().all() and (prior > 0).all()
        loss = belief_matching_loss(torch.zeros(3, 3), teacher_votes(teacher), prior=prior, kl_weight=LAMBDA)
        assert loss.isfinite()


@pytest.mark.parametrize(
    ("function", "argument", "options"),
    [
        (teacher_votes, "strength", {"strength": -1.0}),
        (teacher_votes, "strength", {"strength": math.inf}),
        (teacher_votes, "temperature", {"temperature": 0.0}),
        (teacher_votes, "logits", {"logits": torch.zeros(3, 0)}),
        (teacher_votes, "logits", {"logits": torch.zeros(3, 2).long()}),
        (teacher_prior, "strength", {"strength": "own"}),
        (teacher_prior, "kl_weight", {"strength": 1.0, "kl_weight": 0.0}),
        (teacher_prior, "kl_weight", {"strength": 1.0, "kl_weight": -1.0}),
        (teacher_prior, "base", {"strength": 1.0, "base": 0.0}),
        (teacher_prior, "temperature", {"temperature": -1.0}),
    ],
)
def test_wrong_arguments_are_refused_by_name(function, argument, options):
    with pytest.raises((ValueError, TypeError), match=f"{function.__name__}: `{argument}` must"):
        function(**{"logits": drawn(5, 4), **options})


def test_a_prior_that_saturates_keeps_its_mean():
    largest = torch.finfo(torch.float32).max
    own = teacher_prior(torch.tensor([[200.0, 100.0, 0.0], [200.0, 200.0, 0.0]]))
    assert own[0, 0] == largest and own[0, 1] < 1
    torch.testing.assert_close(own[1, :2], torch.full((2,), largest / 2))
    strong = teacher_prior(torch.tensor([[1.0, 0.0]]), strength=1e39)
    torch.testing.assert_close(strong[0, 0] / strong[0, 1], torch.tensor(math.e))
