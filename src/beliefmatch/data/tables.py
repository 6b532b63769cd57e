"""Tables with a column of classes, from .csv, .tsv and .parquet files, as a `Dataset`; rows to predict."""

from __future__ import annotations

import copy
import math
import re
import sys
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._utils import nearest
from beliefmatch._validate import fail, level_of_caller
from beliefmatch.data.config import TABLE_SUFFIXES, TARGET_COLUMNS, TEXT_COLUMNS, DataConfig
from beliefmatch.data.formats import EMPTY_CELLS, EMPTY_NUMBERS, TableFile, is_number, open_table
from beliefmatch.data.predictions import ids_of_names
from beliefmatch.data.raw import part_files
from beliefmatch.data.sources import Dataset, Source
from beliefmatch.data.splits import (
    ROLES,
    RowSelection,
    ValidationFrom,
    assign_roles,
    balanced_rows,
    content_digest,
    named_parts,
    require_every_class,
)
from beliefmatch.data.table_encoding import Table, TableEncoding, fit_encoding
from beliefmatch.data.transforms import add_noise

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TableSource", "load_table", "read_rows", "table_source"]

_MAX_NUMBERED_CLASSES = 20  # more different numbers with decimals are the target of a regression
_MAX_CLASS_SHARE = 0.5  # of the rows
_WHOLE = re.compile(r"[+-]?[0-9]+(\.0+)?")
_SHOWN = 8  # names listed in an error or a note
_CELL = 60  # characters of a cell in an error
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}([ T].*)?")
_OF_IMAGES = {
    "directory": (None,),
    "augment": ("auto", "none"),
    "shift": (None,),
    "size": (None,),
    "corrupt": ("stop",),
    "mean": (None,),
    "std": (None,),
    "margin": (None,),
}  # settings of images, with the values that say nothing


class TableSource(Source):
    """Rows of encoded inputs held in memory, with their class ids.

    Args:
        inputs: float32 (N, F).
        targets: class ids (N,); -1 for each if not given.
        noise: standard deviation of Gaussian noise in batches that come with a seed.
    """

    def __init__(self, inputs: Tensor | np.ndarray, targets: Any = None, *, noise: float = 0.0) -> None:
        self.inputs = torch.as_tensor(inputs, dtype=torch.float32)
        ids = torch.full((len(self.inputs),), -1) if targets is None else torch.as_tensor(targets)
        if self.inputs.ndim != 2 or ids.shape != self.inputs.shape[:1]:
            expected = "`inputs` must have shape (N, F) with N targets"
            got = f"{tuple(self.inputs.shape)} with {tuple(ids.shape)}"
            raise fail("TableSource", f"{expected}, got {got}.")
        self.targets, self.noise = ids.to(torch.int64), noise
        self.shape = (self.inputs.shape[1],)

    def subset(self, rows: Any) -> Self:
        """The examples of these rows alone."""
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        return self._with(inputs=self.inputs[chosen], targets=self.targets[chosen])

    def unlabelled(self) -> Self:
        """The same examples without their class ids."""
        return self._with(targets=torch.full((len(self),), -1))

    def _with(self, **changes: Any) -> Self:
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    def digest(self) -> str:
        """A hash of inputs and targets."""
        return content_digest([self.inputs.numpy(), self.targets.numpy()])

    def _inputs(
        self, requests: Sequence[tuple[Tensor, int | None]], device: torch.device
    ) -> Generator[Tensor, None, None]:
        for indices, seed in requests:
            inputs = self.inputs[indices].to(device, non_blocking=True)
            if seed is not None and self.noise:
                generator = torch.Generator(device).manual_seed(seed)
                inputs = add_noise(inputs, std=self.noise, generator=generator)
            yield inputs


