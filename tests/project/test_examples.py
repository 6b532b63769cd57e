"""The examples run, and their numbers are right."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from beliefmatch.experiments.evaluation_record import EvaluationRecord

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


def test_the_classifier_of_scikit_learn_knows_its_wines(capsys):
    found = runpy.run_path(f"{EXAMPLES / 'sklearn_classifier.py'}")["run"]()
    assert len(capsys.readouterr().out.splitlines()) == len(found)
    assert found["accuracy of answers"] >= found["accuracy"] > 0.9
    assert 0.3 < found["share answered at 0.9"] <= 1
    assert found["log-loss"] < 0.2
    assert found["λ of the classifier"] > 0
    assert found["λ for a network"] > 0
