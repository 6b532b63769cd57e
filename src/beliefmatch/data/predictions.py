"""Predictions of any model, read from files that cannot execute code or taken from arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from beliefmatch._utils import first_repeated
from beliefmatch._validate import FLOATING, SUM_TOLERANCE, fail, naming_arguments
from beliefmatch.belief import Belief
from beliefmatch.data.formats import ArrayFile, ArraysInMemory, Field, open_arrays, places_by_number
from beliefmatch.metrics._readings import BINARY

__all__ = [
    "SPELLINGS",
    "FieldNames",
    "Predictions",
    "are_distributions",
    "class_ids",
    "ids_of_names",
    "npz_bytes",
    "read_class_names",
    "read_predictions",
]

Kind = Literal["logits", "probs"]
Role = Literal["logits", "probs", "targets", "images"]

SPELLINGS: dict[Role, tuple[str, ...]] = {
    "logits": ("logits", "logit", "y_logits"),
    "probs": (
        "probs",
        "prob",
        "probabilities",
        "probability",
        "proba",
        "predict_proba",
        "y_prob",
        "y_probs",
        "y_proba",
        "softmax",
    ),
    "targets": (
        "targets",
        "target",
        "labels",
        "label",
        "y_true",
        "y",
        "y_test",
        "ground_truth",
        "groundtruth",
        "gt",
        "true_label",
        "true_labels",
    ),
    "images": ("images", "image"),
}
"""Unambiguous names, in any case."""
AMBIGUOUS = ("predictions", "prediction", "preds", "pred", "y_pred", "y_score", "scores", "outputs", "output")
"""Names of arrays that may be logits, probabilities or class ids. They are taken for probabilities where
every row is a distribution, which no logits are by chance; else the user must name them."""

_CALLER = "read_predictions"
_INFORMATION = "mutual_information"
_CHUNK = 1 << 20  # values checked at a time


@dataclass(frozen=True)
class FieldNames:
    """What the arrays or columns are called; None for any of the default spellings."""

    logits: str | None = None
    probs: str | None = None
    targets: str | None = None
    images: str | None = None


_DEFAULT_NAMES = FieldNames()


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a model for N examples, with the true classes.

    Args:
        path: of the file; None for arrays.
        kind: what `values` are.
        values: shape (N, K), checked: finite logits, or probabilities whose rows sum to one.
        targets: class ids from 0 to K - 1, shape (N,); None for OOD examples.
        images: shape (N, H, W), (N, H, W, C) or (N, C, H, W), where the file has some.
        recognised: the name in the file of each role; "unused" are probabilities in a file with logits.
        class_names: headings of the columns of a table that has one column a class.
        mutual_information: in nats, shape (N,), where probabilities come with it: of label and dropout mask,
            or of label and member of an ensemble, which the mean of their probabilities does not show.
    """

    path: Path | None
    kind: Kind
    values: Tensor
    targets: Tensor | None
    images: Tensor | None
    recognised: dict[str, str]
    class_names: tuple[str, ...] | None = None
    mutual_information: Tensor | None = None

    @classmethod
    def from_arrays(
        cls,
        *,
        logits: Any = None,
        probs: Any = None,
        targets: Any = None,
        images: Any = None,
        class_names: Sequence[str] | None = None,
    ) -> Predictions:
        """Predictions that are in memory: tensors, numpy arrays, lists or data frames.

        Args:
            logits: Logits, shape (N, K), or a `Belief`; either these or `probs`. Of a data frame, headings
                such as logit_cat or logit_0, or that are the names or ids of classes, name the classes as
                those of a file do.
            probs: Probabilities, shape (N, K).
            targets: Class ids, or texts among `class_names`, shape (N,); None for OOD examples.
            images: Images of the examples, for thumbnails.
            class_names: One for each class.

        >>> Predictions.from_arrays(probs=[[0.9, 0.1], [0.3, 0.7]], targets=[0, 1]).kind
        'probs'
        """
        if (logits is None) == (probs is None):
            received = "neither" if logits is None else "both"
            raise fail("Predictions", f"`logits` or `probs` must be given, got {received}.")
        if isinstance(logits, Belief):
            logits = logits.log_alpha.movedim(logits.dim, -1)
        kind: Kind = "logits" if probs is None else "probs"
        values, own = _frame_by_class(kind, logits if probs is None else probs, class_names, targets)
        given = {kind: values, "targets": targets, "images": images}
        given = {name: one for name, one in given.items() if one is not None}
        file = ArraysInMemory(given, caller="Predictions")
        names = own if class_names is None else tuple(class_names)
        values = _checked_values(kind, Field(file, (kind,)), names)
        rows, classes = values.shape
        ids = None if targets is None else class_ids(Field(file, ("targets",)), rows, classes, names)
        thumbnails = None if images is None else _require_images(Field(file, ("images",)), rows)
        return cls(None, kind, values, ids, thumbnails, {name: name for name in given}, names)


