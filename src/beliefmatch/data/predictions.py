"""Predictions of any model, read from files that cannot execute code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.data.fields import Field, FieldNames, absent, find_field, find_values
from beliefmatch.data.readers import Source, open_source
from beliefmatch.data.values import CALLER, Place, class_ids, pictures, require_logits, require_probs

__all__ = ["FieldNames", "Predictions", "read_class_names", "read_predictions"]

_USUAL = FieldNames()


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model said about N examples, and what came true.

    Args:
        path: of the file.
        kind: what `values` are.
        values: shape (N, K), checked: finite logits, or probabilities whose rows sum to one.
        targets: class ids from 0 to K - 1, shape (N,); None for OOD examples.
        images: shape (N, H, W), (N, H, W, C) or (N, C, H, W), where the file has some.
        recognised: the name in the file by what it was taken for; "unused" are probabilities beside logits.
    """

    path: Path
    kind: Literal["logits", "probs"]
    values: Tensor
    targets: Tensor | None
    images: Tensor | None
    recognised: dict[str, str]


def read_predictions(
    path: str | Path,
    *,
    names: FieldNames = _USUAL,
    class_names: Sequence[str] | None = None,
    targets_file: str | Path | None = None,
    labelled: bool = True,
) -> Predictions:
    """Read one model's predictions from .npz, .npy, .parquet, .csv or .safetensors.

    The formats, spellings and rules are told in `docs/evaluate.md`. Whether values are logits or
    probabilities is read from their name, never guessed from their size.

    Args:
        path: of the file.
        names: what its arrays or columns are called, where not as usual.
        class_names: by id, one for each class; targets may then be given as text.
        targets_file: where the targets are, if not beside the values.
        labelled: whether to read targets and images; OOD examples have no targets.

    Raises:
        ValueError: in one line, for a file that cannot be read or does not hold predictions.
    """
    source = open_source(Path(path))
    field, unused = find_values(source, names)
    check = require_logits if field.role == "logits" else require_probs
    values = check(source.load(field.names), Place(source.path, f"{field}"))
    if class_names is not None and len(class_names) != values.shape[1]:
        expected = f"one for each of the {values.shape[1]} classes of {source.path}"
        raise fail(CALLER, f"`class_names` must be {expected}, got {len(class_names)}.")
    recognised = {field.role: f"{field}", **({"unused": unused} if unused else {})}
    kind = cast(Literal["logits", "probs"], field.role)
    found = Predictions(source.path, kind, values, None, None, recognised)
    if not labelled:
        return found
    found = _with_targets(found, source, names, class_names, targets_file)
    return _with_images(found, source, names)


def _with_targets(
    found: Predictions,
    source: Source,
    names: FieldNames,
    class_names: Sequence[str] | None,
    file: str | Path | None,
) -> Predictions:
    source = source if file is None else open_source(Path(file))
    if file is not None and len(source.own) == 1:
        field = Field("targets", source.own)  # the only thing that can be meant
    else:
        field = find_field(source, "targets", names)
    if field is None:
        raise absent(source, ["targets"], names)
    place = Place(source.path, f"{field}")
    rows, classes = found.values.shape
    targets = class_ids(source.load(field.names), place, rows, classes, class_names)
    said = f"{field}" if file is None else f"{field} in {source.path}"
    return replace(found, targets=targets, recognised={**found.recognised, "targets": said})


def _with_images(found: Predictions, source: Source, names: FieldNames) -> Predictions:
    if source.is_table and names.images is None:  # a column of that name holds paths or files
        return found
    field = find_field(source, "images", names)
    if field is None:
        if names.images is not None:
            raise absent(source, ["images"], names)
        return found
    images = pictures(source.load(field.names), Place(source.path, f"{field}"), len(found.values))
    return replace(found, images=images, recognised={**found.recognised, "images": f"{field}"})


def read_class_names(path: str | Path) -> list[str]:
    """Read class names from a text file, one a line in the order of the class ids."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise fail(
            "read_class_names", f"`class_names` must be a text file, got {path} ({reason})."
        ) from error
    names = [line.strip() for line in text.rstrip().split("\n")]
    wrong = next((name for name in names if not name or names.count(name) > 1), None)
    if wrong is not None:
        what = f"{wrong!r} twice" if wrong else f"an empty line {names.index('') + 1}"
        raise fail("read_class_names", f"`class_names` must be one a line, none twice, got {what} in {path}.")
    return names
