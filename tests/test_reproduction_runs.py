"""Every reproduction end to end at a scale of seconds: runs, records, tables, figures, taking up again."""

import errno
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch.cli import main
from beliefmatch.experiments import grid
from beliefmatch.experiments.grid import Cell, attempt_cells, run_cells
from beliefmatch.experiments.plan import fingerprint, overridden, plan_from, recipe, with_method
from beliefmatch.experiments.reproduction import REPRODUCTIONS
from beliefmatch.experiments.reproduction.activations import last_layer, penultimate, plane, seen
from beliefmatch.experiments.reproduction.outcome import Run
from beliefmatch.experiments.reproduction.predicted import (
    mean_spread,
    median_precision,
    mistake_auroc,
    top_error,
)
from beliefmatch.experiments.reproduction.record import ReproductionRecord
from beliefmatch.experiments.run_directory import RunDirectory
from beliefmatch.experiments.run_record import Diverged, RunRecord
from beliefmatch.report.reproduction_text import summary_markdown
from commands import MAIN
from small_training import engine

TRANSFERS = ("table3", "figure-transfer")
FIGURES = {
    "figure-transfer": "entropy",
    "figure-reliability": "reliability",
    "figure-ood": "entropy",
    "figure-rotation": "turning_digit",
    "figure-representation": "representation",
    "figure-beta": "beta",
    "controls": "data_size",
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduce")
    assert main(["reproduce", "all", "--scale", "tiny", "--jobs", "1", "--out", f"{out}"]) == 0
    return out


def record_of(out, name) -> ReproductionRecord:
    return ReproductionRecord.from_json((out / "tiny" / name / "reproduction.json").read_text("utf-8"))


def runs_of(out) -> dict[str, RunRecord]:
    homes = [path for path in (out / "runs").iterdir() if not (path / "adaptation.json").is_file()]
    return {path.name: RunDirectory(path).finished() for path in homes}


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_reproduction_runs_to_its_record(everything, name):
    record, runs = record_of(everything, name), runs_of(everything)
    assert record.id == name
    assert record.rows
    assert record.scale_words.startswith("tiny scale: ")
    assert ReproductionRecord.from_json(record.to_json()) == record
    assert {run.fingerprint for run in record.runs} <= {path.name for path in (everything / "runs").iterdir()}
    assert record.command == ["beliefmatch", "reproduce", "all", "--scale", "tiny"]
    for row in record.rows:
        assert len(row.values) == len(row.seeds) == 1
    if name in TRANSFERS:
        return
    errors = [row.values[0] for row in record.rows if row.measure in ("error", "top-1 error")]
    known = [100 * run.test.error for run in runs.values()]
    assert all(any(error == pytest.approx(one) for one in known) for error in errors)


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_output_tells_the_scale(everything, name):
    place, words = everything / "tiny" / name, record_of(everything, name).scale_words
    assert words in (place / "summary.md").read_text("utf-8")
    drawn = sorted(path.name for path in (place / "figures").iterdir()) if name in FIGURES else []
    assert drawn == ([f"{FIGURES[name]}.png", f"{FIGURES[name]}.svg"] if name in FIGURES else [])
    for path in drawn:
        content = (place / "figures" / path).read_bytes()
        assert content.startswith(b"\x89PNG" if path.endswith("png") else b"<?xml")
        assert path.endswith("png") or f"<!-- {words}; 1 seed -->".encode() in content


def test_the_summary_has_every_reproduction_and_what_was_left_out(everything):
    text = (everything / "tiny" / "summary.md").read_text("utf-8")
    records = [record_of(everything, name) for name in REPRODUCTIONS]
    for record in records:
        assert f"## {record.id}: " in text
    assert "## Not run" not in text
    assert text.startswith(summary_markdown(records, {}).rstrip())


def test_table1_sets_the_paper_beside_the_runs(everything):
    record, runs = record_of(everything, "table1"), runs_of(everything)
    row = next(row for row in record.rows if row.label == "belief matching")
    assert (row.paper.value, row.paper.deviation) == (5.93, 0.07)
    run = next(run for run in record.runs if run.arm == "cifar10/preact_resnet18/belief_matching")
    tried = {one.value: one.validation for one in run.search}
    assert sorted(tried) == [0.001, 0.003, 0.01]
    (taken,) = [one.value for one in run.search if one.chosen]
    assert taken == min(tried, key=lambda value: (tried[value].error, tried[value].nll))
    assert runs[run.fingerprint].options == {"kl_weight": taken}
    assert row.note.startswith(f"λ = {taken:g} by validation")  # and at chance, after so few steps
    text = (everything / "tiny" / "table1" / "summary.md").read_text("utf-8")
    assert f"| 5.93 ± 0.07 | {row.values[0]:.2f} | 1 |" in text


def test_reliability_has_the_groups_of_the_calibration_error(everything):
    record, runs = record_of(everything, "figure-reliability"), runs_of(everything)
    (drawing,) = record.drawings
    assert len(drawing.panels) == 10
    first = next(run for run in record.runs)
    bars, dots, line = drawing.panels[0].series
    said = np.load(everything / "runs" / first.fingerprint / "predictions" / "test.npz")
    logits = said["logits"].astype(np.float64)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    group = np.ceil(probs.max(1) * 15).astype(int) - 1  # (i/15, (i+1)/15]
    right = probs.argmax(1) == said["targets"]
    held = sorted(set(group.tolist()))
    assert bars.x == pytest.approx([(i + 0.5) / 15 for i in held])
    assert bars.y == pytest.approx([right[group == i].mean() for i in held])
    assert dots.y == pytest.approx([probs.max(1)[group == i].mean() for i in held], abs=1e-6)
    gaps = [(group == i).mean() * abs(a - c) for i, a, c in zip(held, bars.y, dots.y, strict=True)]
    assert 100 * sum(gaps) == pytest.approx(record.rows[0].values[0], abs=1e-4)
    assert record.rows[0].values[0] == pytest.approx(100 * runs[first.fingerprint].test.ece)
    assert (line.x, line.y) == ([0, 1], [0, 1])


def test_densities_of_known_and_foreign_images_have_an_area_of_one(everything):
    (drawing,) = record_of(everything, "figure-ood").drawings
    for panel in drawing.panels:
        assert [series.label for series in panel.series] == ["known: digits", "foreign: noise"]
        for series in panel.series:
            assert np.trapezoid(series.y, series.x) == pytest.approx(1, abs=0.01)


def test_numbers_of_predictions_are_those_computed_by_hand(everything):
    name, record = next((n, r) for n, r in runs_of(everything).items() if r.method == "belief_matching")
    run = Run(record, RunDirectory(everything / "runs" / name))
    said = np.load(run.home.predictions("test"))
    alpha = torch.tensor(said["logits"]).double().exp()
    total = alpha.sum(1, keepdim=True)
    mean = alpha / total
    expected = (mean * ((alpha + 1).digamma() - (total + 1).digamma())).sum(1)  # −E[H]
    spread = (-(mean * mean.log()).sum(1) + expected).mean().item()
    assert mean_spread(run) == pytest.approx(spread, rel=1e-5)
    assert median_precision(run) == pytest.approx(np.median(total.numpy()), rel=1e-5)
    order = np.argsort(-said["logits"], axis=1)
    for count in (1, 3, 10, 12):
        missed = [target not in row[:count] for row, target in zip(order, said["targets"], strict=True)]
        assert top_error(run, count) == pytest.approx(100 * statistics.fmean(missed))


def test_mistakes_are_told_by_pairs(everything):
    """AUROC: the share of pairs of a mistake and a hit in which the mistake is the more doubtful."""
    runs = {(run.method, name): run for name, run in runs_of(everything).items()}
    for method, scores in (("belief_matching", ("confidence", "spread")), ("softmax", ("confidence",))):
        name, record = next((name, run) for (own, name), run in runs.items() if own == method)
        run = Run(record, RunDirectory(everything / "runs" / name))
        said = np.load(run.home.predictions("test"))
        alpha = torch.tensor(said["logits"]).double().exp()
        mean, total = alpha / alpha.sum(1, keepdim=True), alpha.sum(1, keepdim=True)
        inner = (mean * ((alpha + 1).digamma() - (total + 1).digamma())).sum(1)
        doubt = {"confidence": -mean.max(1).values, "spread": inner - (mean * mean.log()).sum(1)}
        right = mean.argmax(1) == torch.tensor(said["targets"])
        for score in scores:
            wrong, good = doubt[score][~right][:, None], doubt[score][right][None]
            pairs = (wrong > good).double() + 0.5 * (wrong == good)
            assert mistake_auroc(score)(run) == pytest.approx(100 * pairs.mean().item(), abs=0.01)
    assert mistake_auroc("spread")(run) is None  # softmax has no belief


def test_transfer_reads_the_heads_of_its_adaptation(everything):
    record = record_of(everything, "table3")
    told = "Food-101: 10 classes, not 101, 100 images to fit on and 540 to judge on."
    assert told in record.differences  # of digits, which stand for it
    place = everything / "runs" / record.runs[0].fingerprint
    kept = json.loads((place / "adaptation.json").read_text("utf-8"))
    errors = {head["label"]: 100 * head["scores"]["error"] for head in kept["judged"]}
    assert {row.label: row.values for row in record.rows} == {
        "softmax": [errors["softmax"]],
        "label smoothing, matched": [errors["label smoothing"]],
        "belief matching": [errors["belief matching"]],
    }
    reported = {
        row.group: (row.paper.value, row.paper.deviation) for row in record.rows if row.label == "softmax"
    }
    assert reported == {"CIFAR-10": (5.44, 0.10), "Food-101": (28.49, 0.08), "Cars": (42.99, 0.14)}
    figure = record_of(everything, "figure-transfer")
    assert [panel.title for panel in figure.drawings[0].panels] == ["softmax", "belief matching"]
    for panel in figure.drawings[0].panels:
        assert [one.label for one in panel.series] == ["known: digits", "foreign: noise"]
    aurocs = {head["label"]: 100 * head["foreign"][0]["auroc"]["entropy"] for head in kept["judged"]}
    assert {row.label: row.values[0] for row in figure.rows} == {
        row.label: aurocs[row.label.removesuffix(", matched")] for row in figure.rows
    }


def test_a_transfer_that_is_kept_is_not_made_again(everything, monkeypatch):
    monkeypatch.setattr("beliefmatch.experiments.reproduction.transferring.Adapting", None)
    before = record_of(everything, "table3")
    assert main(["reproduce", "table3", "--scale", "tiny", "--out", f"{everything}"]) == 0
    assert record_of(everything, "table3").rows == before.rows


def test_the_same_command_trains_nothing_again(everything, monkeypatch, capsys):
    monkeypatch.setattr(grid, "execute", None)
    before = record_of(everything, "figure-ood")
    assert main(["reproduce", "figure-ood", "--scale", "tiny", "--jobs", "1", "--out", f"{everything}"]) == 0
    shown = capsys.readouterr().out
    assert shown.split()[-1] == f"{everything / 'tiny' / 'figure-ood' / 'figures' / 'entropy.png'}"
    after = record_of(everything, "figure-ood")
    assert after.rows == before.rows
    assert after.drawings == before.drawings


def test_a_stopped_reproduction_is_taken_up(tmp_path):
    """Killed after its first run, it ends with what it would have ended with."""
    line = ["reproduce", "figure-rotation", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path}"]
    process = subprocess.Popen([sys.executable, "-c", MAIN, *line], stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/record.json")) and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/record.json")}
    assert done
    assert main(line) == 0
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert len(list(tmp_path.glob("runs/*/record.json"))) == 5
    assert len(record_of(tmp_path, "figure-rotation").rows) == 15


