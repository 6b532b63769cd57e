"""The contract of Dirichlet measures and divergences: oracle, laws, derivatives, extremes, native kernel."""

import math
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Categorical, Dirichlet, kl_divergence

import oracle
from beliefmatch import Belief, dirichlet, dirichlet_kl
from beliefmatch.kernels import native
from kernel_contract import HYPOTHESIS, using

DOUBLE = torch.float64
DTYPES = [torch.float32, torch.float64]
FLOATING = [*DTYPES, torch.bfloat16, torch.float16]
ENTROPIES = ("entropy", "expected_entropy", "mutual_information", "differential_entropy")
exact_divergence = lru_cache(maxsize=None)(oracle.dirichlet_kl)
exact_gradients = lru_cache(maxsize=None)(oracle.dirichlet_kl_gradients)


def draw(*shape, dtype=DOUBLE, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=generator, dtype=DOUBLE)).to(dtype)


def value_and_gradients(p, q, dim=-1):
    """The divergence and its gradients by both arguments, with an upstream gradient from 0.5 to 2."""
    p, q = (x.detach().requires_grad_() for x in (p, q))
    value = dirichlet_kl(p, q, dim=dim)
    upstream = torch.linspace(0.5, 2, value.numel(), dtype=value.dtype).view_as(value)
    return value.detach(), *torch.autograd.grad(value, (p, q), upstream)


# Measures, by each kernel

