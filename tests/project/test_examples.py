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