def read_predictions(
    path: str | Path,
    *,
    names: FieldNames = _DEFAULT_NAMES,
    class_names: Sequence[str] | None = None,
    targets_file: str | Path | None = None,
    labelled: bool = True,
) -> Predictions:
    """Read one model's predictions from .npz, .npy, .parquet, .csv or .safetensors.

    `docs/evaluate.md` describes formats, spellings and rules. The name of an array decides whether its values
    are logits or probabilities; this is never guessed from the values.

    Args:
        path: of the file.
        names: what its arrays or columns are called, where no default spelling applies.
        class_names: by id, one for each class; targets may then be text.
        targets_file: the file of the targets, if it is another one.
        labelled: whether to read targets and images; OOD examples have no targets.

    Raises:
        ValueError: in one line, for a file that cannot be read or does not hold predictions.
    """
    file = open_arrays(path, caller=_CALLER)
    kind, field, unused, own_names = _find_values(file, names, class_names)
    class_names = own_names if class_names is None else class_names
    values = _checked_values(kind, field, class_names)
    rows, classes = values.shape
    recognised = {kind: field.name} | ({} if unused is None else {"unused": unused.name})
    targets = images = None
    if labelled:
        with naming_arguments(_CALLER, path="path" if targets_file is None else "targets_file"):
            origin = file if targets_file is None else open_arrays(targets_file, caller=_CALLER)
            is_alone = origin is not file and len(origin.own) == 1  # the only array that can be meant
            field = Field(origin, origin.own) if is_alone else _find(origin, "targets", names)
            if field is None:
                raise origin.missing("targets", _spellings("targets", names))
            targets = class_ids(field, rows, classes, class_names)
        recognised["targets"] = field.name + ("" if origin is file else f" in {origin.path}")
        # A column of a table that is called image holds paths or encoded files, unless the user named it.
        is_sought = names.images is not None or not file.is_table
        field = _find(file, "images", names) if is_sought else None
        if field is not None:
            images = _require_images(field, rows)
            recognised["images"] = field.name
        elif names.images is not None:
            raise file.missing("images", [names.images])
    # logits are read as a belief, which has its own; a column of a table may be empty
    is_sought, information = kind == "probs" and not file.is_table, None
    if is_sought and (field := file.find(_INFORMATION, (_INFORMATION,), own=True)):
        information = _require_information(field, rows)
        recognised[_INFORMATION] = field.name
    return Predictions(file.path, kind, values, targets, images, recognised, own_names, information)


