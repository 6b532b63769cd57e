"""The three scales: the paper's recipes as they are, and the few settings that make them small.

`paper` is a recipe without change. `cpu` makes it small enough for two cores, in the regime of the paper's
claims: so few images that networks fit them, and softmax ends overconfident. `tiny` takes seconds on embedded
digits, and only shows that every step runs. All numbers of the small scales are here.
"""

from collections.abc import Sequence
from typing import Any, get_args

from beliefmatch.experiments.config import RunConfig, overridden, recipe
from beliefmatch.reproduce.config import Scale
from beliefmatch.reproduce.dataset_facts import DATASET_FACTS

__all__ = [
    "SCALES", "SMALL_SEEDS", "method_options", "scale_name", "scale_words", "scaled", "training_images",
    "two_core_seconds",
]  # fmt: skip

SCALES = get_args(Scale)
SMALL_SEEDS = {"cpu": 3, "tiny": 1}

_MACHINE = ("engine.precision='32'", "engine.threads=1")
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
_CPU_LARGER_SIZE = ("data.limit=1500", "training.epochs=60")
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
    "defaults.mc_dropout={rate: 0.1, where: last, samples: 3}",
    "defaults.ensemble={members: 2}",
    "model.name=digits",
)
_TINY_WIDTHS = {"preact_resnet50": 6, "timm:resnext101_32x8d": 6}
"""A narrower network stands for a deeper one, so that two columns are two trainings; 8 for the others."""

_DIVIDED = {"digits": 1797}  # images that a fraction for validation is taken of, where not those of training
_RATES = {
    "preact_resnet18": {64: 45.0, 16: 430.0},
    "preact_resnet50": {64: 17.0, 8: 310.0},
    "wrn28_2": {16: 30.0},  # with as many unlabelled images
    "wide_resnet": {16: 500.0},
    "digits": {32: 10_000.0},
}
"""Training images a second on two cores, by the width of the network, the default one first.

Those of widths 16 and 8 are twice what one thread of an EPYC did without compilation; others are guesses.
"""
_STRIDE_GAIN = 2.5  # of a stride of 2 at the start
_CONSISTENCY = {"pi": 1.5, "vat": 2.5}  # times the work of the labels alone


def scaled(name: str, scale: str, *settings: str, larger: bool = False) -> dict[str, Any]:
    """A recipe at a scale.

    Args:
        name: Name of the recipe.
        scale: One of `SCALES`.
        settings: Settings over the recipe; those of the scale come over them.
        larger: More images and finer features at CPU scale, for one dataset and one network.
    """
    mapping = overridden(recipe(name), settings)
    if scale == "paper" or (scale == "cpu" and name == "digits"):  # which is small enough
        return mapping
    network = str(mapping["model"]["name"])
    if scale == "tiny":
        return overridden(mapping, (*_TINY, f"model.options.width={_TINY_WIDTHS.get(network, 8)}"))
    network = _CPU_NETWORK.get(network, network)
    model = (f"model.name={network}", f"model.options.width={_CPU_WIDTH[network]}")
    data = _CPU_OF_DATA.get(str(mapping["data"]["name"]), ())
    return overridden(mapping, (*_CPU, *(_CPU_LARGER_SIZE if larger else _CPU_SIZE), *data, *model))


def method_options(method: str, scale: str, **options: Any) -> dict[str, Any]:
    """Options of a method, with those of the scale over them."""
    over = _CPU_METHODS.get((method, options.get("where", "")), {}) if scale == "cpu" else {}
    return {**options, **over}


def training_images(config: RunConfig) -> int | None:
    """Number of training images of a configuration; None where it depends on the data."""
    facts = DATASET_FACTS.get(config.data.name)
    if facts is None or facts.train_images is None:
        return config.data.limit
    images, held = facts.train_images, config.data.validation
    left = images - round(held * _DIVIDED.get(config.data.name, images) if held < 1 else held)
    return min(left, config.data.limit or left)


def scale_name(scale: str) -> str:
    """Such as "CPU scale"."""
    return f"{'CPU' if scale == 'cpu' else scale} scale"


def scale_words(scale: str, configs: Sequence[RunConfig], counts: Sequence[int | None]) -> str:
    """The scale in words, such as "CPU scale: 1,000 images, 80 epochs, width 16".

    Args:
        scale: A scale other than the paper's.
        configs: Configurations of all arms.
        counts: Training images of each.
    """
    labels = _listed([config.data.labels for config in configs])  # of semi-supervised learning
    epochs = _listed([config.training.epochs for config in configs])
    widths = _listed([config.model.options.get("width") for config in configs])
    parts = [
        f"{_listed(counts)} images{f' ({labels} with labels)' if labels else ''}",
        f"{epochs} {'epoch' if epochs == '1' else 'epochs'}",
        *([f"width {widths}"] if widths else []),
    ]
    return f"{scale_name(scale)}: {', '.join(parts)}"


def _listed(numbers: Sequence[Any]) -> str:
    """Different numbers; the options of a user may hold any value."""
    texts = [f"{one:,}" if isinstance(one, int) else f"{one}" for one in numbers if one is not None]
    *texts, last = dict.fromkeys(texts) or [""]
    return f"{', '.join(texts)} or {last}" if texts else last


def two_core_seconds(config: RunConfig) -> float | None:
    """Rough estimate of the seconds of a run on two cores, by `_RATES`; None where there is none."""
    images, rates = training_images(config), _RATES.get(config.model.name)
    if images is None or rates is None:
        return None
    default, options = next(iter(rates)), config.method.options
    width = config.model.options.get("width", default)
    if not isinstance(width, int) or width < 1:  # an error where the network is built
        return None
    rate = rates[width] if width in rates else rates[default] * (default / width) ** 2
    rate *= _STRIDE_GAIN if config.model.options.get("stem_stride") == 2 else 1
    rate /= _CONSISTENCY[config.semi.kind] if config.semi is not None else 1
    passes = options.get("samples", 100) if options.get("where") == "all" else 1
    facts = DATASET_FACTS.get(config.data.name)
    test_images = 10_000 if facts is None else facts.test_images
    predicted = passes * 2 * test_images / 3  # a step is three passes
    members = options.get("members", 5) if "ensemble" in config.method.name else 1
    return members * (config.training.epoch_examples(images) * config.training.epochs + predicted) / rate