def load_table(config: DataConfig, *, validation_from: ValidationFrom = "train") -> Dataset:
    """Read a table, split its rows, and encode its columns by what the training rows have in them.

    Args:
        config: the path in `name`, the column of classes in `target`, columns to leave out in `drop`.
        validation_from: see `beliefmatch.data.loading.load`.

    Raises:
        ValueError: in one line, for tables that are missing, cannot be read or cannot be split.
    """
    _require_no_image_settings(config)
    read = _read_parts(config)
    parts = named_parts(read.parts)
    first = next(iter(parts.values()))
    names = _class_names(first.labels)
    labels = {part: _class_ids(found, names, part) for part, found in parts.items()}
    roles = assign_roles(labels, config, validation_from=validation_from)
    part, rows = roles["train"]
    require_every_class(labels[part][rows], names)
    encoding = fit_encoding(parts[part].table, rows, target=read.target)
    encoding = _with_dropped(encoding, config.drop)
    sources = {
        name: TableSource(encoding.encode(found.table), labels[name], noise=config.noise)
        for name, found in parts.items()
    }
    unlabelled, held_back = None, None
    if config.labels is not None:
        if not len(names) <= config.labels < len(rows):
            expected = (
                f"one for each of {len(names)} classes at least and below the {len(rows)} training rows"
            )
            raise fail("data", f"`labels` must be {expected}, got {config.labels}.")
        kept = rows[balanced_rows(labels[part][rows], config.labels, config.split_seed)]
        roles["train"], held_back = RowSelection(part, kept), np.setdiff1d(rows, kept, assume_unique=True)
        unlabelled = sources[part].subset(held_back).unlabelled()
    pieces: list[Any] = [
        piece for name, source in sources.items() for piece in (name, source.inputs.numpy(), labels[name])
    ]
    pieces += [roles[role].rows for role in ROLES]
    facts: dict[str, Any] = {
        "name": config.name,
        "form": "table",
        "in_memory": True,
        "shape": [len(encoding.input_names)],
        "counts": {role: len(roles[role].rows) for role in ROLES},
        "divided_by_us": [r for r in ROLES[1:] if len(roles[r].rows) < len(labels[roles[r].part])],
        "split_seed": config.split_seed,
        "digest": content_digest(pieces if held_back is None else [*pieces, held_back]),
        "table": encoding.to_json(),
        "notes": [*_notes(encoding, read, names)],
        "classes": len(names),
    }
    if held_back is not None:
        facts["counts"]["unlabelled"] = len(held_back)
    if validation_from != "train":
        facts["validation_from"] = validation_from
    train, validation, test = (sources[part].subset(rows) for part, rows in map(roles.__getitem__, ROLES))
    return Dataset(
        config.name,
        train,
        validation,
        test,
        class_names=names,
        unlabelled=unlabelled,
        facts=facts,
        role_rows=roles,
    )


def read_rows(
    paths: str | Path | Sequence[str | Path], encoding: TableEncoding
) -> tuple[list[str], TableSource]:
    """Rows of tables to predict, encoded like the training rows; columns may come in any order.

    Columns that the training did not have are ignored with a warning; the column of classes, if there is one,
    is ignored without.

    Args:
        paths: of .csv, .tsv or .parquet files.
        encoding: as the run directory keeps it.

    Returns:
        The name of each row, such as "new.csv[2]" for the third, and the rows; their targets are -1.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    names: list[str] = []
    inputs: list[np.ndarray] = []
    for path in map(Path, given):
        table = _read_like(_open(path.expanduser(), "paths"), encoding)
        _warn_of_unknown_values(encoding, table)
        inputs.append(encoding.encode(table))
        names += [f"{path.name}[{row}]" for row in range(table.rows)]
    if not names:
        raise fail(
            "read_rows", f"`paths` must hold rows to predict, got none in {given[0] if given else given}."
        )
    return names, TableSource(np.concatenate(inputs))


def table_source(text: str, like: Dataset) -> tuple[str, TableSource]:
    """Rows that belong to none of the classes, from a path or `name=path`, encoded like a dataset's."""
    name, equals, place = text.partition("=")
    place = place if equals else text
    if not name or not place:
        raise fail("load_ood", f"`text` must have a name and a path where it is name=path, got {text!r}.")
    path = Path(place).expanduser()
    if path.suffix.lower() not in TABLE_SUFFIXES or not path.is_file():
        expected = f"NAME=FILE of a table with the columns of {like.name}"
        raise fail("load_ood", f"`text` must be {expected}, got {text!r}.")
    _, source = read_rows(path, TableEncoding.from_json(like.facts["table"]))
    return name if equals else path.stem, source


# Reading.


class _Part(NamedTuple):
    table: Table
    labels: list[str]


class _Read(NamedTuple):
    parts: dict[str, _Part]
    target: str
    is_recognised: bool
    ignored: tuple[str, ...]


def _open(path: Path, argument: str) -> TableFile:
    if path.suffix.lower() not in TABLE_SUFFIXES or not path.is_file():
        expected = f"a file that ends in {', '.join(TABLE_SUFFIXES)}"
        got = path if path.exists() else f"nothing at {path}"
        raise fail("data", f"`{argument}` must be {expected}, got {got}.")
    return open_table(path, caller="data")


