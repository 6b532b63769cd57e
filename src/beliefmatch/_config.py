"""Base classes of configurations and records: declared once, validated, read from YAML or JSON.

A `Config` is validated however it is made, by its constructor or from a mapping: types, the bounds declared
with `msgspec.Meta`, and finite numbers. A `Record` is validated where it is read. Every error is a
`ValueError` of one line that names the field by its dotted path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, structs

from beliefmatch._errors import ArgumentError, fail
from beliefmatch._utils import nearest, short_repr

__all__ = [
    "Config",
    "Count",
    "Index",
    "NonEmpty",
    "NonNegative",
    "Positive",
    "Probability",
    "Record",
    "RecordPart",
    "Seed",
    "field_kinds",
    "from_mapping",
    "plain",
    "schema_of",
    "unknown_key",
]

Count = Annotated[int, Meta(ge=1)]
Index = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Range of seeds accepted by torch.Generator."""
NonNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Probability = Annotated[float, Meta(gt=0, lt=1)]
NonEmpty = Annotated[str, Meta(pattern=r"\S")]

ConfigType = TypeVar("ConfigType", bound="Config")
RecordType = TypeVar("RecordType", bound="Record")

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of names to values",
    "null": "null",
}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LOCATION = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?P<problem>contains unknown|missing required) field `(?P<name>.*)`")
_EXPECTED = re.compile(r"Expected `(?P<kinds>[^`]*)`(?P<bound>[^,]*)(?:, got `.*`)?")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that are validated when they are made.

    Lists become tuples, and ints become floats in float fields. Subclasses that check several fields against
    each other do so in `__post_init__`, after this one's.
    """

    def __post_init__(self) -> None:
        caller = type(self).__name__
        for name, kind in field_kinds(type(self)).items():
            given = getattr(self, name)
            try:
                value = msgspec.convert(_coerce(kind, given), kind)
            except msgspec.ValidationError as error:
                raise _one_line_error(error, kind, given, caller, name) from None
            structs.force_setattr(self, name, _finite(value, caller, name))


def from_mapping(kind: type[ConfigType], mapping: Any, *, caller: str) -> ConfigType:
    """Read a configuration strictly: an unknown key or a value of another type is an error that names it.

    Fields that are not given keep their defaults. Numbers may be written as text ("1e-4" is text in YAML 1.1)
    and words as numbers (`devices: 2`).
    """
    try:
        return msgspec.convert(_coerce(kind, mapping), kind)
    except msgspec.ValidationError as error:
        raise _one_line_error(error, kind, mapping, caller) from None


def plain(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """A value as JSON gives it back: mappings for structures, lists for tuples, None for numbers not finite.

    Args:
        value: of configurations, dataclasses, lists, mappings, numbers and text.
        other: called with a value of any other type for one to take its place.
    """
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=other))


class RecordPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a record."""


class Record(RecordPart, frozen=True):
    """Results that are kept as JSON, which a field `schema` identifies."""

    def to_json(self) -> str:
        """Write as JSON text; `from_json` reads it back unchanged. NaN, which JSON lacks, is a ValueError."""
        return json.dumps(msgspec.to_builtins(self), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls: type[RecordType], text: str) -> RecordType:
        """Read what `to_json` wrote; a ValueError says in one line what is wrong with other text."""
        title = cls.__name__
        expected = next(field.default for field in structs.fields(cls) if field.name == "schema")
        try:
            content = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise fail(title, f"the text is not JSON ({error}).") from None
        content = cls.upgraded(content) if isinstance(content, dict) else content
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        if found != expected:
            raise fail(title, f"`schema` must be {expected!r}, got {found!r}.")
        try:
            record = msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise _one_line_error(error, cls, content, title) from None
        record.check()
        return record

    @classmethod
    def upgraded(cls, content: dict[str, Any]) -> dict[str, Any]:
        """What this version would have written, given what an earlier version wrote."""
        return content

    def check(self) -> None:
        """Refuse, with a ValueError, fields that contradict each other."""


def schema_of(text: str | bytes) -> str:
    """The schema that a JSON text names; empty if it is not JSON or names none."""
    try:
        content = json.loads(text)
    except ValueError:
        return ""
    schema = content.get("schema") if isinstance(content, dict) else None
    return schema if isinstance(schema, str) else ""


@cache
def field_kinds(kind: type[Struct]) -> dict[str, Any]:
    """The fields of a configuration or record, with their annotated types."""
    return {field.name: field.type for field in structs.fields(kind)}


