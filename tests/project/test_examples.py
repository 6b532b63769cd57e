"""The examples run, and their numbers are right."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from outside_packages import imported

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_scikit_learn_classifiers_are_evaluated(tmp_path, capsys):
    example = runpy.run_path(f"{EXAMPLES / 'sklearn_logits.py'}")
    assert example["run"](tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path / 'report' / 'report.html'}"
    for name, kind in (("linear", "logits"), ("forest", "probs")):
        record = EvaluationRecord.from_json((tmp_path / "report" / f"{name}.json").read_text("utf-8"))
        with np.load(tmp_path / f"{name}.npz") as saved:
            error = (saved[kind].argmax(1) != saved["targets"]).mean()
        assert record.kind == kind
        assert record.scores["error"].value == pytest.approx(error)
        assert [ood.name for ood in record.ood] == ["8 and 9"]
        assert record.ood[0].detections[0].auroc.value > 0.9


def test_an_exported_network_knows_what_it_does_not_know(tmp_path, capsys):
    imported("onnxruntime")
    example = runpy.run_path(f"{EXAMPLES / 'export_onnx.py'}")
    auroc = example["run"](tmp_path / "model.onnx")
    assert auroc > 0.9
    assert f"AUROC of the mutual information {auroc:.3f}" in capsys.readouterr().out
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]


def example(name, *packages):
    """The names of an example; the test is skipped where a package that it needs is missing."""
    for package in packages:
        imported(package)
    return runpy.run_path(f"{EXAMPLES / name}.py")


@pytest.mark.filterwarnings("ignore")
def test_votes_train_in_the_trainer_and_its_own_loss_of_them_is_the_worst():
    found = example("huggingface_votes", "transformers", "accelerate")["run"](200)
    assert len(found) == 5
    assert found["the people's probabilities"] == min(found.values())
    assert found["the Trainer's own loss of votes"] == max(found.values())


@pytest.mark.filterwarnings("ignore")
def test_a_grid_search_of_skorch_chooses_kl_weight():
    run = example("skorch_grid", "skorch")["run"]
    run.__globals__["GRID"] = {"criterion__kl_weight": [0.001, 0.01]}
    found = run(10)
    assert found["belief matching"]["kl_weight"] in (0.001, 0.01)
    for scores in found.values():
        assert scores["nll"] < 1 and scores["error"] < 0.2 and 0 <= scores["ece"] < 0.5


@pytest.mark.filterwarnings("ignore")
def test_lightning_tests_the_epoch_of_the_lowest_nll(tmp_path):
    found = example("lightning_digits", "pytorch_lightning", "tensorboard")["run"](tmp_path, epochs=3)
    assert set(found) == {f"test_{name}" for name in ("error", "nll", "brier", "ece", "mce")}
    assert found["test_nll"] < 1.5
    assert list(tmp_path.glob("digits/version_0/events.out.tfevents.*"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mixed_labels_of_timm_are_counts():
    found = example("timm_mixup", "timm")["run"](1)
    assert {frozenset(scores) for scores in found.values()} == {frozenset(("error", "nll", "ece"))}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_learner_of_fastai_gives_the_probabilities_of_the_belief():
    found = example("fastai_digits", "fastai")["run"](10)
    assert all(scores["error"] < 0.1 and scores["nll"] < 0.5 for scores in found.values())
    assert 0 < found["belief matching"]["abstains"] < 0.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torch_uncertainty_detects_ood_digits_by_mutual_information():
    found = example("torch_uncertainty_digits", "torch_uncertainty")["run"](5)
    assert found["belief matching"]["test/cls/Acc"] > 0.9
    assert found["belief matching"]["ood/AUROC"] > 0.8


def test_the_classifier_of_scikit_learn_knows_its_wines(capsys):
    found = runpy.run_path(f"{EXAMPLES / 'sklearn_classifier.py'}")["run"]()
    assert len(capsys.readouterr().out.splitlines()) == len(found)
    assert found["accuracy of answers"] >= found["accuracy"] > 0.9
    assert 0.3 < found["share answered at 0.9"] <= 1
    assert found["log-loss"] < 0.2
    assert found["λ of the classifier"] > 0
    assert found["λ for a network"] > 0


def test_the_picture_of_the_readme_shows_a_repair_and_its_controls(tmp_path):
    imported("matplotlib")
    names = runpy.run_path(f"{EXAMPLES / 'readme_picture.py'}")
    names["run"].__globals__["SEEDS"] = range(2)
    lines = names["run"](tmp_path).splitlines()
    error, nll, ece, auroc = zip(*map(_means, lines[2:]), strict=True)
    before, scaled, softmax, after = range(4)
    assert error[before] == error[scaled]  # a temperature changes no class
    assert nll[after] < nll[scaled] < nll[before] and ece[scaled] < ece[before] and ece[after] < ece[before]
    assert error[after] < error[before] and error[softmax] < error[before] and auroc[after] > auroc[before]
    for theme in ("light", "dark"):
        picture = tmp_path / f"repair_{theme}.png"
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 150_000


def _means(line):
    return [float(cell.split("±")[0]) for cell in line.split("|")[2:6]]
