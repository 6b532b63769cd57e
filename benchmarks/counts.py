"""Operations, memory traffic and peak memory of losses, counted by torch's dispatcher.

    python benchmarks/counts.py                             at 64x1000, forward and backward
    python benchmarks/counts.py --rows 512 --classes 50     at another shape

An operation is a call of torch's dispatcher that is not a view: on a GPU about one launch. Traffic is what
all of them read and write, peak memory what they hold at one time, both in multiples of the logits, which are
not in the peak themselves. A few microseconds a launch and the bandwidth of a device make a time of it.
"""

import argparse
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from beliefmatch import belief_matching_loss, kernels

__all__ = ["Counts", "count"]


class Counts(NamedTuple):
    """Of one pass, forward and backward."""

    operations: int
    traffic: float
    """In multiples of the logits, as the next."""
    peak: float
    wide_doubles: int
    """Results in double precision that are as large as the logits."""


class _Counter(TorchDispatchMode):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.wide, self.operations, self.traffic, self.peak, self.wide_doubles = wide, 0, 0, 0, 0
        self.held: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.detach.default or _is_view(func):
            return made
        outputs = [x for x in tree_leaves(made) if isinstance(x, Tensor)]
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self.operations += 1
        self.traffic += sum(_numbers_in_memory(x) * x.element_size() for x in inputs + outputs)
        self.wide_doubles += sum(x.numel() >= self.wide and x.dtype is torch.float64 for x in outputs)
        for storage in (x.untyped_storage() for x in outputs):
            key = storage._cdata
            if key not in self.held:
                self.held[key] = storage.nbytes()
                weakref.finalize(storage, self.held.pop, key, None)
        self.peak = max(self.peak, sum(self.held.values()))
        return made


def _is_view(function: Any) -> bool:
    aliases = (returned.alias_info for returned in function._schema.returns)
    return any(alias is not None and not alias.is_write for alias in aliases)


def _numbers_in_memory(x: Tensor) -> int:
    """Those along a dimension that is broadcast count once."""
    return math.prod(size for size, stride in zip(x.shape, x.stride(), strict=True) if stride)


def count(
    loss: Callable[[Tensor, Tensor], Tensor], rows: int = 64, classes: int = 1000, device: str = "cpu"
) -> Counts:
    """Counts of forward and backward with class ids, in the second call: constants have been copied by then.

    On the meta device values cannot be looked at, as on a GPU without waiting for it.
    """
    logits = torch.randn(rows, classes, device=device).requires_grad_()
    targets = torch.randint(classes, (rows,), device=device)
    loss(logits, targets).backward()
    logits.grad = None
    counter = _Counter(rows * classes)
    with counter:
        loss(logits, targets).backward()
    size = rows * classes * torch.float32.itemsize
    return Counts(counter.operations, counter.traffic / size, counter.peak / size, counter.wide_doubles)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Operations, memory traffic and peak memory of losses.")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--classes", type=int, default=1000)
    args = parser.parse_args()
    rows, classes = args.rows, args.classes

    def ours(logits: Tensor, targets: Tensor) -> Tensor:
        return belief_matching_loss(logits, targets, kl_weight=0.1 / classes)

    print(f"| {rows}x{classes}, float32 | operations | traffic | peak memory | wide results in double |")
    print("|---|---:|---:|---:|---:|")
    for name, kernel in (("F.cross_entropy", None), ("lean", "lean"), ("reference", "reference")):
        kernels.use(kernel or "auto")
        counts = count(F.cross_entropy if kernel is None else ours, rows, classes, "meta")
        print(f"| {name} | {counts[0]:,} | {counts[1]:,.1f} | {counts[2]:.1f} | {counts[3]} |")


if __name__ == "__main__":
    main()
