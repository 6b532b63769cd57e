"""Networks from images to logits, one file for each family.

A new network is a file with a function or class that takes `num_classes`, `channels` and its own options, and
a line in `MODELS`. The table holds addresses so that listing the networks imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from beliefmatch._utils import require_name, require_options

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

__all__ = ["MODELS", "build_model", "fresh", "pretrained_model", "require_model"]

Made = TypeVar("Made")

MODELS = {
    "digits": "beliefmatch.models.digits:DigitsNet",
    "preact_resnet18": "beliefmatch.models.resnet:preact_resnet18",
    "preact_resnet34": "beliefmatch.models.resnet:preact_resnet34",
    "preact_resnet50": "beliefmatch.models.resnet:preact_resnet50",
    "wide_resnet": "beliefmatch.models.resnet:wide_resnet",
    "wrn28_2": "beliefmatch.models.resnet:wrn28_2",
    "wrn28_10": "beliefmatch.models.resnet:wrn28_10",
}


def build_model(name: str, *, num_classes: int, channels: int, **options: Any) -> nn.Module:
    """Build a network by name.

    Args:
        name: of `MODELS`; ``timm:NAME`` for one of timm's; ``package.module:factory`` for the user's own,
            called with `num_classes` and, if its signature has it, `channels`.
        num_classes: number of logits.
        channels: of the images.
        options: the network's own.
    """
    require_model("build_model", "name", name)
    if name.startswith("timm:"):
        from beliefmatch.models.pretrained import timm_model

        return timm_model(name.removeprefix("timm:"), num_classes=num_classes, channels=channels, **options)
    if name not in MODELS:
        from beliefmatch.models.pretrained import own_model

        return own_model(name, num_classes=num_classes, channels=channels, **options)
    factory = resolve_name(MODELS[name])
    require_options("build_model", name, factory, options)
    return factory(num_classes=num_classes, channels=channels, **options)


def pretrained_model(
    name: str, *, options: Mapping[str, Any] | None = None, weights: str | Path | None = None
) -> nn.Module:
    """Build a trained network as it is, for the classes that it was trained on.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, or ``hf:OWNER/NAME`` of the hub of Hugging Face, with the
            weights that are published under the name; ``hf:DIRECTORY``; a name of `MODELS`, with `weights`;
            or ``package.module:factory`` for the user's own.
        options: the network's own, such as `num_classes`, which is told to nobody who is not asked to be;
            `pretrained: false` leaves published weights where they are.
        weights: file of its weights, in place of those published; see `beliefmatch.models.pretrained`.

    Raises:
        ValueError: in one line, for a name, options or weights that will not do.
    """
    from beliefmatch.models.pretrained import pretrained_model

    return pretrained_model(name, options=options, weights=weights)


def require_model(function: str, argument: str, name: str) -> None:
    """A name must be one of `MODELS`, or an address with a colon in it of what can be trained."""
    kind, _, rest = name.partition(":")
    if kind in ("torchvision", "hf"):
        other = (
            f"torchvision.models:{rest}" if kind == "torchvision" else "timm:NAME or package.module:factory"
        )
        raise ValueError(
            f"{function}: `{argument}` must be a network to train, got {name!r}, which can only be adapted; "
            f"write {other}."
        )
    if ":" not in name:
        require_name(function, argument, name, MODELS, other=", timm:NAME or package.module:factory")


def fresh(build: Callable[[], Made], seed: int) -> Made:
    """What `build` makes when chance starts at `seed`: equal seeds give equal weights.

    The caller's random state is as before. Only the CPU's counts: networks are made there and moved later.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also touch every GPU's
        return build()
