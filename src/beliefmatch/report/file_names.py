"""Names for files, made from names that may hold anything."""

import re
from collections.abc import Sequence

__all__ = ["file_names", "numbered"]

_LONGEST = 80  # characters of a file's name, without its ending


def file_names(names: Sequence[str]) -> list[str]:
    """For each name one that any file system takes; two that differ in case only count as the same."""
    safe = [re.sub(r"[^\w.-]+", "_", name).strip("._")[:_LONGEST] or "model" for name in names]
    return numbered(safe, "_{}")


def numbered(names: Sequence[str], pattern: str) -> list[str]:
    """Each name once; a later one that is taken already gets a number."""
    made: list[str] = []
    taken: set[str] = set()
    for name in names:
        unique, number = name, 1
        while unique.casefold() in taken:
            number += 1
            unique = name + pattern.format(number)
        taken.add(unique.casefold())
        made.append(unique)
    return made
