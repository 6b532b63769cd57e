"""Features computed once: the inputs of the last layer of a frozen network, kept in a cache."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from beliefmatch._utils import OnProgress, reason_of
from beliefmatch._validate import FLOATING, describe, fail, naming_arguments, require_choice, warn
from beliefmatch.adaptation.cache import FORMAT, FeatureCache, FeatureFile, Layout
from beliefmatch.adaptation.feature_rows import Features, Rows, features_digest, tensors_digest
from beliefmatch.adaptation.heads import Backbone, Head, input_errors, running
from beliefmatch.adaptation.streams import (
    BATCH_SIZE,
    IndexedStream,
    Inputs,
    Piece,
    Stream,
    as_stream,
    map_inputs,
    tensors_of,
)
from beliefmatch.train.engine import has_fast_bf16, resolve_precision

__all__ = [
    "ComputedRows",
    "Distribute",
    "ExtractProgress",
    "Extraction",
    "cache_key",
    "extract",
    "extract_sets",
    "model_digest",
]

BF16_TOLERANCE = 2e-2
"""Largest accepted difference of bfloat16 from float32: the norm of the difference over the norm, in every
row of the first batch."""
COMPILE_TOLERANCE = 1e-4
"""The same for a compiled network. Measured on a ResNet-50, rows differ by 2e-6."""

_STALE = 1e-3  # of a row's norm; batches of other sizes round differently
_FIRST, _MIDDLE = 8, 4  # rows that are computed again to see whether the network's code has changed
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PLAIN = (int, float, str, bool, type(None))
_compiled: WeakKeyDictionary[Any, Callable[[Any], Tensor]] = WeakKeyDictionary()


class ExtractProgress(NamedTuple):
    """How far an extraction is. The first report comes before the first row is computed."""

    rows: int
    """Rows that are present, those found in the cache included."""
    total: int | None
    """Rows in all; None where their number is not known before the end."""


class ComputedRows(NamedTuple):
    """Features and targets of neighbouring rows from `start` on."""

    start: int
    features: np.ndarray
    targets: Tensor


_Report = Callable[[ExtractProgress], None]
Distribute = Callable[["Extraction", Sequence[Tensor]], Generator[ComputedRows, None, None]]
"""Has batches, given by the indices of their rows, computed elsewhere; yields them in any order."""


def extract(
    model: nn.Module,
    features_of: Callable[[Any], Tensor],
    source: Any,
    *,
    key_parts: Mapping[str, Any],
    cache: FeatureCache | None,
    device: torch.device | str = "cpu",
    batch_size: int = BATCH_SIZE,
    precision: str = "32",
    compile: bool = False,
    distribute: Distribute | None = None,
    on_progress: _Report | None = None,
    argument: str = "source",
) -> Features:
    """The features of all examples, from the cache or computed into it.

    The network runs in inference and evaluation mode, on channels-last images without augmentation; its mode
    and device are restored. Rows that an earlier call has finished, even one that was killed, are kept; rows
    that a disk has garbled are found by their checksums and computed again after a warning. Of a complete set
    at most a dozen rows are computed again: if they differ, the network's code has changed in a place that
    the key cannot see, and after a warning the whole set is computed anew.

    Args:
        model: The network; its modules, code and weights go into the key.
        features_of: Computes features (N, F) of inputs with the model.
        source: A beliefmatch source; a tuple of inputs and targets, as tensors or numpy arrays (float64
            arrays are read as float32); a torch dataset; a DataLoader, whose dataset is read in its own order
            if the loader only shuffles it; or an iterable of batches. A batch is (inputs, targets), a mapping
            such as a tokeniser's, or inputs alone. Inputs are a tensor, or a mapping of tensors that the
            network takes by name. Targets are class ids (N,), -1 for none, or counts (N, K). A dataset with
            random augmentation gives the features of one draw.
        key_parts: What else the features depend on, as JSON values: "head", "preprocessing", and "data" with
            an identifier of the data: the same means the same rows in the same order.
        cache: Where features are kept. Without one, or for data without an identifier (no "data" in
            `key_parts`, no tensors in memory), a temporary file is used that disappears with the result.
        device: Device to compute on.
        batch_size: Examples at a time; batches of a DataLoader or an iterable are taken as they come.
        precision: "32"; "bf16", used if every row of the first batch differs from float32 by less than 2 % of
            its norm; or "auto", bf16 likewise but only where the hardware is faster with it.
        compile: Whether batches of the size of the first are computed by a compiled network, if every row of
            the first differs by less than 1e-4 of its norm; the key stays the same. Compiling takes a minute.
        distribute: Has the batches computed by other processes, where rows can be read in any order. The
            batches are the same, so that the rows are too; `compile` is then not heeded.
        on_progress: Called before the start and after every batch.
        argument: What the user calls the source, for errors.

    Raises:
        EnvironmentFailure: Another process computes the features and the cache does not wait, they do not fit
            into the cache, or the disk is full.
        ValueError: Features that are not finite, and data that are not of the form above.
    """
    report: _Report = on_progress or (lambda progress: None)
    with running(model, torch.device(device)) as device:
        stream = as_stream(source, batch_size=batch_size, device=device, argument=argument)
        network = _verified_precision(_Network(features_of, device, stream.argument), precision, stream.first)
        parts = {
            "model": model_digest(model),
            "precision": "bf16" if network.bf16 else "32",
            "rows": stream.rows,
            **({} if stream.data_key is None else {"data": stream.data_key}),
            **key_parts,
        }
        key = cache_key(parts)
        if cache is None or "data" not in parts:
            return _computed(None, key, stream, network, compile, distribute, report)
        if (kept := _kept(cache, key, stream, network, report)) is not None:
            return kept
        with cache.locked(key):
            # Another process may have computed them while this one waited.
            kept = _kept(cache, key, stream, network, report)
            return kept or _computed(cache, key, stream, network, compile, distribute, report)


def extract_sets(
    model: nn.Module,
    head: Head,
    data: Mapping[str, Any],
    *,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
    **options: Any,
) -> dict[str, Features]:
    """The features that a head is given, for each set of data by its name.

    Args:
        model: The network.
        head: Its last layer, from `find_head`.
        data: Any source that `extract` takes, by name.
        device: Device to compute on.
        on_progress: Called with (fraction, description).
        options: Further options of `extract`.
    """
    features_of, found = Backbone(model, head), dict[str, Features]()
    known = {name: one.rows for name, one in data.items() if isinstance(one, Stream) and one.rows}
    sizes: dict[str, int] = known if len(known) == len(data) else dict.fromkeys(data, 1)

    def report(progress: ExtractProgress) -> None:
        if on_progress is not None:
            of = "" if progress.total is None else f" of {progress.total}"
            share = progress.rows / progress.total if progress.total else 0.0
            done = sum(sizes[one] for one in found) + share * sizes[name]
            on_progress(done / sum(sizes.values()), f"features of {name}: {progress.rows}{of} rows")

    options = {"key_parts": {"head": head.name}, "cache": None, **options}
    with running(model, torch.device(device)) as device:
        for name, source in data.items():
            found[name] = extract(model, features_of, source, device=device, on_progress=report, **options)
    return found


def _kept(
    cache: FeatureCache, key: str, stream: Stream, network: _Network, report: _Report
) -> Features | None:
    """The complete and current set of this key, if the cache has it."""
    if (found := cache.read(key)) is None:
        return None
    kept = Features(*found, key)
    if _largest_change(kept.rows, np.ones(len(kept), dtype=bool), stream, network) is not None:
        return None
    report(ExtractProgress(len(kept), len(kept)))
    return kept


def _computed(
    cache: FeatureCache | None,
    key: str,
    stream: Stream,
    network: _Network,
    compile: bool,
    distribute: Distribute | None,
    report: _Report,
) -> Features:
    """Compute the rows that are missing in the cache, or all of them into a temporary file."""
    if compile and distribute is None:
        network = _verified_compilation(network, stream.first())
    first = stream.first()
    layout = Layout(network(first).shape[1], _classes(first.targets))
    if cache is None:
        with tempfile.TemporaryFile(prefix="beliefmatch-features-", buffering=0) as raw:
            file = FeatureFile.created(raw, layout, stream.rows)
            file.describe(rows=_filled(file, stream, network, distribute, report))
            rows, targets = file.read()
        return Features(rows, targets, features_digest(rows, targets))

    def make_room(rows: int) -> None:
        cache.make_room(key, layout.planned_bytes(rows))

    def is_current(file: FeatureFile) -> bool:
        if not file.has_targets(0, first.targets):
            raise _other_data(stream, "other targets from row 0 on")
        change = _largest_change(file.read()[0], file.is_present, stream, network)
        if change is not None:
            fact = f"the network's code has changed since features were kept: a row differs by {change:.2g}"
            _warn(f"{fact} of its norm; all are computed anew")
        return change is None

    if stream.rows is not None:
        make_room(stream.rows)
    with cache.writing(key, layout, stream.rows, is_current) as file:
        file.complete(_filled(file, stream, network, distribute, report, make_room))
        return Features(*file.read(), key)


def _filled(
    file: FeatureFile,
    stream: Stream,
    network: _Network,
    distribute: Distribute | None,
    report: _Report,
    make_room: Callable[[int], None] | None = None,
) -> int:
    """Compute and write the rows that are missing; the number of all rows."""
    layout, total, present, stop = file.layout, stream.rows, file.is_present, 0
    rows = int(present.sum())
    report(ExtractProgress(rows, total))
    for start, targets, compute in _pieces(stream, network, distribute, present):
        stop = start + len(targets)
        if (classes := _classes(targets)) != layout.classes:
            kinds = [f"counts of {k} classes" if k else "class ids" for k in (layout.classes, classes)]
            fact = f"`{stream.argument}` must have {kinds[0]} as in the first batch"
            raise fail("adapt", f"{fact}, got {kinds[1]} at row {start}.")
        if not file.has_targets(start, targets):
            raise _other_data(stream, f"other targets from row {start} on")
        missing = stop - start - int(present[start:stop].sum())
        if missing:
            if total is None and make_room is not None:
                make_room(stop)
            features = compute()
            if features.shape[1] != layout.width:
                expected = f"{layout.width} features for each input as in the first batch"
                got = f"{features.shape[1]} at row {start}"
                raise fail("adapt", f"`model` must give {expected}, got {got}.")
            file.write(start, features, targets.numpy())
            rows += missing
            report(ExtractProgress(rows, total))
    if total is None and present[stop:].any():
        raise _other_data(stream, f"{stop} rows, where there were {len(present)}")
    return total or stop


def _pieces(
    stream: Stream, network: _Network, distribute: Distribute | None, present: np.ndarray
) -> Iterator[tuple[int, Tensor, Callable[[], np.ndarray]]]:
    """Start and targets of each batch with a row that is missing, and a function that gives its features."""
    if distribute is None or not isinstance(stream, IndexedStream):
        for piece in stream.pieces(present):
            yield piece.start, piece.targets, partial(network, piece)
        return
    extraction = Extraction(network, stream, torch.get_num_threads())
    with closing(distribute(extraction, stream.missing(present))) as computed:
        for rows in computed:
            yield rows.start, rows.targets, partial(np.asarray, rows.features)


def _classes(targets: Tensor) -> int | None:
    return targets.shape[1] if targets.dim() == 2 else None


def _other_data(stream: Stream, got: str) -> Exception:
    fact = f"`{stream.argument}` must give the rows of the same key in the same order as before"
    return fail("adapt", f"{fact}, got {got}; use a loader that does not shuffle.")


# Computing a batch: device, precision, compilation.


@dataclass(frozen=True)
class _Network:
    """Computes the features of a piece."""

    features_of: Callable[[Any], Tensor]
    device: torch.device
    argument: str
    """What the user calls the data, for errors."""
    bf16: bool = False
    compiled: Callable[[Any], Tensor] | None = None
    compiled_shapes: list[torch.Size] | None = None
    """Shapes of the inputs that the compiled network is used for: each other shape would be compiled anew."""

    def __call__(self, piece: Piece) -> np.ndarray:
        """Features (n, F), float32 and finite."""
        inputs = map_inputs(self._placed, piece.inputs)
        compiled = self.compiled if _shapes(inputs) == self.compiled_shapes else None
        errors = nullcontext() if compiled else input_errors(self.argument, inputs)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
        with errors, torch.inference_mode(), autocast:
            features: Any = (compiled or self.features_of)(inputs)
        count, is_tensor = len(piece.targets), isinstance(features, Tensor) and features.dtype in FLOATING
        if not is_tensor or features.dim() != 2 or len(features) != count or features.shape[1] == 0:
            expected = f"features ({count}, F) for {count} inputs"
            raise fail("adapt", f"`model` must give {expected}, got {describe(features)}.")
        rows = features.to("cpu", torch.float32)
        if not rows.isfinite().all():
            row, column = (~rows.isfinite()).nonzero()[0].tolist()
            got = f"{rows[row, column].item():.6g} in row {piece.start + row}, feature {column}"
            raise fail("adapt", f"`{self.argument}` must have finite features in the network, got {got}.")
        return rows.numpy()

    def _placed(self, tensor: Tensor) -> Tensor:
        """On the device, images in the layout that convolutions are fastest with."""
        moved = tensor.to(self.device, non_blocking=True)
        is_image = moved.dim() == 4 and moved.is_floating_point()
        return moved.contiguous(memory_format=torch.channels_last) if is_image else moved


@dataclass(frozen=True)
class Extraction:
    """A network and examples, from which any process computes the features of batches."""

    network: _Network
    stream: IndexedStream
    threads: int
    """Threads to compute with: sums of others may come out differently."""

    def compute(self, batches: Sequence[Tensor]) -> Iterator[ComputedRows]:
        """Features and targets of batches, given by the indices of their rows."""
        torch.set_num_threads(self.threads)
        for piece in self.stream.picked(batches):
            yield ComputedRows(piece.start, self.network(piece), piece.targets)


def _shapes(inputs: Inputs) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors_of(inputs)]


def _difference(one: np.ndarray, two: np.ndarray) -> float:
    """Norm of the difference over the norm, in the row where it is largest."""
    if one.shape != two.shape:
        return float("inf")
    one, two = one.astype(np.float64), two.astype(np.float64)
    norms = np.maximum(np.linalg.norm(one, axis=1), np.linalg.norm(two, axis=1))
    return float((np.linalg.norm(one - two, axis=1) / norms.clip(1e-30)).max())


def _verified_precision(network: _Network, precision: str, first: Callable[[], Piece]) -> _Network:
    """The same in bfloat16 where that is wanted, possible and close to float32 on the first batch."""
    require_choice("adapt", "precision", precision, ("32", "bf16", "auto"))
    kind = network.device.type
    if precision == "32" or (precision == "auto" and not has_fast_bf16(kind)):
        return network
    with naming_arguments("adapt"):
        resolve_precision("bf16", kind)
    lower, piece = replace(network, bf16=True), first()
    difference = _difference(network(piece), lower(piece))
    if difference < BF16_TOLERANCE:
        return lower
    if precision == "bf16":
        fact = f"bfloat16 changes a row of features by {difference:.2g} of its norm"
        _warn(f"{fact}, more than {BF16_TOLERANCE}; computing in float32")
    return network


def _verified_compilation(network: _Network, piece: Piece) -> _Network:
    """The same with a compiled network for batches shaped like the first, if that works and is close.

    Freezing lets the compiler fold BatchNorm into convolutions and lay out weights for the processor. On two
    cores a ResNet-50 computed 33 images a second that way, against 15 to 18.
    """
    compiled = _compiled_once(network.features_of)
    faster = replace(network, compiled=compiled, compiled_shapes=_shapes(piece.inputs))
    expected = network(piece)
    try:
        difference = _difference(expected, faster(piece))
    except Exception as error:  # whatever a compiler may raise
        reason = reason_of(f"{error}".strip().partition("\n")[0], limit=200)
        _warn(f"the network could not be compiled ({type(error).__name__}: {reason}); computing without")
        return network
    if difference < COMPILE_TOLERANCE:
        return faster
    fact = f"compiling changes a row of features by {difference:.2g} of its norm"
    _warn(f"{fact}, more than {COMPILE_TOLERANCE}; computing without")
    return network


def _compiled_once(features_of: Any) -> Callable[[Any], Tensor]:
    """Compiled once for all sets that are computed with it."""
    with suppress(KeyError, TypeError):
        return _compiled[features_of]
    compiled = torch.compile(features_of, dynamic=False)

    def frozen(inputs: Any) -> Tensor:
        from torch._inductor import config

        with config.patch(freezing=True):  # read whenever a new shape is compiled; nobody else's setting
            return compiled(inputs)

    with suppress(TypeError):  # some objects cannot be referred to weakly
        _compiled[features_of] = frozen
    return frozen


# Keys, and what they cannot see.


def cache_key(parts: Mapping[str, Any]) -> str:
    """SHA-256 of what the features depend on and of the format they are kept in."""
    try:
        text = json.dumps({"format": FORMAT, "parts": dict(parts)}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise fail("adapt", f"`key_parts` must be as JSON can hold them, got {error}.") from error
    return hashlib.sha256(text.encode()).hexdigest()


def model_digest(model: nn.Module) -> str:
    """SHA-256 of a network: its modules with their settings and own code, and its weights and buffers.

    Memory addresses, devices and memory layouts do not count. Code that a `forward` calls outside of its
    module's class and the versions of libraries are not seen; for these `extract` computes a few rows again.
    """
    state = hashlib.sha256()
    for name, module in model.named_modules():
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        described = (name, kind, module.extra_repr(), *_settings(module), *_code_of(module))
        state.update(json.dumps([_ADDRESS.sub("", text) for text in described]).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        state.update(json.dumps([name, tensors_digest(tensor)]).encode())
    return state.hexdigest()


def _settings(module: nn.Module) -> Iterator[str]:
    """Plain attributes, which `extra_repr` may not show."""
    for name, value in sorted(vars(module).items()):
        plain = value if isinstance(value, tuple) else (value,)
        if name != "training" and not name.startswith("_") and all(isinstance(one, _PLAIN) for one in plain):
            yield f"{name}={value!r}"


def _code_of(module: nn.Module) -> Iterator[str]:
    """The methods of a class that is not torch's own."""
    if type(module).__module__.startswith("torch."):
        return
    for name, method in sorted(vars(type(module)).items()):
        code = getattr(method, "__code__", None)
        if isinstance(code, CodeType):
            yield f"{name}:{_code(code)}"


