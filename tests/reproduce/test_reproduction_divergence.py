"""Trainings that leave the finite numbers: a result where the paper has one, an error elsewhere."""

import json
from dataclasses import replace

import pytest
import torch

from beliefmatch.cli import main
from beliefmatch.experiments import grid
from beliefmatch.experiments.build import dataset
from beliefmatch.experiments.config import config_from, fingerprint, overridden, recipe, with_method
from beliefmatch.experiments.grid import Cell, attempt_cells, run_cells
from beliefmatch.experiments.records import Diverged
from beliefmatch.report.reproduction_rows import ours_text
from beliefmatch.reproduce.record import Row
from reproduced import record_of


def tiny_plan(**options):
    mapping = overridden(recipe("digits"), ["training.epochs=1", "data.limit=50", "ood=[noise]"])
    return config_from(with_method(mapping, "belief_matching", **options))


def test_a_training_that_diverges_is_a_result_where_it_may(tmp_path, monkeypatch):
    def explode(*arguments, **options):
        raise FloatingPointError("fit: 20 steps in a row were not finite.")

    monkeypatch.setattr(grid, "execute", explode)
    cell = Cell(tiny_plan(kl_weight=0.01), tmp_path / "run", may_diverge=True)
    digest = dataset(cell.config.data).facts["digest"]
    expected = Diverged(fingerprint(cell.config), "fit: 20 steps in a row were not finite.", digest)
    assert attempt_cells([cell]) == [expected]
    monkeypatch.setattr(grid, "execute", None)  # it is not tried again
    told = []
    assert attempt_cells([cell], on_cell=lambda *news: told.append(news)) == [expected]
    assert told == [(0, 1.0, "finished before")]
    monkeypatch.setattr(grid, "execute", explode)
    with pytest.raises(FloatingPointError, match="20 steps in a row"):
        run_cells([cell])
    assert Diverged.from_json(expected.to_json()) == expected


def test_predictions_that_are_not_finite_are_a_divergence(tmp_path, monkeypatch):
    """Weights may be finite and what they say not."""
    monkeypatch.setattr("beliefmatch.models.digits.DigitsNet.forward", _not_finite)
    cell = Cell(tiny_plan(kl_weight=0.01), tmp_path / "run", may_diverge=True)
    (ended,) = attempt_cells([cell])
    assert isinstance(ended, Diverged)
    assert ended.message.startswith("run: the predictions of the network are not finite.")


def _not_finite(network, images):
    logits = network.layers(images)
    return logits if network.training else logits * torch.inf


def test_what_a_method_does_not_have_has_not_diverged():
    row = Row(
        "g", "softmax", "mutual_information", "%", None, [None, None, None], [0, 1, 2], 1.0, "1 of 3 diverged"
    )
    assert ours_text(replace(row, diverged=1)) == "—"
    assert ours_text(replace(row, diverged=3)) == "diverged"
    assert ours_text(replace(row, values=[1.0, None, 2.0], diverged=1)) == "1.50 ± 0.71"
    assert ours_text(replace(row, values=[1.0, None, 2.0], diverged=0)) == "1.50 ± 0.71 (2 of 3 seeds)"


def test_an_explosion_is_shown_as_such(tmp_path, monkeypatch, capsys):
    """Of the sweep of priors the largest, alone, leaves the finite numbers."""
    execute = grid.execute

    def explode(config, directory, **options):
        if config.method.options.get("prior", 1.0) > 1e6 and config.method.options["kl_weight"] == 0.01:
            raise FloatingPointError("fit: 20 steps in a row were not finite.")
        return execute(config, directory, **options)

    monkeypatch.setattr(grid, "execute", explode)
    settings = ["--set", "training.epochs=1", "--set", "data.limit=32"]
    line = ["reproduce", "figure-beta", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path}", *settings]
    assert main(line) == 0
    record = record_of(tmp_path, "figure-beta")
    row = next(row for row in record.rows if row.label.startswith("β = e^16, λ = 0.01"))
    assert (row.values, row.train_seconds) == ([None], None)
    assert row.note == "1 of 1 diverged"
    (panel,) = record.drawings[0].panels
    alone, joint = panel.series[2:]
    assert (alone.label, alone.style) == ("seeds that diverged, β alone", "crosses")
    assert (alone.x, alone.y, joint.x) == ([16.0], [1.0], [])
    assert 16.0 not in panel.series[0].x
    assert "diverged" in next(one for one in capsys.readouterr().out.splitlines() if "e^16, λ = 0.01" in one)
    (run,) = [run for run in record.runs if run.diverged]
    assert (
        json.loads((tmp_path / "runs" / run.fingerprint / "diverged.json").read_text())["message"]
        == run.diverged
    )
