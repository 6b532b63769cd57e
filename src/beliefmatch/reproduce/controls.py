"""What the paper lacks: what belief matching gives beyond its target, and what its spread knows of data.

Label smoothing at the confidence that belief matching asks for has its target and not its loss. Temperature
scaling repairs confidence afterwards. Evidential learning is another Dirichlet. And belief matching on more
and more images: the optimum of its loss, α = 1 + onehot/λ, does not depend on their number.
"""

from beliefmatch.experiments.config import overridden, with_method
from beliefmatch.methods import SEARCH
from beliefmatch.reproduce.base import Arm, Reproduction
from beliefmatch.reproduce.cifar import SOFTMAX, Way, arm, key_of
from beliefmatch.reproduce.outcome import (
    Measure,
    Outcome,
    Trained,
    auroc_row,
    ece,
    error,
    nll,
    row,
)
from beliefmatch.reproduce.predicted import (
    has_belief,
    mean_mutual_information,
    median_precision,
    mistake_auroc,
)
from beliefmatch.reproduce.record import Drawing, Panel, Row, Series
from beliefmatch.reproduce.summing import mean_points
from beliefmatch.reproduce.table1 import NOTES

__all__ = ["CONTROLS", "SIZES", "WAYS"]

_DATA, _NETWORK = "cifar10", "preact_resnet18"
_WEIGHTS = SEARCH["belief_matching"][1]
_SWEPT_WEIGHT = _WEIGHTS[0]

WAYS = (
    SOFTMAX,
    Way("temperature", "temperature scaling", "temperature"),
    *(
        Way(
            f"smoothing_{weight:g}",
            f"label smoothing, matched λ {weight:g}",
            "label_smoothing",
            {"matched_kl_weight": weight},
        )
        for weight in _WEIGHTS
    ),
    *(
        Way(f"belief_{weight:g}", f"belief matching, λ {weight:g}", "belief_matching", {"kl_weight": weight})
        for weight in _WEIGHTS
    ),
    Way("evidential", "evidential (EDL), ReLU", "evidential"),
    Way("evidential_exp", "evidential (EDL), exp", "evidential", {"evidence": "exp"}),
)
_SWEPT = next(way for way in WAYS if way.options == {"kl_weight": _SWEPT_WEIGHT})
_SWEPT_TARGET = next(way for way in WAYS if way.options == {"matched_kl_weight": _SWEPT_WEIGHT})
_SIZE_GROUP = f"data size, belief matching, λ {_SWEPT_WEIGHT:g}, and two beside it"
_KEYS = [key_of(_DATA, _NETWORK, way) for way in WAYS]

SIZES = {"paper": (2500, 10_000, 40_000), "cpu": (250, 750, 1500, 4500), "tiny": (50, 100)}
"""Training images of the sweep."""


def _arms(scale: str) -> list[Arm]:
    return [
        *(arm(_DATA, _NETWORK, way, scale, roomy=True) for way in WAYS),
        *(_sized(size, scale, _SWEPT) for size in SIZES[scale]),
        *(_sized(SIZES[scale][-1], scale, way) for way in (SOFTMAX, _SWEPT_TARGET)),
    ]


def _sized(size: int, scale: str, way: Way) -> Arm:
    """A method on so many images, for as many epochs as usual and as many steps at least."""
    usual = arm(_DATA, _NETWORK, SOFTMAX, scale, roomy=True)
    most = usual.config.data.limit or max(SIZES[scale])
    epochs = max(1, most // size) * usual.config.training.epochs
    limit = [] if usual.config.data.limit is None and size == most else [f"data.limit={size}"]
    mapping = overridden(usual.settings, [*limit, f"training.epochs={epochs}"])
    label = f"{size:,} images" if way is _SWEPT else f"{size:,} images, {way.label}"
    return Arm(_size_key(size, way), _SIZE_GROUP, label, with_method(mapping, way.method, **way.options))


def _size_key(size: int, way: Way) -> str:
    return f"size/{size}" if way is _SWEPT else f"size/{size}/{way.key}"


def _rows(outcome: Outcome) -> list[Row]:
    compared = [one for rows in (_rows_of, _rows_of_mistakes) for key in _KEYS for one in rows(outcome[key])]
    sizes = SIZES[outcome.scale]
    swept = [_size_key(size, _SWEPT) for size in sizes]
    beside = [_size_key(sizes[-1], way) for way in (SOFTMAX, _SWEPT_TARGET)]
    return compared + [one for key in swept + beside for one in _rows_of_size(outcome[key])]


def _rows_of(trained: Trained) -> list[Row]:
    return [
        row(trained, "error", error),
        row(trained, "NLL", nll, unit="nats", digits=3),
        row(trained, "ECE", ece),
        *(auroc_row(trained, score) for score in ("entropy", "energy", "mutual_information")),
    ]


def _rows_of_mistakes(trained: Trained) -> list[Row]:
    """Whether the spread knows more of mistakes than the probabilities do."""
    scores = ("entropy", "confidence", "mutual_information")
    group = f"{trained.arm.group}: own mistakes told from hits"
    return [row(trained, f"AUROC, {score}", mistake_auroc(score), group=group) for score in scores]


def _rows_of_size(trained: Trained) -> list[Row]:
    return [
        row(trained, "error", error),
        row(trained, "NLL", nll, unit="nats", digits=3),
        row(trained, "ECE", ece),
        row(trained, "mean spread", _if_belief(mean_mutual_information), unit="nats", digits=4),
        row(trained, "median α₀", _if_belief(median_precision), unit="", digits=1),
        auroc_row(trained, "entropy"),
        auroc_row(trained, "mutual_information"),
    ]


def _if_belief(measure: Measure) -> Measure:
    """Logits of softmax are no log-concentrations."""
    return lambda run: measure(run) if has_belief(run) else None


def _drawings(outcome: Outcome) -> list[Drawing]:
    arms = [outcome[f"size/{size}"] for size in SIZES[outcome.scale]]
    measures = (
        ("mean spread of the test images", "nats", mean_mutual_information),
        ("median α₀ of the test images", "α₀", median_precision),
        ("test error", "%", error),
    )
    panels = [
        _panel(title, unit, mean_points("", SIZES[outcome.scale], arms, of)) for title, unit, of in measures
    ]
    return [Drawing("data_size", "Does the spread of the belief vanish with data?", len(panels), panels)]


def _panel(title: str, unit: str, points: Series) -> Panel:
    return Panel(title, "training images", unit, [points], x_is_log=True)


CONTROLS = Reproduction(
    id="controls",
    title="Controls: matched label smoothing, temperature, EDL, energy; spread against the number of images",
    place="not in the paper",
    arms=_arms,
    rows=_rows,
    drawings=_drawings,
    fixed=("data.limit", "data.validation"),
    notes=(
        NOTES[0],
        "Belief matching and label smoothing are shown at every λ; nothing is chosen.",
        f"In the sweep λ is {_SWEPT_WEIGHT:g}; unless epochs are set by hand, smaller sets are passed over "
        "more often, for as many steps at least.",
    ),
)
