"""How the columns of a table become the inputs of a network, as a run directory keeps it.

scikit-learn learns what there is to learn from the training rows: means, medians and categories. These are
kept as JSON, and `TableEncoding.encode` applies them without scikit-learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beliefmatch._config import Config, Positive, from_mapping, plain
from beliefmatch._environment import needs
from beliefmatch._validate import fail
from beliefmatch.data.formats import is_number

__all__ = ["CategoricalColumn", "NumericColumn", "Table", "TableEncoding", "fit_encoding"]

MAX_CATEGORIES = 64
"""Inputs of one categorical column at most; where there are more values, the rarer ones share the last."""

_FEW_CATEGORIES = 20  # a text column with no more values than these is never taken for identifiers
_MAX_DISTINCT_SHARE = 0.5  # of the rows; a text column with more values than this identifies the rows
_LARGEST = 1e100  # the square of a larger number may overflow
_INDEX_NAMES = ("", "unnamed: 0", "id", "index", "row", "rowid", "row_id", "rownames", "__index_level_0__")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of a table: numbers, NaN where a cell is empty, and text, "" where a cell is empty.

    Args:
        numbers: float64 (N,) by the name of the column.
        texts: N texts by the name of the column.
        rows: number of rows N.
        origin: path of the file, for errors.
        order: names of the columns, in the order of the file.
    """

    numbers: Mapping[str, np.ndarray]
    texts: Mapping[str, list[str]]
    rows: int
    origin: str = "the table"
    order: tuple[str, ...] = field(default=())

    def columns(self) -> tuple[str, ...]:
        """Names of all columns, in the order of the file."""
        return self.order or (*self.numbers, *self.texts)


class NumericColumn(Config, frozen=True):
    """A column of numbers, which are standardised.

    Args:
        name: of the column.
        mean: of the training rows, after missing values are filled.
        std: their standard deviation.
        fill: in place of a missing value: the median of the training rows.
        indicator: whether an input of its own says that the value is missing.
    """

    name: str
    mean: float
    std: Positive
    fill: float
    indicator: bool = False


class CategoricalColumn(Config, frozen=True):
    """A column of text, with one input for each value; an empty cell is a value, too.

    Args:
        name: of the column.
        values: that have an input of their own.
        others: whether one more input stands for all other values; without it they are zeros everywhere.
    """

    name: str
    values: tuple[str, ...]
    others: bool = False


class TableEncoding(Config, frozen=True):
    """The inputs of a network as functions of the columns of a table.

    Inputs are, in this order: the numeric columns; the indicators of missing values; the categories.

    Args:
        target: column of the classes, which is no input.
        numeric: columns of numbers.
        categorical: columns of text.
        dropped: columns that are no inputs, each with the reason.
    """

    target: str
    numeric: tuple[NumericColumn, ...] = ()
    categorical: tuple[CategoricalColumn, ...] = ()
    dropped: Mapping[str, str] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a table must have to be encoded."""
        return tuple(column.name for column in (*self.numeric, *self.categorical))

    @property
    def input_names(self) -> tuple[str, ...]:
        """One name for each input, such as "age", "age is missing" and "town=Bern"."""
        names = [column.name for column in self.numeric]
        names += [f"{column.name} is missing" for column in self.numeric if column.indicator]
        for column in self.categorical:
            names += [f"{column.name}={value}" for value in column.values]
            names += [f"{column.name}=other"] * column.others
        return tuple(names)

    def encode(self, table: Table) -> np.ndarray:
        """The inputs of every row, float32 (N, len(input_names))."""
        inputs = np.zeros((table.rows, len(self.input_names)), np.float32)
        at = len(self.numeric)
        for index, column in enumerate(self.numeric):
            values = table.numbers[column.name]
            missing = np.isnan(values)
            with np.errstate(over="ignore"):  # refused below
                inputs[:, index] = (np.where(missing, column.fill, values) - column.mean) / column.std
            if column.indicator:
                inputs[:, at] = missing
                at += 1
        rows = np.arange(table.rows)
        for column in self.categorical:
            width = len(column.values) + column.others
            known = {value: index for index, value in enumerate(column.values)}
            other = len(column.values) if column.others else -1
            found = np.array([known.get(text, other) for text in table.texts[column.name]], dtype=np.int64)
            chosen = found >= 0
            inputs[rows[chosen], at + found[chosen]] = 1
            at += width
        wrong = np.flatnonzero(~np.isfinite(inputs).all(1))
        if len(wrong):
            name = self.input_names[int(np.flatnonzero(~np.isfinite(inputs[wrong[0]]))[0])]
            fact = f"must hold finite numbers of a common scale in {name!r}"
            raise fail("data", f"{table.origin} {fact}, got a larger one in row {wrong[0] + 1}.")
        return inputs

    def unknown_values(self, table: Table) -> dict[str, tuple[str, int]]:
        """Categories that no training row had, by column: the first of them, and the number of rows."""
        found = {}
        for column in self.categorical:
            if column.others:
                continue
            known = set(column.values)
            unknown = [text for text in table.texts[column.name] if text not in known]
            if unknown:
                found[column.name] = (unknown[0], len(unknown))
        return found

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; `from_json` reads it back."""
        return plain(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableEncoding:
        """Read what `to_json` wrote; an unknown key is an error."""
        return from_mapping(cls, values, caller="TableEncoding")


def fit_encoding(table: Table, rows: np.ndarray, *, target: str) -> TableEncoding:
    """Learn how to encode a table from its training rows.

    A numeric column is standardised, its missing values are replaced by the median, and an input says where
    they were. A column of text has an input for each value. Constant columns, and columns that number the
    rows, are left out.

    >>> texts = {"town": ["Bern", "Rome", "Bern", "Oslo"]}
    >>> ages = Table({"age": np.array([20.0, 30.0, 40.0, 99.0])}, texts, rows=4)
    >>> encoding = fit_encoding(ages, np.arange(3), target="class")
    >>> encoding.input_names
    ('age', 'town=Bern', 'town=Rome')
    >>> encoding.encode(ages)[3, 1:].tolist()  # Oslo was not among the training rows
    [0.0, 0.0]

    Args:
        table: all rows, without the column of classes.
        rows: the training rows.
        target: column of the classes.

    Raises:
        ValueError: for a column of identifiers, of numbers with decimal commas, or where no column is left.
    """
    dropped: dict[str, str] = {}
    numeric: list[str] = []
    categorical: list[str] = []
    for name in table.columns():
        reason = _useless(name, table, rows)
        if reason is not None:
            dropped[name] = reason
        elif name in table.numbers:
            _require_finite(name, table)
            numeric.append(name)
        else:
            _require_categories(name, table, rows)
            categorical.append(name)
    if not numeric and not categorical:
        got = ", ".join(f"{name} ({reason})" for name, reason in dropped.items()) or "no other column"
        raise fail("data", f"{table.origin} must have a column to predict {target!r} from, got {got}.")
    return TableEncoding(
        target=target,
        numeric=_fit_numeric(numeric, table, rows),
        categorical=_fit_categorical(categorical, table, rows),
        dropped=dropped,
    )


def _fit_numeric(names: Sequence[str], table: Table, rows: np.ndarray) -> tuple[NumericColumn, ...]:
    if not names:
        return ()
    with needs("scikit-learn", extra="sklearn", caller="data"):
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import StandardScaler

    values = np.stack([table.numbers[name][rows] for name in names], 1)
    imputer = SimpleImputer(strategy="median").fit(values)
    scaler = StandardScaler().fit(imputer.transform(values))
    mean, std, fill = (np.asarray(of, float) for of in (scaler.mean_, scaler.scale_, imputer.statistics_))
    missing = np.isnan(values).sum(0) > 0
    return tuple(
        NumericColumn(
            name=name,
            mean=float(mean[at]),
            std=float(std[at]),
            fill=float(fill[at]),
            indicator=bool(missing[at]),
        )
        for at, name in enumerate(names)
    )


def _fit_categorical(names: Sequence[str], table: Table, rows: np.ndarray) -> tuple[CategoricalColumn, ...]:
    if not names:
        return ()
    with needs("scikit-learn", extra="sklearn", caller="data"):
        from sklearn.preprocessing import OneHotEncoder

    fitted = []
    for name in names:
        cells = table.texts[name]
        values = np.array([[cells[row]] for row in rows.tolist()], dtype=object)
        encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MAX_CATEGORIES)
        encoder.fit(values)
        rare = getattr(encoder, "infrequent_categories_", [None])[0]
        others = set() if rare is None else set(rare)
        kept = tuple(value for value in encoder.categories_[0] if value not in others)
        fitted.append(CategoricalColumn(name=name, values=kept, others=bool(others)))
    return tuple(fitted)


