"""Networks from images or rows of a table to logits, one file for each family.

A new network is a file with a function or class that takes `num_classes`, `channels` and its own options, and
a line in `MODELS`. The table holds addresses so that listing the networks imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from beliefmatch._errors import fail
from beliefmatch._utils import lazy_names, require_name, require_options

if TYPE_CHECKING:
    from torch import nn

    from beliefmatch.models.encoder import EncoderClassifier, PooledEncoder
    from beliefmatch.models.pretrained import ExpectedInput, load_weights, preprocessing_of, pretrained_model

__all__ = [
    "MODELS",
    "EncoderClassifier",
    "ExpectedInput",
    "PooledEncoder",
    "build_model",
    "build_seeded",
    "load_weights",
    "preprocessing_of",
    "pretrained_model",
    "require_model",
]


Built = TypeVar("Built")

MODELS = {
    "digits": "beliefmatch.models.digits:DigitsNet",
    "mlp": "beliefmatch.models.mlp:MLP",
    "preact_resnet18": "beliefmatch.models.resnet:preact_resnet18",
    "preact_resnet34": "beliefmatch.models.resnet:preact_resnet34",
    "preact_resnet50": "beliefmatch.models.resnet:preact_resnet50",
    "small_cnn": "beliefmatch.models.small_cnn:SmallCNN",
    "wide_resnet": "beliefmatch.models.resnet:wide_resnet",
    "wrn28_2": "beliefmatch.models.resnet:wrn28_2",
    "wrn28_10": "beliefmatch.models.resnet:wrn28_10",
}


def build_model(name: str, *, num_classes: int, channels: int, **options: Any) -> nn.Module:
    """Build a network by name.

    Args:
        name: a name of `MODELS`; ``timm:NAME`` for a network of timm; ``package.module:factory`` for the
            user's own, called with `num_classes` and, if its signature has it, `channels`.
        num_classes: number of logits.
        channels: number of channels of the images, or of inputs of a row.
        options: options of the network.
    """
    require_model("build_model", "name", name)
    if name.startswith("timm:"):
        from beliefmatch.models.pretrained import timm_model

        return timm_model(name.removeprefix("timm:"), num_classes=num_classes, channels=channels, **options)
    if name not in MODELS:
        from beliefmatch.models.pretrained import custom_model

        return custom_model(name, num_classes=num_classes, channels=channels, **options)
    factory = resolve_name(MODELS[name])
    require_options("build_model", name, factory, options)
    return factory(num_classes=num_classes, channels=channels, **options)


def require_model(function: str, argument: str, name: str) -> None:
    """Require a name of `MODELS`, or the address, with a colon, of a network that can be trained."""
    kind, _, rest = name.partition(":")
    if kind in ("torchvision", "hf"):
        other = (
            f"torchvision.models:{rest}" if kind == "torchvision" else "timm:NAME or package.module:factory"
        )
        raise fail(
            function,
            f"`{argument}` must be a network to train, got {name!r}, which can only be adapted; "
            f"write {other}.",
        )
    if ":" not in name:
        require_name(function, argument, name, MODELS, other=", timm:NAME or package.module:factory")


def build_seeded(build: Callable[[], Built], seed: int) -> Built:
    """The result of `build()` with the CPU's generator seeded: equal seeds give equal initial weights.

    The caller's random state is not changed. Networks are built on the CPU and moved later, so other
    generators do not matter.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed every GPU
        return build()


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "encoder": "EncoderClassifier PooledEncoder",
        "pretrained": "ExpectedInput load_weights preprocessing_of pretrained_model",
    },
)
