"""Votes of several annotators, read from tables of three forms or from an archive of counts.

| form       | a row is        | columns                                                           |
|------------|-----------------|-------------------------------------------------------------------|
| long       | one vote        | item, annotator (optional) and label                              |
|            | equal votes     | item, label and a number of votes, such as count or votes         |
| annotators | one item        | one for each annotator, empty where there is no vote (cleanlab's) |
| counts     | one item        | one for each class, with its number of votes                      |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from beliefmatch._errors import ArgumentError
from beliefmatch._utils import first_repeated
from beliefmatch._validate import fail
from beliefmatch.data.formats import (
    EMPTY_CELLS,
    ArrayFile,
    CsvFile,
    NpzFile,
    ParquetFile,
    TableFile,
    is_number,
    open_arrays,
)

__all__ = ["FORMS", "VoteColumns", "Votes", "cleanlab_table", "names_in", "read_votes"]

Form = Literal["auto", "long", "annotators", "counts"]
FORMS = ("auto", "long", "annotators", "counts")
SPELLINGS = {
    "item": ("item", "item_id", "task", "task_id", "example", "example_id", "image", "image_id", "id", "uid"),
    "annotator": ("annotator", "annotator_id", "worker", "worker_id", "rater", "rater_id", "user", "user_id"),
    "label": ("label", "vote", "answer", "class", "response", "annotation", "rating"),
}
_CALLER = "votes"
_SHOWN = 8  # columns listed in a role
_FORMATS = {".csv": CsvFile, ".tsv": CsvFile, ".parquet": ParquetFile, ".npz": NpzFile}
_NUMBERS = ("count", "counts", "n", "votes", "n_votes", "num_votes", "vote_count", "weight")
_COUNT_PREFIXES = ("count", "counts", "votes", "n")
_INDEX = re.compile(r"|Unnamed: 0(\.\d+)?|__index_level_\d+__")  # what pandas calls an index without a name
_MOST_VOTES = 1e9  # of an item for a class: sums of them are exact in double precision
_WHOLE = re.compile(r"([+-]?\d+)(\.0*)?")


@dataclass(frozen=True)
class VoteColumns:
    """What the columns of a table are called; None for any of the default spellings."""

    item: str | None = None
    annotator: str | None = None
    label: str | None = None


_DEFAULT = VoteColumns()


@dataclass(frozen=True, eq=False)
class Votes:
    """Votes for N items and K classes.

    Args:
        source: The file.
        form: How the file holds them.
        items: Names of the items.
        class_names: Names of the classes.
        counts: Votes of each item for each class, shape (N, K), whole numbers in double precision.
        annotators: Names of the annotators; none where the votes are anonymous.
        rows: Item, annotator and class of each vote, shape (V, 3), in the order of the file; none where the
            votes are anonymous.
        recognised: The columns of each role, and those that were not read.
    """

    source: str
    form: str
    items: tuple[str, ...]
    class_names: tuple[str, ...]
    counts: Tensor
    annotators: tuple[str, ...] = ()
    rows: Tensor | None = None
    recognised: dict[str, str] | None = None

    @property
    def total(self) -> int:
        """Number of votes."""
        return int(self.counts.sum())


def read_votes(
    path: str | Path,
    *,
    form: Form = "auto",
    columns: VoteColumns = _DEFAULT,
    class_names: Sequence[str] | None = None,
    repeats: bool = False,
) -> Votes:
    """Read votes from .csv, .tsv or .parquet, or counts also from .npz.

    Args:
        path: The file.
        form: "long", "annotators" or "counts", see above. "auto" takes a table with columns for items and
            labels for long, columns such as count_cat or votes_cat, and the array `counts` of an archive, for
            counts; a table that could be either must be named.
        columns: Names of the columns for items, annotators and labels, where no default spelling applies.
        class_names: The classes in their order; a vote for any other label is an error. Default: the
            labels that occur, sorted. Cells such as NA and NaN are empty unless a class has that name. An
            empty cell is no vote in the form "annotators", and an error among the labels of "long".
        repeats: Whether an annotator may vote for an item several times, each of which counts.

    Raises:
        ValueError: In one line, for a file that cannot be read or does not hold votes.
    """
    if (twice := first_repeated(class_names or ())) is not None:
        raise fail(_CALLER, f"`class_names` must be distinct, got {twice!r} twice.")
    file = open_arrays(path, caller=_CALLER, formats=_FORMATS)
    if not file.names:
        raise fail(_CALLER, f"`path` must hold votes, got nothing in {path}.")
    if isinstance(file, TableFile):
        form = _form_of(file, columns) if form == "auto" else form
        if form == "long":
            return _read_long(file, columns, class_names, repeats)
        if form == "annotators":
            return _read_annotators(file, columns, class_names)
        return _read_count_columns(file, columns, class_names)
    if form not in ("auto", "counts"):
        raise fail(_CALLER, f"`form` must be counts for {file.path.suffix} files, got {form!r}.")
    return _read_count_array(file, class_names)


def cleanlab_table(votes: Votes) -> tuple[list[str], Sequence[list[str]]]:
    """Heading and rows of cleanlab's `labels_multiannotator`: one row an item, one column an annotator.

    Cells hold class ids and are empty where there is no vote; the heading begins with "item". A cell has room
    for one vote: repeated votes of an annotator for an item are refused. Rows are made one at a time.
    """
    if votes.rows is None:
        raise fail(_CALLER, "`multiannotator` needs votes with annotators, got counts without them.")
    rows = votes.rows.numpy()
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    twice = (rows[1:, :2] == rows[:-1, :2]).all(1).nonzero()[0]
    if len(twice):
        item, annotator, _ = rows[twice[0]]
        expected = "one vote of an annotator for an item, the room of a cell"
        received = f"several of {votes.annotators[annotator]!r} for {votes.items[item]!r}"
        raise fail(_CALLER, f"`multiannotator` needs {expected}, got {received}.")
    taken = next((who for who in votes.annotators if who.lower() == "item" or _INDEX.fullmatch(who)), None)
    if taken is not None:
        expected = "annotators whose names are no columns of items"
        raise fail(_CALLER, f"`multiannotator` needs {expected}, got an annotator called {taken!r}.")
    return ["item", *votes.annotators], _CleanlabRows(votes, rows)


class _CleanlabRows(Sequence[list[str]]):
    """Rows of the table for cleanlab, made one at a time: together they are mostly empty cells."""

    def __init__(self, votes: Votes, rows: np.ndarray) -> None:
        self._votes, self._rows = votes, rows
        self._bounds = np.searchsorted(rows[:, 0], np.arange(len(votes.items) + 1))

    def __len__(self) -> int:
        return len(self._votes.items)

    def __getitem__(self, item: Any) -> Any:
        item = range(len(self))[item]
        name, cells = self._votes.items[item], [""] * len(self._votes.annotators)
        for _, annotator, label in self._rows[self._bounds[item] : self._bounds[item + 1]].tolist():
            cells[annotator] = f"{label}"
        return [name, *cells]


def _form_of(file: TableFile, columns: VoteColumns) -> Form:
    label = _column(file, "label", columns, required=False)
    item = _column(file, "item", columns, required=False)
    is_long, is_counts = label is not None and item is not None, len(_count_columns(file)) > 1
    if is_long != is_counts:
        return "long" if is_long else "counts"
    shown = ", ".join(file.names[:12])
    remedy = "give `form` as long, annotators or counts, or name the columns"
    raise fail(_CALLER, f"`path` must show which form its votes have, got the columns {shown}; {remedy}.")


def _column(file: TableFile, role: str, columns: VoteColumns, *, required: bool = True) -> str | None:
    given = getattr(columns, role)
    if given is not None:
        if given not in file.names:
            listed = ", ".join(file.names[:12])
            raise fail(_CALLER, f"`{role}` must be a column of {file.path}, got {given!r}; it has {listed}.")
        return given
    field = file.find(role, SPELLINGS[role], first=True)
    if field is None and required:
        raise file.missing(role, SPELLINGS[role][:4])
    return None if field is None else field.name


def names_in(file: ArrayFile, name: str) -> list[str | None]:
    """A column or an array as text, whole numbers without a fraction; None where a cell is empty."""
    if isinstance(file, TableFile):
        return _columns(file, [name])[0]
    values = file.load([name])
    return [_text(cell) for cell in (values if isinstance(values, list) else values.flatten().tolist())]


def _columns(file: TableFile, names: Sequence[str]) -> list[list[str | None]]:
    """Several columns as text, in one pass over the file."""
    found: list[list[str | None]] = [[] for _ in names]
    texts = [_Texts() for _ in names]
    for chunk in file.chunks(names):
        for name, column, known, cells in zip(names, found, texts, chunk, strict=True):
            try:
                column += [known[cell] for cell in cells]
            except TypeError:  # lists and dicts, of which Parquet has columns, have no hash
                row = next(row for row, cell in enumerate(cells) if isinstance(cell, list | dict))
                received = f"a {type(cells[row]).__name__} in row {len(column) + row + 1} of {name!r}"
                fact = f"`path` must hold numbers or text in {file.path}, got {received}."
                raise fail(_CALLER, fact) from None
    return found


class _Texts(dict[Any, str | None]):
    """The text of each cell, of which most occur often."""

    def __missing__(self, cell: Any) -> str | None:
        text = self[cell] = _text(cell)
        return text


def _text(cell: Any) -> str | None:
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return None
    if isinstance(cell, float) and cell.is_integer():
        return f"{int(cell)}"
    return f"{cell}".strip() or None


def _read_long(
    file: TableFile, columns: VoteColumns, class_names: Sequence[str] | None, repeats: bool
) -> Votes:
    names = {role: _column(file, role, columns, required=role != "annotator") for role in SPELLINGS}
    used = {role: name for role, name in names.items() if name is not None}
    numbers = [name for name in file.names if name.lower() in _NUMBERS and name not in used.values()]
    cells = dict(zip([*used.values(), *numbers], _columns(file, [*used.values(), *numbers]), strict=True))
    found = {role: cells[name] for role, name in used.items()}
    for role, held in found.items():
        empty = _empty_labels(held, class_names) if role == "label" else {None} & {*held}
        if empty:
            row, cell = next((row, cell) for row, cell in enumerate(held, 1) if cell in empty)
            received = f"{'none' if cell is None else repr(cell)} in row {row}"
            remedy = "leave out rows without a vote, or name the class by `class_names`"
            hint = f"; {remedy}." if role == "label" else "."
            raise fail(_CALLER, f"`{role}` must be in every row of {file.path}, got {received}{hint}")
    items, item_ids = _ids(found["item"])
    if not items:
        raise fail(_CALLER, f"`path` must hold votes, got none in {file.path}.")
    classes, labels = _labels(file, found["label"], class_names)
    counts = np.zeros((len(items), len(classes)))
    rows, people = None, ()
    many = {name: times for name in numbers if (times := _times(file, name, cells[name])) is not None}
    if many:
        is_single = "annotator" in found or len(set(zip(item_ids, labels, strict=True))) < len(labels)
        if is_single or len(many) > 1:
            expected = "a row for each vote, or one for each item and label with their number"
            received = f"single votes with numbers in {_listed([*many])} of {file.path}"
            remedy = "rename the column if it is no number of votes, or add them up for each item and label"
            raise fail(_CALLER, f"`path` must have {expected}, got {received}; {remedy}.")
        used["counts"], times = many.popitem()
        counts[item_ids, labels] = times
    else:
        np.add.at(counts, (item_ids, labels), 1)
    if "annotator" in found:
        people, annotator_ids = _ids(found["annotator"])
        if not repeats:
            _require_single_votes(file, items, people, item_ids, annotator_ids)
        rows = torch.from_numpy(np.stack([item_ids, annotator_ids, labels], 1))
    source, recognised = f"{file.path}", _recognised(file, {**used})
    return Votes(source, "long", items, classes, torch.from_numpy(counts), people, rows, recognised)


def _times(file: TableFile, name: str, cells: Sequence[str | None]) -> np.ndarray | None:
    """How many votes each row stands for; None where the column is text, or 1 in every row."""
    if not any(cell is not None and is_number(cell) for cell in cells):
        return None
    for row, cell in enumerate(cells, 1):
        number = float(cell) if cell is not None and is_number(cell) else -1.0
        if not number.is_integer() or not 0 <= number <= _MOST_VOTES:
            received = f"{'nothing' if cell is None else repr(cell[:40])} in row {row} of {name!r}"
            remedy = "rename the column if it is no number of votes"
            expected = f"whole numbers from 0 to {_MOST_VOTES:g}"
            raise fail(_CALLER, f"`counts` of {file.path} must be {expected}, got {received}; {remedy}.")
    times = np.array(cells, dtype=np.float64)
    if not times.any():
        raise fail(_CALLER, f"`path` must hold votes, got none in {name!r} of {file.path}.")
    return None if (times == 1).all() else times


def _ids(cells: Sequence[Any]) -> tuple[tuple[str, ...], np.ndarray]:
    """Names in the order of their first appearance, and the number of each cell among them."""
    places: dict[str, int] = {}
    ids = np.fromiter((places.setdefault(cell, len(places)) for cell in cells), np.int64, len(cells))
    return tuple(places), ids


def _labels(
    file: ArrayFile, cells: Sequence[Any], class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names and the class of each label."""
    cells = _without_fractions(cells, class_names)
    classes = tuple(sorted(set(cells), key=_natural) if class_names is None else class_names)
    places = {name: place for place, name in enumerate(classes)}
    if class_names is not None and not all(cell in places for cell in set(cells)):
        row = next(row for row, cell in enumerate(cells, 1) if cell not in places)
        shown = ", ".join(classes[:8]) + (", …" if len(classes) > 8 else "")
        received = f"{cells[row - 1]!r} in vote {row} of {file.path}"
        raise fail(_CALLER, f"`label` must be one of the classes {shown}, got {received}.")
    if len(classes) < 2:
        received = f"only {classes[0]!r}" if classes else "none"
        remedy = "give all classes by `class_names`"
        raise fail(_CALLER, f"`label` must have two classes or more, got {received}; {remedy}.")
    return classes, np.fromiter((places[cell] for cell in cells), np.int64, len(cells))