def tiny_plan(**options):
    mapping = overridden(recipe("digits"), ["training.epochs=1", "data.limit=50", "foreign=[noise]"])
    return plan_from(with_method(mapping, "belief_matching", **options))


def test_a_training_that_diverges_is_a_result_where_it_may(tmp_path, monkeypatch):
    def explode(*arguments, **options):
        raise FloatingPointError("fit: 20 steps in a row were not finite.")

    monkeypatch.setattr(grid, "execute", explode)
    cell = Cell(tiny_plan(kl_weight=0.01), tmp_path / "run", may_diverge=True)
    expected = Diverged(fingerprint(cell.plan), "fit: 20 steps in a row were not finite.")
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


def test_an_explosion_is_shown_as_such(tmp_path, monkeypatch, capsys):
    """Of the sweep of priors the largest, alone, leaves the finite numbers."""
    execute = grid.execute

    def explode(plan, directory, **options):
        if plan.method.options.get("prior", 1.0) > 1e6 and plan.method.options["kl_weight"] == 0.01:
            raise FloatingPointError("fit: 20 steps in a row were not finite.")
        return execute(plan, directory, **options)

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


def test_missing_data_leave_out_what_needs_them(tmp_path, capsys):
    """Of all at CPU scale only the embedded digits can run."""
    line = ["reproduce", "all", "--scale", "cpu", "--data-dir", f"{tmp_path}", "--jobs", "1", "--seeds", "1"]
    settings = [
        "--set",
        "training.epochs=1",
        "--set",
        "training.batch_size=16",
        "--out",
        f"{tmp_path / 'out'}",
    ]
    assert main([*line, *settings]) == 0
    out, err = capsys.readouterr()
    told = [one for one in err.splitlines() if one.startswith("left out: ")]
    assert len(told) == len(REPRODUCTIONS) - 1
    assert any(one.startswith("left out: table2: ") and "imagenet-1k" in one for one in told)
    text = (tmp_path / "out" / "cpu" / "summary.md").read_text("utf-8")
    assert "## figure-rotation: " in text
    assert "- table1: beliefmatch reproduce: " in text
    assert "CPU scale: 898 images, 1 epoch;" in out


