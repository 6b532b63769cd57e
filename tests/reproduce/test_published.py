"""The published reproductions: complete, as the commands would run them today, and copied by the tool."""

import importlib.util
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from beliefmatch.cli.console import findings
from beliefmatch.experiments.config import fingerprint
from beliefmatch.experiments.records import RunRecord
from beliefmatch.report import reproduction as report
from beliefmatch.reproduce import REPRODUCTIONS
from beliefmatch.reproduce.record import ReproductionRecord
from golden import assert_golden
from reproduced import record_of, runner, runs_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PUBLISHED = DOCS / "results" / "reproduction"
PAGE = "before <!-- results: begin --> old <!-- results: end --> after"


def published(name):
    return ReproductionRecord.from_json((PUBLISHED / name / "reproduction.json").read_text("utf-8"))


def shown(*parts):
    console = Console(width=110)
    with console.capture() as text:
        console.print(*parts, crop=False)
    return text.get()


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_record_is_published_as_its_command_would_run_it_today(name):
    record, page = published(name), (PUBLISHED / "README.md").read_text("utf-8")
    common = tuple(report.common_notes([published(one) for one in REPRODUCTIONS]))
    section = report.reproduction_markdown(record, figures=name, common=common)
    assert section in page
    for drawing in record.drawings:
        assert (PUBLISHED / name / f"{drawing.name}.png").is_file()
    assert len(record.seeds) >= 3
    assert all(len(row.values) == len(record.seeds) for row in record.rows)
    assert record.command[:5] == ["beliefmatch", "reproduce", name, "--scale", "cpu"]
    settings = tuple(value for flag, value in pairwise(record.command) if flag == "--set")
    found = runner(name, scale="cpu", seeds=len(record.seeds), settings=settings)
    words = found.scale_words()
    if name == "table2":  # the folder that stood for ImageNet has fewer images than the scale
        assert "Training images: 810 of imagenet-1k instead of 1,000." in record.differences
        words = words.replace("1,000 images", "810 images")
    assert (record.scale_words, record.title) == (words, found.reproduction.title)
    assert [one for one in record.differences if one in found.reproduction.notes] == [
        *found.reproduction.notes
    ]
    assert set(record.configs) == set(found.described())
    if not found.reproduction.transfers:  # the fingerprint of a transfer depends on the network's weights
        tried = [
            one.settled(value) for one in found.candidates.values() for value in (one.search or (0, [0]))[1]
        ]
        possible = {fingerprint(replace(config, seed=seed)) for config in tried for seed in found.seeds}
        assert {run.fingerprint for run in record.runs} <= possible


def test_the_page_says_once_what_several_reproductions_share():
    records, page = [published(name) for name in REPRODUCTIONS], (PUBLISHED / "README.md").read_text("utf-8")
    shared, notes = report.common_notes(records), report.common_markdown(records)
    lists = re.findall(r"^([\w, -]+):\n\n((?:- .*\n)+)", notes, re.MULTILINE)
    found = {line: ids for ids, lines in lists for line in lines.splitlines()}
    assert notes in page and len(found) == len(shared) >= 5
    for line, ids in found.items():
        assert page.splitlines().count(line) == 1
        whole = [one.id for one in records if line in report.reproduction_markdown(one).splitlines()]
        assert len(whole) > 1 and ids == ("All" if len(whole) == len(records) else ", ".join(whole))
    assert report.common_markdown([]) == ""


def test_names_between_backticks_are_code_in_notes():
    text = report.reproduction_markdown(published("table4"))
    assert "\n- `training.clip_norm`: 1 instead of none.\n" in text and "\\`" not in text


def test_a_table_has_no_column_that_says_nothing():
    text = report.reproduction_markdown(published("table1"))
    assert "|   | method | paper, error % | ours, error % | note |" in text
    record = published("table2")
    assert "|   | method | measure | paper | ours |" in report.reproduction_markdown(record)
    first = replace(record.rows[0], values=[*record.rows[0].values[1:], None])
    fewer = report.reproduction_markdown(replace(record, rows=[first, *record.rows[1:]]))
    assert "|   | method | measure | paper | ours | n |" in fewer


