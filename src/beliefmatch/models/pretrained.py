"""Trained networks as they are: those that others have published, and the user's own."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from torch import nn

from beliefmatch.checks import fail
from beliefmatch.extras import needs
from beliefmatch.models import MODELS
from beliefmatch.models.expecting import expecting, of_processor, of_transforms
from beliefmatch.models.outside import own_model, timm_model, told
from beliefmatch.models.weights import load_weights
from beliefmatch.names import nearest, require_name, require_options

__all__ = ["pretrained_model"]

_US = "pretrained_model"
_OTHERS = ", timm:NAME, torchvision:NAME, hf:OWNER/NAME or package.module:factory"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def pretrained_model(
    name: str, *, options: Mapping[str, Any] | None = None, weights: str | Path | None = None
) -> nn.Module:
    """Build a trained network; see `beliefmatch.models.pretrained_model`."""
    given = dict(options or {})
    kind, colon, rest = name.partition(":")
    published = _PUBLISHED.get(kind) if colon else None
    if published is not None:
        pretrained = given.pop("pretrained", weights is None)
        if pretrained not in (True, False):
            raise fail(_US, f"`pretrained` must be true or false, got {pretrained!r}.")
        network = published(rest, pretrained, given)
    elif colon:
        network = own_model(name, **{"num_classes": None, "channels": None, **given})
    else:
        network = _ours(name, given, weights)
    if weights is not None:
        load_weights(network, weights)
    return network.eval()


def _ours(name: str, options: dict[str, Any], weights: str | Path | None) -> nn.Module:
    require_name(_US, "name", name, MODELS, other=_OTHERS)
    if options.pop("pretrained", True) and weights is None:
        raise fail(_US, f"`weights` must be given for {name}, whose weights nobody has published.")
    factory = resolve_name(MODELS[name])
    require_options(_US, name, factory, options)
    return factory(**options)


def _timm(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    shape = {"num_classes": None, "channels": None}
    return timm_model(name, **{**shape, **options}, pretrained=pretrained)


def _torchvision(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    with needs("torchvision", extra="vision", caller=f"torchvision:{name}"):
        models: Any = importlib.import_module("torchvision.models")

    known = models.list_models(module=models)
    if name not in known:
        close = nearest(name, known)
        hint = f"; did you mean torchvision:{close}?" if close else "."
        raise fail(_US, f"`name` must be one of torchvision's classifiers, got {name!r}{hint}")
    with told(f"torchvision:{name}", caller=_US):
        published = models.get_model_weights(name).DEFAULT
        network = models.get_model(name, weights=published if pretrained else None, **options)
    return expecting(network, of_transforms(published.transforms()))


def _hugging_face(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    where = Path(name).expanduser()
    is_local = where.is_dir()
    if not is_local and not _HUB_NAME.fullmatch(name):
        raise fail(_US, f"`name` must be hf:OWNER/NAME or hf:DIRECTORY, got 'hf:{name}', which is neither.")
    if options.pop("trust_remote_code", False):
        raise fail(_US, f"`trust_remote_code` must be false: no code is run that hf:{name} brings along.")
    with needs("transformers", extra="huggingface", caller=f"hf:{name}"):
        transformers: Any = importlib.import_module("transformers")

    place = f"{where}" if is_local else name
    if "num_classes" in options:
        options["num_labels"] = options.pop("num_classes")
    if pretrained and "num_labels" in options:
        options.setdefault("ignore_mismatched_sizes", True)  # a head for other classes starts anew
    builder = transformers.AutoModelForImageClassification
    with told(f"hf:{name}", caller=_US):
        if pretrained:
            network = builder.from_pretrained(place, use_safetensors=True, trust_remote_code=False, **options)
        else:
            config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False, **options)
            network = builder.from_config(config, trust_remote_code=False)
    return expecting(network, _processor(transformers, place))


def _processor(transformers: Any, place: str) -> Any:
    """What is published of the images beside the network, if anything is."""
    try:
        facts, _ = transformers.ImageProcessingMixin.get_image_processor_dict(place)
    except (OSError, ValueError):
        return None
    return of_processor(facts)


_PUBLISHED = {"timm": _timm, "torchvision": _torchvision, "hf": _hugging_face}
