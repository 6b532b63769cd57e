"""Penultimate activations of three classes, with and without the prior."""

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.build import dataset
from beliefmatch.experiments.predicting import restore
from beliefmatch.methods.base import NetworkPredictor
from beliefmatch.reproduce.activations import Seen, last_layer, penultimate, plane, seen
from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.cifar import BELIEF, WITHOUT_KL, arm, key_of
from beliefmatch.reproduce.outcome import Outcome, Run, Trained, row
from beliefmatch.reproduce.record import Drawing, Panel, Row, Series
from beliefmatch.reproduce.table1 import NOTES

__all__ = ["CLASSES", "REPRESENTATION"]

_DATA, _NETWORK = "cifar100", "preact_resnet50"
_WAYS = (WITHOUT_KL, BELIEF)
_KEYS = [key_of(_DATA, _NETWORK, way) for way in _WAYS]
_PARTS = ("train", "test")
CLASSES = {"beaver": 4, "dolphin": 30, "otter": 55}
"""The paper's three, and their places among CIFAR-100's."""


def _arms(scale: str) -> list[Arm]:
    return [arm(_DATA, _NETWORK, way, scale) for way in _WAYS]


def _three(names: Sequence[str]) -> list[int]:
    """The ids of the paper's classes, by their names or places, or the first three where there are others."""
    if set(CLASSES) <= set(names):
        return [list(names).index(one) for one in CLASSES]
    return list(CLASSES.values()) if len(names) == 100 else [0, 1, 2]


@lru_cache(maxsize=16)
def _look(home: Path, settings: DataConfig) -> dict[str, Seen]:
    """By the part of the data."""
    data, restored = dataset(settings), restore(home)
    assert isinstance(restored.predictor, NetworkPredictor)  # of both ways
    network, classes = restored.predictor.network, _three(data.class_names)
    basis = plane(last_layer(network).weight.detach().cpu()[classes])
    found = {}
    for part in _PARTS:
        features, targets = penultimate(network, getattr(data, part), classes, restored.engine)
        found[part] = seen(features, targets, basis)
    return found


def _rows(outcome: Outcome) -> list[Row]:
    return [one for key in _KEYS for one in _rows_of(outcome[key])]


def _rows_of(trained: Trained) -> list[Row]:
    def look(run: Run, part: str) -> Seen:
        return _look(run.home.path, trained.config.data)[part]

    make: Any = partial(row, trained, unit="", digits=3)
    rows = []
    for part in _PARTS:
        rows.append(make(f"range, {part}", lambda run, part=part: look(run, part).extent))
        rows.append(make(f"within / between, {part}", lambda run, part=part: look(run, part).tightness))
    return rows


def _drawings(outcome: Outcome) -> list[Drawing]:
    panels = [panel for key in _KEYS for panel in _panels(outcome[key])]
    return [
        Drawing(
            "representation",
            "Activations before the last layer, first seed",
            2,
            panels,
            same_scale_in_columns=True,
        )
    ]


def _panels(trained: Trained) -> list[Panel]:
    run = trained.first
    if run is None:
        return []
    looks, names = _look(run.home.path, trained.config.data), run.record.class_names
    return [_panel(trained.arm.label, part, look, names) for part, look in looks.items()]


def _panel(title: str, part: str, look: Seen, names: Sequence[str]) -> Panel:
    series = []
    for one in map(int, look.targets.unique()):
        across, up = look.points[look.targets == one].T
        series.append(Series(names[one], "dots", across.tolist(), up.tolist()))
    text = "" if look.tightness is None else f"within / between {look.tightness:.2f}"
    return Panel(title, "first axis of the plane", "second axis", series, text, subtitle=part)


REPRESENTATION = Reproduction(
    id="figure-representation",
    title="Penultimate activations of three classes of CIFAR-100, with and without the prior",
    place="figure on the representation",
    arms=_arms,
    rows=_rows,
    drawings=_drawings,
    notes=(
        *NOTES,
        "The classes are taken by their names; the paper calls them 0, 1 and 2, which in CIFAR-100's own "
        "order are others (beaver, dolphin and otter are 4, 30 and 55).",
        "The paper gives no number: the range on the plane, and the spread within classes over the distance "
        "between their means in the whole space, are ours.",
        "The paper does not tell the network; ours is that of its ablation.",
    ),
)
