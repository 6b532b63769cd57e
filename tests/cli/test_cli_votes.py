"""`beliefmatch votes` from files to page, and what it refuses."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from beliefmatch.cli import main
from beliefmatch.data.votes import read_votes
from commands import files_below, refused

HEADING = ["item", "votes", "consensus", "prob_majority", "settled", "expected_gain", "ask_order"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Votes of six annotators for sixty items, and predictions for all of them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (60, 3))
    rows = ["task,worker,label"]
    for item in range(60):
        p = rng.dirichlet(np.exp(logits[item]))
        voters = rng.choice(6, 5 if item < 30 else item % 5, replace=False)
        rows += [f"=img{item},w{who},{rng.choice(['cat', 'dog', 'fox'], p=p)}" for who in voters]
    (tmp_path / "votes.csv").write_text("\n".join(rows))
    lines = [f"=img{i}," + ",".join(f"{z:.5f}" for z in row) for i, row in enumerate(logits)]
    (tmp_path / "model.csv").write_text("\n".join(["item,logit_cat,logit_dog,logit_fox", *lines]))
    return tmp_path


def test_votes_alone_give_items_record_tables_and_page(files, capsys):
    assert main(["votes", "votes.csv", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert "are settled" in out and out.strip().endswith("out/report.html") and not err
    assert set(files_below(files / "out")) >= {"items.csv", "record.json", "report.html", "tables.md"}
    with (files / "out/items.csv").open() as file:
        heading, *rows = csv.reader(file)
    assert heading == [*HEADING, "prob_cat", "prob_dog", "prob_fox"]
    record = json.loads((files / "out/record.json").read_text())
    assert len(rows) == record["items"] and record["command"][:2] == ["beliefmatch", "votes"]
    assert all(row[0].startswith("'=") for row in rows)  # no spreadsheet runs a name as a formula
    page = (files / "out/report.html").read_text()
    assert "items are settled" in page and "=img" in page and "Dirichlet" not in page


def test_the_columns_that_were_read_and_those_that_were_not_are_named(files, capsys):
    rows = (files / "votes.csv").read_text().split("\n")
    (files / "notes.csv").write_text("\n".join([rows[0] + ",note", *(f"{row},x" for row in rows[1:])]))
    assert main(["votes", "notes.csv", "--out", "out"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "item from task; annotator from worker; label from label. Not read: note." in out


@pytest.mark.filterwarnings("always:votes:beliefmatch._errors.ArgumentWarning")
def test_a_model_is_replayed_and_the_votes_exported(files, capsys):
    line = ["votes", "votes.csv", "--predictions", "model.csv", "--simulate", "--repetitions", "2"]
    assert main([*line, "--multiannotator", "m.csv", "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert "24 with fewer than 5 votes" in err
    assert "Early stopping, replayed" in out and "Ask next" in out and "Annotators" in out
    record = json.loads((files / "runs/votes/record.json").read_text())
    assert len(record["simulation"]["rules"]) == 3 and record["scale"] > 0
    with (files / "m.csv").open() as file:
        heading, *rows = csv.reader(file)
    assert len(heading) == 7 and len(rows) == 60
    assert sum(cell != "" for row in rows for cell in row[1:]) == record["votes"]


def test_the_commands_and_items_of_the_how_to_page_are_those_of_the_program(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs/how-to/votes.md").read_text(encoding="utf-8")
    table, _, items = re.findall(r"```text.*?\n(.*?)```", page, re.DOTALL)
    commands = [shlex.split(line) for line in re.findall(r"^beliefmatch (votes .*)$", page, re.MULTILINE)]
    assert main(["votes", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [word for line in commands for word in line if word.startswith("--") and word not in shown] == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "votes.csv").write_text(table)
    assert main(commands[0]) == 0
    written = (tmp_path / "runs/votes/items.csv").read_text()
    number = r"\d+\.\d+"
    assert re.sub(number, "", written) == re.sub(number, "", items)
    found, expected = (list(map(float, re.findall(number, text))) for text in (written, items))
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.filterwarnings("always:votes:beliefmatch._errors.ArgumentWarning")
def test_report_rebuilds_the_page_from_the_record(files, capsys):
    assert main(["votes", "votes.csv", "--predictions", "model.csv", "--simulate", "--out", "out"]) == 0
    for record in ("out", "out/record.json"):
        assert main(["report", record, "--out", "again.html"]) == 0
        assert (files / "again.html").read_bytes() == (files / "out/report.html").read_bytes()
    (files / "copy.json").write_bytes((files / "out/record.json").read_bytes())
    capsys.readouterr()
    assert "`RECORD`" in refused(["report", "out", "copy.json", "--out", "two.html"], capsys)


@pytest.mark.filterwarnings("always:votes:beliefmatch._errors.ArgumentWarning")
def test_the_confidence_of_the_analysis_is_a_row_of_the_replay(files, capsys):
    assert main(["votes", "votes.csv", "--simulate", "--confidence", "0.93", "--out", "out"]) == 0
    assert "93.0" in capsys.readouterr().out


def test_a_table_for_cleanlab_that_cannot_be_written_is_its_own_error(files, capsys, monkeypatch):
    (files / "taken").mkdir()
    for path in ("taken", " ", "votes.csv/m.csv"):
        message = refused(["votes", "votes.csv", "--multiannotator", path, "--out", "out"], capsys)
        assert "--multiannotator" in message and not (files / "out").exists()

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("beliefmatch.cli.votes.atomic_write", full)
    message = refused(["votes", "votes.csv", "--multiannotator", "m.csv", "--out", "out"], capsys)
    assert "--multiannotator" in message and "--out" not in message


def test_the_table_for_cleanlab_is_read_again_with_the_same_items_annotators_and_votes(files):
    items, people = ["-1", "=a", "007", "1e5", "a,b", 'q"x', "1.50"], ["+2", "@bob", "-ann", "3.0", "x y"]
    rows = [
        [item, who, f"{(i + (w == 4)) % 3}"] for i, item in enumerate(items) for w, who in enumerate(people)
    ]
    with (files / "names.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["item", "annotator", "label"], *rows])
    assert main(["votes", "names.csv", "--multiannotator", "new/m.csv", "--out", "out"]) == 0
    before, after = read_votes("names.csv"), read_votes("new/m.csv", form="annotators")
    assert after.items == before.items == tuple(items)
    assert after.annotators == before.annotators == tuple(people)
    assert after.rows is not None and before.rows is not None
    assert sorted(after.rows.tolist()) == sorted(before.rows.tolist())
    with (files / "out/items.csv").open() as file:
        names = [row[0] for row in csv.reader(file)][1:]
    assert names == ["-1", "'=a", *items[2:]]  # a number is no formula


def test_a_bug_in_the_analysis_keeps_its_traceback(files, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("a bug")

    monkeypatch.setattr("beliefmatch.experiments.votes.fit_class_prior", broken)
    with pytest.raises(ValueError, match="a bug"):
        main(["votes", "votes.csv", "--out", "out"])


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["nothing.csv"], "VOTES"),
        (["votes.csv", "--panel", "2"], "--panel"),
        (["votes.csv", "--panel", "0"], "--panel"),
        (["votes.csv", "--confidence", "95"], "--confidence"),
        (["votes.csv", "--form", "tall"], "--form"),
        (["votes.csv", "--form", "counts"], "VOTES"),
        (["votes.csv", "--item", "thing"], "--item"),
        (["votes.csv", "--label", "thing"], "--label"),
        (["votes.csv", "--predictions", "nothing.csv"], "nothing.csv"),
        (["votes.csv", "--predictions", "votes.csv"], "votes.csv"),
        (["votes.csv", "--predictions", "model.csv", "--features", "model.csv"], "--features"),
        (["votes.csv", "--features", "model.csv"], "--features"),
        (["votes.csv", "--class-names", "nothing.txt"], "--class-names"),
        (["votes.csv", "--panel", "9", "--simulate"], "--simulate"),
        (["votes.csv", "--repetitions", "0", "--simulate"], "--repetitions"),
        (["votes.csv", "--out", "votes.csv"], "--out"),
    ],
)
def test_bad_input_is_refused_in_one_line_that_names_the_option(files, options, option, capsys):
    message = refused(["votes", *options], capsys)
    assert option in message, message
    assert not (files / "runs").exists() or not list((files / "runs").rglob("*.html"))
