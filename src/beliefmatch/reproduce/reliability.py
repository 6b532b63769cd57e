"""Reliability of softmax, MC dropout, an ensemble and belief matching on CIFAR, with ECE in 15 groups."""

from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.cifar import (
    BELIEF,
    DATA,
    ENSEMBLE,
    MC_ALL,
    MC_LAST,
    SOFTMAX,
    arm,
    key_of,
)
from beliefmatch.reproduce.outcome import (
    Outcome,
    Trained,
    ece,
    error,
    nll,
    row,
    training_loss,
)
from beliefmatch.reproduce.predicted import reliability_series
from beliefmatch.reproduce.record import Drawing, Panel, Reported, Row
from beliefmatch.reproduce.table1 import NOTES

__all__ = ["ECES", "RELIABILITY"]

_NETWORK = "preact_resnet50"
_WAYS = (SOFTMAX, MC_LAST, MC_ALL, ENSEMBLE, BELIEF)
_KEYS = [key_of(data, _NETWORK, way) for data in DATA for way in _WAYS]

ECES = {
    "cifar10/preact_resnet50/softmax": Reported(3.82),
    "cifar10/preact_resnet50/mc_last": Reported(3.78),
    "cifar10/preact_resnet50/mc_all": Reported(1.50),
    "cifar10/preact_resnet50/ensemble": Reported(1.04),
    "cifar10/preact_resnet50/belief_matching": Reported(1.66),
    "cifar100/preact_resnet50/softmax": Reported(13.48),
    "cifar100/preact_resnet50/mc_last": Reported(13.52),
    "cifar100/preact_resnet50/mc_all": Reported(9.76),
    "cifar100/preact_resnet50/ensemble": Reported(3.54),
    "cifar100/preact_resnet50/belief_matching": Reported(4.25),
}
"""Expected calibration error in percent."""


def _arms(scale: str) -> list[Arm]:
    return [arm(data, _NETWORK, way, scale) for data in DATA for way in _WAYS]


def _rows(outcome: Outcome) -> list[Row]:
    told = [row(outcome[key], "ECE", ece, paper=ECES[key]) for key in _KEYS]
    return told + [one for key in _KEYS for one in _rows_beside(outcome[key])]


def _rows_beside(trained: Trained) -> list[Row]:
    """How good the predictions are otherwise, and how far the networks fit what they were shown."""
    group = f"{trained.arm.group}: beside the paper"
    rows = [
        row(trained, "error", error, group=group),
        row(trained, "NLL", nll, unit="nats", digits=3, group=group),
    ]
    if trained.config.method.name != BELIEF.method:  # whose loss is another thing than cross-entropy
        rows.append(row(trained, "training loss", training_loss, unit="nats", digits=3, group=group))
    return rows


def _drawings(outcome: Outcome) -> list[Drawing]:
    panels = [panel for key in _KEYS for panel in _panels(outcome[key])]
    return [Drawing("reliability", "Accuracy by confidence, first seed", len(_WAYS), panels)]


def _panels(trained: Trained) -> list[Panel]:
    run = trained.first
    if run is None:
        return []
    words, group = f"ECE {ece(run):.2f} %", trained.arm.group
    return [
        Panel(trained.arm.label, "confidence", "accuracy", reliability_series(run), words, subtitle=group)
    ]


RELIABILITY = Reproduction(
    id="figure-reliability",
    title="Reliability of ResNet-50 on CIFAR, ECE in 15 groups",
    place="figure on calibration",
    arms=_arms,
    rows=_rows,
    drawings=_drawings,
    notes=(
        *NOTES,
        "The paper gives ECE without a deviation, and draws softmax and belief matching alone.",
        "The training loss is the cross-entropy of the last epoch, under augmentation and with dropout.",
    ),
)
