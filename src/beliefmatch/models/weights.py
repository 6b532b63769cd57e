"""Weights of networks from files that cannot execute code, whoever wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch.checks import fail
from beliefmatch.extras import needs
from beliefmatch.names import nearest

__all__ = ["LoadedWeights", "load_weights"]

_US = "load_weights"
_PICKLED = (".pt", ".pth", ".th", ".bin")
_CONTAINERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.")
_DEEPEST = 3  # prefixes on one another, as of a compiled network inside of a parallel one
_UNIMPORTANT = "num_batches_tracked"  # which files of before torch 0.4.1 do not have
_SHOWN = 3  # names in an error


class LoadedWeights(NamedTuple):
    """What was made of a file."""

    path: Path
    container: str
    """Key under which the tensors were found, or nothing."""
    prefix: str
    """Taken off their names, or nothing."""
    missing: tuple[str, ...]
    """Tensors of the network that the file does not have; they stay as they were."""
    unexpected: tuple[str, ...]
    """Tensors of the file that the network does not have."""


def load_weights(model: nn.Module, path: str | Path, *, strict: bool = True) -> LoadedWeights:
    """Load a file of weights into a network, in the network's own types; nothing changes if it does not fit.

    Training scripts keep tensors under "state_dict", "model_state_dict" or "model", and wrappers put
    "module.", "_orig_mod." or "model." before their names: both are taken off where the names then match.

    Args:
        model: the network.
        path: a .safetensors file, or a .pt, .pth, .th or .bin file of tensors, of which torch loads tensors
            and nothing else.
        strict: whether file and network must have the same tensors. If not, those of one name must still be
            of one shape, and there must be some.

    Raises:
        ValueError: in one line, for a file that cannot be read, needs code to be read, or does not fit.
    """
    path = Path(path).expanduser()
    found, container = _state(_content(path), path)
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    prefix, state = _best_named(found, own)
    missing = _missing(own, state)
    unexpected = tuple(name for name in state if name not in own)
    if not any(name in own for name in state) or (strict and (missing or unexpected)):
        raise _unlike(path, own, missing, unexpected)
    _require_fitting(path, own, state)
    model.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)
    return LoadedWeights(path, container, prefix, missing, unexpected)


def _content(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix not in (".safetensors", *_PICKLED):
        raise fail(_US, f"`path` must end in .safetensors or {', '.join(_PICKLED)}, got {path}.")
    if not path.is_file():
        what = "the directory " if path.is_dir() else "" if path.exists() else "no file at "
        raise fail(_US, f"`path` must be a file, got {what}{path}.")
    try:
        return _safetensors(path) if suffix == ".safetensors" else _tensors_of_pickle(path)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # there is no telling what decoders raise about bytes that are not theirs
        raise fail(
            _US, f"`path` must be a whole {suffix} file of tensors, {_reason(path, error)}."
        ) from error


def _safetensors(path: Path) -> dict[str, Tensor]:
    with needs("safetensors", extra="files", caller=_US):
        from safetensors.torch import load_file
    return load_file(path)


def _tensors_of_pickle(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _reason(path: Path, error: Exception) -> str:
    text = " ".join(f"{error}".split())
    code = re.search(r"Unsupported (?:global|class)\S* (?:GLOBAL )?([\w.]+)", text)
    if code is not None:
        remedy = "save `model.state_dict()` alone"
        return f"got {path}, a pickle that would have to run code of {code[1]}; {remedy}"
    return f"cannot read {path} ({text[:160].rstrip('.') or type(error).__name__})"


def _state(content: Any, path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors by name, and where they were."""
    for key in _CONTAINERS:
        inner = content.get(key) if isinstance(content, Mapping) else None
        if isinstance(inner, Mapping) and (state := _tensors(inner)):
            return state, key
    state = _tensors(content) if isinstance(content, Mapping) else {}
    if not state:
        got = f"a {type(content).__name__}"
        if isinstance(content, Mapping):
            got = f"{_some([f'{key}' for key in content])}" if content else "nothing"
        raise fail(
            _US, f"`path` must hold tensors by name, as `model.state_dict()` has, got {got} in {path}."
        )
    return state, ""


def _tensors(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {f"{name}": value for name, value in content.items() if isinstance(value, Tensor)}


def _best_named(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[str, Mapping[str, Tensor]]:
    """The prefix without which most names match, the shortest of several; and the tensors without it."""
    best, state, most = "", found, sum(name in own for name in found)
    for prefix in _prefixes():
        without = {name.removeprefix(prefix): value for name, value in found.items()}
        matches = sum(name in own for name in without)
        if matches > most and len(without) == len(found):
            best, state, most = prefix, without, matches
    return best, state


def _prefixes() -> Iterator[str]:
    for depth in range(1, _DEEPEST + 1):
        yield from map("".join, product(_PREFIXES, repeat=depth))


def _missing(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Names that the file lacks, but of tensors that have another name too, of which one is there."""
    known = {
        (value.data_ptr(), value.shape) for name, value in own.items() if name in state and value.numel()
    }
    return tuple(
        name
        for name, value in own.items()
        if name not in state
        and name.rpartition(".")[2] != _UNIMPORTANT
        and (value.data_ptr(), value.shape) not in known
    )


def _unlike(
    path: Path, own: Mapping[str, Tensor], missing: Sequence[str], unexpected: Sequence[str]
) -> Exception:
    faults = [f"without {_some(missing)}"] * bool(missing) + [f"with {_some(unexpected)}"] * bool(unexpected)
    ours, theirs = (missing or tuple(own))[0], unexpected[0] if unexpected else ""
    if missing and unexpected:
        theirs = nearest(ours, unexpected)
    elif unexpected:
        ours = nearest(theirs, tuple(own)) or ""
    hint = f"; is {ours} what the file calls {theirs}?" if ours and theirs else "."
    fact = f"`path` must hold the {len(own)} tensors of the network and no others"
    return fail(_US, f"{fact}, got {path} {' and '.join(faults)}{hint}")


def _require_fitting(path: Path, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    wrong = [name for name in own if name in state and own[name].shape != state[name].shape]
    if wrong:
        shapes = [f"{tuple(tensors[wrong[0]].shape)}" for tensors in (own, state)]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        fact = f"`{wrong[0]}` must have the network's shape {shapes[0]}, got {shapes[1]}{more} in {path}"
        raise fail(_US, f"{fact}{_remedy(own, state, wrong)}.")
    for name in own:
        if name in state and own[name].is_floating_point() != state[name].is_floating_point():
            types = [f"{tensors[name].dtype}".removeprefix("torch.") for tensors in (own, state)]
            raise fail(_US, f"`{name}` must be of a type like {types[0]}, got {types[1]} in {path}.")


def _remedy(own: Mapping[str, Tensor], state: Mapping[str, Tensor], wrong: Sequence[str]) -> str:
    """If only the number of rows differs, and in the same way: a head for as many classes as the file has."""
    pairs = [(own[name].shape, state[name].shape) for name in wrong]
    heads = all(len(a) == len(b) > 0 and a[1:] == b[1:] for a, b in pairs)
    counts = {b[0] for a, b in pairs if len(b)}
    if not heads or len(counts) != 1 or len(wrong) > 2:
        return ""
    remedy = f"`--model-option num_classes={counts.pop()}`"
    return f"; if that is the head, build the network for its classes: {remedy}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
