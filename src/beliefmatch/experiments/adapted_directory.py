"""Where an adapted network is kept, and how it is had again.

Beside the report's files: model.safetensors with all its weights, model.json with what it is built from,
predictions/ with what it says of each set, and classes.txt. Networks are built by name: of one's own, the
code has to be there. A network for sentences has its configuration and tokenizer in text/, and needs nothing
else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor, nn

from beliefmatch._config import Record, plain
from beliefmatch._environment import needs
from beliefmatch._utils import reason_of
from beliefmatch._validate import fail
from beliefmatch.adaptation.ensemble import EnsembleHead
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.heads import find_head
from beliefmatch.adaptation.result import Adaptation
from beliefmatch.adaptation.scoring import scorable, stored_predictions
from beliefmatch.adaptation.surgery import BeliefMixin, add_belief, with_ensemble, with_head
from beliefmatch.data.predictions import Predictions, npz_bytes
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.text import Tokenize
from beliefmatch.experiments.adapt_images import run_of
from beliefmatch.experiments.adapt_record import ADAPT_SCHEMA, AdaptRecord
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, ImageAdaptConfig, TextAdaptConfig
from beliefmatch.experiments.build import bare_network, method_of
from beliefmatch.experiments.config import config_from, to_mapping
from beliefmatch.experiments.run_dir import ADAPTED_SCHEMA, RunDirectory, require_directory_of
from beliefmatch.models import MODELS, pretrained_model
from beliefmatch.models.text import stored_text_model

if TYPE_CHECKING:
    from beliefmatch.experiments.adapt_job import AdaptResult

__all__ = [
    "AdaptedModel",
    "AdaptedNetwork",
    "adapted_network",
    "directory_files",
    "head_file",
    "require_directory",
]

_WEIGHTS = "model.safetensors"
_RECORDS = ADAPT_SCHEMA.rpartition("/")[0]  # of any version
_TEXT = "text"
_SPEED = ("cache_dir", "cache_size", "device", "compile", "workers")


class AdaptedModel(Record, frozen=True, kw_only=True):
    """What an adapted network is built from, except its weights: model.json.

    Args:
        head: Name of its last layer.
        class_names: Names of the classes by id.
        has_belief: Whether its logits are log-concentrations; not where a softmax head was delivered.
        model: Name of the network, as `pretrained_model` takes it, unless it is of a run.
        options: Options that it is built with by that name.
        run: Configuration of the run that it is of.
        classes: Number of classes of that run.
        shape: Channels, height and width of its images.
        preprocessing: Preprocessing of its images.
        text: Facts about its tokenizer, where it takes sentences.
    """

    head: str
    class_names: list[str]
    has_belief: bool
    model: str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    run: dict[str, Any] | None = None
    classes: int | None = None
    shape: tuple[int, int, int] | None = None
    preprocessing: Preprocessing | None = None
    text: dict[str, Any] | None = None
    schema: str = ADAPTED_SCHEMA

    def check(self) -> None:
        """The network has a name or a run, and its inputs are images or sentences."""
        if self.model is None and (self.run is None or self.classes is None):
            raise fail("AdaptedModel", "`model` or `run` must be given.")
        if self.text is None and (self.shape is None or self.preprocessing is None):
            raise fail("AdaptedModel", "`text`, or `shape` and `preprocessing`, must be given.")


@dataclass(frozen=True, eq=False)
class AdaptedNetwork:
    """A network with its new head, and the form of its inputs: that of images, or a tokenizer."""

    network: BeliefMixin
    class_names: tuple[str, ...]
    has_belief: bool
    """Whether its logits are log-concentrations; not where a softmax head was delivered."""
    shape: tuple[int, int, int] | None = None
    preprocessing: Preprocessing | None = None
    tokenize: Tokenize | None = None


def require_directory(directory: Path, config: AdaptRunConfig) -> None:
    """Refuse a directory of other results, and that of an adaptation with another configuration."""
    home = RunDirectory(directory)
    require_directory_of("adaptation", directory, caller="adapt")
    data = getattr(getattr(config.given, "data", None), "name", None)
    if data and Path(data).expanduser().is_dir():
        images = Path(data).expanduser().resolve()
        if images in (directory.resolve(), *directory.resolve().parents):
            fact = f"`out` must not be within the data, {data}, whose files it would join"
            raise fail("adapt", f"{fact}, got {directory}; choose another.")
    record: Any = None
    with suppress(OSError, ValueError):
        record = json.loads(home.record_file.read_bytes())
    if not isinstance(record, dict) or not f"{record.get('schema')}".startswith(_RECORDS):
        return
    if _identity(record.get("config")) != _identity(plain(config)):
        expected = f"new, or hold an adaptation of the same configuration; {directory} has another"
        remedy = "Choose another directory, or remove this one"
        raise fail("adapt", f"`out` must be {expected}, see its record.json. {remedy}.")


def _identity(config: Any) -> Any:
    """A configuration without where and how fast features are computed."""
    if not isinstance(config, dict):
        return config
    return {name: _identity(value) for name, value in config.items() if name not in _SPEED}


def directory_files(
    outcome: AdaptResult, config: ImageAdaptConfig | TextAdaptConfig | None
) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files that hold predictions of every set, and the network if there is one."""
    here, made = RunDirectory(Path()), outcome.adaptation
    taken = made.batchnorm if made.batchnorm is not None and made.batchnorm.is_taken else None
    head, sets = (made.chosen, made.sets) if taken is None else (taken.head, taken)
    places = {here.predictions("validation"): sets.validation, here.predictions("test"): sets.test}
    ood = here.ood_predictions(list(sets.ood))
    places |= {place: sets.ood[name] for name, place in ood.items()}
    for place, features in places.items():
        if features is not None:
            yield place.as_posix(), npz_bytes(_predictions(head, features))
    lines = "".join(" ".join(name.split()) + "\n" for name in outcome.record.class_names)
    yield here.classes_file.as_posix(), lines.encode()
    if outcome.network is not None and config is not None:
        yield _WEIGHTS, _bytes(outcome.network.state_dict())
        yield here.model_file.as_posix(), _model(outcome, config).to_json().encode()
    if outcome.text is not None:
        yield from ((f"{_TEXT}/{name}", content) for name, content in outcome.text.files().items())


