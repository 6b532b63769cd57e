"""Table 2: top-1 and top-5 error on ImageNet of ResNeXt-50 and ResNeXt-101."""

from functools import partial

from beliefmatch.experiments.config import with_method
from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.outcome import Outcome, Trained, error, row
from beliefmatch.reproduce.predicted import top_error
from beliefmatch.reproduce.record import Reported, Row
from beliefmatch.reproduce.scales import scaled

__all__ = ["TABLE2", "TOP1", "TOP5"]

_NETWORKS = {
    "timm:resnext50_32x4d": ("ResNeXt-50", 0.001),
    "timm:resnext101_32x8d": ("ResNeXt-101", 0.0001),
}
"""By its name, what the paper calls it and its λ."""

TOP1 = {
    "ResNeXt-50/softmax": Reported(22.23),
    "ResNeXt-50/belief_matching": Reported(22.03),
    "ResNeXt-101/softmax": Reported(20.72),
    "ResNeXt-101/belief_matching": Reported(20.23),
}
TOP5 = {
    "ResNeXt-50/softmax": Reported(6.36),
    "ResNeXt-50/belief_matching": Reported(6.29),
    "ResNeXt-101/softmax": Reported(5.59),
    "ResNeXt-101/belief_matching": Reported(5.26),
}
"""Errors on ImageNet's validation images, in percent."""


def _arms(scale: str) -> list[Arm]:
    return [arm for network in _NETWORKS for arm in _arms_of(network, scale)]


def _arms_of(network: str, scale: str) -> list[Arm]:
    title, kl_weight = _NETWORKS[network]
    mapping, group = scaled("imagenet", scale, f"model.name={network}"), f"{title}, ImageNet"
    belief = with_method(mapping, "belief_matching", kl_weight=kl_weight)
    return [
        Arm(f"{title}/softmax", group, "softmax", with_method(mapping, "softmax")),
        Arm(f"{title}/belief_matching", group, f"belief matching, λ {kl_weight:g}", belief),
    ]


def _rows(outcome: Outcome) -> list[Row]:
    return [one for key in TOP1 for one in _rows_of(key, outcome[key])]


def _rows_of(key: str, trained: Trained) -> list[Row]:
    return [
        row(trained, "top-1 error", error, paper=TOP1[key]),
        row(trained, "top-5 error", partial(top_error, count=5), paper=TOP5[key]),
    ]


TABLE2 = Reproduction(
    id="table2",
    title="Top-1 and top-5 error on ImageNet: softmax, belief matching",
    place="table 2",
    arms=_arms,
    rows=_rows,
    trials=1,
    notes=(
        "10,000 training images are kept aside at paper scale, which the paper trains on.",
        "At CPU scale any folder with train/ and validation/ stands for ImageNet, and small residual "
        "networks for ResNeXt: that shows that the command runs, and nothing about ImageNet.",
    ),
)