def test_a_plane_goes_through_the_templates():
    templates = torch.randn(3, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    basis = plane(templates)
    assert torch.allclose(basis.T @ basis, torch.eye(2, dtype=torch.float64))
    flat = templates @ basis
    for one, other in ((0, 1), (0, 2), (1, 2)):  # on their own plane nothing is lost
        assert (flat[one] - flat[other]).norm() == pytest.approx(
            (templates[one] - templates[other]).norm().item()
        )
    first, second = flat[1] - flat[0], flat[2] - flat[0]
    assert first[0] > 0
    assert first[1].abs() < 1e-12
    assert second[1] > 0


def test_tightness_is_the_spread_within_over_the_distance_between():
    targets = torch.tensor([4, 4, 9, 9, 30, 30])
    centres = torch.tensor([[0.0, 0, 0], [0, 0, 0], [6, 0, 0], [6, 0, 0], [0, 8, 0], [0, 8, 0]])
    apart = torch.tensor([[0.0, 0, 2], [0, 0, -2], [0, 0, 2], [0, 0, -2], [0, 0, 2], [0, 0, -2]])
    found = seen((centres + apart).double(), targets, torch.eye(3, dtype=torch.float64)[:, :2])
    assert found.tightness == pytest.approx(2 / ((6 + 8 + 10) / 3))
    assert found.extent == 8
    assert found.points.tolist() == centres[:, :2].tolist()


def test_penultimate_activations_are_what_the_last_layer_is_given():
    from beliefmatch.data.digits import load_digits

    test = load_digits().test
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    features, targets = penultimate(network, _Source(test.images, test.targets), [2, 5, 7], engine())
    chosen = torch.isin(test.targets, torch.tensor([2, 5, 7]))
    assert torch.equal(targets, test.targets[chosen])
    with torch.no_grad():
        assert torch.allclose(features, network[:3](test.images[chosen].float()).double())
    assert last_layer(network) is network[3]
    with pytest.raises(ValueError, match="must end in a linear layer"):
        last_layer(nn.ReLU())


class _Source:
    def __init__(self, images, targets):
        self.images, self.targets = images.float(), targets

    def batches(self, parts, *, seeds=None, device="cpu"):
        from beliefmatch.data.source import Batch

        for part in parts:
            yield Batch(self.images[part], self.targets[part])


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("record.json", b"{", "record.json is damaged"),
        ("record.json", b"\xff\xfe", "record.json is damaged"),
        ("plan.yaml", b"method: [", "plan.yaml is damaged"),
        ("predictions/test.npz", b"PK", "a finished run cannot be read"),
    ],
)
def test_a_damaged_run_is_told_in_one_line(everything, tmp_path, capsys, file, content, words):
    shutil.copytree(everything / "runs", tmp_path / "runs")
    name = record_of(everything, "figure-reliability").runs[0].fingerprint
    (tmp_path / "runs" / name / file).write_bytes(content)
    capsys.readouterr()
    line = ["reproduce", "figure-reliability", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path}"]
    assert main(line) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert words in told and "Remove" in told
    shutil.rmtree(tmp_path / "runs" / name)
    assert main(line) == 0
    same = record_of(tmp_path, "figure-reliability")
    assert [row.values for row in same.rows] == [
        row.values for row in record_of(everything, "figure-reliability").rows
    ]


