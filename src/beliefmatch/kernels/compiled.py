"""The extension module, if it was built."""

from typing import Any

MISSING: str | None = None
"""Why there is no extension, None if there is."""
extension: Any = None
try:
    from beliefmatch.kernels import _native as extension
except ModuleNotFoundError:
    MISSING = "it was not built"
except ImportError as error:
    MISSING = str(error)

__all__ = ["MISSING", "DeclinedError", "extension"]


class DeclinedError(Exception):
    """The extension looked at the values and leaves them to the reference."""