LOGITS = {
    "normal": lambda k: draw(k, scale=1.0),
    "uniform 20": lambda k: 40 * torch.rand(k) - 20,
    "all large": lambda k: 60 + 5 * torch.rand(k),
    "one dominates": lambda k: torch.cat([torch.zeros(1), -20 - torch.rand(k - 1)]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("classes", [2, 5, 40])
def test_measures_match_the_oracle(classes, kind, dtype, dirichlet_kernel):
    torch.manual_seed(classes)
    logits = LOGITS[kind](classes).to(dtype)
    bar = 5e-6 if dtype is torch.float32 else 1e-10 if not dirichlet_kernel.startswith("native") else 1e-9
    for name, truth in zip(ENTROPIES, oracle.entropies(logits.tolist()), strict=True):
        assert oracle.relative_error(getattr(Belief(logits), name)().item(), truth) < bar, name


def test_measures_equal_torch_where_torch_is_accurate(dirichlet_kernel):
    belief = Belief(draw(6, 4, scale=1.0))
    exact = Dirichlet(belief.alpha).entropy()
    torch.testing.assert_close(belief.differential_entropy(), exact, rtol=1e-11, atol=1e-11)
    exact = Categorical(belief.probs).entropy()
    torch.testing.assert_close(belief.entropy(), exact, rtol=1e-12, atol=1e-12)


def test_mutual_information_survives_large_concentrations(dirichlet_kernel):
    """(K−1)/(2α₀) where subtracting the two entropies in float32 leaves only rounding."""
    belief = Belief(torch.full((4, 7), 18.0))
    expected = torch.full((4,), 6 / (2 * 7 * math.exp(18)))
    torch.testing.assert_close(belief.mutual_information(), expected, rtol=1e-6, atol=0)
    difference = belief.entropy() - belief.expected_entropy()
    assert (difference / expected - 1).abs().max() > 0.1


def test_expected_entropy_is_never_negative(dirichlet_kernel):
    assert (Belief(torch.linspace(-90, -5, 200)[:, None].expand(-1, 3)).expected_entropy() >= 0).all()


@pytest.mark.parametrize("name", ENTROPIES)
def test_measures_have_right_derivatives_along_any_dimension(name):
    logits, measure = draw(3, 5, 2, scale=2.0).requires_grad_(), getattr(dirichlet, name)
    assert gradcheck(lambda z: measure(z, 1), logits)
    assert gradgradcheck(lambda z: measure(z, 1), logits)
    moved = measure(logits.movedim(1, -1))
    torch.testing.assert_close(measure(logits, 1), moved, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_variance_equals_its_definition_and_carries_gradients(dtype, dirichlet_kernel):
    for logits in (draw(4, 9, dtype=dtype), 10 * draw(4, 9, dtype=dtype), draw(4, 1, dtype=dtype)):
        x = logits.requires_grad_()
        value, exact = Belief(x).variance, dirichlet.variance(x)
        bar = 2e-7 if exact.dtype is torch.float32 else 1e-13
        torch.testing.assert_close(value, exact, rtol=bar, atol=1e-44)
        (gradient,) = torch.autograd.grad(value.square().sum(), x)
        (truth,) = torch.autograd.grad(exact.square().sum(), x)
        torch.testing.assert_close(gradient, truth, rtol=1e-2, atol=1e-12)


# The divergence, by each kernel


def dominated(level):
    return torch.cat([torch.tensor([level], dtype=DOUBLE), draw(8, scale=1.0)])


def moved_by(distance, *starts):
    return [(p, p + distance * draw(len(p), scale=1.0, seed=1)) for p in starts]


DISTANCES = (3.0, 1e-1, 1e-2, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
PAIRS = {
    "apart": [(6 * draw(k), 6 * draw(k, seed=1)) for k in (2, 3, 10, 60)],
    "scaled": [(30 + 3 * draw(k, scale=1.0), 30.5 + 3 * draw(k, scale=1.0)) for k in (2, 3, 10, 60)],
    "large": [pair for k in (2, 3, 10, 60) for pair in moved_by(0.01, 30 + 3 * draw(k, scale=1.0))],
    **{f"{d} away": moved_by(d, draw(2), draw(7), draw(7) + 30, draw(40) - 10) for d in DISTANCES},
    **{f"{d} from a dominating class": moved_by(d, *map(dominated, (5, 20, 60))) for d in (1, 1e-2, 1e-4)},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", PAIRS)
def test_divergence_and_its_gradients_match_the_oracle(kind, dtype, dirichlet_kernel):
    """As the two approach, gradients keep their digits; values do by the native kernel only."""
    is_reference = not dirichlet_kernel.startswith("native")  # or its formulas, in Triton
    rounding, bar = 1e-14 if is_reference else 0.0, 1e-8 if dtype is DOUBLE and not is_reference else 2e-7
    for p, q in ((p.to(dtype), q.to(dtype)) for p, q in PAIRS[kind]):
        if torch.equal(p, q):
            continue
        value, *gradients = value_and_gradients(p, q)
        arguments = tuple(p.tolist()), tuple(q.tolist())
        truth = exact_divergence(*arguments)
        assert abs(value.item() - truth) < bar * truth + rounding
        for gradient, exact in zip(gradients, exact_gradients(*arguments), strict=True):
            assert oracle.relative_error((gradient / 0.5).tolist(), exact) < bar


@pytest.mark.parametrize("level", [20.0, 30.0, 40.0, 60.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_by_a_dominating_class_keeps_its_digits(level, dtype, dirichlet_kernel):
    p = torch.tensor([level, 1.0, 0.5], dtype=dtype)
    q = p + torch.tensor([0.25, 0.3, -0.3], dtype=dtype)
    _, *gradients = value_and_gradients(p, q)
    for gradient, truth in zip(gradients, oracle.dirichlet_kl_gradients(p.tolist(), q.tolist()), strict=True):
        assert gradient[0].item() / 0.5 == pytest.approx(float(truth[0]), rel=1e-6)


def test_divergence_equals_torch_where_torch_is_accurate(dirichlet_kernel):
    p, q = draw(6, 4, scale=1.0), draw(6, 4, scale=1.0, seed=1)
    exact = kl_divergence(Dirichlet(p.exp()), Dirichlet(q.exp()))
    torch.testing.assert_close(dirichlet_kl(p, q), exact, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_divergence_from_itself_is_zero_at_any_size_with_zero_gradient(dtype, dirichlet_kernel):
    far = [[709.0, 100.0], [750.0, 0.0], [709.0, 709.0], [-800.0, -900.0]]
    for p in (draw(5, 7, dtype=dtype), 10 * draw(5, 7, dtype=dtype), torch.tensor(far, dtype=dtype)):
        value, *gradients = value_and_gradients(p, p.clone())
        assert not value.any() and not any(gradient.any() for gradient in gradients)
    p = p.requires_grad_()
    (shared,) = torch.autograd.grad(dirichlet_kl(p, p).sum(), p)
    assert not shared.any()


@settings(max_examples=60, **HYPOTHESIS)
@given(st.lists(st.tuples(st.floats(-90, 90), st.floats(-90, 90)), min_size=2, max_size=6))
def test_divergence_is_never_negative(quick_dirichlet_kernel, pairs):
    p, q = torch.tensor(pairs, dtype=torch.float32).T
    assert dirichlet_kl(p, q) >= 0
    assert dirichlet_kl(p, p + 1e-6 * q) >= 0


def test_divergence_has_right_derivatives_of_both_orders_and_of_each_argument_alone(dirichlet_kernel):
    p, q = (draw(3, 4, scale=1.0, seed=seed).requires_grad_() for seed in range(2))
    assert gradcheck(dirichlet_kl, (p, q), check_forward_ad=dirichlet_kernel == "reference")
    assert gradgradcheck(dirichlet_kl, (p, q))
    assert gradcheck(dirichlet_kl, (p, (p.detach() + 0.01 * q.detach()).requires_grad_()))
    _, by_p, by_q = value_and_gradients(p, q)
    weights = torch.linspace(0.5, 2, 3, dtype=DOUBLE)
    assert torch.equal(*torch.autograd.grad(dirichlet_kl(p, q.detach()), p, weights), by_p)
    assert torch.equal(*torch.autograd.grad(dirichlet_kl(p.detach(), q), q, weights), by_q)


def test_upstream_gradients_may_be_batched_or_expanded(dirichlet_kernel):
    p, q = (draw(3, 4, seed=seed).requires_grad_() for seed in range(2))
    value, basis = dirichlet_kl(p, q), torch.eye(3).double()
    together = torch.autograd.grad(value, (p, q), basis, is_grads_batched=True, retain_graph=True)
    for row in range(3):
        alone = torch.autograd.grad(value, (p, q), basis[row], retain_graph=True)
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(one[row], other, rtol=1e-9, atol=1e-12)
    expanded = torch.autograd.grad(value, p, torch.ones(()).double().expand(3), retain_graph=True)
    assert torch.equal(*expanded, *torch.autograd.grad(value, p, torch.ones(3).double()))
    value = dirichlet_kl(p, q)
    value *= 2  # the result belongs to the caller


def test_divergence_broadcasts_along_any_class_dimension_and_maps_and_compiles(dirichlet_kernel):
    p, q = draw(5, 3, 2, dtype=torch.float32), draw(3, 2, dtype=torch.float32, seed=1)
    value = dirichlet_kl(p, q, dim=1)
    assert value.shape == (5, 2)
    for row, expected in zip(p, value, strict=True):
        torch.testing.assert_close(dirichlet_kl(row.T, q.T), expected)
    rows, expected = (p[..., 0], p[..., 1]), dirichlet_kl(p[..., 0], p[..., 1])
    torch.testing.assert_close(torch.func.vmap(dirichlet_kl)(*rows), expected)
    compiled = torch.compile(dirichlet_kl, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*rows), expected)


@pytest.mark.parametrize(
    ("p", "q", "dim", "kind"),
    [
        (torch.zeros(3, 4), torch.zeros(3, 5), -1, ValueError),
        (torch.zeros(3, 4), torch.zeros(2, 4), -1, ValueError),
        (torch.zeros(3, 4), torch.zeros(4, 1), -1, ValueError),
        (torch.zeros(3, 4), torch.zeros(3, 4), 2, ValueError),
        (torch.tensor(0.0), torch.tensor(0.0), -1, ValueError),
        (torch.zeros(3), torch.zeros(3, device="meta"), -1, ValueError),
        (torch.zeros(3), torch.zeros(3).long(), -1, TypeError),
    ],
)
def test_invalid_arguments_are_named(p, q, dim, kind):
    with pytest.raises(kind, match=r"^dirichlet_kl: .*`q_logits`"):
        dirichlet_kl(p, q, dim=dim)


EXTREMES = (0.0, 88.7, -88.7, -104.0, 1e4, -1e4)


@settings(max_examples=60, **HYPOTHESIS)
@given(st.data())
def test_every_finite_input_gives_finite_measures_and_divergences(quick_dirichlet_kernel, data):
    dtype = data.draw(st.sampled_from(FLOATING))
    largest = torch.finfo(dtype).max
    values = st.one_of(st.sampled_from([*EXTREMES, largest, -largest]), st.floats(-100, 100))
    rows = st.lists(values, min_size=4, max_size=4)
    p, q = (torch.tensor(data.draw(rows), dtype=dtype) for _ in range(2))
    assert all(getattr(Belief(p), name)().isfinite() for name in ENTROPIES)
    assert dirichlet.expected_surprisal(p).isfinite().all()
    value, *gradients = value_and_gradients(p, q)
    assert value.isfinite() and value >= 0 and all(gradient.isfinite().all() for gradient in gradients)


def test_a_divergence_beyond_the_type_saturates(dirichlet_kernel):
    p, q = torch.full((3, 4), -200.0), torch.tensor([[100.0, 90.0, 80.0, 0.0]]).expand(3, 4)
    assert (dirichlet_kl(p, q) == torch.finfo(torch.float32).max).all()


def test_nan_stays_in_its_row(dirichlet_kernel):
    logits = torch.zeros(3, 4)
    logits[1, 2] = math.nan
    measures = [getattr(Belief(logits), name)() for name in ENTROPIES]
    for value in (*measures, dirichlet_kl(logits, torch.zeros(4)), dirichlet_kl(torch.zeros(4), logits)):
        assert value.isnan().tolist() == [False, True, False]


# The native kernel against the reference: types, layouts, threads

BAR = {torch.float32: 1e-6, torch.float64: 1e-10, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def assert_native_equals_reference(p, q, dim=-1, bar=None):
    """Values to the bar of the result's type, gradients to that of theirs and their row's largest."""
    with using("native"):
        assert native.divergence(*torch.broadcast_tensors(p, q), dim % p.dim()) is not None
        value, *gradients = value_and_gradients(p, q, dim)
    with using("reference"):
        exact, *truths = value_and_gradients(p, q, dim)
    torch.testing.assert_close(value, exact, rtol=bar or BAR[exact.dtype], atol=0)
    for gradient, truth in zip(gradients, truths, strict=True):
        assert gradient.dtype == truth.dtype and gradient.shape == truth.shape
        error, size = (gradient.double() - truth.double()).abs(), truth.double().abs()
        near = error <= (bar or BAR[truth.dtype]) * size.amax(dim, keepdim=True)
        assert (near | (gradient == truth)).all()  # infinities of half precision agree


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("classes", [2, 3, 7, 17, 33, 1000])
def test_native_equals_the_reference_for_every_type(classes, dtype, instruction_set):
    p, q = draw(5, classes, dtype=dtype), draw(5, classes, dtype=dtype, seed=1)
    for pair in ((p, q), (10 * p, 5 * q), (20 + p, 20 + q), (p - 20, q - 20)):
        assert_native_equals_reference(*pair)
    if dtype in DTYPES:
        assert_native_equals_reference(p, p + 0.01 * q, bar=1e-6 if dtype is torch.float32 else 1e-8)


def test_native_equals_the_reference_for_mixed_types_and_for_scaling_alone(instruction_set):
    p, q = draw(4, 9), draw(4, 9, seed=1)
    assert_native_equals_reference(p.float(), q)
    assert_native_equals_reference(p.bfloat16(), q.float())
    for shift, bar in ((0.5, 1e-9), (-2.0, 1e-3), (2.0**-20, 1e-3)):
        assert_native_equals_reference(p.round() + 30, p.round() + 30 + shift, bar=bar)


LAYOUTS = {
    "classes first": lambda x: (x.flatten(1).T.contiguous(), 0),
    "transposed": lambda x: (x.movedim(1, -1).contiguous().movedim(-1, 1), 1),
    "images": lambda x: (x, 1),
    "classes last": lambda x: (x.movedim(1, -1), 3),
    "every second class": lambda x: (x[:, ::2], 1),
    "a slice": lambda x: (x[:, :, 1:3, 1:], 1),
    "rows alone": lambda x: (x[0, :, 0, 0], 0),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_native_equals_the_reference_for_every_layout(layout, dtype, instruction_set):
    x, y = draw(2, 12, 5, 4, dtype=dtype), draw(2, 12, 5, 4, dtype=dtype, seed=1)
    (p, dim), (q, _) = LAYOUTS[layout](x), LAYOUTS[layout](y)
    assert_native_equals_reference(p, q, dim)
    assert_native_equals_reference(p, q.contiguous(), dim)
    with using("native"):
        variance = Belief(p, dim=dim).variance
    torch.testing.assert_close(variance, dirichlet.variance(p, dim), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_native_gradients_of_broadcast_arguments_have_the_given_shapes(dtype, instruction_set):
    p, q = draw(6, 1, 8, dtype=dtype), draw(3, 8, dtype=dtype, seed=1)
    with using("native"):
        received = value_and_gradients(p, q)
    with using("reference"):
        expected = value_and_gradients(p, q)
    assert received[0].shape == (6, 3)
    for own, exact in zip(received, expected, strict=True):
        assert own.shape == exact.shape
        torch.testing.assert_close(own, exact, rtol=1e-5, atol=1e-6 * exact.abs().max().item())


@pytest.mark.parametrize("classes", [64, 333, 1000])
def test_single_precision_lanes_equal_double_ones(classes, instruction_set):
    noise = [draw(8, classes, dtype=torch.float32, scale=1.0, seed=seed) for seed in range(2)]
    for distance in (3.0, 1.0, 0.5, 0.2, 0.1, 0.05, 1e-2, 1e-4, 1e-6):
        for level, lead in ((-10, 0), (-3, 10), (0, 0), (3, 0), (8, 10), (15, 20)):
            p = noise[0] + level
            p[:, 3] += lead
            q = p + distance * noise[1]
            with using("native"):
                exact = dirichlet_kl(p.double(), q.double()).float()
                torch.testing.assert_close(dirichlet_kl(p, q), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("extreme", [302.0, -1e4, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", FLOATING[:3], ids=str)
def test_extreme_logits_are_left_to_the_reference(extreme, dtype, instruction_set):
    p, q = draw(3, 5, dtype=dtype), draw(3, 5, dtype=dtype, seed=1)
    far = p.clone()
    far[1, 2] = extreme
    for pair in ((far, q), (q, far)):
        assert native.divergence(*pair, 1) is None
    with using("native"):
        received = *value_and_gradients(far, q), *value_and_gradients(q, far), Belief(far).variance
    with using("reference"):
        expected = *value_and_gradients(far, q), *value_and_gradients(q, far), Belief(far).variance
    torch.testing.assert_close(received, expected, rtol=0, atol=0, equal_nan=True)


def test_too_large_a_ratio_one_class_and_no_rows_are_left_to_the_reference(instruction_set):
    for p, q in (
        (torch.full((2, 3), -200.0), torch.full((2, 3), 200.0)),
        (torch.zeros(3, 1), torch.ones(3, 1)),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
    ):
        assert native.divergence(p, q, 1) is None


def test_the_number_of_threads_changes_no_bit(instruction_set):
    p, q = draw(130, 301, dtype=torch.float32), draw(130, 301, dtype=torch.float32, seed=1)
    results, before = [], torch.get_num_threads()
    try:
        for threads in (before, 3):
            torch.set_num_threads(threads)
            with using("native"):
                results.append((*value_and_gradients(p, q), Belief(p).variance))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
