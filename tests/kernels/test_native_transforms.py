"""Whatever has to see torch's operations sees the reference's; the native kernel steps aside unnoticed."""

import pytest
import torch
from torch.func import grad, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from beliefmatch import belief_matching_loss
from kernel_pair import NEEDS_NATIVE, assert_same_by_both, batch, using

pytestmark = NEEDS_NATIVE
LOGITS, TARGETS = batch(5, 7)


def tracked(x=LOGITS):
    return x.clone().requires_grad_()


def loss_of(logits, **options):
    return belief_matching_loss(logits, TARGETS, **options)


def forward_mode():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(LOGITS, LOGITS.cos())
        return torch.autograd.forward_ad.unpack_dual(loss_of(dual)).tangent


def transformed_beside_tracked_logits():
    z = tracked()
    return torch.autograd.grad(vmap(lambda s: s * loss_of(z))(torch.arange(3.0)).sum(), z)[0]


def traced():
    return make_fx(loss_of)(LOGITS)(2 * LOGITS)


def jit_traced():
    return torch.jit.trace(loss_of, (LOGITS,), check_trace=False)(2 * LOGITS)


MACHINERY = {
    "vmap": lambda: vmap(belief_matching_loss)(LOGITS, TARGETS),
    "vmap over ids": lambda: vmap(lambda y: belief_matching_loss(LOGITS, y))(TARGETS.expand(3, 5)),
    "vmap of grad": lambda: vmap(grad(belief_matching_loss))(LOGITS, TARGETS),
    "vmap beside": transformed_beside_tracked_logits,
    "jacrev": lambda: jacrev(lambda z: loss_of(z, reduction="none"))(LOGITS),
    "jvp": lambda: jvp(loss_of, (LOGITS,), (LOGITS.cos(),)),
    "forward mode": forward_mode,
    "make_fx": traced,
    "jit": jit_traced,
}


@pytest.mark.filterwarnings("ignore:.*:torch.jit.TracerWarning")
@pytest.mark.parametrize("name", MACHINERY)
def test_transforms_and_traces_do_not_depend_on_the_kernel(name):
    assert_same_by_both(MACHINERY[name])


def test_wrappers_without_memory_are_not_read():
    """torch has no rule for functions like the reference's and says so."""
    with using("native"), pytest.raises(RuntimeError, match="Functionalize"):
        torch.func.functionalize(loss_of)(LOGITS)


class Watch(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.seen += 1
        return function(*arguments, **(options or {}))


def test_modes_that_watch_operations_see_them():
    with using("native"), Watch() as watch:
        loss_of(LOGITS)
    assert watch.seen > 10


class Marked(torch.Tensor):
    pass


def test_subclasses_of_tensors_are_left_to_the_reference():
    with using("native"):
        loss = loss_of(LOGITS.as_subclass(Marked))
    assert type(loss) is Marked
    assert_same_by_both(lambda: loss_of(LOGITS.as_subclass(Marked)).as_subclass(torch.Tensor))


def test_negated_views_are_read_with_their_sign():
    negated = torch.complex(LOGITS, -LOGITS).conj().imag
    assert negated.is_neg() and torch.equal(negated, LOGITS)
    assert_same_by_both(lambda: loss_of(negated))
    counts = torch.complex(LOGITS, -LOGITS.exp()).conj().imag
    assert_same_by_both(lambda: belief_matching_loss(LOGITS, counts))
    z = tracked(LOGITS.half())
    assert_same_by_both(lambda: torch.autograd.grad(loss_of(z, reduction="none"), z, negated[:, 0])[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_without_memory_are_zeros(dtype):
    z = tracked(LOGITS.to(dtype))
    nothing = torch._efficientzerotensor(())
    with using("native"):
        (gradient,) = torch.autograd.grad(loss_of(z), z, nothing)
    assert not gradient.any()


def test_numbers_that_straddle_their_places_in_memory_are_left_to_the_reference():
    memory = bytearray(b"\0" + LOGITS.numpy().tobytes())
    askew = torch.frombuffer(memory, dtype=torch.float32, offset=1).view(LOGITS.shape)
    assert askew.data_ptr() % 4 and torch.equal(askew, LOGITS)
    assert_same_by_both(lambda: loss_of(askew))
