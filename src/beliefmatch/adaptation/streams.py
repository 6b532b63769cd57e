"""Inputs and targets batch by batch, from whatever holds them, always in the same order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate
from torch.utils.data.sampler import RandomSampler, SequentialSampler, SubsetRandomSampler

from beliefmatch._utils import reason_of
from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.feature_rows import tensors_digest

__all__ = [
    "OOD",
    "IndexedStream",
    "Inputs",
    "Piece",
    "Stream",
    "as_stream",
    "given_streams",
    "map_inputs",
    "ood_sets",
    "tensors_of",
]

Inputs = Tensor | dict[str, Tensor]
"""What a network is given: one tensor, or tensors by name such as `input_ids` and `attention_mask`."""
OOD = "OOD "
"""Prefix of the names of out-of-distribution sets."""
BATCH_SIZE = 64
"""Examples at a time, where the source does not come in batches."""

Value = TypeVar("Value")
_ARRAYS = (Tensor, np.ndarray)
_INPUTS = ("pixel_values", "images", "image", "inputs", "x")
_TARGETS = ("labels", "label", "targets", "target", "y")
_READER_OPTIONS = ("num_workers", "collate_fn", "worker_init_fn", "multiprocessing_context", "timeout")


class Piece(NamedTuple):
    """Inputs of neighbouring rows from `start` on, and their targets: int64 (n,) or float32 (n, K)."""

    start: int
    inputs: Inputs
    targets: Tensor

    @property
    def stop(self) -> int:
        """Number of the row after the last."""
        return self.start + len(self.targets)

    def head(self, count: int) -> "Piece":
        """The first rows."""
        return Piece(self.start, map_inputs(lambda one: one[:count], self.inputs), self.targets[:count])


class Stream:
    """Examples in a fixed order, in batches that come one after the other.

    Args:
        argument: What the user calls these data, for errors.
        batches: The batches.
    """

    rows: int | None = None
    """Number of examples; None where it is not known before the end."""
    data_key: str | None = None
    """Digest of the data, where all of them are in memory."""

    def __init__(self, argument: str, batches: Iterable[Any]) -> None:
        self.argument, self._batches = argument, batches

    @property
    def is_repeatable(self) -> bool:
        """Whether the examples can be read more than once."""
        return not isinstance(self._batches, Iterator)

    def first(self) -> Piece:
        """Some rows from the beginning."""
        iterator = iter(self._batches)
        batch = next(iterator, None)
        if batch is None:
            raise _wrong(self.argument, "have at least one batch", "none")
        if iterator is self._batches:  # an iterator yields its batches only once
            self._batches = chain([batch], iterator)
        return self._piece(0, batch)

    def pieces(self, is_present: np.ndarray | None = None) -> Iterator[Piece]:
        """Batches in order; where rows can be read in any order, only those with a row that is missing.

        The batches are the same whichever rows are present, so that each row is always computed alike.
        """
        start = 0
        for batch in self._batches:
            piece = self._piece(start, batch)
            yield piece
            start = piece.stop

    def _piece(self, start: int, batch: Any, rows: int | None = None) -> Piece:
        inputs, targets = _divided(self.argument, batch)
        count = len(tensors_of(inputs)[0])
        of_none = torch.full((count,), -1, device="cpu")
        labels = of_none if targets is None else _labels(self.argument, targets)
        if len(labels) != count or count != (rows or count):
            expected = f"have as many targets as inputs in each batch, {rows or count}"
            raise _wrong(self.argument, expected, f"{len(labels)} for {count} inputs at row {start}")
        return Piece(start, inputs, labels)


class IndexedStream(Stream):
    """Examples that can be read in any order.

    Args:
        argument: What the user calls these data, for errors.
        read: Gives a batch for each tensor of row indices.
        indices: Indices of the rows, in the order of this stream.
        batch_size: Examples of a batch.
        data_key: Digest of the data, where all of them are in memory.
    """

    def __init__(
        self,
        argument: str,
        read: Callable[[list[Tensor]], Iterable[Any]],
        indices: Sequence[int] | Tensor,
        batch_size: int,
        data_key: str | None = None,
    ) -> None:
        if len(indices) == 0:
            raise _wrong(argument, "have at least one example", "none")
        super().__init__(argument, ())
        self._read, self._batch_size = read, batch_size
        self._indices = torch.as_tensor(indices, device="cpu")
        self.rows, self.data_key = len(indices), data_key

    def __len__(self) -> int:
        return len(self._indices)

    def first(self) -> Piece:
        """Some rows from the beginning."""
        (piece,) = self.picked([torch.arange(min(self._batch_size, len(self)), device="cpu")])
        return piece

    def pieces(self, is_present: np.ndarray | None = None) -> Iterator[Piece]:
        """Batches in order, only those with a row that is missing."""
        return self.picked(self.missing(is_present))

    def missing(self, is_present: np.ndarray | None = None) -> list[Tensor]:
        """Indices of the batches with a row that is missing."""
        batches = [*torch.arange(len(self), device="cpu").split(self._batch_size)]
        if is_present is None:
            return batches
        present = torch.from_numpy(is_present)
        return [batch for batch in batches if not bool(present[batch].all())]

    def picked(self, parts: Sequence[Tensor]) -> Iterator[Piece]:
        """One piece for each tensor of indices in this stream."""
        batches = self._read([self._indices[part] for part in parts])
        return (
            self._piece(int(part[0]), batch, len(part)) for part, batch in zip(parts, batches, strict=True)
        )

    def subset(self, indices: np.ndarray) -> "IndexedStream":
        """The examples at these indices."""
        return IndexedStream(self.argument, self._read, self._indices[indices], self._batch_size)


def as_stream(
    source: Any, *, device: torch.device, batch_size: int = BATCH_SIZE, argument: str = "source"
) -> Stream:
    """Read a source; `beliefmatch.adaptation.features.extract` lists the forms that it may have.

    Args:
        source: Where the examples are; a stream stays as it is.
        device: Device of the batches of a beliefmatch source.
        batch_size: Examples at a time, where the source does not come in batches.
        argument: What the user calls the source, for errors.
    """
    if isinstance(source, Stream):
        return source
    if batch_size < 1:
        raise _wrong("batch_size", "be at least 1", f"{batch_size}")
    if all(hasattr(source, name) for name in ("batches", "targets", "shape")):
        read = lambda parts: source.batches(parts, device=device)  # noqa: E731
        return IndexedStream(argument, read, range(len(source)), batch_size)
    if isinstance(source, Mapping) or _is_pair(source):
        return _of_arrays(argument, source, batch_size)
    if isinstance(source, DataLoader):
        return _of_loader(argument, source)
    if isinstance(source, IterableDataset):
        return Stream(argument, DataLoader(source, batch_size))
    is_sequence = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    is_sequence &= not isinstance(source, list | tuple | str | bytes | Tensor)
    if is_sequence or isinstance(source, Dataset):
        return _of_dataset(argument, source, range(len(source)), batch_size)  # type: ignore[arg-type]
    if isinstance(source, Iterable) and not isinstance(source, Tensor | str | bytes):
        return Stream(argument, source)
    expected = "be a beliefmatch source, a Dataset, a DataLoader, (inputs, targets) or an iterable of batches"
    raise _wrong(argument, expected, describe(source), TypeError)


def given_streams(
    device: torch.device, *, train: Any, validation: Any, test: Any, ood: Any, background: Any
) -> dict[str, Stream]:
    """The data that `adapt` is given, by name; inputs alone may be data of no class."""
    if isinstance(ood, _ARRAYS) or (isinstance(ood, Mapping) and "input_ids" in ood):
        ood = {"ood": ood}
    if ood is not None and not isinstance(ood, Mapping):
        raise _wrong("ood", "be sets by their names, such as {'noise': images}", describe(ood), TypeError)
    labelled = {"train": train, "validation": validation, "test": test}
    given = {name: (name, one) for name, one in labelled.items() if one is not None or name == "train"}
    unlabelled = {f"{OOD}{name}": (f"ood[{name!r}]", one) for name, one in (ood or {}).items()}
    unlabelled["background"] = "background", background
    for name, (argument, one) in unlabelled.items():
        if one is not None:
            alone = isinstance(one, _ARRAYS)
            given[name] = argument, _of_arrays(argument, one, BATCH_SIZE) if alone else one
    return {name: as_stream(one, device=device, argument=argument) for name, (argument, one) in given.items()}


def ood_sets(named: Mapping[str, Value]) -> dict[str, Value]:
    """Those of the out-of-distribution sets, by the names that the user gave them."""
    return {name.removeprefix(OOD): one for name, one in named.items() if name.startswith(OOD)}


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to the tensor, or to each of the tensors."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    return {name: function(tensor) for name, tensor in inputs.items()}


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The tensor, or each of the tensors."""
    return [inputs] if isinstance(inputs, Tensor) else list(inputs.values())


