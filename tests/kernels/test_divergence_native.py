"""The compiled divergence and variance equal the reference: types, layouts, threads, processors."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import oracle
from beliefmatch import Belief, dirichlet, dirichlet_kl, kernels
from beliefmatch.kernels import native as compiled
from beliefmatch.kernels import native as divergences

pytestmark = pytest.mark.skipif(compiled.MISSING is not None, reason="the native kernel is not installed")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
BAR = {torch.float32: 1e-6, torch.float64: 1e-10, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def native_kernel():
    kernels.use("native")
    yield
    kernels.use("auto")


def draw(*shape, dtype=torch.float64, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def value_and_slopes(p, q, dim=-1):
    p, q = (x.detach().requires_grad_() for x in (p, q))
    value = dirichlet_kl(p, q, dim=dim)
    upstream = torch.linspace(0.5, 2, value.numel(), dtype=value.dtype).view_as(value)
    return value.detach(), *torch.autograd.grad(value, (p, q), upstream)


def reference(p, q, dim=-1):
    kernels.use("reference")
    try:
        return value_and_slopes(p, q, dim)
    finally:
        kernels.use("native")


def assert_equal(p, q, dim=-1, bar=None):
    """Values to the bar of the result's type, slopes to that of theirs and their row's largest."""
    assert divergences.divergence(*torch.broadcast_tensors(p, q), dim % p.dim()) is not None
    ours, exact = value_and_slopes(p, q, dim), reference(p, q, dim)
    torch.testing.assert_close(ours[0], exact[0], rtol=bar or BAR[exact[0].dtype], atol=0)
    for own, slope in zip(ours[1:], exact[1:], strict=True):
        assert own.dtype == slope.dtype and own.shape == slope.shape
        size = slope.double().abs().amax(dim, keepdim=True)
        near = (own.double() - slope.double()).abs() <= (bar or BAR[slope.dtype]) * size
        assert (near | (own == slope)).all()  # infinities of half precision agree


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("classes", [2, 3, 17, 1000])
def test_equals_the_reference_for_every_type(classes, dtype):
    p, q = draw(5, classes, dtype=dtype), draw(5, classes, dtype=dtype, seed=1)
    assert_equal(p, q)
    assert_equal(10 * p, 5 * q)
    assert_equal(20 + p, 20 + q)
    assert_equal(p - 20, q - 20)


def test_equals_the_reference_for_mixed_types():
    assert_equal(draw(4, 9, dtype=torch.float32), draw(4, 9, seed=1))
    assert_equal(draw(4, 9, dtype=torch.bfloat16), draw(4, 9, dtype=torch.float32, seed=1))


LAYOUTS = {
    "classes first": lambda x: (x.flatten(1).T.contiguous(), 0),
    "transposed": lambda x: (x.movedim(1, -1).contiguous().movedim(-1, 1), 1),
    "images": lambda x: (x, 1),
    "classes last": lambda x: (x.movedim(1, -1), 3),
    "every second class": lambda x: (x[:, ::2], 1),
    "a slice": lambda x: (x[:, :, 1:3, 1:], 1),
    "rows alone": lambda x: (x[0, :, 0, 0], 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_the_reference_for_every_layout(layout, dtype):
    x, y = draw(2, 12, 5, 4, dtype=dtype), draw(2, 12, 5, 4, dtype=dtype, seed=1)
    (p, dim), (q, _) = LAYOUTS[layout](x), LAYOUTS[layout](y)
    assert_equal(p, q, dim)
    assert_equal(p, q.contiguous(), dim)
    torch.testing.assert_close(Belief(p, dim=dim).variance, dirichlet.variance(p, dim), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_broadcasts_with_gradients_of_the_given_shapes(dtype):
    p, q = draw(6, 1, 8, dtype=dtype), draw(3, 8, dtype=dtype, seed=1)
    ours, exact = value_and_slopes(p, q), reference(p, q)
    assert ours[0].shape == (6, 3)
    for own, expected in zip(ours, exact, strict=True):
        assert own.shape == expected.shape
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("distance", [3.0, 1e-1, 1e-2, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8])
def test_keeps_its_digits_as_the_two_approach(distance, dtype):
    for classes, level in ((2, 0.0), (7, 0.0), (7, 30.0), (40, -10.0)):
        p = draw(classes, dtype=dtype) + level
        q = p + distance * draw(classes, dtype=dtype, scale=1.0, seed=1)
        if (p == q).all():
            continue
        value, by_p, by_q = value_and_slopes(p, q)
        exact = oracle.dirichlet_kl(p.tolist(), q.tolist())
        slopes = oracle.dirichlet_kl_gradients(p.tolist(), q.tolist())
        bar = 2e-7 if dtype is torch.float32 else 1e-8
        assert oracle.relative_error(value.item(), exact) < bar
        assert oracle.relative_error((by_p / 0.5).tolist(), slopes[0]) < bar
        assert oracle.relative_error((by_q / 0.5).tolist(), slopes[1]) < bar


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", [5.0, 20.0, 60.0])
def test_equals_the_oracle_where_one_class_dominates(level, dtype):
    p = torch.cat([torch.tensor([level], dtype=dtype), draw(8, dtype=dtype, scale=1.0)])
    for distance in (1.0, 1e-2, 1e-4):
        q = p + distance * draw(9, dtype=dtype, scale=1.0, seed=1)
        value, by_p, by_q = value_and_slopes(p, q)
        slopes = oracle.dirichlet_kl_gradients(p.tolist(), q.tolist())
        bar = 2e-7 if dtype is torch.float32 else 1e-9
        assert oracle.relative_error(value.item(), oracle.dirichlet_kl(p.tolist(), q.tolist())) < bar
        assert oracle.relative_error((by_p / 0.5).tolist(), slopes[0]) < bar
        assert oracle.relative_error((by_q / 0.5).tolist(), slopes[1]) < bar


@pytest.mark.parametrize("name", compiled.extension.instruction_sets() if compiled.MISSING is None else [])
@pytest.mark.parametrize("classes", [64, 333, 1000])
def test_float_lanes_give_what_double_lanes_give(classes, name):
    best = compiled.extension.in_use()
    compiled.extension.use(name)
    try:
        for distance in (3.0, 1.0, 0.5, 0.2, 0.1, 0.05, 1e-2, 1e-4, 1e-6):
            for level, lead in ((-10, 0), (-3, 10), (0, 0), (3, 0), (8, 10), (15, 20)):
                p = draw(8, classes, dtype=torch.float32, scale=1.0) + level
                p[:, 3] += lead
                q = p + distance * draw(8, classes, dtype=torch.float32, scale=1.0, seed=1)
                exact = dirichlet_kl(p.double(), q.double()).float()
                torch.testing.assert_close(dirichlet_kl(p, q), exact, rtol=1e-6, atol=0)
    finally:
        compiled.extension.use(best)


def test_scaling_alone_is_exact_at_any_size():
    p = draw(4, 9).round() + 30
    for shift in (0.5, -2.0, 2.0**-20):
        assert_equal(p, p + shift, bar=1e-9 if shift > -1 and abs(shift) > 0.1 else 1e-3)


@pytest.mark.parametrize("extreme", [302.0, -1e4, float("inf"), float("nan")])
def test_leaves_extreme_logits_to_the_reference(extreme):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        p, q = draw(3, 5, dtype=dtype), draw(3, 5, dtype=dtype, seed=1)
        far = p.clone()
        far[1, 2] = extreme
        for pair in ((far, q), (q, far)):
            assert divergences.divergence(*pair, 1) is None
            for own, exact in zip(value_and_slopes(*pair), reference(*pair), strict=True):
                assert torch.equal(own.nan_to_num(), exact.nan_to_num())
        assert torch.equal(Belief(far).variance.nan_to_num(), dirichlet.variance(far).nan_to_num())
    assert divergences.divergence(torch.full((2, 3), -200.0), torch.full((2, 3), 200.0), 1) is None
    assert divergences.divergence(torch.zeros(3, 1), torch.ones(3, 1), 1) is None
    assert divergences.divergence(torch.zeros(0, 3), torch.zeros(0, 3), 1) is None


def test_every_number_of_threads_gives_the_same_bits():
    p, q = draw(130, 301, dtype=torch.float32), draw(130, 301, dtype=torch.float32, seed=1)
    alone = (*value_and_slopes(p, q), Belief(p).variance)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together = (*value_and_slopes(p, q), Belief(p).variance)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_instruction_set_equals_the_reference(dtype):
    best = compiled.extension.in_use()
    try:
        for name in compiled.extension.instruction_sets():
            compiled.extension.use(name)
            for classes in (2, 7, 33):
                p, q = draw(5, classes, dtype=dtype), draw(5, classes, dtype=dtype, seed=1)
                assert_equal(p, q)
                assert_equal(p, p + 0.01 * q, bar=1e-6 if dtype is torch.float32 else 1e-8)
                ours, exact = Belief(p).variance, dirichlet.variance(p)
                torch.testing.assert_close(ours, exact, rtol=BAR[dtype], atol=0)
    finally:
        compiled.extension.use(best)


def test_derivatives_of_both_orders_and_of_each_argument_alone():
    p, q = (draw(3, 4, scale=1.0, seed=seed).requires_grad_() for seed in range(2))
    assert gradcheck(dirichlet_kl, (p, q))
    assert gradgradcheck(dirichlet_kl, (p, q))
    _, by_p, by_q = value_and_slopes(p, q)
    weights = torch.linspace(0.5, 2, 3, dtype=torch.float64)
    (alone,) = torch.autograd.grad(dirichlet_kl(p, q.detach()), p, weights)
    assert torch.equal(alone, by_p)
    (alone,) = torch.autograd.grad(dirichlet_kl(p.detach(), q), q, weights)
    assert torch.equal(alone, by_q)
    (itself,) = torch.autograd.grad(dirichlet_kl(p, p).sum(), p)
    assert (itself == 0).all()


def test_batched_and_expanded_upstream_gradients():
    p, q = (draw(3, 4, seed=seed).requires_grad_() for seed in range(2))
    value = dirichlet_kl(p, q)
    together = torch.autograd.grad(
        value, (p, q), torch.eye(3).double(), is_grads_batched=True, retain_graph=True
    )
    for row in range(3):
        alone = torch.autograd.grad(value, (p, q), torch.eye(3).double()[row], retain_graph=True)
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(one[row], other, rtol=1e-9, atol=1e-12)
    ones = torch.ones(()).double().expand(3)
    expanded = torch.autograd.grad(value, p, ones, retain_graph=True)
    assert torch.equal(*expanded, *torch.autograd.grad(value, p, torch.ones(3).double()))
    value = dirichlet_kl(p, q)
    value *= 2  # the result belongs to the caller


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_variance_equals_the_reference_and_carries_gradients(dtype):
    for logits in (draw(4, 9, dtype=dtype), 10 * draw(4, 9, dtype=dtype), draw(4, 1, dtype=dtype)):
        x = logits.requires_grad_()
        value, exact = Belief(x).variance, dirichlet.variance(x)
        assert value.dtype == exact.dtype
        torch.testing.assert_close(
            value, exact, rtol=2e-7 if exact.dtype is torch.float32 else 1e-13, atol=1e-44
        )
        (slope,) = torch.autograd.grad(value.square().sum(), x)
        (truth,) = torch.autograd.grad(exact.square().sum(), x)
        torch.testing.assert_close(slope, truth, rtol=1e-2, atol=1e-12)
