"""What images and sentences have in common when a network is adapted to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from beliefmatch._utils import OnProgress, reason_of
from beliefmatch._validate import fail
from beliefmatch.adaptation.cache import FeatureCache, Layout
from beliefmatch.adaptation.diagnostics import sentence
from beliefmatch.adaptation.features import ExtractProgress
from beliefmatch.adaptation.heads import Backbone, Head
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.types import Features
from beliefmatch.data.splits import ROLES

__all__ = ["BACKGROUND", "NetworkInputs", "named_sets", "progress_teller", "require_device"]

BACKGROUND = "background"
"""Name of the set of examples without a class that take part in the fit."""


class NetworkInputs(ABC):
    """A network and named sets of examples, for `adapt_network`.

    Subclasses have the attributes `config`, `network`, `parts` (the examples of the classes) and `ood` (the
    examples of none, by the name of their set), and compute the features of one set.
    """

    examples: ClassVar[str]
    config: Any
    parts: Any
    ood: Mapping[str, Any]
    network: Any

    @abstractmethod
    def find_head(self) -> Head:
        """The last layer of the network, or the place for one."""

    @abstractmethod
    def find_wanted(self) -> Sequence[Any]:
        """The sets whose features are needed, each with `name` and `source`."""

    @abstractmethod
    def compute(self, one: Any, tell: Callable[[ExtractProgress], None]) -> Features:
        """The features of one of the sets, in the order of its examples."""

    @abstractmethod
    def inputs(self) -> str:
        """How examples become inputs, in words."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Facts about the data, for the record."""

    def preprocessing(self) -> str | None:
        """Which preprocessing was found, if it had to be."""
        return None

    @property
    def head(self) -> Head:
        """The last layer of the network, or the place for one."""
        return self._head

    @cached_property
    def _head(self) -> Head:
        return self.find_head()

    @cached_property
    def wanted(self) -> Sequence[Any]:
        """The sets whose features are needed."""
        return self.find_wanted()

    @property
    def classes(self) -> int:
        """K."""
        return len(self.parts.class_names)

    @cached_property
    def cache(self) -> FeatureCache:
        """Where features are kept."""
        return FeatureCache(self.config.cache_dir, size=self.config.cache_size)

    @cached_property
    def backbone(self) -> Backbone:
        """One object for all sets, so that the network is compiled once."""
        return Backbone(self.network, self.head)

    @property
    def bytes(self) -> int:
        """Size of the features on disk."""
        return sum(Layout(self.head.in_features).planned_bytes(len(one.source)) for one in self.wanted)

    def features(self, on_progress: OnProgress) -> FeatureSets:
        """Features of every set; from the cache where they are there."""
        total, done, computed = sum(len(one.source) for one in self.wanted), 0, dict[str, Features]()
        for one in self.wanted:
            computed[one.name] = self.compute(one, progress_teller(on_progress, one.name, done, total))
            done += len(one.source)
        roles: dict[str, Any] = {role: self._rows(role, computed) for role in ROLES}
        ood = {name: computed[name] for name in self.ood if name != BACKGROUND}
        return FeatureSets(**roles, ood=ood, background=computed.get(BACKGROUND))

    def uses(self) -> dict[str, int]:
        """How many examples serve for what."""
        words = dict(zip(ROLES, ("fit on", "choose on", "report on"), strict=True))
        return {word: len(self.parts.role_rows[role].rows) for role, word in words.items()}

    def notes(self) -> tuple[str, ...]:
        """The preprocessing that was found, as a sentence."""
        note = self.preprocessing()
        return () if note is None else (sentence(note),)

    def train_batchnorm(self, network: nn.Module, made: Adaptation, on_progress: OnProgress) -> Adaptation:
        """Only images have BatchNorm layers to train."""
        raise fail("adapt", f"`train_batchnorm` must not be given for {self.examples}.")

    def needed(self, part: str) -> np.ndarray:
        """The rows of a part that serve for anything."""
        rows = [self.parts.role_rows[role].rows for role in ROLES if self.parts.role_rows[role].part == part]
        return np.unique(np.concatenate(rows))

    @property
    def needed_parts(self) -> list[str]:
        """The parts that serve for anything, each once."""
        return list(dict.fromkeys(self.parts.role_rows[role].part for role in ROLES))

    def _rows(self, role: str, computed: Mapping[str, Features]) -> Features:
        part, rows = self.parts.role_rows[role]
        needed = self.needed(part)
        if len(rows) == len(needed):
            return computed[part]
        return computed[part].subset(np.searchsorted(needed, rows))


def named_sets(ood: Sequence[str], background: str | None) -> list[tuple[str | None, str]]:
    """Sets of no class as they are given, each with the name that it gets, None for its own."""
    found: list[tuple[str | None, str]] = [(None, text) for text in ood]
    return found if background is None else [*found, (BACKGROUND, background)]


def require_device(name: str) -> None:
    """Require a device that torch can use here."""
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = reason_of(error, limit=120)
        raise fail("adapt", f"`device` must be one that torch has here, got {name!r} ({reason}).") from error


def progress_teller(
    on_progress: OnProgress, name: str, before: int, total: int
) -> Callable[[ExtractProgress], None]:
    """The progress of extracting one of several sets as a share of all of them."""

    def tell(progress: ExtractProgress) -> None:
        many = f"{progress.rows:,} of {progress.total:,}" if progress.total else f"{progress.rows:,}"
        on_progress((before + progress.rows) / total, f"features of {name}: {many}")

    return tell
