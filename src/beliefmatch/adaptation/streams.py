"""Inputs and targets batch by batch, from whatever holds them, always in the same order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.sampler import RandomSampler, SequentialSampler, SubsetRandomSampler

from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.keys import tensors_digest

__all__ = ["Piece", "Stream", "as_stream", "as_tensor"]

_CALLER = "extract"
_INPUTS = ("pixel_values", "images", "image", "inputs", "x")
_ARRAYS = (Tensor, np.ndarray)
_TARGETS = ("labels", "label", "targets", "target", "y")


class Piece(NamedTuple):
    """Inputs of neighbouring rows, from `start` on, and their targets: int64 (n,) or float32 (n, K)."""

    start: int
    inputs: Tensor
    targets: Tensor


class Stream(Protocol):
    """Examples in a fixed order."""

    rows: int | None
    """How many; None where nobody knows before the end."""
    data_key: str | None
    """What tells the data from other data, where the data themselves say it."""

    def first(self) -> Piece:
        """Some rows from the beginning."""
        ...

    def pieces(self, shard_rows: int, is_there: Callable[[int], bool]) -> Iterator[Piece]:
        """Pieces that cover at least the shards that are not there, in order."""
        ...

    def picked(self, indices: Sequence[Tensor]) -> Iterator[Piece] | None:
        """One piece for each tensor of row numbers, if rows can be read in any order."""
        ...


def as_stream(source: Any, *, batch_size: int, device: torch.device) -> Stream:
    """Take a source for what it is; see `beliefmatch.adaptation.features.extract`."""
    if batch_size < 1:
        raise fail(_CALLER, f"`batch_size` must be at least 1, got {batch_size}.")
    if all(hasattr(source, name) for name in ("batches", "targets", "shape")):
        return _Indexed(_from_source(source, device), range(len(source)), batch_size)
    if isinstance(source, tuple) and len(source) == 2 and all(isinstance(one, _ARRAYS) for one in source):
        source = TensorDataset(*_of_one_length(*map(as_tensor, source)))
    if isinstance(source, DataLoader):
        return _of_loader(source)
    if isinstance(source, IterableDataset):
        return _Iterated(DataLoader(source, batch_size))
    if isinstance(source, Dataset) or _is_dataset(source):
        key = tensors_digest(*source.tensors) if isinstance(source, TensorDataset) else None
        return _Indexed(_from_dataset(source), range(len(source)), batch_size, key)  # type: ignore[arg-type]
    if isinstance(source, Iterable) and not isinstance(source, Tensor | str | bytes | Mapping):
        return _Iterated(source)
    expected = "a beliefmatch source, a Dataset, a DataLoader, (inputs, targets) or an iterable of batches"
    raise fail(_CALLER, f"`source` must be {expected}, got {describe(source)}.", TypeError)


def as_tensor(values: Any) -> Any:
    """A numpy array as a tensor, with float64 (numpy's default) as float32; other values unchanged."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind not in "biuf":
        raise fail(_CALLER, f"`source` must hold numbers, got an array of {values.dtype}.", TypeError)
    native = values.astype(values.dtype.newbyteorder("="), copy=not values.flags.writeable)
    tensor = torch.from_numpy(np.ascontiguousarray(native))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


class _Indexed:
    """Rows that can be read in any order: only those are read that are wanted."""

    def __init__(
        self,
        read: Callable[[list[Tensor]], Iterator[Any]],
        numbers: Sequence[int],
        batch_size: int,
        data_key: str | None = None,
    ) -> None:
        if len(numbers) == 0:
            raise fail(_CALLER, "`source` must have at least one example, got none.")
        self._read, self._batch_size = read, batch_size
        self._numbers = torch.tensor(numbers)
        self.rows: int | None = len(numbers)
        self.data_key = data_key

    def first(self) -> Piece:
        (batch,) = self._read([self._numbers[: self._batch_size]])
        return _piece(0, batch)

    def pieces(self, shard_rows: int, is_there: Callable[[int], bool]) -> Iterator[Piece]:
        # A batch is of one shard, so that a shard is computed alike whichever others are there.
        shards = torch.arange(len(self._numbers)).split(shard_rows)
        missing = [rows for shard, rows in enumerate(shards) if not is_there(shard)]
        wanted = [chosen for rows in missing for chosen in rows.split(self._batch_size)]
        batches = self._read([self._numbers[chosen] for chosen in wanted])
        for chosen, batch in zip(wanted, batches, strict=True):
            yield _piece(int(chosen[0]), batch, len(chosen))

    def picked(self, indices: Sequence[Tensor]) -> Iterator[Piece] | None:
        batches = self._read([self._numbers[chosen] for chosen in indices])
        return (
            _piece(int(chosen[0]), batch, len(chosen)) for chosen, batch in zip(indices, batches, strict=True)
        )


class _Iterated:
    """Batches that come one after the other, with no way to ask for one of them."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.rows: int | None = None
        self.data_key: str | None = None

    def first(self) -> Piece:
        iterator = iter(self._batches)
        batch = next(iterator, None)
        if batch is None:
            raise fail(_CALLER, "`source` must have at least one batch, got none.")
        if iterator is self._batches:  # comes once only
            self._batches = chain([batch], iterator)
        return _piece(0, batch)

    def pieces(self, shard_rows: int, is_there: Callable[[int], bool]) -> Iterator[Piece]:
        start = 0
        for batch in self._batches:
            piece = _piece(start, batch)
            yield piece
            start += len(piece.targets)

    def picked(self, indices: Sequence[Tensor]) -> Iterator[Piece] | None:
        return None


def _of_loader(loader: DataLoader) -> Stream:
    """Its dataset in the dataset's order where the loader only shuffles it, else what the loader gives."""
    sampler, size = loader.sampler, loader.batch_size
    whole = type(sampler) is SequentialSampler
    whole |= type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    picked = type(sampler) is SubsetRandomSampler
    if size is None or isinstance(loader.dataset, IterableDataset) or not (whole or picked):
        return _Iterated(loader)
    numbers = range(len(loader.dataset)) if whole else sorted(sampler.indices)  # type: ignore[arg-type]
    key = tensors_digest(*loader.dataset.tensors) if isinstance(loader.dataset, TensorDataset) else None
    return _Indexed(_from_dataset(loader.dataset, loader), numbers, size, key if whole else None)


def _from_source(source: Any, device: torch.device) -> Callable[[list[Tensor]], Iterator[Any]]:
    return lambda indices: source.batches(indices, device=device)


def _from_dataset(dataset: Any, like: DataLoader | None = None) -> Callable[[list[Tensor]], Iterator[Any]]:
    names = ("num_workers", "collate_fn", "worker_init_fn", "multiprocessing_context", "timeout")
    options: dict[str, Any] = {} if like is None else {name: getattr(like, name) for name in names}

    def read(indices: list[Tensor]) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(
            0
        )  # or the caller's own stream of chance would be drawn from
        order = [chosen.tolist() for chosen in indices]
        return iter(DataLoader(dataset, batch_sampler=order, generator=generator, **options))

    return read


def _of_one_length(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
        got = f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
        raise fail(_CALLER, f"`source` must be as many inputs as targets, got shapes {got}.")
    return inputs, targets


def _is_dataset(source: Any) -> bool:
    sized = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return sized and not isinstance(source, list | tuple | Mapping | str | bytes | Tensor)


def _piece(start: int, batch: Any, rows: int | None = None) -> Piece:
    inputs, targets = map(as_tensor, _divided(batch))
    if not isinstance(inputs, Tensor) or inputs.dim() < 2:
        expected = "batches with a tensor of inputs, one row for each example"
        raise fail(_CALLER, f"`source` must have {expected}, got {describe(inputs)}.")
    labels = torch.full((len(inputs),), -1) if targets is None else _labels(targets)
    if len(labels) != len(inputs) or len(inputs) != (rows or len(inputs)):
        fact = f"`source` must have as many targets as inputs in each batch, {rows or len(inputs)}"
        raise fail(_CALLER, f"{fact}, got {len(labels)} for {len(inputs)} inputs at row {start}.")
    return Piece(start, inputs, labels)


def _divided(batch: Any) -> tuple[Any, Any]:
    """Inputs, and targets or None."""
    if isinstance(batch, Mapping):
        inputs, targets = (
            next((batch[name] for name in names if name in batch), None) for names in (_INPUTS, _TARGETS)
        )
        if inputs is None:
            expected, received = " or ".join(_INPUTS), ", ".join(map(str, batch))
            raise fail(_CALLER, f"`source` must have batches with {expected}, got {received}.")
        return inputs, targets
    if isinstance(batch, tuple | list) and len(batch) in (1, 2):
        return batch[0], batch[1] if len(batch) == 2 else None
    if isinstance(batch, _ARRAYS):
        return batch, None
    raise fail(_CALLER, f"`source` must have batches (inputs, targets), got {describe(batch)}.", TypeError)


def _labels(targets: Any) -> Tensor:
    labels = torch.as_tensor(targets).detach().to("cpu")
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if whole and labels.dim() == 1:
        return labels.to(torch.int64)
    counted = labels.is_floating_point() or (whole and labels.shape[-1:] != (1,))  # (n, 1) may be ids
    if counted and labels.dim() == 2 and (labels.isfinite() & (labels >= 0)).all():
        return labels.to(torch.float32)
    expected = "class ids, whole numbers (n,), or finite counts not below 0, (n, K), as targets"
    raise fail(_CALLER, f"`source` must have {expected}, got {describe(labels)}.")
