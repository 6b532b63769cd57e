"""All sets of an adaptation from files and directories of features, without a network.

One archive may hold several sets under names with the set in front: `train_features` and `train_targets` (or
`train_counts`), the same with `validation_` and `test_`, `ood_NAME_features` for examples of no class,
and the head as `weight` and `bias`.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from beliefmatch._validate import fail, level_of_caller
from beliefmatch.adaptation.adapt_config import VAL_FRACTION
from beliefmatch.adaptation.features import features_from_directory
from beliefmatch.adaptation.head_init import Init
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.stored import array_names, features_from_file, head_from_file
from beliefmatch.adaptation.stored_names import SPELLINGS, FeatureNames
from beliefmatch.adaptation.subsets import parted
from beliefmatch.adaptation.types import Features

__all__ = ["feature_sets"]

_US = "feature_sets"
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

Paths = Mapping[str, str | Path]


class _Place(NamedTuple):
    """A file or directory that holds a set, and the names of its arrays if they are not the defaults."""

    path: Path
    names: FeatureNames = FeatureNames()

    def __str__(self) -> str:
        return f"`{self.names.features}` of {self.path}" if self.names.features else f"{self.path}"


def feature_sets(
    train: str | Path,
    *,
    validation: str | Path | float | None = None,
    test: str | Path | None = None,
    ood: Paths | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    split_seed: int = 0,
) -> tuple[FeatureSets, Init | None, int | None]:
    """Read the features of every set, and the head that they are of, if it is there.

    Args:
        train: a file as `features_from_file` reads it, one that holds several sets, or a directory of the
            cache.
        validation: another such file or directory; or a share of `train` (or a number of rows), which is held
            out in proportion to the classes where `train` holds no validation rows of its own. If not
            given, that is a fifth, and a warning says so.
        test: another such file or directory, for examples to report on.
        OOD: the same for examples that belong to no class, by name; targets they have are left unread.
        classes: K, where the data do not determine it.
        class_names: by id, where targets are given as text.
        split_seed: of the draw of validation rows.

    Returns:
        The sets; weight and bias of the head, None if there is none; and K as given or as counts tell it,
        else None: the largest id there is may not be the largest that there could be.

    Raises:
        ValueError: in one line, for files that cannot be read, or sets that do not go together.
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
    _require_alike(places, found)
    if "validation" not in found:
        found["train"], found["validation"] = _held_out(found["train"], share, split_seed)
    others = {name.removeprefix(_OOD): one for name, one in found.items() if name.startswith(_OOD)}
    sets = FeatureSets(found["train"], found["validation"], found.get("test"), others)
    return sets, _init(places["train"].path, sets), _classes(places, found, classes)


def _path(name: str, given: str | Path) -> Path:
    path = Path(given).expanduser()
    if not path.exists():
        raise fail(_US, f"`{name}` must be a file or directory of features, got nothing at {path}.")
    return path


def _places(path: Path) -> dict[str, _Place]:
    """The sets of the first file; one of no other name is what to fit on."""
    names = array_names(path) if path.suffix.lower() in _ARCHIVES and path.is_file() else ()
    prefixes = [found["prefix"] for name in names if (found := _FEATURES.fullmatch(name))]
    bare = [name for name in names if name.lower() in SPELLINGS["features"]]
    if bare and "train" in map(str.lower, prefixes):
        raise fail(_US, f"`train` must hold one set or several, got {bare[0]} and train_features in {path}.")
    if bare or not prefixes:
        return {"train": _Place(path)}
    places: dict[str, _Place] = {}
    for prefix in prefixes:
        _add(places, _set_name(prefix, path), _Place(path, _names(prefix, names)))
    if "train" not in places:
        raise fail(_US, f"`train` must hold train_features, got {', '.join(names)} in {path}.")
    return places


def _set_name(prefix: str, path: Path) -> str:
    if prefix.lower().startswith(_OOD) and len(prefix) > len(_OOD):
        return f"{_OOD}{prefix[len(_OOD) :]}"
    if prefix.lower() not in _SETS:
        expected = "train_, validation_, test_ or ood_NAME_ in front of its features"
        raise fail(_US, f"`train` must have {expected}, got {prefix}_ in {path}.")
    return _SETS[prefix.lower()]


