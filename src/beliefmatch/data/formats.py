"""Files of named arrays or columns: one reader for each format, shared by predictions, features and images.

No reader executes what it reads: pickled objects are refused.
"""

from __future__ import annotations

import csv
import json
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._errors import ArgumentError
from beliefmatch._utils import first_repeated, reason_of, short_repr
from beliefmatch._validate import fail

__all__ = [
    "EMPTY_CELLS",
    "EMPTY_NUMBERS",
    "ArrayFile",
    "ArraysInMemory",
    "Column",
    "CsvFile",
    "Field",
    "JsonlFile",
    "NpyFile",
    "NpzFile",
    "ParquetFile",
    "TableFile",
    "is_number",
    "open_arrays",
    "open_table",
    "places_by_number",
]

Column = Tensor | list[str]
"""Numbers of any shape, or one text for each row."""

EMPTY_CELLS = frozenset(("", "na", "n/a", "nan", "null", "#n/a", "<na>"))
"""Texts that programs write for an empty cell, in any case."""
EMPTY_NUMBERS = EMPTY_CELLS | {"none", "?", "-"}
"""The same in a column of numbers; among texts, none may be the name of a class."""

_SHOWN = 12  # names listed in an error
_CHUNK_BYTES = 1 << 22
_CSV_ROWS = 4096  # parsed at a time: text takes ten times the memory of the numbers in it


def open_arrays(
    path: str | Path, *, caller: str, formats: Mapping[str, type[ArrayFile]] | None = None
) -> ArrayFile:
    """Open a file by its extension; arrays are read by `load`.

    Args:
        path: .npz, .npy, .parquet, .csv or .safetensors.
        caller: the function that errors name.
        formats: Readers by extension, where others or fewer are allowed.
    """
    path, formats = Path(path), FORMATS if formats is None else formats
    if path.suffix.lower() not in formats:
        *others, last = formats
        remedy = "save arrays with numpy.savez, pickles are not read"
        raise fail(caller, f"`path` must end in {', '.join(others)} or {last}, got {path}; {remedy}.")
    if not path.is_file():
        what = "the directory " if path.is_dir() else "" if path.exists() else "no file at "
        raise fail(caller, f"`path` must be a file, got {what}{path}.")
    return formats[path.suffix.lower()](path, caller=caller)


