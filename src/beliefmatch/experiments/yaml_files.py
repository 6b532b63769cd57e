"""YAML that is data and nothing else: no tags that make objects, no duplicate keys, no aliases, not large."""

import re
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

from beliefmatch._environment import needs
from beliefmatch._errors import fail
from beliefmatch._utils import reason_of

__all__ = ["as_yaml", "read_yaml", "yaml_value"]

LARGEST = 64 * 1024
_DEEPEST = 20
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML file holds; an error is one line with the number of the line at fault."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise fail("read_yaml", f"cannot read {path} ({error.strerror or error}).") from error
    if len(content) > LARGEST:
        raise fail("read_yaml", f"{path} must not be larger than {LARGEST // 1024} KiB.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fail("read_yaml", f"{path} must be text in UTF-8 ({error.reason}).") from error
    value = _parsed(text, f"{path}", caller="read_yaml")
    if not isinstance(value, dict):
        received = "nothing" if value is None else type(value).__name__
        raise fail("read_yaml", f"{path} must hold a mapping of names to values, got {received}.")
    return value


def as_yaml(mapping: dict[str, Any]) -> str:
    """A mapping as `read_yaml` takes it, sections in their own order, short lists on one line."""
    with needs("PyYAML", extra="files", caller="as_yaml"):
        import yaml

    return yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def yaml_value(text: str, *, caller: str) -> Any:
    """One value as YAML writes it: `3`, `1e-4`, `adam`, `null`, `[0.5, 0.75]`, `{kl_weight: 0.01}`."""
    return _parsed(text, f"{text!r:.60}", caller=caller)


def _parsed(text: str, place: str, *, caller: str) -> Any:
    with needs("PyYAML", extra="files", caller=caller):
        import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise fail(caller, f"{place}{line}: {reason_of(error.problem)}.") from None
    except (yaml.YAMLError, ValueError) as error:  # an invalid character or date
        raise fail(caller, f"{place}: {reason_of(error)}.") from None


@lru_cache(maxsize=1)
def _loader() -> Any:
    """PyYAML's safe loader, stricter, and with the numbers of YAML 1.2 such as 1e-4."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise _at("aliases are not supported; write the value out", self.peek_event())
            self.depth += 1
            if self.depth > _DEEPEST:
                raise _at(f"nested more than {_DEEPEST} deep", self.peek_event())
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            _refuse_second(node)
            return super().construct_mapping(node, deep=deep)

    StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    return StrictLoader


def _refuse_second(mapping: Any) -> None:
    seen = set()
    for key, _ in mapping.value:
        name = str(key.value)
        if name in seen:
            raise _at(f"the key {name!r} is duplicated", key)
        seen.add(name)


def _at(problem: str, where: Any) -> Exception:
    from yaml.constructor import ConstructorError

    return ConstructorError(None, None, problem, where.start_mark)