# Sources


def _is_pair(source: Any) -> bool:
    """Whether this is (inputs, targets) of all examples, not a tuple of batches."""
    is_pair = isinstance(source, tuple) and len(source) == 2
    return is_pair and isinstance(source[0], (*_ARRAYS, Mapping)) and isinstance(source[1], _ARRAYS)


def _of_arrays(argument: str, source: Any, batch_size: int) -> IndexedStream:
    inputs, targets = _divided(argument, source)
    targets = None if targets is None else torch.as_tensor(_as_tensor(argument, targets), device="cpu")
    every = [*tensors_of(inputs), *([] if targets is None else [targets])]
    if any(tensor.dim() == 0 or len(tensor) != len(every[0]) for tensor in every):
        shapes = ", ".join(f"{tuple(tensor.shape)}" for tensor in every)
        raise _wrong(argument, "have as many inputs as targets", f"shapes {shapes}")

    def rows(part: Tensor) -> tuple[Inputs, Any]:
        return map_inputs(lambda tensor: tensor[part], inputs), None if targets is None else targets[part]

    names = f"{','.join(inputs)}:" if isinstance(inputs, dict) else ""
    key = names + tensors_digest(*every)
    return IndexedStream(argument, lambda parts: map(rows, parts), range(len(every[0])), batch_size, key)


