"""What a trained network expects of its images, as its publishers tell it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

__all__ = ["Expected", "expecting", "of_processor", "of_timm", "of_transforms", "preprocessing_of"]

_SAID = "_beliefmatch_expected"  # with an underscore, or it would count as a setting of the network
_LARGE = 384  # from this size on ConvNeXt's publishers cut nothing off


class Expected(NamedTuple):
    """Preprocessing that a network was trained for, by the names of `DataSettings`; None where untold."""

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
