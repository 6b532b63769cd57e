"""Belief matching without its KL term, on ResNet-50."""

from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.cifar import BELIEF, DATA, SOFTMAX, WITHOUT_KL, arm, key_of
from beliefmatch.reproduce.outcome import Outcome, error, row
from beliefmatch.reproduce.record import Reported, Row
from beliefmatch.reproduce.table1 import ERRORS, NOTES

__all__ = ["ABLATION", "WITHOUT_KL_ERRORS"]

_NETWORK = "preact_resnet50"
_WAYS = (SOFTMAX, WITHOUT_KL, BELIEF)

WITHOUT_KL_ERRORS = {
    "cifar10/preact_resnet50/without_kl": Reported(5.68),
    "cifar100/preact_resnet50/without_kl": Reported(24.69),
}
"""Test error in percent."""


def _arms(scale: str) -> list[Arm]:
    return [arm(data, _NETWORK, way, scale) for data in DATA for way in _WAYS]


def _rows(outcome: Outcome) -> list[Row]:
    keys = [key_of(data, _NETWORK, way) for data in DATA for way in _WAYS]
    reported = ERRORS | WITHOUT_KL_ERRORS
    return [row(outcome[key], "error", error, paper=reported[key]) for key in keys]


ABLATION = Reproduction(
    id="ablation-kl",
    title="Test error of belief matching without the KL term",
    place="section 5.1, regularization effect of prior",
    arms=_arms,
    rows=_rows,
    notes=NOTES,
)
