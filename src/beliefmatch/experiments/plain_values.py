"""Whatever was computed, as JSON holds it."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

__all__ = ["finite", "plain_values"]


def finite(value: float | None) -> float | None:
    """A number, or None in place of NaN and infinity, which are none of JSON."""
    return float(value) if value is not None and math.isfinite(value) else None


def plain_values(value: Any) -> Any:
    """As JSON holds it, so that what is read back is equal; of tensors their shape, of the rest its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: plain_values(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain_values(value._asdict())  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        return {str(key): plain_values(part) for key, part in value.items()}
    if isinstance(value, Tensor):
        return {"shape": [*value.shape]}
    if isinstance(value, (list, tuple, range)):
        return [plain_values(part) for part in value]
    if isinstance(value, float):
        return finite(value)
    return value if value is None or isinstance(value, (str, bool, int)) else str(value)