def unknown_key(key: Any, valid: Collection[str], *, caller: str, path: str = "") -> ValueError:
    """The error about a key that is not a setting, with the nearest one that is."""
    close = nearest(f"{key}", valid)
    hint = f"did you mean `{_joined(path, close)}`?" if close else f"there are {', '.join(valid)}."
    return fail(caller, f"`{_joined(path, key)}` is not a setting; {hint}")


def _coerce(kind: Any, value: Any) -> Any:
    """The same value with numbers that were written as text, and text that was written as a number."""
    if hasattr(value, "tolist"):  # of numpy or torch
        value = value.tolist()
    leaves = _leaves(kind)
    if isinstance(value, (list, tuple, range)):
        return [_coerce(kind, entry) for entry in value]
    if isinstance(value, Mapping):
        below = next((field_kinds(leaf) for leaf in leaves if _is_struct(leaf)), {})
        return {key: _coerce(below[key], entry) if key in below else entry for key, entry in value.items()}
    if type(value) is str and float in leaves and str not in leaves and _NUMBER.fullmatch(value):
        return float(value)
    if type(value) is int and str in leaves and not leaves & {int, float}:
        return f"{value}"
    if type(value) is float and int in leaves and float not in leaves and value.is_integer():
        return int(value)
    return value


@cache
def _leaves(kind: Any) -> frozenset[Any]:
    """The classes of which a value of an annotated type, or an entry of it, may be."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return frozenset(type(choice) for choice in inner)
    if origin in (Union, UnionType, tuple, list, Sequence, Annotated):
        parts = inner[:1] if origin is Annotated else inner
        return frozenset().union(*(_leaves(part) for part in parts if part not in (..., NoneType)))
    return frozenset([origin or kind])


def _choices(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return [*get_args(kind)]
    return [choice for part in get_args(kind) for choice in _choices(part)]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _finite(value: Any, caller: str, name: str) -> Any:
    """A value without NaN and infinity; a mapping as JSON gives it back, a list as a tuple."""
    if isinstance(value, Mapping):
        try:
            return json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            expected = "finite numbers, text, true, false, null, or lists and mappings of them"
            raise fail(caller, f"`{name}` must hold {expected} ({error}).") from None
    value = tuple(value) if isinstance(value, list) else value
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise fail(caller, f"`{name}` must be finite, got {number!r}.")
    return value


def _one_line_error(
    error: msgspec.ValidationError, kind: Any, value: Any, caller: str, path: str = ""
) -> ValueError:
    """One line about a value that was refused: where it is, what was expected, and what was received."""
    found = _LOCATION.fullmatch(f"{error}")
    assert found is not None
    below = re.sub(r"\[(\d+|\.\.\.)\]", r".\1", found["path"] or "").strip(".")
    parts = [part for part in below.split(".") if part] if "..." not in below else [below]
    place, what = _joined(path, below), found["what"]
    for part in parts:
        structure = next((leaf for leaf in _leaves(kind) if _is_struct(leaf)), None)
        kind = field_kinds(structure).get(part, Any) if structure and not part.isdigit() else kind
        value = _entry(value, part)
    if field := _FIELD.fullmatch(what):
        if field["problem"] == "missing required":
            return fail(caller, f"`{_joined(place, field['name'])}` must be given.")
        structure = next((leaf for leaf in _leaves(kind) if _is_struct(leaf)), None)
        names = tuple(field_kinds(structure)) if structure else ()
        if structure is not None and issubclass(structure, RecordPart):
            return fail(caller, f"`{_joined(place, field['name'])}` is not one of its fields.")
        return unknown_key(field["name"], names, caller=caller, path=place)
    if isinstance(own := error.__cause__, ArgumentError):  # of a configuration inside of this one
        return fail(caller, f"`{_joined(place, own.argument)}` {own.fact}" if own.argument else own.message)
    if found["key"]:
        expected = "a mapping whose keys are text"
    elif choices := _choices(kind):
        expected = f"one of {', '.join(map(str, choices))}"
    elif match := _EXPECTED.fullmatch(what):
        words = (_WORDS.get(each, each) for each in match["kinds"].split(" | "))
        bound = re.sub(r" matching regex .*", " that is not empty", match["bound"])
        expected = " or ".join(words) + bound.removesuffix(".0")
    else:
        expected = f"valid ({what})"
    return fail(caller, f"`{place or 'settings'}` must be {expected}, got {short_repr(value)}.")


def _entry(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part)
    if isinstance(value, (list, tuple)) and part.isdigit():
        return value[int(part)]
    return getattr(value, part, value)


def _joined(path: str, key: Any) -> str:
    return ".".join(filter(None, (path, f"{key}")))
