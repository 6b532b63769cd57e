"""Networks from outside this package: timm's by name, the user's own by import path."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from beliefmatch.extras import needs
from beliefmatch.names import nearest, option_names, require_options

__all__ = ["own_model", "timm_model", "told"]

_CALLER = "build_model"


def timm_model(
    name: str,
    *,
    num_classes: int | None,
    channels: int | None,
    pretrained: bool = False,
    dropout: float = 0.0,
    dropout_in_blocks: bool = False,
    **options: Any,
) -> nn.Module:
    """One of timm's networks; `dropout` stands in front of its last layer.

    Where `num_classes` or `channels` are None they are those that timm has the network with.
    """
    if dropout_in_blocks:
        raise ValueError(
            f"{_CALLER}: timm:{name} has dropout in front of the last layer only; "
            "choose `where: last` or a network of ours for dropout in all layers."
        )
    with needs("timm", extra="vision", caller=f"timm:{name}"):
        timm: Any = importlib.import_module("timm")  # where it is not installed, type checkers cannot see it

    if not timm.is_model(name) and ":" not in name:  # hf-hub: and local-dir: are for timm to find
        close = nearest(name, timm.list_models())
        hint = f"; did you mean timm:{close}?" if close else "."
        raise ValueError(f"{_CALLER}: `name` must be one of timm's networks, got {name!r}{hint}")
    shape = {"num_classes": num_classes, "in_chans": channels}
    options |= {key: value for key, value in shape.items() if value is not None}
    with told(f"timm:{name}"):
        network = timm.create_model(name, pretrained=pretrained, drop_rate=dropout, **options)
    return _with_dropout_module(network, dropout) if dropout else network


def own_model(address: str, *, num_classes: int | None, channels: int | None, **options: Any) -> nn.Module:
    """What the user's factory makes; the current directory can be imported from, as with ``python -m``.

    It is told `num_classes` and `channels` where they are not None.
    """
    with _current_directory_on_path():
        factory = _factory(address)
        names = option_names(factory)
        given = options if num_classes is None else {"num_classes": num_classes, **options}
        if channels is not None and "channels" in inspect.signature(factory).parameters:
            given["channels"] = channels
        if names is not None and "dropout_in_blocks" not in names and not given.get("dropout_in_blocks"):
            given.pop("dropout_in_blocks", None)  # asked for nothing
        require_options(_CALLER, address, factory, given)
        with told(address):
            network = factory(**given)
    if not isinstance(network, nn.Module):
        raise TypeError(f"{_CALLER}: {address} must return a torch.nn.Module, got {type(network).__name__}.")
    return network


def _factory(address: str) -> Callable[..., Any]:
    module, _, path = address.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise ValueError(f"{_CALLER}: `name` must be written package.module:factory, got {address!r}.")
    with told(module, doing="importing "):
        found: Any = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(found, part):
            close = nearest(part, [name for name in dir(found) if not name.startswith("_")])
            hint = f"; did you mean {close}?" if close else "."
            raise ValueError(f"{_CALLER}: {module} has no {path}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{_CALLER}: {address} must be callable, got {type(found).__name__}.")
    return found


@contextmanager
def told(what: str, *, doing: str = "", caller: str = _CALLER) -> Iterator[None]:
    """Errors of other people's code in one line, their own kept as the cause."""
    try:
        yield
    except (Exception, SystemExit) as error:
        words = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{caller}: {doing}{what} failed ({words}).") from error


@contextmanager
def _current_directory_on_path() -> Iterator[None]:
    here = os.getcwd()
    is_new = here not in sys.path and "" not in sys.path
    if is_new:
        sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        yield
    finally:
        if is_new and here in sys.path:
            sys.path.remove(here)


def _with_dropout_module(network: Any, rate: float) -> nn.Module:
    """Some of timm's networks drop by a function, which MC dropout cannot reach: a module in its place."""
    if any(isinstance(module, nn.Dropout) and module.p > 0 for module in network.modules()):
        return network
    classifier = network.get_classifier()
    name = next(name for name, module in network.named_modules() if module is classifier)
    network.drop_rate = 0.0
    network.set_submodule(name, nn.Sequential(nn.Dropout(rate), classifier))
    return network