def _empty_labels(cells: Iterable[str | None], class_names: Sequence[str] | None) -> set[str | None]:
    """The cells that are empty, or hold what programs write for that and no class is called."""
    named = set(class_names or ())
    return {one for one in set(cells) if one is None or (one.lower() in EMPTY_CELLS and one not in named)}


def _without_fractions(cells: Sequence[str], class_names: Sequence[str] | None) -> Sequence[str]:
    """Labels of which all are whole numbers as such: pandas writes 1.0 for 1 in a column with gaps."""
    if class_names is not None and any("." in name for name in class_names):
        return cells
    whole = {cell: found[1] for cell in set(cells) if (found := _WHOLE.fullmatch(cell))}
    return [whole[cell] for cell in cells] if len(whole) == len(set(cells)) else cells


def _natural(text: str) -> tuple[int, float, str]:
    """Numbers in the order of their values, before other texts, of which nan and inf are some."""
    value = float(text) if is_number(text) else math.nan
    return (0, value, text) if math.isfinite(value) else (1, 0.0, text)


def _require_single_votes(
    file: ArrayFile, items: Sequence[str], people: Sequence[str], item_ids: Any, annotator_ids: Any
) -> None:
    pairs = item_ids * len(people) + annotator_ids
    unique, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    if len(unique) == len(pairs):
        return
    at = first[counts > 1].min()
    who, times = people[annotator_ids[at]], counts[unique == pairs[at]][0]
    fact = f"{who!r} {times} times for {items[item_ids[at]]!r} in {file.path}"
    remedy = "allow it by `repeats`, which counts each"
    raise fail(_CALLER, f"`annotator` must vote once for an item, got {fact}; {remedy}.")


