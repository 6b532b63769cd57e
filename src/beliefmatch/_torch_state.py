"""What a caller may have set in torch, set aside while the library computes, for this thread alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["fitting", "on_cpu", "ordinary"]


@contextmanager
def on_cpu() -> Iterator[None]:
    """Let new tensors be on the CPU, wherever `torch.set_default_device` would put them."""
    if torch.get_default_device().type == "cpu":  # a mode costs time in every operation
        yield
    else:
        with torch.device("cpu"):
            yield


@contextmanager
def fitting() -> Iterator[None]:
    """`on_cpu`, and with gradients also under `torch.inference_mode` and `torch.no_grad`."""
    with torch.inference_mode(False), torch.enable_grad(), on_cpu():
        yield


def ordinary(tensor: Tensor) -> Tensor:
    """A copy of what was made under `torch.inference_mode`, which autograd refuses; others as they are."""
    return tensor.clone() if tensor.is_inference() else tensor
