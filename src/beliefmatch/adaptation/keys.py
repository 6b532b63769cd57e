"""What features are of, as a key: the same model, weights, preprocessing and data give the same."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from beliefmatch._validate import fail
from beliefmatch.adaptation.shards import FORMAT

__all__ = ["cache_key", "model_digest", "tensors_digest"]

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PLAIN = (int, float, str, bool, type(None))


def cache_key(parts: Mapping[str, Any]) -> str:
    """SHA-256 of what the features are of and of the format they are kept in; parts may be any text."""
    try:
        text = json.dumps({"format": FORMAT, "parts": dict(parts)}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise fail("cache_key", f"`key_parts` must be as JSON can hold them, got {error}.") from error
    return hashlib.sha256(text.encode()).hexdigest()


def model_digest(model: nn.Module) -> str:
    """SHA-256 of a network: its modules with their settings and own code, and its weights and buffers.

    Memory addresses do not count, nor do devices and memory layouts. Code that a `forward` calls outside of
    its module's class is not seen; neither are the versions of torch and of other libraries. For these
    `extract` computes a few rows again.
    """
    state = hashlib.sha256()
    for name, module in model.named_modules():
        described = (name, _type_name(module), module.extra_repr(), *_settings(module), *_code_of(module))
        state.update(json.dumps([_ADDRESS.sub("", text) for text in described]).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        state.update(json.dumps([name, tensors_digest(tensor)]).encode())
    return state.hexdigest()


def tensors_digest(*tensors: Tensor) -> str:
    """SHA-256 of types, shapes and values."""
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        plain = tensor.detach().to("cpu").contiguous().reshape(-1)
        state.update(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
    return state.hexdigest()


def _type_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _settings(module: nn.Module) -> Iterator[str]:
    """Plain attributes, in which modules keep what they do not show."""
    for name, value in sorted(vars(module).items()):
        plain = value if isinstance(value, tuple) else (value,)
        if name != "training" and not name.startswith("_") and all(isinstance(one, _PLAIN) for one in plain):
            yield f"{name}={value!r}"


def _code_of(module: nn.Module) -> Iterator[str]:
    """The methods of a class that is not torch's own."""
    if type(module).__module__.startswith("torch."):
        return
    for name, method in sorted(vars(type(module)).items()):
        code = getattr(method, "__code__", None)
        if isinstance(code, CodeType):
            yield f"{name}:{_code(code)}"


def _code(code: CodeType) -> str:
    """What a function does, without where it stands."""
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _constant(value: Any) -> str:
    return f"{sorted(map(repr, value))}" if isinstance(value, frozenset) else repr(value)
