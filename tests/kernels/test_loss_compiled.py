"""The formula that compilers are given: as exact as the reference, for class ids of every kind."""

import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from test_loss_oracle import GRADIENT_BAR, LOGITS, LOSS_BAR, near_optimum, one_hot
from test_loss_torch import extreme_batches

import oracle
from beliefmatch import belief_matching_loss
from beliefmatch.kernels import fused as traceable
from beliefmatch.kernels.reference import LossInputs, Options
from kernel_pair import using

DTYPES = [torch.float32, torch.float64]
MORE_LOGITS = {
    "a little off the optimum": near_optimum(0.1),
    "off the optimum": near_optimum(1.0),
    "huge": one_hot(150, -10),
    "hugely wrong": one_hot(-60, 150),
    "all low": lambda classes, label, weight: -70 + 3 * torch.rand(classes),
    "label lost": one_hot(-30, 3),
}
NEEDS_COMPILER = pytest.mark.skipif(
    " " in torch.__file__ or not (shutil.which("g++") or shutil.which("clang++")),
    reason="no C++ compiler, or torch in a path with a space",
)


def rows_of(logits, targets, kl_weight, prior):
    options = Options(prior, kl_weight, min(logits.dim() - 1, 1), True, -100, "none")
    return traceable.loss(LossInputs(logits, targets, None, None, None, options))


def check_against_oracle(function, logits, label, kl_weight, prior):
    batch = logits[None].requires_grad_()
    loss = function(batch, torch.tensor([label]), kl_weight, prior)
    (gradient,) = torch.autograd.grad(loss.sum(), batch)
    votes = [float(k == label) for k in range(len(logits))]
    arguments = (logits.tolist(), votes, [prior] * len(logits), kl_weight)
    exact = oracle.gradient(*arguments)
    assert oracle.relative_error(gradient[0].tolist(), exact) < GRADIENT_BAR[logits.dtype]
    truth = oracle.loss(*arguments)
    if truth < 1e30:
        assert oracle.relative_error(loss.item(), truth) < LOSS_BAR[logits.dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [*LOGITS, *MORE_LOGITS])
@pytest.mark.parametrize("classes", [2, 10])
def test_matches_sixty_digit_oracle(classes, kind, dtype):
    torch.manual_seed(classes)
    for kl_weight in (1e-4, 3e-3, 1.0):
        label = torch.randint(classes, ()).item()
        logits = {**LOGITS, **MORE_LOGITS}[kind](classes, label, kl_weight).to(dtype)
        check_against_oracle(rows_of, logits, label, kl_weight, 1.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prior", [0.3, 20.0])
def test_matches_sixty_digit_oracle_for_other_priors(prior, dtype):
    torch.manual_seed(0)
    for kl_weight in (1e-4, 3e-3, 1.0):
        optimum = torch.full((6,), prior, dtype=torch.float64)
        optimum[4] += 1 / kl_weight
        for spread in (1e-3, 0.1, 0.3, 1.0, 5.0, 25.0):
            logits = optimum.log() + spread * torch.randn(6, dtype=torch.float64)
            check_against_oracle(rows_of, logits.to(dtype), 4, kl_weight, prior)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["uniform 20", "near optimum", "at optimum"])
def test_matches_sixty_digit_oracle_for_many_classes(kind, dtype):
    torch.manual_seed(0)
    for kl_weight in (1e-4, 0.3):
        check_against_oracle(rows_of, LOGITS[kind](500, 7, kl_weight).to(dtype), 7, kl_weight, 1.0)


@pytest.mark.parametrize("logits", [[0.7, -71.0], [20.0, 4.0], [-3.0, 2.0], [-30.0, -60.0], [3.0, 3.0]])
def test_matches_sixty_digit_oracle_without_the_divergence(logits):
    """λ = 0, where nothing is left of the gradient once the label dominates."""
    for label in (0, 1):
        for dtype in DTYPES:
            check_against_oracle(rows_of, torch.tensor(logits, dtype=dtype), label, 0.0, 1.0)


@pytest.mark.parametrize("low", [-89.0, -95.0, -96.5])
def test_is_right_where_the_pole_alone_would_overflow(low):
    check_against_oracle(rows_of, torch.tensor([3.0, low, -1.0]), 0, 1e-4, 1.0)


@settings(max_examples=150, deadline=None)
@given(extreme_batches())
def test_every_finite_input_gives_a_finite_loss_and_gradient(case):
    logits, label, kl_weight, prior, _ = case
    logits = logits.detach().requires_grad_()
    loss = rows_of(logits, torch.full((len(logits),), label), kl_weight, prior)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isfinite().all() and (loss >= 0).all()
    assert gradient.isfinite().all() and gradient.dtype == logits.dtype


@pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight")
@settings(max_examples=150, deadline=None)
@given(extreme_batches())
def test_equals_the_reference_at_any_logit(case):
    logits, label, kl_weight, prior, _ = case
    logits = logits.detach().clamp(-500, 1e4).requires_grad_()
    kl_weight = kl_weight or 1e-6  # with 0, rows are nothing but shares, which may leave float32
    targets = torch.full((len(logits),), label)
    with using("reference"):
        expected = belief_matching_loss(logits, targets, kl_weight=kl_weight, prior=prior, reduction="none")
        (slope,) = torch.autograd.grad(expected.sum(), logits)
    loss = rows_of(logits, targets, kl_weight, prior)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    double = logits.dtype == torch.float64
    torch.testing.assert_close(loss, expected, rtol=1e-10 if double else 2e-5, atol=1e-30)
    largest = slope.double().abs().amax(1, keepdim=True).clamp(min=1e-30)
    error = (gradient.double() - slope.double()).abs() / largest
    error = error.masked_fill(largest >= torch.finfo(logits.dtype).max, 0.0)  # beyond the type
    assert (error < (1e-10 if double else max(4e-6, torch.finfo(logits.dtype).eps))).all()


def test_what_is_not_finite_stays_in_its_row():
    logits = torch.randn(5, 4)
    logits[0, 1], logits[1, 2], logits[2, 0], logits[3, 3] = math.nan, math.inf, -math.inf, math.nan
    logits.requires_grad_()
    targets = torch.tensor([1, 3, 1, -100, 2])
    loss = rows_of(logits, targets, 0.01, 1.0)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isnan().flatten().tolist() == [True, True, False, False, False]
    assert gradient.isnan().all(1).tolist() == [True, True, False, False, False]
    assert loss[2] == torch.finfo(torch.float32).max == -gradient[2, 0]
    assert loss[3] == 0 and (gradient[3] == 0).all()
    (alone,) = torch.autograd.grad(rows_of(logits[4:], targets[4:], 0.01, 1.0).sum(), logits)
    assert torch.equal(alone[4], gradient[4])


WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0])
CASES = [
    (torch.float32, (16, 5), {"weight": WEIGHT, "ignore_index": 2}),
    (torch.bfloat16, (3, 5, 2), {"reduction": "none", "target_confidence": 0.9, "prior": 0.5}),
    (torch.float16, (5,), {"weight": WEIGHT, "reduction": "sum", "kl_weight": 0.0}),
]


@pytest.mark.parametrize(("dtype", "shape", "options"), CASES)
def test_compiled_loss_equals_the_eager_one(dtype, shape, options):
    torch.manual_seed(0)
    logits = (3 * torch.randn(shape)).to(dtype).requires_grad_()
    targets = torch.randint(5, shape[:1] + shape[2:] if len(shape) > 1 else ())

    def loss(z, y):
        return belief_matching_loss(z, y, **options)

    expected = loss(logits, targets)
    (slope,) = torch.autograd.grad(expected.sum(), logits)
    value = torch.compile(loss, fullgraph=True, backend="aot_eager")(logits, targets)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.dtype == expected.dtype and gradient.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=1e-30)
    rounding = max(tolerance, torch.finfo(dtype).eps)
    torch.testing.assert_close(gradient, slope, rtol=rounding, atol=rounding * slope.abs().max().item())


def test_is_given_to_compilers_only_and_for_what_it_knows(monkeypatch):
    asked = []
    monkeypatch.setattr(traceable, "loss", lambda problem: asked.append(problem))
    logits, ids = torch.zeros(1, 3), torch.tensor([1])
    belief_matching_loss(logits, ids)
    assert not asked
    options = Options(1.0, 0.01, 1, False, -100, "mean")
    monkeypatch.undo()
    assert traceable.loss(LossInputs(logits, torch.rand(1, 3), None, None, None, options)) is None
    by_class = LossInputs(logits, ids, None, torch.ones(1, 3), None, options._replace(has_ids=True))
    assert traceable.loss(by_class) is None


def test_annealing_of_the_kl_weight_does_not_compile_again():
    torch.manual_seed(0)
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(belief_matching_loss, fullgraph=True, backend=backend)
    logits, targets = torch.randn(6, 5, requires_grad=True), torch.randint(5, (6,))
    for step in range(10):
        kl_weight = 0.01 + 0.001 * step
        expected = belief_matching_loss(logits, targets, kl_weight=kl_weight)
        torch.testing.assert_close(compiled(logits, targets, kl_weight=kl_weight), expected)
    assert len(compilations) <= 2


@NEEDS_COMPILER
def test_machine_code_matches_sixty_digit_oracle():
    """Compilers change formulas: their e^x − 1, for one, is not accurate near zero."""

    def loss(z, y, kl_weight, prior):
        return belief_matching_loss(z, y, kl_weight=kl_weight, prior=prior, reduction="none")

    torch.manual_seed(0)
    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    for kind in ("at optimum", "near optimum", "uniform 20", "label far ahead", "all -80"):
        check_against_oracle(compiled, LOGITS[kind](40, 7, 0.01).float(), 7, 0.01, 1.0)
