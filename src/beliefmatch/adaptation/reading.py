"""Rows of features that belong to a class, read in order, and what they must be like."""

from collections.abc import Iterator

import torch
from torch import Tensor

from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.fitted import Init
from beliefmatch.adaptation.types import Features

__all__ = ["BLOCK_NUMBERS", "block_size", "labelled", "ordered", "require_init", "require_labels"]

BLOCK_NUMBERS = 4_000_000
"""Numbers of features that are read at once where order does not matter: 16 MB."""


def block_size(features: Features) -> int:
    """Rows to read at once."""
    return max(1, BLOCK_NUMBERS // max(1, features.rows.shape[1]))


def labelled(features: Features) -> Tensor:
    """Places of the rows that belong to a class: ids or counts that are not negative."""
    targets = features.targets
    known = targets >= 0 if targets.dim() == 1 else (targets >= 0).all(1)
    return known.nonzero()[:, 0]


def require_init(function: str, init: Init) -> Init:
    """Weight and bias of one head, in float32."""
    weight, bias = init
    if weight.dim() != 2 or bias.shape != weight.shape[:1]:
        got = f"{describe(weight)} and {describe(bias)}"
        raise fail(function, f"`init` must be a weight (K, F) and a bias (K,), got {got}.")
    if not bool(weight.isfinite().all() and bias.isfinite().all()):
        raise fail(function, "`init` must be finite, got weights that are not.")
    return weight.detach().cpu().float(), bias.detach().cpu().float()


def require_labels(function: str, name: str, features: Features, classes: int, width: int) -> None:
    """Features must have the head's width, finite numbers, and targets of its classes."""
    rows, targets = features.rows, features.targets
    if rows.ndim != 2 or rows.shape[1] != width:
        raise fail(function, f"`{name}` must have rows of {width} numbers, got shape {tuple(rows.shape)}.")
    if len(targets) != len(rows):
        raise fail(function, f"`{name}` must have {len(rows)} targets, one a row, got {len(targets)}.")
    if targets.dim() == 2 and targets.shape[1] != classes:
        raise fail(function, f"`{name}` must have counts of {classes} classes, got {targets.shape[1]}.")
    if targets.dim() == 1 and len(targets) and int(targets.max()) >= classes:
        wrong = sorted({int(one) for one in targets[targets >= classes]})
        ids = f"class ids from 0 to {classes - 1}, or −1 for none"
        raise fail(function, f"`{name}` must have {ids}, got {', '.join(map(str, wrong[:10]))}.")
    if not len(labelled(features)):
        raise fail(function, f"`{name}` must have rows that belong to a class, got none of {len(rows)}.")
    at = 0
    for block, _ in features.blocks(block_size(features)):
        if not bool(block.sum().isfinite()) and not bool(block.isfinite().all()):
            place = at + int((~block.isfinite().all(1)).nonzero()[0, 0])
            raise fail(
                function, f"`{name}` must be finite, got {block[place - at].sum().item()} in row {place}."
            )
        at += len(block)


def ordered(features: Features, places: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows at these places in float32 and their targets, in order, some at a time."""
    wanted = torch.zeros(len(features), dtype=torch.bool)
    wanted[places] = True
    at = 0
    for rows, targets in features.blocks(block_size(features)):
        chosen = wanted[at : at + len(rows)]
        at += len(rows)
        if bool(chosen.all()):
            yield rows, targets
        elif bool(chosen.any()):
            yield rows[chosen], targets[chosen]
