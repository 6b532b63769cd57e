"""Rows of predictions summarised for the metrics by the compiled kernel, in one pass on torch's threads.

`metrics._readings` defines the numbers. The kernel returns None for what it does not support: tensors that
are not plain numbers, and rows that are not probabilities or logits; the caller then names the error.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch._rows import result_dtype
from beliefmatch.kernels.native import extension, is_plain_cpu, is_traced, strided

__all__ = ["LogitsReading", "ProbsReading", "blocks", "read_logits", "read_probs"]

_BLOCK = 1 << 18  # numbers converted at a time: a megabyte in single precision, which stays in the cache

_COLUMNS = (torch.int64, torch.int64, *(torch.float64,) * 6)


class ProbsReading(NamedTuple):
    """Summary of each of N rows of probabilities; float64 but for the first two."""

    best: Tensor
    """Most probable class, int64; of tied classes the first."""
    rank: Tensor
    """Number of classes that come before the target, int64: more probable, or tied and of smaller id."""
    top: Tensor
    """Probability of the best class."""
    own: Tensor
    """Probability of the target."""
    squares: Tensor
    """Σ p² without the target's."""
    entropy: Tensor
    """−Σ p ln p; NaN if it was not requested."""


class LogitsReading(NamedTuple):
    """Summary of each of N rows of logits, with d = z − max z; float64 but for the first two.

    The sums leave out the largest term, 1, so that they keep their digits where it is nearly all.
    """

    best: Tensor
    """Most probable class, int64; of tied classes the first."""
    rank: Tensor
    """Number of classes that come before the target, int64: more probable, or tied and of smaller id."""
    top: Tensor
    """Logit of the best class."""
    own: Tensor
    """Logit of the target."""
    squares: Tensor
    """Σ e^2d."""
    depths: Tensor
    """Σ d e^d; NaN if the entropy was not requested."""
    share: Tensor
    """e^d of the target; 0 where it is the best class."""
    rest: Tensor
    """Σ e^d."""


def read_probs(probs: Tensor, targets: Tensor, sum_tolerance: float, entropy: bool) -> ProbsReading | None:
    """Read rows whose sum is one up to the tolerance; targets are contiguous int64 on the CPU."""
    found = _read(probs, targets, len(ProbsReading._fields), (True, entropy, sum_tolerance))
    return None if found is None else ProbsReading(*found)


def read_logits(logits: Tensor, targets: Tensor, entropy: bool) -> LogitsReading | None:
    """Read rows with a finite largest logit; targets are contiguous int64 on the CPU."""
    found = _read(logits, targets, len(LogitsReading._fields), (False, entropy, 0.0))
    return None if found is None else LogitsReading(*found)


def blocks(values: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows that fit the cache, and the next, contiguous on the CPU in single or double precision."""
    step, dtype = max(1, _BLOCK // values.shape[1]), result_dtype(values.dtype)
    for start in range(0, len(values), step):
        rows = values[start : start + step].detach().to("cpu", dtype).contiguous()
        yield slice(start, start + step), rows


def _read(
    values: Tensor, targets: Tensor, n_columns: int, options: tuple[bool, bool, float]
) -> list[Tensor] | None:
    """The first `n_columns` of `_COLUMNS` for all rows, or None."""
    if is_traced() or not is_plain_cpu(targets):
        return None
    parts = [(slice(None), values)] if _is_read_in_place(values) else blocks(values)
    found = []
    for span, rows in parts:
        # Each in its own memory, so that keeping one column does not keep them all.
        columns = [torch.empty(len(rows), dtype=kind, device="cpu") for kind in _COLUMNS[:n_columns]]
        if not is_plain_cpu(rows):
            return None
        source = *rows.shape, *strided(rows, 1), targets[span].data_ptr()
        addresses = (column.data_ptr() for column in columns)
        if not extension.read_rows(*source, *options, torch.get_num_threads(), *addresses):
            return None
        found.append(columns)
    return found[0] if len(found) == 1 else [torch.cat(column) for column in zip(*found, strict=True)]


def _is_read_in_place(values: Tensor) -> bool:
    """Whether the kernel reads the rows where they lie."""
    is_contiguous = values.stride(1) == 1 or values.shape[1] == 1
    return values.is_cpu and values.dtype in (torch.float32, torch.float64) and is_contiguous