def _find_values(
    file: ArrayFile, names: FieldNames, class_names: Sequence[str] | None
) -> tuple[Kind, Field, Field | None, tuple[str, ...] | None]:
    """The logits or the probabilities, the other of the two where it is there, and class names of columns.

    What the user named takes precedence over what was recognised, and logits over probabilities.
    """
    both: list[Kind] = ["logits", "probs"]
    if names.logits is not None and names.logits == names.probs:
        raise fail(_CALLER, f"`logits` and `probs` must differ, got {names.logits!r} for both.")
    named: list[Kind] = [role for role in both if getattr(names, role) is not None]
    roles = named or both
    found: list[tuple[Kind, Field]] = [(role, field) for role in roles if (field := _find(file, role, names))]
    if found:
        return *found[0], found[1][1] if len(found) > 1 else None, None
    if not named and file.is_table and (by_class := _class_columns(file, names, class_names)) is not None:
        return *by_class[:2], None, by_class[2]
    unclear = None if named else file.find("probs", AMBIGUOUS, numbered=True, own=True)
    if unclear is not None and are_distributions(unclear.load()):
        return "probs", unclear, None, None
    if unclear is not None:
        fact = f"{file.path} must say whether `{unclear.name}` holds logits or probabilities"
        raise fail(_CALLER, f"{fact}: name it by `logits` or by `probs`.")
    raise file.missing(roles[0], [name for role in roles for name in _spellings(role, names)])


def _class_columns(
    file: ArrayFile, names: FieldNames, class_names: Sequence[str] | None
) -> tuple[Kind, Field, tuple[str, ...]] | None:
    """One column a class: prob_cat, prob_dog, ..., cat_prob, ..., or columns with the names of the classes.

    Classes are known by the names that were given, else by targets that are text.
    """
    kinds: tuple[Kind, ...] = ("logits", "probs")
    for kind in kinds:
        if by_column := _by_column(kind, file.names):
            if class_names is not None:
                by_column = _in_order(_CALLER, by_column, class_names)
            return kind, Field(file, tuple(by_column)), tuple(by_column.values())
    targets = _find(file, "targets", names)
    texts = None if targets is None else targets.load()
    known = dict.fromkeys(class_names or (texts if isinstance(texts, list) else ()))
    if len(known) < 2 or not {*known} <= {*file.names}:
        return None
    others = {name for name in file.names if not class_names and _may_be_class(file, name, known, targets)}
    columns = [*known] if class_names else [name for name in file.names if name in known or name in others]
    field = Field(file, tuple(columns))
    if not are_distributions(field.load()):
        fact = f"{file.path} must say whether the columns {field.name} hold logits or probabilities"
        raise fail(_CALLER, f"{fact}: call them prob_{columns[0]}, ... or logit_{columns[0]}, ...")
    return "probs", field, tuple(columns)


def _by_column(kind: Kind, headings: Sequence[str]) -> dict[str, str]:
    """Class names by the headings that say that they are of this kind, such as prob_cat or cat_prob."""
    for spelling in (*SPELLINGS[kind], *(("p",) if kind == "probs" else ())):
        for pattern in (rf"{spelling}[ ._-](\D.*)", rf"(.*\D)[ ._-]{spelling}"):
            matches = [re.fullmatch(pattern, name, re.IGNORECASE) for name in headings]
            by_column = {match[0]: match[1] for match in matches if match}
            if len(by_column) > 1:
                return by_column
    return {}


def _in_order(caller: str, by_column: Mapping[str, str], class_names: Sequence[str]) -> dict[str, str]:
    """Columns in the order of the classes, whose names their headings are."""
    column_of = {name: column for column, name in by_column.items()}
    if len(column_of) < len(by_column) or {*column_of} != {*class_names}:
        expected = f"be the classes of the columns, {', '.join(by_column.values())}, in any order"
        raise fail(caller, f"`class_names` must {expected}, got {', '.join(class_names)}.")
    return {column_of[name]: name for name in class_names}


