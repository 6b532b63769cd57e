"""Loss and gradient agree with the paper's formula in sixty digits, at any logit."""

import pytest
import torch

import oracle
from beliefmatch import belief_matching_loss
from kernel_pair import MISSING, using

GRADIENT_BAR = {torch.float32: 2e-6, torch.float64: 1e-11}
LOSS_BAR = {torch.float32: 1e-5, torch.float64: 1e-11}


def uniform(scale):
    return lambda classes, label, weight: scale * (2 * torch.rand(classes) - 1)


def near_optimum(distance):
    def make(classes, label, weight):
        posterior = torch.ones(classes, dtype=torch.float64)
        posterior[label] += 1 / weight
        return posterior.log() + distance * torch.randn(classes, dtype=torch.float64)

    return make


def one_hot(high, low):
    def make(classes, label, weight):
        return torch.where(torch.arange(classes) == label, float(high), float(low))

    return make


LOGITS = {
    "uniform 80": uniform(80),
    "uniform 20": uniform(20),
    "uniform 1": uniform(1),
    "zero": uniform(0),
    "all 80": one_hot(80, 80),
    "all -80": one_hot(-80, -80),
    "label up": one_hot(80, -80),
    "label down": one_hot(-80, 80),
    "label ahead": one_hot(20, 10),
    "label far ahead": one_hot(80, 40),
    "near optimum": near_optimum(0.3),
    "at optimum": near_optimum(1e-3),
}


def check_against_oracle(logits, counts, prior, weight, dtype):
    logits = logits.to(dtype).requires_grad_()
    beta = prior if isinstance(prior, torch.Tensor) else torch.full((len(logits),), prior)
    loss = belief_matching_loss(logits, counts.to(dtype), prior=prior, kl_weight=weight)
    loss.backward()
    arguments = (logits.tolist(), counts.tolist(), beta.tolist(), weight)
    exact = oracle.gradient(*arguments)
    assert oracle.relative_error(logits.grad.tolist(), exact) < GRADIENT_BAR[dtype]
    if logits.abs().max() <= 20:
        assert oracle.relative_error(loss.item(), oracle.loss(*arguments)) < LOSS_BAR[dtype]


@pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_matches_sixty_digit_oracle(classes, kind, dtype):
    torch.manual_seed(classes)
    for weight in (1e-4, 3e-3, 0.1, 1.0):
        label = torch.randint(classes, ()).item()
        counts = torch.zeros(classes).index_fill(0, torch.tensor(label), 1.0)
        check_against_oracle(LOGITS[kind](classes, label, weight), counts, 1.0, weight, dtype)


@pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", ["uniform 80", "uniform 1", "label ahead", "near optimum"])
def test_matches_sixty_digit_oracle_at_a_thousand_classes(kind, dtype):
    torch.manual_seed(0)
    for weight in (1e-4, 0.3, 1.0):
        counts = torch.zeros(1000).index_fill(0, torch.tensor(7), 1.0)
        check_against_oracle(LOGITS[kind](1000, 7, weight), counts, 1.0, weight, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("seed", range(12))
def test_matches_sixty_digit_oracle_for_votes_and_uneven_priors(seed, dtype):
    torch.manual_seed(seed)
    classes = (2, 5, 40)[seed % 3]
    counts = torch.randint(0, 30, (classes,)).float() + torch.rand(classes)
    prior = torch.rand(classes).mul(6).sub(3).exp().double()
    for weight in (1e-4, 0.02, 1.0):
        check_against_oracle(40 * (torch.rand(classes) - 0.5), counts, prior, weight, dtype)


@pytest.mark.parametrize("seed", range(6))
def test_ablation_without_divergence_matches_the_oracle(seed):
    torch.manual_seed(seed)
    logits = 30 * (torch.rand(6, dtype=torch.float64) - 0.5)
    counts = torch.zeros(6, dtype=torch.float64).index_fill(0, torch.tensor(seed % 6), 1.0)
    check_against_oracle(logits, counts, 1.0, 0.0, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_exact_to_the_rounding_of_its_gradient(dtype):
    torch.manual_seed(0)
    logits = (8 * torch.randn(5, 7)).clamp(-8, 12).to(dtype).requires_grad_()
    targets = torch.randint(7, (5,))
    loss = belief_matching_loss(logits, targets, reduction="sum")
    loss.backward()
    assert loss.dtype == torch.float32 and logits.grad.dtype == dtype
    truth = torch.zeros(())
    for row, label, got in zip(logits, targets, logits.grad, strict=True):
        votes = [float(k == label) for k in range(7)]
        exact = oracle.gradient(row.tolist(), votes, [1.0] * 7, 0.01)
        assert oracle.relative_error(got.tolist(), exact) < torch.finfo(dtype).eps
        truth += float(oracle.loss(row.tolist(), votes, [1.0] * 7, 0.01))
    torch.testing.assert_close(loss, truth, rtol=1e-6, atol=0)


@pytest.mark.parametrize("low", [-89.0, -95.0, -96.5])
def test_gradient_is_right_where_the_pole_alone_would_overflow(low):
    """λ/α fits float32 although 1/α does not."""
    logits = torch.tensor([3.0, low, -1.0], requires_grad=True)
    loss = belief_matching_loss(logits, torch.tensor(0), kl_weight=1e-4)
    loss.backward()
    arguments = (logits.tolist(), [1.0, 0.0, 0.0], [1.0] * 3, 1e-4)
    assert oracle.relative_error(logits.grad.tolist(), oracle.gradient(*arguments)) < 2e-6
    assert oracle.relative_error(loss.item(), oracle.loss(*arguments)) < 2e-6


def test_pasted_formula_fails_where_this_one_does_not():
    """The release's expression in float32 at a logit of 20, as a check on the oracle and the claim."""
    logits = torch.full((10,), 20.0)
    alpha = logits.exp()
    total, prior = alpha.sum(), torch.ones(10)
    naive = torch.digamma(total) - torch.digamma(alpha[3])
    naive = naive + 0.01 * (
        torch.lgamma(total)
        - torch.lgamma(prior.sum())
        - torch.lgamma(alpha).sum()
        + ((alpha - prior) * (torch.digamma(alpha) - torch.digamma(total))).sum()
    )
    votes = [float(k == 3) for k in range(10)]
    exact = float(oracle.loss(logits.tolist(), votes, [1.0] * 10, 0.01))
    ours = belief_matching_loss(logits, torch.tensor(3)).item()
    assert abs(naive.item() - exact) > 1.0
    assert abs(ours - exact) < 1e-6 * exact


@pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight")
@pytest.mark.parametrize(
    ("logits", "counts", "prior", "weight"),
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
def test_keeps_its_digits_where_loss_or_gradient_nearly_vanishes(logits, counts, prior, weight):
    beta = torch.tensor(prior, dtype=torch.float64) if isinstance(prior, list) else prior
    check_against_oracle(torch.tensor(logits), torch.tensor(counts), beta, weight, torch.float32)


@pytest.mark.parametrize("kernel", ["reference"] if MISSING else ["native", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("gap", [5.0, 12.0, 40.0, 70.0])
@pytest.mark.parametrize("top", [-20.0, -2.0, 0.0, 3.0, 20.0])
def test_keeps_its_digits_where_the_label_dominates_and_no_prior_pulls(top, gap, dtype, kernel):
    logits = torch.tensor([[top, top - gap, top - gap - 1.5]], dtype=dtype, requires_grad=True)
    with using(kernel):
        belief_matching_loss(logits, torch.tensor([0]), kl_weight=0.0).backward()
    exact = oracle.gradient(logits[0].tolist(), [1.0, 0.0, 0.0], [1.0] * 3, 0.0)
    for received, expected in zip(logits.grad[0].tolist(), exact, strict=True):
        assert oracle.relative_error(received, expected) < GRADIENT_BAR[dtype]
