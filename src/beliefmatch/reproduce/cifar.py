"""The paper's arms on CIFAR, which its tables and figures share: equal configurations are trained once."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from beliefmatch.experiments.config import with_method
from beliefmatch.reproduce.base import Arm
from beliefmatch.reproduce.scales import method_options, scaled

__all__ = [
    "BELIEF",
    "DATA",
    "ENSEMBLE",
    "MC_ALL",
    "MC_LAST",
    "NETWORKS",
    "SOFTMAX",
    "WITHOUT_KL",
    "Way",
    "arm",
    "key_of",
]

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
NETWORKS = {"preact_resnet18": "ResNet-18", "preact_resnet50": "ResNet-50"}


class Way(NamedTuple):
    """A method with options, as a row of a table."""

    key: str
    label: str
    method: str
    options: Mapping[str, Any] = MappingProxyType({})


SOFTMAX = Way("softmax", "softmax", "softmax")
MC_LAST = Way("mc_last", "MC dropout, last layer", "mc_dropout", {"where": "last"})
MC_ALL = Way("mc_all", "MC dropout, all layers", "mc_dropout", {"where": "all"})
ENSEMBLE = Way("ensemble", "ensemble", "ensemble")
BELIEF = Way("belief_matching", "belief matching", "belief_matching")
WITHOUT_KL = Way("without_kl", "belief matching without KL", "belief_matching_without_kl")


def key_of(data: str, network: str, way: Way) -> str:
    """Of an arm."""
    return f"{data}/{network}/{way.key}"


def arm(data: str, network: str, way: Way, scale: str, *, roomy: bool = False) -> Arm:
    """A method on one of the sets with one of the networks, by the recipe of the paper's table 1.

    Args:
        data: of `DATA`.
        network: of `NETWORKS`.
        way: the method.
        scale: of `SCALES`.
        roomy: with more images at CPU scale than tables of many cells have.
    """
    mapping = scaled("cifar", scale, f"data.name={data}", f"model.name={network}", roomy=roomy)
    mapping = with_method(mapping, way.method, **method_options(way.method, scale, **way.options))
    return Arm(key_of(data, network, way), f"{NETWORKS[network]}, {DATA[data]}", way.label, mapping)