def _of_loader(argument: str, loader: DataLoader) -> Stream:
    """Its dataset in the dataset's order where the loader only shuffles it, else the loader's batches."""
    sampler, size = loader.sampler, loader.batch_size
    whole = type(sampler) is SequentialSampler
    whole |= type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    picked = type(sampler) is SubsetRandomSampler
    if size is None or isinstance(loader.dataset, IterableDataset) or not (whole or picked):
        return Stream(argument, loader)
    indices = range(len(loader.dataset)) if whole else sorted(sampler.indices)  # type: ignore[arg-type]
    return _of_dataset(argument, loader.dataset, indices, size, loader)


def _of_dataset(
    argument: str, dataset: Any, indices: Sequence[int], batch_size: int, loader: DataLoader | None = None
) -> Stream:
    """Rows of a dataset, read and collated as the loader would; tensors in memory are indexed at once."""
    if type(dataset) is TensorDataset and (loader is None or loader.collate_fn is default_collate):
        whole = _of_arrays(argument, dataset.tensors, batch_size)
        return whole if isinstance(indices, range) else whole.subset(np.asarray(indices))
    options: dict[str, Any] = {name: getattr(loader, name) for name in _READER_OPTIONS} if loader else {}
    if options.get("collate_fn", default_collate) is default_collate:
        options["collate_fn"] = partial(_collated, argument)

    def collated(parts: list[Tensor]) -> Iterator[Any]:
        own = torch.Generator().manual_seed(0)  # the caller's random state stays as it is
        order = [part.tolist() for part in parts]
        return iter(DataLoader(dataset, batch_sampler=order, generator=own, **options))

    return IndexedStream(argument, collated, indices, batch_size)


