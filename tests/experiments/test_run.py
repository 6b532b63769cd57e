"""A run from configuration to record: written whole, resumed, restored, chosen among values."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from beliefmatch.data import load
from beliefmatch.data.predictions import read_predictions
from beliefmatch.experiments.build import bare_network, dataset, method_of, settings_for, trained_network
from beliefmatch.experiments.config import fingerprint
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.predict import restore, risk_threshold
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run import evaluate_finished, execute, execute_run, finished
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.train_job import TrainJob
from beliefmatch.metrics import auroc, brier, error, expected_calibration_error, fpr_at_tpr, nll
from beliefmatch.train.predict import predict_all
from small_runs import digits_config, without_times


def predictions(directory: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(directory / "predictions" / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def test_the_directory_holds_the_record(belief_run):
    directory, record = belief_run
    assert RunRecord.from_json((directory / "record.json").read_text("utf-8")) == record
    assert finished(directory, digits_config()) == record
    assert record.config["training"]["epochs"] == 2
    assert record.data["counts"] == {"train": 200, "validation": 359, "test": 540}
    assert len(record.data["digest"]) == 64 and list(record.data["ood_digests"]) == ["noise"]
    assert record.costs.networks == 1
    network = bare_network(digits_config(), method_of(digits_config()), 10, 1)
    assert record.costs.parameters == sum(parameter.numel() for parameter in network.parameters())
    assert [len(record.curves[0][name]) for name in ("loss", "rate", "validation_error")] == [2, 2, 2]
    assert {"torch", "lightning-fabric"} <= set(record.versions)


@pytest.mark.parametrize("name", ["test", "validation"])
def test_scores_are_those_of_the_written_predictions(belief_run, name):
    directory, record = belief_run
    written = predictions(directory, name)
    probs, targets = (torch.from_numpy(written[key]) for key in ("logits", "targets"))
    probs, scores = probs.double().softmax(1), getattr(record, name)
    assert scores.examples == len(targets)
    assert scores.error == error(probs, targets)
    assert scores.nll == pytest.approx(nll(probs, targets), rel=1e-12)
    assert scores.brier == pytest.approx(brier(probs, targets), rel=1e-12)
    assert scores.ece == pytest.approx(expected_calibration_error(probs, targets), rel=1e-9)
    assert scores.mean_confidence == pytest.approx(probs.max(1).values.mean().item(), rel=1e-12)


def test_ood_scores_are_those_of_the_written_predictions(belief_run):
    directory, record = belief_run
    known, ood = (
        torch.from_numpy(predictions(directory, name)["logits"]).double() for name in ("test", "ood/noise")
    )
    (scores,) = record.ood
    assert (scores.name, scores.examples) == ("noise", len(ood))
    by_score = {
        "entropy": [torch.special.entr(values.softmax(1)).sum(1) for values in (known, ood)],
        "energy": [-values.logsumexp(1) for values in (known, ood)],
    }
    for score, columns in by_score.items():
        assert scores.auroc[score] == pytest.approx(auroc(*columns), abs=1e-6)
        assert scores.fpr95[score] == pytest.approx(fpr_at_tpr(*columns), abs=1e-6)
    assert scores.mean_confidence == pytest.approx(ood.softmax(1).max(1).values.mean().item())


METHODS = {  # options, what is written, and whether it has a mutual information
    "softmax": ({}, "logits", False),
    "temperature": ({}, "logits", False),
    "ensemble": ({"members": 2}, "probs", True),
    "belief_ensemble": ({"members": 2}, "logits", True),
    "mc_dropout": ({"samples": 5}, "probs", True),
    "evidential": ({}, "logits", True),
    "prior_network": ({}, "logits", True),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_evaluated_once_and_restored_from_its_directory(tmp_path, method):
    options, kind, has_information = METHODS[method]
    config = digits_config(method, "training.epochs=1", "ood_training=noise", **options)
    result = execute_run(config, tmp_path, evaluated=True)
    record, evaluation = result.record, result.evaluation
    for key in ("error", "nll", "brier", "ece", "mean_confidence"):
        assert getattr(record.test, key) == evaluation.scores[key].value
    detections = {one.score: one.auroc.value for one in evaluation.ood[0].detections}
    assert record.ood[0].auroc == detections
    assert ("mutual_information" in record.ood[0].auroc) == has_information
    assert (record.rotation.mutual_information is not None) == has_information
    again = evaluate_finished(RunDirectory(tmp_path))  # the same numbers from the file as from memory
    assert (again.scores, again.draws, again.ood) == (evaluation.scores, evaluation.draws, evaluation.ood)

    restored = restore(tmp_path)
    predicted = predict_all(restored.engine, restored.predictor, dataset(config.data).test)
    written = predictions(tmp_path, "test")
    values = predicted.probs if predicted.logits is None else predicted.logits
    if kind == "probs":
        information = written.pop("mutual_information")
        np.testing.assert_allclose(information, predicted.mutual_information.numpy(), rtol=1e-4, atol=1e-7)
        unknown = predictions(tmp_path, "ood/noise")["mutual_information"]
        area = auroc(torch.from_numpy(information), torch.from_numpy(unknown))
        assert record.ood[0].auroc["mutual_information"] == pytest.approx(area, abs=1e-6)
        rows = restored.rows(["a"] * 3, dataset(config.data).test.subset(torch.arange(3)))
        found = [row.mutual_information for row in rows]
        np.testing.assert_allclose(found, information[:3], rtol=1e-4, atol=1e-7)
    assert set(written) == {kind, "targets"}
    np.testing.assert_allclose(written[kind], values.numpy(), rtol=1e-5, atol=1e-6)
    assert record.costs.networks == len(list(tmp_path.glob("network-*"))) == options.get("members", 1)
    assert set(record.learned) == ({"temperature"} if method == "temperature" else set())


def test_predictions_are_single_precision_where_that_is_exact(belief_run):
    directory, record = belief_run
    assert predictions(directory, "test")["logits"].dtype == np.float32
    read = read_predictions(RunDirectory(directory).predictions("test"))
    assert evaluate(read).scores["nll"].value == pytest.approx(record.test.nll, rel=1e-6)


def test_equal_configurations_have_equal_records_whatever_the_global_state(belief_run, tmp_path):
    torch.manual_seed(99)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = execute(digits_config(), tmp_path / "again")
    assert without_times(again) == without_times(belief_run[1])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_a_finished_run_is_not_run_again(belief_run, monkeypatch):
    directory, record = belief_run
    monkeypatch.setattr("beliefmatch.experiments.run.TrainingRun", None)
    assert execute(digits_config(), directory) == record
    assert fingerprint(digits_config("belief_matching", "engine.threads=2")) == record.fingerprint


def test_a_directory_is_for_one_configuration_and_one_process(belief_run, tmp_path):
    with pytest.raises(ValueError, match=r"^run: `out`.*config\.yaml") as caught:
        execute(digits_config(kl_weight=0.5), belief_run[0])
    assert "\n" not in str(caught.value)
    run_dir = RunDirectory(tmp_path)
    with run_dir.locked(), pytest.raises(ValueError, match="`out`"), run_dir.locked():
        pass
    with run_dir.locked():  # free again
        pass


def test_methods_without_dropout_start_alike_and_see_the_same_batches(tmp_path):
    """With a learning rate of zero the losses differ, the weights do not."""
    settings = ["training.learning_rate=0.0", "training.epochs=1", "ood=[]"]
    weights = []
    for method in ("softmax", "belief_matching", "label_smoothing"):
        execute(digits_config(method, *settings), tmp_path / method)
        predictor = restore(tmp_path / method).predictor
        weights.append(predictor.network.state_dict())
    for other in weights[1:]:
        assert all(torch.equal(weights[0][name], other[name]) for name in other)


def test_an_option_is_chosen_by_validation_error(tmp_path):
    config = digits_config("belief_matching", "engine.threads=null", "ood=[]", kl_weight="auto")
    work = TrainJob(config, tmp_path / "run")
    assert work.runs == 3
    heard = []
    record = work.run(lambda fraction, description: heard.append((fraction, description)))
    assert heard[-1][0] == pytest.approx(1) and heard[-1][1].startswith("kl_weight=0.001: ")
    assert [trial.value for trial in record.search] == [0.01, 0.003, 0.001]
    (best,) = (trial for trial in record.search if trial.chosen)
    assert best.validation.error == min(trial.validation.error for trial in record.search)
    assert record.options["kl_weight"] == best.value
    assert record.validation == best.validation
    assert RunDirectory(tmp_path / "run").record() == record
    assert TrainJob(config, tmp_path / "run").run(lambda fraction, description: None) == record
    restore(tmp_path / "run")


def test_a_method_that_trains_on_ood_examples_needs_some(tmp_path):
    with pytest.raises(ValueError, match="`ood_training`"):
        TrainJob(digits_config("prior_network"), tmp_path)


def test_a_risk_threshold_is_found_on_validation_images(belief_run):
    written = predictions(belief_run[0], "validation")
    confidence, predicted = torch.from_numpy(written["logits"]).double().softmax(1).max(1)
    answered = confidence >= risk_threshold(belief_run[0], 0.5)
    wrong = (predicted != torch.from_numpy(written["targets"]))[answered]
    assert 0 < len(wrong) < len(predicted) and wrong.double().mean() <= 0.5
    with pytest.raises(ValueError, match="predict: `risk`"):
        risk_threshold(belief_run[0], 1e-6)


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from small_runs import digits_config
from beliefmatch.experiments.run import execute
execute(digits_config("ensemble", "training.epochs=20", members=2), Path({out!r}))
"""


