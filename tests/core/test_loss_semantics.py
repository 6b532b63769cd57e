"""Layouts, weights, ignored ids and reductions mean what they mean in CrossEntropyLoss."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from beliefmatch import BeliefMatchingLoss, belief_matching_loss

DOUBLE = torch.float64
TRIGAMMA = {"rtol": 1e-6, "atol": 1e-8}
"""torch's own trigamma, through which the slow loop differentiates, is right to about 1e-8."""


def slow(logits, targets, *, kl_weight=0.01, prior=1.0, weight=None, ignore_index=-100, reduction="mean"):
    """Sample by sample with torch's gamma functions; classes are moved last."""
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    classes = rows.shape[1]
    counted = targets.is_floating_point()
    labels = targets.movedim(1, -1).reshape(-1, classes) if counted else targets.reshape(-1)
    beta = torch.as_tensor(prior, dtype=DOUBLE)
    if beta.dim() == logits.dim():
        beta = beta.expand_as(logits).movedim(1, -1).reshape(-1, classes)
    beta = beta.expand(len(rows), classes)
    values, weights = [], []
    for row, label, b in zip(rows, labels, beta, strict=True):
        if not counted and label == ignore_index:
            values.append(row.sum() * 0)
            weights.append(0.0)
            continue
        counts = label if counted else F.one_hot(label, classes).to(DOUBLE)
        class_weight = torch.ones(classes, dtype=DOUBLE) if weight is None else weight
        mean_weight = (counts * class_weight).sum() / counts.sum()
        alpha = row.exp()
        total = alpha.sum()
        log_mean = torch.digamma(alpha) - torch.digamma(total)
        kl = torch.lgamma(total) - torch.lgamma(b.sum()) + torch.lgamma(b).sum()
        kl = kl - torch.lgamma(alpha).sum() + ((alpha - b) * log_mean).sum()
        values.append(-(class_weight * counts * log_mean).sum() + mean_weight * kl_weight * kl)
        weights.append(1.0 if counted else mean_weight.item())
    if reduction == "none":
        spatial = targets.shape if not counted else targets.movedim(1, -1).shape[:-1]
        return torch.stack(values).reshape(spatial)
    total = torch.stack(values).sum()
    return total / sum(weights) if reduction == "mean" else total


def sample(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=DOUBLE)
    ids = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    counts = 0.1 + torch.rand(*shape, generator=generator, dtype=DOUBLE)
    weight = 0.3 + torch.rand(shape[1], generator=generator, dtype=DOUBLE)
    return logits.requires_grad_(), ids, counts, weight


