"""Table 3 and its figure: the last layer of an ImageNet ResNet-50 fitted to smaller sets."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.adapt_record import AdaptRecord, Judged
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.reproduce.base import Reproduction
from beliefmatch.reproduce.places import CLASSES
from beliefmatch.reproduce.record import Drawing, Panel, Reported, Row, Series
from beliefmatch.reproduce.transfer_config import TransferConfig

__all__ = ["ERRORS", "FIGURE", "LABELS", "SETS", "TABLE3", "Transferred", "planned"]

ERRORS = {
    "cifar10/softmax": Reported(5.44, 0.10),
    "cifar10/belief_matching": Reported(5.03, 0.04),
    "food101/softmax": Reported(28.49, 0.08),
    "food101/belief_matching": Reported(26.41, 0.07),
    "stanford_cars/softmax": Reported(42.99, 0.14),
    "stanford_cars/belief_matching": Reported(39.99, 0.20),
}
"""Test error in percent."""

TITLES = {"cifar10": "CIFAR-10", "food101": "Food-101", "stanford_cars": "Cars"}
SETS = {"table3": tuple(TITLES), "figure-transfer": ("cifar10",)}
"""That a reproduction transfers to."""
LABELS = {"softmax": "softmax", "label smoothing": "label_smoothing", "belief matching": "belief_matching"}
"""Lines of an adaptation that are read."""
_SHOWN = {"label smoothing": "label smoothing, matched"}
"""What they are called here."""
_OOD = ("svhn", "food101", "stanford_cars")
_DRAWN = ("softmax", "belief matching")


class Transferred(NamedTuple):
    """What an adaptation to one set came to."""

    record: AdaptRecord
    evaluations: Sequence[EvaluationRecord]
    """Of the first seed of each line."""
    seeds: Sequence[int]

    def heads(self, label: str) -> list[Judged | None]:
        """Of one line, by seed; None where its numbers left the finite ones."""
        found = {head.seed: head for head in self.record.judged if head.label == label}
        return [found.get(seed) for seed in self.seeds]


def planned(data: str, scale: str) -> TransferConfig:
    """The paper's settings for a set, or those of a smaller scale."""
    if scale == "tiny":
        digits = DataConfig(name="digits", limit=100, validation=0.1)
        untrained = "beliefmatch.models.digits:DigitsNet"
        return TransferConfig(digits, model=untrained, ood=("noise",), epochs=2, precision="32")
    size, margin = (
        (256, 1.0) if data == "cifar10" else (224, None)
    )  # 32 pixels enlarged eight times, all of them
    limit = 2500 if scale == "cpu" else None
    settings = DataConfig(name=data, size=size, margin=margin, validation=0.1, limit=limit, augment="none")
    return TransferConfig(
        settings,
        ood=_OOD if data == "cifar10" else (),
        precision="32" if scale == "cpu" else "auto",
    )


def _errors(found: Mapping[str, Transferred]) -> list[Row]:
    return [
        _row(data, one, label, "error", lambda head: head.scores.error, ERRORS.get(f"{data}/{key}"))
        for data, one in found.items()
        for label, key in LABELS.items()
    ]


def _row(
    data: str,
    found: Transferred,
    label: str,
    measure: str,
    of: Callable[[Judged], float],
    paper: Reported | None = None,
) -> Row:
    heads = found.heads(label)
    return Row(
        group=_title(data, found.record),
        label=_SHOWN.get(label, label),
        measure=measure,
        unit="%",
        paper=paper,
        values=[None if head is None else 100 * of(head) for head in heads],
        seeds=list(found.seeds),
        train_seconds=found.record.wall_seconds,
        note=f"{heads.count(None)} of {len(heads)} diverged" if None in heads else "",
        diverged=heads.count(None),
    )


def _title(data: str, record: AdaptRecord) -> str:
    """With the classes that were there, where not all of them were."""
    whole = CLASSES[data]
    few = "" if record.classes == whole else f", {record.classes} of {whole} classes"
    return f"{TITLES[data]}{few}"


def _detections(found: Mapping[str, Transferred]) -> list[Row]:
    return [
        _row(data, one, label, f"AUROC, {ood.name}", partial(_auroc, place))
        for data, one in found.items()
        for label in LABELS
        for place, ood in enumerate(one.record.judged[0].ood)
    ]


def _auroc(place: int, head: Judged) -> float:
    return head.ood[place].auroc["entropy"]


def _densities(found: Mapping[str, Transferred]) -> list[Drawing]:
    panels = [
        _panel(transferred.record.data["name"], label, one)
        for transferred in found.values()
        for label, one in zip(transferred.record.row_labels, transferred.evaluations, strict=True)
        if label in _DRAWN
    ]
    return [Drawing("entropy", "Density of the predictive entropy after transfer, first seed", 2, panels)]


def _panel(name: str, label: str, seen: EvaluationRecord) -> Panel:
    home = Series(f"known: {name}", "line", seen.entropy.x, seen.entropy.y)
    others = [Series(f"ood: {one.name}", "line", one.entropy.x, one.entropy.y) for one in seen.ood]
    return Panel(label, "entropy (nats)", "density", [home, *others])


_NOTES = (
    "A tenth of the training images chooses the epoch of each head, by its error; the paper tells of none.",
    "Heads of several seeds differ in their first weights; the order of the batches and the division of the "
    "images are the same. So ± is smaller than that of independent experiments.",
    "There is no warm-up and no clipping of the gradient; the paper says that all experiments have both.",
    "Features are computed once, without augmentation, by a network in evaluation mode; the authors' code "
    "also trains the BatchNorm layers and prints the best test epoch.",
    "Seconds are of the whole adaptation, with all heads and seeds.",
)
_WORKER = "beliefmatch.reproduce.transferring:Transferring"

TABLE3 = Reproduction(
    id="table3",
    title="Transfer of an ImageNet ResNet-50 by its last layer: softmax, belief matching",
    place="table 3",
    rows=_errors,
    trials=5,
    worker=_WORKER,
    notes=_NOTES,
)
FIGURE = Reproduction(
    id="figure-transfer",
    title="Predictive entropy after transfer, CIFAR-10 and SVHN, Food-101, Cars",
    place="figure on transfer",
    rows=_detections,
    drawings=_densities,
    worker=_WORKER,
    notes=(*_NOTES, "CIFAR-10 has automobiles: Cars is no OOD set for it, as the paper says."),
)
