"""The contract of the kernels of the loss: the paper's formula in sixty digits, laws, torch's semantics."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Dirichlet, kl_divergence

import oracle
from beliefmatch import Belief, BeliefMatchingLoss, belief_matching_loss, dirichlet_kl
from kernel_contract import HYPOTHESIS, assert_exact, computing_with, loss_and_gradient, not_the_reference

pytestmark = pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight")
DOUBLE = torch.float64
DTYPES = [torch.float32, torch.float64]
FLOATING = [torch.float16, torch.bfloat16, *DTYPES]


# The formula


def uniform(scale):
    return lambda classes, label, kl_weight: scale * (2 * torch.rand(classes) - 1)


def near_optimum(distance):
    def make(classes, label, kl_weight):
        posterior = torch.ones(classes, dtype=DOUBLE)
        posterior[label] += 1 / kl_weight
        return posterior.log() + distance * torch.randn(classes, dtype=DOUBLE)

    return make


def one_hot(high, low):
    return lambda classes, label, kl_weight: torch.where(
        torch.arange(classes) == label, float(high), float(low)
    )


LOGITS = {
    "uniform 80": uniform(80),
    "uniform 20": uniform(20),
    "uniform 1": uniform(1),
    "zero": uniform(0),
    "all 20": one_hot(20, 20),  # where the formula as printed fails in float32
    "all 80": one_hot(80, 80),
    "all -80": one_hot(-80, -80),
    "all low": lambda classes, label, kl_weight: -70 + 3 * torch.rand(classes),
    "label up": one_hot(80, -80),
    "label down": one_hot(-80, 80),
    "label lost": one_hot(-30, 3),
    "label ahead": one_hot(20, 10),
    "label far ahead": one_hot(80, 40),
    "huge": one_hot(150, -10),
    "hugely wrong": one_hot(-60, 150),
    "off the optimum": near_optimum(1.0),
    "near optimum": near_optimum(0.3),
    "nearer the optimum": near_optimum(0.1),
    "at optimum": near_optimum(1e-3),
}


OF_A_THOUSAND = ("uniform 80", "uniform 1", "label ahead", "near optimum", "at optimum")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("classes", "kind"), [*product((2, 10, 100), LOGITS), *product((1000,), OF_A_THOUSAND)]
)
def test_class_ids_match_the_oracle(classes, kind, dtype, kernel):
    torch.manual_seed(classes % 1000)
    for kl_weight in (1e-4, 3e-3, 1.0) if classes < 1000 else (1e-4, 0.3):
        label = torch.randint(classes, ()) if classes < 1000 else torch.tensor(7)
        assert_exact(LOGITS[kind](classes, label, kl_weight).to(dtype), label, kl_weight=kl_weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prior", [0.3, 4.0, 20.0])
def test_other_priors_match_the_oracle(prior, dtype, kernel):
    torch.manual_seed(0)
    for kl_weight in (1e-4, 3e-3, 1.0):
        optimum = torch.full((6,), prior, dtype=DOUBLE)
        optimum[4] += 1 / kl_weight
        for spread in (1e-3, 0.1, 0.3, 1.0, 5.0, 25.0):
            logits = optimum.log() + spread * torch.randn(6, dtype=DOUBLE)
            assert_exact(logits.to(dtype), torch.tensor(4), prior, kl_weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("classes", [6, 120])
def test_priors_of_one_number_a_class_match_the_oracle(classes, dtype, kernel):
    torch.manual_seed(classes)
    prior, label = 0.25 + 3.75 * torch.rand(classes, dtype=DOUBLE), torch.tensor(4)
    for kl_weight, spread in product((1e-4, 3e-3, 1.0), (1e-3, 0.1, 1.0, 5.0)):
        optimum = prior + F.one_hot(label, classes) / kl_weight
        logits = optimum.log() + spread * torch.randn(classes, dtype=DOUBLE)
        assert_exact(logits.to(dtype), label, prior, kl_weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_votes_and_uneven_priors_match_the_oracle(seed, dtype, kernel):
    torch.manual_seed(seed)
    classes = (2, 5, 40)[seed % 3]
    counts = torch.randint(0, 30, (classes,)).float() + torch.rand(classes)
    prior = torch.rand(classes).mul(6).sub(3).exp().double()
    logits = 40 * (torch.rand(classes) - 0.5)
    for kl_weight in (0.0, 1e-4, 0.02, 1.0):
        assert_exact(logits.to(dtype), counts, prior, kl_weight)
        assert_exact(logits.to(dtype), counts, 1.0, kl_weight)


@pytest.mark.parametrize(
    ("logits", "counts", "prior", "kl_weight"),
    [
        ([6.5525, 5.7071, 0.0], [0.7, 0.3, 0.0], 1.0, 1e-3),  # mixed labels, at the optimum
        ([9.4538, 8.6067, 0.0], [0.7, 0.3, 0.0], 1.0, 1e-4),
        ([12.0, 12.0, 12.0], [40.0, 40.0, 40.0], 1.0, 0.01),
        ([0.0, 0.0, 0.0], [1e-6, 2e-6, 3e-6], 1.0, 1.0),
        ([4.6052, -0.6931, -0.6931], [1.0, 0.0, 0.0], 0.5, 0.01),
        ([0.001, -0.001, 0.0005], [0.0, 0.0, 0.0], 1.0, 0.01),  # no votes, near the prior
        ([10.01, 9.99, 0.3], [1.0, 0.0, 0.0], [22026.0, 22026.0, 1.35], 1.0),  # a teacher's prior
        ([19.99, 20.0, 20.0], [0.0, 0.0, 0.0], 1e6, 1.0),
    ],
)
def test_digits_survive_where_loss_or_gradient_nearly_vanishes(logits, counts, prior, kl_weight, kernel):
    if kernel == "lean":
        pytest.skip("votes are weighed in float32: near their optimum its rounding is left")
    beta = torch.tensor(prior, dtype=DOUBLE) if isinstance(prior, list) else prior
    assert_exact(torch.tensor(logits), torch.tensor(counts), beta, kl_weight)


def test_near_the_optimum_of_votes_the_lean_kernel_is_exact_to_the_rounding_of_its_terms():
    """The gradient is a difference of terms of the size of the votes."""
    torch.manual_seed(0)
    counts, prior = torch.tensor([[3.0, 0.5, 11.0, 0.0]]), 1.0
    for kl_weight, distance in product((1e-3, 0.05, 1.0), (0.3, 1e-2, 1e-4)):
        logits = ((prior + counts / kl_weight).log() + distance * torch.randn(1, 4)).float()
        with computing_with("lean"):
            _, gradient = loss_and_gradient(logits, counts, kl_weight=kl_weight)
        exact = oracle.gradient(logits[0].tolist(), counts[0].tolist(), [prior] * 4, kl_weight)
        errors = [abs(own - float(true)) for own, true in zip(gradient[0].tolist(), exact, strict=True)]
        assert max(errors) < 1e-6 * counts.sum()


def test_ignored_rows_stay_zero_in_second_derivatives(kernel):
    logits = torch.randn(3, 4)
    logits[1] = math.nan
    z = logits.requires_grad_()
    loss = belief_matching_loss(z, torch.tensor([0, -100, 2]))
    (gradient,) = torch.autograd.grad(loss, z, create_graph=True)
    (second,) = torch.autograd.grad(gradient[0, 0] + gradient[2, 1], z)
    assert (gradient[1] == 0).all() and (second[1] == 0).all()
    assert gradient[[0, 2]].isfinite().all() and (second[[0, 2]] != 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gap", [5.0, 12.0, 40.0, 70.0])
@pytest.mark.parametrize("top", [-20.0, -2.0, 0.0, 3.0, 20.0])
def test_every_component_keeps_its_digits_where_the_label_dominates(top, gap, dtype, kernel):
    """λ = 0: nothing but shares is left of the gradient."""
    logits = torch.tensor([[top, top - gap, top - gap - 1.5]], dtype=dtype)
    _, gradient = loss_and_gradient(logits, torch.tensor([0]), kl_weight=0.0)
    exact = oracle.gradient(logits[0].tolist(), [1.0, 0.0, 0.0], [1.0] * 3, 0.0)
    for received, expected in zip(gradient[0].tolist(), exact, strict=True):
        assert oracle.relative_error(received, expected) < {torch.float32: 2e-6, DOUBLE: 1e-11}[dtype]


WITHOUT_DIVERGENCE = ([0.7, -71.0], [20.0, 4.0], [-3.0, 2.0], [-30.0, -60.0], [3.0, 3.0])
WITH_POLES = [[3.0, low, -1.0] for low in (-89.0, -95.0, -96.5)]


@pytest.mark.parametrize(
    ("logits", "kl_weight"), [*product(WITHOUT_DIVERGENCE, [0.0]), *product(WITH_POLES, [1e-4])]
)
def test_digits_survive_without_the_divergence_and_where_the_pole_alone_would_overflow(
    logits, kl_weight, kernel
):
    """λ/α fits float32 although 1/α does not."""
    if kernel == "lean" and kl_weight > 0:
        pytest.skip("1/α is a float32 number there, and saturates")
    for label, dtype in product((0, 1) if kl_weight == 0 else (0,), DTYPES):
        assert_exact(torch.tensor(logits, dtype=dtype), torch.tensor(label), kl_weight=kl_weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("logits", "counts", "prior", "kl_weight"),
    [
        ([0.0, 5.0, -90.0], [1.0, 0.0, 0.0], 1.0, 1e-6),
        ([0.0, 5.0, -90.0], [1.0, 0.0, 1e-4], 1.0, 1e-6),
        ([-90.0, 5.0, -91.0], [1e-3, 2.0, 0.0], 0.7, 1e-6),
        ([0.0, -90.0, 1.0], [2.0, 0.0, 1.0], [0.5, 1.5, 3.0], 1e-4),
        ([0.0, 5.0, -105.0], [1.0, 3.0, 0.0], 1.0, 1e-9),
    ],
)
def test_counts_match_the_oracle_where_the_pole_alone_would_overflow(
    logits, counts, prior, kl_weight, dtype, kernel
):
    """Votes of zero times a pole beyond float32 are zero, and λ/α fits float32 although 1/α does not."""
    beta = torch.tensor(prior, dtype=DOUBLE) if isinstance(prior, list) else prior
    z, votes = torch.tensor(logits, dtype=dtype), torch.tensor(counts, dtype=dtype)
    assert_exact(z, votes, beta, kl_weight)
    loss, _ = loss_and_gradient(z[None], votes[None], prior=beta, kl_weight=kl_weight)
    exact = oracle.loss(z.tolist(), votes.tolist(), [prior] * 3 if beta is prior else prior, kl_weight)
    assert oracle.relative_error(loss.item(), exact) < 1e-5


@pytest.mark.parametrize("low", [-140.0, -200.0, -1e30])
def test_counts_saturate_where_the_prior_alone_leaves_the_type(low, kernel):
    largest = torch.finfo(torch.float32).max
    loss, gradient = loss_and_gradient(torch.tensor([[0.0, 5.0, low]]), torch.tensor([[1.0, 0.0, 0.0]]))
    assert loss.item() == largest and gradient[0, 2].item() == -largest
    assert gradient[0, 0] < 0 < gradient[0, 1] < 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_exact_to_the_rounding_of_its_gradient(dtype, kernel):
    torch.manual_seed(0)
    logits = (8 * torch.randn(5, 7)).clamp(-8, 12).to(dtype)
    targets = torch.randint(7, (5,))
    losses, gradients = loss_and_gradient(logits, targets, reduction="none")
    assert losses.dtype == torch.float32 and gradients.dtype == dtype
    for row, label, loss, gradient in zip(logits, targets, losses, gradients, strict=True):
        arguments = row.tolist(), [float(k == label) for k in range(7)], [1.0] * 7, 0.01
        assert oracle.relative_error(gradient.tolist(), oracle.gradient(*arguments)) < torch.finfo(dtype).eps
        assert oracle.relative_error(loss.item(), oracle.loss(*arguments)) < 1e-6


def test_each_kernel_computes_what_it_supports_by_itself(kernel):
    """Or the contract would compare the reference with itself."""
    logits, ids = torch.randn(4, 5), torch.tensor([0, 1, 2, 4])
    if kernel == "reference":
        with pytest.raises(AssertionError), not_the_reference():
            belief_matching_loss(logits, ids)
        return
    with not_the_reference():
        assert belief_matching_loss(logits, ids, weight=torch.rand(5), ignore_index=1).isfinite()
        assert belief_matching_loss(logits, torch.rand(4, 5), prior=torch.rand(5) + 0.1).isfinite()


# Laws


def random_rows(rows=5, classes=7, seed=0, scale=1.5):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=DOUBLE)
    counts = torch.rand(rows, classes, generator=generator, dtype=DOUBLE) * 3
    prior = 0.2 + 2 * torch.rand(rows, classes, generator=generator, dtype=DOUBLE)
    return logits, counts, prior


def rows_of(logits, targets, **options):
    return belief_matching_loss(logits, targets, reduction="none", **options)


@pytest.mark.parametrize("kl_weight", [1e-4, 0.01, 0.5, 1.0])
def test_gradient_vanishes_at_the_bayes_posterior_which_is_the_minimum(kl_weight, kernel):
    _, counts, prior = random_rows()
    posterior, options = (prior + counts / kl_weight).log(), {"prior": prior, "kl_weight": kl_weight}
    _, gradient = loss_and_gradient(posterior, counts, reduction="sum", **options)
    assert gradient.abs().max() < 1e-14
    torch.manual_seed(0)
    least = rows_of(posterior, counts, **options)
    for _ in range(10):
        elsewhere = posterior + 0.3 * torch.randn_like(posterior)
        assert (rows_of(elsewhere, counts, **options) > least).all()


def test_loss_is_the_divergence_from_the_posterior_plus_a_constant(kernel):
    """ℓ(q) = λ KL(q ‖ Dir(β + c/λ)) − λ ln Z, with Z the ratio of the normalisers."""
    logits, counts, prior = random_rows()
    posterior = prior + counts / 0.3
    divergence = kl_divergence(Dirichlet(logits.exp()), Dirichlet(posterior))

    def log_normaliser(alpha):
        return torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))

    expected = 0.3 * (divergence - log_normaliser(posterior) + log_normaliser(prior))
    loss = rows_of(logits, counts, prior=prior, kl_weight=0.3)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-11)


def test_loss_adds_the_divergence_from_the_prior_to_an_expected_cross_entropy(kernel):
    logits, counts, prior = random_rows()
    alpha = logits.exp()
    drop = torch.digamma(alpha.sum(-1, keepdim=True)) - torch.digamma(alpha)
    data = rows_of(logits, counts, kl_weight=0.0)
    torch.testing.assert_close(data, (counts * drop).sum(-1), rtol=1e-11, atol=0)
    full = rows_of(logits, counts, prior=prior, kl_weight=0.7)
    torch.testing.assert_close(full, data + 0.7 * dirichlet_kl(logits, prior.log()), rtol=1e-12, atol=1e-12)
    # under a flat prior that is −λ times the entropy of the belief, up to λ lnΓ(K)
    entropy = Belief(logits).differential_entropy() + math.lgamma(7)
    flat = rows_of(logits, counts, kl_weight=0.2)
    torch.testing.assert_close(flat, data - 0.2 * entropy, rtol=1e-12, atol=1e-12)


def test_loss_without_votes_is_zero_at_the_prior_and_positive_elsewhere(kernel):
    _, _, prior = random_rows()
    nothing, options = torch.zeros_like(prior), {"prior": prior, "kl_weight": 1.0}
    assert rows_of(prior.log(), nothing, **options).abs().max() < 1e-12
    assert (rows_of(prior.log() + 0.1, nothing, **options) > 1e-4).all()


def test_loss_does_not_depend_on_the_order_of_the_classes(kernel):
    logits, counts, prior = random_rows()
    order = torch.randperm(7)
    loss = belief_matching_loss(logits, counts, prior=prior)
    shuffled = belief_matching_loss(logits[:, order], counts[:, order], prior=prior[:, order])
    torch.testing.assert_close(loss, shuffled, rtol=1e-14, atol=0)


def test_data_gradient_tends_to_that_of_softmax_cross_entropy_as_alpha_grows(kernel):
    logits, targets = random_rows()[0].requires_grad_(), torch.tensor([0, 6, 2, 3, 1])
    (expected,) = torch.autograd.grad(F.cross_entropy(logits, targets), logits)
    for shift, tolerance in ((5.0, 2e-1), (10.0, 2e-3), (30.0, 1e-11)):
        loss, gradient = loss_and_gradient(logits.detach() + shift, targets, kl_weight=0.0)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets).detach(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_target_confidence_is_the_mean_of_the_optimum(classes, kernel):
    for confidence, prior in product((0.6, 0.9, 0.999), (1.0, 0.1)):
        kl_weight = (1 - confidence) / (prior * (confidence * classes - 1))
        posterior = torch.full((1, classes), prior, dtype=DOUBLE)
        posterior[0, 1] += 1 / kl_weight
        assert posterior[0, 1] / posterior.sum() == pytest.approx(confidence, rel=1e-12)
        options = {"target_confidence": confidence, "prior": prior}
        _, gradient = loss_and_gradient(posterior.log(), torch.tensor([1]), **options)
        assert gradient.abs().max() < 1e-13


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_a_single_class_leaves_nothing_to_learn(dtype, kernel):
    logits = torch.tensor([[-30.0], [-3.0], [0.0], [2.0], [40.0]], dtype=dtype)
    for labels in (torch.zeros(5).long(), torch.rand(5, 1)):
        loss, gradient = loss_and_gradient(logits, labels, reduction="none")
        assert loss.abs().max() < 1e-12 and gradient.double().abs().max() < 1e-12


# What CrossEntropyLoss means by its options


def slow(logits, targets, *, kl_weight=0.01, prior=1.0, weight=None, ignore_index=-100, reduction="mean"):
    """Sample by sample with torch's gamma functions; classes are moved last."""
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    classes, counted = rows.shape[1], targets.is_floating_point()
    labels = targets.movedim(1, -1).reshape(-1, classes) if counted else targets.reshape(-1)
    beta = torch.as_tensor(prior, dtype=DOUBLE)
    if beta.dim() == logits.dim():
        beta = beta.expand_as(logits).movedim(1, -1).reshape(-1, classes)
    values, weights = [], []
    for row, label, b in zip(rows, labels, beta.expand(len(rows), classes), strict=True):
        if not counted and label == ignore_index:
            values.append(row.sum() * 0)
            weights.append(0.0)
            continue
        counts = label if counted else F.one_hot(label, classes).to(DOUBLE)
        class_weight = torch.ones(classes, dtype=DOUBLE) if weight is None else weight
        mean_weight = (counts * class_weight).sum() / counts.sum()
        alpha, total = row.exp(), row.exp().sum()
        log_mean = torch.digamma(alpha) - torch.digamma(total)
        kl = torch.lgamma(total) - torch.lgamma(b.sum()) + torch.lgamma(b).sum()
        kl = kl - torch.lgamma(alpha).sum() + ((alpha - b) * log_mean).sum()
        values.append(-(class_weight * counts * log_mean).sum() + mean_weight * kl_weight * kl)
        weights.append(1.0 if counted else mean_weight.item())
    losses = torch.stack(values)
    if reduction == "none":
        return losses.reshape(targets.movedim(1, -1).shape[:-1] if counted else targets.shape)
    return losses.sum() / sum(weights) if reduction == "mean" else losses.sum()


