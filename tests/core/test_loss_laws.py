"""What must hold of belief matching whatever the numbers: optimum, divergence, symmetry, limits."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Dirichlet, kl_divergence

from beliefmatch import Belief, belief_matching_loss, dirichlet_kl

DOUBLE = torch.float64


def batch(rows=5, classes=7, seed=0, scale=1.5):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=DOUBLE)
    counts = torch.rand(rows, classes, generator=generator, dtype=DOUBLE) * 3
    prior = 0.2 + 2 * torch.rand(rows, classes, generator=generator, dtype=DOUBLE)
    return logits.requires_grad_(), counts, prior


@pytest.mark.parametrize("kl_weight", [1e-4, 0.01, 0.5, 1.0])
def test_gradient_vanishes_at_the_bayes_posterior(kl_weight):
    _, counts, prior = batch()
    logits = (prior + counts / kl_weight).log().requires_grad_()
    belief_matching_loss(logits, counts, prior=prior, kl_weight=kl_weight, reduction="sum").backward()
    assert logits.grad.abs().max() < 1e-14


def test_posterior_is_the_minimum():
    _, counts, prior = batch()
    posterior = (prior + counts / 0.1).log()
    options = {"prior": prior, "kl_weight": 0.1, "reduction": "none"}
    least = belief_matching_loss(posterior, counts, **options)
    for seed in range(20):
        torch.manual_seed(seed)
        elsewhere = posterior + 0.3 * torch.randn_like(posterior)
        assert (belief_matching_loss(elsewhere, counts, **options) > least).all()


def test_gradient_descent_on_free_logits_finds_the_posterior():
    logits = torch.zeros(1, 4, dtype=DOUBLE, requires_grad=True)
    counts = torch.tensor([[0.0, 3.0, 1.0, 0.0]], dtype=DOUBLE)
    optimiser = torch.optim.LBFGS(
        [logits],
        max_iter=200,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimiser.zero_grad()
        loss = belief_matching_loss(logits, counts, kl_weight=0.05)
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(logits.detach().exp(), 1 + counts / 0.05, rtol=1e-6, atol=0)


def test_loss_is_the_divergence_from_the_posterior_plus_a_constant():
    """ℓ(q) = λ KL(q ‖ Dir(β + c/λ)) − λ ln Z, with Z the ratio of the normalisers."""
    logits, counts, prior = batch()
    kl_weight = 0.3
    posterior = prior + counts / kl_weight
    divergence = kl_divergence(Dirichlet(logits.detach().exp()), Dirichlet(posterior))

    def log_normaliser(alpha):
        return torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))

    evidence = log_normaliser(posterior) - log_normaliser(prior)
    loss = belief_matching_loss(logits.detach(), counts, prior=prior, kl_weight=kl_weight, reduction="none")
    torch.testing.assert_close(loss, kl_weight * (divergence - evidence), rtol=1e-11, atol=1e-11)


def test_loss_is_expected_cross_entropy_minus_entropy_under_a_flat_prior():
    """With β = 1: uncertainty-aware cross-entropy − λ · entropy of the belief, up to λ lnΓ(K)."""
    logits, counts, _ = batch()
    belief = Belief(logits.detach())
    expected_ce = belief_matching_loss(logits.detach(), counts, kl_weight=0.0, reduction="none")
    alpha = logits.detach().exp()
    digamma_drop = torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha)
    torch.testing.assert_close(expected_ce, (counts * digamma_drop).sum(-1), rtol=1e-11, atol=0)
    constant = torch.lgamma(torch.tensor(7.0, dtype=DOUBLE))
    loss = belief_matching_loss(logits.detach(), counts, kl_weight=0.2, reduction="none")
    expected = expected_ce - 0.2 * (belief.differential_entropy() + constant)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)


def test_loss_adds_the_divergence_from_the_prior_times_its_weight():
    logits, counts, prior = batch()
    options = {"prior": prior, "reduction": "none"}
    data = belief_matching_loss(logits.detach(), counts, kl_weight=0.0, **options)
    full = belief_matching_loss(logits.detach(), counts, kl_weight=0.7, **options)
    expected = data + 0.7 * dirichlet_kl(logits.detach(), prior.log())
    torch.testing.assert_close(full, expected, rtol=1e-12, atol=1e-12)


def test_loss_without_votes_is_zero_at_the_prior_and_positive_elsewhere():
    _, _, prior = batch()
    nothing = torch.zeros_like(prior)
    options = {"prior": prior, "kl_weight": 1.0, "reduction": "none"}
    assert belief_matching_loss(prior.log(), nothing, **options).abs().max() < 1e-12
    assert (belief_matching_loss(prior.log() + 0.1, nothing, **options) > 1e-4).all()


def test_loss_does_not_depend_on_the_order_of_the_classes():
    logits, counts, prior = batch()
    order = torch.randperm(7)
    loss = belief_matching_loss(logits, counts, prior=prior)
    shuffled = belief_matching_loss(logits[:, order], counts[:, order], prior=prior[:, order])
    torch.testing.assert_close(loss, shuffled, rtol=1e-14, atol=0)


def test_votes_add_up():
    """The data term is linear in the votes: two annotators are one row with both votes."""
    logits, first, _ = batch(seed=1)
    _, second, _ = batch(seed=2)
    options = {"kl_weight": 0.0, "reduction": "none"}
    both = belief_matching_loss(logits, first + second, **options)
    apart = belief_matching_loss(logits, first, **options)
    apart = apart + belief_matching_loss(logits, second, **options)
    torch.testing.assert_close(both, apart, rtol=1e-13, atol=0)


def test_more_votes_weaken_the_prior():
    means = []
    for votes in (1.0, 5.0, 50.0):
        counts = torch.tensor([votes, 0.0, 0.0], dtype=DOUBLE)
        posterior = 1 + counts / 0.1
        logits = posterior.log().requires_grad_()
        belief_matching_loss(logits, counts, kl_weight=0.1).backward()
        assert logits.grad.abs().max() < 1e-14
        means.append((posterior / posterior.sum())[0].item())
    assert means == sorted(means) and means[-1] > 0.99


def test_data_gradient_tends_to_that_of_softmax_cross_entropy_as_alpha_grows():
    logits, _, _ = batch()
    targets = torch.tensor([0, 6, 2, 3, 1])
    (reference,) = torch.autograd.grad(F.cross_entropy(logits, targets), logits)
    for shift, tolerance in ((5.0, 2e-1), (10.0, 2e-3), (30.0, 1e-11)):
        shifted = (logits.detach() + shift).requires_grad_()
        loss = belief_matching_loss(shifted, targets, kl_weight=0.0)
        (gradient,) = torch.autograd.grad(loss, shifted)
        torch.testing.assert_close(gradient, reference, rtol=0, atol=tolerance)
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets), rtol=1e-10, atol=0)


def test_target_confidence_is_the_mean_of_the_optimum():
    for classes in (2, 10, 1000):
        for confidence in (0.6, 0.9, 0.999):
            for prior in (1.0, 0.1):
                kl_weight = (1 - confidence) / (prior * (confidence * classes - 1))
                posterior = torch.full((1, classes), prior, dtype=DOUBLE)
                posterior[0, 1] += 1 / kl_weight
                assert posterior[0, 1] / posterior.sum() == pytest.approx(confidence, rel=1e-12)
                logits = posterior.log().requires_grad_()
                options = {"target_confidence": confidence, "prior": prior}
                belief_matching_loss(logits, torch.tensor([1]), **options).backward()
                assert logits.grad.abs().max() < 1e-13


def test_target_mean_is_that_of_label_smoothing_at_the_matched_strength():
    classes, kl_weight = 10, 0.01
    smoothing = kl_weight * classes / (1 + kl_weight * classes)
    posterior = torch.ones(classes, dtype=DOUBLE)
    posterior[4] += 1 / kl_weight
    smoothed = F.one_hot(torch.tensor(4), classes).to(DOUBLE) * (1 - smoothing) + smoothing / classes
    torch.testing.assert_close(Belief(posterior.log()).probs, smoothed, rtol=1e-14, atol=0)


def test_a_single_class_leaves_nothing_to_learn():
    logits = torch.tensor([[3.0], [-5.0], [40.0]], requires_grad=True)
    loss = belief_matching_loss(logits, torch.zeros(3, dtype=torch.long), reduction="none")
    loss.sum().backward()
    assert loss.abs().max() < 1e-12 and logits.grad.abs().max() < 1e-12


def test_matches_torch_distributions_where_those_are_accurate():
    logits, counts, prior = batch(scale=0.8)
    alpha = logits.detach().exp()
    drop = torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha)
    expected = (counts * drop).sum(-1)
    expected = expected + 0.05 * kl_divergence(Dirichlet(alpha), Dirichlet(prior))
    loss = belief_matching_loss(logits, counts, prior=prior, kl_weight=0.05, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
