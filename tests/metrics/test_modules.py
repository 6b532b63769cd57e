"""Streaming classes: batches, processes, collections; a refused batch leaves no trace."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from metric_cases import CLASSES, METRICS, N_BINS, K
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from beliefmatch import metrics
from forecasts import batches, coarse_scores, cuts, forecast, seeds

STREAMS = {name: case.stream for name, case in METRICS.items() if case.stream is not None}
ALL = STREAMS | {"summary": lambda: metrics.Summary(k=K, n_bins=N_BINS)}


def values_of(metric: Metric) -> list[Tensor]:
    """The numbers of a metric, in the order of their names."""
    found = metric.compute()
    return [found] if isinstance(found, Tensor) else [found[name] for name in sorted(found)]


@given(cuts=cuts, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_summary_and_area_under_the_roc_curve_of_any_split(cuts, seed):
    _, probs, targets = forecast(60, CLASSES, seed)
    scores, ood = coarse_scores(60, seed), torch.arange(60) % 3 == 0
    summary, area = ALL["summary"](), metrics.AUROC()
    for p, y, score, is_ood in batches(cuts, probs, targets, scores, ood):
        summary.update(p, y)
        area.update(score, is_ood)
    names = "error", "top_k_error", "nll", "brier", "ece", "mce"
    expected = {name: pytest.approx(METRICS[name].metric(probs, targets)) for name in names}
    assert {name: value.item() for name, value in summary.compute().items()} == expected
    assert area.compute().item() == pytest.approx(metrics.auroc(scores[~ood], scores[ood]))


def merged(first: Metric, second: Metric) -> Metric:
    """The metric that torchmetrics makes of the states of two processes."""
    whole = copy.deepcopy(first)
    for name, reduce in whole._reductions.items():
        states = [getattr(metric, name) for metric in (first, second)]
        are_lists = isinstance(states[0], list)
        setattr(whole, name, reduce([torch.cat(x) for x in states] if are_lists else torch.stack(states)))
    whole._computed = None
    return whole


@pytest.mark.parametrize("name", ALL)
def test_states_of_two_processes_add_up_and_forward_gives_the_value_of_its_batch(name):
    _, probs, targets = forecast(50, CLASSES, seed=1)
    whole, first, second, batch, stream = (ALL[name]() for _ in range(5))
    whole.update(probs, targets)
    first.update(probs[:13], targets[:13])
    second.update(probs[13:30], targets[13:30])
    second.update(probs[30:], targets[30:])
    torch.testing.assert_close(values_of(merged(first, second)), values_of(whole))
    stream(probs[:25], targets[:25])
    value = stream(probs[25:], targets[25:])
    batch.update(probs[25:], targets[25:])
    torch.testing.assert_close(value, batch.compute())
    torch.testing.assert_close(stream.compute(), whole.compute())


def test_two_processes_of_unequal_shares_compute_the_whole():
    """Over gloo on this machine."""
    script = Path(__file__).parents[1] / "two_processes.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    values = dict(line.split() for line in done.stdout.splitlines())
    _, probs, targets = forecast(50, CLASSES, seed=1)
    assert float(values["ece"]) == pytest.approx(metrics.expected_calibration_error(probs, targets))
    assert float(values["nll"]) == pytest.approx(metrics.nll(probs, targets))
    assert float(values["aurc"]) == pytest.approx(METRICS["aurc"].metric(probs, targets))


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "aurc"])
def test_memory_does_not_grow_with_the_examples(name):
    metric, sizes = STREAMS[name](), set()
    for seed in range(3):
        metric.update(*forecast(200, CLASSES, seed)[1:])
        sizes.add(sum(state.nbytes for state in metric.metric_state.values()))
    assert len(sizes) == 1 and sizes.pop() <= 8 * 3 * CLASSES * 15


def test_a_collection_never_takes_two_metrics_for_one():
    """After a batch without mistakes the sums of error and top-k error are equal; the metrics are not."""
    first = torch.eye(CLASSES, dtype=torch.float64)
    _, probs, targets = forecast(40, CLASSES, seed=3)
    makers = STREAMS | {"top_3": lambda: metrics.TopKError(k=3)}
    collection = MetricCollection({name: make() for name, make in makers.items()})
    collection.update(first, torch.arange(CLASSES))
    collection.update(probs, targets)
    everything = torch.cat([first, probs]), torch.cat([torch.arange(CLASSES), targets])
    found = {name: value.item() for name, value in collection.compute().items()}
    assert found.pop("top_3") == pytest.approx(metrics.top_k_error(*everything, k=3))
    assert found == {name: pytest.approx(METRICS[name].metric(*everything)) for name in STREAMS}


def test_a_collection_bins_once_for_mean_and_maximum():
    collection = MetricCollection([metrics.ExpectedCalibrationError(), metrics.MaximumCalibrationError()])
    collection.update(*forecast(40, CLASSES, seed=3)[1:])
    both = ["ExpectedCalibrationError", "MaximumCalibrationError"]
    assert list(collection.compute_groups.values()) == [both]


def test_bins_can_be_read_from_the_sums():
    _, probs, targets = forecast(80, CLASSES, seed=4)
    stream, classes = metrics.ExpectedCalibrationError(n_bins=6), metrics.ClasswiseCalibrationError(CLASSES)
    stream.update(probs, targets)
    classes.update(probs, targets)
    found = stream.reliability_bins()
    expected = metrics.reliability_bins(probs.amax(1), probs.argmax(1) == targets, n_bins=6)
    for name in ("lower", "upper", "count", "confidence", "accuracy"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), equal_nan=True)
    torch.testing.assert_close(classes.class_bins().errors, metrics.class_bins(targets, probs=probs).errors)


def test_after_a_reset_the_first_batch_decides_on_the_classes_again():
    stream = metrics.NLL()
    stream.update(*forecast(40, CLASSES, seed=7)[1:])
    stream.reset()
    _, probs, targets = forecast(30, 3, seed=8)
    stream.update(probs, targets)
    assert stream.compute().item() == pytest.approx(metrics.nll(probs, targets))


# Refused batches


@pytest.mark.parametrize("kind", ["preds", "logits"])
@pytest.mark.parametrize("way", ["update", "forward"])
@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_other_classes_or_bad_values_leaves_no_trace(name, way, kind):
    stream, twice = ALL[name](), ALL[name]()
    logits, probs, targets = forecast(40, CLASSES, seed=7)
    good = {"preds": probs, "logits": logits}[kind]
    stream.update(probs, targets)
    before, states = values_of(stream), copy.deepcopy(stream.metric_state)
    wider = forecast(9, CLASSES + 2, seed=8)[1 if kind == "preds" else 0]
    for bad, y in ((wider, torch.zeros(9, dtype=torch.int64)), (good * torch.nan, targets)):
        with pytest.raises(ValueError, match=rf"^{type(stream).__name__}: `{kind}` "):
            getattr(stream, way)(**{kind: bad, "target": y})
        assert stream.update_count == 1 and stream.sync_on_compute
        torch.testing.assert_close(stream.metric_state, states, rtol=0, atol=0)
        torch.testing.assert_close(values_of(stream), before, rtol=0, atol=0)
    getattr(stream, way)(**{kind: good}, target=targets)
    assert stream.update_count == 2
    twice.update(probs.repeat(2, 1), targets.repeat(2))
    torch.testing.assert_close(values_of(stream), values_of(twice))


LOGITS, PROBS, TARGETS = forecast(40, CLASSES, seed=6)


@pytest.mark.parametrize(
    ("stream", "batch", "kind", "argument"),
    [
        (metrics.Error(), {"preds": LOGITS, "target": TARGETS}, ValueError, "preds"),
        (metrics.Error(), {"preds": PROBS}, TypeError, "target"),
        (metrics.Error(), {"preds": PROBS, "target": TARGETS + 1}, ValueError, "target"),
        (metrics.Error(), {"preds": PROBS, "target": TARGETS, "logits": LOGITS}, TypeError, "preds"),
        (metrics.AUROC(), {"preds": PROBS[:, 0], "target": TARGETS}, TypeError, "target"),
        (metrics.AUROC(), {"preds": PROBS, "target": TARGETS > 1}, ValueError, "preds"),
        (
            metrics.ClasswiseCalibrationError(9),
            {"preds": PROBS, "target": TARGETS},
            ValueError,
            "num_classes",
        ),
    ],
)
def test_an_invalid_argument_of_update_is_named_and_not_counted(stream, batch, kind, argument):
    with pytest.raises(kind, match=rf"^{type(stream).__name__}: .*`{argument}`"):
        stream.update(**batch)
    assert stream.update_count == 0


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: metrics.TopKError(k=0), "k"),
        (lambda: metrics.ExpectedCalibrationError(n_bins=0), "n_bins"),
        (lambda: metrics.ClasswiseCalibrationError(0), "num_classes"),
        (lambda: metrics.Summary(n_bins=0), "n_bins"),
    ],
)
def test_an_invalid_option_is_named(make, argument):
    with pytest.raises(ValueError, match=rf"^\w+: `{argument}`"):
        make()


def test_states_of_different_numbers_of_classes_do_not_merge():
    first, second, idle = metrics.NLL(), metrics.NLL(), metrics.NLL()
    first.update(PROBS, TARGETS)
    second.update(*forecast(40, 3, seed=6)[1:])
    with pytest.raises(ValueError, match="got 3 and 5"):
        first.merge_state(second)
    first.merge_state(idle)  # which saw no batch, and so no classes
    assert first.compute().item() == pytest.approx(metrics.nll(PROBS, TARGETS))
    assert merged(first, idle).classes.item() == CLASSES


def test_functions_do_without_torchmetrics_and_classes_name_the_extra():
    code = """
import sys
from beliefmatch import metrics
print(metrics.error.__name__, "torchmetrics" in sys.modules)
sys.modules["torchmetrics"] = None
metrics.Error
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["error", "False"]
    assert done.stderr.splitlines()[-1].endswith('needs torchmetrics: pip install "beliefmatch[metrics]"')


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'Accuracy'"):
        metrics.Accuracy  # noqa: B018
    assert set(dir(metrics)) == set(metrics.__all__)
    assert all(getattr(metrics, name) is not None for name in metrics.__all__)
