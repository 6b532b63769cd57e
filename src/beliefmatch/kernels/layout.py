"""Tensors as compiled code reads them: an address, a type, and three strides.

Of a tensor with classes along one dimension, the dimensions before it are walked as one and those after it as
another. Most layouts allow that as they are; others are copied.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch._C import (  # pyright: ignore[reportAttributeAccessIssue]
    _are_functorch_transforms_active,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad
from torch.nn import Buffer, Parameter

__all__ = [
    "KINDS",
    "NOTHING",
    "has_numbers",
    "is_walkable",
    "is_watched",
    "room_for",
    "sizes",
    "steps",
    "strided",
    "walkable",
]

KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
NOTHING = (0, 0, 0, 0, 0)
Steps = tuple[int, int, int, int]
PLAIN_TYPES = (Tensor, Parameter, Buffer)


def is_watched() -> bool:
    """Whether torch has to see every operation: for a trace, a transform, forward derivatives, or a mode."""
    return (
        _is_tracing()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    )


def has_numbers(x: Tensor) -> bool:
    """Whether x is its own numbers in this process's memory: no subclass, no function transform's."""
    if type(x) not in PLAIN_TYPES or not x.is_cpu or x.is_neg():
        return False
    try:
        address = x.data_ptr()
        return address != 0 and address % x.element_size() == 0
    except RuntimeError:  # the tensors of function transforms have no memory of their own
        return False


def sizes(shape: torch.Size, dim: int) -> tuple[int, int, int]:
    """Positions before the classes, classes, and positions after them."""
    if dim == 1 and len(shape) == 2:
        return shape[0], shape[1], 1
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def strided(x: Tensor, dim: int) -> tuple[int, int, int, int, int]:
    """Address, type, and the strides of the positions before the classes, the classes, and those after."""
    return x.data_ptr(), *steps(x.dtype, x.shape, x.stride(), dim)


def steps(dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], dim: int) -> Steps:
    """What `strided` says of a tensor beside its address."""
    if dim == 1 and len(stride) == 2:
        return KINDS[dtype], stride[0], stride[1], 0
    before, after = (group[-1][1] if group else 0 for group in _around(shape, stride, dim))
    return KINDS[dtype], before, stride[dim], after


def walkable(x: Tensor, dim: int) -> Tensor:
    """x, copied if it cannot be walked."""
    return x if x.dim() <= 2 or is_walkable(x, dim) else x.contiguous()


def is_walkable(x: Tensor, dim: int) -> bool:
    """Whether the dimensions before the classes are one walk of equal steps, and those after them."""
    neighbours = (pair for group in _around(x.shape, x.stride(), dim) for pair in pairwise(group))
    return all(stride == size_after * stride_after for (_, stride), (size_after, stride_after) in neighbours)


def room_for(x: Tensor, dim: int) -> Tensor:
    """Memory for a gradient by x, in the layout of x if that can be walked."""
    room = torch.empty_like(x)
    if room.dim() <= 2 or is_walkable(room, dim):
        return room
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _around(
    shape: Sequence[int], stride: Sequence[int], dim: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Size and stride of the dimensions before and after; those of size 1 have no stride to speak of."""
    pairs = list(zip(shape, stride, strict=True))
    before, after = ([pair for pair in group if pair[0] != 1] for group in (pairs[:dim], pairs[dim + 1 :]))
    return before, after