def _read_parts(config: DataConfig) -> _Read:
    """Every part, with the kinds of columns that the first has."""
    by_part = part_files(Path(config.name).expanduser(), TABLE_SUFFIXES)
    parts: dict[str, _Part] = {}
    target, ignored, kinds = config.target, (), None
    for part, paths in by_part.items():
        tables = []
        for path in paths:
            file = _open(path, "name")
            if kinds is None:
                target = _find_target(file, config.target)
                names = _inputs_of(file, target, config.drop)
                found = _read(file, [*names, target], text=(target,))
                kinds = {name: name in found.numbers for name in names}
            else:
                assert target is not None
                found = _read_as(file, kinds, target)
                ignored += tuple(set(file.names) - {*kinds, target, *config.drop})
            tables.append(_part(found, target))
        parts[part] = _joined(tables)
    assert target is not None
    parts = _with_plain_labels(parts, target)
    return _Read(parts, target, config.target is None, tuple(sorted(set(ignored))))


def _find_target(file: TableFile, given: str | None) -> str:
    """The column of classes: the one that is named, or the only one with a usual name."""
    _require_heading(file)
    listed = _listed(file.names)
    if given is not None:
        if given in file.names:
            return given
        close = nearest(given, file.names)
        hint = f"; did you mean {close!r}?" if close else "."
        raise fail("data", f"`target` must be a column of {file.path}, {listed}, got {given!r}{hint}")
    found = [name for name in file.names if name.lower() in TARGET_COLUMNS]
    if len(found) == 1:
        return found[0]
    got = f"{' and '.join(found)}, which all may be" if found else f"none of {', '.join(TARGET_COLUMNS)}"
    remedy = f"give it: --target COLUMN, one of {listed}"
    raise fail("data", f"`target` must name the column of the classes of {file.path}, got {got}; {remedy}.")


def _require_heading(file: TableFile) -> None:
    """Refuse a file without a line that names two columns or more: numbers are no names."""
    names = file.names
    if not names:
        raise fail("data", f"{file.path} must name its columns in the first line, got an empty file.")
    if len(names) == 1:
        expected = "two columns or more, separated by commas, semicolons or tabs"
        raise fail("data", f"{file.path} must have {expected}, got the heading {names[0][:_CELL]!r}.")
    numbers = [name for name in names if is_number(name)]
    first = int(numbers[0]) if numbers and numbers[0] in ("0", "1") else 0
    counted = [f"{first + index}" for index in range(len(numbers))]  # as pandas names columns
    if numbers != counted or len(numbers) == len(names):
        remedy = "write a first line with the names of the columns"
        expected = "must name its columns in the first line"
        raise fail("data", f"{file.path} {expected}, got {_listed(names)}; {remedy}.")


def _inputs_of(file: TableFile, target: str, drop: Sequence[str]) -> list[str]:
    for name in drop:
        if name == target or name not in file.names:
            what = "the target" if name == target else f"none of {', '.join(file.names[:_SHOWN])}"
            raise fail("data", f"`drop` must be columns of {file.path} to leave out, got {name!r}, {what}.")
    return [name for name in file.names if name != target and name not in drop]


def _part(table: Table, target: str) -> _Part:
    return _Part(
        Table(
            table.numbers,
            {name: cells for name, cells in table.texts.items() if name != target},
            table.rows,
            table.origin,
            tuple(name for name in table.columns() if name != target),
        ),
        _require_labels(table.texts[target], target, table.origin),
    )