def test_a_long_command_has_lines_of_80_columns_that_a_shell_reads_as_one():
    record = published("table3")
    (command,) = re.findall(r"```sh\n(.*?)\n```", report.reproduction_markdown(record), re.DOTALL)
    assert max(map(len, command.splitlines())) <= 80
    assert shlex.split(command.replace("\\\n", " ")) == record.command


def test_the_published_records_are_small():
    assert sum(path.stat().st_size for path in PUBLISHED.rglob("*") if path.is_file()) < 20e6


@pytest.mark.parametrize("name", ["table4", "figure-ood", "controls"])
def test_the_terminal_shows_one_table_and_findings_or_everything(name):
    tables = report.reproduction_tables(published(name))
    found = findings(report.reproduction_findings(published(name)))
    assert_golden(f"reproduce/{name}.txt", shown(*tables[:2], found))
    assert_golden(f"reproduce/{name}-verbose.txt", shown(*tables))


def test_the_overview_has_a_line_for_each_reproduction():
    overview = report.overview_table([published(name) for name in REPRODUCTIONS])
    assert_golden("reproduce/overview.txt", shown(overview))


# The tool


@pytest.fixture
def docs(tmp_path):
    page = tmp_path / "docs" / "results" / "reproduction" / "README.md"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE)
    return tmp_path / "docs"


@pytest.fixture
def publish(docs, monkeypatch):
    """A function that publishes a directory; it returns the message with which that is refused."""
    spec = importlib.util.spec_from_file_location("publish", ROOT / "tools" / "publish_reproduction.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)

    def run(directory, *options):
        monkeypatch.setattr("sys.argv", ["publish", f"{directory}", "--docs", f"{docs}", *options])
        try:
            tool.main()
        except SystemExit as error:
            return f"{error.code}"
        return None

    return run


def test_publishing_refuses_what_it_cannot_publish_and_leaves_the_page(everything, tmp_path, docs, publish):
    results = docs / "results" / "reproduction"
    (results / "table1").mkdir()
    for directory in (tmp_path / "nothing", everything / "tiny"):  # the page is about CPU scale
        assert publish(directory).count("\n") == 0
        assert (results / "README.md").read_text() == PAGE
        assert (results / "table1").is_dir()
    assert publish(everything / "tiny", "--scale", "tiny") is None
    text = (results / "README.md").read_text()
    assert text.startswith("before ") and text.endswith(" after") and " old " not in text
    for name in REPRODUCTIONS:
        assert f"\n## {name}: " in text
        assert (results / name / "reproduction.json").is_file()
    for link in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (results / link).is_file()


def test_records_of_runs_are_published_without_paths_and_outlive_their_runs(
    everything, copied, docs, publish
):
    """Those of the trials of a search, which the record of the reproduction does not name, too."""
    out = copied("table1")
    names = {path.name for path in (out / "runs").iterdir()}
    assert names > {run.fingerprint for run in record_of(everything, "table1").runs}
    marked = min(names)
    file = out / "runs" / marked / "record.json"
    record = RunRecord.from_json(file.read_text("utf-8"))
    config = record.config | {"data": record.config["data"] | {"directory": "/home/somebody/data"}}
    file.write_text(replace(record, config=config).to_json(), "utf-8")
    scores = {name: run.test for name, run in runs_of(everything).items()}
    for _ in range(2):  # with the runs there, and after they are gone
        assert publish(out / "tiny", "--scale", "tiny") is None
        kept = {file.stem: file.read_text("utf-8") for file in (docs / "results/reproduction/runs").iterdir()}
        assert set(kept) == names and "/home/somebody" not in kept[marked]
        for name, text in kept.items():
            assert RunRecord.from_json(text).test == scores[name]
        shutil.rmtree(out / "runs", ignore_errors=True)


def test_publishing_some_leaves_the_others_as_they_were_published(
    everything, tmp_path, docs, publish, capsys
):
    for name in ("figure-rotation", "table1"):
        shutil.copytree(everything / "tiny" / name, tmp_path / name / name)
        assert publish(tmp_path / name, "--scale", "tiny") is None
    assert "figure-rotation: no record, stays as it was published" in capsys.readouterr().out
    text = (docs / "results" / "reproduction" / "README.md").read_text()
    assert text.index("## table1: ") < text.index("## figure-rotation: ")
    for file in ("reproduction.json", "rotated_digit.png"):
        assert (docs / "results" / "reproduction" / "figure-rotation" / file).is_file()