@contextmanager
def reading(path: Path, what: str = "", *, caller: str) -> Iterator[None]:
    """Report any exception of a decoder as a fault of the file.

    Only calls into decoders belong inside such a block: they raise exceptions of any type (zipfile alone has
    seven), and a mistake in this library must not pass for one in the file.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:
        reason = reason_of(error, limit=160)
        if "allow_pickle" in reason:
            reason = "it holds Python objects, which only a pickle can; save numbers or text"
        if isinstance(error, UnicodeDecodeError):
            reason = f"it is not UTF-8 text: byte 0x{error.object[error.start]:02x} at {error.start}"
        what = f"{what} of " if what else ""
        fact = f"`path` must be a whole {path.suffix.lower()} file, cannot read {what}{path} ({reason})."
        raise fail(caller, fact) from error


class ArrayFile:
    """An open file of named arrays or columns.

    Attributes:
        path: of the file.
        caller: the function that errors name.
        names: of the arrays or columns.
        own: those in the file itself, not in a neighbouring file.
        is_table: whether the file has columns, which can form a matrix, or arrays of any shape.
    """

    is_table = False

    def __init__(self, path: Path, *, caller: str) -> None:
        self.path, self.caller = path, caller
        with reading(path, caller=caller):
            self.names = tuple(self._list())
        self.own = self.names

    def load(self, names: Sequence[str]) -> Column:
        """Read one array, or several columns of equal length as a matrix (N, len(names))."""
        what = "" if self.is_table else f"`{names[0]}`"
        with reading(self.path_of(names[0]), what, caller=self.caller):
            values = self._read(names)
        return self._column(names[0], values)

    def error(self, name: str, expected: str, received: str) -> Exception:
        """The error that the values of an array are not as expected."""
        return fail(self.caller, f"{self.path} must hold {expected} in `{name}`, got {received}.")

    def _column(self, name: str, values: np.ndarray | Tensor) -> Column:
        """The values as torch has them, or as a list of texts."""
        if isinstance(values, Tensor):
            return values
        if values.dtype.kind in "SU":
            texts = values.ravel().tolist()
            return [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts]
        if values.dtype.kind not in "biuf":
            raise self.error(name, "numbers or text", f"{values.dtype}")
        if values.dtype.kind == "f" and values.dtype.itemsize > 8:  # torch has no longer type
            values = values.astype(np.float64)
        native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
        return torch.from_numpy(native if native.flags.writeable else native.copy())

    def map(self, name: str) -> np.ndarray | None:
        """A read-only memory map of an array of floating-point numbers.

        None where the format has none, or where the array is compressed or must be converted.
        """
        with reading(self.path, f"`{name}`", caller=self.caller):
            return self._map(name)

    def path_of(self, name: str) -> Path:
        """The file that holds an array."""
        return self.path

    def find(
        self,
        role: str,
        spellings: Sequence[str],
        *,
        name: str | None = None,
        numbered: bool = False,
        own: bool = False,
        first: bool = False,
    ) -> Field | None:
        """The array or the columns that hold a role; None where there is none, an error for several.

        Args:
            role: what the array is, for the error.
            spellings: names that are recognised in any case, where the user gave no name.
            name: what the user calls it.
            numbered: whether the columns logit_0, logit_1, ... of a table form one matrix.
            own: whether neighbouring files are left out.
            first: whether the first spelling counts where there are several.
        """
        held = self.own if own else self.names
        if name is None:
            matches = [
                Field(self, (one,)) for spelling in spellings for one in held if one.lower() == spelling
            ]
        else:
            matches = [Field(self, (name,))] if name in held else []
        if self.is_table and numbered:
            matches += self._numbered_columns(spellings if name is None else (name,))
        if len(matches) > 1 and not first:
            several = " and ".join(field.name for field in matches)
            fact = f"`{role}` must be one array, or be named, got {several} in {self.path}."
            raise fail(self.caller, fact)
        return matches[0] if matches else None

    def missing(self, role: str, expected: Sequence[str]) -> Exception:
        """The error for a role that no array has, with the names that there are."""
        listed = ", ".join(self.names[:_SHOWN]) + (", …" if len(self.names) > _SHOWN else "")
        fact = f"must be in {self.path} as {' or '.join(expected)}, got {listed or 'nothing'}"
        return fail(self.caller, f"`{role}` {fact}; name it if it is called otherwise.")

    def _numbered_columns(self, spellings: Sequence[str]) -> Iterator[Field]:
        """Columns such as logit_0, logit_1, ... in the order of their numbers, for each spelling."""

        def refused(fact: str) -> Exception:
            return fail(self.caller, f"`path` {fact} in {self.path}.")

        for spelling in spellings:
            if places := places_by_number(self.names, spelling, refused=refused):
                yield Field(self, tuple(self.names[place] for place in places))

    # What a format defines; these may raise anything.
    def _list(self) -> Sequence[str]:
        raise NotImplementedError

    def _read(self, names: Sequence[str]) -> np.ndarray | Tensor:
        raise NotImplementedError

    def _map(self, name: str) -> np.ndarray | None:
        return None


def places_by_number(
    headings: Sequence[str], spelling: str, *, refused: Callable[[str], Exception]
) -> list[int]:
    """Places of the headings logit_0, logit_1, ... among others, in the order of their numbers.

    Args:
        headings: Of all columns.
        spelling: What stands before the number; "" for headings that are a number alone.
        refused: The error for numbers that do not count from 0, of what was expected and received.
    """
    number = r"[ ._-]?(\d+)" if spelling else r"(-?\d+)"
    pattern = re.compile(re.escape(spelling) + number, re.IGNORECASE)
    found = {place: int(match[1]) for place, one in enumerate(headings) if (match := pattern.fullmatch(one))}
    places = sorted(found, key=found.__getitem__)
    if [found[place] for place in places] != list(range(len(places))):
        numbers = ", ".join(f"{found[place]}" for place in places[:_SHOWN])
        received = f"{spelling} {numbers}".strip()
        raise refused(f"must have one column for each class, counted from 0, got {received}")
    return places


class Field(NamedTuple):
    """An array in a file, or columns that form a matrix together."""

    file: ArrayFile
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The field in an error or a report."""
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} … {self.names[-1]}"

    def load(self) -> Column:
        """The values."""
        return self.file.load(self.names)

    def numbers(self) -> Tensor:
        """The values, which must be real numbers."""
        values = self.load()
        if isinstance(values, list):
            text = next((text for text in values if not is_number(text)), values[0] if values else None)
            raise self.error("numbers", "nothing" if text is None else f"the text {text!r}")
        if values.dtype == torch.bool or values.is_complex():
            raise self.error("real numbers", f"{values.dtype}".removeprefix("torch."))
        return values

    def error(self, expected: str, received: str) -> Exception:
        """The error that the values are not as expected."""
        return self.file.error(self.name, expected, received)


