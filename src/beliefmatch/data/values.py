"""What is demanded of the arrays in a user's file; a mistake is told with file, array and row."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch._validate import FLOATING, fail
from beliefmatch.data.readers import Column

__all__ = ["Place", "class_ids", "pictures", "require_logits", "require_probs"]

CALLER = "read_predictions"
SUM_TOLERANCE = 1e-2
"""By which rows of probabilities may miss one: half precision adds up only this well."""

_CHUNK = 1 << 20  # values checked at a time


class Place(NamedTuple):
    """Where an array comes from, for errors."""

    path: Path
    name: str

    def complaint(self, expected: str, received: str) -> Exception:
        """The error that this array is not as expected."""
        return fail(CALLER, f"{self.path} must hold {expected} in `{self.name}`, got {received}.")


def require_logits(values: Column, place: Place) -> Tensor:
    """Finite numbers of shape (N, K)."""
    logits = _matrix(values, place)
    _require_rows(logits, _finite, "finite logits", place)
    return logits


def require_probs(values: Column, place: Place) -> Tensor:
    """Numbers in [0, 1] of shape (N, K), each row with the sum one."""
    probs = _matrix(values, place)
    within = "probabilities in [0, 1] (logits are called logits)"
    _require_rows(probs, lambda rows: ((rows >= 0) & (rows <= 1)).all(1), within, place)
    _require_rows(probs, _sums_to_one, "probabilities whose rows sum to 1", place, show=_sum)
    return probs


def _matrix(values: Column, place: Place) -> Tensor:
    if isinstance(values, list):
        raise place.complaint("numbers", f"the text {values[0]!r}" if values else "nothing")
    if values.dtype == torch.bool or values.is_complex():
        raise place.complaint("real numbers", f"{values.dtype}".removeprefix("torch."))
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        expected = "one row for each example and one column for each of two or more classes"
        raise place.complaint(expected, f"shape {tuple(values.shape)}")
    return values if values.dtype in FLOATING else values.double()


def _finite(rows: Tensor) -> Tensor:
    return rows.isfinite().all(1)


def _sum(rows: Tensor) -> Tensor:
    return rows.sum(1, dtype=torch.float64)


def _sums_to_one(rows: Tensor) -> Tensor:
    return (_sum(rows) - 1).abs() <= SUM_TOLERANCE


def _require_rows(
    values: Tensor,
    holds: Callable[[Tensor], Tensor],
    expected: str,
    place: Place,
    show: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Every row must pass; the error shows the first that does not, by its worst value or by `show`."""
    for start, rows in _chunks(values):
        good = holds(rows)
        if not good.all():
            index = int((~good).nonzero()[0])
            row = rows[index : index + 1]
            shown = show(row) if show else row[0][~holds(row.T)]
            raise place.complaint(expected, f"{shown[0].item():.6g} in row {start + index}")


def _chunks(values: Tensor) -> Iterator[tuple[int, Tensor]]:
    size = max(1, _CHUNK // values.shape[1])
    for start in range(0, len(values), size):
        yield start, values[start : start + size]


def class_ids(values: Column, place: Place, rows: int, classes: int, names: Sequence[str] | None) -> Tensor:
    """Class ids of shape (rows,), from whole numbers or from class names."""
    ids = _ids_of_text(values, place, names) if isinstance(values, list) else _ids_of_numbers(values, place)
    if ids.shape != (rows,):
        expected = f"one class id for each of the {rows} rows"
        raise place.complaint(expected, f"{len(ids)}" if ids.ndim == 1 else f"shape {tuple(ids.shape)}")
    within = (ids >= 0) & (ids < classes)
    if not within.all():
        row = int((~within).nonzero()[0])
        received = _as_written(values, row) if isinstance(values, Tensor) else f"{ids[row].item()}"
        raise place.complaint(f"class ids from 0 to {classes - 1}", f"{received} in row {row}")
    if isinstance(values, Tensor) and names is not None and place.path.suffix.lower() == ".csv":
        _refuse_numbers_that_are_names(ids, place, names)
    return ids


def _as_written(values: Tensor, row: int) -> str:
    """The number in the file, which may be too large for an id."""
    number = values.flatten()[row].item()
    return f"{number:.15g}" if isinstance(number, float) else f"{number}"


def _refuse_numbers_that_are_names(ids: Tensor, place: Place, names: Sequence[str]) -> None:
    """In a text file the number 4 may be an id or the name of another class; nobody can tell."""
    by_name = {name: index for index, name in enumerate(names)}
    for value in ids.unique().tolist():
        if by_name.get(f"{value}", value) != value:
            expected = "class ids that are not the names of other classes"
            raise place.complaint(expected, f"{value}, the name of class {by_name[f'{value}']}")


def _ids_of_numbers(values: Tensor, place: Place) -> Tensor:
    if values.dtype == torch.bool or values.is_complex():
        raise place.complaint("class ids", f"{values.dtype}".removeprefix("torch."))
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim != 1:
        raise place.complaint("one class id for each row", f"shape {tuple(values.shape)}")
    if not values.is_floating_point():
        return flat.to(torch.int64)  # an unsigned id too large for it turns negative and is refused
    whole = flat.isfinite() & (flat == flat.round())
    if not whole.all():
        row = int((~whole).nonzero()[0])
        raise place.complaint("whole class ids", f"{flat[row].item():.6g} in row {row}")
    return flat.clamp(-(2.0**62), 2.0**62).to(torch.int64)


def _ids_of_text(texts: list[str], place: Place, names: Sequence[str] | None) -> Tensor:
    if names is None:
        raise place.complaint("class ids where no class names are given", f"the text {_first_text(texts)!r}")
    by_name = {name: index for index, name in enumerate(names)}
    unknown = next((row for row, text in enumerate(texts) if text not in by_name), None)
    if unknown is not None:
        raise place.complaint("class ids or class names", f"{texts[unknown]!r} in row {unknown}")
    return torch.tensor([by_name[text] for text in texts], dtype=torch.int64)


def _first_text(texts: list[str]) -> str:
    return next((text for text in texts if not text.strip().lstrip("-").isdigit()), texts[0] if texts else "")


def pictures(values: Column, place: Place, rows: int) -> Tensor:
    """Images of shape (N, H, W), (N, H, W, C) or (N, C, H, W), C of 1, 3 or 4."""
    if isinstance(values, list) or values.is_complex():
        raise place.complaint("images", "no real numbers")
    shape = tuple(values.shape)
    channels = (shape[1], shape[-1]) if len(shape) == 4 else (1,)
    if len(shape) not in (3, 4) or 0 in shape or not {1, 3, 4} & set(channels):
        expected = "images of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with 1, 3 or 4 channels"
        raise place.complaint(expected, f"shape {shape}")
    if len(values) != rows:
        raise place.complaint(f"one image for each of the {rows} rows", f"{len(values)}")
    return values
