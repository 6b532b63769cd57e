"""The comparison on digits: fair, repeatable and recorded whole."""

import json
import statistics
from dataclasses import replace

import pytest
import torch
from beliefmatch.experiments.records import DIGITS_OPTIONS, CompareConfig, CompareRecord

from beliefmatch.experiments.compare import Comparison, _wrong_confidence

TINY = CompareConfig(epochs=2, seeds=2, seed=5)


@pytest.fixture(scope="module")
def record():
    return Comparison(TINY).run()


def without_times(record: CompareRecord) -> CompareRecord:
    runs = [replace(run, wall_seconds=0.0) for run in record.runs]
    return replace(record, runs=runs, wall_seconds=0.0)


def test_a_seed_gives_the_same_record_whatever_the_global_state(record):
    torch.manual_seed(99)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = Comparison(TINY).run()
    assert without_times(again) == without_times(record)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_another_seed_gives_other_networks(record):
    first, second = record.of("softmax")
    assert (first.seed, second.seed) == (5, 6)
    assert first.losses != second.losses


def test_a_method_scores_the_same_alone_as_in_company(record):
    alone = Comparison(replace(TINY, methods=("belief_matching",), seeds=1)).run()
    company = record.of("belief_matching")[0]
    assert replace(alone.runs[0], wall_seconds=0.0) == replace(company, wall_seconds=0.0)


def test_every_epoch_is_announced_with_its_method():
    heard = []
    comparison = Comparison(replace(TINY, seeds=1))
    comparison.run(on_epoch=heard.append)
    assert heard == ["softmax"] * 2 + ["belief_matching"] * 2
    assert len(heard) == comparison.total_epochs


def test_the_record_survives_its_json(record):
    assert CompareRecord.from_json(record.to_json()) == record


def test_the_record_carries_its_evidence(record):
    fields = json.loads(record.to_json())
    assert fields["config"]["seed"] == 5
    assert fields["training"]["epochs"] == 2
    assert fields["examples"] == {"train": 898, "validation": 359, "test": 540}
    assert {"python", "beliefmatch", "torch", "numpy"} <= set(fields["versions"])
    assert fields["hardware"]["torch_threads"] == 1
    assert 0 < sum(run["wall_seconds"] for run in fields["runs"]) <= fields["wall_seconds"]
    assert [run["options"] for run in fields["runs"][:2]] == [
        {},
        dict(DIGITS_OPTIONS["belief_matching"]),
    ]


def test_numbers_of_the_turning_digit_hang_together(record):
    assert record.angles[0] == 0
    assert record.angles[-1] == 180
    for run in record.runs:
        seen = run.rotation
        for confidence, entropy in zip(seen.confidence, seen.entropy, strict=True):
            assert 0.1 <= confidence <= 1
            assert 0 <= entropy <= torch.tensor(10.0).log()
        assert len(seen.predicted) == len(seen.recognised) == len(record.angles)
        assert all(0 <= share <= 1 for share in seen.recognised)
        if seen.spread is not None:
            pairs = zip(seen.spread, seen.entropy, strict=True)
            assert all(0 < spread < entropy for spread, entropy in pairs)
    assert [run.rotation.spread is None for run in record.runs[:2]] == [True, False]


def test_confidence_when_wrong_is_the_mean_over_the_wrong_angles(record):
    for seen in (run.rotation for run in record.runs):
        wrong = [c for c, k in zip(seen.confidence, seen.predicted, strict=True) if k != record.digit]
        assert seen.wrong_confidence == pytest.approx(statistics.fmean(wrong), rel=1e-12)


def test_confidence_when_wrong_counts_every_image_of_the_digit_at_every_angle():
    confidence = torch.tensor([[0.9, 0.5], [0.4, 0.3], [0.8, 0.2]], dtype=torch.float64)
    predicted = torch.tensor([[3, 1], [2, 3], [3, 9]])
    assert _wrong_confidence(confidence, predicted) == pytest.approx((0.5 + 0.4 + 0.2) / 3)
    assert _wrong_confidence(confidence, torch.full((3, 2), 3)) is None


def test_the_pictured_digit_stands_upright_first_and_upside_down_last(record):
    images = torch.tensor(record.images)
    assert images.shape == (13, 8, 8)
    torch.testing.assert_close(images[-1], images[0].rot90(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"methods": ("softmax", "magic")}, "among softmax, .* got 'magic'"),
        ({"methods": ()}, "at least one method"),
        ({"methods": ("softmax", "softmax")}, "none twice, got 'softmax,softmax'"),
        ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
        ({"seeds": -1}, "`seeds` must be at least 1, got -1"),
        ({"seed": -3}, "`seed` must be at least 0, got -3"),
        ({"seed": 2**63}, "`seed` must be below"),
        ({"methods": ("softmax",), "options": {"belief_matching": {}}}, "got some of"),
    ],
)
def test_impossible_configurations_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words) as caught:
        CompareConfig(**wrong)
    assert str(caught.value).startswith("compare: ")


def test_a_bad_weight_is_refused_before_training():
    with pytest.raises(ValueError, match="`kl_weight`"):
        Comparison(CompareConfig(options={"belief_matching": {"kl_weight": float("nan")}}))
