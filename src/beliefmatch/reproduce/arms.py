"""Arms of the tables and figures: one method on one dataset with one network, trained with every seed.

Arms with equal configurations share their runs, whichever table or figure they belong to.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from beliefmatch.experiments.config import RunConfig, config_from, overridden, recipe, with_method
from beliefmatch.methods import SEARCH
from beliefmatch.reproduce.dataset_facts import DATASET_FACTS
from beliefmatch.reproduce.scales import method_options, scaled

__all__ = [
    "BELIEF", "CIFAR", "ENSEMBLE", "EXPONENTS", "KL_WEIGHT", "MC_ALL", "MC_LAST", "RESNETS", "SIZES",
    "SOFTMAX", "SWEPT_WEIGHT", "WITHOUT_KL", "Arm", "Variant", "cifar_arms", "control_arms", "imagenet_arms",
    "is_size_arm", "prior_arms", "rotation_arms", "semi_supervised_arms",
]  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A row of a table."""

    key: str
    """Unique in its reproduction, the same at every scale."""
    group: str
    """Title of the rows it is compared with, such as "ResNet-18, CIFAR-10"."""
    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """As `config_from` takes them; an option of the method may be left to a search."""

    @property
    def config(self) -> RunConfig:
        """Configuration with the seed of the recipe."""
        return config_from(self.settings)


class Variant(NamedTuple):
    """A method with options."""

    key: str
    label: str
    method: str
    options: Mapping[str, Any] = MappingProxyType({})


# The paper's arms on CIFAR, by the recipe of its table 1

CIFAR = ("cifar10", "cifar100")
RESNETS = {"preact_resnet18": "ResNet-18", "preact_resnet50": "ResNet-50"}

SOFTMAX = Variant("softmax", "softmax", "softmax")
MC_LAST = Variant("mc_last", "MC dropout, last layer", "mc_dropout", {"where": "last"})
MC_ALL = Variant("mc_all", "MC dropout, all layers", "mc_dropout", {"where": "all"})
ENSEMBLE = Variant("ensemble", "ensemble", "ensemble")
BELIEF = Variant("belief_matching", "belief matching", "belief_matching")
WITHOUT_KL = Variant("without_kl", "belief matching without KL", "belief_matching_without_kl")


def cifar_arms(
    scale: str,
    *,
    datasets: Iterable[str] = ("cifar10",),
    networks: Iterable[str] = ("preact_resnet50",),
    variants: Iterable[Variant],
    larger: bool = False,
) -> list[Arm]:
    """Every network on every dataset with every variant; with `larger`, on more images at CPU scale."""
    arms = []
    for network in networks:
        for data in datasets:
            base = scaled("cifar", scale, f"data.name={data}", f"model.name={network}", larger=larger)
            for variant in variants:
                options = method_options(variant.method, scale, **variant.options)
                settings = with_method(base, variant.method, **options)
                group = f"{RESNETS[network]}, {DATASET_FACTS[data].title}"
                arms.append(Arm(f"{data}/{network}/{variant.key}", group, variant.label, settings))
    return arms


# ImageNet: the paper's name and λ of each network

_RESNEXTS = {
    "timm:resnext50_32x4d": ("ResNeXt-50", 0.001),
    "timm:resnext101_32x8d": ("ResNeXt-101", 0.0001),
}


def imagenet_arms(scale: str) -> list[Arm]:
    """Softmax and belief matching with each ResNeXt."""
    arms = []
    for network, (title, kl_weight) in _RESNEXTS.items():
        settings, group = scaled("imagenet", scale, f"model.name={network}"), f"{title}, ImageNet"
        belief = with_method(settings, "belief_matching", kl_weight=kl_weight)
        arms += [
            Arm(f"{title}/softmax", group, "softmax", with_method(settings, "softmax")),
            Arm(f"{title}/belief_matching", group, f"belief matching, λ {kl_weight:g}", belief),
        ]
    return arms


# The rotated digit: labels with options of the configuration in braces

_ROTATION_LABELS = {
    "softmax": "softmax",
    "label_smoothing": "label smoothing, matched",
    "mc_dropout": "MC dropout",
    "ensemble": "ensemble of {members}",
    "belief_matching": "belief matching, λ {kl_weight:g}",
}


def rotation_arms(scale: str) -> list[Arm]:
    """Five methods on the embedded digits."""
    arms = []
    for method, label in _ROTATION_LABELS.items():
        arm = Arm(method, "digits", label, with_method(scaled("digits", scale), method))
        arms.append(replace(arm, label=label.format(**{"members": 5, **arm.config.method.options})))
    return arms


# The sweep over the prior β

KL_WEIGHT = 0.01
"""λ where β is 1."""
EXPONENTS = {
    "paper": (-8, -4, -2, -1, 0, 1, 2, 4, 8, 16),
    "cpu": (-8, -2, -1, 0, 4, 8, 16),
    "tiny": (-8, 0, 16),
}
"""ln β."""


