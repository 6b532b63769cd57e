"""JSON as the annotations of a dataclass say, or one line about where it is not."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

__all__ = ["from_json", "to_json"]

Record = TypeVar("Record")


def to_json(record: Any) -> str:
    """A dataclass as JSON text without NaN, which is no JSON."""
    return json.dumps(asdict(record), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def from_json(
    kind: type[Record],
    text: str,
    *,
    schema: str,
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Record:
    """Read what `to_json` wrote; a ValueError says in one line what is wrong with any other text.

    Args:
        kind: the dataclass; all of its fields must be there, and no others.
        text: JSON.
        schema: what its field of that name must say.
        upgrade: makes what an earlier version wrote what this one would have written.
    """
    title = kind.__name__
    try:
        content = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{title}: the text is not JSON ({error}).") from error
    if upgrade is not None and isinstance(content, dict):
        content = upgrade(content)
    found = content.get("schema") if isinstance(content, dict) else type(content).__name__
    if found != schema:
        raise ValueError(f"{title}: `schema` must be {schema!r}, got {found!r}.")
    return _Reader(title, schema).read(kind, content, "record")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


class _Reader:
    def __init__(self, title: str, schema: str) -> None:
        self.title, self.schema = title, schema

    def read(self, kind: Any, value: Any, place: str) -> Any:
        if is_dataclass(kind):
            return self._read_fields(kind, value, place)
        origin, inner = get_origin(kind), get_args(kind)
        if origin is list and isinstance(value, list):
            return [self.read(inner[0], item, f"{place}[{i}]") for i, item in enumerate(value)]
        if origin is dict and isinstance(value, dict):
            return {key: self.read(inner[1], item, f"{place}.{key}") for key, item in value.items()}
        if origin is UnionType:
            if value is None and NoneType in inner:
                return None
            return self.read(inner[0], value, place)
        if kind is Any or type(value) is kind:
            return value
        if kind is float and type(value) is int:  # JSON writes 1.0 as it likes
            return float(value)
        expected = getattr(kind, "__name__", kind)
        raise ValueError(f"{self.title}: `{place}` must be {expected}, got {type(value).__name__}.")

    def _read_fields(self, kind: Any, value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{self.title}: `{place}` must be an object, got {type(value).__name__}.")
        hints, known = get_type_hints(kind), [field.name for field in fields(kind)]
        wrong = sorted(set(known) ^ set(value))
        if wrong:
            names = ", ".join(wrong)
            raise ValueError(
                f"{self.title}: `{place}` must have the fields of {self.schema!r}, got others: {names}."
            )
        return kind(**{name: self.read(hints[name], value[name], f"{place}.{name}") for name in known})
