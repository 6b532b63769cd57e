"""Checkpoints that cannot execute code, cannot be half there, and say when they are broken.

A checkpoint is two files: tensors in `step-000012.safetensors`, and in `step-000012.json` the rest with the
tensors' checksum. The second is written last, so that a checkpoint without it never was one. Both are written
beside their place and moved into it. The one before is kept: if the last turns out broken, it serves.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beliefmatch.extras import needs
from beliefmatch.files import write_whole

__all__ = ["Checkpoint", "load_latest", "save"]

FORMAT = "beliefmatch.checkpoint/1"
KEPT = 2
_NAME = re.compile(r"step-(\d+)\.json")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state of a training, after so many steps."""

    step: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    """What is not a tensor, as JSON can hold it."""


def save(directory: Path, checkpoint: Checkpoint, *, kept: int = KEPT) -> Path:
    """Write a checkpoint and remove all but the last `kept`. OSError where the disk does not take it."""
    with needs("safetensors", extra="files", caller="checkpoint"):
        from safetensors.torch import save as to_bytes

    directory.mkdir(parents=True, exist_ok=True)
    content = to_bytes({name: _own(tensor) for name, tensor in checkpoint.tensors.items()})
    facts = {
        "format": FORMAT,
        "step": checkpoint.step,
        "sha256": hashlib.sha256(content).hexdigest(),
        "facts": dict(checkpoint.facts),
    }
    tensors, said = _paths(directory, checkpoint.step)
    write_whole(tensors, content)
    write_whole(said, (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode())
    for step in _steps(directory)[:-kept]:
        for path in reversed(_paths(directory, step)):  # the half that makes it one first
            path.unlink(missing_ok=True)
    return said


def load_latest(directory: Path) -> Checkpoint | None:
    """The last checkpoint that is whole; a warning names those that are not. None if there is none."""
    for step in reversed(_steps(directory)):
        try:
            return _load(directory, step)
        except (OSError, ValueError) as error:
            warnings.warn(
                f"checkpoint: {_paths(directory, step)[1]} is not used ({error}); trying the one before.",
                stacklevel=2,
            )
    return None


def _load(directory: Path, step: int) -> Checkpoint:
    with needs("safetensors", extra="files", caller="checkpoint"):
        from safetensors.torch import load

    tensors, said = _paths(directory, step)
    facts = json.loads(said.read_text("utf-8"))
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"expected {FORMAT}")
    content = tensors.read_bytes()
    if hashlib.sha256(content).hexdigest() != facts.get("sha256"):
        raise ValueError(f"the checksum of {tensors.name} is another")
    return Checkpoint(facts["step"], load(content), facts["facts"])


def _own(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, its memory shared with nobody."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _paths(directory: Path, step: int) -> tuple[Path, Path]:
    name = f"step-{step:09d}"
    return directory / f"{name}.safetensors", directory / f"{name}.json"


def _steps(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in found if match)