def _model(outcome: AdaptResult, config: ImageAdaptConfig | TextAdaptConfig) -> AdaptedModel:
    head, chosen, data = outcome.adaptation.head, outcome.adaptation.chosen, outcome.record.data
    assert head is not None
    run = run_of(config) if isinstance(config, ImageAdaptConfig) else None
    return AdaptedModel(
        head=head.name,
        class_names=outcome.record.class_names,
        has_belief=chosen.candidate.has_belief,
        model=config.model if run is None else None,
        options=dict(config.options),
        run=None if run is None else to_mapping(run.config()),
        classes=None if run is None else len(run.read_model()["class_names"]),
        shape=data.get("shape"),
        preprocessing=Preprocessing.from_json(data["preprocessing"]) if outcome.text is None else None,
        text=None if outcome.text is None else outcome.text.facts(),
    )


def _predictions(head: FittedHead, features: Features) -> Predictions:
    """Logits of the rows that have a class or votes, or of all where none has, in single precision.

    They are log-concentrations where the head has a belief. Of counts the target is the class of the most
    votes.
    """
    rows = scorable(features)
    is_labelled = len(rows) > 0
    rows = rows if is_labelled else torch.arange(len(features))
    found, _ = stored_predictions(head, features, rows, path=Path(), dtype=torch.float32)
    targets = found.targets
    assert targets is not None
    ids = targets if targets.dim() == 1 else targets.argmax(1)
    return replace(found, targets=ids if is_labelled else None)


def _bytes(state: Mapping[str, Tensor]) -> bytes:
    with needs("safetensors", extra="files", caller="adapt"):
        from safetensors.torch import save
    return save({name: value.detach().cpu().contiguous().clone() for name, value in state.items()})


def adapted_network(directory: Path) -> AdaptedNetwork:
    """Build an adapted network again.

    Raises:
        ValueError: nothing is kept there, or its network cannot be built.
    """
    home = RunDirectory(directory)
    if not home.is_adapted:
        raise fail("predict", f"`run` must be a directory that `beliefmatch adapt` wrote, got {directory}.")
    model = _read_model(home)
    with needs("safetensors", extra="files", caller="predict"):
        import safetensors  # noqa: F401
    weights = directory / _WEIGHTS
    if not weights.is_file():
        raise fail("predict", f"`run` must hold the network's weights; there is no {weights}.")
    state, read = _read(weights), (tuple(model.class_names), model.has_belief)
    if model.text is not None:
        text = stored_text_model(directory / _TEXT, model.text)
        network = _with_weights(text.network, text.tokenize(["A sentence."]), model, state, weights)
        return AdaptedNetwork(network, *read, tokenize=text.tokenize)
    assert model.shape is not None
    made_up = torch.rand(2, *model.shape, generator=torch.Generator().manual_seed(0))
    network = _with_weights(_network(model), made_up, model, state, weights)
    return AdaptedNetwork(network, *read, model.shape, model.preprocessing)


