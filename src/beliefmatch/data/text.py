"""Labelled sentences from files or the Hugging Face hub, their split, and tokenised batches of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import fail, require_choice
from beliefmatch.data.config import LABEL_COLUMNS, TEXT_COLUMNS, TEXT_SUFFIXES, TextConfig
from beliefmatch.data.formats import TABLES, ParquetFile, TableFile, open_table, reading
from beliefmatch.data.predictions import ids_of_names
from beliefmatch.data.raw import class_names_in, hub_table, part_files
from beliefmatch.data.splits import (
    ROLES,
    RowSelection,
    ValidationFrom,
    assign_roles,
    content_digest,
    named_parts,
    require_every_class,
)

__all__ = [
    "LabelledText",
    "TextBatch",
    "TextDataset",
    "TextSource",
    "Tokenize",
    "load_ood_text",
    "load_text",
    "read_sentences",
]

Tokenize = Callable[[Sequence[str]], dict[str, Tensor]]
"""Sentences to the arguments of a network by name, each with one row for each sentence."""

_SPLITS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
_STDIN = "-"
_DIGESTED = 1024  # sentences tokenised together for the digest
_SHOWN = 40  # characters of a sentence in an error


class LabelledText(NamedTuple):
    """Sentences and, if they have any, the names of their classes."""

    texts: list[str]
    labels: list[str] | None
    class_names: tuple[str, ...] | None = None
    """By id, where the file declares them."""


@dataclass(frozen=True, eq=False)
class TextDataset:
    """Sentences by part, and which of them are for training, validation and test.

    Args:
        name: of the data.
        texts: of each part, in the order of its file: "train" and "test", perhaps "validation"; or "all".
        targets: class ids of the same parts.
        role_rows: rows of these parts for "train", "validation" and "test".
        class_names: by id.
        facts: what a record holds about the data, as JSON.
    """

    name: str
    texts: Mapping[str, list[str]]
    targets: Mapping[str, np.ndarray]
    role_rows: Mapping[str, RowSelection]
    class_names: tuple[str, ...]
    facts: Mapping[str, Any]


def load_text(
    config: TextConfig,
    *,
    validation_from: ValidationFrom = "train",
    class_order: Sequence[str] | None = None,
) -> TextDataset:
    """Read labelled sentences and split them; the rules are those of images.

    Args:
        config: which sentences, and how they are split.
        validation_from: "train", or "test" for networks that were trained on all of the train part; see
            `beliefmatch.data.loading.load`.
        class_order: names of a classifier's classes. Where the data have the same, whatever their case, ids
            follow this order; else the order that the file declares, the numbers, or the alphabet.

    Raises:
        ValueError: in one line, for data that are missing, cannot be read or cannot be split.
    """
    require_choice("data", "validation_from", validation_from, ("train", "test"))
    parts = named_parts(_read_parts(config))
    first = next(iter(parts.values()))
    names = _class_names(first, class_order)
    targets = {part: _class_ids(found, names, part) for part, found in parts.items()}
    roles = assign_roles(targets, config, validation_from=validation_from)
    part, rows = roles["train"]
    require_every_class(targets[part][rows], names)
    texts = {part: found.texts for part, found in parts.items()}
    whole = {role: len(rows) == len(targets[part]) for role, (part, rows) in roles.items()}
    pieces = [piece for part in parts for piece in (part, *texts[part], targets[part])]
    facts = {
        "name": config.name,
        "form": "text",
        "counts": {role: len(roles[role].rows) for role in ROLES},
        "divided_by_us": [role for role in ROLES[1:] if not whole[role]],
        "split_seed": config.split_seed,
        "validation_from": validation_from,
        "digest": content_digest([*pieces, *(roles[role].rows for role in ROLES)]),
        "classes": len(names),
    }
    return TextDataset(config.name, texts, targets, roles, names, facts)


def load_ood_text(text: str, *, text_column: str | None = None) -> tuple[str, list[str]]:
    """Sentences of no class, given as a path or as NAME=PATH; labels are ignored where there are any.

    Args:
        text: the path is of a .txt file, one sentence a line, of a table with a column of sentences, or
            "hf:OWNER/NAME" with its test part.
        text_column: name of that column, where it is none of `TEXT_COLUMNS`.

    Returns:
        The name of the set, and its sentences.
    """
    name, equals, place = text.partition("=")
    if equals and not (name and place):
        raise fail("data", f"`ood` must have a name and a path where it is NAME=PATH, got {text!r}.")
    place = place if equals else text
    name = name if equals else Path(text.removeprefix("hf:")).stem
    if place.startswith("hf:"):
        parts = _read_hub(TextConfig(name=place, text_column=text_column), labelled=False)
        return name, (parts.get("test") or next(iter(parts.values()))).texts
    return name, _read_file(Path(place).expanduser(), text_column)


def read_sentences(inputs: Sequence[str], *, text_column: str | None = None) -> list[str]:
    """Sentences to predict, in the order of the inputs.

    Args:
        inputs: each is a .txt, .csv, .tsv, .jsonl or .parquet file, "-" for the lines of standard input, or
            else a sentence itself.
        text_column: name of the column of sentences in tables, where it is none of `TEXT_COLUMNS`.
    """
    found: list[str] = []
    for given in inputs:
        path = Path(given).expanduser()
        is_path = path.suffix.lower() in (".txt", *TABLES) and " " not in given.strip()
        if given == _STDIN:
            found += [line.strip() for line in sys.stdin if line.strip()]
        elif is_path or _is_file(path):
            found += _read_file(path, text_column)
        elif given.strip():
            found.append(given)
        else:  # or the answers would no longer stand in the order of the inputs
            raise fail("predict", "`inputs` must be sentences, got an empty one.")
    if not found:
        raise fail("predict", "`inputs` must hold at least one sentence, got none.")
    broken = next((text for text in found if not _is_text(text)), None)
    if broken is not None:
        raise fail("predict", f"`inputs` must be text in UTF-8, got {broken!r}.")
    return found


def _is_text(text: str) -> bool:
    """Whether it has no bytes in it that a terminal could not decode."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a sentence may be longer than a path can be
        return False


