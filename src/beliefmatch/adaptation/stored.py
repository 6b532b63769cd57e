"""Features that were computed before, read from files that cannot execute code.

A file holds `features` (N, F) and either class ids (N,) as `targets` or votes (N, K) as `counts`; archives
may hold the existing head as `weight` (K, F) and `bias` (K,). One archive may hold several sets under names
with the set in front: `train_features` and `train_targets` (or `train_counts`), the same with `validation_`
and `test_`, and `ood_NAME_features` for examples of no class. Files of the feature cache are read too.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import fail, naming_arguments
from beliefmatch.adaptation.adapt_config import VAL_FRACTION
from beliefmatch.adaptation.cache import SUFFIX, FeatureFile
from beliefmatch.adaptation.diagnostics import MAX_CLASSES
from beliefmatch.adaptation.feature_rows import Features, features_digest, require_finite
from beliefmatch.adaptation.fitted import Init
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.streams import OOD, ood_sets
from beliefmatch.data.formats import ArrayFile, Field, open_arrays
from beliefmatch.data.predictions import SPELLINGS as OF_PREDICTIONS
from beliefmatch.data.predictions import class_ids

__all__ = ["feature_sets", "features_from_file", "head_from_file"]

SPELLINGS: dict[str, tuple[str, ...]] = {
    "features": ("features", "feature", "embeddings", "embedding", "x"),
    "targets": OF_PREDICTIONS["targets"],
    "counts": ("counts", "count", "votes"),
}
"""Names of arrays and columns that are recognised, in any case."""

_ARCHIVES = (".npz", ".safetensors")
_SETS = {"train": "train", "test": "test", **dict.fromkeys(("validation", "valid", "val"), "validation")}
_OOD_PREFIX = "ood_"
_FEATURES = re.compile(rf"(?P<set>.+)_(?:{'|'.join(SPELLINGS['features'])})", re.IGNORECASE)


class _Place(NamedTuple):
    """A file that holds a set, and what stands in front of the names of its arrays."""

    path: Path
    prefix: str = ""

    def __str__(self) -> str:
        return f"`{self.prefix}features` of {self.path}" if self.prefix else f"{self.path}"


def feature_sets(
    train: str | Path,
    *,
    validation: str | Path | float | None = None,
    test: str | Path | None = None,
    ood: Mapping[str, str | Path] | None = None,
    background: str | Path | None = None,
    split_seed: int = 0,
) -> tuple[FeatureSets, Init | None]:
    """Read the features of every set of an adaptation, and the existing head if the file holds it.

    Args:
        train: A file as `features_from_file` reads it, or an archive of several sets.
        validation: Another such file; or a fraction or number of the rows of `train`, which are held out in
            proportion to the classes. By default the validation rows of `train` if it has some, else a fifth
            of its rows, of which `refit` warns.
        test: Another such file, for examples to report on.
        ood: Such files of examples that belong to no class, by name; their targets are not read.
        background: Another such file of examples that belong to no class, to fit on.
        split_seed: Seed of the draw of validation rows.

    Returns:
        The sets; and weight and bias of the existing head, or None.

    Raises:
        ValueError: Files that cannot be read, or sets that do not fit together.
    """
    places = _places(_path("train", train))
    share = validation if isinstance(validation, int | float) else None
    given = {"validation": validation if share is None else None, "test": test, "background": background}
    given |= {f"{OOD}{name}": path for name, path in (ood or {}).items()}
    for name, path in given.items():
        if path is not None:
            _add(places, name, _Place(_path(name, path)))
    found = {
        name: features_from_file(
            place.path, prefix=place.prefix, labelled=name in _SETS, argument=_argument(name)
        )
        for name, place in places.items()
    }
    if share is not None and "validation" in found:
        got = f"{share:g}, but {places['validation']} are validation rows"
        raise fail("adapt", f"`validation` must not be given for such a file, got {got}.")
    head = head_from_file(places["train"].path, width=found["train"].width, argument="train")
    _require_one_kind(places, found, head)
    val_fraction = None
    if "validation" not in found:
        rows = found["train"].hold_out(VAL_FRACTION if share is None else share, seed=split_seed)
        found["train"], found["validation"] = (found["train"].subset(some) for some in rows)
        val_fraction = VAL_FRACTION if share is None else None
    labelled = (found["train"], found["validation"], found.get("test"))
    sets = FeatureSets(*labelled, ood_sets(found), found.get("background"), val_fraction=val_fraction)
    return sets, head


def _argument(name: str) -> str:
    return f"ood[{name.removeprefix(OOD)!r}]" if name.startswith(OOD) else name


def _path(name: str, given: str | Path) -> Path:
    path = Path(given).expanduser()
    if not path.is_file():
        got = f"the directory {path}" if path.is_dir() else f"nothing at {path}"
        raise fail("adapt", f"`{_argument(name)}` must be a file of features, got {got}.")
    return path


def _places(path: Path) -> dict[str, _Place]:
    """The sets of the first file; a single set without a name in front is the training set."""
    with naming_arguments("adapt", path="train"):
        names = open_arrays(path, caller="adapt").names if path.suffix.lower() in _ARCHIVES else ()
    several = [found["set"] for name in names if (found := _FEATURES.fullmatch(name))]
    bare = [name for name in names if name.lower() in SPELLINGS["features"]]
    if bare and "train" in map(str.lower, several):
        fact = "`train` must hold one set or several"
        raise fail("adapt", f"{fact}, got {bare[0]} and train_features in {path}.")
    if bare or not several:
        return {"train": _Place(path)}
    places: dict[str, _Place] = {}
    for own in several:
        is_ood = own.lower().startswith(_OOD_PREFIX) and len(own) > len(_OOD_PREFIX)
        name = f"{OOD}{own[len(_OOD_PREFIX) :]}" if is_ood else _SETS.get(own.lower())
        if name is None:
            expected = "train_, validation_, test_ or ood_NAME_ in front of its features"
            raise fail("adapt", f"`train` must have {expected}, got {own}_ in {path}.")
        _add(places, name, _Place(path, f"{own}_"))
    if "train" not in places:
        raise fail("adapt", f"`train` must hold train_features, got {', '.join(names)} in {path}.")
    return places


def _add(places: dict[str, _Place], name: str, place: _Place) -> None:
    if name in places:
        raise fail("adapt", f"`{_argument(name)}` must be given once, got {places[name]} and {place}.")
    places[name] = place


def _require_one_kind(places: Mapping[str, _Place], found: Mapping[str, Features], head: Init | None) -> None:
    """All sets must have the width of `train`, and no ids but those of `train` or of the existing head."""
    train, first = found["train"], places["train"]
    is_counted, known = train.targets.dim() == 2, 0 if head is None else len(head[0])
    limit = train.targets.shape[1] if is_counted else max(int(train.targets.max()) + 1, known)
    for name, one in found.items():
        if one.width != train.width:
            fact = f"`{_argument(name)}` must have rows of {train.width} numbers as {first} has"
            remedy = "compute them with the same network and layer"
            raise fail("adapt", f"{fact}, got {one.width} in {places[name]}; {remedy}.")
        if one.targets.dim() == 1 and int(one.targets.max()) >= limit:
            fact = f"`{name}` must have class ids from 0 to {limit - 1}, the classes of {first}"
            raise fail("adapt", f"{fact}, got {int(one.targets.max())} in {places[name]}.")


def features_from_file(
    path: str | Path, *, prefix: str = "", labelled: bool = True, argument: str = "path"
) -> Features:
    """Read one set of features from .npz, .npy, .safetensors, .parquet, .csv, or a file of the cache.

    Rows are memory-mapped where the format allows it. The arrays of `a_features.npy` are found in its
    neighbours `a_targets.npy` and so on.

    Args:
        path: Path of the file.
        prefix: What stands in front of the names of its arrays.
        labelled: Whether there are targets; examples of no class have none, and get the id -1.
        argument: What the user calls the file, for errors.

    Raises:
        ValueError: A file that cannot be read or does not hold features.
    """
    path, digest, targets = Path(path), None, None
    with naming_arguments("adapt", path=argument):
        if path.suffix == SUFFIX:
            rows, targets, digest = _from_cache(path)
        else:
            file = open_arrays(path, caller="adapt")
            rows = _rows(_find(file, prefix, "features"))
            targets = _targets(file, prefix, len(rows)) if labelled else None
    if targets is None or not labelled:
        targets = torch.full((len(rows),), -1)
    found = Features(rows, targets, digest or features_digest(rows, targets))
    require_finite("adapt", argument, found)
    return found


def _from_cache(path: Path) -> tuple[np.ndarray, Tensor, str]:
    with path.open("rb", buffering=0) as opened:
        file = FeatureFile.opened(opened)
        if file is None or not file.is_complete():
            got = "other content" if file is None else "one that is unfinished or damaged"
            remedy = "compute the features again"
            raise fail("adapt", f"`path` must be a complete file of features, got {got} at {path}; {remedy}.")
        return *file.read(), f"{file.facts['key']}"


def _find(file: ArrayFile, prefix: str, *roles: str) -> Field:
    """The one array that has one of these roles, or the columns that form a matrix."""
    names = {role: [f"{prefix}{word}".lower() for word in SPELLINGS[role]] for role in roles}
    found = [file.find(role, names[role], numbered=role != "targets") for role in roles]
    found = [field for field in found if field is not None]
    if len(found) == 1:
        return found[0]
    got = " and ".join(field.name for field in found) or ", ".join(file.names[:12]) or "nothing"
    expected = " or ".join(name for words in names.values() for name in words)
    raise fail("adapt", f"`path` must hold one array {expected}, got {got} in {file.path}.")


def _rows(field: Field) -> np.ndarray:
    """Features, memory-mapped where possible, else float32 in memory."""
    is_mappable = len(field.names) == 1 and field.name in field.file.own
    mapped = field.file.map(field.name) if is_mappable else None
    rows = field.numbers().numpy() if mapped is None else mapped
    if rows.ndim != 2 or 0 in rows.shape:
        raise field.error("one row of features for each example", f"shape {tuple(rows.shape)}")
    return rows.astype(np.float32) if mapped is None else mapped


def _targets(file: ArrayFile, prefix: str, rows: int) -> Tensor:
    field = _find(file, prefix, "targets", "counts")
    if field.names[0].lower().removeprefix(prefix.lower()) in SPELLINGS["targets"]:
        return class_ids(field, rows, MAX_CLASSES, None)
    counts = field.numbers().to(torch.float32)
    if counts.dim() != 2 or counts.shape[1] < 2 or len(counts) != rows:
        expected = f"counts ({rows}, K), one row for each example"
        raise field.error(expected, f"shape {tuple(counts.shape)}")
    wrong = ~(counts.isfinite() & (counts >= 0))
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise field.error("finite counts not below 0", f"{counts[row, column].item():.6g} in row {row}")
    return counts


def head_from_file(path: str | Path, *, width: int, argument: str = "path") -> Init | None:
    """The head stored with features of this width: `weight` (K, F) and `bias` (K,), zeros if there is none.

    None where the file holds no head.
    """
    with naming_arguments("adapt", path=argument):
        file = None if Path(path).suffix == SUFFIX else open_arrays(path, caller="adapt")
        if file is None or file.is_table:
            return None
        weight, bias = (file.find(role, (role,)) for role in ("weight", "bias"))
        if weight is None:
            if bias is not None:
                raise bias.error("a weight with it", "none")
            return None
        values = weight.numbers().float()
        if values.dim() != 2 or values.shape[1] != width or len(values) < 2:
            expected = f"a head (K, {width}) for features of that width"
            raise weight.error(expected, f"shape {tuple(values.shape)}")
        shift = values.new_zeros(len(values)) if bias is None else bias.numbers().float()
        if bias is not None and shift.shape != values.shape[:1]:
            raise bias.error("as many numbers as the weight has rows", f"shape {tuple(shift.shape)}")
        for field, numbers in ((weight, values), (bias, shift)):
            if field is not None and not numbers.isfinite().all():
                raise field.error("finite numbers", "others")
        return values, shift