def _read_annotators(file: TableFile, columns: VoteColumns, class_names: Sequence[str] | None) -> Votes:
    item = _item_column(file, columns)
    people = tuple(name for name in file.names if name != item and not _INDEX.fullmatch(name))
    if not people:
        raise fail(_CALLER, f"`path` must have a column for each annotator, got none in {file.path}.")
    cells = _columns(file, people)
    count = len(cells[0])
    items = _item_names(file, item, count)
    empty = _empty_labels((cell for column in cells for cell in column), class_names)
    votes = [
        (row, who, label)
        for row in range(count)
        for who, column in enumerate(cells)
        if (label := column[row]) is not None and label not in empty
    ]
    if not votes:
        raise fail(_CALLER, f"`path` must hold votes, got none in {file.path}.")
    classes, labels = _labels(file, [label for *_, label in votes], class_names)
    rows = np.stack([[row for row, *_ in votes], [who for _, who, _ in votes], labels], 1)
    counts = np.zeros((count, len(classes)))
    np.add.at(counts, (rows[:, 0], labels), 1)
    recognised = _recognised(file, {"item": item, "annotators": people})
    source = f"{file.path}"
    return Votes(
        source,
        "annotators",
        items,
        classes,
        torch.from_numpy(counts),
        people,
        torch.from_numpy(rows),
        recognised,
    )


