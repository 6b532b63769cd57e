"""A network and named sets of examples in, what its last layer sees of them out; and these of sentences."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from beliefmatch._utils import OnProgress, reason_of
from beliefmatch._validate import fail, naming_arguments
from beliefmatch.adaptation.adapt import usable_device
from beliefmatch.adaptation.batchnorm import with_batchnorm
from beliefmatch.adaptation.cache import FeatureCache, Layout, format_bytes
from beliefmatch.adaptation.diagnostics import sentence
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.features import ComputedRows, Extraction, ExtractProgress, extract
from beliefmatch.adaptation.heads import Backbone, Head, find_head
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.streams import OOD
from beliefmatch.adaptation.surgery import require_ensemble
from beliefmatch.data.sources import Dataset, Source
from beliefmatch.data.splits import ROLES
from beliefmatch.data.text import TextDataset, TextSource, load_ood_text, load_text
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, NetworkConfig, TextAdaptConfig
from beliefmatch.experiments.executors import Resources, Task, Workers, completed_tasks
from beliefmatch.models.text import TextModel, text_model

__all__ = [
    "BACKGROUND",
    "ExampleSet",
    "Extractor",
    "NetworkInputs",
    "load_ood_sets",
    "needed_rows",
    "text_inputs",
]

BACKGROUND = "background"
"""Name of the set of examples without a class that take part in the fit."""

_OOD_ARGUMENTS = ("text", "name", "path", "directory", "images", "ood")  # of the functions that load sets
_CACHE_ARGUMENTS = {"directory": "cache_dir", "size": "cache_size"}
_SHARD = 8  # batches of a task
_USES = dict(zip(ROLES, ("fit on", "choose on", "report on"), strict=True))


class ExampleSet(NamedTuple):
    """Examples whose features are computed in one pass.

    Args:
        source: The examples.
        digest: Computes the digest that identifies them in the cache.
        ranks: Where each example of the set is in `source`, if that has another order.
    """

    source: Source | TextSource
    digest: Callable[[], str]
    ranks: np.ndarray | None = None


class Extractor:
    """A network with its head found, and where its features are kept.

    Args:
        config: How features are computed.
        network: The network with its trained weights.
        batch: A few inputs of the network.
        fault: Error where the network fails on the batch, with a field {reason}.
        heads: Number of bootstrap heads that the network is to have.
        workers: Where features are computed, if that is on other machines.
    """

    def __init__(
        self,
        config: NetworkConfig,
        network: nn.Module,
        batch: Any,
        fault: str,
        *,
        heads: int = 0,
        workers: Workers | None = None,
    ) -> None:
        self.config, self.network = config, network
        self._workers = workers if workers is not None and workers.is_remote else None
        if config.compile and self._workers is not None:
            raise fail("adapt", "`compile` must not be given for features that a cluster computes.")
        with naming_arguments("adapt", **_CACHE_ARGUMENTS):
            self.cache = FeatureCache(config.cache_dir, size=config.cache_size)
        try:
            with naming_arguments("adapt", "model", name="head"):
                self.head = find_head(network, batch, name=config.head)
        except (RuntimeError, AssertionError, IndexError) as error:  # of other people's code
            reason = reason_of(error, typed=True, limit=200)
            raise fail("adapt", fault.format(reason=reason)) from error
        if heads:
            require_ensemble(network, self.head, heads)
        self._backbone = Backbone(network, self.head)  # one for all sets: it is compiled once

    def __call__(
        self,
        source: Source | TextSource,
        key_parts: Mapping[str, Any],
        on_progress: Callable[[ExtractProgress], None] = lambda progress: None,
        argument: str = "data",
    ) -> Features:
        """Features of the examples of a source, in its order; from the cache where they are there."""
        with naming_arguments("adapt", **_CACHE_ARGUMENTS):
            return extract(
                self.network,
                self._backbone,
                source,
                key_parts={"head": self.head.name, **key_parts},
                cache=self.cache,
                device=self.config.device,
                batch_size=self.config.batch_size,
                precision=self.config.precision,
                compile=self.config.compile,
                distribute=None if self._workers is None else self._distribute,
                on_progress=on_progress,
                argument=argument,
            )

    def _distribute(
        self, extraction: Extraction, batches: Sequence[Tensor]
    ) -> Generator[ComputedRows, None, None]:
        """A task for every few batches; the network and the examples are sent once."""
        assert self._workers is not None
        shards = [batches[start : start + _SHARD] for start in range(0, len(batches), _SHARD)]
        on_gpu = extraction.network.device.type == "cuda"
        cores = 1 if on_gpu else extraction.threads
        resources = Resources(cores=cores, gpus=float(on_gpu), are_cores_optional=True)
        shared = self._workers.share(extraction)
        tasks = [
            Task(f"features {number} of {len(shards)}", compute_shard, (shared, shard), resources)
            for number, shard in enumerate(shards, 1)
        ]
        with closing(completed_tasks(tasks, self._workers)) as completed:
            for _, rows in completed:
                yield from rows


def compute_shard(
    extraction: Extraction, batches: Sequence[Tensor], *, on_progress: OnProgress
) -> list[ComputedRows]:
    """Features of some batches, in whatever process an executor has chosen."""
    computed = []
    for rows in extraction.compute(batches):
        computed.append(rows)
        on_progress(len(computed) / len(batches), f"{len(computed)} of {len(batches)} batches")
    return computed


@dataclass(frozen=True, eq=False)
class NetworkInputs:
    """A network and named sets of examples.

    Args:
        extractor: Computes the features.
        parts: The examples of the classes, and the role of each.
        sets: The examples whose features are needed: every part that is used, then the examples of no class.
        key_parts: What features depend on besides the network and the examples.
        facts: Facts about the data, for the record.
        description: How examples become inputs.
        found_preprocessing: Which preprocessing was found, if it had to be.
        text: The network with its tokenizer, where the examples are sentences.
    """

    extractor: Extractor
    parts: Dataset | TextDataset
    sets: Mapping[str, ExampleSet]
    key_parts: Mapping[str, Any]
    facts: Mapping[str, Any]
    description: str
    found_preprocessing: str | None = None
    text: TextModel | None = None

    @property
    def network(self) -> nn.Module:
        """A classifier, or an encoder without a head."""
        return self.extractor.network

    @property
    def head(self) -> Head:
        """The last layer of the network, or the place for one."""
        return self.extractor.head

    @property
    def classes(self) -> int:
        """K."""
        return len(self.parts.class_names)

    @property
    def uses(self) -> dict[str, int]:
        """How many examples serve for what."""
        return {use: len(self.parts.role_rows[role].rows) for role, use in _USES.items()}

    def features(self, on_progress: OnProgress) -> FeatureSets:
        """Features of every set."""
        total, done, computed = sum(len(one.source) for one in self.sets.values()), 0, dict[str, Features]()
        for name, one in self.sets.items():

            def on_rows(progress: ExtractProgress, name: str = name, done: int = done) -> None:
                many = f"{progress.rows:,} of {progress.total:,}" if progress.total else f"{progress.rows:,}"
                on_progress((done + progress.rows) / total, f"features of {name}: {many}")

            argument = BACKGROUND if name == BACKGROUND else "ood" if name in self._ood else "data"
            found = self.extractor(one.source, {**self.key_parts, "data": one.digest()}, on_rows, argument)
            computed[name] = found if one.ranks is None else found.subset(one.ranks)
            done += len(one.source)
        train, validation, test = (self._rows(role, computed) for role in ROLES)
        ood = {name: computed[name] for name in self._ood}
        return FeatureSets(train, validation, test, ood, computed.get(BACKGROUND))

    def _rows(self, role: str, computed: Mapping[str, Features]) -> Features:
        part, rows = self.parts.role_rows[role]
        needed = needed_rows(self.parts)[part]
        if len(rows) == len(needed):
            return computed[part]
        return computed[part].subset(np.searchsorted(needed, rows))

    @property
    def _ood(self) -> list[str]:
        other = {*needed_rows(self.parts), BACKGROUND}
        return [name for name in self.sets if name not in other]

    def notes(self) -> tuple[str, ...]:
        """The preprocessing that was found, as a sentence."""
        return () if self.found_preprocessing is None else (sentence(self.found_preprocessing),)

    def train_batchnorm(self, network: nn.Module, made: Adaptation, on_progress: OnProgress) -> Adaptation:
        """Train the BatchNorm layers of the adapted network in place; sentences have none."""
        sets: dict[str, Any] = {role: getattr(self.parts, role) for role in ROLES}
        sets |= {OOD + name: self.sets[name].source for name in self._ood}
        device = self.extractor.config.device
        return with_batchnorm(network, made, sets, None, device=device, on_progress=on_progress)

    def announcement(self) -> Iterator[str]:
        """What is to be done, and what it takes on the disk."""
        head, examples = self.head, "images" if self.text is None else "sentences"
        yield f"{head.name}: {head.in_features} features, {head.out_features} classes in the network"
        yield f"{examples}: {', '.join(f'{name} {len(one.source):,}' for name, one in self.sets.items())}"
        yield f"use: {', '.join(f'{many:,} to {use}' for use, many in self.uses.items())}"
        if self.found_preprocessing is not None:
            yield self.found_preprocessing
        yield f"inputs: {self.description}"
        layout = Layout(head.in_features)
        size = sum(layout.planned_bytes(len(one.source)) for one in self.sets.values())
        yield f"features: {format_bytes(size)} in {self.extractor.cache.directory}"


def needed_rows(parts: Dataset | TextDataset) -> dict[str, np.ndarray]:
    """The rows that serve for anything, of every part that has such."""
    selected = [parts.role_rows[role] for role in ROLES]
    return {
        part: np.unique(np.concatenate([rows for other, rows in selected if other == part]))
        for part, _ in selected
    }


def load_ood_sets(
    config: AdaptRunConfig, load: Callable[[str], tuple[str, Any]], taken: Iterable[str]
) -> dict[str, Any]:
    """The sets of no class by their names, which none of the parts `taken` has; the background at the end."""
    found, parts = dict[str, Any](), [*taken]
    given = [("ood", text) for text in config.ood]
    given += [] if config.background is None else [(BACKGROUND, config.background)]
    for option, text in given:
        with naming_arguments("adapt", option, **dict.fromkeys(_OOD_ARGUMENTS, option)):
            name, examples = load(text)
        name = BACKGROUND if option == BACKGROUND else name
        if name in found or name in parts:
            expected = f"name each set once, and none like a part of the data ({', '.join(parts)})"
            raise fail("adapt", f"`ood` must {expected}, got a second {name!r}.")
        found[name] = examples
    return found


def text_inputs(
    given: TextAdaptConfig, config: AdaptRunConfig, workers: Workers | None = None
) -> NetworkInputs:
    """Build a network for sentences and read them; mistakes of users raise their errors here."""
    usable_device(given.device)
    for name, value in (("compile", given.compile), ("train_batchnorm", config.adapt_config.batchnorm)):
        if value:
            raise fail("adapt", f"`{name}` must not be given for text.")
    with naming_arguments("adapt", "model", name="model", path="weights"):
        model = text_model(given.model, options=given.options, weights=given.weights)
    with naming_arguments("adapt", "data", name="data", path="data"):
        parts = load_text(given.data, validation_from=given.validation_from, class_order=model.class_names)
    column = given.data.text_column
    ood = load_ood_sets(config, lambda text: load_ood_text(text, text_column=column), parts.texts)
    part, rows = parts.role_rows["train"]
    some = model.tokenize([parts.texts[part][row] for row in rows[:4]])
    fault = "`model` must take tokenised sentences, but it failed ({reason})."
    heads = config.adapt_config.heads
    extractor = Extractor(given, model.network, some, fault, heads=heads, workers=workers)
    sources = {
        part: TextSource(parts.texts[part], parts.targets[part], tokenize=model.tokenize).subset(rows)
        for part, rows in needed_rows(parts).items()
    }
    sources |= {name: TextSource(texts, tokenize=model.tokenize) for name, texts in ood.items()}
    return NetworkInputs(
        extractor,
        parts,
        sets={name: _longest_first(source) for name, source in sources.items()},
        key_parts={},
        facts={**parts.facts, **model.facts()},
        description=f"sentences of at most {model.max_length} tokens",
        text=model,
    )


def _longest_first(source: TextSource) -> ExampleSet:
    """The longest sentences first, so that batches need little padding."""
    order: Sequence[int] | np.ndarray = source.longest_first()
    sorted_source = source.subset(order)
    return ExampleSet(sorted_source, sorted_source.digest, np.argsort(order))
