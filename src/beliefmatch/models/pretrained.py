"""Weights of networks from files that cannot execute code, whoever wrote them."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch._environment import needs
from beliefmatch._utils import nearest, option_names, require_name, require_options
from beliefmatch._validate import fail
from beliefmatch.models import MODELS

__all__ = [
    "Expected",
    "LoadedWeights",
    "expecting",
    "load_weights",
    "of_processor",
    "of_timm",
    "of_transforms",
    "own_model",
    "preprocessing_of",
    "pretrained_model",
    "timm_model",
    "told",
]

_LOAD_WEIGHTS = "load_weights"
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
        raise fail(_LOAD_WEIGHTS, f"`path` must end in .safetensors or {', '.join(_PICKLED)}, got {path}.")
    if not path.is_file():
        what = "the directory " if path.is_dir() else "" if path.exists() else "no file at "
        raise fail(_LOAD_WEIGHTS, f"`path` must be a file, got {what}{path}.")
    try:
        return _safetensors(path) if suffix == ".safetensors" else _tensors_of_pickle(path)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # there is no telling what decoders raise about bytes that are not theirs
        raise fail(
            _LOAD_WEIGHTS, f"`path` must be a whole {suffix} file of tensors, {_reason(path, error)}."
        ) from error


def _safetensors(path: Path) -> dict[str, Tensor]:
    with needs("safetensors", extra="files", caller=_LOAD_WEIGHTS):
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
            _LOAD_WEIGHTS,
            f"`path` must hold tensors by name, as `model.state_dict()` has, got {got} in {path}.",
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
    return fail(_LOAD_WEIGHTS, f"{fact}, got {path} {' and '.join(faults)}{hint}")


def _require_fitting(path: Path, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    wrong = [name for name in own if name in state and own[name].shape != state[name].shape]
    if wrong:
        shapes = [f"{tuple(tensors[wrong[0]].shape)}" for tensors in (own, state)]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        fact = f"`{wrong[0]}` must have the network's shape {shapes[0]}, got {shapes[1]}{more} in {path}"
        raise fail(_LOAD_WEIGHTS, f"{fact}{_remedy(own, state, wrong)}.")
    for name in own:
        if name in state and own[name].is_floating_point() != state[name].is_floating_point():
            types = [f"{tensors[name].dtype}".removeprefix("torch.") for tensors in (own, state)]
            raise fail(
                _LOAD_WEIGHTS, f"`{name}` must be of a type like {types[0]}, got {types[1]} in {path}."
            )


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


_SAID = "_beliefmatch_expected"  # with an underscore, or it would count as a setting of the network
_LARGE = 384  # from this size on ConvNeXt's publishers cut nothing off


class Expected(NamedTuple):
    """Preprocessing that a network was trained for, by the names of `DataConfig`; None where untold."""

    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    size: int | None
    """Pixels on a side."""
    margin: float | None
    """The short side that images are brought to over the size that is cut out of the middle."""
    interpolation: str | None = None
    """By which images were brought to their size; ours is bilinear."""


def preprocessing_of(model: nn.Module) -> Expected | None:
    """What the network says of its images; None if it says nothing.

    Networks of timm carry it with them, those of Hugging Face the name under which it is published, and
    torchvision's only where `pretrained_model` made them. It goes with the published weights: a network with
    weights of another training may have been trained for something else.
    """
    if (said := getattr(model, _SAID, None)) is not None:
        return said
    for name in ("pretrained_cfg", "default_cfg"):
        if isinstance(facts := getattr(model, name, None), Mapping) and "mean" in facts:
            return of_timm(facts)
    published = getattr(model, "name_or_path", None)
    return _of_published(published) if isinstance(published, str) and published else None


def expecting(model: nn.Module, expected: Expected | None) -> nn.Module:
    """The network, which tells `preprocessing_of` what it expects from now on."""
    if expected is not None:
        setattr(model, _SAID, expected)
    return model


def of_timm(facts: Mapping[str, Any]) -> Expected:
    """From the configuration that timm's networks carry."""
    shape, kept = facts.get("input_size") or (), facts.get("crop_pct")
    whole = facts.get("crop_mode", "center") != "center"
    return Expected(
        _numbers(facts.get("mean")),
        _numbers(facts.get("std")),
        _square(shape[1], shape[2]) if len(shape) == 3 else None,
        1.0 if whole else _over(1, kept),
        facts.get("interpolation"),
    )


def of_transforms(transforms: Any) -> Expected:
    """From the transforms that torchvision publishes with weights."""
    size, short = transforms.crop_size[0], transforms.resize_size[0]
    way = getattr(transforms.interpolation, "value", None)
    return Expected(_numbers(transforms.mean), _numbers(transforms.std), size, _over(short, size), way)