def _item_column(file: TableFile, columns: VoteColumns) -> str | None:
    """The column of items of a wide table, which may be an index that pandas has written."""
    item = _column(file, "item", columns, required=False)
    return item if item is not None else next(filter(_INDEX.fullmatch, file.names), None)


def _item_names(file: ArrayFile, column: str | None, count: int) -> tuple[str, ...]:
    if column is None:
        return tuple(f"{row}" for row in range(count))
    names = names_in(file, column)
    if len(names) != count:
        raise fail(_CALLER, f"`items` of {file.path} must name {count} items, got {len(names)}.")
    return _distinct(file, names, column, "item")


def _distinct(file: ArrayFile, names: Sequence[str | None], column: str, role: str) -> tuple[str, ...]:
    """Names of items or classes, of which none is empty or repeated."""
    rows = dict[str, int]()
    for row, name in enumerate(names, 1):
        if name is None:
            received = f"none in row {row} of {column!r}"
            raise fail(_CALLER, f"`{role}` must be in every row of {file.path}, got {received}.")
        if rows.setdefault(name, row) != row:
            received = f"{name!r} in rows {rows[name]} and {row} of {column!r}"
            raise fail(_CALLER, f"`{role}` must differ between the rows of {file.path}, got {received}.")
    return tuple(rows)


