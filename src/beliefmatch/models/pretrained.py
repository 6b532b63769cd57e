"""Trained networks by name: of timm, torchvision, Hugging Face, this package, or the user's own code.

Also the preprocessing that they expect, and weights from files that cannot execute code.
"""

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
from beliefmatch._utils import nearest, option_names, reason_of, require_name, require_options
from beliefmatch._validate import fail
from beliefmatch.models import MODELS

__all__ = [
    "ExpectedInput",
    "LoadedWeights",
    "custom_model",
    "declared_input",
    "hugging_face_location",
    "load_weights",
    "one_line_errors",
    "preprocessing_of",
    "pretrained_model",
    "timm_model",
    "with_expected_input",
]

_BUILD = "build_model"
_PRETRAINED = "pretrained_model"
_OTHER_NAMES = ", timm:NAME, torchvision:NAME, hf:OWNER/NAME or package.module:factory"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def pretrained_model(
    name: str, *, options: Mapping[str, Any] | None = None, weights: str | Path | None = None
) -> nn.Module:
    """Build a trained network with its own head, in eval mode.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, or ``hf:OWNER/NAME`` on the Hugging Face hub, with the
            weights published under that name; ``hf:DIRECTORY``; a name of `MODELS`, with `weights`; or
            ``package.module:factory`` for the user's own.
        options: options of the network. `num_classes` is only passed on if it is given here;
            `pretrained: false` builds the network without its published weights.
        weights: file of weights to load instead of the published ones; see `load_weights`.

    Raises:
        ValueError: the name, the options or the weights cannot be used; the message is one line.
    """
    given = dict(options or {})
    kind, colon, rest = name.partition(":")
    publisher = _PUBLISHERS.get(kind) if colon else None
    if publisher is not None:
        pretrained = given.pop("pretrained", weights is None)
        if pretrained not in (True, False):
            raise fail(_PRETRAINED, f"`pretrained` must be true or false, got {pretrained!r}.")
        network = publisher(rest, pretrained, given)
    elif colon:
        network = custom_model(name, **{"num_classes": None, "channels": None, **given})
    else:
        require_name(_PRETRAINED, "name", name, MODELS, other=_OTHER_NAMES)
        if given.pop("pretrained", True) and weights is None:
            raise fail(_PRETRAINED, f"`weights` must be given for {name}, which has no published weights.")
        factory = resolve_name(MODELS[name])
        require_options(_PRETRAINED, name, factory, given)
        network = factory(**given)
    if weights is not None:
        load_weights(network, weights)
    return network.eval()


# Networks of other packages


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
    """A network of timm, with `dropout` in front of its last layer.

    Where `num_classes` or `channels` is None, timm's own number is used.
    """
    if dropout_in_blocks:
        raise fail(
            _BUILD,
            f"timm:{name} has dropout in front of the last layer only; "
            "choose `where: last`, or a network of this package for dropout in all layers.",
        )
    with needs("timm", extra="vision", caller=f"timm:{name}"):
        timm: Any = importlib.import_module("timm")  # type checkers cannot see it where it is not installed

    if not timm.is_model(name) and ":" not in name:  # timm resolves hf-hub: and local-dir: itself
        hint = _did_you_mean(name, timm.list_models(), "timm:")
        raise fail(_BUILD, f"`name` must be a network of timm, got {name!r}{hint}")
    shape = {"num_classes": num_classes, "in_chans": channels}
    options |= {key: value for key, value in shape.items() if value is not None}
    with one_line_errors(f"timm:{name}"):
        network = timm.create_model(name, pretrained=pretrained, drop_rate=dropout, **options)
    return _with_dropout_module(network, dropout) if dropout else network


def _with_dropout_module(network: Any, rate: float) -> nn.Module:
    """Replace functional dropout, which MC dropout cannot reach, by a module in front of the classifier."""
    if any(isinstance(module, nn.Dropout) and module.p > 0 for module in network.modules()):
        return network
    classifier = network.get_classifier()
    name = next(name for name, module in network.named_modules() if module is classifier)
    network.drop_rate = 0.0
    network.set_submodule(name, nn.Sequential(nn.Dropout(rate), classifier))
    return network