def sample(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=DOUBLE)
    ids = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    counts = 0.1 + torch.rand(*shape, generator=generator, dtype=DOUBLE)
    weight = 0.3 + torch.rand(shape[1], generator=generator, dtype=DOUBLE)
    return logits.requires_grad_(), ids, counts, weight


SHAPES = [(5, 3), (4, 7, 2), (3, 4, 2, 5)]
REDUCTIONS = ["mean", "sum", "none"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_targets_weights_ignored_and_reductions_match_a_slow_loop(shape, weighted, reduction, kernel):
    logits, ids, counts, weight = sample(shape)
    ids.view(-1)[::3] = 1
    common = {"weight": weight if weighted else None, "reduction": reduction}
    for targets, options in ((ids, {"ignore_index": 1}), (counts, {"kl_weight": 0.2})):
        loss = belief_matching_loss(logits, targets, **common, **options)
        expected = slow(logits, targets, **common, **options)
        torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-13)
        upstream = torch.rand_like(loss)
        (gradient,) = torch.autograd.grad(loss, logits, upstream)
        (exact,) = torch.autograd.grad(expected, logits, upstream)
        torch.testing.assert_close(gradient, exact, rtol=1e-6, atol=1e-8)  # torch's trigamma has eight digits


@pytest.mark.parametrize("shape", SHAPES)
def test_priors_per_class_and_per_sample_match_a_slow_loop(shape, kernel):
    logits, ids, counts, per_class = sample(shape)
    for prior in (0.5, torch.tensor(0.5), per_class, counts, counts[:, :1]):
        beta = prior
        if prior is per_class and len(shape) > 2:
            beta = prior.view(1, -1, *[1] * (len(shape) - 2))
        loss = belief_matching_loss(logits, ids, prior=prior, kl_weight=0.2)
        torch.testing.assert_close(loss, slow(logits, ids, prior=beta, kl_weight=0.2), rtol=1e-11, atol=0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_options_follow_cross_entropy_at_large_alpha(reduction, kernel):
    """With λ = 0 and huge concentrations the loss is cross-entropy: torch itself is the oracle."""
    for shape in SHAPES:
        logits, ids, counts, weight = sample(shape)
        ids.view(-1)[::4] = 2
        for targets, options in ((ids, {"ignore_index": 2}), (counts, {})):
            options = {"weight": weight, "reduction": reduction, **options}
            ours = belief_matching_loss(logits + 40, targets, kl_weight=0, **options)
            torch.testing.assert_close(
                ours, F.cross_entropy(logits, targets, **options), rtol=1e-12, atol=1e-12
            )


def test_one_sample_without_a_batch_dimension_equals_a_batch_of_one(kernel):
    logits, ids, counts, weight = sample((1, 6))
    for targets, prior, reduction in product((ids, counts), (1.0, weight), ("mean", "none")):
        options = {"weight": weight, "prior": prior, "reduction": reduction}
        single = belief_matching_loss(logits[0], targets[0], **options)
        batched = belief_matching_loss(logits, targets, **options)
        torch.testing.assert_close(single, batched.view(()), rtol=1e-14, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_one_hot_counts_equal_class_ids_sample_by_sample(weighted, kernel):
    logits, ids, _, weight = sample((6, 4))
    weight = weight if weighted else None
    by_ids, by_counts = (rows_of(logits, y, weight=weight) for y in (ids, F.one_hot(ids, 4).to(DOUBLE)))
    torch.testing.assert_close(by_ids, by_counts, rtol=1e-13, atol=0)


def test_mean_of_nothing_is_nan_as_in_torch_and_a_sum_of_nothing_is_zero(kernel):
    logits = torch.randn(3, 4, requires_grad=True)
    ignored = torch.full((3,), -100)
    assert belief_matching_loss(logits, ignored).isnan() and F.cross_entropy(logits, ignored).isnan()
    belief_matching_loss(logits, ignored, reduction="sum").backward()
    assert (logits.grad == 0).all()
    empty = torch.zeros(0, 5, requires_grad=True)
    for targets in (torch.zeros(0, dtype=torch.long), torch.zeros(0, 5)):
        assert belief_matching_loss(empty, targets).isnan()
        assert rows_of(empty, targets).shape == (0,)
        loss, gradient = loss_and_gradient(empty, targets, reduction="sum")
        assert loss == 0 and gradient.shape == (0, 5)


def test_what_is_not_finite_stays_in_its_row_and_is_not_hidden(kernel):
    logits = torch.randn(5, 4)
    logits[0, 1], logits[1, 2], logits[2, 0], logits[3, 3] = math.nan, math.inf, -math.inf, math.nan
    targets = torch.tensor([1, 3, 1, -100, 2])
    loss, gradient = loss_and_gradient(logits, targets, reduction="none")
    assert loss.isnan().tolist() == [True, True, False, False, False]
    assert gradient.isnan().all(1).tolist() == [True, True, False, False, False]
    assert loss[2] == torch.finfo(torch.float32).max == -gradient[2, 0]
    assert loss[3] == 0 and (gradient[3] == 0).all()
    assert belief_matching_loss(logits, targets).isnan()
    alone = loss_and_gradient(logits[4:], targets[4:])
    torch.testing.assert_close(alone[0], loss[4])
    torch.testing.assert_close(alone[1][0], gradient[4], rtol=1e-5, atol=1e-7)
    seen, unseen = loss_and_gradient(logits[3:], targets[3:]), loss_and_gradient(logits[4:], targets[4:])
    assert torch.equal(seen[0], unseen[0]) and (seen[1][0] == 0).all()


def test_a_row_whose_logits_are_all_minus_infinity_has_no_loss(kernel):
    logits = random_rows(4, 5)[0].detach().float()
    logits[1] = -math.inf
    for targets in (torch.tensor([0, 1, 2, 3]), torch.eye(5)[:4]):
        loss, gradient = loss_and_gradient(logits, targets, reduction="none")
        assert loss.isnan().tolist() == [False, True, False, False]
        assert gradient.isnan().all(1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("prior", [1e35, 1e300])
def test_a_huge_prior_has_a_loss_that_is_a_number(prior, kernel):
    loss, gradient = loss_and_gradient(
        random_rows(4, 5)[0].detach().float(), torch.tensor([0, 1, 2, 3]), prior=prior, reduction="none"
    )
    assert (loss > 1e33).all()
    assert loss.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_ids_of_any_integer_type_are_ids_and_not_mistaken_for_the_ignored_one(dtype, kernel):
    """In uint8 the default ignore_index of −100 would be 156."""
    ids = torch.tensor([1, 2, 100 if dtype is torch.int8 else 156])
    logits = torch.randn(3, 200)
    expected = rows_of(logits, ids, kl_weight=1e-3)
    assert torch.equal(rows_of(logits, ids.to(dtype), kl_weight=1e-3), expected)
    assert (expected > 0).all()


def test_samples_without_votes_have_finite_derivatives():
    tensors = torch.randn(3, 4), torch.zeros(3, 4), torch.rand(4)
    logits, counts, weight = (x.requires_grad_() for x in tensors)
    belief_matching_loss(logits, counts, weight=weight).backward()
    assert all(x.grad.isfinite().all() for x in tensors)


def test_module_equals_function_and_moves_with_its_tensors():
    logits, ids, counts, weight = sample((5, 3))
    options = {"kl_weight": 0.3, "prior": weight, "weight": weight, "reduction": "sum"}
    module = BeliefMatchingLoss(**options)
    assert torch.equal(module(logits, ids), belief_matching_loss(logits, ids, **options))
    assert set(module.state_dict()) == {"weight", "prior"}
    assert module.to(torch.float32).weight.dtype == torch.float32
    assert "kl_weight=0.3" in repr(module) and "reduction=sum" in repr(module)
    assert BeliefMatchingLoss().kl_weight == 0.01 and BeliefMatchingLoss().state_dict() == {}
    confident = BeliefMatchingLoss(target_confidence=0.9)
    assert torch.equal(confident(logits, counts), belief_matching_loss(logits, counts, target_confidence=0.9))
    assert "target_confidence=0.9" in repr(confident)
    trained = BeliefMatchingLoss(prior=torch.nn.Parameter(torch.ones(3)))
    assert [name for name, _ in trained.named_parameters()] == ["prior"]
    trained(logits.float(), ids).backward()
    assert trained.prior.grad.abs().sum() > 0


@settings(max_examples=60, **HYPOTHESIS)
@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=3),
    rows=st.integers(0, 4),
    classes=st.integers(1, 6),
    use_counts=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_any_layout_equals_its_samples_laid_out_in_rows(
    quick_kernel, shape, rows, classes, use_counts, dtype
):
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(rows, classes, *shape, generator=generator).to(dtype)
    ids = torch.randint(classes, (rows, *shape), generator=generator)
    counts = torch.rand(rows, classes, *shape, generator=generator).to(dtype)
    flat_logits, flat_counts = (x.movedim(1, -1).reshape(-1, classes) for x in (logits, counts))
    value = rows_of(logits, counts if use_counts else ids)
    expected = rows_of(flat_logits, flat_counts if use_counts else ids.reshape(-1))
    assert value.shape == (rows, *shape)
    torch.testing.assert_close(value.reshape(-1), expected, rtol=1e-6, atol=1e-7)


# The ends of the types


@st.composite
def extreme_batches(draw):
    dtype, classes = draw(st.sampled_from(FLOATING)), draw(st.integers(1, 6))
    largest = torch.finfo(dtype).max
    values = st.one_of(
        st.sampled_from([0.0, largest, -largest, 88.7, -88.7, -95.0, -104.0, 710.0, -746.0, 1e-30]),
        st.floats(-1e4, 1e4),
        st.floats(-30, 30),
        st.floats(-largest, largest),
    )
    rows = draw(st.lists(st.lists(values, min_size=classes, max_size=classes), min_size=3, max_size=5))
    logits = torch.tensor(rows, dtype=DOUBLE).clamp(-largest, largest).to(dtype)
    options = {
        "kl_weight": draw(st.sampled_from([0.0, 1e-4, 0.01, 1.0, 30.0])),
        "prior": draw(st.sampled_from([1.0, 1e-3, 50.0])),
    }
    targets = torch.full((len(logits),), draw(st.integers(0, classes - 1)))
    return logits, targets, options


@settings(max_examples=80, **HYPOTHESIS)
@given(case=extreme_batches(), use_counts=st.booleans())
def test_every_finite_input_gives_a_finite_loss_and_gradient(quick_kernel, case, use_counts):
    logits, targets, options = case
    if use_counts:
        targets = 0.5 + F.one_hot(targets, logits.shape[1]).to(logits.dtype)
    for reduction in REDUCTIONS:
        z = logits.detach().requires_grad_()
        loss = belief_matching_loss(z, targets, reduction=reduction, **options)
        (gradient,) = torch.autograd.grad(loss.sum(), z)
        assert loss.isfinite().all() and (loss >= 0).all()
        assert gradient.isfinite().all() and gradient.dtype == logits.dtype


def test_loss_and_gradient_saturate_where_the_truth_leaves_the_type(kernel):
    largest = torch.finfo(torch.float32).max
    for level in (-90.0, -200.0):
        loss, gradient = loss_and_gradient(torch.tensor([[level, 0.0, 1.0]]), torch.tensor([0]))
        assert loss.item() == largest and gradient[0, 0].item() == -largest
    for logits, counts in (([largest, 1.13e38, 0.0], [0.0, 4.0, 0.0]), ([1e37, 1e37, 0.0], [0.0, 40.0, 0.0])):
        for prior in (1.0, torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1e6, 1e-6, 1.0])):
            loss = belief_matching_loss(torch.tensor(logits), torch.tensor(counts), prior=prior)
            assert loss.isfinite() and loss > 1e35  # upwards, and not to zero
    huge = torch.tensor([3e38, 3e38])
    assert belief_matching_loss(torch.tensor([-11.0, 1.67]), huge).item() == largest
    assert belief_matching_loss(
        torch.zeros(3, 4), torch.tensor([0, 1, 2]), kl_weight=1e38, prior=1e39
    ).isfinite()


