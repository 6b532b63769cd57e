"""Measures of a Dirichlet and divergences between two: oracle, laws, derivatives, extremes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Dirichlet, kl_divergence

import oracle
from beliefmatch import dirichlet, dirichlet_kl

DOUBLE = torch.float64
MEASURES = {
    "entropy": dirichlet.entropy,
    "expected_entropy": dirichlet.expected_entropy,
    "mutual_information": dirichlet.mutual_information,
    "differential_entropy": dirichlet.differential_entropy,
}
LOGITS = {
    "normal": lambda k: torch.randn(k),
    "uniform 20": lambda k: 40 * torch.rand(k) - 20,
    "all large": lambda k: 60 + 5 * torch.rand(k),
    "one dominates": lambda k: torch.cat([torch.zeros(1), -20 - torch.rand(k - 1)]),
}
BAR = {torch.float32: 5e-6, torch.float64: 1e-10}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("classes", [2, 5, 40])
def test_measures_match_the_oracle(classes, kind, dtype):
    torch.manual_seed(classes)
    logits = LOGITS[kind](classes).to(dtype)
    exact = oracle.entropies(logits.tolist())
    for measure, truth in zip(MEASURES.values(), exact, strict=True):
        assert oracle.relative_error(measure(logits).item(), truth) < BAR[dtype], measure


def test_mutual_information_survives_large_concentrations():
    """(K−1)/(2α₀) where subtracting the two entropies in float32 leaves only rounding."""
    logits = torch.full((4, 7), 18.0)
    spread = dirichlet.mutual_information(logits)
    expected = torch.full((4,), 6 / (2 * 7 * math.exp(18)))
    torch.testing.assert_close(spread, expected, rtol=1e-6, atol=0)
    difference = dirichlet.entropy(logits) - dirichlet.expected_entropy(logits)
    assert (difference / expected - 1).abs().max() > 0.1


def test_measures_equal_torch_distributions_where_those_are_accurate():
    torch.manual_seed(0)
    logits = torch.randn(6, 4, dtype=DOUBLE)
    exact = Dirichlet(logits.exp()).entropy()
    torch.testing.assert_close(dirichlet.differential_entropy(logits), exact, rtol=1e-11, atol=1e-11)
    probs = logits.softmax(-1)
    exact = torch.distributions.Categorical(probs).entropy()
    torch.testing.assert_close(dirichlet.entropy(logits), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MEASURES)
def test_measures_have_right_derivatives_along_any_dimension(name):
    torch.manual_seed(0)
    logits = (2 * torch.randn(3, 5, 2, dtype=DOUBLE)).requires_grad_()
    measure = MEASURES[name]
    assert gradcheck(lambda z: measure(z, 1), logits)
    assert gradgradcheck(lambda z: measure(z, 1), logits)
    moved = measure(logits.movedim(1, -1))
    torch.testing.assert_close(measure(logits, 1), moved, rtol=1e-14, atol=1e-14)


PAIRS = {
    "apart": lambda k: (40 * torch.rand(k) - 20, 40 * torch.rand(k) - 20),
    "near": lambda k: nearby(k, 0.1),
    "very near": lambda k: nearby(k, 1e-3),
    "scaled": lambda k: scaled(20 + 20 * torch.rand(k), 0.5),
    "large and near": lambda k: scaled(20 + 20 * torch.rand(k), 0.01 * torch.randn(k)),
}


def nearby(classes, distance):
    p = 4 * torch.randn(classes)
    return p, p + distance * torch.randn(classes)


def scaled(p, shift):
    return p, p + shift


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("classes", [2, 3, 10, 60])
def test_divergence_and_its_gradients_match_the_oracle(classes, kind, dtype):
    torch.manual_seed(classes)
    p, q = (z.to(dtype).requires_grad_() for z in PAIRS[kind](classes))
    value = dirichlet_kl(p, q)
    value.backward()
    bar = {torch.float32: 1e-6, torch.float64: 1e-8}[dtype]
    exact = oracle.dirichlet_kl(p.tolist(), q.tolist())
    by_p, by_q = oracle.dirichlet_kl_gradients(p.tolist(), q.tolist())
    assert oracle.relative_error(value.item(), exact) < bar
    assert oracle.relative_error(p.grad.tolist(), by_p) < bar
    assert oracle.relative_error(q.grad.tolist(), by_q) < bar


def test_divergence_equals_torch_where_torch_is_accurate():
    torch.manual_seed(0)
    p, q = torch.randn(2, 6, 4, dtype=DOUBLE)
    exact = kl_divergence(Dirichlet(p.exp()), Dirichlet(q.exp()))
    torch.testing.assert_close(dirichlet_kl(p, q), exact, rtol=1e-11, atol=1e-12)


def test_divergence_is_zero_at_itself_with_zero_gradient():
    for scale in (1.0, 30.0):
        p = (scale * torch.randn(5, 7, dtype=DOUBLE)).requires_grad_()
        q = p.detach().clone().requires_grad_()
        value = dirichlet_kl(p, q)
        value.sum().backward()
        assert (value == 0).all()
        assert p.grad.abs().max() == 0 and q.grad.abs().max() == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(-90, 90), st.floats(-90, 90)), min_size=2, max_size=6))
def test_divergence_is_never_negative(pairs):
    p, q = torch.tensor(pairs, dtype=torch.float32).T
    assert dirichlet_kl(p, q) >= 0
    assert dirichlet_kl(p, p + 1e-6 * q) >= 0


def test_divergence_has_right_derivatives_of_both_orders():
    torch.manual_seed(0)
    p, q = (torch.randn(3, 4, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    assert gradcheck(dirichlet_kl, (p, q), check_forward_ad=True)
    assert gradgradcheck(dirichlet_kl, (p, q))
    near = (p.detach() + 0.01 * q.detach()).requires_grad_()
    assert gradcheck(dirichlet_kl, (p, near))


def test_divergence_broadcasts_and_takes_any_class_dimension():
    torch.manual_seed(0)
    p, q = torch.randn(5, 3, 2), torch.randn(3, 2)
    value = dirichlet_kl(p, q, dim=1)
    assert value.shape == (5, 2)
    for n in range(5):
        expected = dirichlet_kl(p[n].T, q.T)
        torch.testing.assert_close(value[n], expected)


def test_divergence_maps_and_compiles():
    torch.manual_seed(0)
    p, q = torch.randn(2, 6, 4)
    expected = dirichlet_kl(p, q)
    torch.testing.assert_close(torch.func.vmap(dirichlet_kl)(p, q), expected)
    compiled = torch.compile(dirichlet_kl, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(p, q), expected)


def test_divergence_refuses_what_does_not_fit():
    for p, q, dim, message in (
        (torch.zeros(3, 4), torch.zeros(3, 5), -1, r"got \(3, 4\) and \(3, 5\)"),
        (torch.zeros(3, 4), torch.zeros(2, 4), -1, "broadcast"),
        (torch.zeros(3, 4), torch.zeros(4, 1), -1, "class dimension"),
        (torch.zeros(3, 4), torch.zeros(3, 4), 2, "dim=2"),
        (torch.tensor(0.0), torch.tensor(0.0), -1, "dirichlet_kl: "),
    ):
        with pytest.raises(ValueError, match=message):
            dirichlet_kl(p, q, dim=dim)
    with pytest.raises(TypeError, match="`q_logits`"):
        dirichlet_kl(torch.zeros(3), torch.zeros(3).long())


EXTREMES = (0.0, 88.7, -88.7, -104.0, 1e4, -1e4)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_finite_input_gives_finite_measures_and_divergences(data):
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, DOUBLE]))
    largest = torch.finfo(dtype).max
    values = st.one_of(st.sampled_from([*EXTREMES, largest, -largest]), st.floats(-100, 100))
    rows = st.lists(values, min_size=4, max_size=4)
    p, q = (torch.tensor(data.draw(rows), dtype=dtype).requires_grad_() for _ in range(2))
    for measure in MEASURES.values():
        assert measure(p).isfinite()
    assert dirichlet.expected_surprisal(p).isfinite().all()
    value = dirichlet_kl(p, q)
    value.backward()
    assert value.isfinite() and value >= 0
    assert p.grad.isfinite().all() and q.grad.isfinite().all()


def test_nan_stays_nan():
    logits = torch.zeros(3, 4)
    logits[1, 2] = math.nan
    for measure in MEASURES.values():
        assert measure(logits).isnan().tolist() == [False, True, False]
    assert dirichlet_kl(logits, torch.zeros(4)).isnan().tolist() == [False, True, False]
    assert dirichlet_kl(torch.zeros(4), logits).isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("level", [20.0, 30.0, 40.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_divergence_gradient_of_a_dominating_class_keeps_its_digits(level, dtype):
    p = torch.tensor([level, 1.0, 0.5], dtype=dtype, requires_grad=True)
    q = (p.detach() + torch.tensor([0.25, 0.3, -0.3], dtype=dtype)).requires_grad_()
    dirichlet_kl(p, q).backward()
    by_p, by_q = oracle.dirichlet_kl_gradients(p.tolist(), q.tolist())
    assert abs(p.grad[0].item() / float(by_p[0]) - 1) < 1e-6
    assert abs(q.grad[0].item() / float(by_q[0]) - 1) < 1e-6


@pytest.mark.parametrize("logits", [[709.0, 100.0], [750.0, 0.0], [709.0, 709.0], [-800.0, -900.0]])
def test_divergence_from_itself_is_zero_at_any_size(logits):
    for dtype in (torch.float16, torch.float32, torch.float64):
        p = torch.tensor(logits, dtype=dtype)
        assert dirichlet_kl(p, p).item() == 0


def test_expected_entropy_is_never_negative():
    assert (dirichlet.expected_entropy(torch.linspace(-90, -5, 200)[:, None].expand(-1, 3)) >= 0).all()
