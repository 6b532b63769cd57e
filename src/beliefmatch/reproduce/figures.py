"""Figures of the reproductions, as data: panels read from the outcome."""

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.evaluate import score_columns
from beliefmatch.experiments.evaluation_parts import entropy_density
from beliefmatch.metrics import outcomes, reliability_bins
from beliefmatch.reproduce import tables
from beliefmatch.reproduce.activations import activations_of_run
from beliefmatch.reproduce.arms import EXPONENTS, SIZES
from beliefmatch.reproduce.record import Drawing, Panel, RotationPredictions, Series
from beliefmatch.reproduce.tables import ECE, ERROR, ArmResult, Outcome, Run, ood_auroc, predictions_of

__all__ = [
    "data_sizes", "entropies", "prior_sweep", "reliability", "representations", "rotated_digit",
    "transfer_entropies",
]  # fmt: skip

BINS = 15
"""Bins of a reliability diagram: bin i is (i/15, (i+1)/15]."""


def _first_runs(outcome: Outcome) -> list[tuple[ArmResult[Any], Run]]:
    """Every arm with the first seed that did not diverge; arms without one are left out."""
    return [(result, result.finished[0]) for result in outcome.arms.values() if result.finished]


def reliability(outcome: Outcome) -> list[Drawing]:
    """Accuracy by confidence of each arm."""
    panels = [
        Panel(
            result.arm.label,
            "confidence",
            "accuracy",
            _reliability_series(predictions_of(run)),
            f"ECE {ECE.of(run):.2f} %",
            subtitle=result.arm.group,
        )
        for result, run in _first_runs(outcome)
    ]
    columns = len({result.arm.label for result in outcome.arms.values()})
    return [Drawing("reliability", "Accuracy by confidence, first seed", columns, panels)]


def _reliability_series(predictions: Predictions) -> list[Series]:
    """Accuracy and confidence of each bin that holds an example, and the diagonal."""
    assert predictions.targets is not None  # the test set has labels
    outcome = outcomes(predictions.targets, **{predictions.kind: predictions.values})
    bins = reliability_bins(outcome.confidence, outcome.correct, n_bins=BINS)
    held = bins.count > 0
    middles = ((bins.lower + bins.upper) / 2)[held].tolist()
    return [
        Series("accuracy", "bars", middles, bins.accuracy[held].tolist(), width=1 / BINS),
        Series("mean confidence", "dots", middles, bins.confidence[held].tolist()),
        Series("perfect calibration", "line", [0.0, 1.0], [0.0, 1.0]),
    ]


def entropies(outcome: Outcome) -> list[Drawing]:
    """Densities of the predictive entropy of test and OOD images, with AUROC."""
    panels = []
    for result, run in _first_runs(outcome):
        sets = [(f"test: {run.record.config['data']['name']}", predictions_of(run))]
        sets += [(f"OOD: {ood.name}", predictions_of(run, i)) for i, ood in enumerate(run.record.ood)]
        series = []
        for label, predictions in sets:
            curve = entropy_density(score_columns(predictions)["entropy"], predictions.values.shape[1])
            series.append(Series(label, "line", curve.x, curve.y))
        auroc = ood_auroc("entropy").of(run)
        text = "" if auroc is None else f"AUROC {auroc:.1f} %"
        panels.append(Panel(result.arm.label, "entropy (nats)", "density", series, text))
    return [Drawing("entropy", "Density of the predictive entropy, first seed", 2, panels)]


def transfer_entropies(outcome: Outcome) -> list[Drawing]:
    """The same densities for the heads of a transfer."""
    panels = []
    for transfer in outcome.transfers.values():
        for label, one in zip(transfer.record.row_labels, transfer.evaluations, strict=True):
            if label in ("softmax", "belief matching"):
                test = (f"test: {transfer.record.data['name']}", one.entropy)
                curves = [test, *((f"OOD: {ood.name}", ood.entropy) for ood in one.ood)]
                series = [Series(name, "line", curve.x, curve.y) for name, curve in curves]
                panels.append(Panel(label, "entropy (nats)", "density", series))
    return [Drawing("entropy", "Density of the predictive entropy after transfer, first seed", 2, panels)]


def rotated_digit(outcome: Outcome) -> list[Drawing]:
    """A rotated digit, as the methods classify it."""
    from beliefmatch.experiments.rotation import DigitRotation

    runs = [(result.arm.label, run.record.rotation) for result, run in _first_runs(outcome)]
    found = {label: rotation for label, rotation in runs if rotation is not None}
    if not found:
        return []
    rotation = RotationPredictions(DigitRotation.load().described(), list(found), list(found.values()))
    return [Drawing("rotated_digit", "A rotated digit", 1, [], rotation)]


def representations(outcome: Outcome) -> list[Drawing]:
    """Activations before the last layer of three classes, on training and test images."""
    panels = []
    for result, run in _first_runs(outcome):
        for part, activations in activations_of_run(run.run_dir.path, run.config.data).items():
            series = []
            for target in map(int, activations.targets.unique()):
                x, y = activations.points[activations.targets == target].T
                series.append(Series(run.record.class_names[target], "dots", x.tolist(), y.tolist()))
            tightness = activations.tightness
            text = "" if tightness is None else f"within / between {tightness:.2f}"
            axes = ("first axis of the plane", "second axis")
            panels.append(Panel(result.arm.label, *axes, series, text, subtitle=part))
    title = "Activations before the last layer, first seed"
    return [Drawing("representation", title, 2, panels, same_scale_in_columns=True)]


def prior_sweep(outcome: Outcome) -> list[Drawing]:
    """Test error against ln β, and how many seeds diverged."""
    exponents, groups = EXPONENTS[outcome.scale], dict[str, list[ArmResult[Any]]]()
    for result in outcome.arms.values():
        groups.setdefault(result.arm.group, []).append(result)
    series = [_mean_series(group, exponents, results, ERROR.of) for group, results in groups.items()]
    for group, results in groups.items():
        diverged = {float(x): float(one.diverged) for x, one in zip(exponents, results, strict=True)}
        failed = {x: count for x, count in diverged.items() if count}
        series.append(Series(f"seeds that diverged, {group}", "crosses", list(failed), list(failed.values())))
    return [Drawing("beta", "Impact of β", 1, [Panel("test error", "ln β", "%", series)])]


def data_sizes(outcome: Outcome) -> list[Drawing]:
    """Mutual information, precision and error of belief matching against the number of training images."""
    sizes = SIZES[outcome.scale]
    results = [outcome.arms[f"size/{size}"] for size in sizes]
    measures = (
        ("mean mutual information", "nats", tables.mean_mutual_information),
        ("median α₀", "α₀", tables.median_precision),
        ("test error", "%", ERROR.of),
    )
    panels = [
        Panel(title, "training images", unit, [_mean_series("", sizes, results, of)], x_is_log=True)
        for title, unit, of in measures
    ]
    title = "Belief matching on the test images, by the number of training images"
    return [Drawing("data_size", title, len(panels), panels)]


def _mean_series(
    label: str, xs: Sequence[float], results: Sequence[ArmResult[Any]], of: Callable[[Any], float | None]
) -> Series:
    """A line through the means over the seeds; arms that have no number are left out."""
    found = [[value for value in result.values(of) if value is not None] for result in results]
    kept = [(x, values) for x, values in zip(xs, found, strict=True) if values]
    means = [fmean(values) for _, values in kept]
    deviations = [stdev(values) if len(values) > 1 else 0.0 for _, values in kept]
    return Series(label, "line", [x for x, _ in kept], means, deviations)
