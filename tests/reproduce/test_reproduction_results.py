"""What every reproduction ends with: runs, records, tables, figures, the published page."""

import json
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console

from beliefmatch.cli import main
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.config import to_mapping
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.report.reproduction_rows import ours_text
from beliefmatch.report.reproduction_tables import reproduction_tables
from beliefmatch.report.reproduction_text import summary_markdown
from beliefmatch.reproduce import REPRODUCTIONS, reproduction
from beliefmatch.reproduce.outcome import Run
from beliefmatch.reproduce.predicted import (
    has_belief,
    mean_mutual_information,
    median_precision,
    mistake_auroc,
    top_error,
)
from beliefmatch.reproduce.record import ReproductionRecord
from beliefmatch.reproduce.transfer import TABLE3, Transferred
from reproduced import record_of, runs_of, work

TRANSFERS = ("table3", "figure-transfer")
READ = {
    "error": lambda run: 100 * run.test.error,
    "top-1 error": lambda run: 100 * run.test.error,
    "ECE": lambda run: 100 * run.test.ece,
    "NLL": lambda run: run.test.nll,
    "AUROC noise, entropy": lambda run: 100 * run.ood[0].auroc["entropy"],
}
FIGURES = {
    "figure-transfer": "entropy",
    "figure-reliability": "reliability",
    "figure-ood": "entropy",
    "figure-rotation": "rotated_digit",
    "figure-representation": "representation",
    "figure-beta": "beta",
    "controls": "data_size",
}


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
    arms = {(arm.group, arm.label): arm.key for arm in work(name, scale="tiny").arms.values()}
    of_arm = {run.arm: runs[run.fingerprint] for run in record.runs}
    for row in record.rows:
        run = of_arm[arms[row.group.partition(":")[0], row.label]] if row.measure in READ else None
        assert run is None or row.values == [pytest.approx(READ[row.measure](run))]


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


@pytest.mark.parametrize("name", ["table1", "figure-rotation"])
def test_rows_can_be_told_apart_in_a_narrow_terminal(everything, name):
    record = record_of(everything, name)
    page = Console(width=40, file=StringIO())
    page.print(*reproduction_tables(record), crop=False)
    shown = page.file.getvalue()
    for word in {word for row in record.rows for word in row.label.split() if len(word) <= 10}:
        assert word in shown


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
    fitted = {row.label: row for row in record.rows if row.measure == "training loss"}
    assert list(fitted) == ["softmax", "MC dropout, last layer", "MC dropout, all layers", "ensemble"]
    for label in ("softmax", "ensemble"):  # networks see the same digits for both sets at this scale
        run = next(run for run in record.runs if run.arm.endswith(f"/{label}"))
        curves = runs[run.fingerprint].curves
        assert len(curves) == (2 if label == "ensemble" else 1)
        assert fitted[label].values == [statistics.fmean(curve["loss"][-1] for curve in curves)]


def test_densities_of_known_and_ood_images_have_an_area_of_one(everything):
    (drawing,) = record_of(everything, "figure-ood").drawings
    for panel in drawing.panels:
        assert [series.label for series in panel.series] == ["known: digits", "ood: noise"]
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
    assert mean_mutual_information(run) == pytest.approx(spread, rel=1e-5)
    assert median_precision(run) == pytest.approx(np.median(total.numpy()), rel=1e-5)
    order = np.argsort(-said["logits"], axis=1)
    assert top_error(run, 10) is top_error(run, 12) is None  # of ten classes: all would be among them
    for count in (1, 3, 9):
        missed = [target not in row[:count] for row, target in zip(order, said["targets"], strict=True)]
        assert top_error(run, count) == pytest.approx(100 * statistics.fmean(missed))


def test_mistakes_are_told_by_pairs(everything):
    """AUROC: the share of pairs of a mistake and a hit in which the mistake is the more doubtful."""
    runs = {(run.method, name): run for name, run in runs_of(everything).items()}
    for method, scores in (
        ("belief_matching", ("confidence", "mutual_information")),
        ("softmax", ("confidence",)),
    ):
        name, record = next((name, run) for (own, name), run in runs.items() if own == method)
        run = Run(record, RunDirectory(everything / "runs" / name))
        said = np.load(run.home.predictions("test"))
        alpha = torch.tensor(said["logits"]).double().exp()
        mean, total = alpha / alpha.sum(1, keepdim=True), alpha.sum(1, keepdim=True)
        inner = (mean * ((alpha + 1).digamma() - (total + 1).digamma())).sum(1)
        doubt = {"confidence": -mean.max(1).values, "mutual_information": inner - (mean * mean.log()).sum(1)}
        right = mean.argmax(1) == torch.tensor(said["targets"])
        for score in scores:
            wrong, good = doubt[score][~right][:, None], doubt[score][right][None]
            pairs = (wrong > good).double() + 0.5 * (wrong == good)
            assert mistake_auroc(score)(run) == pytest.approx(100 * pairs.mean().item(), abs=0.01)
    assert mistake_auroc("mutual_information")(run) is None  # softmax has no belief
    name = next(name for (method, name) in runs if method == "belief_matching")
    alone = Run(replace(runs["belief_matching", name], ood=[]), RunDirectory(everything / "runs" / name))
    assert has_belief(alone)  # whether or not there were OOD images