def _useless(name: str, table: Table, rows: np.ndarray) -> str | None:
    """Why a column cannot help to predict."""
    if name in table.numbers:
        values = table.numbers[name]
        trained = values[rows]
        missing = np.isnan(trained)
        if missing.all():
            return "empty"
        if not missing.any() and (trained == trained[0]).all():
            return "constant"
        is_count = table.rows > 2 and bool((np.diff(values) == 1).all())
        return "numbers the rows" if is_count and name.lower() in _INDEX_NAMES else None
    cells = table.texts[name]
    distinct = {cells[row] for row in rows.tolist()}
    if distinct == {""}:
        return "empty"
    return "constant" if len(distinct) == 1 else None


def _require_finite(name: str, table: Table) -> None:
    wrong = np.flatnonzero(np.abs(table.numbers[name]) > _LARGEST)
    if len(wrong):
        got = f"{table.numbers[name][wrong[0]]} in row {wrong[0] + 1}"
        raise fail("data", f"{table.origin} must hold finite numbers below 1e100 in {name!r}, got {got}.")


def _require_categories(name: str, table: Table, rows: np.ndarray) -> None:
    """Refuse text with nearly as many values as rows: identifiers, sentences, numbers that do not parse."""
    cells = [table.texts[name][row] for row in rows.tolist()]
    filled = [cell for cell in cells if cell]
    distinct = len(Counter(filled))
    if distinct <= max(_FEW_CATEGORIES, _MAX_DISTINCT_SHARE * len(filled)):
        return
    commas = sum(is_number(cell.replace(",", ".", 1)) for cell in filled if "," in cell)
    if commas > len(filled) / 2:
        example = next(cell for cell in filled if "," in cell)
        fact = f"must have decimal points in {name!r}, got {example!r}"
        raise fail("data", f"{table.origin} {fact}; replace the decimal commas.")
    numbers = sum(map(is_number, filled))
    if numbers > len(filled) / 2:
        row, odd = next(
            (row, cell) for row, cell in enumerate(table.texts[name]) if cell and not is_number(cell)
        )
        fact = f"must hold numbers alone in {name!r}, got {odd!r} in row {row + 1}"
        raise fail(
            "data", f"{table.origin} {fact}; empty that cell, or leave the column out: --drop {name!r}."
        )
    fact = f"must hold categories in {name!r}, got {distinct:,} values in {len(filled):,} training rows"
    kind = "sentences" if any(len(cell.split()) > 4 for cell in filled[:100]) else "identifiers"
    remedy = f"leave a column of {kind} out: --drop {name!r}"
    if kind == "sentences":
        remedy += ", or train on the sentences by `beliefmatch adapt`"
    raise fail("data", f"{table.origin} {fact}; {remedy}.")
