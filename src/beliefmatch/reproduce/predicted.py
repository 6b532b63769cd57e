"""Numbers and curves read from the predictions that a run has kept."""

from beliefmatch.data.predictions import Predictions, read_predictions
from beliefmatch.experiments.detections import score_columns
from beliefmatch.experiments.evaluation_views import entropy_density
from beliefmatch.methods import build
from beliefmatch.metrics import auroc, outcomes, reliability_bins
from beliefmatch.reproduce.outcome import Measure, Run
from beliefmatch.reproduce.record import Series

__all__ = [
    "entropy_series",
    "has_belief",
    "mean_entropy",
    "mean_mutual_information",
    "median_precision",
    "mistake_auroc",
    "ood_predictions",
    "reliability_series",
    "test_predictions",
    "top_error",
]

GROUPS = 15
"""Of a reliability diagram: group i is (i/15, (i+1)/15]."""


def test_predictions(run: Run) -> Predictions:
    """Of the test images, with what came true."""
    return read_predictions(run.home.predictions("test"))


def ood_predictions(run: Run, place: int = 0) -> Predictions:
    """Of the OOD set at a place of the configuration's list."""
    names = [one.name for one in run.record.ood]
    return read_predictions(run.home.ood_predictions(names)[names[place]], labelled=False)


def reliability_series(run: Run) -> list[Series]:
    """Accuracy of each group that holds an example, and what it should be."""
    said = test_predictions(run)
    assert said.targets is not None  # the test set has labels
    seen = outcomes(said.targets, **{said.kind: said.values})
    bins = reliability_bins(seen.confidence, seen.correct, groups=GROUPS)
    held = bins.count > 0
    middles = ((bins.lower + bins.upper) / 2)[held].tolist()
    return [
        Series("accuracy", "bars", middles, bins.accuracy[held].tolist(), width=1 / GROUPS),
        Series("mean confidence", "dots", middles, bins.confidence[held].tolist()),
        Series("as sure as right", "line", [0.0, 1.0], [0.0, 1.0]),
    ]


def entropy_series(label: str, said: Predictions) -> Series:
    """Density of the predictive entropy."""
    curve = entropy_density(score_columns(said)["entropy"], said.values.shape[1])
    return Series(label, "line", curve.x, curve.y)


def mean_entropy(said: Predictions) -> float:
    """Of the predictions, in nats."""
    return score_columns(said)["entropy"].mean().item()


def mean_mutual_information(run: Run) -> float | None:
    """Mean mutual information of label and belief over the test images, in nats."""
    said = test_predictions(run)
    return score_columns(said)["mutual_information"].mean().item() if said.kind == "logits" else None


def median_precision(run: Run) -> float | None:
    """Median α₀ over the test images; a mean would be that of a few very sure ones."""
    said = test_predictions(run)
    return said.values.double().logsumexp(-1).exp().quantile(0.5).item() if said.kind == "logits" else None


def mistake_auroc(score: str) -> Measure:
    """How well a score tells the test images that are taken for another class, in percent.

    None where the method has no such score, or makes no mistake or nothing else.
    """

    def measure(run: Run) -> float | None:
        said = test_predictions(run)
        if score == "mutual_information" and not has_belief(run):
            return None
        assert said.targets is not None
        right = outcomes(said.targets, **{said.kind: said.values}).correct
        found = score_columns(said)[score]
        return 100 * float(auroc(found[right], found[~right])) if 0 < right.sum() < len(right) else None

    return measure


def has_belief(run: Run) -> bool:
    """Whether the run's logits, as they are kept, are log-concentrations."""
    method = build(run.record.method, **run.record.options)
    return method.reads != "softmax" and test_predictions(run).kind == "logits"


def top_error(run: Run, count: int) -> float | None:
    """Share of the test images whose class is not among the `count` most probable ones, in percent.

    None where there are no more classes than that, so that all would be.
    """
    said = test_predictions(run)
    assert said.targets is not None
    if said.values.shape[1] <= count:
        return None
    best = said.values.topk(count, dim=-1).indices
    hits = (best == said.targets[:, None]).any(-1)
    return 100 * (1 - hits.double().mean().item())