def _joined(parts: Sequence[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    first = parts[0].table
    numbers = {name: np.concatenate([part.table.numbers[name] for part in parts]) for name in first.numbers}
    texts = {name: [cell for part in parts for cell in part.table.texts[name]] for name in first.texts}
    rows = sum(part.table.rows for part in parts)
    labels = [label for part in parts for label in part.labels]
    return _Part(Table(numbers, texts, rows, first.origin, first.order), labels)


def _read(file: TableFile, names: Sequence[str], *, text: Sequence[str] = ()) -> Table:
    """Columns whose cells all are numbers or empty as numbers, all others as text.

    One pass over the file; a second one for all columns that begin like numbers and are text.
    """
    numbers: dict[str, list[np.ndarray]] = {name: [] for name in names if name not in text}
    texts: dict[str, list[str]] = {name: [] for name in text}
    late: list[str] = []
    rows = 0
    for chunk in file.chunks(names):
        cells = dict(zip(names, chunk, strict=True))
        for name in list(numbers):
            found = _numbers(cells[name])
            if found is not None:
                numbers[name].append(found)
                continue
            del numbers[name]
            if rows:  # also what came before is text
                late.append(name)
            else:
                texts[name] = []
        for name, column in texts.items():
            column += [_text(cell, name, file) for cell in cells[name]]
        rows += len(next(iter(cells.values())))
    if not rows:
        raise fail("data", f"{file.path} must hold rows below its heading, got none.")
    texts |= {name: [] for name in late}
    for chunk in file.chunks(late) if late else ():
        for name, cells in zip(late, chunk, strict=True):
            texts[name] += [_text(cell, name, file) for cell in cells]
    columns = {name: np.concatenate(found) for name, found in numbers.items()}
    return Table(columns, texts, rows, f"{file.path}", tuple(names))


def _read_as(file: TableFile, kinds: Mapping[str, bool], target: str | None) -> Table:
    """Columns of known kinds, numbers where the kind is true."""
    wanted = [*kinds, *([] if target is None else [target])]
    absent = [name for name in wanted if name not in file.names]
    if absent:
        got = f"{len(absent)} missing: {', '.join(absent[:_SHOWN])}" + (", …" if len(absent) > _SHOWN else "")
        raise fail("data", f"{file.path} must have the columns of the training, got {got}.")
    table = _read(file, wanted, text=[name for name in wanted if not kinds.get(name, False)])
    for name, is_numeric in kinds.items():
        if is_numeric and name in table.texts:
            row, cell = next((r, c) for r, c in enumerate(table.texts[name]) if _numbers([c]) is None)
            fact = f"must hold numbers in {name!r}, as in training"
            raise fail("data", f"{file.path} {fact}, got {cell!r} in row {row + 1}.")
    return table


def _read_like(file: TableFile, encoding: TableEncoding) -> Table:
    kinds = {column.name: True for column in encoding.numeric}
    kinds |= {column.name: False for column in encoding.categorical}
    table = _read_as(file, kinds, None)
    extra = [name for name in file.names if name not in {*kinds, encoding.target, *encoding.dropped}]
    if extra:
        listed = ", ".join(extra[:_SHOWN]) + (", …" if len(extra) > _SHOWN else "")
        message = f"{file.path} has columns that the training did not have and are ignored: {listed}."
        warnings.warn(message, stacklevel=level_of_caller())
    return table


def _warn_of_unknown_values(encoding: TableEncoding, table: Table) -> None:
    for name, (value, count) in encoding.unknown_values(table).items():
        message = f"{table.origin} has {value!r} in column {name!r}, which no training row had"
        more = f" ({count:,} of {table.rows:,} rows have such values)"
        warnings.warn(
            f"{message}{more}; it is encoded as none of the known values.", stacklevel=level_of_caller()
        )


def _numbers(cells: Iterable[Any]) -> np.ndarray | None:
    """float64, NaN where a cell is empty; None if some cell is no number."""
    found = []
    for cell in cells:
        if isinstance(cell, str):
            text = cell.strip()
            try:
                found.append(math.nan if text.lower() in EMPTY_NUMBERS else float(text))
            except ValueError:
                return None
            if "_" in text:  # float would take 12_34 for 1234
                return None
        elif cell is None:
            found.append(math.nan)
        elif isinstance(cell, bool | int | float | Decimal):
            found.append(float(cell))
        else:
            return None
    return np.array(found, dtype=np.float64)


def _text(cell: Any, name: str, file: TableFile) -> str:
    """A cell as the text of a category or class; whole numbers have no decimals."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, str):
        return sys.intern(cell.strip())
    if isinstance(cell, float) and cell.is_integer():
        return f"{int(cell)}"
    if isinstance(cell, bool | int | float | Decimal):
        return f"{cell}"
    remedy = f"leave the column out: --drop {name!r}"
    raise fail(
        "data", f"{file.path} must hold numbers or text in {name!r}, got a {type(cell).__name__}; {remedy}."
    )


# Classes.


def _require_labels(cells: list[str], target: str, origin: str) -> list[str]:
    """The cells, of which each names a class."""
    for row, cell in enumerate(cells, 1):
        if cell.lower() in EMPTY_CELLS:
            got = f"{cell!r}" if cell else "nothing"
            remedy = "remove rows without a class"
            raise fail(
                "data",
                f"{origin} must hold a class in {target!r} in each row, got {got} in row {row}; {remedy}.",
            )
    return cells


def _with_plain_labels(parts: Mapping[str, _Part], target: str) -> dict[str, _Part]:
    """Parts in which 1.0 and 1 are one class, if the labels of all parts are numbers.

    Labels are compared as text: a float would merge long identifiers, and 01 with 1.
    """
    distinct = {label for part in parts.values() for label in part.labels}
    if not all(map(is_number, distinct)):
        return dict(parts)
    if len(distinct) > _MAX_NUMBERED_CLASSES and not all(map(_WHOLE.fullmatch, distinct)):
        origin, rows = next(iter(parts.values())).table.origin, sum(len(one.labels) for one in parts.values())
        got = f"{len(distinct):,} different numbers in {rows:,} rows"
        raise fail("data", f"{origin} must hold classes in {target!r}, got {got}; this is a regression.")
    plain = {one: one.partition(".")[0] if _WHOLE.fullmatch(one) else one for one in distinct}
    return {
        name: part._replace(labels=[plain[label] for label in part.labels]) for name, part in parts.items()
    }


def _class_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Sorted, numbers by their value."""
    own = set(labels)
    if len(own) > max(_MAX_NUMBERED_CLASSES, _MAX_CLASS_SHARE * len(labels)):
        got = f"{len(own):,} different values in {len(labels):,} rows"
        raise fail("data", f"`target` must be a column of classes, got {got}; name another: --target COLUMN.")
    if all(is_number(name) and Decimal(name).is_finite() for name in own):
        return tuple(sorted(own, key=lambda name: (Decimal(name), name)))
    return tuple(sorted(own))


def _class_ids(part: _Part, names: tuple[str, ...], name: str) -> np.ndarray:
    ids = ids_of_names(part.labels, names)
    unknown = np.flatnonzero(ids < 0)
    if len(unknown):
        got = f"{part.labels[unknown[0]]!r} in row {unknown[0] + 1} of the {name} part"
        raise fail("data", f"classes must be among the {len(names)} of the training part, got {got}.")
    return ids


# Notes.


def _with_dropped(encoding: TableEncoding, drop: Sequence[str]) -> TableEncoding:
    if not drop:
        return encoding
    from msgspec.structs import replace

    return replace(encoding, dropped={**dict.fromkeys(drop, "by --drop"), **encoding.dropped})


def _require_no_image_settings(config: DataConfig) -> None:
    """Refuse what a table would ignore."""
    for setting, without in _OF_IMAGES.items():
        if (value := getattr(config, setting)) not in without:
            got = f"{value!r} for {config.name}"
            raise fail("data", f"`{setting}` must be given for images alone, got {got}.")


def _notes(encoding: TableEncoding, read: _Read, names: tuple[str, ...]) -> Iterable[str]:
    """What was taken for what, for the user to check."""
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    how = ", recognised by its name (--target names another)" if read.is_recognised else ""
    yield f"Target: {encoding.target}{how}; {len(names)} classes: {shown}."
    count = len(encoding.input_names)
    inputs = []
    if encoding.numeric:
        missing = [column.name for column in encoding.numeric if column.indicator]
        filled = f", with missing values filled by the median in {_listed(missing)}" if missing else ""
        inputs.append(f"{_count(len(encoding.numeric), 'numeric column')}, standardised{filled}")
    if encoding.categorical:
        columns = [column.name for column in encoding.categorical]
        inputs.append(f"{_count(len(columns), 'categorical column')} ({_listed(columns)}), one input a value")
    yield f"Inputs: {_count(count, 'number')} from {'; '.join(inputs)}."
    for column in encoding.categorical:
        if column.others:
            commonest = f"the {len(column.values)} commonest values have an input each"
            yield f"{column.name}: {commonest}, all others share one."
        if all(_DATE.fullmatch(value) for value in column.values if value):
            remedy = "numbers would say how far apart they are"
            yield f"{column.name} holds dates, which are taken for categories; {remedy}."
        if column.name.lower() in TEXT_COLUMNS:
            yield f"{column.name} is taken for categories, not for sentences."
    if encoding.dropped:
        reasons = ", ".join(
            f"{name or 'a column without a name'} ({why})" for name, why in encoding.dropped.items()
        )
        yield f"Left out: {reasons}."
    if read.ignored:
        yield f"Ignored, as the training part does not have them: {_listed(read.ignored)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