def _frame_by_class(
    kind: Kind, values: Any, known: Sequence[str] | None, targets: Any
) -> tuple[Any, tuple[str, ...] | None]:
    """A data frame with its columns in the order of the classes, and their names where headings tell them.

    As in a file, headings are prob_cat, ..., names of classes that were given or that the targets hold, or
    prob_0, ...; of a frame, which has no other columns, also 0, 1, ....
    """
    headings = [_heading(one) for one in getattr(values, "columns", ())]
    if len(headings) < 2 or None in headings:
        return values, None
    headings = [one for one in headings if one is not None]
    by_column = _by_column(kind, headings)
    names = [by_column.get(one, one) for one in headings]
    if first_repeated(names) is None:
        is_named = len(by_column) == len(names)
        if known is not None and (is_named or set(known) == set(names)):
            if is_named:
                _in_order("Predictions", by_column, known)
            places = {name: place for place, name in enumerate(names)}
            return _with_columns(values, [places[name] for name in known]), tuple(known)
        texts = (
            set() if targets is None else {one for one in np.asarray(targets).flat if isinstance(one, str)}
        )
        if known is None and (is_named or (len(texts) > 1 and texts <= set(names))):
            return values, tuple(names)
    return _with_columns(values, _numbered_places(kind, headings)), None


def _heading(one: object) -> str | None:
    """A heading of a data frame as in a file; None where it is neither text nor a whole number."""
    if isinstance(one, str):
        return one.strip()
    is_whole = isinstance(one, Real | np.bool_) and float(one).is_integer()
    return f"{int(one)}" if is_whole else None  # pyright: ignore[reportArgumentType]


def _numbered_places(kind: Kind, headings: Sequence[str]) -> Sequence[int]:
    """Places of numbered columns in the order of their numbers; of all columns where they have no numbers."""

    def refused(fact: str) -> Exception:
        return fail("Predictions", f"`{kind}` {fact}; rename the columns, or give an array.")

    for spelling in SPELLINGS[kind]:
        if places := places_by_number(headings, spelling, refused=refused):
            return places
    are_numbers = all(one.removeprefix("-").isdecimal() for one in headings)
    return places_by_number(headings, "", refused=refused) if are_numbers else range(len(headings))


def _with_columns(frame: Any, places: Sequence[int]) -> Any:
    """A data frame of pandas, polars and the like with the columns of these places."""
    if list(places) == list(range(len(frame.columns))):
        return frame
    return frame.iloc[:, places] if hasattr(frame, "iloc") else frame[[frame.columns[one] for one in places]]


def _may_be_class(file: ArrayFile, name: str, known: Collection[str], targets: Field | None) -> bool:
    """Whether a column may be a class that never came true: shares, and neither targets nor an index."""
    if name in known or (targets is not None and name in targets.names):
        return False
    values = file.load((name,))
    if not isinstance(values, Tensor) or not values.is_floating_point():
        return False
    return bool(((values >= 0) & (values <= 1)).all())


def are_distributions(values: Tensor | list[str], *, tolerance: float = SUM_TOLERANCE) -> bool:
    """Whether these are rows of probabilities beyond doubt."""
    if not isinstance(values, Tensor) or values.ndim != 2 or values.shape[1] < 2 or not len(values):
        return False
    if not values.is_floating_point():
        return False
    sums = values.sum(1, dtype=torch.float64)
    return bool(((values >= 0) & (values <= 1)).all()) and bool(((sums - 1).abs() <= tolerance).all())


def _find(file: ArrayFile, role: Role, names: FieldNames) -> Field | None:
    is_value = role in ("logits", "probs")
    return file.find(role, SPELLINGS[role], name=getattr(names, role), numbered=is_value, own=is_value)


def _spellings(role: Role, names: FieldNames) -> tuple[str, ...]:
    name = getattr(names, role)
    return SPELLINGS[role] if name is None else (name,)


