"""Arrays of files as memory maps, where the format lets them be: what is not looked at is not read."""

import json
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

__all__ = ["mapped"]

_CHUNK = 1 << 22  # bytes
_LOCAL_HEADER = 30  # bytes before the name of a member of a zip archive
_TENSOR_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def mapped(path: Path, name: str) -> np.ndarray | None:
    """The array of this name, read-only; None where it is compressed, or of a type or format to be converted.

    Any error of a decoder may come out of here; the file may be broken in any way.
    """
    kind = path.suffix.lower()
    if kind == ".npy":
        return _array_at(path, 0)
    if kind == ".npz":
        return _member(path, f"{name}.npy")
    return _tensor(path, name) if kind == ".safetensors" else None


def _member(path: Path, name: str) -> np.ndarray | None:
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            return None
        with archive.open(info) as member:  # a map checks nothing; at its end this compares the checksum
            while member.read(_CHUNK):
                pass
    with path.open("rb") as file:
        file.seek(info.header_offset)
        lengths = struct.unpack("<HH", file.read(_LOCAL_HEADER)[-4:])
    return _array_at(path, info.header_offset + _LOCAL_HEADER + sum(lengths))


def _array_at(path: Path, offset: int) -> np.ndarray | None:
    with path.open("rb") as file:
        file.seek(offset)
        header = _header(file)
        offset = file.tell()
    if header is None:
        return None
    shape, by_columns, dtype = header
    if dtype.kind != "f" or dtype.itemsize > 8 or 0 in shape:
        return None
    return np.memmap(path, dtype, "r", offset, shape, "F" if by_columns else "C")


def _header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype] | None:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file) if version == (2, 0) else None


def _tensor(path: Path, name: str) -> np.ndarray | None:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entry = json.loads(file.read(length))[name]
    if entry["dtype"] not in _TENSOR_TYPES or 0 in entry["shape"]:
        return None
    offset = 8 + length + entry["data_offsets"][0]
    return np.memmap(path, _TENSOR_TYPES[entry["dtype"]], "r", offset, tuple(entry["shape"]))
