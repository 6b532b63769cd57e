"""Rows and classes in Triton: which rows a program has, and what is taken over the classes of a row.

What there is one of in a row is of shape (rows, 1), classes are of shape (1, block).
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
# Triton compiles these functions; to a type checker they never return.

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from beliefmatch.kernels.triton_math import INFINITY, bounded


@triton.jit
def rows_of_program(outer, inner, HAS_INNER: tl.constexpr, ROWS: tl.constexpr):
    """Places along outer and inner, and whether there is such a row; neighbours along inner if it has any."""
    return some_rows_of_program(tl.arange(0, ROWS)[:, None].to(tl.int64), outer, inner, HAS_INNER, ROWS)


@triton.jit
def some_rows_of_program(lanes, outer, inner, HAS_INNER: tl.constexpr, ROWS: tl.constexpr):
    """The same for some of a program's rows, by their numbers in it."""
    if HAS_INNER:
        blocks = tl.cdiv(inner, ROWS)
        i = tl.zeros_like(lanes) + tl.program_id(0) // blocks
        j = (tl.program_id(0) % blocks).to(tl.int64) * ROWS + lanes
    else:
        i = tl.program_id(0).to(tl.int64) * ROWS + lanes
        j = tl.zeros_like(i)
    return i, j, (i < outer) & (j < inner)


@triton.jit
def classes_from(start, BLOCK: tl.constexpr):
    """The numbers of a block's classes."""
    return (start + tl.arange(0, BLOCK).to(tl.int64))[None, :]


@triton.jit
def total(x):
    """Σ over the classes."""
    return tl.sum(x, 1, keep_dims=True)


@triton.jit
def most(x):
    """The largest over the classes."""
    return tl.max(x, 1, keep_dims=True)


@triton.jit
def largest_class(logits, stride, exists, classes, BLOCK: tl.constexpr, dtype: tl.constexpr):
    """Its logit and place, and whether the row is free of NaN and +∞."""
    place = tl.zeros_like(exists.to(tl.int64))
    top, worst = place.to(dtype) - INFINITY, place.to(tl.int32)
    for start in range(0, classes, BLOCK):
        k = classes_from(start, BLOCK)
        z = tl.load(logits + k * stride, mask=exists & (k < classes), other=-INFINITY).to(dtype)
        is_bad = (z != z) | (z == INFINITY)
        worst = tl.maximum(worst, most(is_bad.to(tl.int32)))
        best, at = tl.max(tl.where(is_bad, 0.0, z), 1, return_indices=True, keep_dims=True)
        is_new = best > top
        top, place = tl.where(is_new, best, top), tl.where(is_new, start + at, place)
    return bounded(top), place, (worst == 0) & (top > -INFINITY)
