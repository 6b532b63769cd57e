"""Predictive entropy of known and OOD images, CIFAR-100 and SVHN: densities, and AUROC beside them."""

from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.cifar import BELIEF, ENSEMBLE, MC_ALL, SOFTMAX, arm, key_of
from beliefmatch.reproduce.outcome import Outcome, Run, Trained, auroc, auroc_row, row
from beliefmatch.reproduce.predicted import (
    entropy_series,
    mean_entropy,
    ood_predictions,
    test_predictions,
)
from beliefmatch.reproduce.record import Drawing, Panel, Row
from beliefmatch.reproduce.table1 import NOTES

__all__ = ["OOD", "entropy_panel"]

_NETWORK, _DATA = "preact_resnet50", "cifar100"
_WAYS = (SOFTMAX, BELIEF, ENSEMBLE, MC_ALL)
_KEYS = [key_of(_DATA, _NETWORK, way) for way in _WAYS]


def _arms(scale: str) -> list[Arm]:
    return [arm(_DATA, _NETWORK, way, scale) for way in _WAYS]


def _rows(outcome: Outcome) -> list[Row]:
    return [one for key in _KEYS for one in _rows_of(outcome[key])]


def _rows_of(trained: Trained) -> list[Row]:
    return [
        *(auroc_row(trained, score) for score in ("entropy", "mutual_information", "energy")),
        row(
            trained, "entropy, known", lambda run: mean_entropy(test_predictions(run)), unit="nats", digits=3
        ),
        row(trained, "entropy, ood", _ood_entropy, unit="nats", digits=3),
    ]


def _ood_entropy(run: Run) -> float | None:
    return mean_entropy(ood_predictions(run)) if run.record.ood else None


def _drawings(outcome: Outcome) -> list[Drawing]:
    panels = [panel for key in _KEYS for panel in entropy_panel(outcome[key])]
    return [Drawing("entropy", "Density of the predictive entropy, first seed", 2, panels)]


def entropy_panel(trained: Trained) -> list[Panel]:
    """Densities of known and OOD images; nothing where every training diverged."""
    run = trained.first
    if run is None:
        return []
    series = [entropy_series(f"known: {run.record.config['data']['name']}", test_predictions(run))]
    series += [
        entropy_series(f"ood: {one.name}", ood_predictions(run, place))
        for place, one in enumerate(run.record.ood)
    ]
    told = auroc("entropy")(run)
    text = "" if told is None else f"AUROC {told:.1f} %"
    return [Panel(trained.arm.label, "entropy (nats)", "density", series, text)]


OOD = Reproduction(
    id="figure-ood",
    title="Predictive entropy of ResNet-50 on CIFAR-100 and on SVHN",
    place="figure on uncertainty representation",
    arms=_arms,
    rows=_rows,
    drawings=_drawings,
    notes=(*NOTES, "The paper shows densities and gives no number; AUROC is ours."),
)
