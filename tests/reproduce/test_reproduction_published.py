"""The published reproductions: complete, as the commands would run them today, and copied by the tool."""

import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from beliefmatch.experiments.config import fingerprint
from beliefmatch.experiments.records import RunRecord
from beliefmatch.reproduce import REPRODUCTIONS
from beliefmatch.reproduce.record import ReproductionRecord
from reproduced import record_of, runner, runs_of

DOCS = Path(__file__).parents[2] / "docs"
PUBLISHED = DOCS / "results" / "reproduction"
PAGE = "before <!-- results: begin --> old <!-- results: end --> after"


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_table_and_figure_is_published_as_its_command_would_run_it_today(name):
    record = ReproductionRecord.from_json((PUBLISHED / name / "reproduction.json").read_text("utf-8"))
    page = (DOCS / "reproduction.md").read_text("utf-8")
    assert f"### {name}: " in page
    assert len(record.seeds) >= 3
    assert all(len(row.values) == len(record.seeds) for row in record.rows)
    for drawing in record.drawings:
        link = f"results/reproduction/{name}/{drawing.name}.png"
        assert f"({link})" in page and (DOCS / link).is_file()
    assert record.command[:5] == ["beliefmatch", "reproduce", name, "--scale", "cpu"]
    settings = tuple(value for flag, value in pairwise(record.command) if flag == "--set")
    found = runner(name, scale="cpu", seeds=len(record.seeds), settings=settings)
    words = found.scale_words()
    if name == "table2":  # the folder that stood for ImageNet has fewer images than are asked for
        assert "Training images: 810 of imagenet-1k instead of 1,000." in record.differences
        words = words.replace("1,000 images", "810 images")
    assert record.scale_words == words
    assert set(record.configs) == set(found.described())
    if not found.reproduction.transfers:  # the fingerprint of a transfer depends on the network's weights
        candidates = found.candidates.values()
        tried = [one.settled(value) for one in candidates for value in (one.search or (0, [0]))[1]]
        possible = {fingerprint(replace(config, seed=seed)) for config in tried for seed in found.seeds}
        assert {run.fingerprint for run in record.runs} <= possible


def test_the_published_records_are_small():
    assert sum(path.stat().st_size for path in PUBLISHED.rglob("*") if path.is_file()) < 20e6


@pytest.fixture
def docs(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "reproduction.md").write_text(PAGE)
    return tmp_path / "docs"


def publish(directory, docs, *options):
    command = [sys.executable, "tools/publish_reproduction.py", f"{directory}", "--docs", f"{docs}", *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_publishing_refuses_what_it_cannot_publish_and_leaves_the_page(everything, tmp_path, docs):
    results = docs / "results" / "reproduction"
    (results / "table1").mkdir(parents=True)
    for directory in (tmp_path / "nothing", everything / "tiny"):  # the page is about CPU scale
        done = publish(directory, docs)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
        assert (docs / "reproduction.md").read_text() == PAGE
        assert (results / "table1").is_dir()
    assert publish(everything / "tiny", docs, "--scale", "tiny").returncode == 0
    text = (docs / "reproduction.md").read_text()
    assert text.startswith("before ") and text.endswith(" after") and " old " not in text
    for name in REPRODUCTIONS:
        assert f"### {name}: " in text
        assert (results / name / "reproduction.json").is_file()
    for link in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (docs / link).is_file()


def test_records_of_runs_are_published_without_paths_and_outlive_their_runs(everything, tmp_path, docs):
    out = tmp_path / "out"
    shutil.copytree(everything / "tiny" / "table1", out / "tiny" / "table1")
    names = {run.fingerprint for run in record_of(everything, "table1").runs}
    for name in names:
        shutil.copytree(everything / "runs" / name, out / "runs" / name)
    marked = next(iter(names))
    file = out / "runs" / marked / "record.json"
    record = RunRecord.from_json(file.read_text("utf-8"))
    config = record.config | {"data": record.config["data"] | {"directory": "/home/somebody/data"}}
    file.write_text(replace(record, config=config).to_json(), "utf-8")
    for _ in range(2):  # with the runs there, and after they are gone
        assert publish(out / "tiny", docs, "--scale", "tiny").returncode == 0
        kept = {file.stem: file.read_text("utf-8") for file in (docs / "results/reproduction/runs").iterdir()}
        assert set(kept) == names and "/home/somebody" not in kept[marked]
        for name, text in kept.items():
            assert RunRecord.from_json(text).test == runs_of(everything)[name].test
        shutil.rmtree(out / "runs", ignore_errors=True)


def test_publishing_some_leaves_the_others_as_they_were_published(everything, tmp_path, docs):
    for name in ("figure-rotation", "table1"):
        shutil.copytree(everything / "tiny" / name, tmp_path / name / name)
        done = publish(tmp_path / name, docs, "--scale", "tiny")
    assert "figure-rotation: no record, stays as it was published" in done.stdout
    text = (docs / "reproduction.md").read_text()
    assert text.index("### table1: ") < text.index("### figure-rotation: ")
    for file in ("reproduction.json", "rotated_digit.png"):
        assert (docs / "results" / "reproduction" / "figure-rotation" / file).is_file()
