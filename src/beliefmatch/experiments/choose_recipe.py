"""The recipe that `train` and `compare` start from, where the user names none: it fits data and machine."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from beliefmatch.data.config import DataConfig, is_table

__all__ = ["ChosenRecipe", "choose_recipe", "target_kl_weight"]

RECIPE_OF = {"digits": "digits", "cifar10": "cifar", "cifar100": "cifar", "imagenet-1k": "imagenet"}
"""The recipe that a dataset starts from on a GPU; `images` for all others."""

IMAGE_BUDGET = 60_000
"""Images of 32 by 32 pixels that a network is trained on with a CPU, about a minute on one core."""
ROW_BUDGET = 600_000
"""Rows of a table that a network is trained on, about a minute on one core."""

_SIDE = 32  # of the images that the budget counts
_LARGE_SIDE = 64  # larger images are resized to this
_STRIDED_SIDE = 48  # from here on the first convolution has a stride of two
_IMAGE_EPOCHS = (5, 40)  # the fewest and the most
_ROW_EPOCHS = (10, 100)
_SAMPLED = 24  # images that are looked at


class ChosenRecipe(NamedTuple):
    """A recipe, what is set over it for the data and the machine, and sentences that say so."""

    name: str
    changes: Mapping[str, Any]
    notes: tuple[str, ...]


def choose_recipe(
    data: Mapping[str, Any], *, accelerator: str = "auto", epochs: int | None = None
) -> ChosenRecipe:
    """The recipe for data by name or path, so that a first run on a CPU takes minutes.

    The choice depends on the number and size of the images or rows, and on whether there is a GPU, and never
    on measured times: the same command makes the same choice again.

    Args:
        data: the settings of the data that the user gave, as `DataConfig` takes them.
        accelerator: as the user gave it; "auto" is a GPU where there is one.
        epochs: as the user gave them; chosen if not given.
    """
    config = DataConfig(**data)
    if config.name == "digits":
        return ChosenRecipe("digits", {}, ())
    if config.name not in RECIPE_OF and is_table(config.name):
        return _for_table(config, epochs)
    if not _is_on_cpu(accelerator):
        return ChosenRecipe(RECIPE_OF.get(config.name, "images"), {}, ())
    return _for_images(config, epochs)


def _is_on_cpu(accelerator: str) -> bool:
    if accelerator != "auto":
        return accelerator == "cpu"
    import torch

    return not (torch.cuda.is_available() or torch.backends.mps.is_available())


def _for_table(config: DataConfig, epochs: int | None) -> ChosenRecipe:
    from beliefmatch.experiments.build import dataset

    facts = dataset(config).facts  # cached: the run reads the same data
    rows, classes = facts["counts"]["train"], facts["classes"]
    epochs = epochs or _epochs(ROW_BUDGET / rows, _ROW_EPOCHS)
    kl_weight = target_kl_weight(classes)
    defaults = {name: {"kl_weight": kl_weight} for name in ("belief_matching", "belief_ensemble")}
    defaults["label_smoothing"] = {"matched_kl_weight": kl_weight}
    note = (
        f"Recipe tabular with {epochs} epochs, chosen for {rows:,} training rows, and λ = {kl_weight:g} for "
        f"{classes} classes: a perceptron (--model mlp). --epochs, --model, --kl-weight and --set change it; "
        "--dry-run prints it."
    )
    return ChosenRecipe("tabular", {"training": {"epochs": epochs}, "defaults": defaults}, (note,))


def target_kl_weight(classes: int, *, confidence: float = 0.99) -> float:
    """The λ, to one digit, at which belief matching asks about this confidence of a labelled example.

    That confidence is (1 + 1/λ) / (K + 1/λ) with K classes and a prior of 1.

    >>> [target_kl_weight(classes) for classes in (2, 3, 10, 100)]
    [0.01, 0.005, 0.001, 0.0001]
    """
    from beliefmatch._labels import kl_weight_of  # imports torch

    return float(f"{kl_weight_of(confidence, 1.0, classes):.1g}")


def _for_images(config: DataConfig, epochs: int | None) -> ChosenRecipe:
    from beliefmatch.data.loading import read_parts

    found, _ = read_parts(config)
    part = found.get("train") or next(iter(found.values()), None)
    count = 0 if part is None else len(part.images)
    sides = set() if part is None else _sides(part.images)
    larger = RECIPE_OF.get(config.name, "images")
    size = config.size
    if size is None and (len(sides) > 1 or max(map(max, sides), default=0) > _LARGE_SIDE):
        size = _LARGE_SIDE
    side = size or max(map(max, sides), default=_SIDE)
    passes = IMAGE_BUDGET * min(1.0, (_SIDE / side) ** 2 * (4 if side >= _STRIDED_SIDE else 1))
    least, most = _IMAGE_EPOCHS
    limit = config.limit
    if limit is None and count * least > passes:
        limit = int(passes) // least
    epochs = epochs or _epochs(passes / max(1, min(count, limit or count)), (least, most))
    changes: dict[str, Any] = {"training": {"epochs": epochs}, "data": {}}
    if side >= _STRIDED_SIDE:
        changes["model"] = {"options": {"stem_stride": 2}}
    resized = ""
    if config.size is None and size is not None:
        changes["data"]["size"] = size
        resized = f", images resized to {size} pixels"
    if limit is not None and limit != config.limit:
        changes["data"]["limit"] = limit
        resized += f", {limit:,} training images at most"
    big = f"--recipe {larger}" + (" --set data.size=224" if resized and larger == "images" and size else "")
    note = (
        f"Recipe images-cpu with {epochs} epochs{resized}, chosen for {count:,} images and a CPU: a small "
        f"convolutional network (--model small_cnn). The full training is {big}, which takes hours on a CPU."
    )
    return ChosenRecipe("images-cpu", changes, (note,))


def _sides(images: Any) -> set[tuple[int, int]]:
    """Height and width of some images, evenly spread."""
    from beliefmatch.data.images import ArrayImages, UnreadableImage

    if isinstance(images, ArrayImages):
        return {(images.pixels.shape[1], images.pixels.shape[2])}
    found = set()
    for index in range(0, len(images), max(1, len(images) // _SAMPLED)):
        try:
            image = images.read(index)
        except UnreadableImage:  # reported when the data are loaded
            continue
        found.add((image.height, image.width))
    return found


def _epochs(wanted: float, bounds: tuple[int, int]) -> int:
    least, most = bounds
    return max(least, min(most, round(wanted)))