def test_a_run_that_is_killed_ends_as_if_it_had_not_been(tmp_path):
    config = digits_config("ensemble", "training.epochs=20", members=2)
    undisturbed = execute(config, tmp_path / "whole")
    out = tmp_path / "killed"
    script = KILLED.format(tests=str(Path(__file__).parents[1]), out=str(out))
    process = subprocess.Popen([sys.executable, "-c", script])
    log = out / "network-0" / "log.csv"
    while process.poll() is None and not (log.is_file() and log.read_text().count("\n") > 5):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "record.json").exists()
    assert without_times(execute(config, out)) == without_times(undisturbed)


def test_hostile_names_of_ood_sets_stay_inside_the_directory(tmp_path):
    images = tmp_path / "images.npz"
    np.savez(images, images=np.zeros((4, 8, 8), np.uint8))
    name = "../../escape"
    config = digits_config("softmax", f"ood=['{name}={images}']", "training.epochs=1")
    record = execute(config, tmp_path / "run")
    assert [one.name for one in record.ood] == [name]
    assert not list(tmp_path.glob("*escape*"))
    (file,) = (tmp_path / "run" / "predictions" / "ood").iterdir()
    assert json.loads((tmp_path / "run" / "record.json").read_text())["ood"][0]["examples"] == 4
    assert file.suffix == ".npz"


