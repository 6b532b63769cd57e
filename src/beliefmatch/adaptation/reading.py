"""Batches of features, in memory or from disk.

What fits into memory is held there and every epoch is one shuffle of all rows. What does not is read in
pieces of neighbouring rows, the pieces in another order in every epoch; as many as there is room for are
shuffled together. Files are read in long strides then, and batches are nearly as mixed.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail, require_index
from beliefmatch.adaptation.types import Features, in_memory
from beliefmatch.train.sampler import EpochSampler

__all__ = ["BLOCK_NUMBERS", "Batches", "block_size", "labelled", "ordered", "require_labels"]

BLOCK_NUMBERS = 4_000_000
"""Numbers of features that are read at once where order does not matter: 16 MB."""
_PIECE = 256  # neighbouring rows
_PIECES, _WITHIN = 3, 4  # what a seed is for


def block_size(features: Features) -> int:
    """Rows to read at once."""
    return max(1, BLOCK_NUMBERS // max(1, features.rows.shape[1]))


def labelled(features: Features) -> Tensor:
    """Places of the rows that belong to a class: ids or counts that are not negative."""
    targets = features.targets
    known = targets >= 0 if targets.dim() == 1 else (targets >= 0).all(1)
    return known.nonzero()[:, 0]


def require_labels(function: str, name: str, features: Features, classes: int, width: int) -> None:
    """Features must have the head's width, finite numbers, and targets of its classes."""
    rows, targets = features.rows, features.targets
    if rows.ndim != 2 or rows.shape[1] != width:
        raise fail(function, f"`{name}` must have rows of {width} numbers, got shape {tuple(rows.shape)}.")
    if len(targets) != len(rows):
        raise fail(function, f"`{name}` must have {len(rows)} targets, one a row, got {len(targets)}.")
    if targets.dim() == 2 and targets.shape[1] != classes:
        raise fail(function, f"`{name}` must have counts of {classes} classes, got {targets.shape[1]}.")
    if targets.dim() == 1 and len(targets) and int(targets.max()) >= classes:
        wrong = sorted({int(one) for one in targets[targets >= classes]})
        ids = f"class ids from 0 to {classes - 1}, or −1 for none"
        raise fail(function, f"`{name}` must have {ids}, got {', '.join(map(str, wrong[:10]))}.")
    if not len(labelled(features)):
        raise fail(function, f"`{name}` must have rows that belong to a class, got none of {len(rows)}.")
    at = 0
    for block, _ in features.blocks(block_size(features)):
        if not bool(block.sum().isfinite()) and not bool(block.isfinite().all()):
            place = at + int((~block.isfinite().all(1)).nonzero()[0, 0])
            raise fail(
                function, f"`{name}` must be finite, got {block[place - at].sum().item()} in row {place}."
            )
        at += len(block)


def ordered(features: Features, places: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows at these places in float32 and their targets, in order, some at a time."""
    wanted = torch.zeros(len(features), dtype=torch.bool)
    wanted[places] = True
    at = 0
    for rows, targets in features.blocks(block_size(features)):
        chosen = wanted[at : at + len(rows)]
        at += len(rows)
        if bool(chosen.all()):
            yield rows, targets
        elif bool(chosen.any()):
            yield rows[chosen], targets[chosen]


class Batches:
    """Shuffled batches of the rows that belong to a class, a function of the seed and the epoch.

    Args:
        features: rows and targets.
        batch_size: rows of a batch.
        seed: of the order.
        memory: bytes that the rows may take.
    """

    def __init__(self, features: Features, batch_size: int, seed: int, memory: int) -> None:
        if require_index("fit_heads", "batch_size", batch_size) < 1:
            raise fail("fit_heads", f"`batch_size` must be at least 1, got {batch_size}.")
        self.features, self.batch_size, self.seed, self.memory = features, batch_size, seed, memory
        self.places = labelled(features)
        self.sampler = EpochSampler(len(self.places), batch_size, seed)
        held = in_memory(features.rows, memory)
        self.rows = None if held is None else torch.from_numpy(held)
        self._room: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def in_memory(self) -> bool:
        """Whether all rows are held."""
        return self.rows is not None

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows in float32 and targets; the memory of a batch is used again for the next."""
        if self.rows is None:
            yield from self._streamed(epoch)
            return
        targets = self.features.targets
        for chosen in self.sampler.batches(epoch):
            places = self.places[chosen]
            yield self._picked(self.rows, places), targets[places]

    def _picked(self, rows: Tensor, places: Tensor) -> Tensor:
        many = len(places)
        if many not in self._room:
            raw = torch.empty(many, rows.shape[1], dtype=rows.dtype)
            self._room[many] = raw, raw if rows.dtype == torch.float32 else torch.empty(raw.shape)
        raw, room = self._room[many]
        torch.index_select(rows, 0, places, out=raw)
        return room if room is raw else room.copy_(raw)

    def _streamed(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        pieces = self.places.split(_PIECE)
        order = _shuffled(len(pieces), derive_seed(self.seed, _PIECES, epoch))
        together = max(
            1, self.memory // (8 * _PIECE * self.features.rows.shape[1])
        )  # as read, and in float32
        left = self.places[:0]
        for number, chosen in enumerate(order.split(together)):
            window = torch.cat([left, *(pieces[int(piece)] for piece in chosen)])
            window = window[_shuffled(len(window), derive_seed(self.seed, _WITHIN, epoch, number))]
            is_last = (number + 1) * together >= len(pieces)
            batches, left = _cut(window, self.batch_size, is_last)
            yield from self._read(batches)

    def _read(self, batches: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        if not batches:
            return
        places, inverse = torch.cat(batches).sort()
        rows = torch.empty(len(places), self.features.rows.shape[1])
        for start in range(0, len(places), _PIECE):
            part = self.features.rows[places[start : start + _PIECE].numpy()]
            rows[inverse[start : start + _PIECE]] = torch.from_numpy(np.asarray(part, dtype=np.float32))
        at = 0
        for batch in batches:
            yield rows[at : at + len(batch)], self.features.targets[batch]
            at += len(batch)


def _cut(window: Tensor, size: int, is_last: bool) -> tuple[list[Tensor], Tensor]:
    """Whole batches, and the rest for the next window; at the end a rest of one joins the batch before."""
    whole, rest = divmod(len(window), size)
    if not is_last:
        return [*window[: whole * size].split(size)] if whole else [], window[whole * size :]
    batches = max(1, whole + (rest > 1))
    last = (batches - 1) * size
    return [*(window[:last].split(size) if last else ()), window[last:]], window[:0]


def _shuffled(many: int, seed: int) -> Tensor:
    return torch.randperm(many, generator=torch.Generator().manual_seed(seed))
