"""Inputs and targets batch by batch, from whatever holds them, always in the same order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate
from torch.utils.data.sampler import RandomSampler, SequentialSampler, SubsetRandomSampler

from beliefmatch._utils import reason_of
from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.types import tensors_digest

__all__ = [
    "OOD",
    "Inputs",
    "Piece",
    "Stream",
    "as_given",
    "as_stream",
    "first_inputs",
    "first_rows",
    "given_sets",
    "map_inputs",
    "moved",
]

Inputs = Tensor | dict[str, Tensor]
"""What a network is given: one tensor, or tensors by name such as `input_ids` and `attention_mask`."""
OOD = "OOD "
"""Prefix of the names of out-of-distribution sets."""

_CALLER = "extract"
_ARRAYS = (Tensor, np.ndarray)
_INPUTS = ("pixel_values", "images", "image", "inputs", "x")
_TARGETS = ("labels", "label", "targets", "target", "y")
_READER_OPTIONS = ("num_workers", "collate_fn", "worker_init_fn", "multiprocessing_context", "timeout")
_FEW = 8  # rows that a head is found by


class Piece(NamedTuple):
    """Inputs of neighbouring rows from `start` on, and their targets: int64 (n,) or float32 (n, K)."""

    start: int
    inputs: Inputs
    targets: Tensor

    @property
    def stop(self) -> int:
        """Number of the row after the last."""
        return self.start + len(self.targets)


class Stream(Protocol):
    """Examples in a fixed order."""

    rows: int | None
    """Number of examples; None where it is not known before the end."""
    data_key: str | None
    """Digest of the data, where all of them are in memory."""

    def first(self) -> Piece:
        """Some rows from the beginning."""
        ...

    def pieces(self, is_present: np.ndarray) -> Iterator[Piece]:
        """Batches in order; where rows can be read in any order, only those with a row that is missing.

        The batches are the same whichever rows are present, so that each row is always computed alike.
        """
        ...

    def picked(self, parts: Sequence[Tensor]) -> Iterator[Piece] | None:
        """One piece for each tensor of row numbers; None where rows cannot be read in any order."""
        ...


def as_stream(source: Any, *, batch_size: int, device: torch.device) -> Stream:
    """Read a source; `beliefmatch.adaptation.features.extract` lists the forms that it may have."""
    if batch_size < 1:
        raise fail(_CALLER, f"`batch_size` must be at least 1, got {batch_size}.")
    if all(hasattr(source, name) for name in ("batches", "targets", "shape")):
        read = lambda parts: source.batches(parts, device=device)  # noqa: E731
        return _Indexed(read, range(len(source)), batch_size)
    if isinstance(source, Mapping) or _is_pair(source):
        return _of_arrays(*_divided(source), batch_size)
    if isinstance(source, DataLoader):
        return _of_loader(source)
    if isinstance(source, IterableDataset):
        return _Iterated(DataLoader(source, batch_size))
    is_sequence = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    is_sequence &= not isinstance(source, list | tuple | str | bytes | Tensor)
    if is_sequence or isinstance(source, Dataset):
        return _of_dataset(source, range(len(source)), batch_size, None, is_whole=True)  # type: ignore[arg-type]
    if isinstance(source, Iterable) and not isinstance(source, Tensor | str | bytes):
        return _Iterated(source)
    expected = "a beliefmatch source, a Dataset, a DataLoader, (inputs, targets) or an iterable of batches"
    raise fail(_CALLER, f"`source` must be {expected}, got {describe(source)}.", TypeError)


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to the tensor, or to each of the tensors."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    return {name: function(tensor) for name, tensor in inputs.items()}


def moved(inputs: Inputs, device: torch.device) -> Inputs:
    """The inputs on a device."""
    return map_inputs(lambda tensor: tensor.to(device, non_blocking=True), inputs)


def first_rows(inputs: Inputs, count: int) -> Inputs:
    """The inputs of the first examples."""
    return map_inputs(lambda tensor: tensor[:count], inputs)


class _Indexed:
    """Rows that can be read in any order."""

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
        (piece,) = self.picked([torch.arange(min(self._batch_size, len(self._numbers)))])
        return piece

    def pieces(self, is_present: np.ndarray) -> Iterator[Piece]:
        present = torch.from_numpy(is_present)
        batches = torch.arange(len(self._numbers)).split(self._batch_size)
        return self.picked([batch for batch in batches if not bool(present[batch].all())])

    def picked(self, parts: Sequence[Tensor]) -> Iterator[Piece]:
        batches = self._read([self._numbers[part] for part in parts])
        return (_piece(int(part[0]), batch, len(part)) for part, batch in zip(parts, batches, strict=True))


class _Iterated:
    """Batches that come one after the other."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.rows: int | None = None
        self.data_key: str | None = None

    def first(self) -> Piece:
        iterator = iter(self._batches)
        batch = next(iterator, None)
        if batch is None:
            raise fail(_CALLER, "`source` must have at least one batch, got none.")
        if iterator is self._batches:  # an iterator yields its batches only once
            self._batches = chain([batch], iterator)
        return _piece(0, batch)

    def pieces(self, is_present: np.ndarray) -> Iterator[Piece]:
        start = 0
        for batch in self._batches:
            piece = _piece(start, batch)
            yield piece
            start = piece.stop

    def picked(self, parts: Sequence[Tensor]) -> Iterator[Piece] | None:
        return None


