"""What is measured: contenders that do the same task on the same tensors, and which can run here."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Contender", "Shape", "Task", "unavailable"]

Shape = tuple[int, ...]
OURS = ("torch", "beliefmatch")


@dataclass(frozen=True)
class Contender:
    """A function of the task's inputs, the package it stands for, and whether torch compiles it."""

    function: Callable[..., Tensor]
    package: str = "torch"
    compiled: bool = False

    @property
    def optional(self) -> bool:
        """Left out with a note where it cannot run; all others must run."""
        return self.compiled or self.package not in OURS

    def prepared(self) -> Callable[..., Tensor]:
        """The function to call, compiled for the exact shapes that it meets first."""
        return torch.compile(self.function, dynamic=False) if self.compiled else self.function


@dataclass(frozen=True)
class Task:
    """Contenders, the first of which the others are compared with, and the tensors they are given.

    `inputs` makes the tensors of a shape and type; the first of them are the logits.
    """

    title: str
    shapes: tuple[Shape, ...]
    inputs: Callable[[Shape, torch.dtype, torch.Generator], tuple[Tensor, ...]]
    contenders: Mapping[str, Contender]
    backward: bool = True

    @property
    def base(self) -> str:
        """Name of the contender that the others are compared with."""
        return next(iter(self.contenders))


def unavailable(packages: Iterable[str]) -> dict[str, str]:
    """Why a package cannot be used, for each that cannot."""
    problems = {}
    for package in packages:
        try:
            importlib.import_module(package.replace("-", "_"))
        except Exception as error:  # not only a missing module: a mismatched binary fails in its own way
            problems[package] = " ".join(f"{type(error).__name__}: {error}".split())
    return problems