class ArraysInMemory(ArrayFile):
    """Arrays that the user holds, under the same checks as those in files.

    Args:
        arrays: By name: tensors of any device, numpy arrays, or whatever `numpy.asarray` makes one of, such
            as lists, data frames and columns of data frames.
        caller: The function that errors name; arrays are its arguments.
    """

    def __init__(self, arrays: Mapping[str, Any], *, caller: str) -> None:
        self._arrays = arrays
        super().__init__(Path(), caller=caller)

    def load(self, names: Sequence[str]) -> Column:
        """One array; tensors come to the CPU, without a gradient."""
        (name,) = names
        value = self._arrays[name]
        if isinstance(value, Tensor):
            if value.layout != torch.strided or value.is_meta:
                kind = "meta" if value.is_meta else f"{value.layout}".removeprefix("torch.")
                raise self.error(name, "a dense tensor", f"a {kind} tensor")
            return value.detach().cpu()
        if isinstance(value, np.ma.MaskedArray):
            raise self.error(name, "an array without a mask, or its `compressed` rows", "a masked array")
        try:
            values = np.asarray(value)
            if values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind in "OSU":
                self._require_numbers(name, value)
            if values.dtype == object:  # such as texts of pandas
                values = np.asarray(values.tolist())
        except ArgumentError:
            raise
        except Exception as error:  # whatever the conversion of a user's object raises
            reason = reason_of(error, limit=120)
            raise self.error(name, "an array", f"{short_repr(value)[:60]} ({reason})") from error
        return self._column(name, values)

    def _require_numbers(self, name: str, value: Any) -> None:
        """A matrix must hold numbers: one text makes texts of all, of which the first is not to blame."""
        headings = list(getattr(value, "columns", ()))
        for place, cells in enumerate(np.asarray(value, dtype=object).T):
            odd = {kind for kind in set(map(type, cells)) if not issubclass(kind, Real | np.bool_)}
            if odd:
                row = next(row for row, cell in enumerate(cells) if type(cell) in odd)
                text = f"the text {cells[row]!r}" if isinstance(cells[row], str) else short_repr(cells[row])
                column = f"{headings[place]!r}" if headings else f"{place}"
                raise self.error(name, "numbers", f"{text} in row {row} of column {column}")

    def error(self, name: str, expected: str, received: str) -> Exception:
        """The error that an argument is not as expected."""
        return fail(self.caller, f"`{name}` must hold {expected}, got {received}.")

    def _list(self) -> Sequence[str]:
        return list(self._arrays)


class NpzFile(ArrayFile):
    """An archive of arrays, as `numpy.savez` writes it."""

    def _list(self) -> Sequence[str]:
        with zipfile.ZipFile(self.path) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        self.nbytes = {name: entry.file_size for name, entry in entries.items()}
        self._members = {name: entry.filename for name, entry in entries.items()}
        return list(self._members)

    def _read(self, names: Sequence[str]) -> np.ndarray:
        (name,) = names
        with zipfile.ZipFile(self.path) as archive, archive.open(self._members[name]) as file:
            # numpy.load would take what is no array for a pickle, and suggest to load it as such.
            return np.lib.format.read_array(file, allow_pickle=False)

    def _map(self, name: str) -> np.ndarray | None:
        with zipfile.ZipFile(self.path) as archive:
            info = archive.getinfo(self._members[name])
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                return None
            with archive.open(info) as member:  # a map checks nothing; reading to the end checks the CRC
                while member.read(_CHUNK_BYTES):
                    pass
        with self.path.open("rb") as file:
            header_bytes = 30  # of a local file header, before the member's name
            file.seek(info.header_offset)
            name_and_extra = struct.unpack("<HH", file.read(header_bytes)[-4:])
        return _map_npy(self.path, info.header_offset + header_bytes + sum(name_and_extra))


class NpyFile(ArrayFile):
    """A single array, as `numpy.save` writes it; the last word of the file's name says what it holds.

    `resnet_targets.npy` is another array of `resnet_logits.npy`. Words end at a dot, a dash or an underscore.
    """

    def __init__(self, path: Path, *, caller: str) -> None:
        super().__init__(path, caller=caller)
        self.own = self.names[:1]

    def _list(self) -> Sequence[str]:
        stem, word = _words(self.path)
        files = sorted(file for file in self.path.parent.iterdir() if file.suffix.lower() == ".npy")
        held = {_words(file)[1]: file for file in files if _words(file)[0] == stem and file.is_file()}
        self._files = {word: self.path} | {name: file for name, file in held.items() if name != word}
        return list(self._files)

    def path_of(self, name: str) -> Path:
        """The file that holds an array: this one or a neighbour."""
        return self._files[name]

    def _read(self, names: Sequence[str]) -> np.ndarray:
        (name,) = names
        with self._files[name].open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    def _map(self, name: str) -> np.ndarray | None:
        return _map_npy(self._files[name], 0)


