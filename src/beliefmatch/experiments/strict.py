"""Settings from plain mappings, strictly: every key must be one, every value of its type.

Works on any frozen dataclass whose fields are numbers, words, choices, tuples, free options or dataclasses.
An error names the key by its dotted path, what was expected and what came.
"""

import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from beliefmatch.names import nearest

__all__ = ["free_options", "plain", "settings_from", "unknown_key"]

Settings = TypeVar("Settings")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def settings_from(kind: type[Settings], mapping: Any, *, caller: str, path: str = "") -> Settings:
    """Build a dataclass of a mapping of its fields; what is not given keeps its default."""
    given = _mapping(mapping, caller, path)
    hints = get_type_hints(kind)
    for key in given:
        if key not in hints:
            raise unknown_key(key, tuple(hints), caller=caller, path=path)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{caller}: `{_join(path, field.name)}` must be given.")
    values = {key: _value(hints[key], value, caller, _join(path, key)) for key, value in given.items()}
    return kind(**values)


def unknown_key(key: Any, valid: Sequence[str], *, caller: str, path: str) -> ValueError:
    """The error about a key that is no setting, with the nearest that is one."""
    close = nearest(str(key), valid)
    hint = f"did you mean `{_join(path, close)}`?" if close else f"there are {', '.join(valid)}."
    return ValueError(f"{caller}: `{_join(path, key)}` is not a setting; {hint}")


def plain(value: Any) -> Any:
    """Settings as JSON can hold them: dataclasses as mappings, tuples as lists."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (tuple, list)) else value


def free_options(value: Any, *, caller: str, path: str) -> dict[str, Any]:
    """A copy of options whose names are not known here; they must be such as JSON can hold."""
    given = _mapping(value, caller, path)
    return {key: _json(entry, caller, _join(path, key)) for key, entry in given.items()}


def _value(kind: Any, value: Any, caller: str, path: str) -> Any:
    if is_dataclass(kind):
        return settings_from(kind, value, caller=caller, path=path)  # type: ignore[arg-type]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (wanted,) = (one for one in inner if one is not types.NoneType)
        return None if value is None else _value(wanted, value, caller, path)
    if origin is Literal:
        return _choice(inner, value, caller, path)
    if origin is tuple:
        return _tuple(inner[0], value, caller, path)
    if origin is not None:
        return free_options(value, caller=caller, path=path)
    return _scalar(kind, value, caller, path)


def _scalar(kind: type, value: Any, caller: str, path: str) -> Any:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)  # YAML 1.1 reads 1e-4 as text
    elif kind is float and is_whole:
        value = float(value)
    elif kind is str and is_whole:
        value = str(value)  # `devices: 2` means the word
    elif kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not kind:
        raise _wrong(path, _WORDS[kind], value, caller)
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(path, "a finite number", value, caller)
    return value


def _choice(choices: tuple[Any, ...], value: Any, caller: str, path: str) -> Any:
    for choice in choices:
        if isinstance(value, (str, int)) and str(value) == choice:  # `precision: 16` means the word
            return choice
    raise _wrong(path, f"one of {', '.join(choices)}", value, caller)


def _tuple(kind: Any, value: Any, caller: str, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(path, f"a list, each entry {_WORDS[kind]}", value, caller)
    return tuple(_value(kind, entry, caller, f"{path}.{index}") for index, entry in enumerate(value))


def _json(value: Any, caller: str, path: str) -> Any:
    if isinstance(value, (tuple, list)):
        return [_json(entry, caller, f"{path}.{index}") for index, entry in enumerate(value)]
    if isinstance(value, Mapping):
        return free_options(value, caller=caller, path=path)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise _wrong(
        path, "a finite number, text, true, false, null, or lists and mappings of them", value, caller
    )


def _mapping(value: Any, caller: str, path: str) -> Mapping[str, Any]:
    name = path or "settings"
    if not isinstance(value, Mapping):
        raise _wrong(name, "a mapping of names to values", value, caller)
    for key in value:
        if not isinstance(key, str):
            raise _wrong(name, "a mapping whose keys are text", key, caller)
    return value


def _wrong(path: str, expected: str, value: Any, caller: str) -> Exception:
    kind = ValueError if isinstance(value, (str, float)) else TypeError
    received = " ".join(f"{type(value).__name__} {value!r}".split())[:80]
    return kind(f"{caller}: `{path}` must be {expected}, got {received}.")


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else f"{key}"
