"""What all formats have in common: names of arrays, arrays by name, and words for broken files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import fail

__all__ = ["Column", "Source", "column", "reading"]

Column = Tensor | list[str]
"""Numbers of any shape, or a text for each row."""


class Source(Protocol):
    """An open file."""

    path: Path
    names: tuple[str, ...]
    """Of the arrays or columns it holds."""
    own: tuple[str, ...]
    """Those in the file itself, not in one beside it."""
    is_table: bool
    """Whether it has columns, which may be set side by side, or arrays of any shape."""

    def load(self, names: Sequence[str]) -> Column:
        """One array by its name, or several columns of equal length side by side, shape (N, len(names))."""
        ...


@contextmanager
def reading(path: Path, what: str = "", *, caller: str = "read_predictions") -> Iterator[None]:
    """Whatever a decoder raises about bytes that are not of its format is a fault of the file.

    Only calls into decoders stand inside such a block: there is no telling beforehand what they raise
    (zipfile alone has seven kinds), and a mistake of ours must not pass for one of the file.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:
        reason = " ".join(f"{error}".split())[:160].rstrip(".") or type(error).__name__
        if "allow_pickle" in reason:
            reason = "it holds Python objects, which only a pickle can; save numbers or text"
        what = f"{what} of " if what else ""
        fact = f"`path` must be a whole {path.suffix.lower()} file, cannot read {what}{path} ({reason})."
        raise fail(caller, fact) from error


def column(values: np.ndarray, name: str, path: Path) -> Column:
    """Numbers as a tensor that shares their memory where it can, text as a list."""
    if values.dtype.kind in "SU":
        texts = values.ravel().tolist()
        return [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts]
    if values.dtype.kind not in "biuf":
        raise fail("read_predictions", f"`{name}` in {path} must be numbers or text, got {values.dtype}.")
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:  # torch has no longer ones
        values = values.astype(np.float64)
    native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    return torch.from_numpy(native if native.flags.writeable else native.copy())