def _with_weights(
    network: nn.Module, batch: Any, model: AdaptedModel, state: Mapping[str, Tensor], weights: Path
) -> BeliefMixin:
    """The network with a head for the classes of the weights, and with these weights."""
    head = find_head(network, batch, name=model.head)
    if f"{head.name}.weight" not in state:
        raise fail("predict", f"`run` must hold the weights of its head {head.name!r}; {weights} has none.")
    weight, bias = state[f"{head.name}.weight"], state.get(f"{head.name}.bias")
    if weight.dim() == 3 and bias is not None:
        adapted = with_ensemble(network, head, weight, bias)
    else:
        adapted = with_head(network, head, weight.flatten(1), bias)
    made = add_belief(adapted, has_belief=model.has_belief)
    made.load_state_dict(state)
    return made.eval()


def _read(weights: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(weights)
    except SafetensorError as error:
        raise fail("predict", f"`run` must hold whole weights, got {weights} ({error}).") from error


def _read_model(home: RunDirectory) -> AdaptedModel:
    file = home.model_file
    if not file.is_file():
        raise fail("predict", f"`run` must hold a network; {home.path} has none: {_why_none(home)}.")
    try:
        return AdaptedModel.from_json(file.read_text("utf-8"))
    except ValueError as error:
        got = f"{file} ({reason_of(error)}); adapt again"
        raise fail("predict", f"`run` must hold a whole model.json, got {got}.") from error


def _why_none(home: RunDirectory) -> str:
    record = AdaptRecord.from_json(home.record_file.read_text("utf-8"))
    if record.head is None:
        return "features alone were adapted, and its head.safetensors is for the network that they are of"
    return "there is no model.json, which `beliefmatch adapt` writes and `report` in Python does not"


def _network(model: AdaptedModel) -> nn.Module:
    if model.model is None:
        assert model.run is not None and model.classes is not None and model.shape is not None
        config = config_from(model.run)
        return bare_network(config, method_of(config), model.classes, model.shape[0]).eval()
    name, options = model.model, model.options
    published = name in MODELS or name.partition(":")[0] in ("timm", "torchvision", "hf")
    return pretrained_model(name, options={**options, "pretrained": False} if published else options)


def head_file(adaptation: Adaptation, network: nn.Module | None = None) -> bytes:
    """What is new in the network in the form of safetensors, under the names of its `state_dict`.

    So that ``model.load_state_dict(load_file(path), strict=False)`` puts it in place where the number of
    classes is the same. Called "weight" and "bias" where there are features alone. Where BatchNorm layers
    were trained and taken, the head is the one trained with them, and they are in the file too: it is of no
    use without them.

    Args:
        adaptation: Result of `adapt` or `refit`.
        network: The adapted network, where there is one.
    """
    with needs("safetensors", extra="files", caller="report"):
        from safetensors.torch import save
    head, batchnorm = adaptation.head, adaptation.batchnorm
    taken = batchnorm if batchnorm is not None and batchnorm.is_taken else None
    new = adaptation.chosen if taken is None else taken.head
    is_convolution = head is not None and head.kind == "conv1x1"
    weight, bias = (new.weights, new.biases) if isinstance(new, EnsembleHead) else (new.weight, new.bias)
    weight = weight[:, :, None, None] if is_convolution else weight
    before = f"{head.name}." if head is not None and head.name else ""
    tensors = {f"{before}weight": weight.contiguous(), f"{before}bias": bias.contiguous()}
    if taken is not None and network is not None and head is not None:
        for name in taken.layers:
            state = network.get_submodule(name).state_dict()
            tensors |= {f"{name}.{key}": value.cpu().contiguous().clone() for key, value in state.items()}
    facts = {"kind": new.candidate.kind, "options": json.dumps(dict(new.candidate.options))}
    if adaptation.vote_scale is not None and adaptation.vote_scale.scale is not None:
        facts["scale"] = f"{adaptation.vote_scale.scale!r}"
    return save(tensors, metadata=facts)
