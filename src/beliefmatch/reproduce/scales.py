"""The three scales: the paper's recipes as they are, and the few settings that make them small.

`paper` is a recipe without change. `cpu` lays over it what lets two cores finish in the regime in which the
paper's claims live: few enough images that networks fit them, and softmax ends overconfident.
`tiny` is embedded digits for a moment, which says nothing and proves that every step runs.
All numbers of the small scales stand here and nowhere else.
"""

from collections.abc import Sequence
from typing import Any

from beliefmatch._utils import require_name
from beliefmatch.experiments.config import RunConfig, overridden, recipe

__all__ = [
    "SCALES",
    "method_options",
    "scale_name",
    "scale_words",
    "scaled",
    "seeds_of",
    "training_images",
    "two_core_seconds",
]

SCALES = ("paper", "cpu", "tiny")

_MACHINE = ("engine.precision='32'", "engine.threads=1")
_SEEDS = {"cpu": 3, "tiny": 1}
_TRIALS = 5  # of most tables
_CPU = (
    *_MACHINE,
    "data.validation=1000",
    "training.batch_size=32",  # steps are what a small set lacks
    "training.schedule=cosine",  # fits in fewer steps than the paper's decay
    "training.validate_every=10",
    "defaults.mc_dropout.rate=0.1",  # not searched for: a third of the runs
)
_CPU_OF_DATA = {
    "imagenet-1k": ("data.size=32", "data.validation=0.1", "data.workers=0"),  # any folder with its layout
}
_CPU_NETWORK = {"timm:resnext50_32x4d": "preact_resnet18", "timm:resnext101_32x8d": "preact_resnet50"}
_CPU_WIDTH = {"preact_resnet18": 16, "preact_resnet50": 8}
_CPU_SIZE = ("data.limit=1000", "training.epochs=80", "model.options.stem_stride=2")  # a third of the work
_CPU_ROOMY_SIZE = ("data.limit=1500", "training.epochs=60")
_CPU_METHODS = {
    ("mc_dropout", "all"): {"samples": 10},  # each is a pass through the whole network
    ("ensemble", ""): {"members": 3},
}
_TINY = (
    *_MACHINE,
    "data.name=digits",
    "data.limit=100",
    "data.validation=0.1",
    "data.augment=none",
    "data.size=null",
    "training.epochs=2",
    "training.batch_size=32",
    "training.optimizer=adam",
    "training.learning_rate=0.003",
    "training.warmup=[]",
    "ood=[noise]",
)
_TINY_DEFAULTS = (
    "defaults.mc_dropout={rate: 0.1, where: last, samples: 3}",
    "defaults.ensemble={members: 2}",
)

_SMALLER = ("preact_resnet18", "timm:resnext50_32x4d", "digits")

_IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet-1k": 1_281_167, "digits": 1257}
_DIVIDED = {"digits": 1797}  # what a share for validation is of, where not the training images
_REPORTED = {"imagenet-1k": 50_000, "digits": 540}  # test images; 10,000 elsewhere
_RATES = {
    "preact_resnet18": {64: 45.0, 16: 430.0},
    "preact_resnet50": {64: 17.0, 8: 310.0},
    "timm:resnext50_32x4d": {0: 2.5},
    "timm:resnext101_32x8d": {0: 0.7},
    "wrn28_2": {16: 30.0},  # with as many unlabelled images
    "wide_resnet": {16: 500.0},
    "digits": {32: 10_000.0},
}
"""Images a second that a network trains on two cores, by its width, the usual one first.

Widths 16 and 8 of the ResNets are twice what one thread of an EPYC did without compilation; the others are
guesses by size.
"""
_STRIDE_GAIN = 2.5  # of a stride of 2 at the start
_CONSISTENCY = {"pi": 1.5, "vat": 2.5}  # times the work of the labels alone


def scaled(name: str, scale: str, *settings: str, roomy: bool = False) -> dict[str, Any]:
    """A recipe with settings of one's own, at a scale.

    Args:
        name: of the recipe.
        scale: one of `SCALES`.
        settings: over the recipe, at every scale; the scale goes over them.
        roomy: for one set and one network alone, which leaves time for more images and finer features.
    """
    require_name("reproduce", "scale", scale, SCALES)
    mapping = overridden(recipe(name), settings)
    if scale == "paper" or (scale == "cpu" and name == "digits"):  # which is small enough
        return mapping
    return overridden(
        mapping, _cpu(mapping, roomy) if scale == "cpu" else (*_TINY, *_TINY_DEFAULTS, *_tiny(mapping))
    )