SHAPES = [(5, 3), (4, 7, 2), (3, 4, 2, 5)]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_ids_weights_ignored_and_reductions_match_a_slow_loop(shape, weighted, reduction):
    logits, ids, _, weight = sample(shape)
    ids.view(-1)[::3] = 1
    options = {"weight": weight if weighted else None, "ignore_index": 1, "reduction": reduction}
    loss = belief_matching_loss(logits, ids, **options)
    expected = slow(logits, ids, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-13)
    upstream = torch.rand_like(loss)
    (gradient,) = torch.autograd.grad(loss, logits, upstream)
    (slow_gradient,) = torch.autograd.grad(expected, logits, upstream)
    torch.testing.assert_close(gradient, slow_gradient, **TRIGAMMA)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_counts_weights_and_reductions_match_a_slow_loop(shape, weighted, reduction):
    logits, _, counts, weight = sample(shape)
    options = {"weight": weight if weighted else None, "reduction": reduction, "kl_weight": 0.2}
    loss = belief_matching_loss(logits, counts, **options)
    expected = slow(logits, counts, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-13)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    (slow_gradient,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(gradient, slow_gradient, **TRIGAMMA)


@pytest.mark.parametrize("shape", SHAPES)
def test_priors_per_class_and_per_sample_match_a_slow_loop(shape):
    logits, ids, counts, weight = sample(shape)
    per_class = weight
    broadcast = counts[:, :1]
    for prior in (0.5, torch.tensor(0.5), per_class, counts, broadcast):
        loss = belief_matching_loss(logits, ids, prior=prior, kl_weight=0.2)
        beta = prior
        if isinstance(prior, torch.Tensor) and prior.dim() == 1 and len(shape) > 2:
            beta = prior.view(1, -1, *[1] * (len(shape) - 2))
        torch.testing.assert_close(loss, slow(logits, ids, prior=beta, kl_weight=0.2), rtol=1e-11, atol=0)


def test_one_sample_without_a_batch_dimension_equals_a_batch_of_one():
    logits, ids, counts, weight = sample((1, 6))
    for targets in (ids, counts):
        single = belief_matching_loss(logits[0], targets[0], weight=weight, prior=weight)
        batched = belief_matching_loss(logits, targets, weight=weight, prior=weight)
        assert single.shape == ()
        torch.testing.assert_close(single, batched, rtol=1e-14, atol=0)
    none = belief_matching_loss(logits[0], ids[0], reduction="none")
    assert none.shape == ()


@pytest.mark.parametrize("weighted", [False, True])
def test_one_hot_counts_equal_class_ids_sample_by_sample(weighted):
    logits, ids, _, weight = sample((6, 4))
    options = {"weight": weight if weighted else None, "reduction": "none"}
    by_ids = belief_matching_loss(logits, ids, **options)
    by_counts = belief_matching_loss(logits, F.one_hot(ids, 4).to(DOUBLE), **options)
    torch.testing.assert_close(by_ids, by_counts, rtol=1e-14, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_weights_and_ignored_ids_follow_cross_entropy_at_large_alpha(reduction):
    """With λ = 0 and huge concentrations the loss *is* cross-entropy: torch itself is the oracle."""
    for shape in SHAPES:
        logits, ids, counts, weight = sample(shape)
        options = {"weight": weight, "reduction": reduction}
        ids.view(-1)[::4] = 2
        theirs = F.cross_entropy(logits, ids, ignore_index=2, **options)
        ours = belief_matching_loss(logits + 40, ids, ignore_index=2, kl_weight=0, **options)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        theirs = F.cross_entropy(logits, counts, **options)
        ours = belief_matching_loss(logits + 40, counts, kl_weight=0, **options)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_mean_of_nothing_is_nan_as_in_torch_and_leaves_no_gradient():
    logits = torch.randn(3, 4, requires_grad=True)
    ignored = torch.full((3,), -100)
    loss = belief_matching_loss(logits, ignored)
    assert loss.isnan() and F.cross_entropy(logits, ignored).isnan()
    assert belief_matching_loss(logits, ignored, reduction="sum") == 0
    belief_matching_loss(logits, ignored, reduction="sum").backward()
    assert (logits.grad == 0).all()


def test_nan_in_an_ignored_sample_reaches_nobody():
    logits = torch.randn(3, 4)
    logits[1] = math.nan
    logits.requires_grad_()
    targets = torch.tensor([0, -100, 3])
    loss = belief_matching_loss(logits, targets)
    loss.backward()
    expected = belief_matching_loss(logits.detach()[[0, 2]], targets[[0, 2]])
    torch.testing.assert_close(loss.detach(), expected)
    assert logits.grad.isfinite().all() and (logits.grad[1] == 0).all()


def test_nan_in_a_sample_gives_nan_for_it_alone():
    logits = torch.randn(3, 4)
    logits[1, 2] = math.nan
    logits.requires_grad_()
    rows = belief_matching_loss(logits, torch.tensor([0, 1, 3]), reduction="none")
    rows.sum().backward()
    assert rows.isnan().tolist() == [False, True, False]
    assert logits.grad.isnan().all(-1).tolist() == [False, True, False]
    assert belief_matching_loss(logits, torch.tensor([0, 1, 3])).isnan()


def test_empty_batch_sums_to_zero():
    logits = torch.zeros(0, 5, requires_grad=True)
    loss = belief_matching_loss(logits, torch.zeros(0, dtype=torch.long), reduction="sum")
    loss.backward()
    assert loss == 0 and logits.grad.shape == (0, 5)
    assert belief_matching_loss(logits, torch.zeros(0, dtype=torch.long), reduction="none").shape == (0,)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_ids_of_any_integer_type_are_ids(dtype):
    logits, ids, _, _ = sample((5, 3))
    expected = belief_matching_loss(logits, ids)
    assert torch.equal(belief_matching_loss(logits, ids.to(dtype)), expected)


def test_strided_input_gives_the_same_gradient():
    logits, ids, _, _ = sample((6, 4))
    wide = torch.zeros(6, 8, dtype=DOUBLE)
    wide[:, ::2] = logits.detach()
    strided = wide[:, ::2].requires_grad_()
    transposed = logits.detach().t().contiguous().t().requires_grad_()
    (expected,) = torch.autograd.grad(belief_matching_loss(logits, ids), logits)
    for view in (strided, transposed):
        assert not view.is_contiguous()
        (gradient,) = torch.autograd.grad(belief_matching_loss(view, ids), view)
        torch.testing.assert_close(gradient, expected, rtol=1e-14, atol=0)


def test_module_equals_function_and_moves_with_its_tensors():
    logits, ids, counts, weight = sample((5, 3))
    module = BeliefMatchingLoss(kl_weight=0.3, prior=weight, weight=weight, reduction="sum")
    expected = belief_matching_loss(logits, ids, kl_weight=0.3, prior=weight, weight=weight, reduction="sum")
    assert torch.equal(module(logits, ids), expected)
    assert set(module.state_dict()) == {"weight", "prior"}
    assert module.to(torch.float32).weight.dtype == torch.float32
    assert "kl_weight=0.3" in repr(module) and "reduction=sum" in repr(module)
    assert BeliefMatchingLoss(weight=None).state_dict() == {}
    confident = BeliefMatchingLoss(target_confidence=0.9)
    expected = belief_matching_loss(logits, counts, target_confidence=0.9)
    assert torch.equal(confident(logits, counts), expected)
    assert "target_confidence=0.9" in repr(confident)


def test_default_is_a_kl_weight_of_one_hundredth():
    logits, ids, _, _ = sample((5, 3))
    default = belief_matching_loss(logits, ids)
    assert torch.equal(default, belief_matching_loss(logits, ids, kl_weight=0.01))
    assert BeliefMatchingLoss().kl_weight == 0.01


def test_narrow_integers_are_not_mistaken_for_the_ignored_id():
    """In uint8 the default ignore_index of −100 would be 156."""
    logits = torch.randn(3, 200)
    ids = torch.tensor([1, 156, 2])
    expected = belief_matching_loss(logits, ids, kl_weight=1e-3, reduction="none")
    assert torch.equal(
        belief_matching_loss(logits, ids.to(torch.uint8), kl_weight=1e-3, reduction="none"), expected
    )
    assert expected[1] > 0


def test_mean_of_an_empty_batch_is_nan_as_in_torch():
    logits = torch.zeros(0, 5)
    assert belief_matching_loss(logits, torch.zeros(0, dtype=torch.long)).isnan()
    assert belief_matching_loss(logits, torch.zeros(0, 5)).isnan()


def test_samples_without_votes_have_finite_derivatives():
    logits = torch.randn(3, 4, requires_grad=True)
    counts = torch.zeros(3, 4, requires_grad=True)
    weight = torch.rand(4, requires_grad=True)
    belief_matching_loss(logits, counts, weight=weight).backward()
    for x in (logits, counts, weight):
        assert x.grad.isfinite().all()


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=3),
    rows=st.integers(0, 4),
    classes=st.integers(1, 6),
    use_counts=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_any_layout_equals_its_samples_laid_out_in_rows(shape, rows, classes, use_counts, dtype):
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(rows, classes, *shape, generator=generator).to(dtype)
    ids = torch.randint(classes, (rows, *shape), generator=generator)
    counts = torch.rand(rows, classes, *shape, generator=generator).to(dtype)
    flat_logits, flat_counts = (x.movedim(1, -1).reshape(-1, classes) for x in (logits, counts))
    flat_targets = flat_counts if use_counts else ids.reshape(-1)
    value = belief_matching_loss(logits, counts if use_counts else ids, reduction="none")
    expected = belief_matching_loss(flat_logits, flat_targets, reduction="none")
    assert value.shape == (rows, *shape)
    torch.testing.assert_close(value.reshape(-1), expected, rtol=1e-6, atol=1e-7)