def _is_pair(source: Any) -> bool:
    """Whether this is (inputs, targets) of all examples, not a tuple of batches."""
    is_pair = isinstance(source, tuple) and len(source) == 2
    return is_pair and isinstance(source[0], (*_ARRAYS, Mapping)) and isinstance(source[1], _ARRAYS)


def _of_arrays(inputs: Inputs, targets: Any, batch_size: int) -> Stream:
    tensors = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
    targets = None if targets is None else torch.as_tensor(_as_tensor(targets))
    every = [*tensors, *([] if targets is None else [targets])]
    if any(tensor.dim() == 0 or len(tensor) != len(every[0]) for tensor in every):
        shapes = ", ".join(f"{tuple(tensor.shape)}" for tensor in every)
        raise fail(_CALLER, f"`source` must have as many inputs as targets, got shapes {shapes}.")

    def rows(part: Tensor) -> tuple[Inputs, Any]:
        return map_inputs(lambda tensor: tensor[part], inputs), None if targets is None else targets[part]

    names = f"{','.join(inputs)}:" if isinstance(inputs, dict) else ""
    key = names + tensors_digest(*every)
    return _Indexed(lambda parts: map(rows, parts), range(len(every[0])), batch_size, key)


def _of_loader(loader: DataLoader) -> Stream:
    """Its dataset in the dataset's order where the loader only shuffles it, else the loader's batches."""
    sampler, size = loader.sampler, loader.batch_size
    whole = type(sampler) is SequentialSampler
    whole |= type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    picked = type(sampler) is SubsetRandomSampler
    if size is None or isinstance(loader.dataset, IterableDataset) or not (whole or picked):
        return _Iterated(loader)
    numbers = range(len(loader.dataset)) if whole else sorted(sampler.indices)  # type: ignore[arg-type]
    return _of_dataset(loader.dataset, numbers, size, loader, is_whole=whole)


def _of_dataset(
    dataset: Any, numbers: Sequence[int], batch_size: int, loader: DataLoader | None, *, is_whole: bool
) -> Stream:
    """Rows of a dataset, read and collated as the loader would; tensors in memory are indexed at once."""
    if type(dataset) is TensorDataset and (loader is None or loader.collate_fn is default_collate):
        tensors = dataset.tensors
        read = lambda parts: (tuple(tensor[part] for tensor in tensors) for part in parts)  # noqa: E731
        return _Indexed(read, numbers, batch_size, tensors_digest(*tensors) if is_whole else None)
    options: dict[str, Any] = {name: getattr(loader, name) for name in _READER_OPTIONS} if loader else {}
    if options.get("collate_fn", default_collate) is default_collate:
        options["collate_fn"] = _collated

    def collated(parts: list[Tensor]) -> Iterator[Any]:
        own = torch.Generator().manual_seed(0)  # the caller's random state stays as it is
        order = [part.tolist() for part in parts]
        return iter(DataLoader(dataset, batch_sampler=order, generator=own, **options))

    return _Indexed(collated, numbers, batch_size)


def _collated(examples: list[Any]) -> Any:
    try:
        return default_collate(examples)
    except (RuntimeError, TypeError) as error:
        remedy = "pad or convert them in the collate function of a DataLoader"
        fact = f"`source` must have examples that can be stacked, got others ({reason_of(error, limit=160)})"
        raise fail(_CALLER, f"{fact}; {remedy}.") from error


def _piece(start: int, batch: Any, rows: int | None = None) -> Piece:
    inputs, targets = _divided(batch)
    count = len(inputs if isinstance(inputs, Tensor) else next(iter(inputs.values())))
    labels = torch.full((count,), -1) if targets is None else _labels(targets)
    if len(labels) != count or count != (rows or count):
        fact = f"`source` must have as many targets as inputs in each batch, {rows or count}"
        raise fail(_CALLER, f"{fact}, got {len(labels)} for {count} inputs at row {start}.")
    return Piece(start, inputs, labels)


