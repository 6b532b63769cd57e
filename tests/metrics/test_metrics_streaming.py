"""Streaming classes: any split of the examples, among batches or processes, gives the function's value."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from beliefmatch import metrics
from forecasts import coarse_scores, forecast, seeds

CLASSES = 5
PAIRS = {
    "Error": (lambda: metrics.Error(), metrics.error),
    "TopKError": (lambda: metrics.TopKError(k=2), lambda p, y: metrics.top_k_error(p, y, k=2)),
    "NLL": (lambda: metrics.NLL(), metrics.nll),
    "Brier": (lambda: metrics.Brier(), metrics.brier),
    "ExpectedCalibrationError": (
        lambda: metrics.ExpectedCalibrationError(),
        metrics.expected_calibration_error,
    ),
    "MaximumCalibrationError": (
        lambda: metrics.MaximumCalibrationError(n_bins=4),
        lambda p, y: metrics.maximum_calibration_error(p, y, n_bins=4),
    ),
    "ClasswiseCalibrationError": (
        lambda: metrics.ClasswiseCalibrationError(CLASSES, n_bins=7),
        lambda p, y: metrics.classwise_calibration_error(p, y, n_bins=7),
    ),
    "AURC": (lambda: metrics.AURC(), lambda p, y: metrics.aurc(p.amax(1), p.argmax(1) == y)),
}
cuts = st.lists(st.integers(1, 59), max_size=6)


def batches(cuts: list[int], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    sizes = torch.tensor([0, *sorted(set(cuts)), len(tensors[0])]).diff().tolist()
    return list(zip(*(tensor.split(sizes) for tensor in tensors), strict=True))


@pytest.mark.parametrize("name", PAIRS)
@given(cuts=cuts, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_any_split_into_batches_gives_the_value_of_the_whole(name, cuts, seed):
    make, function = PAIRS[name]
    logits, probs, targets = forecast(60, CLASSES, seed)
    of_probs, of_logits = make(), make()
    for z, p, y in batches(cuts, logits, probs, targets):
        of_probs.update(p, y)
        of_logits.update(logits=z, target=y)
    expected = pytest.approx(function(probs, targets), rel=1e-9)
    assert of_probs.compute().item() == expected
    assert of_logits.compute().item() == expected


@given(cuts=cuts, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_the_summary_is_all_of_them_at_once(cuts, seed):
    _, probs, targets = forecast(60, CLASSES, seed)
    summary = metrics.Summary(k=2, n_bins=9)
    for batch in batches(cuts, probs, targets):
        summary.update(*batch)
    found = {name: value.item() for name, value in summary.compute().items()}
    assert found == {
        "error": pytest.approx(metrics.error(probs, targets)),
        "top_k_error": pytest.approx(metrics.top_k_error(probs, targets, k=2)),
        "nll": pytest.approx(metrics.nll(probs, targets)),
        "brier": pytest.approx(metrics.brier(probs, targets)),
        "ece": pytest.approx(metrics.expected_calibration_error(probs, targets, n_bins=9)),
        "mce": pytest.approx(metrics.maximum_calibration_error(probs, targets, n_bins=9)),
    }


@given(cuts=cuts, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_area_under_the_roc_curve_of_any_split(cuts, seed):
    scores = coarse_scores(60, seed)
    ood = torch.arange(60) % 3 == 0
    area = metrics.AUROC()
    for batch in batches(cuts, scores, ood):
        area.update(*batch)
    assert area.compute().item() == pytest.approx(metrics.auroc(scores[~ood], scores[ood]))


def merged(first: Metric, second: Metric) -> Metric:
    """What torchmetrics makes of the states of two processes."""
    whole = copy.deepcopy(first)
    for name, reduce in whole._reductions.items():
        states = [getattr(metric, name) for metric in (first, second)]
        if isinstance(states[0], list):
            setattr(whole, name, reduce([torch.cat(state) for state in states]))
        else:
            setattr(whole, name, reduce(torch.stack(states)))
    whole._computed = None
    return whole


@pytest.mark.parametrize("name", PAIRS)
def test_states_of_two_processes_add_up(name):
    make, function = PAIRS[name]
    _, probs, targets = forecast(50, CLASSES, seed=1)
    first, second = make(), make()
    first.update(probs[:13], targets[:13])
    second.update(probs[13:30], targets[13:30])
    second.update(probs[30:], targets[30:])
    assert merged(first, second).compute().item() == pytest.approx(function(probs, targets))


def test_two_processes_of_unequal_shares_compute_the_whole():
    """The real thing, over gloo on this machine."""
    script = Path(__file__).parents[1] / "two_processes.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    values = dict(line.split() for line in done.stdout.splitlines())
    _, probs, targets = forecast(50, CLASSES, seed=1)
    assert float(values["ece"]) == pytest.approx(metrics.expected_calibration_error(probs, targets))
    assert float(values["nll"]) == pytest.approx(metrics.nll(probs, targets))
    assert float(values["aurc"]) == pytest.approx(PAIRS["AURC"][1](probs, targets))


@pytest.mark.parametrize("name", [*PAIRS, "Summary"])
def test_forward_gives_the_batch_and_keeps_the_whole(name):
    make = PAIRS[name][0] if name in PAIRS else metrics.Summary
    _, probs, targets = forecast(40, CLASSES, seed=2)
    stream, batch, whole = make(), make(), make()
    stream(probs[:25], targets[:25])
    value = stream(probs[25:], targets[25:])
    batch.update(probs[25:], targets[25:])
    whole.update(probs, targets)
    torch.testing.assert_close(value, batch.compute())
    torch.testing.assert_close(stream.compute(), whole.compute())


@pytest.mark.parametrize("name", [name for name in PAIRS if name != "AURC"])
def test_memory_does_not_grow_with_the_examples(name):
    metric, size = PAIRS[name][0](), []
    for seed in range(3):
        metric.update(*forecast(200, CLASSES, seed)[1:])
        size.append(sum(state.nbytes for state in metric.metric_state.values()))
    assert size[0] == size[1] == size[2] <= 8 * 3 * CLASSES * 15


def test_a_collection_never_takes_two_metrics_for_one():
    """After a batch without mistakes the sums of error and top-k error are equal; the metrics are not."""
    first = torch.eye(CLASSES, dtype=torch.float64)
    _, probs, targets = forecast(40, CLASSES, seed=3)
    makers = {name: make for name, (make, _) in PAIRS.items()} | {"Top3": lambda: metrics.TopKError(k=3)}
    collection = MetricCollection({name: make() for name, make in makers.items()})
    collection.update(first, torch.arange(CLASSES))
    collection.update(probs, targets)
    everything = torch.cat([first, probs]), torch.cat([torch.arange(CLASSES), targets])
    found = collection.compute()
    for name, (_, function) in PAIRS.items():
        assert found[name].item() == pytest.approx(function(*everything))
    assert found["Top3"].item() == pytest.approx(metrics.top_k_error(*everything, k=3))


def test_a_collection_bins_once_for_mean_and_maximum():
    collection = MetricCollection([metrics.ExpectedCalibrationError(), metrics.MaximumCalibrationError()])
    collection.update(*forecast(40, CLASSES, seed=3)[1:])
    assert list(collection.compute_groups.values()) == [
        ["ExpectedCalibrationError", "MaximumCalibrationError"]
    ]


def test_diagrams_can_be_read_from_the_sums():
    _, probs, targets = forecast(80, CLASSES, seed=4)
    stream = metrics.ExpectedCalibrationError(n_bins=6)
    stream.update(probs, targets)
    expected = metrics.reliability_bins(probs.amax(1), probs.argmax(1) == targets, n_bins=6)
    for name in ("lower", "upper", "count", "confidence", "accuracy"):
        torch.testing.assert_close(
            getattr(stream.reliability_bins(), name), getattr(expected, name), equal_nan=True
        )
    classes = metrics.ClasswiseCalibrationError(CLASSES)
    classes.update(probs, targets)
    torch.testing.assert_close(classes.class_bins().errors, metrics.class_bins(targets, probs=probs).errors)


def test_reset_forgets():
    _, probs, targets = forecast(40, CLASSES, seed=5)
    stream = metrics.NLL()
    stream.update(probs[:10], targets[:10])
    stream.reset()
    stream.update(probs[10:], targets[10:])
    assert stream.compute().item() == pytest.approx(metrics.nll(probs[10:], targets[10:]))


def test_bad_batches_are_refused_and_leave_the_sums_alone():
    logits, probs, targets = forecast(40, CLASSES, seed=6)
    stream = metrics.Error()
    stream.update(probs, targets)
    with pytest.raises(ValueError, match="`preds`"):
        stream.update(logits, targets)
    with pytest.raises(TypeError, match="`target`"):
        stream.update(probs)
    with pytest.raises(TypeError, match="`preds`"):
        stream.update(probs, targets, logits=logits)
    assert stream.compute().item() == metrics.error(probs, targets)
    area = metrics.AUROC()
    with pytest.raises(TypeError, match="`target`"):
        area.update(probs[:, 0], targets)
    assert (stream.update_count, area.update_count) == (1, 0)


def values_of(metric: Metric) -> list[Tensor]:
    """The numbers of a metric, in the order of their names."""
    found = metric.compute()
    return [found] if isinstance(found, Tensor) else [found[name] for name in sorted(found)]


@pytest.mark.parametrize("kind", ["preds", "logits"])
@pytest.mark.parametrize("way", ["update", "forward"])
@pytest.mark.parametrize("name", [*PAIRS, "Summary"])
def test_a_later_batch_of_other_classes_is_refused_as_if_it_had_never_come(name, way, kind):
    make = PAIRS[name][0] if name in PAIRS else metrics.Summary
    stream, twice = make(), make()
    logits, probs, targets = forecast(40, CLASSES, seed=7)
    stream.update(probs, targets)
    before, states = values_of(stream), copy.deepcopy(stream.metric_state)
    wider = forecast(9, CLASSES + 2, seed=8)[1 if kind == "preds" else 0]
    batch = {kind: wider, "target": torch.zeros(9, dtype=torch.int64)}
    with pytest.raises(ValueError, match=rf"^{name}: `{kind}` must have 5 classes, as .*, got 7; \w+ .*\.$"):
        getattr(stream, way)(**batch)
    assert stream.update_count == 1
    torch.testing.assert_close(stream.metric_state, states, rtol=0, atol=0)
    torch.testing.assert_close(values_of(stream), before, rtol=0, atol=0)
    getattr(stream, way)(**{kind: {"preds": probs, "logits": logits}[kind]}, target=targets)
    assert stream.update_count == 2
    twice.update(probs.repeat(2, 1), targets.repeat(2))
    torch.testing.assert_close(values_of(stream), values_of(twice))


def test_after_a_reset_the_first_batch_decides_on_the_classes_again():
    stream = metrics.Error()
    stream.update(*forecast(40, CLASSES, seed=7)[1:])
    stream.reset()
    _, probs, targets = forecast(30, 3, seed=8)
    stream.update(probs, targets)
    assert stream.compute().item() == metrics.error(probs, targets)


def test_a_metric_told_its_classes_names_the_argument():
    _, probs, targets = forecast(40, CLASSES, seed=6)
    stream = metrics.ClasswiseCalibrationError(9)
    with pytest.raises(ValueError, match="`num_classes`"):
        stream.update(probs, targets)
    assert stream.update_count == 0


def test_a_bad_batch_given_by_forward_loses_nothing():
    logits, probs, targets = forecast(40, CLASSES, seed=6)
    stream = metrics.AURC()
    stream(probs, targets)
    with pytest.raises(ValueError, match="`preds`"):
        stream(logits, targets)
    assert stream.compute().item() == pytest.approx(PAIRS["AURC"][1](probs, targets))
    assert stream.update_count == 1 and stream.sync_on_compute


def test_states_of_unlike_numbers_of_classes_do_not_merge():
    first, second, idle = metrics.NLL(), metrics.NLL(), metrics.NLL()
    _, probs, targets = forecast(40, CLASSES, seed=6)
    first.update(probs, targets)
    second.update(*forecast(40, 3, seed=6)[1:])
    with pytest.raises(ValueError, match="must have as many classes in all processes, got 3 and 5"):
        first.merge_state(second)
    first.merge_state(idle)  # which saw no batch, and so no classes
    assert first.compute().item() == pytest.approx(metrics.nll(probs, targets))
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
    with pytest.raises(AttributeError, match="has no attribute 'Accuracy'"):
        metrics.Accuracy  # noqa: B018
    assert set(dir(metrics)) == set(metrics.__all__)
    assert all(getattr(metrics, name) is not None for name in metrics.__all__)
