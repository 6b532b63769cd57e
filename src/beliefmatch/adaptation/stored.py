"""Features that were computed before, read from files that cannot execute code.

A file holds `features` (N, F) and either class ids (N,) as `targets` or votes (N, K) as `counts`; archives
may hold the existing head as `weight` (K, F) and `bias` (K,). One archive may hold several sets under names
with the set in front: `train_features` and `train_targets` (or `train_counts`), the same with `validation_`
and `test_`, and `ood_NAME_features` for examples of no class. Files of the feature cache are read too.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import fail, level_of_caller
from beliefmatch.adaptation.adapt_config import VAL_FRACTION
from beliefmatch.adaptation.cache import SUFFIX, FeatureFile
from beliefmatch.adaptation.fitted import Init
from beliefmatch.adaptation.labelling import MOST_CLASSES
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.types import Features, features_digest
from beliefmatch.data.formats import ArrayFile, Field, open_arrays
from beliefmatch.data.predictions import SPELLINGS as OF_PREDICTIONS
from beliefmatch.data.predictions import class_ids

__all__ = ["FeatureNames", "feature_sets", "features_from_file", "head_from_file"]

SPELLINGS: dict[str, tuple[str, ...]] = {
    "features": ("features", "feature", "embeddings", "embedding", "x"),
    "targets": OF_PREDICTIONS["targets"],
    "counts": ("counts", "count", "votes"),
    "weight": ("weight",),
    "bias": ("bias",),
}
"""Names of arrays and columns that are recognised, in any case."""

_CALLER = "adapt"
_READER = "features_from_file"
_ARCHIVES = (".npz", ".safetensors")
_SETS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
}
_OOD = "ood_"
_FEATURES = re.compile(rf"(?P<prefix>.+)_(?:{'|'.join(SPELLINGS['features'])})", re.IGNORECASE)
_CHUNK_ROWS = 4096


class FeatureNames(NamedTuple):
    """Names of the arrays or columns of a file; None for any of the default spellings."""

    features: str | None = None
    targets: str | None = None
    counts: str | None = None


class _Place(NamedTuple):
    """A file that holds a set, and the names of its arrays if they are not the defaults."""

    path: Path
    names: FeatureNames = FeatureNames()

    def __str__(self) -> str:
        return f"`{self.names.features}` of {self.path}" if self.names.features else f"{self.path}"


def feature_sets(
    train: str | Path,
    *,
    validation: str | Path | float | None = None,
    test: str | Path | None = None,
    ood: Mapping[str, str | Path] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    split_seed: int = 0,
) -> tuple[FeatureSets, Init | None, int | None]:
    """Read the features of every set of an adaptation, and the existing head if the file holds it.

    Args:
        train: A file as `features_from_file` reads it, or an archive of several sets.
        validation: Another such file; or a fraction or number of the rows of `train`, which are held out in
            proportion to the classes unless `train` has validation rows of its own. A fifth by default, with
            a warning.
        test: Another such file, for examples to report on.
        ood: Such files of examples that belong to no class, by name; their targets are not read.
        classes: Number of classes, where the data do not determine it.
        class_names: Names of the classes in the order of their ids, for targets given as text.
        split_seed: Seed of the draw of validation rows.

    Returns:
        The sets; weight and bias of the existing head, or None; and the number of classes as given or as the
        counts have it, else None.

    Raises:
        ValueError: Files that cannot be read, or sets that do not fit together.
    """
    places = _places(_path("train", train))
    share = validation if isinstance(validation, int | float) else None
    given = {"validation": validation if share is None else None, "test": test}
    given |= {f"{_OOD}{name}": path for name, path in (ood or {}).items()}
    for name, path in given.items():
        if path is not None:
            _add(places, name, _Place(_path(name, path)))
    classes = len(class_names) if classes is None and class_names is not None else classes
    found = {name: _read(name, place, classes, class_names) for name, place in places.items()}
    _require_one_width(places, found)
    with _naming("train"):
        head = head_from_file(places["train"].path, width=found["train"].width)
    known = _classes(places, found, classes, head)
    if "validation" not in found:
        fraction = VAL_FRACTION if share is None else share
        rows = found["train"].hold_out(fraction, seed=split_seed)
        found["train"], found["validation"] = (found["train"].subset(some) for some in rows)
        if share is None:
            fact = f"no `validation` features were given, so {VAL_FRACTION:.0%} of `train` are held out"
            remedy = "if the network was trained on these data, give `validation` features of others"
            warnings.warn(f"{_CALLER}: {fact} to choose λ; {remedy}.", stacklevel=level_of_caller())
    others = {name.removeprefix(_OOD): one for name, one in found.items() if name.startswith(_OOD)}
    return FeatureSets(found["train"], found["validation"], found.get("test"), others), head, known


def _path(name: str, given: str | Path) -> Path:
    path = Path(given).expanduser()
    if not path.is_file():
        got = f"the directory {path}" if path.is_dir() else f"nothing at {path}"
        raise fail(_CALLER, f"`{name}` must be a file of features, got {got}.")
    return path


def _places(path: Path) -> dict[str, _Place]:
    """The sets of the first file; a single set without a name in front is the training set."""
    with _naming("train"):
        names = open_arrays(path, caller=_READER).names if path.suffix.lower() in _ARCHIVES else ()
    prefixes = [found["prefix"] for name in names if (found := _FEATURES.fullmatch(name))]
    bare = [name for name in names if name.lower() in SPELLINGS["features"]]
    if bare and "train" in map(str.lower, prefixes):
        fact = "`train` must hold one set or several"
        raise fail(_CALLER, f"{fact}, got {bare[0]} and train_features in {path}.")
    if bare or not prefixes:
        return {"train": _Place(path)}
    places: dict[str, _Place] = {}
    for prefix in prefixes:
        _add(places, _set_name(prefix, path), _Place(path, _names(prefix, names)))
    if "train" not in places:
        raise fail(_CALLER, f"`train` must hold train_features, got {', '.join(names)} in {path}.")
    return places


def _set_name(prefix: str, path: Path) -> str:
    if prefix.lower().startswith(_OOD) and len(prefix) > len(_OOD):
        return f"{_OOD}{prefix[len(_OOD) :]}"
    if prefix.lower() not in _SETS:
        expected = "train_, validation_, test_ or ood_NAME_ in front of its features"
        raise fail(_CALLER, f"`train` must have {expected}, got {prefix}_ in {path}.")
    return _SETS[prefix.lower()]


def _names(prefix: str, names: Sequence[str]) -> FeatureNames:
    """Names of the arrays of a set; missing targets are reported by their expected name."""
    chosen = {}
    for role in FeatureNames._fields:
        spellings = {f"{prefix}_{word}".lower() for word in SPELLINGS[role]}
        found = [name for name in names if name.lower() in spellings]
        if len(found) > 1:
            raise fail(_CALLER, f"`{role}` of {prefix} must be there once, got {' and '.join(found)}.")
        chosen[role] = found[0] if found else None
    if chosen["targets"] is None and chosen["counts"] is None:
        chosen["targets"] = f"{prefix}_targets"
    return FeatureNames(**chosen)


def _add(places: dict[str, _Place], name: str, place: _Place) -> None:
    if name in places:
        raise fail(_CALLER, f"`{name}` must be given once, got {places[name]} and {place}.")
    places[name] = place


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Let errors about a file name the argument of `adapt` that it was given as."""
    try:
        yield
    except ValueError as error:
        fact = f"{error}".removeprefix(f"{_READER}: ")
        raise fail(_CALLER, re.sub(r"^`(path|features)`", f"`{name}`", fact)) from error