def _timm(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    return timm_model(name, **{"num_classes": None, "channels": None, **options}, pretrained=pretrained)


def _torchvision(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    with needs("torchvision", extra="vision", caller=f"torchvision:{name}"):
        models: Any = importlib.import_module("torchvision.models")

    known = models.list_models(module=models)
    if name not in known:
        hint = _did_you_mean(name, known, "torchvision:")
        raise fail(_PRETRAINED, f"`name` must be a classifier of torchvision, got {name!r}{hint}")
    with one_line_errors(f"torchvision:{name}", caller=_PRETRAINED):
        published = models.get_model_weights(name).DEFAULT
        network = models.get_model(name, weights=published if pretrained else None, **options)
    return with_expected_input(network, ExpectedInput.from_torchvision(published.transforms()))


def hugging_face_location(name: str, options: dict[str, Any], *, caller: str) -> str:
    """The directory or address on the hub that ``hf:NAME`` means; removes `trust_remote_code`, if false."""
    kind, _, rest = name.partition(":")
    directory = Path(rest).expanduser()
    is_local = bool(rest) and directory.is_dir()
    if kind != "hf" or not (is_local or _HUB_NAME.fullmatch(rest)):
        raise fail(caller, f"`name` must be hf:OWNER/NAME or hf:DIRECTORY, got {name!r}.")
    if options.pop("trust_remote_code", False):
        raise fail(caller, f"`trust_remote_code` must be false: code from {name} is never executed.")
    return f"{directory}" if is_local else rest


def _hugging_face(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    location = hugging_face_location(f"hf:{name}", options, caller=_PRETRAINED)
    with needs("transformers", extra="huggingface", caller=f"hf:{name}"):
        transformers: Any = importlib.import_module("transformers")

    if "num_classes" in options:
        options["num_labels"] = options.pop("num_classes")
    if pretrained and "num_labels" in options:
        options.setdefault("ignore_mismatched_sizes", True)  # a head for other classes is initialised anew
    builder = transformers.AutoModelForImageClassification
    with one_line_errors(f"hf:{name}", caller=_PRETRAINED):
        if pretrained:
            options |= {"use_safetensors": True, "trust_remote_code": False}
            network = builder.from_pretrained(location, **options)
        else:
            config = transformers.AutoConfig.from_pretrained(location, trust_remote_code=False, **options)
            network = builder.from_config(config, trust_remote_code=False)
    return with_expected_input(network, _published_processor(location))


_PUBLISHERS = {"timm": _timm, "torchvision": _torchvision, "hf": _hugging_face}


def custom_model(address: str, *, num_classes: int | None, channels: int | None, **options: Any) -> nn.Module:
    """The network that the user's factory ``package.module:factory`` returns.

    The current directory can be imported from, as with ``python -m``. `num_classes` and `channels` are passed
    on where they are not None, `channels` only if the signature has it.
    """
    with _current_directory_on_path():
        factory = _import_factory(address)
        names = option_names(factory)
        given = options if num_classes is None else {"num_classes": num_classes, **options}
        if channels is not None and "channels" in inspect.signature(factory).parameters:
            given["channels"] = channels
        if names is not None and "dropout_in_blocks" not in names and not given.get("dropout_in_blocks"):
            given.pop("dropout_in_blocks", None)  # a factory without this option need not know about it
        require_options(_BUILD, address, factory, given)
        with one_line_errors(address):
            network = factory(**given)
    if not isinstance(network, nn.Module):
        raise fail(
            _BUILD, f"{address} must return a torch.nn.Module, got {type(network).__name__}.", TypeError
        )
    return network


def _import_factory(address: str) -> Callable[..., Any]:
    module, _, path = address.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise fail(_BUILD, f"`name` must have the form package.module:factory, got {address!r}.")
    with one_line_errors(f"importing {module}"):
        found: Any = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(found, part):
            hint = _did_you_mean(part, [name for name in dir(found) if not name.startswith("_")])
            raise fail(_BUILD, f"{module} has no {path}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise fail(_BUILD, f"{address} must be callable, got {type(found).__name__}.", TypeError)
    return found


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


@contextmanager
def one_line_errors(action: str, *, caller: str = _BUILD) -> Iterator[None]:
    """Turn any exception of external code into a one-line ValueError or TypeError with it as the cause."""
    try:
        yield
    except (Exception, SystemExit) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise fail(caller, f"{action} failed ({reason_of(error, typed=True)}).", kind) from error


def _did_you_mean(word: str, valid: Sequence[str], prefix: str = "") -> str:
    close = nearest(word, valid)
    return f"; did you mean {prefix}{close}?" if close else "."


# Preprocessing

_EXPECTED = (
    "_beliefmatch_expected"  # with an underscore, so that it does not count as a setting of the network
)
_UNCROPPED_SIZE = 384  # from this size on, the publishers of ConvNeXt do not crop
_PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


class ExpectedInput(NamedTuple):
    """Preprocessing that a network was trained with, by the names of `DataConfig`; None where unknown."""

    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    size: int | None
    """Height and width in pixels."""
    margin: float | None
    """Short side that images are resized to, divided by the size that is cropped from the centre."""
    interpolation: str | None = None
    """Interpolation of the resizing; `DataConfig` has bilinear only."""

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> ExpectedInput:
        """From the configuration that timm's networks carry."""
        shape, is_whole = config.get("input_size") or (), config.get("crop_mode", "center") != "center"
        return cls(
            _channels(config.get("mean")),
            _channels(config.get("std")),
            _square(shape[1], shape[2]) if len(shape) == 3 else None,
            1.0 if is_whole else _margin(1, config.get("crop_pct")),
            config.get("interpolation"),
        )

    @classmethod
    def from_torchvision(cls, transforms: Any) -> ExpectedInput:
        """From the transforms that torchvision publishes with weights."""
        size, short = transforms.crop_size[0], transforms.resize_size[0]
        interpolation = getattr(transforms.interpolation, "value", None)
        mean, std = _channels(transforms.mean), _channels(transforms.std)
        return cls(mean, std, size, _margin(short, size), interpolation)

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> ExpectedInput:
        """From the `preprocessor_config.json` of an image processor of Hugging Face."""
        interpolation = _PILLOW_FILTERS.get(config.get("resample", -1))
        return cls(*_processor_scaling(config), *_processor_crop(config), interpolation)


def preprocessing_of(model: nn.Module) -> ExpectedInput | None:
    """The preprocessing that a network expects; None if it is not known.

    A user's network declares it (see `declared_input`), networks of timm carry it, those of Hugging Face
    carry the name under which it is published, and those of torchvision have it only if `pretrained_model`
    built them. It belongs to the published weights: a network with other weights may have been trained with
    another preprocessing.
    """
    if (expected := getattr(model, _EXPECTED, None) or declared_input(model)) is not None:
        return expected
    for name in ("pretrained_cfg", "default_cfg"):
        if isinstance(config := getattr(model, name, None), Mapping) and "mean" in config:
            return ExpectedInput.from_timm(config)
    published = getattr(model, "name_or_path", None)
    if isinstance(published, str) and published:
        return _published_processor(published, local_files_only=True)
    return None


def declared_input(model: nn.Module) -> ExpectedInput | None:
    """The preprocessing that a user's network has in its attribute `preprocessing` or `data_config`, if any.

    The attribute is an `ExpectedInput`, the result of `timm.data.resolve_model_data_config`, or a mapping
    with "mean" and "std" for pixels between 0 and 1, and optionally "size" and "margin".
    """
    for name in ("preprocessing", "data_config"):
        declared = getattr(model, name, None)
        if isinstance(declared, ExpectedInput):
            return declared
        if isinstance(declared, Mapping) and {"mean", "std"} <= declared.keys():
            found = ExpectedInput.from_timm(declared)
            size, margin = declared.get("size", found.size), declared.get("margin", found.margin)
            return found._replace(size=size, margin=margin)
    return None


def with_expected_input(model: nn.Module, expected: ExpectedInput | None) -> nn.Module:
    """The same network, for which `preprocessing_of` returns `expected` from now on."""
    if expected is not None:
        setattr(model, _EXPECTED, expected)
    return model


def _published_processor(name: str, **options: Any) -> ExpectedInput | None:
    """What the image processor that Hugging Face publishes with a network does, if there is one."""
    try:
        from transformers import ImageProcessingMixin  # pyright: ignore

        config, _ = ImageProcessingMixin.get_image_processor_dict(name, **options)
    except (ImportError, OSError, ValueError):
        return None
    return ExpectedInput.from_hugging_face(config)


def _processor_scaling(
    config: Mapping[str, Any],
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and std for pixels p in [0, 1]; processors compute (255 · factor · p − offset − m) / s."""
    factor = 255 * config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 255.0
    offset = 1.0 if config.get("rescale_offset") else 0.0
    mean, std = (_channels(config.get(name)) for name in ("image_mean", "image_std"))
    second_std = std if config.get("include_top") else None  # EfficientNet divides twice
    if not config.get("do_normalize", True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    if std is not None and second_std is not None:
        std = tuple(one * other for one, other in zip(std, second_std, strict=True))
    if mean is None or std is None:
        return None, None
    return tuple((offset + one) / factor for one in mean), tuple(one / factor for one in std)


def _processor_crop(config: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Size and margin."""
    size, crop = (_height_width(config.get(name)) for name in ("size", "crop_size"))
    if not config.get("do_resize", True):
        size = None
    if config.get("do_center_crop") and crop is not None:
        return _square(*crop), _margin(min(size), crop[0]) if size is not None else None
    if size is None:
        return None, None
    kept = config.get("crop_pct")
    is_cropped = kept is not None and min(size) < _UNCROPPED_SIZE
    return _square(*size), _margin(1, kept) if is_cropped else 1.0


def _height_width(size: Any) -> tuple[int, int] | None:
    """A size in any of the forms that releases of transformers have written: number, pair or mapping."""
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        size = (size.get("height", edge), size.get("width", edge))
    pair = (size, size) if isinstance(size, int) else size
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(one, int) for one in pair):
        return pair[0], pair[1]
    return None


def _square(height: int, width: int) -> int | None:
    return height if height == width else None


def _margin(short: float, size: float | None) -> float | None:
    """At least 1: where publishers crop more than the resized image, they pad."""
    return max(1.0, short / size) if size else None


def _channels(values: Any) -> tuple[float, ...] | None:
    if isinstance(values, int | float):
        values = (values,) * 3
    return None if values is None else tuple(float(value) for value in values)


# Weights from files

_LOAD = "load_weights"
_TORCH_SUFFIXES = (".pt", ".pth", ".th", ".bin")
_CONTAINERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.")
_MAX_PREFIXES = 3  # such as of a compiled network inside a parallel one
_OPTIONAL = "num_batches_tracked"  # missing in files older than torch 0.4.1
_SHOWN_NAMES = 3  # in an error


class LoadedWeights(NamedTuple):
    """What `load_weights` found in a file."""

    path: Path
    container: str
    """Key that the tensors were stored under, or the empty string."""
    prefix: str
    """Prefix removed from the names of the tensors, or the empty string."""
    missing: tuple[str, ...]
    """Tensors of the network that the file does not have; they were not changed."""
    unexpected: tuple[str, ...]
    """Tensors of the file that the network does not have."""


def load_weights(model: nn.Module, path: str | Path, *, strict: bool = True) -> LoadedWeights:
    """Load a file of weights into a network, converted to its types; nothing changes if they do not fit.

    Training scripts store tensors under "state_dict", "model_state_dict" or "model", and wrappers prefix
    their names with "module.", "_orig_mod." or "model."; both are removed where the names then match.

    Args:
        model: network to load into.
        path: .safetensors file, or .pt, .pth, .th or .bin file, from which torch loads tensors only.
        strict: whether file and network must have the same tensors. If false, tensors of the same name must
            still have the same shape, and there must be at least one.

    Raises:
        ValueError: the file cannot be read, needs code to be read, or does not fit; the message is one line.
    """
    path = Path(path).expanduser()
    found, container = _find_tensors(_read_weights(path), path)
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    prefix, state = _without_prefix(found, own)
    missing = _missing(own, state)
    unexpected = tuple(name for name in state if name not in own)
    if not any(name in own for name in state) or (strict and (missing or unexpected)):
        raise _name_mismatch(path, own, missing, unexpected)
    _require_same_shapes(path, own, state)
    model.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)
    return LoadedWeights(path, container, prefix, missing, unexpected)


def _read_weights(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix not in (".safetensors", *_TORCH_SUFFIXES):
        raise fail(_LOAD, f"`path` must end in .safetensors or {', '.join(_TORCH_SUFFIXES)}, got {path}.")
    if not path.is_file():
        what = "the directory " if path.is_dir() else "" if path.exists() else "no file at "
        raise fail(_LOAD, f"`path` must be a file, got {what}{path}.")
    try:
        if suffix != ".safetensors":
            return torch.load(path, map_location="cpu", weights_only=True)
        with needs("safetensors", extra="files", caller=_LOAD):
            from safetensors.torch import load_file
        return load_file(path)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # decoders raise all kinds of exceptions about damaged files
        code = re.search(r"Unsupported\s+(?:global|class)\S*\s+(?:GLOBAL )?([\w.]+)", f"{error}")
        if code is not None:
            got = f"got {path}, a pickle that needs code of {code[1]}; save `model.state_dict()` alone"
        else:
            got = f"cannot read {path} ({reason_of(error, limit=160)})"
        raise fail(_LOAD, f"`path` must be a complete {suffix} file of tensors, {got}.") from error


def _find_tensors(content: Any, path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors by name, and the key that they were stored under."""
    if isinstance(content, Mapping):
        for key in (*_CONTAINERS, ""):
            inner = content.get(key) if key else content
            if isinstance(inner, Mapping):
                state = {f"{name}": value for name, value in inner.items() if isinstance(value, Tensor)}
                if state:
                    return state, key
        got = _listed([f"{key}" for key in content]) if content else "nothing"
    else:
        got = f"a {type(content).__name__}"
    fact = "`path` must contain tensors by name, as `model.state_dict()` has"
    raise fail(_LOAD, f"{fact}, got {got} in {path}.")


def _without_prefix(
    found: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> tuple[str, Mapping[str, Tensor]]:
    """The shortest prefix without which most names match, and the tensors named without it."""
    best, state, most = "", found, sum(name in own for name in found)
    for depth in range(1, _MAX_PREFIXES + 1):
        for prefix in map("".join, product(_PREFIXES, repeat=depth)):
            renamed = {name.removeprefix(prefix): value for name, value in found.items()}
            matches = sum(name in own for name in renamed)
            if matches > most and len(renamed) == len(found):
                best, state, most = prefix, renamed, matches
    return best, state


def _missing(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Names that the file lacks, except those of tied tensors that it has under another name."""
    known = {
        (value.data_ptr(), value.shape) for name, value in own.items() if name in state and value.numel()
    }
    return tuple(
        name
        for name, value in own.items()
        if name not in state
        and name.rpartition(".")[2] != _OPTIONAL
        and (value.data_ptr(), value.shape) not in known
    )


def _name_mismatch(
    path: Path, own: Mapping[str, Tensor], missing: Sequence[str], unexpected: Sequence[str]
) -> Exception:
    faults = [f"without {_listed(missing)}"] * bool(missing)
    faults += [f"with {_listed(unexpected)}"] * bool(unexpected)
    ours, theirs = (missing or tuple(own))[0], unexpected[0] if unexpected else ""
    if missing and unexpected:
        theirs = nearest(ours, unexpected)
    elif unexpected:
        ours = nearest(theirs, tuple(own)) or ""
    hint = f"; is {ours} named {theirs} in the file?" if ours and theirs else "."
    fact = f"`path` must contain the {len(own)} tensors of the network and no others"
    return fail(_LOAD, f"{fact}, got {path} {' and '.join(faults)}{hint}")


def _require_same_shapes(path: Path, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    wrong = [name for name in own if name in state and own[name].shape != state[name].shape]
    if wrong:
        ours, theirs = (tuple(tensors[wrong[0]].shape) for tensors in (own, state))
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        pairs = [(own[name].shape, state[name].shape) for name in wrong]
        is_head = len(wrong) <= 2 and all(len(a) == len(b) > 0 and a[1:] == b[1:] for a, b in pairs)
        n_classes = {b[0] for _, b in pairs if len(b)}
        remedy = ""
        if is_head and len(n_classes) == 1:
            option = f"`--model-option num_classes={n_classes.pop()}`"
            remedy = f"; if that is the head, build the network for the classes of the file: {option}"
        fact = f"`{wrong[0]}` must have the network's shape {ours}, got {theirs}{more} in {path}"
        raise fail(_LOAD, f"{fact}{remedy}.")
    for name in own:
        if name in state and own[name].is_floating_point() != state[name].is_floating_point():
            ours, theirs = (f"{tensors[name].dtype}".removeprefix("torch.") for tensors in (own, state))
            raise fail(_LOAD, f"`{name}` must have a dtype like {ours}, got {theirs} in {path}.")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