def _count_columns(file: TableFile) -> dict[str, str]:
    """Columns such as count_cat, by the name of the class."""
    for prefix in _COUNT_PREFIXES:
        starts = tuple(f"{prefix}{mark}" for mark in "_. ")
        columns = [name for name in file.names if name.lower().startswith(starts) and name[len(prefix) + 1 :]]
        found = dict[str, str]()
        for name in columns:
            if found.setdefault(name[len(prefix) + 1 :], name) != name:
                twice = f"{found[name[len(prefix) + 1 :]]!r} and {name!r}"
                raise fail(_CALLER, f"`path` must have one column for a class, got {twice} in {file.path}.")
        if found:
            return found
    return {}


def _read_count_columns(file: TableFile, columns: VoteColumns, class_names: Sequence[str] | None) -> Votes:
    item = _item_column(file, columns)
    found = _count_columns(file) or {
        name: name for name in file.names if name != item and not _INDEX.fullmatch(name)
    }
    if class_names is not None:
        missing = [name for name in class_names if name not in found]
        if missing:
            fact = f"must have a column for each class, got none for {missing[0]!r}"
            raise fail(_CALLER, f"`path` {fact} in {file.path}.")
        named = set(class_names)
        others = [column for name, column in found.items() if name not in named]
        found = {name: found[name] for name in class_names}
        _require_no_votes(file, others, list(found.values()))
    if len(found) < 2:
        raise fail(_CALLER, f"`path` must have a column of counts for two classes or more, got {len(found)}.")
    try:
        values = file.load(list(found.values()))
    except ArgumentError:
        _require_no_gaps(file, list(found.values()))
        raise
    if not isinstance(values, Tensor):
        raise fail(_CALLER, f"`path` must hold whole numbers as counts, got text in {file.path}.")
    counts = _require_counts(file, values, list(found.values()))
    if class_names is None:
        _require_no_total(file, list(found.values()), counts)
    recognised = _recognised(file, {"item": item, "counts": list(found.values())})
    items = _item_names(file, item, len(counts))
    return Votes(f"{file.path}", "counts", items, tuple(found), counts, recognised=recognised)


def _require_no_gaps(file: TableFile, columns: Sequence[str]) -> None:
    for name, cells in zip(columns, _columns(file, columns), strict=True):
        if None in cells:
            received = f"nothing in row {cells.index(None) + 1} of {name!r}"
            raise fail(_CALLER, f"`counts` of {file.path} must be whole numbers, got {received}; write 0.")