def of_processor(facts: Mapping[str, Any]) -> Expected:
    """From the `preprocessor_config.json` of Hugging Face's image processors."""
    mean, std = _scaling(facts)
    size, margin = _crop(facts)
    return Expected(mean, std, size, margin, _WAYS.get(facts.get("resample", -1)))


_WAYS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # as Pillow numbers them


def _of_published(name: str) -> Expected | None:
    """The network came from there, so that the library is here, and the file where that keeps its files."""
    try:
        from transformers import ImageProcessingMixin  # pyright: ignore

        facts, _ = ImageProcessingMixin.get_image_processor_dict(name, local_files_only=True)
    except (ImportError, OSError, ValueError):
        return None
    return of_processor(facts)


def _scaling(facts: Mapping[str, Any]) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and deviation for pixels between 0 and 1; (255 f p − o − m) / s is what processors make of one."""
    factor = 255 * facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 255.0
    offset = 1.0 if facts.get("rescale_offset") else 0.0
    mean, std = (_numbers(facts.get(name)) for name in ("image_mean", "image_std"))
    again = std if facts.get("include_top") else None  # EfficientNet's divides once more
    if not facts.get("do_normalize", True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    if std is not None and again is not None:
        std = tuple(one * other for one, other in zip(std, again, strict=True))
    if mean is None or std is None:
        return None, None
    return tuple((offset + one) / factor for one in mean), tuple(one / factor for one in std)


def _crop(facts: Mapping[str, Any]) -> tuple[int | None, float | None]:
    size, cut = (_sides(facts.get(name)) for name in ("size", "crop_size"))
    if not facts.get("do_resize", True):
        size = None
    if facts.get("do_center_crop") and cut is not None:
        return _square(*cut), _over(min(size), cut[0]) if size is not None else None
    if size is None:
        return None, None
    kept = facts.get("crop_pct")
    is_cut = kept is not None and min(size) < _LARGE
    return _square(*size), _over(1, kept) if is_cut else 1.0


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width of a size as any release has written it: a number, a pair, or a mapping."""
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        size = (size.get("height", edge), size.get("width", edge))
    pair = (size, size) if isinstance(size, int) else size
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(one, int) for one in pair):
        return pair[0], pair[1]
    return None


def _square(height: int, width: int) -> int | None:
    return height if height == width else None


def _over(short: float, size: float | None) -> float | None:
    """A margin; publishers that enlarge more than they cut out (below 1) have theirs filled up with 1."""
    return max(1.0, short / size) if size else None


def _numbers(values: Any) -> tuple[float, ...] | None:
    if isinstance(values, int | float):
        values = (values,) * 3
    return None if values is None else tuple(float(value) for value in values)


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


_PRETRAINED = "pretrained_model"
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
            raise fail(_PRETRAINED, f"`pretrained` must be true or false, got {pretrained!r}.")
        network = published(rest, pretrained, given)
    elif colon:
        network = own_model(name, **{"num_classes": None, "channels": None, **given})
    else:
        network = _ours(name, given, weights)
    if weights is not None:
        load_weights(network, weights)
    return network.eval()


def _ours(name: str, options: dict[str, Any], weights: str | Path | None) -> nn.Module:
    require_name(_PRETRAINED, "name", name, MODELS, other=_OTHERS)
    if options.pop("pretrained", True) and weights is None:
        raise fail(_PRETRAINED, f"`weights` must be given for {name}, whose weights nobody has published.")
    factory = resolve_name(MODELS[name])
    require_options(_PRETRAINED, name, factory, options)
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
        raise fail(_PRETRAINED, f"`name` must be one of torchvision's classifiers, got {name!r}{hint}")
    with told(f"torchvision:{name}", caller=_PRETRAINED):
        published = models.get_model_weights(name).DEFAULT
        network = models.get_model(name, weights=published if pretrained else None, **options)
    return expecting(network, of_transforms(published.transforms()))


def _hugging_face(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    where = Path(name).expanduser()
    is_local = where.is_dir()
    if not is_local and not _HUB_NAME.fullmatch(name):
        raise fail(
            _PRETRAINED, f"`name` must be hf:OWNER/NAME or hf:DIRECTORY, got 'hf:{name}', which is neither."
        )
    if options.pop("trust_remote_code", False):
        raise fail(
            _PRETRAINED, f"`trust_remote_code` must be false: no code is run that hf:{name} brings along."
        )
    with needs("transformers", extra="huggingface", caller=f"hf:{name}"):
        transformers: Any = importlib.import_module("transformers")

    place = f"{where}" if is_local else name
    if "num_classes" in options:
        options["num_labels"] = options.pop("num_classes")
    if pretrained and "num_labels" in options:
        options.setdefault("ignore_mismatched_sizes", True)  # a head for other classes starts anew
    builder = transformers.AutoModelForImageClassification
    with told(f"hf:{name}", caller=_PRETRAINED):
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
