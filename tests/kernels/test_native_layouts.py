"""Where numbers lie in memory, which rows stand beside them and how many threads work changes no bit."""

import pytest
import torch

from beliefmatch import belief_matching_loss
from kernel_pair import TYPES, assert_kernels_agree, batch, loss_and_gradient, native_only

pytestmark = [
    pytest.mark.usefixtures("instruction_set"),
    pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight"),
]


def stepped(x):
    """The same numbers, every second one in each dimension of a larger tensor of NaN."""
    room = torch.full([2 * size for size in x.shape], float("nan"), dtype=x.dtype)
    window = room[tuple(slice(1, None, 2) for _ in x.shape)]
    return window.copy_(x)


def reversed_order(x):
    """The same numbers, dimensions in the opposite order in memory."""
    order = list(range(x.dim() - 1, -1, -1))
    return x.permute(order).contiguous().permute(order)


def classes_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def inner_swapped(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def shifted(x):
    """The same numbers, one element away from where memory was allocated."""
    return torch.cat([torch.zeros(1, dtype=x.dtype), x.flatten()])[1:].view(x.shape)


LAYOUTS = [stepped, reversed_order, classes_last, inner_swapped, shifted]
SHAPES = [(7, 19), (3, 5, 6), (2, 19, 3, 4), (2, 5, 2, 3, 4), (2, 5, 4, 1), (2, 5, 4, 1, 3), (3, 1, 2, 2)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_layout_changes_no_bit(shape, layout, dtype):
    torch.manual_seed(0)
    logits = (4 * torch.randn(shape)).to(dtype)
    rows = shape[:1] + shape[2:]
    ids, counts, prior = torch.randint(shape[1], rows), torch.rand(shape), torch.rand(shape) + 0.1
    upstream = torch.randn(rows)
    for targets, beta in ((ids, 1.0), (counts, 1.0), (ids, prior), (counts, prior)):
        moved = ids if targets is ids else layout(targets)
        moved_beta = layout(beta) if isinstance(beta, torch.Tensor) else beta
        with native_only():
            plain = loss_and_gradient(logits, targets, upstream, prior=beta, reduction="none")
            other = loss_and_gradient(layout(logits), moved, upstream, prior=moved_beta, reduction="none")
        assert torch.equal(plain[0], other[0]) and torch.equal(plain[1], other[1])
    assert_kernels_agree(layout(logits), ids, upstream, reduction="none")


@pytest.mark.parametrize("shape", [(2, 5, 4, 1, 9), (2, 5, 1, 4, 9), (2, 5, 4, 9, 1), (2, 5, 1, 1, 9)])
def test_windows_of_volumes_that_are_one_voxel_deep(shape):
    torch.manual_seed(0)
    logits, counts = torch.randn(shape)[..., :5], torch.rand(shape)[..., :5]
    rows = logits.shape[:1] + logits.shape[2:]
    assert_kernels_agree(logits, torch.randint(5, rows), torch.randn(rows), reduction="none")
    assert_kernels_agree(logits, counts, torch.randn(rows), reduction="none")
    across = torch.randn(2, 5, 1, 7).transpose(2, 3)  # contiguous, says torch, whatever its last stride
    assert_kernels_agree(across, torch.randint(5, (2, 7, 1)), reduction="sum")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("narrow", [(1, 6, 3, 4), (2, 1, 3, 4), (2, 6, 1, 4), (2, 6, 3, 1), (1, 1, 1, 1)])
def test_takes_expanded_tensors(narrow, dtype):
    torch.manual_seed(0)
    shape, ids = (2, 6, 3, 4), torch.randint(6, (2, 3, 4))
    logits, wide = torch.randn(narrow).to(dtype).expand(shape), torch.randn(shape).to(dtype)
    assert_kernels_agree(logits, ids)
    assert_kernels_agree(wide, torch.rand(narrow).expand(shape))
    assert_kernels_agree(wide, ids, prior=torch.rand(narrow) + 0.5)
    assert_kernels_agree(wide, torch.tensor(2).expand(2, 3, 4))


def test_takes_strided_ids_and_class_weights():
    logits, targets = batch(8, 5)
    weight = torch.rand(10)[::2]
    assert_kernels_agree(logits, torch.stack([targets, targets], 1)[:, 0], weight=weight)
    volume, ids = torch.randn(2, 5, 3, 4), torch.randint(5, (2, 4, 3)).transpose(1, 2)
    assert_kernels_agree(volume, ids, weight=weight.expand(5))
    assert_kernels_agree(volume, ids.int(), weight=torch.tensor(0.5).expand(5))


def test_takes_one_sample_without_a_batch():
    for logits in (torch.randn(9), torch.randn(18)[::2], torch.tensor(0.3).expand(9)):
        for targets in (torch.tensor(4), torch.rand(9), torch.rand(18)[1::2]):
            for reduction in ("mean", "none"):
                assert_kernels_agree(logits, targets, torch.tensor(3.0), reduction=reduction)
                assert_kernels_agree(logits, targets, prior=torch.rand(9) + 0.1, target_confidence=0.7)


def test_gradient_lies_in_memory_as_the_logits_do():
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    with native_only():
        _, gradient = loss_and_gradient(image, torch.randint(3, (2, 4, 5)))
    assert gradient.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("classes", [3, 17, 150, 3000])
def test_a_row_is_the_same_alone_in_a_batch_and_anywhere_in_it(classes, dtype):
    logits, targets = batch(37, classes, dtype, scale=9.0)
    logits[5, 1], logits[6] = 77.0, logits[30]
    targets[6] = targets[30]
    order = torch.randperm(37)
    with native_only():
        losses, gradients = loss_and_gradient(logits, targets, reduction="none")
        moved = loss_and_gradient(logits[order], targets[order], reduction="none")
        for row in (0, 5, 6, 15, 16, 36):
            alone = loss_and_gradient(logits[row : row + 1], targets[row : row + 1], reduction="none")
            assert torch.equal(alone[0][0], losses[row]) and torch.equal(alone[1][0], gradients[row])
    assert torch.equal(moved[0], losses[order]) and torch.equal(moved[1], gradients[order])
    assert torch.equal(losses[6], losses[30]) and torch.equal(gradients[6], gradients[30])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(61, 1000), (2, 50, 29, 23), (3, 20000)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_number_of_threads_changes_no_bit(reduction, shape, dtype):
    torch.manual_seed(0)
    logits = (3 * torch.randn(shape)).to(dtype)
    rows = shape[:1] + shape[2:]
    targets = torch.randint(shape[1], rows)
    upstream = torch.rand(rows) if reduction == "none" else torch.tensor(0.7)
    options = {"reduction": reduction, "weight": torch.rand(shape[1]), "kl_weight": 1e-5}
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with native_only():
                results.append(loss_and_gradient(logits, targets, upstream, **options))
    finally:
        torch.set_num_threads(1)
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0]) and torch.equal(gradient, results[0][1])


def test_many_threads_equal_the_reference():
    logits, targets = batch(61, 1000)
    try:
        torch.set_num_threads(4)
        assert_kernels_agree(logits, targets, kl_weight=1e-4)
        assert_kernels_agree(logits, torch.rand(61, 1000), kl_weight=1e-4)
    finally:
        torch.set_num_threads(1)


def test_neighbours_in_memory_are_not_touched():
    """A gradient is written where it belongs: the loss of a window leaves the frame as it was."""
    frame = torch.full((9, 21), 7.0)
    window = frame[1:8, 1:20]
    window.copy_(torch.randn(7, 19))
    before = frame.clone()
    with native_only():
        z = window.detach().requires_grad_()
        belief_matching_loss(z, torch.randint(19, (7,))).backward()
    assert torch.equal(frame, before) and z.grad.shape == (7, 19)