def test_the_record_of_another_run_is_refused(everything, tmp_path, capsys):
    shutil.copytree(everything / "runs", tmp_path / "runs")
    one, other = (run.fingerprint for run in record_of(everything, "figure-rotation").runs[:2])
    shutil.copy(tmp_path / "runs" / other / "record.json", tmp_path / "runs" / one / "record.json")
    capsys.readouterr()
    assert main(["reproduce", "figure-rotation", "--scale", "tiny", "--out", f"{tmp_path}"]) == 2
    assert "must be of the run whose plan.yaml lies beside it" in capsys.readouterr().err


def test_runs_of_other_images_are_not_taken_for_these(tmp_path, capsys):
    chance = np.random.default_rng(0)
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        for name in ("cifar10_train", "cifar10_test", "svhn_test"):
            images = chance.integers(0, 256, (60, 8, 8, 3), np.uint8)
            np.savez(tmp_path / place / f"{name}.npz", images=images, labels=np.arange(60) % 10)
    few = ["data.limit=20", "data.validation=20", "model.options.width=2", "data.augment=none"]
    sets = [word for one in (*few, "training.epochs=1", "training.batch_size=8") for word in ("--set", one)]
    line = ["reproduce", "figure-beta", "--scale", "cpu", "--seeds", "1", "--jobs", "1", *sets]
    line += ["--out", f"{tmp_path / 'out'}", "--data-dir"]
    assert main([*line, f"{tmp_path / 'one'}"]) == 0
    record = ReproductionRecord.from_json(
        (tmp_path / "out" / "cpu" / "figure-beta" / "reproduction.json").read_text("utf-8")
    )
    assert "Foreign images: 60 of svhn instead of 26,032." in record.differences
    capsys.readouterr()
    assert main([*line, f"{tmp_path / 'other'}"]) == 2
    assert "`--out` must be new for other images" in capsys.readouterr().err
    shutil.move(tmp_path / "one", tmp_path / "moved")
    assert main([*line, f"{tmp_path / 'moved'}"]) == 0