def test_losses_saturate_row_by_row_and_again_where_rows_are_added_or_weighted(kernel):
    """A row beyond the type counts as the largest number in a mean; a sum of two such rows is that number."""
    largest = torch.finfo(torch.float32).max
    logits, targets = (
        torch.tensor([[-200.0, 0.0, 1.0], [-95.0, 3.0, 1.0], [1.0, 2.0, 0.5]]),
        torch.zeros(3).long(),
    )
    for labels in (targets, F.one_hot(targets, 3).float()):
        rows, total, mean = (
            belief_matching_loss(logits, labels, reduction=reduction) for reduction in ("none", "sum", "mean")
        )
        assert rows.tolist() == [largest, largest, pytest.approx(1.0, abs=1.0)]
        assert total.item() == largest and mean.item() == pytest.approx(2 / 3 * largest, rel=1e-6)
    weighted = rows_of(logits, targets, weight=torch.tensor([3.0, 1.0, 1.0]))
    assert weighted[:2].tolist() == [largest, largest]


def test_gradient_scaler_sees_that_its_scale_is_too_large(kernel):
    """Finite by itself; multiplied by a loss scale beyond the type it must overflow, not saturate."""
    logits = torch.tensor([[-8.0, 0.0, 1.0]], dtype=torch.float16)
    _, plain = loss_and_gradient(logits, torch.tensor([0]))
    _, scaled = loss_and_gradient(logits, torch.tensor([0]), torch.tensor(65536.0))
    assert plain.isfinite().all() and plain.abs().max() > 1000
    assert scaled[0, 0].isinf()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_batch_whose_rows_are_all_ignored_has_the_gradient_zero(reduction, kernel):
    logits, ids = torch.randn(4, 5), torch.full((4,), -100)
    _, gradient = loss_and_gradient(logits, ids, reduction=reduction)
    _, overflowing = loss_and_gradient(
        logits, ids, torch.full((4,) if reduction == "none" else (), torch.inf), reduction=reduction
    )
    assert gradient.eq(0).all() and overflowing.eq(0).all()
