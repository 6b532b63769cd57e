"""The comparison on digits: fair, repeatable, recorded whole, and drawn."""

import json
import re
import statistics
import xml.etree.ElementTree as ET
from dataclasses import replace
from io import BytesIO, StringIO

import pytest
import torch
from PIL import Image
from rich.console import Console

from beliefmatch.experiments.compare import Comparison, _wrong_confidence
from beliefmatch.experiments.records import DIGITS_OPTIONS, CompareConfig, CompareRecord
from beliefmatch.report.figures import render, rotation_figure
from beliefmatch.report.labels import method_label
from beliefmatch.report.tables import comparison_tables, rotation_table, scores_table, wrong_confidence

TINY = CompareConfig(epochs=2, seeds=2, seed=5)


@pytest.fixture(scope="module")
def record():
    return Comparison(TINY).run()


def without_times(record: CompareRecord) -> CompareRecord:
    runs = [replace(run, wall_seconds=0.0) for run in record.runs]
    return replace(record, runs=runs, wall_seconds=0.0)


def text(*parts, width=120) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(*parts, crop=False)
    return console.file.getvalue()


def test_a_seed_gives_the_same_record_whatever_the_global_state(record):
    torch.manual_seed(99)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = Comparison(TINY).run()
    assert without_times(again) == without_times(record)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_another_seed_gives_other_networks(record):
    first, second = record.of("softmax")
    assert (first.seed, second.seed) == (5, 6)
    assert first.losses != second.losses


def test_a_method_scores_the_same_alone_as_in_company(record):
    alone = Comparison(replace(TINY, methods=("belief_matching",), seeds=1)).run()
    company = record.of("belief_matching")[0]
    assert replace(alone.runs[0], wall_seconds=0.0) == replace(company, wall_seconds=0.0)


def test_every_epoch_is_announced_with_its_method():
    heard = []
    comparison = Comparison(replace(TINY, seeds=1))
    comparison.run(on_epoch=heard.append)
    assert heard == ["softmax"] * 2 + ["belief_matching"] * 2
    assert len(heard) == comparison.total_epochs


def test_the_record_survives_its_json(record):
    assert CompareRecord.from_json(record.to_json()) == record


def test_the_record_carries_its_evidence(record):
    fields = json.loads(record.to_json())
    assert fields["config"]["seed"] == 5
    assert fields["training"]["epochs"] == 2
    assert fields["examples"] == {"train": 898, "validation": 359, "test": 540}
    assert {"python", "beliefmatch", "torch", "numpy"} <= set(fields["versions"])
    assert fields["hardware"]["torch_threads"] == 1
    assert 0 < sum(run["wall_seconds"] for run in fields["runs"]) <= fields["wall_seconds"]
    assert [run["options"] for run in fields["runs"][:2]] == [
        {},
        dict(DIGITS_OPTIONS["belief_matching"]),
    ]


def test_numbers_of_the_turning_digit_hang_together(record):
    assert record.angles[0] == 0
    assert record.angles[-1] == 180
    for run in record.runs:
        seen = run.rotation
        for confidence, entropy in zip(seen.confidence, seen.entropy, strict=True):
            assert 0.1 <= confidence <= 1
            assert 0 <= entropy <= torch.tensor(10.0).log()
        assert len(seen.predicted) == len(seen.recognised) == len(record.angles)
        assert all(0 <= share <= 1 for share in seen.recognised)
        if seen.spread is not None:
            pairs = zip(seen.spread, seen.entropy, strict=True)
            assert all(0 < spread < entropy for spread, entropy in pairs)
    assert [run.rotation.spread is None for run in record.runs[:2]] == [True, False]


def test_confidence_when_wrong_is_the_mean_over_the_wrong_angles(record):
    for seen in (run.rotation for run in record.runs):
        wrong = [c for c, k in zip(seen.confidence, seen.predicted, strict=True) if k != record.digit]
        assert seen.wrong_confidence == pytest.approx(statistics.fmean(wrong), rel=1e-12)


def test_confidence_when_wrong_counts_every_image_of_the_digit_at_every_angle():
    confidence = torch.tensor([[0.9, 0.5], [0.4, 0.3], [0.8, 0.2]], dtype=torch.float64)
    predicted = torch.tensor([[3, 1], [2, 3], [3, 9]])
    assert _wrong_confidence(confidence, predicted) == pytest.approx((0.5 + 0.4 + 0.2) / 3)
    assert _wrong_confidence(confidence, torch.full((3, 2), 3)) is None