def test_every_seed_of_every_arm_is_its_own_run(tmp_path):
    """Where an option is chosen first, each row has the runs of its own method, data and seed."""
    line = ["reproduce", "ablation-kl", "--scale", "tiny", "--seeds", "2", "--jobs", "1"]
    assert main([*line, "--out", f"{tmp_path}"]) == 0
    record, runs = record_of(tmp_path, "ablation-kl"), runs_of(tmp_path)
    found = {(run.arm, run.seed): runs[run.fingerprint] for run in record.runs}
    arms = {arm.key: arm for arm in reproduction("ablation-kl").arms("tiny")}
    assert set(found) == {(key, seed) for key in arms for seed in (0, 1)}
    for row, (key, arm) in zip(record.rows, arms.items(), strict=True):
        own = [found[key, seed] for seed in (0, 1)]
        assert (row.group, row.label, row.seeds) == (arm.group, arm.label, [0, 1])
        assert [(run.method, run.seed) for run in own] == [(arm.config.method.name, seed) for seed in (0, 1)]
        assert [run.config["model"] for run in own] == 2 * [to_mapping(arm.config)["model"]]
        assert row.values == [100 * run.test.error for run in own]
        assert own[0].options == own[1].options  # as chosen with the first
        assert own[0].test.nll != own[1].test.nll
        mean, deviation = statistics.fmean(row.values), statistics.stdev(row.values)
        assert ours_text(row) == f"{mean:.2f} ± {deviation:.2f}"
    ended = work("ablation-kl", scale="tiny", seeds=2, directory=tmp_path)
    assert ended.finished() == len(ended.costs()) == len(runs)


def test_a_head_that_diverged_is_told(everything):
    """As if one seed more had been asked for and come to nothing."""
    kept = everything / "runs" / record_of(everything, "table3").runs[0].fingerprint / "adaptation.json"
    found = Transferred(AdaptRecord.from_json(kept.read_text("utf-8")), [], [0, 1])
    first, *_ = TABLE3.rows({"cifar10": found})
    assert (first.seeds, first.values[1], first.diverged, first.note) == ([0, 1], None, 1, "1 of 2 diverged")


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
    assert reported == {
        "CIFAR-10": (5.44, 0.10),
        "Food-101, 10 of 101 classes": (28.49, 0.08),
        "Cars, 10 of 196 classes": (42.99, 0.14),
    }
    figure = record_of(everything, "figure-transfer")
    assert [panel.title for panel in figure.drawings[0].panels] == ["softmax", "belief matching"]
    for panel in figure.drawings[0].panels:
        assert [one.label for one in panel.series] == ["known: digits", "ood: noise"]
    aurocs = {head["label"]: 100 * head["ood"][0]["auroc"]["entropy"] for head in kept["judged"]}
    assert {row.label: row.values[0] for row in figure.rows} == {
        row.label: aurocs[row.label.removesuffix(", matched")] for row in figure.rows
    }


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


def test_records_of_runs_are_published_and_outlive_the_machine_that_made_them(everything, tmp_path):
    docs, home = tmp_path / "docs", tmp_path / "home"
    docs.mkdir()
    (docs / "reproduction.md").write_text("<!-- results: begin --><!-- results: end -->")
    shutil.copytree(everything / "tiny" / "table1", home / "tiny" / "table1")
    named = {run.fingerprint for run in record_of(everything, "table1").runs}
    for name in named:
        shutil.copytree(everything / "runs" / name, home / "runs" / name)
    marked = next(iter(named))
    file = home / "runs" / marked / "record.json"
    made = RunRecord.from_json(file.read_text("utf-8"))
    ood = made.config | {"data": made.config["data"] | {"directory": "/home/somebody/data"}}
    file.write_text(replace(made, config=ood).to_json(), "utf-8")
    command = [sys.executable, "tools/publish_reproduction.py", f"{home / 'tiny'}", "--docs", f"{docs}"]
    for _ in range(2):  # with the runs there, and after they are gone
        subprocess.run([*command, "--scale", "tiny"], capture_output=True, check=True)
        kept = {file.stem: file.read_text("utf-8") for file in (docs / "results/reproduction/runs").iterdir()}
        assert set(kept) == named and "/home/somebody" not in kept[marked]
        for name, text in kept.items():
            assert RunRecord.from_json(text).test == runs_of(everything)[name].test
        shutil.rmtree(home / "runs", ignore_errors=True)


def test_publishing_some_leaves_the_others_as_they_were_published(everything, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "reproduction.md").write_text("<!-- results: begin --><!-- results: end -->")
    command = [sys.executable, "tools/publish_reproduction.py", "--docs", f"{docs}", "--scale", "tiny"]
    for name in ("figure-rotation", "table1"):
        shutil.copytree(everything / "tiny" / name, tmp_path / name / name)
        done = subprocess.run([*command, f"{tmp_path / name}"], capture_output=True, text=True, check=True)
    assert "figure-rotation: no record, stays as it was published" in done.stdout
    text = (docs / "reproduction.md").read_text()
    assert text.index("### table1: ") < text.index("### figure-rotation: ")
    for file in ("reproduction.json", "rotated_digit.png"):
        assert (docs / "results" / "reproduction" / "figure-rotation" / file).is_file()
