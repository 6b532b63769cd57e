"""The record of an evaluation: written and read, made again, of odd input, with its circumstances."""

import numpy as np
import pytest
import torch

from beliefmatch.experiments.evaluate import STEPS, evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from scored_models import LOGITS, OTHERS, QUICK, TARGETS, K, N, judged, predictions


@pytest.fixture(name="record")
def _record():
    return judged("logits")


@pytest.fixture(name="record_of_probs")
def _record_of_probs():
    return judged("probs")


def test_json_gives_back_the_record(record, record_of_probs):
    for one in (record, record_of_probs):
        assert EvaluationRecord.from_json(one.to_json()) == one


def same_but_times(record: EvaluationRecord) -> str:
    lines = record.to_json().splitlines()
    return "\n".join(line for line in lines if '"created"' not in line and '"wall_seconds"' not in line)


def test_the_same_seed_gives_the_same_bytes(record):
    def again(seed: int) -> str:
        settings = EvaluateConfig(resamples=50, seed=seed)
        return same_but_times(evaluate(predictions(LOGITS, targets=TARGETS), settings=settings))

    assert again(1) == again(1)
    assert again(1) != again(2)


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    evaluate(predictions(LOGITS, targets=TARGETS), settings=QUICK)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_single_and_half_precision_agree_with_double(record, dtype):
    found = evaluate(predictions(LOGITS.astype(dtype), targets=TARGETS), settings=QUICK)
    rounded = evaluate(predictions(LOGITS.astype(dtype).astype(float), targets=TARGETS), settings=QUICK)
    for key, number in rounded.scores.items():
        assert found.scores[key].value == pytest.approx(number.value, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 60])
@pytest.mark.parametrize("share", [0.0, 1e-30, 1e-3, 1.0])
def test_any_finite_logits_have_a_record(dtype, classes, share):
    """Up to the largest number of the type, where differences overflow."""
    rng = np.random.default_rng(0)
    values = (rng.uniform(-1, 1, (5, classes)) * share * float(np.finfo(dtype).max)).astype(dtype)
    ood = {"noise": predictions(rng.normal(size=(4, classes)).astype(dtype))}
    targets = rng.integers(0, classes, 5)
    found = evaluate(predictions(values, targets=targets), ood=ood, settings=QUICK)
    assert found.scores["error"].value == (values.argmax(1) != targets).mean()
    assert EvaluationRecord.from_json(found.to_json()) == found


@pytest.mark.parametrize("examples", [1, 2])
def test_one_example_is_enough(examples):
    found = evaluate(predictions(LOGITS[:examples], targets=TARGETS[:examples]), settings=QUICK)
    assert found.examples == examples
    assert EvaluationRecord.from_json(found.to_json()) == found


def test_every_step_is_announced():
    done = []
    ood = {"a": predictions(OTHERS), "b": predictions(OTHERS)}
    evaluate(predictions(LOGITS, targets=TARGETS), name="m", ood=ood, settings=QUICK, on_step=done.append)
    assert len(done) == STEPS + 2
    assert all(step.startswith("m: ") for step in done)


def test_the_circumstances_are_kept(record):
    assert record.settings["fields"] == {"logits": "logits"}
    assert record.settings["resamples_drawn"] == 50
    assert record.settings["risks"] == [0.3, 0.5]
    assert record.versions["torch"].startswith(torch.__version__.split("+")[0])
    assert (record.name, record.source, record.examples) == ("model", "some/model.npz", N)
    assert record.class_names == [str(k) for k in range(K)]
    assert set(record.scores) <= set(record.conventions)
    assert all("{" not in text for text in record.conventions.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"class_names": ["a"]}, "`class_names` must be one for each of the 7 classes"),
        ({"ood": {"x": predictions(OTHERS[:, :3])}}, "`ood` set 'x' must have the 7 classes"),
    ],
)
def test_mismatches_are_told_in_one_line(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        evaluate(predictions(LOGITS, targets=TARGETS), **options)
    assert str(caught.value).startswith("evaluate: ")


def test_targets_are_needed():
    with pytest.raises(ValueError, match="`predictions` must have targets"):
        evaluate(predictions(LOGITS))


@pytest.mark.parametrize(
    ("option", "value"),
    [("n_bins", 0), ("resamples", -1), ("level", 1.0), ("seed", -1), ("seed", 2**63), ("delta", 0.0),
     ("risks", (0.1, 2.0))],
)  # fmt: skip
def test_settings_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=rf"EvaluateConfig: `{option}(\.\d)?` must"):
        EvaluateConfig(**{option: value})


def test_the_record_tells_which_targets_it_was_judged_on():
    logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(30) % 3
    digests = [
        evaluate(
            predictions(logits.numpy(), targets=labels.numpy()), settings=EvaluateConfig(resamples=0)
        ).settings["targets_sha256"]
        for labels in (targets, targets.clone(), targets.flip(0))
    ]
    assert digests[0] == digests[1] != digests[2]