def _divided(batch: Any) -> tuple[Inputs, Any]:
    """Inputs, and targets or None.

    A mapping either holds one tensor of a usual name, or tensors that the network takes by their names.
    """
    targets = None
    if isinstance(batch, tuple | list) and len(batch) in (1, 2):
        batch, targets = batch[0], batch[1] if len(batch) == 2 else None
    elif not isinstance(batch, (*_ARRAYS, Mapping)):
        got = describe(batch)
        raise fail(_CALLER, f"`source` must have batches (inputs, targets), got {got}.", TypeError)
    if isinstance(batch, Mapping):
        targets = next((batch[name] for name in _TARGETS if name in batch), targets)
        named = {name: value for name, value in batch.items() if name not in _TARGETS}
        usual = next((name for name in _INPUTS if name in named), None)
        if usual is None:
            return _by_name(named), targets
        batch = named[usual]
    inputs = _as_tensor(batch)
    if not isinstance(inputs, Tensor) or inputs.dim() < 2:
        expected = "batches with a tensor of inputs, one row for each example"
        raise fail(_CALLER, f"`source` must have {expected}, got {describe(inputs)}.")
    return inputs, targets


def _by_name(named: Mapping[Any, Any]) -> dict[str, Tensor]:
    inputs = {f"{name}": _as_tensor(value) for name, value in named.items()}
    wrong = {name for name, value in inputs.items() if not isinstance(value, Tensor) or not value.dim()}
    if wrong or len({len(tensor) for tensor in inputs.values()}) != 1:
        shapes = {name: tuple(one.shape) for name, one in inputs.items() if name not in wrong}
        got = ", ".join(f"`{name}` {shapes.get(name, type(one).__name__)}" for name, one in inputs.items())
        remedy = "convert or remove the others, and pad examples of different lengths by a collate function"
        fact = "`source` must have batches of tensors by name, one row for each example"
        raise fail(_CALLER, f"{fact}, got {got or 'none'}; {remedy}.")
    return inputs


def _as_tensor(values: Any) -> Any:
    """A numpy array as a tensor, with float64 (numpy's default) as float32; other values unchanged."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind not in "biuf":
        raise fail(_CALLER, f"`source` must hold numbers, got an array of {values.dtype}.", TypeError)
    native = values.astype(values.dtype.newbyteorder("="), copy=not values.flags.writeable)
    tensor = torch.from_numpy(np.ascontiguousarray(native))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _labels(targets: Any) -> Tensor:
    labels = torch.as_tensor(_as_tensor(targets)).detach().to("cpu")
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if whole and labels.dim() == 1:
        return labels.to(torch.int64)
    counted = labels.is_floating_point() or (whole and labels.shape[-1:] != (1,))  # (n, 1) may be ids
    if counted and labels.dim() == 2 and (labels.isfinite() & (labels >= 0)).all():
        return labels.to(torch.float32)
    expected = "class ids, whole numbers (n,), or finite counts not below 0, (n, K), as targets"
    raise fail(_CALLER, f"`source` must have {expected}, got {describe(labels)}.")


# The data that `adapt` is given, by the names of its arguments.


def given_sets(train: Any, validation: Any, test: Any, ood: Any, background: Any = None) -> dict[str, Any]:
    """The data that were given, by name; inputs alone may be out-of-distribution data."""
    if isinstance(ood, _ARRAYS) or (isinstance(ood, Mapping) and "input_ids" in ood):
        ood = {"ood": ood}
    if ood is not None and not isinstance(ood, Mapping):
        expected = "sets by their names, such as {'noise': images}"
        raise fail("adapt", f"`ood` must be {expected}, got {describe(ood)}.", TypeError)
    data = {"train": train, "validation": validation, "test": test}
    unlabelled = {f"{OOD}{name}": one for name, one in (ood or {}).items()}
    for name, one in {**unlabelled, "background": background}.items():
        with as_given(name):
            data[name] = TensorDataset(_as_tensor(one)) if isinstance(one, _ARRAYS) else one
    return {name: one for name, one in data.items() if one is not None or name == "train"}


@contextmanager
def as_given(name: str) -> Iterator[None]:
    """Let errors of `extract` name the argument of `adapt` in place of `source`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        text, prefix = f"{error}", f"{_CALLER}: "
        if type(error) not in (ValueError, TypeError) or not text.startswith(prefix):
            raise
        argument = f"ood[{name.removeprefix(OOD)!r}]" if name.startswith(OOD) else name
        fact = text.removeprefix(prefix)
        if not fact.startswith("`"):
            fact = f"`{argument}`: {fact}"
        raise fail("adapt", fact.replace("`source`", f"`{argument}`", 1), type(error)) from error


def first_inputs(data: Any, device: torch.device) -> tuple[Inputs, Any]:
    """Some inputs from the beginning, and the data with nothing missing: an iterator comes only once."""
    some = data
    if isinstance(data, Iterator):
        batch = next(data, None)
        if batch is None:
            raise fail("adapt", "`train` must have at least one batch, got none.")
        some, data = [batch], chain([batch], data)
    with as_given("train"):
        first = as_stream(some, batch_size=_FEW, device=device).first()
    return moved(first_rows(first.inputs, _FEW), device), data