# Networks of finished runs.


def test_a_run_gives_its_network_with_weights_and_preprocessing(belief_run):
    found, config = trained_network(f"{belief_run[0]}"), digits_config()
    images = next(iter(dataset(config.data).test.batches([torch.arange(9)]))).inputs
    with torch.no_grad():
        expected = restore(belief_run[0]).predictor.predict(images).probs
        torch.testing.assert_close(found.network(images).double().softmax(-1), expected)
    assert not found.network.training
    assert found.class_names == tuple("0123456789")
    same = load(settings_for(config.data, found.expected)).test
    assert torch.equal(next(iter(same.batches([torch.arange(9)]))).inputs, images)


def test_a_run_takes_neither_options_nor_weights_and_must_be_of_one_finished_network(belief_run, tmp_path):
    for argument, value in (("weights", "a.pt"), ("options", {"width": 3})):
        with pytest.raises(ValueError, match=f"trained_network: `{argument}`"):
            trained_network(f"{belief_run[0]}", **{argument: value})
    RunDirectory(tmp_path / "unfinished").begin(digits_config())
    with pytest.raises(ValueError, match=r"unfinished .* model\.json"):
        trained_network(f"{tmp_path / 'unfinished'}")
    ensemble = RunDirectory(tmp_path / "ensemble")
    ensemble.begin(digits_config("ensemble", members=2))
    ensemble.write_model({"class_names": ["a", "b"], "shape": [1, 8, 8], "preprocessing": {}, "learned": {}})
    with pytest.raises(ValueError, match=r"`name`.* an ensemble of 2"):
        trained_network(f"{tmp_path / 'ensemble'}")