def _read(name: str, place: _Place, classes: int | None, class_names: Sequence[str] | None) -> Features:
    is_ood = name.startswith(_OOD)
    names = FeatureNames(place.names.features) if is_ood else place.names
    with _naming(name):
        return features_from_file(
            place.path, names=names, classes=classes, class_names=class_names, labelled=not is_ood
        )


def _require_one_width(places: Mapping[str, _Place], found: Mapping[str, Features]) -> None:
    width = found["train"].width
    for name, one in found.items():
        if one.width != width:
            fact = f"`{name}` must have rows of {width} numbers as `train` has"
            remedy = "compute them with the same network and layer"
            raise fail(_CALLER, f"{fact}, got {one.width} in {places[name]}; {remedy}.")


def _classes(
    places: Mapping[str, _Place], found: Mapping[str, Features], classes: int | None, head: Init | None
) -> int | None:
    """The number of classes as given or as the counts have it; no id may be beyond.

    Where neither is known, ids may be as large as those of `train` or those that the existing head knows.
    """
    known = classes
    for name, one in found.items():
        if one.targets.dim() == 2:
            known = one.targets.shape[1] if known is None else known
            if one.targets.shape[1] != known:
                got = f"{one.targets.shape[1]} in {places[name]}"
                raise fail(_CALLER, f"`{name}` must have counts of {known} classes as other sets, got {got}.")
    largest = {name: int(one.targets.max()) for name, one in found.items() if one.targets.dim() == 1}
    limit = known
    if known is None and largest.get("train", -1) >= 0:
        limit = max(largest["train"] + 1, 0 if head is None else len(head[0]))
        if limit < 2:
            raise fail(_CALLER, f"`train` must have two classes at least, got one in {places['train']}.")
    for name, last in largest.items():
        if limit is not None and last >= limit:
            there = "" if known is not None else ", the classes of `train`"
            got = f"{last} in {places[name]}"
            raise fail(_CALLER, f"`{name}` must have class ids from 0 to {limit - 1}{there}, got {got}.")
    return known


