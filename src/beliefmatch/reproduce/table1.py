"""Table 1: error on CIFAR-10 and CIFAR-100 of softmax, MC dropout and belief matching."""

from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.cifar import (
    BELIEF,
    DATA,
    MC_ALL,
    MC_LAST,
    NETWORKS,
    SOFTMAX,
    arm,
    key_of,
)
from beliefmatch.reproduce.outcome import Outcome, error, row
from beliefmatch.reproduce.record import Reported, Row

__all__ = ["ERRORS", "NOTES", "TABLE1"]

_WAYS = (SOFTMAX, MC_LAST, MC_ALL, BELIEF)

ERRORS = {
    "cifar10/preact_resnet18/softmax": Reported(6.13, 0.13),
    "cifar10/preact_resnet18/mc_last": Reported(6.13, 0.08),
    "cifar10/preact_resnet18/mc_all": Reported(6.50, 0.14),
    "cifar10/preact_resnet18/belief_matching": Reported(5.93, 0.07),
    "cifar100/preact_resnet18/softmax": Reported(26.44, 0.33),
    "cifar100/preact_resnet18/mc_last": Reported(26.15, 0.10),
    "cifar100/preact_resnet18/mc_all": Reported(27.32, 0.45),
    "cifar100/preact_resnet18/belief_matching": Reported(24.19, 0.34),
    "cifar10/preact_resnet50/softmax": Reported(5.76, 0.06),
    "cifar10/preact_resnet50/mc_last": Reported(5.75, 0.22),
    "cifar10/preact_resnet50/mc_all": Reported(5.84, 0.23),
    "cifar10/preact_resnet50/belief_matching": Reported(5.59, 0.05),
    "cifar100/preact_resnet50/softmax": Reported(25.00, 0.23),
    "cifar100/preact_resnet50/mc_last": Reported(25.17, 0.09),
    "cifar100/preact_resnet50/mc_all": Reported(26.74, 0.37),
    "cifar100/preact_resnet50/belief_matching": Reported(23.86, 0.37),
}
"""Test error in percent."""

NOTES = (
    "The weights of the last epoch are judged; the paper takes the epoch of the lowest validation error.",
    "Options that validation chooses (λ, the rate of dropout) are chosen with the first seed for all.",
)
"""Of every reproduction on CIFAR."""


def _arms(scale: str) -> list[Arm]:
    return [arm(data, network, way, scale) for network in NETWORKS for data in DATA for way in _WAYS]


def _rows(outcome: Outcome) -> list[Row]:
    keys = [key_of(data, network, way) for network in NETWORKS for data in DATA for way in _WAYS]
    return [row(outcome[key], "error", error, paper=ERRORS[key]) for key in keys]


TABLE1 = Reproduction(
    id="table1",
    title="Test error on CIFAR: softmax, MC dropout, belief matching",
    place="table 1",
    arms=_arms,
    rows=_rows,
    trials=5,
    notes=NOTES,
)
