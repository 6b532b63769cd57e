"""Features computed once: a source is streamed through a frozen network into a cache of shards."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch._validate import fail, level_of_caller, require_choice
from beliefmatch.adaptation.cache import FeatureCache, TemporaryCache
from beliefmatch.adaptation.compiling import verified_compilation
from beliefmatch.adaptation.computing import Computing, running, verified_precision
from beliefmatch.adaptation.filling import Filler, full_disk_errors
from beliefmatch.adaptation.keys import cache_key, model_digest
from beliefmatch.adaptation.rechecking import largest_change
from beliefmatch.adaptation.shards import Layout, ShardFolder, StoredType
from beliefmatch.adaptation.sizes import shard_rows_for
from beliefmatch.adaptation.streams import Stream, as_stream
from beliefmatch.adaptation.types import Features

__all__ = ["ExtractProgress", "extract", "features_from_directory"]


class ExtractProgress(NamedTuple):
    """How far it is. The first one comes before the first shard is computed and announces the size."""

    rows: int
    """That are there, those found in the cache included."""
    total: int | None
    """Rows in all; None where nobody knows before the end."""
    found: int
    """Rows that an earlier call had computed."""
    planned_bytes: int | None
    """What the whole set takes on the disk; None where nobody knows."""
    directory: Path
    """Where."""


def extract(
    model: nn.Module,
    features_of: Callable[[Tensor], Tensor],
    source: Any,
    *,
    key_parts: Mapping[str, Any],
    cache: FeatureCache | None,
    data_key: str | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    precision: str = "32",
    compile: bool = False,
    dtype: StoredType = "float32",
    on_progress: Callable[[ExtractProgress], None] | None = None,
) -> Features:
    """The features of all examples, from the cache or computed into it.

    The network runs in inference and evaluation mode, on channels-last images without augmentation; its mode
    and device are put back afterwards. What an earlier call has finished, even one that was killed, is kept;
    what a disk has garbled is found by its checksum, named in a warning, and computed again. Of a set that is
    there a dozen rows at most are computed again: if they differ, the network's code has changed in a place
    that the key cannot see, and after a warning the whole set is computed anew.

    Args:
        model: the network; its modules, code and weights go into the key.
        features_of: inputs (N, ...) to features (N, F), computed with the model.
        source: a beliefmatch source; a tuple of two tensors or arrays of numpy, inputs and targets, of which
            float64 is taken as float32 where it is numpy's; a torch dataset of examples;
            a DataLoader, whose dataset is taken in its own order if the loader does no more than shuffle it;
            or an iterable of batches. A batch is (inputs, targets), a mapping such as Hugging Face's, or
            inputs alone. Targets are class ids (N,), -1 for none, or counts (N, K), whole numbers or not.
            Datasets that change their examples by chance give the features of one such chance.
        key_parts: what else the features depend on, as JSON can hold it: "head", "preprocessing", and "data"
            with the digest of the data and "split" where the caller knows them.
        cache: where to keep them. None, or data that nothing tells from other data (no "data" in
            `key_parts`, no `data_key`, no tensors to look at): a temporary directory, gone with the result.
        data_key: Identifier of the data: the same key means the same rows in the same order.
        device: where to compute.
        batch_size: examples at a time; batches of a DataLoader or an iterable are taken as they come.
        precision: "32"; "bf16", used if every row of the first batch differs from float32 by less than 2 % of
            its norm; or "auto", bf16 likewise but only where the hardware is faster with it.
        compile: compute whole batches by a compiled network, if every row of the first batch differs by less
            than 1e-4 of its norm; the key stays the same. A batch size that divides the rows of a shard,
            4096 or a smaller power of two, leaves the fewest odd batches. The first batch takes a minute.
        dtype: in which features are kept, "float32" or "float16".
        on_progress: Called before the start and after every batch.

    Raises:
        EnvironmentFailure: another process computes them and the cache does not wait, they do not fit into
            the cache, or the disk is full.
        ValueError: features that are not finite, and data that are not of the form above.
    """
    require_choice("extract", "dtype", dtype, ("float32", "float16"))
    with running(model, torch.device(device)) as place:
        stream = as_stream(source, batch_size=batch_size, device=place)
        computing = Computing(features_of, place, dtype)
        computing = verified_precision(computing, precision, stream.first)
        parts = {"model": model_digest(model), **_own_parts(computing, stream, data_key), **key_parts}
        store = cache if cache is not None and "data" in parts else TemporaryCache()
        key = cache_key(parts)
        found, stale = _found(store, key), None
        if found is not None and _is_stale(found, stream, computing):
            found, stale = None, store.folder(key).digest()
        if found is not None:
            return _reported(found, store.folder(key), on_progress)
        if compile:
            computing = verified_compilation(computing, stream.first)
        facts = {**parts, "compiled": computing.compiled is not None}
        return _computed(store, key, facts, stream, computing, on_progress, stale)


def _reported(
    found: Features, folder: ShardFolder, on_progress: Callable[[ExtractProgress], None] | None
) -> Features:
    if on_progress is not None:
        many = len(found)
        on_progress(ExtractProgress(many, many, many, folder.bytes(), folder.path))
    return found


def _is_stale(found: Features, stream: Stream, computing: Computing) -> bool:
    change = largest_change(found, stream, computing)
    if change is None:
        return False
    fact = f"the network's code has changed since these features were kept: a row differs by {change:.2g}"
    warnings.warn(f"extract: {fact} of its norm; all are computed anew.", stacklevel=level_of_caller())
    return True


def _own_parts(computing: Computing, stream: Stream, data_key: str | None) -> dict[str, Any]:
    data = stream.data_key if data_key is None else data_key
    known = {} if data is None else {"data": data}
    precision = "bf16" if computing.bf16 else "32"
    return {"precision": precision, "dtype": computing.dtype, "rows": stream.rows, **known}


def _found(store: FeatureCache, key: str) -> Features | None:
    """A complete set whose checksums are right."""
    folder = store.folder(key)
    if not folder.is_complete:
        return None
    hold = store.using(key)
    whole = folder.verified(warn=False)
    return _opened(store, key, hold) if folder.is_whole(whole) else None


def _opened(store: FeatureCache, key: str, hold: Any) -> Features:
    folder = store.folder(key)
    rows, targets = folder.open((hold, store))
    return Features(rows, targets, folder.digest() if isinstance(store, TemporaryCache) else key)


def _computed(
    store: FeatureCache,
    key: str,
    parts: Mapping[str, Any],
    stream: Stream,
    computing: Computing,
    on_progress: Callable[[ExtractProgress], None] | None,
    stale: str | None = None,
) -> Features:
    with store.writing(key):
        hold, folder = store.using(key), store.folder(key)
        if stale is not None and folder.digest() == stale:
            folder.clear()
        elif (found := _found(store, key)) is not None:  # computed by another process while this one waited
            return found
        layout = _layout(stream, computing)
        store.make_room(key, layout.planned_bytes())
        with full_disk_errors(folder, layout):
            folder.begin(key, parts, layout)
            there = folder.resume()

        def make_room(rows: int) -> None:
            if layout.rows is None:
                store.make_room(key, layout.planned_bytes(rows))

        filler = Filler(folder, layout, there, make_room)
        _fill(filler, layout, stream, computing, _teller(on_progress, filler, layout, folder))
        with full_disk_errors(folder, layout):
            folder.complete(filler.lines)
        return _opened(store, key, hold)


def _layout(stream: Stream, computing: Computing) -> Layout:
    first = stream.first()
    width = computing(first).shape[1]
    classes = first.targets.shape[1] if first.targets.dim() == 2 else None
    return Layout(width, shard_rows_for(width, computing.dtype), computing.dtype, classes, stream.rows)


def _fill(
    filler: Filler, layout: Layout, stream: Stream, computing: Computing, tell: Callable[[int], None]
) -> None:
    there, seen = {line.shard for line in filler.lines}, 0
    tell(0)
    for piece in stream.pieces(layout.shard_rows, there.__contains__):
        seen = piece.start + len(piece.targets)
        wanted = filler.wants(piece.start, seen)
        filler.add(piece.start, piece.targets, computing(piece) if wanted else None)
        tell(len(piece.targets) if wanted else 0)
    filler.finish(seen if layout.rows is None else None)


def _teller(
    on_progress: Callable[[ExtractProgress], None] | None, filler: Filler, layout: Layout, folder: ShardFolder
) -> Callable[[int], None]:
    """A function that takes the number of new rows and reports the total."""
    found = sum(line.rows for line in filler.lines)
    planned = layout.planned_bytes() or None
    rows = found

    def tell(more: int) -> None:
        nonlocal rows
        rows += more
        if on_progress is not None:
            on_progress(ExtractProgress(rows, layout.rows, found, planned, folder.path))

    return tell


def features_from_directory(path: str | Path, *, key_parts: Mapping[str, Any] | None = None) -> Features:
    """The features of a complete set, by the path of its directory.

    Args:
        path: a subdirectory of a cache.
        key_parts: what they must be of, if that matters; `model` is the `model_digest` of a network.

    Raises:
        ValueError: it is no complete set, a shard is broken, or it is of something else.
    """
    folder = ShardFolder(Path(path).expanduser())
    facts = folder.facts()
    if not facts or not folder.is_complete:
        what = "one that is not finished" if facts else "none"
        fact = f"`features` must be a directory of features, got {what} at {folder.path}"
        raise fail("features", f"{fact}; compute them by the same command without it.")
    parts = facts.get("parts", {})
    for name, wanted in (key_parts or {}).items():
        if parts.get(name) != wanted:
            what = f"of another {name}" if name in parts else f"that say nothing of their {name}"
            remedy = "compute them anew, or give what they were computed with"
            raise fail("features", f"`features` must be of this {name}, got {folder.path} {what}; {remedy}.")
    if not folder.is_whole(folder.verified(warn=False)):
        fact = f"`features` must be whole, got {folder.path} with a shard that is missing or garbled"
        raise fail("features", f"{fact}; compute them again.")
    cache = FeatureCache(folder.path.parent)
    rows, targets = folder.open(cache.using(folder.path.name))
    return Features(rows, targets, f"{facts['key']}")