# Files and the hub.


def _read_parts(config: TextConfig) -> dict[str, LabelledText]:
    if config.name.startswith("hf:"):
        return _read_hub(config)
    by_part = part_files(Path(config.name).expanduser(), TEXT_SUFFIXES)
    return {part: _read_labelled(some, config) for part, some in by_part.items()}


def _read_labelled(paths: Sequence[Path], config: TextConfig) -> LabelledText:
    """The rows of all files, one after another."""
    texts: list[str] = []
    labels: list[str] = []
    names = None
    for path in paths:
        file = _open(path)
        texts += _sentences(file, config.text_column)
        column = _column(file, "label_column", LABEL_COLUMNS, config.label_column)
        if isinstance(file, ParquetFile):
            names = class_names_in(file.metadata, column)
        labels += _labels(file.cells(column), names, f"{path}")
    return LabelledText(texts, labels, names)


def _read_file(path: Path, text_column: str | None) -> list[str]:
    """Sentences without labels: the lines of a .txt file, or a column of a table."""
    if path.suffix.lower() != ".txt":
        return _sentences(_open(path, ".txt"), text_column)
    if not path.is_file():
        raise fail("data", f"`path` must be a file, got nothing at {path}.")
    with reading(path, caller="data"):
        lines = path.read_text("utf-8-sig").splitlines()
    return _require_sentences([line.strip() for line in lines if line.strip()], f"{path}")


def _open(path: Path, *others: str) -> TableFile:
    if path.suffix.lower() not in TABLES:
        raise fail("data", f"`path` must end in {_listed((*TABLES, *others))}, got {path}.")
    if not path.is_file():
        raise fail("data", f"`path` must be a file, got nothing at {path}.")
    return open_table(path, caller="data")


def _listed(suffixes: Sequence[str]) -> str:
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"


def _column(file: TableFile, role: str, spellings: Sequence[str], given: str | None) -> str:
    field = file.find(role, spellings, name=given)
    if field is None:
        raise file.missing(role, spellings if given is None else (given,))
    return field.name


def _sentences(file: TableFile, given: str | None) -> list[str]:
    column = _column(file, "text_column", TEXT_COLUMNS, given)
    return _require_sentences(file.cells(column), f"{file.path}")


def _read_hub(config: TextConfig, *, labelled: bool = True) -> dict[str, LabelledText]:
    path, _, variant = config.name.removeprefix("hf:").partition(":")
    tables = hub_table(path, variant or None, None, name=config.name)
    parts = {}
    for part, spellings in _SPLITS.items():
        split = next((name for name in spellings if name in tables), None)
        if split is not None:
            parts[part] = _from_hub(tables[split], config, f"{config.name} ({split})", labelled=labelled)
    if not parts:
        got = f"{', '.join(tables)} in {config.name}"
        raise fail("data", f"`name` must have a split called train, got {got}.")
    return {"all": parts["train"]} if set(parts) == {"train"} else parts


def _from_hub(table: Any, config: TextConfig, origin: str, *, labelled: bool) -> LabelledText:
    def column(role: str, spellings: Sequence[str], given: str | None) -> str:
        wanted = spellings if given is None else (given,)
        found = [name for name in table.column_names if name in wanted or name.lower() in wanted]
        if len(found) == 1:
            return found[0]
        got = ", ".join(found or table.column_names)
        raise fail("data", f"`{role}` must be one of {', '.join(wanted)} in {origin}, got {got}; name it.")

    texts = table[column("text_column", TEXT_COLUMNS, config.text_column)][:]
    texts = _require_sentences(texts, origin)
    if not labelled:
        return LabelledText(texts, None)
    label = column("label_column", LABEL_COLUMNS, config.label_column)
    declared = getattr(table.features[label], "names", None)
    names = tuple(declared) if declared else None
    return LabelledText(texts, _labels(table[label][:], names, origin), names)


