"""Which array of a file is which: by the name the user gave, or by a spelling of its own."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from beliefmatch._validate import fail
from beliefmatch.data.readers import Source

__all__ = ["SPELLINGS", "Field", "FieldNames", "Role", "absent", "column_groups", "find_field", "find_values"]

Role = Literal["logits", "probs", "targets", "images"]

SPELLINGS: dict[Role, tuple[str, ...]] = {
    "logits": ("logits", "logit"),
    "probs": ("probs", "prob", "probabilities", "probability", "proba", "predict_proba"),
    "targets": ("targets", "target", "labels", "label", "y_true", "y"),
    "images": ("images", "image"),
}
"""Names that leave no doubt, in any case. "scores" or "outputs" might be logits or probabilities, and
"predictions" class ids: such arrays have to be named."""

_SHOWN = 12  # names in an error


@dataclass(frozen=True)
class FieldNames:
    """What the arrays or columns are called; None for any of the usual spellings."""

    logits: str | None = None
    probs: str | None = None
    targets: str | None = None
    images: str | None = None


class Field(NamedTuple):
    """An array, or columns to set side by side, and what they were taken for."""

    role: Role
    names: tuple[str, ...]

    def __str__(self) -> str:
        first, last = self.names[0], self.names[-1]
        return first if len(self.names) == 1 else f"{first} … {last}"


def find_values(source: Source, names: FieldNames) -> tuple[Field, str]:
    """The logits or the probabilities, and what else could have served ("" if nothing).

    What the user named goes before what was recognised, and logits before probabilities: they hold more.
    """
    both: tuple[Role, ...] = ("logits", "probs")
    if names.logits is not None and names.logits == names.probs:
        raise fail("read_predictions", f"`logits` and `probs` must differ, got {names.logits!r} for both.")
    named: tuple[Role, ...] = tuple(role for role in both if getattr(names, role) is not None)
    roles = named or both
    found = [field for role in roles if (field := find_field(source, role, names))]
    if not found:
        raise absent(source, roles, names)
    return found[0], f"{found[1]}" if len(found) > 1 else ""


def find_field(source: Source, role: Role, names: FieldNames) -> Field | None:
    """The array of this role, or None where there is none; two that could be it are an error."""
    name, there = getattr(names, role), source.own if role in ("logits", "probs") else source.names
    if name is None:
        held = [held for held in there if held.lower() in SPELLINGS[role]]
    else:
        held = [name] if name in there else []
    matches = [Field(role, (one,)) for one in held]
    if source.is_table and role in ("logits", "probs"):
        matches += [Field(role, group) for group in column_groups(source, _names_of(role, names))]
    if len(matches) > 1:
        several = " and ".join(f"{match}" for match in matches)
        fact = f"`{role}` must be named where there are several, got {several} in {source.path}."
        raise fail("read_predictions", fact)
    return matches[0] if matches else None


def absent(source: Source, roles: Sequence[Role], names: FieldNames) -> Exception:
    """The error for an array that is not there, with what is."""
    expected = [name for role in roles for name in _names_of(role, names)]
    listed = ", ".join(source.names[:_SHOWN]) + (", …" if len(source.names) > _SHOWN else "")
    fact = f"must be in {source.path} as {' or '.join(expected)}, got {listed or 'nothing'}"
    return fail("read_predictions", f"`{roles[0]}` {fact}; name it if it is called otherwise.")


def _names_of(role: Role, names: FieldNames) -> tuple[str, ...]:
    name = getattr(names, role)
    return SPELLINGS[role] if name is None else (name,)


def column_groups(source: Source, spellings: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Columns such as logit_0, logit_1, ... in the order of their numbers, for each spelling there is."""
    for spelling in spellings:
        pattern = re.compile(rf"{re.escape(spelling)}[ ._-]?(\d+)", re.IGNORECASE)
        found = {name: int(match[1]) for name in source.names if (match := pattern.fullmatch(name))}
        ordered = sorted(found, key=found.__getitem__)
        if [found[name] for name in ordered] != list(range(len(ordered))):
            numbers = ", ".join(f"{found[name]}" for name in ordered[:_SHOWN])
            fact = f"must have one column for each class, counted from 0, got {spelling} {numbers}"
            raise fail("read_predictions", f"`path` {fact} in {source.path}.")
        if ordered:
            yield tuple(ordered)
