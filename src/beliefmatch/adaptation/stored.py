"""Features that somebody else has computed, read from files that cannot execute code."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.adaptation.keys import tensors_digest
from beliefmatch.adaptation.labelling import MOST_CLASSES
from beliefmatch.adaptation.stored_names import HEAD, SPELLINGS, FeatureNames
from beliefmatch.adaptation.types import Features
from beliefmatch.data.formats import ArrayFile, Field, open_arrays
from beliefmatch.data.predictions import class_ids

__all__ = ["FeatureNames", "StoredFeatures", "array_names", "features_from_file", "head_from_file"]

_US = "features_from_file"
_CHUNK_ROWS = 4096


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """What a file holds.

    Args:
        path: of the file.
        features: rows and targets, checked; rows are memory-mapped where the format allows it.
        classes: K, from `classes`, the counts, the head or else the largest id; None for OOD examples.
        weight: of the head that is there (K, F), float32; None if there is none.
        bias: likewise (K,).
        recognised: the name in the file by what it was taken for.
    """

    path: Path
    features: Features
    classes: int | None
    weight: Tensor | None
    bias: Tensor | None
    recognised: dict[str, str]


_DEFAULT = FeatureNames()


def features_from_file(
    path: str | Path,
    *,
    names: FeatureNames = _DEFAULT,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    labelled: bool = True,
    every_class: bool = True,
    with_head: bool = True,
) -> StoredFeatures:
    """Read features from .npz, .npy, .safetensors, .parquet or .csv.

    The file holds `features`, `embeddings` or `x` (N, F), and either class ids (N,), called as in
    `beliefmatch.data.read_predictions`, or `counts` (N, K); a head may be stored with them as `weight` (K, F)
    and `bias` (K,). Beside `a_features.npy` the others are `a_targets.npy` and so on.

    Args:
        path: of the file.
        names: what its arrays or columns are called, where they differ from the defaults.
        classes: K, where neither counts nor a head tell it; else one more than the largest id.
        class_names: by id; targets may then be given as text.
        labelled: whether there are targets; OOD examples have none, and get the id -1.
        every_class: whether each class must have an example, as it must to be fitted on.
        with_head: whether a head is looked for, whose classes must then be those of the targets.

    Raises:
        ValueError: in one line, for a file that cannot be read or does not hold features.
    """
    file = open_arrays(path, caller=_US)
    wanted = [role for role in SPELLINGS if with_head or role not in HEAD]
    found = dict.fromkeys(SPELLINGS) | {role: _find(file, role, names) for role in wanted}
    features = found["features"]
    if features is None:
        raise file.missing("features", SPELLINGS["features"])
    rows = _rows(features)
    weight, bias = _head(found, rows.shape[1])
    known = _known_classes(classes, class_names, weight)
    targets = _targets(file, found, names, len(rows), known, class_names) if labelled else None
    total = _classes(targets, known)
    if targets is not None and total is not None and every_class:
        _require_every_class(targets, total, file.path)
    ids = torch.full((len(rows),), -1) if targets is None else targets
    digest = _require_finite(rows, features, ids)
    used = ("features", "weight", "bias", *(("targets", "counts") if labelled else ()))
    recognised = {role: field.name for role in used if (field := found[role])}
    return StoredFeatures(file.path, Features(rows, ids, digest), total, weight, bias, recognised)


def head_from_file(path: str | Path, *, width: int) -> tuple[Tensor, Tensor] | None:
    """The head stored with features of this width: `weight` (K, F) and `bias` (K,), zeros if there is
    none; None where there is no head.
    """
    file = open_arrays(path, caller=_US)
    weight, bias = _head({role: _find(file, role, _DEFAULT) for role in HEAD}, width)
    if weight is None:
        return None
    return weight, torch.zeros(len(weight)) if bias is None else bias


def array_names(path: str | Path) -> tuple[str, ...]:
    """What the arrays or columns of a file are called."""
    return open_arrays(path, caller=_US).names


def _find(file: ArrayFile, role: str, names: FeatureNames) -> Field | None:
    """The array of this role, or columns that form a matrix."""
    name, numbered = getattr(names, role), role in ("features", "counts")
    field = file.find(role, SPELLINGS[role], name=name, numbered=numbered)
    if name is not None and field is None:
        raise file.missing(role, (name,))
    return field


def _rows(field: Field) -> np.ndarray:
    """Memory-mapped where possible, else float32 in memory."""
    is_mappable = len(field.names) == 1 and field.name in field.file.own
    rows = field.file.map(field.name) if is_mappable else None
    if rows is None:
        rows = field.numbers().to(torch.float32).numpy()
    if rows.ndim != 2 or 0 in rows.shape:
        raise field.error("one row of features for each example", f"shape {tuple(rows.shape)}")
    return rows


def _require_finite(rows: np.ndarray, field: Field, targets: Tensor) -> str:
    """Every feature must be finite as float32; the digest of rows and targets, since all are read anyway."""
    state = hashlib.sha256(f"{rows.dtype.str}{rows.shape}{tensors_digest(targets)}".encode())
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = np.ascontiguousarray(rows[start : start + _CHUNK_ROWS])
        state.update(chunk.view(np.uint8).data)
        with np.errstate(over="ignore"):
            good = np.isfinite(chunk.astype(np.float32))
        if not good.all():
            row, column = np.argwhere(~good)[0].tolist()
            raise field.error("finite features", f"{chunk[row, column]:.6g} in row {start + row}")
    return state.hexdigest()


def _head(found: Mapping[str, Field | None], width: int) -> tuple[Tensor | None, Tensor | None]:
    weight = bias = None
    if (field := found["weight"]) and not field.file.is_table:
        weight = field.numbers().to(torch.float32)
        if weight.dim() != 2 or weight.shape[1] != width or len(weight) < 2:
            expected = f"a head (K, {width}) for features of that width"
            raise field.error(expected, f"shape {tuple(weight.shape)}")
        if not weight.isfinite().all():
            raise field.error("finite numbers", "others")
    if (field := found["bias"]) and not field.file.is_table:
        bias = field.numbers().to(torch.float32)
        if weight is None or bias.shape != weight.shape[:1]:
            expected = "as many numbers as the weight has rows" if weight is not None else "a weight with it"
            raise field.error(expected, f"shape {tuple(bias.shape)}")
        if not bias.isfinite().all():
            raise field.error("finite numbers", "others")
    return weight, bias


def _known_classes(
    classes: int | None, class_names: Sequence[str] | None, weight: Tensor | None
) -> int | None:
    given = [classes, None if class_names is None else len(class_names)]
    given.append(None if weight is None else len(weight))
    known = {number for number in given if number is not None}
    if len(known) > 1:
        listed = " and ".join(map(str, sorted(known)))
        raise fail(_US, f"`classes`, `class_names` and the head must be as many, got {listed}.")
    return known.pop() if known else None


def _targets(
    file: ArrayFile,
    found: dict[str, Field | None],
    names: FeatureNames,
    rows: int,
    classes: int | None,
    class_names: Sequence[str] | None,
) -> Tensor:
    ids, counts = found["targets"], found["counts"]
    if ids and counts and (names.targets is None) == (names.counts is None):
        got = f"{ids.name} and {counts.name} in {file.path}"
        raise fail(_US, f"`targets` or `counts` must be named where there are both, got {got}.")
    if counts and (not ids or names.counts is not None):
        found["targets"] = None
        return _counts(counts, rows, classes)
    if not ids:
        raise file.missing("targets", (*SPELLINGS["targets"], *SPELLINGS["counts"]))
    found["counts"] = None
    return class_ids(ids, rows, classes or MOST_CLASSES, class_names)


def _counts(field: Field, rows: int, classes: int | None) -> Tensor:
    counts = field.numbers().to(torch.float32)
    wide = counts.dim() == 2 and counts.shape[1] >= 2 and counts.shape[1] == (classes or counts.shape[1])
    if not wide or len(counts) != rows:
        expected = f"counts ({rows}, {classes or 'K'}), one row for each example"
        raise field.error(expected, f"shape {tuple(counts.shape)}")
    wrong = ~(counts.isfinite() & (counts >= 0))
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise field.error("finite counts not below 0", f"{counts[row, column].item():.6g} in row {row}")
    return counts


def _classes(targets: Tensor | None, known: int | None) -> int | None:
    if targets is None:
        return known
    if targets.dim() == 2:
        return targets.shape[1]
    return int(targets.max()) + 1 if known is None else known


def _require_every_class(targets: Tensor, classes: int, path: Path) -> None:
    votes = targets.sum(0) if targets.dim() == 2 else targets.bincount(minlength=classes)
    absent = (votes == 0).nonzero().flatten().tolist()
    if absent or classes < 2:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        got = f"none of class {absent[0]}{more}" if absent else f"{classes} class"
        raise fail(_US, f"every class must have an example, two classes at least, got {got} in {path}.")
