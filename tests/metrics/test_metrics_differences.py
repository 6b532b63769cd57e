"""Where other libraries compute another calibration error, one small example each."""

import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from beliefmatch.metrics import calibration_error, expected_calibration_error, reliability_bins
from forecasts import forecast, two_classes


def test_a_confidence_of_one_has_a_group_of_its_own_in_torchmetrics_but_not_here():
    """Torchmetrics opens a sixteenth group for 1.0: a wrong 1.0 and a right 0.95 cannot cancel there."""
    probs, targets = two_classes([1.0, 0.95], [False, True])
    theirs = multiclass_calibration_error(probs, targets, num_classes=3, n_bins=15).item()
    assert expected_calibration_error(probs, targets) == pytest.approx(0.475)  # |0.975 − 0.5|
    assert theirs == pytest.approx(0.525)  # (1 + 0.05) / 2


def test_an_edge_belongs_to_the_group_below_here_and_above_in_torchmetrics_and_netcal():
    """A wrong 0.75 and a right 0.8 in four groups: two groups here, as in scikit-learn, one there."""
    netcal = pytest.importorskip("netcal.metrics")
    confidence, correct = torch.tensor([0.75, 0.8]).double(), torch.tensor([False, True])
    ours = calibration_error(reliability_bins(confidence, correct, n_bins=4))
    assert ours == pytest.approx((0.75 + 0.2) / 2)
    torchmetrics = binary_calibration_error(confidence, correct.long(), n_bins=4).item()
    other = netcal.ECE(bins=4, detection=True).measure(confidence.numpy(), correct.long().numpy())
    assert torchmetrics == pytest.approx(0.275)  # |0.775 − 0.5|
    assert other == pytest.approx(0.275)


def test_netcal_takes_two_classes_for_the_probability_of_the_second():
    netcal = pytest.importorskip("netcal.metrics")
    probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    targets = torch.tensor([1, 1])  # the first prediction is wrong, the second right
    assert expected_calibration_error(probs, targets) == pytest.approx(0.4)  # |0.9 − 0.5|
    theirs = netcal.ECE(bins=15).measure(probs.numpy(), targets.numpy())
    assert theirs == pytest.approx(0.5)  # (0.9 + 0.1) / 2


def test_torchmetrics_rounds_a_confidence_of_nearly_one_to_one():
    probs, targets = two_classes([1 - 1e-9, 0.95], [False, True])
    theirs = multiclass_calibration_error(probs, targets, num_classes=3, n_bins=15).item()
    assert expected_calibration_error(probs, targets) == pytest.approx(0.475)
    assert theirs == pytest.approx(0.525)


def test_the_average_error_of_netcal_weighs_all_groups_alike():
    netcal = pytest.importorskip("netcal.metrics")
    confidence, correct = (
        torch.tensor([0.9, 0.9, 0.9, 0.6]).double(),
        torch.tensor([True, True, False, False]),
    )
    ours = calibration_error(reliability_bins(confidence, correct))
    assert ours == pytest.approx((abs(2.7 - 2) + 0.6) / 4)  # 0.325
    theirs = netcal.ACE(bins=15, detection=True).measure(confidence.numpy(), correct.long().numpy())
    assert theirs == pytest.approx((0.7 / 3 + 0.6) / 2)  # 0.417


def test_torchmetrics_takes_any_value_outside_the_unit_interval_for_a_logit():
    logits, _, targets = forecast(30, 4, seed=0)
    guessed = multiclass_calibration_error(logits, targets, num_classes=4, n_bins=15).item()
    assert expected_calibration_error(logits.softmax(1), targets) == pytest.approx(guessed, abs=1e-6)
    with pytest.raises(ValueError, match="not logits"):
        expected_calibration_error(logits, targets)
