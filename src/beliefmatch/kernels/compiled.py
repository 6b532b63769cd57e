"""The extension module, if it was built."""

from importlib import import_module
from typing import Any

MISSING: str | None = None
"""Why there is no extension, None if there is."""
extension: Any = None
try:
    extension = import_module("beliefmatch.kernels._native")
except ModuleNotFoundError:
    MISSING = "it was not built"
except ImportError as error:
    MISSING = str(error)

__all__ = ["MISSING", "DeclinedError", "extension"]


class DeclinedError(Exception):
    """The extension looked at the values and leaves them to the reference."""
