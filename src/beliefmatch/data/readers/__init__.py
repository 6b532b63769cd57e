"""Files of named arrays, one module for each format; none of them can execute what it reads."""

from importlib import import_module
from pathlib import Path

from beliefmatch._validate import fail
from beliefmatch.data.readers.source import Column, Source, reading

__all__ = ["EXTENSIONS", "Column", "Source", "open_source", "reading"]

_FORMATS = {
    ".npz": ("npz", "NpzSource"),
    ".npy": ("npy", "NpySource"),
    ".parquet": ("parquet", "ParquetSource"),
    ".csv": ("table", "CsvSource"),
    ".safetensors": ("tensors", "SafetensorsSource"),
}
EXTENSIONS = tuple(_FORMATS)


def open_source(path: Path) -> Source:
    """Open a file by its extension; the arrays are read when asked for."""
    if path.suffix.lower() not in _FORMATS:
        expected = f"{', '.join(EXTENSIONS[:-1])} or {EXTENSIONS[-1]}"
        remedy = "save arrays with numpy.savez, pickles are not read"
        raise fail("read_predictions", f"`path` must end in {expected}, got {path}; {remedy}.")
    if not path.is_file():
        what = "the directory " if path.is_dir() else "" if path.exists() else "no file at "
        raise fail("read_predictions", f"`path` must be a file, got {what}{path}.")
    module, name = _FORMATS[path.suffix.lower()]
    return getattr(import_module(f"{__name__}.{module}"), name)(path)