def _names(prefix: str, names: Sequence[str]) -> FeatureNames:
    """What the arrays of a set are called; missing targets are reported by their expected name."""
    chosen = {role: _spelt(prefix, role, names) for role in ("features", "targets", "counts")}
    if not chosen["targets"] and not chosen["counts"]:
        chosen["targets"] = [f"{prefix}_targets"]
    for role, found in chosen.items():
        if len(found) > 1:
            raise fail(_US, f"`{role}` of {prefix} must be there once, got {' and '.join(found)}.")
    return FeatureNames(**{role: found[0] if found else None for role, found in chosen.items()})


def _spelt(prefix: str, role: str, names: Sequence[str]) -> list[str]:
    spellings = {f"{prefix}_{word}".lower() for word in SPELLINGS[role]}
    return [name for name in names if name.lower() in spellings]


def _add(places: dict[str, _Place], name: str, place: _Place) -> None:
    if name in places:
        raise fail(_US, f"`{name}` must be given once, got {places[name]} and {place}.")
    places[name] = place


def _read(name: str, place: _Place, classes: int | None, class_names: Sequence[str] | None) -> Features:
    is_ood = name.startswith(_OOD)
    if place.path.is_dir():
        found = features_from_directory(place.path)
    else:
        found = features_from_file(
            place.path,
            names=FeatureNames(features=place.names.features) if is_ood else place.names,
            classes=None if is_ood else classes,
            class_names=None if is_ood else class_names,
            labelled=not is_ood,
            every_class=False,
            with_head=False,
        ).features
    if is_ood and bool((found.targets >= 0).any()):
        found = Features(found.rows, torch.full((len(found),), -1), found.digest)
    return found


def _require_alike(places: Mapping[str, _Place], found: Mapping[str, Features]) -> None:
    """Rows of one width, and counts of as many classes."""
    width, counted = found["train"].width, dict[str, int]()
    for name, one in found.items():
        if one.width != width:
            fact = f"`{name}` must have rows of {width} numbers as `train` has"
            got = f"got {one.width} in {places[name]}"
            raise fail(_US, f"{fact}, {got}; compute them with the same network and layer.")
        if one.targets.dim() == 2:
            counted[name] = one.targets.shape[1]
    for name, classes in counted.items():
        first = next(iter(counted))
        if classes != counted[first]:
            fact = f"counts of {counted[first]} classes as `{first}` has, got {classes} in {places[name]}"
            raise fail(_US, f"`{name}` must have {fact}.")


def _held_out(train: Features, share: float | None, seed: int) -> tuple[Features, Features]:
    if share is not None and not share > 0:
        raise fail(_US, f"`validation` must be a path, a share below 1 or a number of rows, got {share}.")
    if share is None:
        remedy = "if the network was trained on these data, give `validation` features of others"
        fact = (
            f"no `validation` features were given, so {VAL_FRACTION:.0%} of `train` are held out to choose λ"
        )
        warnings.warn(f"{_US}: {fact}; {remedy}.", stacklevel=level_of_caller())
    return parted(train, VAL_FRACTION if share is None else share, seed=seed)


def _init(path: Path, sets: FeatureSets) -> Init | None:
    return None if path.is_dir() else head_from_file(path, width=sets.train.width)


def _classes(places: Mapping[str, _Place], found: Mapping[str, Features], classes: int | None) -> int | None:
    """As given or as counts say; ids must be below."""
    counted = [one.targets.shape[1] for one in found.values() if one.targets.dim() == 2]
    known = counted[0] if classes is None and counted else classes
    if known is not None and counted and counted[0] != known:
        raise fail(_US, f"`classes` must be those of the counts, {counted[0]}, got {known}.")
    for name, one in found.items():
        largest = int(one.targets.max()) if one.targets.dim() == 1 else -1
        if known is not None and largest >= known:
            got = f"{largest} in {places.get(name, places['train'])}"
            raise fail(_US, f"`{name}` must have class ids from 0 to {known - 1}, got {got}.")
    return known