def _cpu(mapping: dict[str, Any], roomy: bool) -> Sequence[str]:
    data, asked = str(mapping["data"]["name"]), str(mapping["model"]["name"])
    network = _CPU_NETWORK.get(asked, asked)
    model = (f"model.name={network}", f"model.options.width={_CPU_WIDTH[network]}")
    return (*_CPU, *(_CPU_ROOMY_SIZE if roomy else _CPU_SIZE), *_CPU_OF_DATA.get(data, ()), *model)


def _tiny(mapping: dict[str, Any]) -> Sequence[str]:
    """A narrower network stands for a deeper one, so that two columns are two trainings."""
    width = 8 if mapping["model"]["name"] in _SMALLER else 6
    return ("model.name=digits", f"model.options.width={width}")


def method_options(method: str, scale: str, **options: Any) -> dict[str, Any]:
    """A method's own options, with what the scale says of it over them."""
    over = _CPU_METHODS.get((method, options.get("where", "")), {}) if scale == "cpu" else {}
    return {**options, **over}


def seeds_of(scale: str, trials: int | None) -> int:
    """Runs of each method, where the paper has so many, or tells none."""
    return (trials or _TRIALS) if scale == "paper" else _SEEDS[scale]


def training_images(config: RunConfig) -> int | None:
    """How many a configuration fits its network to; None where only the data know."""
    if config.data.name not in _IMAGES:
        return config.data.limit
    images, held = _IMAGES[config.data.name], config.data.validation
    left = images - round(held * _DIVIDED.get(config.data.name, images) if held < 1 else held)
    return min(left, config.data.limit or left)


def scale_words(scale: str, configs: Sequence[RunConfig], counts: Sequence[int | None] | None = None) -> str:
    """What has to be said beside every number: "CPU scale: 1,000 images, 80 epochs, width 16".

    Args:
        scale: one of `SCALES`.
        configurations: of all arms.
        counts: training images of each, once they are read; by the configurations if not given.

    >>> scale_words("paper", [])
    'paper scale'
    """
    if scale == "paper":
        return "paper scale"
    images = _listed([training_images(config) for config in configs] if counts is None else counts)
    epochs = _listed([config.training.epochs for config in configs])
    widths = _listed([config.model.options.get("width") for config in configs])
    wide = f", width {widths}" if widths else ""
    labels = _listed(
        [getattr(config.data, "labels", None) for config in configs]
    )  # where unlabelled images serve
    images += f" ({labels} with labels)" if labels else ""
    return f"{scale_name(scale)}: {images} images, {epochs} {'epoch' if epochs == '1' else 'epochs'}{wide}"


def scale_name(scale: str) -> str:
    """Such as "CPU scale"."""
    return f"{'CPU' if scale == 'cpu' else scale} scale"


def _listed(numbers: Sequence[Any]) -> str:
    texts = [text for text in dict.fromkeys(map(_text, numbers)) if text]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _text(number: Any) -> str:
    """A user may have given anything, which is told where it is used."""
    return "" if number is None else f"{number:,}" if isinstance(number, int) else f"{number}"


def two_core_seconds(config: RunConfig) -> float | None:
    """Very roughly the seconds of a run on two cores, by `_RATES`."""
    images, rates = training_images(config), _RATES.get(config.model.name)
    if images is None or rates is None:
        return None
    usual, options = next(iter(rates)), config.method.options
    width = config.model.options.get("width", usual)
    if not isinstance(width, int) or width < 1:  # told where the network is built
        return None
    rate = rates[width] if width in rates else rates[usual] * (usual / width) ** 2
    rate *= _STRIDE_GAIN if config.model.options.get("stem_stride") == 2 else 1
    rate /= _CONSISTENCY[config.semi.kind] if config.semi is not None else 1
    passes = options.get("samples", 100) if options.get("where") == "all" else 1
    predicted = passes * (2 * _REPORTED.get(config.data.name, 10_000)) / 3  # a step is three passes
    members = options.get("members", 5) if "ensemble" in config.method.name else 1
    return members * (images * config.training.epochs + predicted) / rate
