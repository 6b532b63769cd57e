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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from beliefmatch._config import plain
from beliefmatch._environment import needs
from beliefmatch._validate import fail
from beliefmatch.adaptation.ensemble import EnsembleHead, mixed
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.heads import find_head
from beliefmatch.adaptation.result import Adaptation
from beliefmatch.adaptation.surgery import BeliefMixin, add_belief, with_ensemble, with_head
from beliefmatch.adaptation.types import Features
from beliefmatch.data.predictions import Predictions, npz_bytes
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.text import Tokenize
from beliefmatch.experiments.adapt_images import run_of
from beliefmatch.experiments.adapt_record import ADAPT_SCHEMA, AdaptRecord
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, ImageAdaptConfig, TextAdaptConfig
from beliefmatch.experiments.build import bare_network, method_of
from beliefmatch.experiments.config import config_from, to_mapping
from beliefmatch.experiments.run_dir import ADAPTED_SCHEMA, RunDirectory
from beliefmatch.models import MODELS, pretrained_model
from beliefmatch.models.text import stored_text_model

if TYPE_CHECKING:
    from beliefmatch.experiments.adapting import AdaptResult

__all__ = ["AdaptedNetwork", "adapted_network", "head_file", "kept_files", "require_directory"]

_WEIGHTS = "model.safetensors"
_BLOCK = 4096
_RECORDS = ADAPT_SCHEMA.rpartition("/")[0]  # of any version
_TEXT = "text"
_FORMS = {"head": str, "class_names": list, "has_belief": bool}
_OF_IMAGES, _OF_TEXT = {"shape": list, "preprocessing": dict}, {"text": dict}
_SPEED = ("cache_dir", "cache_size", "device", "compile", "workers")
_OF_RUNS, _BY_NAME = {"run": dict, "classes": int}, {"model": str, "options": dict}


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
    """Refuse the directory of a run, and that of an adaptation with another configuration."""
    home = RunDirectory(directory)
    if home.config_file.is_file():  # its files have the same names
        raise fail("adapt", f"`out` must not be the directory of a run, got {directory}; choose another.")
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


