"""A run from configuration to record: kept whole, gone on with, built again, chosen among values."""

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
from msgspec.structs import replace

from beliefmatch.experiments.build import bare_network, dataset, method_of
from beliefmatch.experiments.config import config_from, fingerprint, overridden, recipe, with_method
from beliefmatch.experiments.predict import restore, risk_threshold
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run import execute, finished
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.search import TrainJob
from beliefmatch.metrics import auroc, brier, error, expected_calibration_error, nll
from beliefmatch.train.predict import predict_all

SHORT = ["training.epochs=2", "training.warmup=[]", "data.limit=200", "ood=[noise]"]


def config_of(method: str = "belief_matching", *settings: str, **options):
    mapping = overridden(recipe("digits"), [*SHORT, *settings])
    return config_from(with_method(mapping, method, **options))


def without_times(record: RunRecord) -> RunRecord:
    timed = {"seconds", "images_per_second"}
    curves = [{k: v for k, v in curve.items() if k not in timed} for curve in record.curves]
    return replace(record, curves=curves, costs=None, created="", wall_seconds=0.0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "belief"
    return directory, execute(config_of(), directory)


def said(directory: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(directory / "predictions" / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def test_the_record_is_what_the_directory_holds(kept):
    directory, record = kept
    assert RunRecord.from_json((directory / "record.json").read_text("utf-8")) == record
    assert finished(directory, config_of()) == record
    assert record.config["training"]["epochs"] == 2
    assert record.data["counts"] == {"train": 200, "validation": 359, "test": 540}
    assert len(record.data["digest"]) == 64
    assert record.costs.networks == 1
    assert record.costs.parameters == sum(p.numel() for p in _network().parameters())
    assert [len(record.curves[0][name]) for name in ("loss", "rate", "validation_error")] == [2, 2, 2]
    assert {"torch", "lightning-fabric"} <= set(record.versions)


def _network():
    config = config_of()
    return bare_network(config, method_of(config), 10, 1)


def test_scores_are_those_of_the_kept_predictions(kept):
    directory, record = kept
    kept_test = said(directory, "test")
    log_alpha, targets = (
        torch.from_numpy(kept_test["logits"]).double(),
        torch.from_numpy(kept_test["targets"]),
    )
    probs = log_alpha.softmax(1)
    assert record.test.error == error(probs, targets)
    assert record.test.nll == pytest.approx(nll(probs, targets), rel=1e-5)
    assert record.test.brier == pytest.approx(brier(probs, targets), rel=1e-5)
    assert record.test.ece == pytest.approx(expected_calibration_error(probs, targets), rel=1e-4)
    ood = torch.from_numpy(said(directory, "ood/noise")["logits"]).double().softmax(1)
    entropies = [torch.special.entr(values).sum(1) for values in (probs, ood)]
    assert record.ood[0].name == "noise"
    assert record.ood[0].auroc["entropy"] == pytest.approx(auroc(*entropies), abs=1e-4)


def test_the_same_plan_gives_the_same_record_whatever_the_global_state(kept, tmp_path):
    torch.manual_seed(99)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = execute(config_of(), tmp_path / "again")
    assert without_times(again) == without_times(kept[1])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_a_finished_run_is_not_run_again(kept, monkeypatch):
    directory, record = kept
    monkeypatch.setattr("beliefmatch.experiments.run.TrainingRun", None)
    assert execute(config_of(), directory) == record


def test_another_plan_does_not_take_the_directory(kept):
    with pytest.raises(
        ValueError, match="run: `out` must be new, or hold a run of the same configuration"
    ) as caught:
        execute(config_of(kl_weight=0.5), kept[0])
    assert "\n" not in str(caught.value)


def test_settings_of_the_machine_are_not_another_plan(kept):
    assert fingerprint(config_of("belief_matching", "engine.threads=2")) == kept[1].fingerprint


def test_two_at_once_do_not_share_a_directory(tmp_path):
    with (
        RunDirectory(tmp_path).locked(),
        pytest.raises(ValueError, match="another process is at work"),
        RunDirectory(tmp_path).locked(),
    ):
        pass


@pytest.mark.parametrize(
    ("method", "options", "kind"),
    [
        ("softmax", {}, "logits"),
        ("temperature", {}, "logits"),
        ("ensemble", {"members": 2}, "probs"),
        ("belief_ensemble", {"members": 2}, "logits"),
        ("mc_dropout", {"samples": 5}, "probs"),
        ("evidential", {}, "logits"),
        ("prior_network", {}, "logits"),
    ],
)
def test_every_kind_of_method_comes_back_from_its_directory(tmp_path, method, options, kind):
    settings = ["training.epochs=1", "ood_training=noise"]
    record = execute(config_of(method, *settings, **options), tmp_path)
    restored = restore(tmp_path)
    again = predict_all(restored.engine, restored.predictor, dataset(config_of().data).test)
    written = said(tmp_path, "test")
    values = again.probs if again.logits is None else again.logits
    assert set(written) == {kind, "targets"}
    np.testing.assert_allclose(written[kind], values.numpy(), rtol=1e-5, atol=1e-6)
    assert record.costs.networks == len(list(tmp_path.glob("network-*"))) == options.get("members", 1)
    assert set(record.learned) == ({"temperature"} if method == "temperature" else set())


def test_methods_without_dropout_start_alike_and_see_the_same_batches(tmp_path):
    """With a learning rate of zero the losses differ, the weights do not."""
    settings = ["training.learning_rate=0.0", "training.epochs=1", "ood=[]"]
    weights = []
    for method in ("softmax", "belief_matching", "label_smoothing"):
        execute(config_of(method, *settings), tmp_path / method)
        predictor = restore(tmp_path / method).predictor
        weights.append(predictor.network.state_dict())
    for other in weights[1:]:
        assert all(torch.equal(weights[0][name], other[name]) for name in other)


def test_a_method_that_needs_ood_examples_says_so(tmp_path):
    with pytest.raises(ValueError, match="`ood_training` must name a set for prior_network"):
        TrainJob(config_of("prior_network"), tmp_path)


def test_an_option_is_chosen_by_validation_error(tmp_path):
    work = TrainJob(config_of("belief_matching", kl_weight="auto"), tmp_path / "run")
    assert work.runs == 3
    record = work.run(lambda share, doing: None)
    assert [trial.value for trial in record.search] == [0.01, 0.003, 0.001]
    (best,) = (trial for trial in record.search if trial.chosen)
    assert best.validation.error == min(trial.validation.error for trial in record.search)
    assert record.options["kl_weight"] == best.value
    assert record.validation == best.validation
    assert RunDirectory(tmp_path / "run").record() == record
    again = TrainJob(config_of("belief_matching", kl_weight="auto"), tmp_path / "run")
    assert again.run(lambda share, doing: None) == record
    restore(tmp_path / "run")


def test_a_threshold_by_promise_is_found_on_validation_images(kept, tmp_path):
    directory, _ = kept
    kept_validation = said(directory, "validation")
    probs = torch.from_numpy(kept_validation["logits"]).double().softmax(1)
    confidence, predicted = probs.max(1)
    least = risk_threshold(directory, 0.5)
    answered = confidence >= least
    wrong = (predicted != torch.from_numpy(kept_validation["targets"]))[answered]
    assert wrong.double().mean() <= 0.5
    with pytest.raises(ValueError, match="predict: `risk` must be one that the 359 validation images"):
        risk_threshold(directory, 1e-6)


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {tests!r} + "/experiments"]
from test_run import config_of
from beliefmatch.experiments.run import execute
execute(config_of("ensemble", "training.epochs=40", members=2), Path({out!r}))
"""


def test_a_run_that_is_killed_ends_as_if_it_had_not_been(tmp_path):
    config = config_of("ensemble", "training.epochs=40", members=2)
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
    config = config_of("softmax", f"ood=['{name}={images}']", "training.epochs=1")
    record = execute(config, tmp_path / "run")
    assert [one.name for one in record.ood] == [name]
    assert not list(tmp_path.glob("*escape*"))
    (file,) = (tmp_path / "run" / "predictions" / "ood").iterdir()
    assert json.loads((tmp_path / "run" / "record.json").read_text())["ood"][0]["examples"] == 4
    assert file.suffix == ".npz"