def read_class_names(path: str | Path) -> list[str]:
    """Read class names from a text file, one on each line in the order of the class ids."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        fact = f"`class_names` must be a text file, got {path} ({reason})."
        raise fail("read_class_names", fact) from error
    names = [line.strip() for line in text.rstrip().split("\n")]
    wrong = "" if "" in names else first_repeated(names)
    if wrong is not None:
        what = f"{wrong!r} twice" if wrong else f"an empty line {names.index('') + 1}"
        raise fail("read_class_names", f"`class_names` must be one a line, none twice, got {what} in {path}.")
    return names


def _checked_values(kind: Kind, field: Field, class_names: Sequence[str] | None) -> Tensor:
    """Logits or probabilities of shape (N, K), and as many class names, if any."""
    values = (_require_logits if kind == "logits" else _require_probs)(field)
    if class_names is not None and len(class_names) != values.shape[1]:
        of = "" if isinstance(field.file, ArraysInMemory) else f" of {field.file.path}"
        expected = f"one for each of the {values.shape[1]} classes{of}"
        raise fail(field.file.caller, f"`class_names` must be {expected}, got {len(class_names)}.")
    return values


def _require_logits(field: Field) -> Tensor:
    """Finite numbers of shape (N, K)."""
    logits = _matrix(field, BINARY["logits"])
    _require_rows(logits, lambda rows: rows.isfinite().all(1), "finite logits", field)
    return logits


def _require_probs(field: Field) -> Tensor:
    """Numbers in [0, 1] of shape (N, K); rows sum to one."""
    probs = _matrix(field, BINARY["probs"])
    within = "probabilities in [0, 1] (logits are called logits)"
    _require_rows(probs, lambda rows: ((rows >= 0) & (rows <= 1)).all(1), within, field)

    def total(rows: Tensor) -> Tensor:
        return rows.sum(1, dtype=torch.float64)

    def sums_to_one(rows: Tensor) -> Tensor:
        return (total(rows) - 1).abs() <= SUM_TOLERANCE

    _require_rows(probs, sums_to_one, "probabilities whose rows sum to 1", field, show=total)
    return probs


def _matrix(field: Field, binary_remedy: str) -> Tensor:
    """Numbers of shape (N, K); `binary_remedy` says what to do where there is one for each example."""
    values = field.numbers()
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        expected = "one row for each example and one column for each of two or more classes"
        is_binary = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
        remedy = f"; {binary_remedy}" if is_binary and len(values) else ""
        raise field.error(expected, f"shape {tuple(values.shape)}{remedy}")
    return values if values.dtype in FLOATING else values.double()


def _require_rows(
    values: Tensor,
    holds: Callable[[Tensor], Tensor],
    expected: str,
    field: Field,
    show: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Every row must pass; the error shows the first that does not, by its first bad value or by `show`."""
    size = max(1, _CHUNK // values.shape[1])
    for start in range(0, len(values), size):
        rows = values[start : start + size]
        good = holds(rows)
        if not good.all():
            index = int((~good).nonzero()[0])
            row = rows[index : index + 1]
            shown = show(row) if show else row[0][~holds(row.T)]
            raise field.error(expected, f"{shown[0].item():.6g} in row {start + index}")


def class_ids(field: Field, rows: int, classes: int, names: Sequence[str] | None) -> Tensor:
    """Class ids of shape (rows,), from whole numbers or from class names."""
    values = field.load()
    ids = _ids_of_text(values, field, names) if isinstance(values, list) else _ids_of_numbers(values, field)
    if ids.shape != (rows,):
        expected = f"one class id for each of the {rows} rows"
        raise field.error(expected, f"{len(ids)}" if ids.ndim == 1 else f"shape {tuple(ids.shape)}")
    within = (ids >= 0) & (ids < classes)
    if not within.all():
        row = int((~within).nonzero()[0])
        # As written in the file: the number may be too large for an id.
        number = values.flatten()[row].item() if isinstance(values, Tensor) else ids[row].item()
        received = f"{number:.15g}" if isinstance(number, float) else f"{number}"
        raise field.error(f"class ids from 0 to {classes - 1}", f"{received} in row {row}")
    if isinstance(values, Tensor) and names is not None and field.file.path.suffix.lower() == ".csv":
        # In a text file the number 4 may be an id or the name of another class; it is not guessed which.
        by_name = {name: index for index, name in enumerate(names)}
        for value in ids.unique().tolist():
            if by_name.get(f"{value}", value) != value:
                expected = "class ids that are not the names of other classes"
                raise field.error(expected, f"{value}, the name of class {by_name[f'{value}']}")
    return ids


def _ids_of_numbers(values: Tensor, field: Field) -> Tensor:
    if values.dtype == torch.bool or values.is_complex():
        raise field.error("class ids", f"{values.dtype}".removeprefix("torch."))
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim != 1:
        raise field.error("one class id for each row", f"shape {tuple(values.shape)}")
    if not values.is_floating_point():
        return flat.to(torch.int64)  # an unsigned id too large for it becomes negative and is refused
    whole = flat.isfinite() & (flat == flat.round())
    if not whole.all():
        row = int((~whole).nonzero()[0])
        raise field.error("whole class ids", f"{flat[row].item():.6g} in row {row}")
    return flat.clamp(-(2.0**62), 2.0**62).to(torch.int64)


def _ids_of_text(texts: list[str], field: Field, names: Sequence[str] | None) -> Tensor:
    if names is None:
        others = (text for text in texts if not text.strip().lstrip("-").isdigit())
        first = next(others, texts[0] if texts else "")
        raise field.error("class ids where no class names are given", f"the text {first!r}")
    ids = ids_of_names(texts, names)
    if (ids < 0).any():
        row = int((ids < 0).argmax())
        raise field.error("class ids or class names", f"{texts[row]!r} in row {row}")
    return torch.from_numpy(ids)


def ids_of_names(texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Class id of each class name, int64; -1 for a text that is not among the names."""
    by_name = {name: index for index, name in enumerate(names)}
    return np.array([by_name.get(text, -1) for text in texts], dtype=np.int64)


def _require_images(field: Field, rows: int) -> Tensor:
    """Images of shape (N, H, W), (N, H, W, C) or (N, C, H, W), C of 1, 3 or 4."""
    values = field.load()
    if isinstance(values, list) or values.is_complex():
        raise field.error("images", "no real numbers")
    shape = tuple(values.shape)
    channels = (shape[1], shape[-1]) if len(shape) == 4 else (1,)
    if len(shape) not in (3, 4) or 0 in shape or not {1, 3, 4} & set(channels):
        expected = "images of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with 1, 3 or 4 channels"
        raise field.error(expected, f"shape {shape}")
    if len(values) != rows:
        raise field.error(f"one image for each of the {rows} rows", f"{len(values)}")
    return values


def _require_information(field: Field, rows: int) -> Tensor:
    """Finite numbers of shape (N,), not negative but for rounding."""
    values = field.numbers().double()
    if values.shape != (rows,):
        raise field.error(f"one number for each of the {rows} rows", f"shape {tuple(values.shape)}")
    good = values.isfinite() & (values >= -SUM_TOLERANCE)
    if not good.all():
        row = int((~good).nonzero()[0])
        raise field.error("finite numbers of nats, at least 0", f"{values[row].item():.6g} in row {row}")
    return values


def npz_bytes(predictions: Predictions) -> bytes:
    """Predictions as a .npz file, in single precision where that loses nothing."""
    values, single = predictions.values, predictions.values.float()
    is_exact = torch.equal(single.to(values.dtype), values)
    arrays: dict[str, Any] = {predictions.kind: (single if is_exact else values).numpy()}
    if predictions.targets is not None:
        arrays["targets"] = predictions.targets.numpy()
    if predictions.mutual_information is not None:
        arrays[_INFORMATION] = predictions.mutual_information.numpy()
    buffer = BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
