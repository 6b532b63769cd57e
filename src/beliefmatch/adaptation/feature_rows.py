"""Rows of features with their targets: the data that heads are fitted on, whole or in part."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beliefmatch._torch_state import ordinary
from beliefmatch._utils import derive_seed
from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.fitted import Init
from beliefmatch.data.splits import resolve_count, stratified_rows

__all__ = [
    "BLOCK_NUMBERS",
    "Features",
    "Rows",
    "block_size",
    "features_digest",
    "labelled",
    "ordered",
    "require_finite",
    "require_init",
    "require_labels",
    "tensors_digest",
]

_STRETCH = 4096  # rows that are read or converted together
_SPLIT = 21  # stream of random numbers of the hold-out


class PickedRows:
    """Rows of another array by their indices, read-only; only the rows requested are read.

    Args:
        rows: Features (N, F).
        indices: Indices of the rows, in the order of this array.
    """

    ndim = 2

    def __init__(self, rows: "Rows", indices: np.ndarray) -> None:
        self._rows, self._indices = rows, indices
        self.shape: tuple[int, int] = (len(indices), rows.shape[1])
        self.dtype: np.dtype = rows.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice | np.ndarray | Sequence[int] | int) -> np.ndarray:
        """Rows by a slice, by their indices in any order, or one by its index."""
        indices = self._indices[key if isinstance(key, slice) else np.asarray(key)]
        return np.asarray(self._rows[indices])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise fail("PickedRows", "`copy` must not be False, picked rows have to be copied.")
        return np.array(self[:], dtype=dtype)


Rows = np.ndarray | PickedRows
"""Features (N, F): an array, a memory map, or some rows of one."""


@dataclass(frozen=True, eq=False)
class Features:
    """Inputs of the last layer, (N, F), and their class ids (N,) or counts (N, K).

    Args:
        rows: Floating point of 16, 32 or 64 bits.
        targets: Class ids, int64 (N,), -1 for no class; or counts, floating point (N, K). On the CPU.
        digest: Digest of model, weights, preprocessing and data, or of the features themselves.
    """

    rows: Rows
    targets: Tensor
    digest: str

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or 0 in self.rows.shape:
            raise fail("Features", f"`rows` must have shape (N, F), got {tuple(self.rows.shape)}.")
        ids = self.targets.dtype == torch.int64 and self.targets.dim() == 1
        counts = self.targets.is_floating_point() and self.targets.dim() == 2
        if not (ids or counts) or len(self.targets) != len(self.rows):
            expected = f"int64 ids ({len(self.rows)},) or floating-point counts ({len(self.rows)}, K)"
            got = f"{self.targets.dtype} of shape {tuple(self.targets.shape)}".removeprefix("torch.")
            raise fail("Features", f"`targets` must be {expected}, got {got}.")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """F, the number of features of a row."""
        return self.rows.shape[1]

    def blocks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows as float32 and their targets, `size` at a time (the last block may be smaller), in order."""
        if size < 1:
            raise fail("blocks", f"`size` must be at least 1, got {size}.")
        for start in range(0, len(self), size):
            rows = torch.empty(min(size, len(self) - start), self.width, dtype=torch.float32, device="cpu")
            for first in range(0, len(rows), _STRETCH):  # no copy in another type of more than a stretch
                last = min(first + _STRETCH, len(rows))
                with np.errstate(over="ignore"):  # infinity is reported by `require_finite`
                    rows.numpy()[first:last] = self.rows[start + first : start + last]
            yield rows, self.targets[start : start + size]

    def subset(self, indices: np.ndarray) -> "Features":
        """The features of some rows, in the order of their indices; no row is read."""
        indices = np.asarray(indices, dtype=np.int64)
        if indices.ndim != 1 or not len(indices):
            raise fail("subset", f"`indices` must be at least one row index, got shape {indices.shape}.")
        if indices.min() < 0 or indices.max() >= len(self):
            got = f"{indices.min()} to {indices.max()}"
            raise fail("subset", f"`indices` must lie in 0 to {len(self) - 1}, got {got}.")
        digest = hashlib.sha256(self.digest.encode() + indices.astype("<i8").tobytes()).hexdigest()
        return Features(PickedRows(self.rows, indices), self.targets[torch.from_numpy(indices)], digest)

    def hold_out(self, share: float, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the rows that remain, and of those held out for validation in proportion to the classes.

        Both ascend. The class of a row of counts is that of the most votes. Rows of no class remain, and so
        does one row of each class: nothing could be fitted without it.

        Args:
            share: A fraction below 1 of the rows that have a class, or a number of rows.
            seed: Seed of the draw.
        """
        if not share > 0:
            raise fail("adapt", f"`validation` must be a positive fraction or number of rows, got {share!r}.")
        targets = self.targets
        ids = targets if targets.dim() == 1 else torch.where(targets.sum(1) > 0, targets.argmax(1), -1)
        known = (ids >= 0).nonzero()[:, 0].numpy()
        if not len(known):
            got = f"none of {len(self)}"
            if targets.dim() == 1:
                got += f": its class ids run from {int(ids.min())} to {int(ids.max())}; number them from 0"
            raise fail("adapt", f"`train` must have rows that belong to a class, got {got}.")
        labels, count = ids.numpy()[known], resolve_count(share, len(known))
        drawn = stratified_rows(labels, count, derive_seed(seed, _SPLIT))
        rest = np.setdiff1d(np.arange(len(labels)), drawn, assume_unique=True)
        classes, first = np.unique(labels[drawn], return_index=True)
        drawn = np.delete(drawn, first[~np.isin(classes, labels[rest])])
        if not len(drawn):
            fact = "`train` must have two rows of a class to hold one out for validation"
            got = f"{len(labels)} rows of {len(np.unique(labels))} classes"
            raise fail("adapt", f"{fact}, got {got}; give `validation` examples.")
        picked = known[drawn]
        return np.setdiff1d(np.arange(len(self)), picked, assume_unique=True), picked


def tensors_digest(*tensors: Tensor) -> str:
    """SHA-256 of types, shapes and values."""
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        plain = tensor.detach().to("cpu").contiguous().reshape(-1)
        state.update(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
    return state.hexdigest()


def features_digest(rows: Rows, targets: Tensor) -> str:
    """SHA-256 of features and targets."""
    state = hashlib.sha256(f"{rows.dtype.str}{rows.shape}{tensors_digest(targets)}".encode())
    for start in range(0, len(rows), _STRETCH):
        state.update(np.ascontiguousarray(rows[start : start + _STRETCH]).view(np.uint8).data)
    return state.hexdigest()


BLOCK_NUMBERS = 4_000_000
"""Numbers of features that are read at once where order does not matter: 16 MB."""


def block_size(features: Features) -> int:
    """Rows to read at once."""
    return max(1, BLOCK_NUMBERS // features.width)


def labelled(features: Features) -> Tensor:
    """Indices of the rows that belong to a class: ids or counts that are not negative."""
    targets = features.targets
    known = targets >= 0 if targets.dim() == 1 else (targets >= 0).all(1)
    return known.nonzero()[:, 0]


def require_init(function: str, init: Init) -> Init:
    """Weight and bias of one head, in float32."""
    weight, bias = init
    if weight.dim() != 2 or bias.shape != weight.shape[:1]:
        got = f"{describe(weight)} and {describe(bias)}"
        raise fail(function, f"`init` must be a weight (K, F) and a bias (K,), got {got}.")
    if not bool(weight.isfinite().all() and bias.isfinite().all()):
        raise fail(function, "`init` must be finite, got weights that are not.")
    return ordinary(weight.detach().cpu().float()), ordinary(bias.detach().cpu().float())


def require_labels(function: str, name: str, features: Features, classes: int, width: int) -> None:
    """Features must have the head's width, finite numbers, and targets of its classes."""
    targets = features.targets
    if features.width != width:
        raise fail(function, f"`{name}` must have rows of {width} numbers, got {features.width}.")
    if targets.dim() == 2 and targets.shape[1] != classes:
        raise fail(function, f"`{name}` must have counts of {classes} classes, got {targets.shape[1]}.")
    if targets.dim() == 1 and len(wrong := targets[targets >= classes].unique()):
        ids = f"class ids from 0 to {classes - 1}, or −1 for none"
        raise fail(function, f"`{name}` must have {ids}, got {', '.join(map(str, wrong[:10].tolist()))}.")
    if not len(labelled(features)):
        raise fail(function, f"`{name}` must have rows that belong to a class, got none of {len(features)}.")
    require_finite(function, name, features)


def require_finite(function: str, name: str, features: Features) -> None:
    """Features must be finite numbers in float32."""
    size = block_size(features)
    for number, (block, _) in enumerate(features.blocks(size)):
        if not bool(block.sum().isfinite()) and not bool(block.isfinite().all()):
            row, column = (~block.isfinite()).nonzero()[0].tolist()
            value = features.rows[number * size + row][column]
            fact = f"`{name}` must have features that are finite in float32"
            raise fail(function, f"{fact}, got {value:.6g} in row {number * size + row}.")


def ordered(features: Features, indices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows at these indices in float32 and their targets, in order, some at a time."""
    wanted, size = torch.zeros(len(features), dtype=torch.bool), block_size(features)
    wanted[indices] = True
    for (rows, targets), chosen in zip(features.blocks(size), wanted.split(size), strict=True):
        if bool(chosen.all()):
            yield rows, targets
        elif bool(chosen.any()):
            yield rows[chosen], targets[chosen]