def test_a_page_of_all_keeps_what_was_run_before(everything, tmp_path, monkeypatch, capsys):
    """Data that are gone do not take away the results that were read of them."""
    shutil.copytree(everything, tmp_path / "out")

    def gone(work):
        raise ValueError("reproduce: `data_dir` must hold it.")

    monkeypatch.setattr("beliefmatch.experiments.reproduction.transferring.Transferring.check", gone)
    (tmp_path / "out" / "tiny" / "table3" / "reproduction.json").unlink()
    assert main(["reproduce", "all", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path / 'out'}"]) == 0
    text = (tmp_path / "out" / "tiny" / "summary.md").read_text("utf-8")
    assert "## figure-transfer: " in text and "## table3: " not in text
    assert text.count("- table3: ") == 1 and "- figure-transfer: " not in text


def test_a_full_disk_at_the_end_loses_nothing(everything, tmp_path, monkeypatch, capsys):
    shutil.copytree(everything / "runs", tmp_path / "runs")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    line = ["reproduce", "figure-rotation", "--scale", "tiny", "--out", f"{tmp_path}"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(line) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert f"cannot write to {tmp_path / 'tiny' / 'figure-rotation'} (No space left on device)" in told
    assert not list((tmp_path / "tiny").rglob("*.json"))
    assert main(line) == 0


def test_a_network_that_sees_nothing_has_no_tightness():
    points = seen(torch.ones(6, 4), torch.arange(6) % 3, torch.eye(4)[:, :2])
    assert (points.extent, points.tightness) == (0.0, None)


def test_publishing_refuses_what_it_cannot_publish_and_leaves_the_page(everything, tmp_path):
    docs = tmp_path / "docs"
    (docs / "results" / "reproduction" / "table1").mkdir(parents=True)
    page = "before <!-- results: begin --> old <!-- results: end --> after"
    (docs / "reproduction.md").write_text(page)
    for directory in (tmp_path / "nothing", everything / "tiny"):
        done = subprocess.run(
            [sys.executable, "tools/publish_reproduction.py", f"{directory}", "--docs", f"{docs}"],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
        assert (docs / "reproduction.md").read_text() == page
        assert (docs / "results" / "reproduction" / "table1").is_dir()
    done = subprocess.run(
        [sys.executable, "tools/publish_reproduction.py", f"{everything / 'tiny'}", "--docs", f"{docs}",
         "--scale", "tiny"], capture_output=True, text=True, check=True,
    )  # fmt: skip
    text = (docs / "reproduction.md").read_text()
    assert text.startswith("before ") and text.endswith(" after") and " old " not in text
    for name in REPRODUCTIONS:
        assert f"### {name}: " in text
        assert (docs / "results" / "reproduction" / name / "reproduction.json").is_file()
    for link in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (docs / link).is_file()