# Checks.


def _require_sentences(cells: Sequence[Any], origin: str) -> list[str]:
    for row, cell in enumerate(cells, 1):
        if not isinstance(cell, str) or not cell.strip():
            got = "nothing" if cell is None or cell == "" else repr(cell)[:_SHOWN]
            raise fail("data", f"{origin} must hold a sentence in each row, got {got} in row {row}.")
    if not cells:
        raise fail("data", f"{origin} must hold at least one sentence, got none.")
    return list(cells)


def _labels(cells: Sequence[Any], names: tuple[str, ...] | None, origin: str) -> list[str]:
    """The name of each row's class; numbers are ids of declared names, else names themselves."""
    found = []
    for row, cell in enumerate(cells, 1):
        label: Any = cell.strip() if isinstance(cell, str) else cell
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if type(label) is int and names is not None:
            label = names[label] if 0 <= label < len(names) else None
        if label in (None, "") or isinstance(label, float | list | dict):
            got = "nothing" if cell in (None, "") else repr(cell)[:_SHOWN]
            raise fail("data", f"{origin} must hold a class in each row, got {got} in row {row}.")
        found.append(f"{label}")
    return found


def _class_names(first: LabelledText, class_order: Sequence[str] | None) -> tuple[str, ...]:
    """In the order of a classifier that has the same classes, else of the file, else sorted."""
    own = set(first.labels or ())
    by_case = {name.casefold(): name for name in own}
    if class_order is not None and len(by_case) == len(own):
        ordered = [by_case.get(name.casefold()) for name in class_order]
        if len(ordered) == len(own) and set(ordered) == own:
            return tuple(name for name in ordered if name is not None)
    if first.class_names is not None:
        return first.class_names
    if all(name.lstrip("-").isdecimal() for name in own):
        return tuple(sorted(own, key=int))
    return tuple(sorted(own))


def _class_ids(found: LabelledText, names: tuple[str, ...], part: str) -> np.ndarray:
    labels = found.labels or []
    ids = ids_of_names(labels, names)
    unknown = np.flatnonzero(ids < 0)
    if len(unknown):
        got = f"{labels[unknown[0]]!r} in row {unknown[0] + 1} of the {part} part"
        remedy = "an OOD set is given by `--ood`"
        raise fail("data", f"labels must be among the {len(names)} training classes, got {got}; {remedy}.")
    return ids


# Batches.


class TextBatch(NamedTuple):
    """Tokenised sentences as the arguments of a network by name, and their class ids (N,), on one device."""

    inputs: dict[str, Tensor]
    targets: Tensor


class TextSource:
    """Sentences that are tokenised a batch at a time, each batch padded to its longest sentence.

    Args:
        texts: sentences.
        targets: class ids, one for each sentence; -1 for each if not given.
        tokenize: sentences to the inputs of a network.
    """

    shape = ()  # inputs have no common one

    def __init__(self, texts: Sequence[str], targets: Any = None, *, tokenize: Tokenize) -> None:
        self.texts, self._tokenize = list(texts), tokenize
        ids = np.full(len(texts), -1) if targets is None else targets
        self.targets = torch.as_tensor(ids, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, rows: Sequence[int] | np.ndarray) -> TextSource:
        """The sentences of these rows, in this order."""
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        texts = [self.texts[row] for row in chosen.tolist()]
        return TextSource(texts, self.targets[chosen], tokenize=self._tokenize)

    def longest_first(self) -> np.ndarray:
        """Rows ordered by the length of their sentences, so that batches need little padding.

        Sentences of one length keep their order. The longest come first, since they need the most memory.
        """
        return np.argsort([-len(text) for text in self.texts], kind="stable")

    def digest(self) -> str:
        """A hash of the tokenised sentences, which are all that a network sees, and of the targets."""
        batches = self.batches(torch.arange(len(self)).split(_DIGESTED))
        inputs = (piece for batch in batches for piece in sorted(batch.inputs.items()))
        tokens = (part for name, tensor in inputs for part in (name, tensor.numpy()))
        return content_digest(chain(tokens, [self.targets.numpy()]))

    def batches(
        self, indices: Sequence[Tensor], *, device: torch.device | str = "cpu"
    ) -> Iterator[TextBatch]:
        """One batch for each tensor of indices, in that order."""
        for chosen in indices:
            inputs = self._tokenize([self.texts[row] for row in chosen.tolist()])
            moved = {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}
            yield TextBatch(moved, self.targets[chosen].to(device, non_blocking=True))
