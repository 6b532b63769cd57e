"""Tensors as compiled code reads them: an address, a type, and three strides.

Of a tensor with classes along one dimension, the dimensions before it are walked as one and those after it as
another. Most layouts allow that as they are; others are copied.
"""

import math

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]
from torch.nn import Buffer, Parameter

__all__ = ["KINDS", "NOTHING", "has_numbers", "is_walkable", "sizes", "strided", "walkable"]

KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
NOTHING = (0, 0, 0, 0, 0)
PLAIN_TYPES = (Tensor, Parameter, Buffer)


def has_numbers(x: Tensor) -> bool:
    """Whether x is its own numbers in this process's memory: no subclass, function transform or tangent."""
    if type(x) not in PLAIN_TYPES or not x.is_cpu or unpack_dual(x).tangent is not None or is_tracing():
        return False
    try:
        x.data_ptr()
    except RuntimeError:  # the tensors of function transforms have no memory of their own
        return False
    return True


def sizes(shape: torch.Size, dim: int) -> tuple[int, int, int]:
    """Positions before the classes, classes, and positions after them."""
    if dim == 1 and len(shape) == 2:
        return shape[0], shape[1], 1
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def strided(x: Tensor, dim: int) -> tuple[int, int, int, int, int]:
    """Address, type, and the strides of the positions before the classes, the classes, and those after."""
    stride = x.stride()
    before = stride[dim - 1] if dim else 0
    after = stride[-1] if dim < len(stride) - 1 else 0
    return x.data_ptr(), KINDS[x.dtype], before, stride[dim], after


def walkable(x: Tensor, dim: int) -> Tensor:
    """x, copied if it cannot be walked."""
    return x if is_walkable(x, dim) else x.contiguous()


def is_walkable(x: Tensor, dim: int) -> bool:
    """Whether the dimensions before the classes are one walk of equal steps, and those after them."""
    if x.dim() <= 2:
        return True
    shape, stride = x.shape, x.stride()
    inner = (*range(dim - 1), *range(dim + 1, x.dim() - 1))
    return all(stride[i] == stride[i + 1] * shape[i + 1] or shape[i] == 1 for i in inner)