def _require_no_votes(file: TableFile, columns: Sequence[str], classes: Sequence[str]) -> None:
    """Columns of counts outside the classes must not hold votes, which would be lost.

    Texts are no counts, and the sum of the classes holds no votes of its own.
    """
    for column in columns:
        values = file.load([column])
        if isinstance(values, Tensor) and ((values > 0) & (values == values.round())).any():
            counts = file.load(classes)
            if isinstance(counts, Tensor) and (counts.reshape(len(values), -1).sum(1) == values).all():
                continue
            expected = f"name every column with votes in {file.path}"
            remedy = "add the class, or leave the column out of the file"
            raise fail(_CALLER, f"`class_names` must {expected}, got none for {column!r}; {remedy}.")


def _require_no_total(file: TableFile, columns: Sequence[str], counts: Tensor) -> None:
    """A column that is the sum of the others in every row counts every vote twice; it is no class."""
    voted = counts[counts.any(1)]
    if counts.shape[1] < 3 or len(voted) < 2:
        return
    is_total = (2 * voted == voted.sum(1, keepdim=True)).all(0)
    if is_total.any():
        name = columns[int(is_total.nonzero()[0])]
        received = f"the sum of all others in {name!r} of {file.path}"
        remedy = "leave the column out of the file, or name the classes by `class_names`"
        raise fail(_CALLER, f"`path` must have a column of counts for each class, got {received}; {remedy}.")


def _recognised(file: ArrayFile, roles: dict[str, str | Sequence[str] | None]) -> dict[str, str]:
    """The columns of each role, and those that were not read."""
    columns = {role: [one] if isinstance(one, str) else [*(one or ())] for role, one in roles.items()}
    read = {name for held in columns.values() for name in held}
    columns["not read"] = [name for name in file.names if name not in read]
    return {role: _listed(held) for role, held in columns.items() if held}


def _listed(names: Sequence[str]) -> str:
    others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name or "the index" for name in names[:_SHOWN]) + others


def _read_count_array(file: ArrayFile, class_names: Sequence[str] | None) -> Votes:
    field = file.find("counts", ("counts", "votes"))
    if field is None:
        raise file.missing("counts", ("counts", "votes"))
    counts = _require_counts(file, field.numbers())
    if class_names is None and "class_names" in file.names:
        class_names = _distinct(file, names_in(file, "class_names"), "class_names", "class_names")
    if class_names is not None and len(class_names) != counts.shape[1]:
        expected = f"one for each of the {counts.shape[1]} classes of {file.path}"
        raise fail(_CALLER, f"`class_names` must be {expected}, got {len(class_names)}.")
    classes = tuple(class_names or (f"{k}" for k in range(counts.shape[1])))
    items = _item_names(file, "items" if "items" in file.names else None, len(counts))
    used = {"item": "items", "class names": "class_names"}
    roles = {role: name for role, name in used.items() if name in file.names}
    recognised = _recognised(file, {**roles, "counts": field.name})
    return Votes(f"{file.path}", "counts", items, classes, counts, recognised=recognised)


def _require_counts(file: ArrayFile, values: Tensor, columns: Sequence[str] = ()) -> Tensor:
    """Whole numbers (N, K), N at least 1 and K at least 2, with some vote; the columns are for the error."""
    if values.dim() != 2 or values.shape[1] < 2 or not len(values):
        raise fail(_CALLER, f"`counts` of {file.path} must have shape (N, K), got {tuple(values.shape)}.")
    counts = values.double()
    is_count = (counts >= 0) & (counts <= _MOST_VOTES) & (counts == counts.round())
    if not is_count.all():
        row, column = (~is_count).nonzero()[0].tolist()
        place = f"row {row + 1} of {columns[column]!r}" if columns else f"row {row + 1}, column {column + 1}"
        expected = f"whole numbers from 0 to {_MOST_VOTES:g}"
        received = f"{counts[row, column].item():g} in {place}"
        raise fail(_CALLER, f"`counts` of {file.path} must be {expected}, got {received}.")
    if not counts.any():
        raise fail(_CALLER, f"`path` must hold votes, got none in {file.path}.")
    return counts
