"""A network for sentences and labelled sentences in, what its last layer sees of them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from beliefmatch._utils import reason_of
from beliefmatch._validate import fail
from beliefmatch.adaptation.features import ExtractProgress, extract
from beliefmatch.adaptation.heads import Head, find_head
from beliefmatch.adaptation.types import Features
from beliefmatch.data.text import TextDataset, TextSource, load_ood_text, load_text
from beliefmatch.experiments.adapt_inputs import NetworkInputs, named_sets, require_device
from beliefmatch.experiments.adapt_run_config import TextAdaptConfig
from beliefmatch.models.text import TextModel, text_model

__all__ = ["AdaptText", "WantedText"]


@dataclass(frozen=True, eq=False)
class WantedText:
    """A set whose features are wanted.

    Args:
        name: of the set.
        source: its sentences, the longest first, so that batches need little padding.
        ranks: where each sentence of the set is among them.
    """

    name: str
    source: TextSource
    ranks: np.ndarray

    @classmethod
    def of(cls, name: str, source: TextSource) -> WantedText:
        """The set in the order in which its features are computed."""
        order = source.longest_first()
        return cls(name, source.subset(order), np.argsort(order))


@dataclass(frozen=True, eq=False)
class AdaptText(NetworkInputs):
    """A network with its tokenizer, labelled sentences, and where features are kept.

    Args:
        config: The request.
        model: the network and its tokenizer.
        parts: the sentences of its classes.
        ood: the sentences of none, by the name of their set.
    """

    config: TextAdaptConfig
    model: TextModel
    parts: TextDataset
    ood: Mapping[str, TextSource]
    examples = "sentences"

    @classmethod
    def of(
        cls,
        config: TextAdaptConfig,
        ood: tuple[str, ...],
        *,
        background: str | None = None,
        batchnorm: bool = False,
    ) -> AdaptText:
        """Build the network and read the sentences; mistakes of users raise their errors here."""
        require_device(config.device)
        for name, given in (("compile", config.compile), ("train_batchnorm", batchnorm)):
            if given:
                raise fail("adapt", f"`{name}` must not be given for text.")
        model = text_model(config.model, options=config.options, weights=config.weights)
        parts = load_text(config.data, validation_from=config.validation_from, class_order=model.class_names)
        made = cls(config, model, parts, _ood(named_sets(ood, background), parts, config, model))
        _ = made.head, made.cache  # raise their errors now
        return made

    @property
    def network(self) -> nn.Module:
        """A classifier, or an encoder without head."""
        return self.model.network

    def find_head(self) -> Head:
        """The last layer of the network, or the place for it."""
        part, rows = self.parts.role_rows["train"]
        some = self.model.tokenize([self.parts.texts[part][row] for row in rows[:4]])
        try:
            return find_head(self.network, some, name=self.config.head)
        except (RuntimeError, AssertionError, IndexError) as error:  # of other people's code
            reason = reason_of(error, typed=True, limit=200)
            fact = f"`model` must take tokenised sentences, but it failed ({reason})"
            raise fail("adapt", f"{fact}.") from error

    def find_wanted(self) -> list[WantedText]:
        """Every part once, and the OOD sets; of limited training sentences no more than are needed."""
        found = [
            WantedText.of(part, self._source(part).subset(self.needed(part))) for part in self.needed_parts
        ]
        return [*found, *(WantedText.of(name, source) for name, source in self.ood.items())]

    def compute(self, one: WantedText, tell: Callable[[ExtractProgress], None]) -> Features:
        """The features of one set, in the order of its file."""
        found = extract(
            self.network,
            self.backbone,
            one.source,
            key_parts={"head": self.head.name, "data": one.source.digest()},
            cache=self.cache,
            device=self.config.device,
            batch_size=self.config.batch_size,
            precision=self.config.precision,
            on_progress=tell,
            argument="ood" if one.name in self.ood else "data",
        )
        return found.subset(one.ranks)

    def inputs(self) -> str:
        """How sentences become inputs, in words."""
        return f"sentences of at most {self.model.max_length} tokens"

    def facts(self) -> dict[str, Any]:
        """Facts about data and tokenizer, for the record."""
        return {**self.parts.facts, **self.model.facts()}

    def _source(self, part: str) -> TextSource:
        return TextSource(self.parts.texts[part], self.parts.targets[part], tokenize=self.model.tokenize)


def _ood(
    texts: Sequence[tuple[str | None, str]], parts: TextDataset, config: TextAdaptConfig, model: TextModel
) -> dict[str, TextSource]:
    found = dict[str, TextSource]()
    for given, text in texts:
        own, sentences = load_ood_text(text, text_column=config.data.text_column)
        name = given or own
        if name in found or name in parts.texts:
            raise fail("adapt", f"`ood` must name each set once and none {name!r}, got {text!r}.")
        found[name] = TextSource(sentences, tokenize=model.tokenize)
    return found
