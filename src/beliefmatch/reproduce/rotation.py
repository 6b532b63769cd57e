"""The opening example: a digit 3 that is turned upside down."""

from dataclasses import replace

from beliefmatch.experiments.config import with_method
from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.outcome import Outcome, Run, Trained, error, row
from beliefmatch.reproduce.record import Drawing, Row, Turned
from beliefmatch.reproduce.scales import scaled

__all__ = ["ROTATION"]

_LABELS = {
    "softmax": "softmax",
    "label_smoothing": "label smoothing, matched",
    "mc_dropout": "MC dropout",
    "ensemble": "ensemble of {members}",
    "belief_matching": "belief matching, λ {kl_weight:g}",
}
"""With options of the configuration between braces."""


def _arms(scale: str) -> list[Arm]:
    return [_arm(name, label, scale) for name, label in _LABELS.items()]


def _arm(name: str, label: str, scale: str) -> Arm:
    made = Arm(name, "digits", label, with_method(scaled("digits", scale), name))
    return replace(made, label=label.format(**{"members": 5, **made.config.method.options}))


def _wrong_confidence(run: Run) -> float | None:
    seen = run.record.rotation
    if seen is None or seen.mean_wrong_confidence is None:
        return None
    return 100 * seen.mean_wrong_confidence


def _upside_down(run: Run) -> float | None:
    seen = run.record.rotation
    return None if seen is None else 100 * seen.mean_confidence[-1]


def _rows(outcome: Outcome) -> list[Row]:
    return [one for key in _LABELS for one in _rows_of(outcome[key])]


def _rows_of(trained: Trained) -> list[Row]:
    return [
        row(trained, "error", error),
        row(trained, "confidence when wrong, all angles", _wrong_confidence),
        row(trained, "confidence upside down", _upside_down),
    ]


def _drawings(outcome: Outcome) -> list[Drawing]:
    from beliefmatch.experiments.rotation import DigitRotation

    found = [(outcome[key].arm.label, outcome[key].first) for key in _LABELS]
    seen = [(label, run.record.rotation) for label, run in found if run is not None]
    kept = [(label, rotation) for label, rotation in seen if rotation is not None]
    if not kept:
        return []
    labels, rotations = [label for label, _ in kept], [rotation for _, rotation in kept]
    turned = Turned(DigitRotation.load().described(), labels, rotations)
    return [Drawing("rotated_digit", "A digit that is turned", 1, [], turned)]


ROTATION = Reproduction(
    id="figure-rotation",
    title="How sure networks are of a digit 3 that is turned",
    place="introduction",
    arms=_arms,
    rows=_rows,
    drawings=_drawings,
    notes=(
        "The paper tells the example in words, after Louizos and Welling (2017), and gives no number.",
        "The digits are scikit-learn's, of 8 by 8 pixels, not MNIST's.",
    ),
)