def _code(code: CodeType) -> str:
    """What a function does, without its place in the file."""
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _constant(value: Any) -> str:
    return f"{sorted(map(repr, value))}" if isinstance(value, frozenset) else repr(value)


def _largest_change(rows: Rows, is_present: np.ndarray, stream: Stream, network: _Network) -> float | None:
    """Difference of a few kept rows from those computed now; None where that is rounding or chance."""
    if not is_present.any():
        return None
    largest, total = 0.0, len(is_present)
    for piece in _few(total, stream):
        present = np.flatnonzero(is_present[piece.start : piece.stop])
        if len(present):
            largest = max(largest, _difference(rows[piece.start + present], network(piece)[present]))
    if largest <= max(_STALE, BF16_TOLERANCE if network.bf16 else 0.0):
        return None
    for one, two in zip(_few(total, stream), _few(total, stream), strict=True):
        if not all(map(torch.equal, tensors_of(one.inputs), tensors_of(two.inputs))):  # random augmentation
            return None
    return largest


def _few(rows: int, stream: Stream) -> Iterator[Piece]:
    """Some rows of the beginning, and of the middle where rows can be read in any order."""
    few, middle = min(_FIRST, rows), rows // 2 - _MIDDLE // 2
    if not isinstance(stream, IndexedStream):
        yield stream.first().head(few)
        return
    spans = [(0, few), *([(middle, middle + _MIDDLE)] if middle >= _FIRST else [])]
    yield from stream.picked([torch.arange(*span, device="cpu") for span in spans])


def _warn(fact: str) -> None:
    warn("adapt", f"{fact}.")