def prior_arms(scale: str) -> list[Arm]:
    """Belief matching with priors from e^-8 to e^16, at a constant λ and with λ ∝ 1/β."""
    arms = []
    for key, group in (("alone", "β alone"), ("joint", "β with λ ∝ 1/β")):
        variants = []
        for exponent in EXPONENTS[scale]:
            prior = math.exp(exponent)
            kl_weight = KL_WEIGHT / prior if key == "joint" else KL_WEIGHT
            options = {"kl_weight": kl_weight} | ({"prior": prior} if exponent else {})
            label = f"β = e^{exponent}, λ = {kl_weight:.3g}"
            variants.append(Variant(f"{key}/{exponent}", label, "belief_matching", options))
        own = cifar_arms(scale, networks=["preact_resnet18"], variants=variants)
        arms += [replace(arm, group=group) for arm in own]
    return arms


# Controls: what belief matching gives beyond its target, and how its mutual information depends on the number
# of images. Label smoothing at the confidence of belief matching's optimum has its target and another loss.
# Temperature scaling repairs confidence afterwards. Evidential learning is another Dirichlet. And the optimum
# of belief matching, α = 1 + onehot/λ, does not depend on the number of images.

_WEIGHTS = SEARCH["belief_matching"][1]
SWEPT_WEIGHT = _WEIGHTS[0]
"""λ of the sweep over data sizes."""
_SMOOTHINGS = [
    Variant(f"smoothing_{one:g}", f"label smoothing, matched λ {one:g}", "label_smoothing",
            {"matched_kl_weight": one})
    for one in _WEIGHTS
]  # fmt: skip
_BELIEFS = [
    Variant(f"belief_{one:g}", f"belief matching, λ {one:g}", "belief_matching", {"kl_weight": one})
    for one in _WEIGHTS
]
_CONTROLS = (
    SOFTMAX,
    Variant("temperature", "temperature scaling", "temperature"),
    *_SMOOTHINGS,
    *_BELIEFS,
    Variant("evidential", "evidential (EDL), ReLU", "evidential"),
    Variant("evidential_exp", "evidential (EDL), exp", "evidential", {"evidence": "exp"}),
)
SIZES = {"paper": (2500, 10_000, 40_000), "cpu": (250, 750, 1500, 4500), "tiny": (50, 100)}
"""Training images of the sweep."""
_SIZE = "size/"


def control_arms(scale: str) -> list[Arm]:
    """All variants on equal images; belief matching on every number of images, two controls on the most."""
    controls = cifar_arms(scale, networks=["preact_resnet18"], variants=_CONTROLS, larger=True)
    config = controls[0].config
    images = config.data.limit or max(SIZES[scale])
    group = f"data size, belief matching, λ {SWEPT_WEIGHT:g}, and two controls"

    def size_arm(size: int, variant: Variant, suffix: str = "", label: str = "") -> Arm:
        """A variant on `size` images, for at least as many epochs and steps as the other controls."""
        limit = [] if config.data.limit is None and size == images else [f"data.limit={size}"]
        epochs = f"training.epochs={max(1, images // size) * config.training.epochs}"
        settings = overridden(controls[0].settings, [*limit, epochs])
        method = with_method(settings, variant.method, **variant.options)
        return Arm(f"{_SIZE}{size}{suffix}", group, f"{size:,} images{label}", method)

    sweep = [size_arm(size, _BELIEFS[0]) for size in SIZES[scale]]
    two = [
        size_arm(SIZES[scale][-1], control, f"/{control.key}", f", {control.label}")
        for control in (SOFTMAX, _SMOOTHINGS[0])
    ]
    return [*controls, *sweep, *two]


def is_size_arm(arm: Arm) -> bool:
    """Whether an arm of the controls belongs to the sweep over data sizes."""
    return arm.key.startswith(_SIZE)


# Semi-supervised learning

_SEMI_GROUPS = {"none": "labels alone", "pi": "Pi-model", "vat": "VAT"}
_SEMI_SMALL = {
    "cpu": ("semi-cifar-cpu", ()),
    "tiny": (
        "semi-digits",
        (
            "training.epochs=2",
            "ood=[noise]",
            "defaults.belief_matching.kl_weight=0.01",  # the paper's λ and divergences
            "defaults.vat.divergence=auto",
            "defaults.pi.divergence=auto",
        ),
    ),
}
"""Recipe of a scale and the settings over it; at paper scale each kind has its own recipe."""
_SEMI_CPU_WEIGHTS = {
    "pi/softmax": 5.0,
    "pi/belief_matching": 0.05,
    "vat/softmax": 0.3,
    "vat/belief_matching": 0.003,
}
"""The best of two or three by the validation error of one seed: few steps need other ones than the paper."""


def semi_supervised_arms(scale: str) -> list[Arm]:
    """Labels alone (with the settings of VAT), Pi-model and VAT, each with softmax and belief matching."""
    arms = []
    for kind, group in _SEMI_GROUPS.items():
        name, settings = _SEMI_SMALL.get(scale, (f"semi-{'vat' if kind == 'none' else kind}", ()))
        for method in ("softmax", "belief_matching"):
            key = f"{kind}/{method}"
            semi = ["semi=null"] if kind == "none" else [f"semi.kind={kind}"]
            if scale == "cpu" and key in _SEMI_CPU_WEIGHTS:
                semi.append(f"semi.weight={_SEMI_CPU_WEIGHTS[key]}")
            mapping = with_method(overridden(recipe(name), [*settings, *semi]), method)
            arms.append(Arm(key, group, method.replace("_", " "), mapping))
    return arms