def _collated(argument: str, examples: list[Any]) -> Any:
    try:
        return default_collate(examples)
    except (RuntimeError, TypeError) as error:
        remedy = "pad or convert them in the collate function of a DataLoader"
        got = f"others ({reason_of(error, limit=160)}); {remedy}"
        raise _wrong(argument, "have examples that can be stacked", got) from error


# Batches


def _divided(argument: str, batch: Any) -> tuple[Inputs, Any]:
    """Inputs, and targets or None.

    A mapping either holds one tensor of a usual name, or tensors that the network takes by their names.
    """
    targets = None
    if isinstance(batch, tuple | list) and len(batch) in (1, 2):
        batch, targets = batch[0], batch[1] if len(batch) == 2 else None
    elif not isinstance(batch, (*_ARRAYS, Mapping)):
        raise _wrong(argument, "have batches (inputs, targets)", describe(batch), TypeError)
    if isinstance(batch, Mapping):
        targets = next((batch[name] for name in _TARGETS if name in batch), targets)
        named = {name: value for name, value in batch.items() if name not in _TARGETS}
        usual = next((name for name in _INPUTS if name in named), None)
        if usual is None:
            return _by_name(argument, named), targets
        batch = named[usual]
    inputs = _as_tensor(argument, batch)
    if not isinstance(inputs, Tensor) or inputs.dim() < 2:
        expected = "have batches with a tensor of inputs, one row for each example"
        raise _wrong(argument, expected, describe(inputs))
    return inputs, targets


def _by_name(argument: str, named: Mapping[Any, Any]) -> dict[str, Tensor]:
    inputs = {f"{name}": _as_tensor(argument, value) for name, value in named.items()}
    wrong = {name for name, value in inputs.items() if not isinstance(value, Tensor) or not value.dim()}
    if wrong or len({len(tensor) for tensor in inputs.values()}) != 1:
        shapes = {name: tuple(one.shape) for name, one in inputs.items() if name not in wrong}
        got = ", ".join(f"`{name}` {shapes.get(name, type(one).__name__)}" for name, one in inputs.items())
        remedy = "convert or remove the others, and pad examples of different lengths by a collate function"
        expected = "have batches of tensors by name, one row for each example"
        raise _wrong(argument, expected, f"{got or 'none'}; {remedy}")
    return inputs


def _as_tensor(argument: str, values: Any) -> Any:
    """A numpy array as a tensor, with float64 (numpy's default) as float32; other values unchanged."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind not in "biuf":
        raise _wrong(argument, "hold numbers", f"an array of {values.dtype}", TypeError)
    native = values.astype(values.dtype.newbyteorder("="), copy=not values.flags.writeable)
    tensor = torch.from_numpy(np.ascontiguousarray(native))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _labels(argument: str, targets: Any) -> Tensor:
    labels = torch.as_tensor(_as_tensor(argument, targets), device="cpu").detach()
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if whole and labels.dim() == 1:
        return labels.to(torch.int64)
    counted = labels.is_floating_point() or (whole and labels.shape[-1:] != (1,))  # (n, 1) may be ids
    if counted and labels.dim() == 2 and (labels.isfinite() & (labels >= 0)).all():
        return labels.to(torch.float32)
    expected = "have class ids, whole numbers (n,), or finite counts not below 0, (n, K), as targets"
    raise _wrong(argument, expected, describe(labels))


def _wrong(argument: str, expected: str, got: str, kind: type[Exception] = ValueError) -> Exception:
    return fail("adapt", f"`{argument}` must {expected}, got {got}.", kind)