def kept_files(
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
        facts = {"schema": ADAPTED_SCHEMA, **_built_from(config), **_described(outcome)}
        yield here.model_file.as_posix(), (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode()
    if outcome.text is not None:
        yield from ((f"{_TEXT}/{name}", content) for name, content in outcome.text.files().items())


def _described(outcome: AdaptResult) -> dict[str, Any]:
    head, data = outcome.adaptation.head, outcome.record.data
    assert head is not None
    chosen = outcome.adaptation.chosen
    has_belief = chosen.predict(torch.zeros(1, chosen.weight.shape[1])).belief is not None
    facts = {"head": head.name, "class_names": outcome.record.class_names, "has_belief": has_belief}
    if outcome.text is not None:
        return {**facts, "text": outcome.text.facts()}
    return {**facts, "shape": data["shape"], "preprocessing": data["preprocessing"]}


def _built_from(config: ImageAdaptConfig | TextAdaptConfig) -> dict[str, Any]:
    run = run_of(config) if isinstance(config, ImageAdaptConfig) else None
    if run is not None:
        classes = len(run.read_model()["class_names"])
        return {"run": to_mapping(run.config()), "classes": classes}
    return {"model": config.model, "options": dict(config.options)}


def _predictions(head: FittedHead, features: Features) -> Predictions:
    """Log-concentrations of every row, in single precision; of counts the class of the most votes."""
    if isinstance(head, EnsembleHead):
        logits = [mixed(head.member_logits(rows)) for rows, _ in features.blocks(_BLOCK)]
    else:
        logits = [rows @ head.weight.t() + head.bias for rows, _ in features.blocks(_BLOCK)]
    values, targets = torch.cat(logits).float(), features.targets
    ids = targets if targets.dim() == 1 else targets.argmax(1)
    is_labelled = len(ids) > 0 and int(ids.min()) >= 0
    return Predictions(Path(), "logits", values, ids if is_labelled else None, None, {})


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
        raise fail("predict", f"RUN must be a directory that `beliefmatch adapt` wrote, got {directory}.")
    facts = _read_facts(home)
    with needs("safetensors", extra="files", caller="predict"):
        import safetensors  # noqa: F401
    weights = directory / _WEIGHTS
    if not weights.is_file():
        raise fail("predict", f"RUN must hold the network's weights; there is no {weights}.")
    state, read = _read(weights), (tuple(facts["class_names"]), facts["has_belief"])
    if "text" in facts:
        model = stored_text_model(directory / _TEXT, facts["text"])
        network = _with_weights(model.network, model.tokenize(["A sentence."]), facts["head"], state, weights)
        return AdaptedNetwork(network, *read, tokenize=model.tokenize)
    shape = tuple(facts["shape"])
    made_up = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    network = _with_weights(_network(facts), made_up, facts["head"], state, weights)
    return AdaptedNetwork(network, *read, shape, Preprocessing.from_json(facts["preprocessing"]))


def _with_weights(
    network: nn.Module, batch: Any, name: str, state: Mapping[str, Tensor], weights: Path
) -> BeliefMixin:
    """The network with a head for the classes of the weights, and with these weights."""
    head = find_head(network, batch, name=name)
    if f"{head.name}.weight" not in state:
        raise fail("predict", f"RUN must hold the weights of its head {head.name!r}; {weights} has none.")
    weight, bias = state[f"{head.name}.weight"], state.get(f"{head.name}.bias")
    if weight.dim() == 3 and bias is not None:
        made = add_belief(with_ensemble(network, head, weight, bias))
    else:
        made = add_belief(with_head(network, head, weight.flatten(1), bias))
    made.load_state_dict(state)
    return made.eval()


def _read(weights: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(weights)
    except SafetensorError as error:
        raise fail("predict", f"RUN must hold whole weights, got {weights} ({error}).") from error


def _read_facts(home: RunDirectory) -> dict[str, Any]:
    """What `kept_files` left in model.json; a ValueError says what is wrong with it, or why there is none."""
    file = home.model_file
    if not file.is_file():
        raise fail("predict", f"RUN must hold a network; {home.path} has none: {_why_none(home)}.")
    facts: Any = None
    with suppress(ValueError):
        facts = json.loads(file.read_text("utf-8"))
    if wrong := _garbled(facts):
        raise fail("predict", f"RUN must hold a whole model.json; {file} {wrong}. Adapt again.")
    return facts


def _garbled(facts: Any) -> str:
    """What is wrong with the content of model.json, if anything."""
    if facts is None:
        return "is no JSON"
    if not isinstance(facts, dict) or facts.get("schema") != ADAPTED_SCHEMA:
        return f"is not of {ADAPTED_SCHEMA!r}"
    forms = {**_FORMS, **(_OF_TEXT if "text" in facts else _OF_IMAGES)}
    forms |= _OF_RUNS if "run" in facts else _BY_NAME
    wrong = [name for name, form in forms.items() if not isinstance(facts.get(name), form)]
    return f"lacks or garbles {', '.join(wrong)}" if wrong else ""


def _why_none(home: RunDirectory) -> str:
    record = AdaptRecord.from_json(home.record_file.read_text("utf-8"))
    if record.head is None:
        return "features alone were adapted, and its head.safetensors is for the network that they are of"
    return "there is no model.json, which `beliefmatch adapt` writes and `report` in Python does not"


def _network(facts: Mapping[str, Any]) -> nn.Module:
    if "run" in facts:
        config, (channels, *_) = config_from(facts["run"]), facts["shape"]
        return bare_network(config, method_of(config), facts["classes"], channels).eval()
    name, options = facts["model"], facts["options"]
    published = name in MODELS or name.partition(":")[0] in ("timm", "torchvision", "hf")
    return pretrained_model(name, options={**options, "pretrained": False} if published else options)


def head_file(adaptation: Adaptation, network: nn.Module | None = None) -> bytes:
    """What is new in the network in the form of safetensors, under the names of its `state_dict`.

    So that ``model.load_state_dict(load_file(path), strict=False)`` puts it in place where the number of
    classes is the same. Called "weight" and "bias" where there are features alone. Where BatchNorm layers
    were trained and taken, the head is the one trained with them, and they are in the file too: it is of no
    use without them.

    Args:
        adaptation: of `adapt` or `refit`.
        network: the adapted one, where there is one.
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
    return save(tensors, metadata=facts)