def features_from_file(
    path: str | Path,
    *,
    names: FeatureNames = FeatureNames(),  # noqa: B008
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    labelled: bool = True,
) -> Features:
    """Read one set of features from .npz, .npy, .safetensors, .parquet, .csv, or a file of the cache.

    Rows are memory-mapped where the format allows it. The arrays of `a_features.npy` are found in its
    neighbours `a_targets.npy` and so on.

    Args:
        path: Path of the file.
        names: Names of its arrays or columns, where they differ from the defaults.
        classes: Number of classes, if it is known; ids must be below it.
        class_names: Names of the classes in the order of their ids, for targets given as text.
        labelled: Whether there are targets; examples of no class have none, and get the id -1.

    Raises:
        ValueError: A file that cannot be read or does not hold features.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        rows, targets, digest = _from_cache(path)
    else:
        file = open_arrays(path, caller=_READER)
        if (field := _find(file, "features", names.features)) is None:
            raise file.missing("features", SPELLINGS["features"])
        rows = _rows(field)
        targets = _targets(file, names, len(rows), classes, class_names) if labelled else None
        digest = None
    if targets is None or not labelled:
        targets = torch.full((len(rows),), -1)
    return Features(rows, targets, digest or features_digest(rows, targets))


def _from_cache(path: Path) -> tuple[np.ndarray, Tensor, str]:
    with path.open("rb", buffering=0) as opened:
        file = FeatureFile.opened(opened)
        if file is None or not file.is_complete():
            got = "other content" if file is None else "one that is unfinished or damaged"
            remedy = "compute the features again"
            raise fail(_READER, f"`path` must be a complete file of features, got {got} at {path}; {remedy}.")
        return *file.read(), f"{file.facts['key']}"


def _find(file: ArrayFile, role: str, name: str | None) -> Field | None:
    """The array of this role, or columns that form a matrix."""
    field = file.find(role, SPELLINGS[role], name=name, numbered=role in ("features", "counts"))
    if name is not None and field is None:
        raise file.missing(role, (name,))
    return field


def _rows(field: Field) -> np.ndarray:
    """Features that are finite as float32: memory-mapped where possible, else float32 in memory."""
    is_mappable = len(field.names) == 1 and field.name in field.file.own
    mapped = field.file.map(field.name) if is_mappable else None
    rows = field.numbers().numpy() if mapped is None else mapped
    if rows.ndim != 2 or 0 in rows.shape:
        raise field.error("one row of features for each example", f"shape {tuple(rows.shape)}")
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = np.asarray(rows[start : start + _CHUNK_ROWS])
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(chunk.astype(np.float32))
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            value, place = chunk[row, column], f"in row {start + row}"
            if np.isfinite(value):
                raise field.error(
                    "features within the range of float32", f"{value:.6g} {place}; rescale them"
                )
            raise field.error("finite features", f"{value:.6g} {place}")
    return rows.astype(np.float32) if mapped is None else mapped


def _targets(
    file: ArrayFile,
    names: FeatureNames,
    rows: int,
    classes: int | None,
    class_names: Sequence[str] | None,
) -> Tensor:
    ids, counts = _find(file, "targets", names.targets), _find(file, "counts", names.counts)
    if ids and counts and (names.targets is None) == (names.counts is None):
        got = f"{ids.name} and {counts.name} in {file.path}"
        raise fail(_READER, f"`targets` or `counts` must be named where there are both, got {got}.")
    if counts and (not ids or names.counts is not None):
        return _counts(counts, rows, classes)
    if not ids:
        raise file.missing("targets", (*SPELLINGS["targets"], *SPELLINGS["counts"]))
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


def head_from_file(path: str | Path, *, width: int) -> Init | None:
    """The head stored with features of this width: `weight` (K, F) and `bias` (K,), zeros if there is none.

    None where the file holds no head.
    """
    path = Path(path)
    file = None if path.suffix == SUFFIX else open_arrays(path, caller=_READER)
    if file is None or file.is_table:
        return None
    weight, bias = (_find(file, role, None) for role in ("weight", "bias"))
    if weight is None:
        if bias is not None:
            raise bias.error("a weight with it", "none")
        return None
    values = _head_array(weight)
    if values.dim() != 2 or values.shape[1] != width or len(values) < 2:
        raise weight.error(f"a head (K, {width}) for features of that width", f"shape {tuple(values.shape)}")
    if bias is None:
        return values, torch.zeros(len(values))
    shift = _head_array(bias)
    if shift.shape != values.shape[:1]:
        raise bias.error("as many numbers as the weight has rows", f"shape {tuple(shift.shape)}")
    return values, shift


def _head_array(field: Field) -> Tensor:
    values = field.numbers().to(torch.float32)
    if not values.isfinite().all():
        raise field.error("finite numbers", "others")
    return values