def test_the_pictured_digit_stands_upright_first_and_upside_down_last(record):
    images = torch.tensor(record.images)
    assert images.shape == (13, 8, 8)
    torch.testing.assert_close(images[-1], images[0].rot90(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"methods": ("softmax", "magic")}, "among softmax, .* got 'magic'"),
        ({"methods": ()}, "at least one method"),
        ({"methods": ("softmax", "softmax")}, "none twice, got 'softmax,softmax'"),
        ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
        ({"seeds": -1}, "`seeds` must be at least 1, got -1"),
        ({"seed": -3}, "`seed` must be at least 0, got -3"),
        ({"seed": 2**63}, "`seed` must be below"),
        ({"methods": ("softmax",), "options": {"belief_matching": {}}}, "got some of"),
    ],
)
def test_impossible_configurations_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words) as caught:
        CompareConfig(**wrong)
    assert str(caught.value).startswith("compare: ")


def test_a_bad_weight_is_refused_before_training():
    with pytest.raises(ValueError, match="`kl_weight`"):
        Comparison(CompareConfig(options={"belief_matching": {"kl_weight": float("nan")}}))


def test_labels_name_the_options(record):
    labels = [method_label(run) for run in record.runs[:2]]
    assert labels == ["softmax", "belief matching (λ = 0.001)"]


def test_the_table_of_scores_shows_mean_and_deviation(record):
    shown = text(scores_table(record))
    errors = [100 * run.test.error for run in record.of("softmax")]
    mean, half_gap = sum(errors) / 2, abs(errors[0] - errors[1]) / 2
    assert f"{mean:.2f} ± {half_gap * 2**0.5:.2f}" in shown
    assert "mean ± sd of 2 seeds" in shown


def test_the_table_of_the_turning_digit_has_a_row_an_angle(record):
    shown = text(rotation_table(record))
    rows = [line.split() for line in shown.splitlines() if "°" in line]
    assert [row[0] for row in rows] == [f"{angle}°" for angle in record.angles]
    softmax, matching = (record.of(name)[0].rotation for name in TINY.methods)
    assert [int(row[1]) for row in rows] == softmax.predicted
    assert [float(row[5]) for row in rows] == [round(c, 2) for c in matching.confidence]
    wrong = sum(predicted != 3 for predicted in softmax.predicted)
    assert f"wrong {wrong}" in " ".join(shown.split())


def test_confidence_when_wrong_is_told_over_all_seeds(record):
    first, second = wrong_confidence(record).strip().splitlines()
    assert first.startswith("confidence when wrong, mean ± sd of 2 seeds: softmax ")
    assert second.startswith("the same over all 55 test 3s: softmax ")
    for line, field in ((first, "wrong_confidence"), (second, "mean_wrong_confidence")):
        for name, words in (("softmax", "softmax"), ("belief_matching", "belief matching")):
            values = [getattr(run.rotation, field) for run in record.of(name)]
            assert f"{words} {statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}" in line


def test_seeds_that_were_never_wrong_are_counted(record):
    never = [replace(run, rotation=replace(run.rotation, wrong_confidence=None)) for run in record.runs]
    some = replace(record, runs=[*never[:2], *record.runs[2:]])
    value = record.of("softmax")[1].rotation.wrong_confidence
    assert f"softmax {value:.2f} (never wrong: 1)," in wrong_confidence(some)
    assert "softmax – (never wrong: 2)," in wrong_confidence(replace(record, runs=never))


@pytest.mark.parametrize("width", [20, 40, 60, 79, 100])
def test_no_number_is_cut_short_in_a_narrow_terminal(record, width):
    wide, narrow = (text(*comparison_tables(record), width=columns) for columns in (200, width))
    number = re.compile(r"\d+\.\d+")
    assert "…" not in narrow
    assert sorted(number.findall(narrow)) == sorted(number.findall(wide))
    assert width < 40 or max(map(len, narrow.splitlines())) <= width


def test_tables_of_one_seed_and_one_method_stand_alone(record):
    runs = record.of("softmax")[:1]
    lone = replace(record, config=replace(TINY, methods=("softmax",), seeds=1), runs=runs)
    assert "±" not in text(scores_table(lone))
    assert "spread" not in text(rotation_table(lone)).split("conf.:")[0]


def test_the_figure_is_a_png_of_readable_size(record):
    image = Image.open(BytesIO(render(rotation_figure(record), "png")))
    image.load()
    assert image.format == "PNG"
    assert image.width >= 1200
    assert len(image.convert("RGB").getcolors(2**24)) > 100


def test_the_figure_is_an_svg_that_is_the_same_each_time(record):
    first, second = (render(rotation_figure(record), "svg") for _ in range(2))
    assert first == second
    assert ET.fromstring(first).tag.endswith("svg")