def _words(path: Path) -> tuple[str, str]:
    """All but the last word of a file's name, and the last."""
    found = re.fullmatch(r"(.*[._-])?([^._-]+)", path.stem)
    return (found[1] or "", found[2]) if found else ("", path.stem)


def _map_npy(path: Path, offset: int) -> np.ndarray | None:
    with path.open("rb") as file:
        file.seek(offset)
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            return None
        offset = file.tell()
    if dtype.kind != "f" or dtype.itemsize > 8 or 0 in shape:
        return None
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran_order else "C")


class SafetensorsFile(ArrayFile):
    """Tensors in a safetensors file, read one at a time."""

    def _list(self) -> Sequence[str]:
        with needs("safetensors", extra="files", caller=self.caller):
            from safetensors import safe_open
        self._open = safe_open
        with safe_open(self.path, framework="pt") as file:
            return list(file.keys())

    def _read(self, names: Sequence[str]) -> Tensor:
        (name,) = names
        with self._open(self.path, framework="pt") as file:
            return file.get_tensor(name)

    def _map(self, name: str) -> np.ndarray | None:
        with self.path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            entry = json.loads(file.read(length))[name]
        dtype = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}.get(entry["dtype"])
        if dtype is None or 0 in entry["shape"]:
            return None
        offset = 8 + length + entry["data_offsets"][0]
        return np.memmap(self.path, dtype, "r", offset, tuple(entry["shape"]))


class TableFile(ArrayFile):
    """A table, whose columns can also be read as they are: text stays text, also where it is all numbers."""

    is_table = True

    def cells(self, name: str) -> list[Any]:
        """The values of a column; None where a cell is empty, if the format has such cells."""
        with reading(self.path, caller=self.caller):
            return self._cells(name)

    def chunks(self, names: Sequence[str]) -> Iterator[Sequence[Sequence[Any]]]:
        """The cells of several columns, some thousand rows at a time, in one pass over the file."""
        with reading(self.path, caller=self.caller):
            yield from self._cell_chunks(names)

    def _cells(self, name: str) -> list[Any]:
        raise NotImplementedError

    def _cell_chunks(self, names: Sequence[str]) -> Iterator[Sequence[Sequence[Any]]]:
        yield [self._cells(name) for name in names]


class ParquetFile(TableFile):
    """A table of which only the requested columns are read: numbers, text, or lists of one length."""

    def _list(self) -> Sequence[str]:
        extra = "data" if self.caller == "data" else "files"
        with needs("pyarrow", extra=extra, caller=self.caller):
            import pyarrow.parquet as pq
        self._open = pq.ParquetFile
        with pq.ParquetFile(self.path) as file:
            self.metadata: dict[bytes, bytes] = file.schema_arrow.metadata or {}
            return file.schema_arrow.names

    def _read(self, names: Sequence[str]) -> np.ndarray:
        with self._open(self.path) as file:
            table = file.read(columns=list(names))
            values = [_parquet_values(table.column(name), name) for name in names]
        return np.stack(values, 1) if len(names) > 1 else values[0]

    def _cells(self, name: str) -> list[Any]:
        with self._open(self.path) as file:
            return file.read(columns=[name]).column(name).to_pylist()

    def _cell_chunks(self, names: Sequence[str]) -> Iterator[Sequence[Sequence[Any]]]:
        with self._open(self.path) as file:
            for batch in file.iter_batches(batch_size=_CSV_ROWS, columns=list(names)):
                yield [batch.column(name).to_pylist() for name in names]

    def encoded_images(self, name: str) -> list[bytes]:
        """The bytes of each image, stored as bytes or as {bytes, path}; empty where a cell has none."""
        with reading(self.path, caller=self.caller):
            contents = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in self._cells(name)]
            if not all(content is None or isinstance(content, bytes) for content in contents):
                raise ValueError("its images are neither bytes nor {bytes, path}")
        return [content or b"" for content in contents]


