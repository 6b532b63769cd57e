"""What every reproduction ends with: its record, rows, figures and pages."""

import json
import statistics
from io import StringIO

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from rich.console import Console

from beliefmatch.cli import main
from beliefmatch.experiments.adapt_record import AdaptRecord, ValidationCurve
from beliefmatch.experiments.config import config_from, to_mapping
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.report.reproduction import ours_text, reproduction_tables, summary_markdown
from beliefmatch.reproduce import REPRODUCTIONS, reproduction, tables
from beliefmatch.reproduce.record import ReproductionRecord, Row
from beliefmatch.reproduce.transfer import scaled_transfer, transfer_arms
from reproduced import command, record_of, runner, runs_of

READ = {
    "error": lambda run: 100 * run.test.error,
    "top-1 error": lambda run: 100 * run.test.error,
    "ECE": lambda run: 100 * run.test.ece,
    "NLL": lambda run: run.test.nll,
    "AUROC noise, entropy": lambda run: 100 * run.ood[0].auroc["entropy"],
    "confidence when wrong, all angles": lambda run: 100 * run.rotation.mean_wrong_confidence,
    "confidence upside down": lambda run: 100 * run.rotation.mean_confidence[-1],
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
# As the paper prints them; on CIFAR with ResNet-18 (CIFAR-10, CIFAR-100) before ResNet-50.
PRINTED = [
    ("table1", "softmax", "6.13±.13 26.44±.33 5.76±.06 25.00±.23"),
    ("table1", "MC dropout, last layer", "6.13±.08 26.15±.10 5.75±.22 25.17±.09"),
    ("table1", "MC dropout, all layers", "6.50±.14 27.32±.45 5.84±.23 26.74±.37"),
    ("table1", "belief matching", "5.93±.07 24.19±.34 5.59±.05 23.86±.37"),
    ("ablation-kl", "softmax", "5.76±.06 25.00±.23"),
    ("ablation-kl", "belief matching without KL", "5.68 24.69"),
    ("ablation-kl", "belief matching", "5.59±.05 23.86±.37"),
    ("figure-reliability", "softmax", "3.82 13.48"),
    ("figure-reliability", "MC dropout, last layer", "3.78 13.52"),
    ("figure-reliability", "MC dropout, all layers", "1.50 9.76"),
    ("figure-reliability", "ensemble", "1.04 3.54"),
    ("figure-reliability", "belief matching", "1.66 4.25"),
    ("table2", "softmax", "22.23 6.36 20.72 5.59"),  # top-1 and top-5 of ResNeXt-50, of ResNeXt-101
    ("table2", "belief matching, λ 0.001", "22.03 6.29"),
    ("table2", "belief matching, λ 0.0001", "20.23 5.26"),
    ("table3", "softmax", "5.44±.10 28.49±.08 42.99±.14"),
    ("table3", "belief matching", "5.03±.04 26.41±.07 39.99±.20"),
    ("table4", "softmax", "16.52±.21 13.33±.37"),
    ("table4", "belief matching", "16.01±.36 12.40±.23"),
]


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_reproduction_ends_with_its_record_rows_and_figures(everything, name):
    record, runs = record_of(everything, name), runs_of(everything)
    assert record.id == name and record.rows
    assert record.scale_words.startswith("tiny scale: ")
    assert ReproductionRecord.from_json(record.to_json()) == record
    assert {run.fingerprint for run in record.runs} <= {path.name for path in (everything / "runs").iterdir()}
    assert record.command == ["beliefmatch", "reproduce", "all", "--scale", "tiny"]
    assert all(len(row.values) == len(row.seeds) == 1 for row in record.rows)
    arms = {(arm.group, arm.label): arm.key for arm in reproduction(name).arms("tiny")}
    by_arm = {run.arm: run.fingerprint for run in record.runs}
    for row in record.rows:
        if row.measure in READ and arms:
            run = runs[by_arm[arms[row.group.partition(":")[0], row.label]]]
            assert row.values == [pytest.approx(READ[row.measure](run))]
            assert ("1 of 1 at chance" in row.note) == (run.test.error >= 0.95 * 0.9)
    directory = everything / "tiny" / name
    assert record.scale_words in (directory / "summary.md").read_text("utf-8")
    figures = {path.name: path.read_bytes() for path in directory.glob("figures/*")}
    assert set(figures) == ({f"{FIGURES[name]}.png", f"{FIGURES[name]}.svg"} if name in FIGURES else set())
    for file, content in figures.items():
        assert content.startswith(b"\x89PNG" if file.endswith("png") else b"<?xml")
        assert file.endswith("png") or f"<!-- {record.scale_words}; 1 seed -->".encode() in content


def test_the_papers_numbers_are_those_that_it_prints_and_no_other_row_has_one(everything):
    records = {name: record_of(everything, name) for name in REPRODUCTIONS}
    for name, label, numbers in PRINTED:
        papers = [row.paper for row in records[name].rows if row.label == label and row.paper is not None]
        printed = [number.partition("±")[::2] for number in numbers.split()]
        expected = [(float(value), float(deviation) if deviation else None) for value, deviation in printed]
        assert [(paper.value, paper.deviation) for paper in papers] == expected
    rows = [row for record in records.values() for row in record.rows if row.paper is not None]
    assert len(rows) == sum(len(numbers.split()) for _, _, numbers in PRINTED)
    published = {arm.key for arm in reproduction("figure-beta").arms("paper")}
    assert "cifar10/preact_resnet18/alone/8" in published  # its one number, of e^8, is not in the tiny sweep


@pytest.mark.parametrize("name", ["table1", "figure-rotation"])
def test_rows_are_distinguishable_in_a_narrow_terminal(everything, name):
    record = record_of(everything, name)
    page = Console(width=40, file=StringIO())
    page.print(*reproduction_tables(record), crop=False)
    for word in {word for row in record.rows for word in row.label.split() if len(word) <= 10}:
        assert word in page.file.getvalue()


def test_the_summary_has_every_reproduction(everything):
    text = (everything / "tiny" / "summary.md").read_text("utf-8")
    records = [record_of(everything, name) for name in REPRODUCTIONS]
    assert all(f"## {record.id}: " in text for record in records)
    assert "## Not run" not in text and text == summary_markdown(records, {})


def test_a_number_names_its_number_of_seeds_where_some_have_none():
    row = Row("g", "softmax", "NLL", "nats", None, [None, None, None], [0, 1, 2], 1.0, "")
    assert ours_text(replace(row, diverged=1)) == "—"  # the method has no such number
    assert ours_text(replace(row, diverged=3)) == "diverged"
    assert ours_text(replace(row, values=[1.0, None, 2.0], diverged=1)) == "1.50 ± 0.71"
    assert ours_text(replace(row, values=[1.0, None, 2.0], diverged=0)) == "1.50 ± 0.71 (2 of 3 seeds)"


def test_the_value_of_the_lowest_validation_error_is_chosen(everything):
    record, runs = record_of(everything, "table1"), runs_of(everything)
    row = next(row for row in record.rows if row.label == "belief matching")
    run = next(run for run in record.runs if run.arm == "cifar10/preact_resnet18/belief_matching")
    tried = {one.value: one.validation for one in run.search}
    assert sorted(tried) == [0.001, 0.003, 0.01]
    (chosen,) = [one.value for one in run.search if one.chosen]
    assert chosen == min(tried, key=lambda value: (tried[value].error, tried[value].nll))
    assert runs[run.fingerprint].options == {"kl_weight": chosen}
    assert row.note.startswith(f"λ = {chosen:g} by validation")  # and at chance, after so few steps
    text = (everything / "tiny" / "table1" / "summary.md").read_text("utf-8")
    assert f"| 5.93 ± 0.07 | {row.values[0]:.2f} |" in text


def test_reliability_has_the_bins_of_the_calibration_error(everything):
    record, runs = record_of(everything, "figure-reliability"), runs_of(everything)
    (drawing,) = record.drawings
    assert len(drawing.panels) == 10
    first, (bars, dots, line) = record.runs[0], drawing.panels[0].series
    predictions = np.load(everything / "runs" / first.fingerprint / "predictions" / "test.npz")
    probs = torch.tensor(predictions["logits"]).double().softmax(1).numpy()
    bins = np.ceil(probs.max(1) * 15).astype(int) - 1  # (i/15, (i+1)/15]
    right = probs.argmax(1) == predictions["targets"]
    held = sorted(set(bins.tolist()))
    assert bars.x == pytest.approx([(i + 0.5) / 15 for i in held])
    assert bars.y == pytest.approx([right[bins == i].mean() for i in held])
    assert dots.y == pytest.approx([probs.max(1)[bins == i].mean() for i in held], abs=1e-6)
    gaps = [(bins == i).mean() * abs(a - c) for i, a, c in zip(held, bars.y, dots.y, strict=True)]
    assert 100 * sum(gaps) == pytest.approx(record.rows[0].values[0], abs=1e-4)
    assert (line.x, line.y) == ([0, 1], [0, 1])
    fitted = {row.label: row for row in record.rows if row.measure == "training loss"}
    assert list(fitted) == ["softmax", "MC dropout, last layer", "MC dropout, all layers", "ensemble"]
    for label, members in (("softmax", 1), ("ensemble", 2)):
        run = next(run for run in record.runs if run.arm.endswith(f"/{label}"))
        losses = [curve["loss"][-1] for curve in runs[run.fingerprint].curves]
        assert len(losses) == members and fitted[label].values == [statistics.fmean(losses)]


@pytest.mark.parametrize("name", ["figure-ood", "figure-transfer"])
def test_densities_of_test_and_ood_images_have_an_area_of_one(everything, name):
    (drawing,) = record_of(everything, name).drawings
    for panel in drawing.panels:
        assert [series.label for series in panel.series] == ["test: digits", "OOD: noise"]
        for series in panel.series:
            assert np.trapezoid(series.y, series.x) == pytest.approx(1, abs=0.01)


def test_panels_of_activations_show_their_tightness(everything):
    record = record_of(everything, "figure-representation")
    values = [row.values[0] for row in record.rows if row.measure.startswith("within / between")]
    texts = ["" if value is None else f"within / between {value:.2f}" for value in values]
    assert [panel.text for panel in record.drawings[0].panels] == texts and any(texts)


def run_of(everything, method):
    name, record = next((name, one) for name, one in runs_of(everything).items() if one.method == method)
    return tables.Run(record, RunDirectory(everything / "runs" / name), config_from(record.config))


@pytest.mark.parametrize("method", ["softmax", "belief_matching"])
def test_measures_of_predictions_are_those_computed_by_hand(everything, method):
    """AUROC is the share of pairs of a mistake and a hit in which the mistake is the more doubtful."""
    run = run_of(everything, method)
    predictions = np.load(run.run_dir.predictions("test"))
    alpha = torch.tensor(predictions["logits"]).double().exp()
    total = alpha.sum(1, keepdim=True)
    mean = alpha / total
    inner = (mean * ((alpha + 1).digamma() - (total + 1).digamma())).sum(1)  # −E[H]
    information = inner - (mean * mean.log()).sum(1)
    right = mean.argmax(1) == torch.tensor(predictions["targets"])
    scores = {"confidence": -mean.max(1).values, "mutual_information": information}
    if method == "softmax":  # which has no belief
        assert not tables.has_belief(run)
        assert tables.misclassification_auroc("mutual_information").of(run) is None
        assert tables.mean_mutual_information(run) is tables.median_precision(run) is None
        del scores["mutual_information"]
    else:
        assert tables.mean_mutual_information(run) == pytest.approx(information.mean().item(), rel=1e-5)
        assert tables.median_precision(run) == pytest.approx(np.median(total.numpy()), rel=1e-5)
        assert tables.has_belief(run._replace(record=replace(run.record, ood=[])))
    for score, doubt in scores.items():
        wrong, good = doubt[~right][:, None], doubt[right][None]
        pairs = (wrong > good).double() + 0.5 * (wrong == good)
        found = tables.misclassification_auroc(score).of(run)
        assert found == pytest.approx(100 * pairs.mean().item(), abs=0.01)
    order = np.argsort(-predictions["logits"], axis=1)
    assert tables.top_error(10).of(run) is tables.top_error(12).of(run) is None  # all ten are among them
    for count in (1, 3, 9):
        rows = zip(order, predictions["targets"], strict=True)
        missed = statistics.fmean(target not in row[:count] for row, target in rows)
        assert tables.top_error(count).of(run) == pytest.approx(100 * missed)


def test_rows_without_ood_sets_of_diverged_trainings_and_with_skipped_steps(everything):
    run = run_of(everything, "belief_matching")
    arm = reproduction("figure-ood").arms("tiny")[0]

    def rows(name, one):
        result = tables.ArmResult(arm, arm.config, [0], [one], None, "", [])
        return reproduction(name).rows(tables.Outcome("tiny", {arm.key: result}))

    without = rows("figure-ood", run._replace(record=replace(run.record, ood=[])))
    assert [row.measure for row in without[:2]] == ["AUROC, entropy", "AUROC, mutual information"]
    assert [row.values for row in without if row.measure != "entropy, test"] == 4 * [[None]]
    diverged = rows("figure-ood", None)
    assert (diverged[0].measure, diverged[0].values, diverged[0].diverged) == (
        "AUROC noise, entropy",
        [None],
        1,
    )
    (skipping,) = rows("figure-beta", run._replace(record=replace(run.record, skipped_steps=3)))
    assert skipping.note == "3 steps skipped"


def test_every_seed_of_every_arm_is_its_own_run(tmp_path):
    """Where an option is chosen first, each row has the runs of its own method, data and seed."""
    assert main(command("ablation-kl", tmp_path, "--seeds", "2")) == 0
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
    ended = runner("ablation-kl", scale="tiny", seeds=2, out=f"{tmp_path}")
    assert ended.finished() == len(ended.costs()) == len(runs)


def test_a_head_that_diverged_is_counted(everything):
    """As if there had been one seed more, whose NLL was not finite in the end."""
    kept = everything / "runs" / record_of(everything, "table3").runs[0].fingerprint / "adaptation.json"
    adapted = AdaptRecord.from_json(kept.read_text("utf-8"))
    more = {"tried": [], "scored": []}
    for name, found in more.items():
        for one in getattr(adapted, name):
            found += [one, replace(one, name=f"{one.name} seed=1", seed=1)]
    lost = ValidationCurve([1, 2], [0.5, None])
    more["tried"] = [replace(one, curve=lost) if one.seed == 1 else one for one in more["tried"]]
    transfer = tables.Transferred(replace(adapted, **more), [], [0, 1])
    arms = transfer_arms("cifar10", transfer, scaled_transfer("cifar10", "tiny"), "fingerprint")
    first, *_ = reproduction("table3").rows(tables.Outcome("tiny", {one.arm.key: one for one in arms}))
    assert (first.seeds, first.values[1], first.diverged, first.note) == ([0, 1], None, 1, "1 of 2 diverged")
    assert [run.diverged is not None for run in arms[0].recorded] == [False, True]


def test_transfer_reads_the_heads_of_its_adaptation(everything):
    record, figure = record_of(everything, "table3"), record_of(everything, "figure-transfer")
    incomplete = "Food-101: 10 classes instead of 101, 100 training and 540 test images."
    assert incomplete in record.differences  # of digits, which stand for it
    groups = list(dict.fromkeys(row.group for row in record.rows))
    assert groups == ["CIFAR-10", "Food-101, 10 of 101 classes", "Cars, 10 of 196 classes"]
    run_dir = everything / "runs" / record.runs[0].fingerprint
    heads = {one["label"]: one for one in json.loads((run_dir / "adaptation.json").read_text())["scored"]}
    assert {row.label for row in record.rows} == {"softmax", "label smoothing, matched", "belief matching"}
    for row in record.rows:
        assert row.values == [100 * heads[row.label.removesuffix(", matched")]["scores"]["error"]]
    for row in figure.rows:
        assert row.values == [100 * heads[row.label.removesuffix(", matched")]["ood"][0]["auroc"]["entropy"]]
    assert [panel.title for panel in figure.drawings[0].panels] == ["softmax", "belief matching"]