def _parquet_values(chunks: Any, name: str) -> np.ndarray:
    import pyarrow as pa

    if chunks.null_count:
        raise ValueError(f"{name} has {chunks.null_count} empty cells")
    values = chunks.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # of none or several chunks where one cannot hold all
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.array(values.to_pylist(), dtype=np.str_)
    if pa.types.is_fixed_size_list(values.type):
        lengths = np.array([values.type.list_size])
    elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        lengths = np.unique(values.value_lengths())
    else:
        return values.to_numpy(zero_copy_only=False)
    if len(lengths) > 1:
        raise ValueError(f"{name} has lists of {lengths[0]} to {lengths[-1]} numbers")
    flat = values.flatten()
    if flat.null_count:
        raise ValueError(f"{name} has {flat.null_count} empty cells in its lists")
    return flat.to_numpy(zero_copy_only=False).reshape(len(values), *lengths.tolist() or [0])


class CsvFile(TableFile):
    """A table of text separated by commas, semicolons or tabs; the first line names the columns.

    Numbers have decimal points, whatever the locale. Each call of `load` is one pass over the file.
    """

    def _list(self) -> Sequence[str]:
        with self._text() as file:
            self._delimiter = max(",;\t", key=file.readline().count)
        with self._text() as file:
            names = [name.strip() for name in next(csv.reader(file, delimiter=self._delimiter), [])]
        if (twice := first_repeated(names)) is not None:
            hint = "; its first line must name the columns" if is_number(twice) else ""
            raise ValueError(f"it has two columns named {twice!r}{hint}")
        return names

    def _read(self, names: Sequence[str]) -> np.ndarray:
        """A single column that is not all numbers is text."""
        if len(names) > 1:
            tables = [_csv_numbers(columns, names, before) for before, columns in self._chunks(names)]
            return np.concatenate(tables) if tables else np.empty((0, len(names)))
        cells = self._cells(names[0])
        try:
            return np.array(list(map(float, cells)), dtype=np.float64)
        except ValueError:
            return np.array([cell.strip() for cell in cells], dtype=np.str_)

    def _text(self) -> Any:
        return self.path.open(encoding="utf-8-sig", newline="")

    def _cells(self, name: str) -> list[Any]:
        return list(chain.from_iterable(column for _, (column,) in self._chunks([name])))

    def _cell_chunks(self, names: Sequence[str]) -> Iterator[Sequence[Sequence[Any]]]:
        yield from (columns for _, columns in self._chunks(names))

    def _chunks(self, names: Sequence[str]) -> Iterator[tuple[int, list[tuple[str, ...]]]]:
        """The named columns of some rows, with the number of rows before them; blank lines do not count."""
        places = {name: place for place, name in enumerate(self.names)}
        chosen, width, before = [places[name] for name in names], len(self.names), 0
        with self._text() as file:
            reader = csv.reader(file, delimiter=self._delimiter)
            next(reader)
            rows = (row for row in reader if row)
            while chunk := list(islice(rows, _CSV_ROWS)):
                for number, row in enumerate(chunk, before + 1):
                    if len(row) != width:
                        raise ValueError(f"row {number} has {len(row)} cells, the heading {width}")
                columns = list(zip(*chunk, strict=True))
                yield before, [columns[index] for index in chosen]
                before += len(chunk)


def _csv_numbers(columns: list[tuple[str, ...]], names: Sequence[str], before: int) -> np.ndarray:
    numbers = []
    for name, cells in zip(names, columns, strict=True):
        try:
            numbers.append(list(map(float, cells)))
        except ValueError:
            row, text = next((row, text) for row, text in enumerate(cells, 1) if not is_number(text))
            raise ValueError(f"row {before + row}: {name} must be a number, got {text!r}") from None
    return np.array(numbers).T


def is_number(text: str) -> bool:
    """Whether a cell of text is a number; 1_0, which Python reads as 10, is none."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


class JsonlFile(TableFile):
    """A JSON object on each line; the columns are the keys of the first. Read by `cells` alone."""

    def _list(self) -> Sequence[str]:
        return list(next(self._objects(), {}))

    def _cells(self, name: str) -> list[Any]:
        return [found.get(name) for found in self._objects()]

    def _objects(self) -> Iterator[dict[str, Any]]:
        with self.path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise ValueError(f"line {number} must be a JSON object, got {line.strip()[:40]}")
                yield found


FORMATS: dict[str, type[ArrayFile]] = {
    ".npz": NpzFile,
    ".npy": NpyFile,
    ".parquet": ParquetFile,
    ".csv": CsvFile,
    ".safetensors": SafetensorsFile,
}

TABLES: dict[str, type[TableFile]] = {
    ".csv": CsvFile,
    ".tsv": CsvFile,
    ".jsonl": JsonlFile,
    ".parquet": ParquetFile,
}


def open_table(path: Path, *, caller: str) -> TableFile:
    """Open a file of `TABLES` by its extension."""
    return TABLES[path.suffix.lower()](path, caller=caller)
