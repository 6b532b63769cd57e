"""`beliefmatch evaluate` and `beliefmatch report`: files in, a page out, or nothing."""

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from beliefmatch._files import LEDGER
from beliefmatch.cli import main
from beliefmatch.cli.evaluate import file_names, model_files, model_names
from beliefmatch.experiments.evaluation_record import SCHEMA, Confusion, EvaluationRecord
from commands import files_below, python, refused

N, K = 60, 4
RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, K, N)
FIGURES = ["class_error", "entropy_noise", "reliability", "risk_coverage", "roc"]
QUICK = ["--resamples", "20"]


def save(path: Path, *, shift: float = 2.0, rows: int = N, classes: int = K, **more: np.ndarray) -> Path:
    """Logits of a model that is right more often the larger `shift`."""
    logits = np.random.default_rng(rows).normal(size=(rows, classes))
    if rows == N and "targets" not in more:
        logits[np.arange(N), TARGETS % classes] += shift
        more["targets"] = TARGETS % classes
    with path.open("wb") as file:
        np.savez(file, logits=logits, **more)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two models, and their predictions for noise."""
    place = tmp_path_factory.mktemp("predictions")
    images = RNG.random((N, 5, 5))
    save(place / "a.npz", images=images)
    save(place / "b.npz", shift=1.0)
    for name in ("a", "b"):
        save(place / f"{name}_noise.npz", rows=30)
    (place / "names.txt").write_text("<script>alert(1)</script>\n=1+1\nbée\n| [red]\n", encoding="utf-8")
    return place


def arguments(place: Path, out: Path) -> list[str]:
    files = [f"{place / 'a.npz'}", f"{place / 'b.npz'}"]
    noise = f"noise={place / 'a_noise.npz'},{place / 'b_noise.npz'}"
    names = ["--class-names", f"{place / 'names.txt'}"]
    return ["evaluate", *files, "--ood", noise, *names, "--out", f"{out}", *QUICK]


@pytest.fixture(scope="module")
def done(place, tmp_path_factory) -> tuple[Path, str]:
    """The directory of a whole run, and what was printed."""
    out = tmp_path_factory.mktemp("run") / "new" / "report"
    script = f"import sys; from beliefmatch.cli import main; sys.exit(main({arguments(place, out)}))"
    finished = python(script)
    assert finished.stderr == ""  # no progress bar without a terminal
    assert finished.returncode == 0
    return out, finished.stdout


def test_a_run_writes_records_tables_figures_and_the_page(done):
    out, _ = done
    figures = [f"figures/{name}.{kind}" for name in FIGURES for kind in ("pdf", "png", "svg")]
    assert files_below(out) == sorted(
        [LEDGER, "a.json", "b.json", "report.html", "summary.csv", "summary.md", *figures]
    )


def test_the_terminal_shows_the_table_and_the_page(done):
    out, shown = done
    assert "60 examples, 4 classes" in shown
    assert shown.splitlines()[-1] == f"{out / 'report.html'}"
    assert "logits = " not in shown and "\x1b" not in shown


def test_verbose_shows_what_arrays_were_recognised_as(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.npz", images=np.zeros((N, 3, 3)))
    save(tmp_path / "noise.npz", rows=30)
    assert main(["evaluate", "a.npz", "--ood", "x=noise.npz", *QUICK, "--out", "r", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "a.npz: logits = logits, targets = targets, images = images" in shown
    assert "noise.npz: logits = logits" in shown


def test_records_hold_what_was_asked_for(done):
    out, _ = done
    records = [EvaluationRecord.from_json((out / f"{name}.json").read_text("utf-8")) for name in "ab"]
    assert [record.name for record in records] == ["a", "b"]
    assert records[0].schema == SCHEMA
    assert records[0].class_names == ["<script>alert(1)</script>", "=1+1", "bée", "| [red]"]
    assert [ood.name for ood in records[1].ood] == ["noise"]
    assert records[1].ood[0].source.endswith("b_noise.npz")
    assert records[0].settings["resamples"] == 20
    assert records[0].mistakes[0].image and records[1].mistakes[0].image is None


def test_hostile_class_names_stay_text(done):
    page = (done[0] / "report.html").read_text("utf-8")
    assert "<script>alert(1)" not in page


def test_a_second_run_writes_the_same_bytes_but_for_the_times(done, place, tmp_path, capsys):
    out, _ = done
    assert main(arguments(place, tmp_path)) == 0
    for name in ("summary.csv", "summary.md"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()
    for name in ("a.json", "b.json"):
        before, after = (
            replace(EvaluationRecord.from_json((run / name).read_text("utf-8")), created="", wall_seconds=0)
            for run in (out, tmp_path)
        )
        assert replace(before, hardware=after.hardware).to_json() == after.to_json()


def test_the_page_is_rebuilt_from_records_alone_without_torch(done, tmp_path):
    out, _ = done
    page = tmp_path / "made" / "again.html"
    command = ["report", f"{out / 'a.json'}", f"{out / 'b.json'}", "--out", f"{page}"]
    finished = python(
        "import sys; sys.modules['torch'] = None\n"
        f"from beliefmatch.cli import main; code = main({command})\n"
        "heavy = [name for name in ('torch', 'matplotlib', 'scipy') if sys.modules.get(name)]\n"
        "sys.exit(code or str(heavy or ''))"
    )
    assert finished.stderr.strip() == ""
    assert finished.stdout == f"{page}\n"
    assert page.read_bytes() == (out / "report.html").read_bytes()


def test_what_an_earlier_run_left_is_removed_and_named(place, tmp_path, capsys):
    out = tmp_path / "r"
    assert main(arguments(place, out)) == 0
    (out / "mine.json").write_text("{}")
    (out / "figures" / "roc.svg").write_text("changed by hand")
    capsys.readouterr()
    assert main(["evaluate", f"{place / 'a.npz'}", *QUICK, "--out", f"{out}"]) == 0
    gone = [f"figures/entropy_noise.{kind}" for kind in ("svg", "pdf", "png")]
    assert f"removed files of an earlier run in {out}: {', '.join(gone)}" in capsys.readouterr().out
    left = files_below(out)
    assert not set(gone) & set(left) and {"a.json", "b.json", "mine.json", "figures/roc.svg"} <= set(left)


SPOILT = {
    "another schema": lambda text: text.replace(SCHEMA, "beliefmatch.evaluation/0"),
    "a field less": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "scores"}),
    "a word for a number": lambda text: json.dumps({**json.loads(text), "examples": "many"}),
    "half": lambda text: text[:1000],
    "a list": lambda text: "[]",
    "nothing": lambda text: "",
    "no UTF-8": lambda text: "\udcff",
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_file_that_is_no_record_is_one_line(done, tmp_path, capsys, spoil):
    bad = tmp_path / "bad.json"
    spoilt = spoil((done[0] / "a.json").read_text("utf-8"))
    bad.write_bytes(spoilt.encode("utf-8", "surrogateescape"))
    err = refused(["report", f"{done[0] / 'b.json'}", f"{bad}", "--out", f"{tmp_path / 'x.html'}"], capsys)
    assert "`RECORD`" in err and f"got {bad}: " in err
    assert files_below(tmp_path) == ["bad.json"]


@pytest.mark.parametrize("out", [".", " ", "a.json/page.html"])
def test_report_refuses_a_place_where_it_cannot_write(done, capsys, monkeypatch, out):
    monkeypatch.chdir(done[0])
    assert "`--out`" in refused(["report", "a.json", "--out", out], capsys)


def test_records_of_different_classes_are_not_mixed(done, tmp_path, capsys):
    record = EvaluationRecord.from_json((done[0] / "a.json").read_text("utf-8"))
    other = tmp_path / "other.json"
    two = replace(record, class_names=["x", "y"], classes=record.classes[:2], mistakes=[], doubtful=[])
    other.write_text(replace(two, confusion=Confusion(None, [])).to_json(), "utf-8")
    assert "got 2 and 4" in refused(["report", f"{done[0] / 'a.json'}", f"{other}"], capsys)


def test_other_names_and_a_targets_file_are_taken(tmp_path, capsys):
    probs = np.full((5, 2), 0.5)
    np.savez(tmp_path / "m.npz", out=probs, truth=[0, 1, 0, 1, 1])
    np.save(tmp_path / "y.npy", np.array([0, 0, 0, 0, 1]))
    command = ["evaluate", f"{tmp_path / 'm.npz'}", "--probs", "out", *QUICK, "--name", "flat"]
    assert main([*command, "--targets", "truth", "--out", f"{tmp_path / '1'}"]) == 0
    assert main([*command, "--targets-file", f"{tmp_path / 'y.npy'}", "--out", f"{tmp_path / '2'}"]) == 0
    first, second = (
        EvaluationRecord.from_json((tmp_path / run / "flat.json").read_text("utf-8")) for run in "12"
    )
    assert first.scores["error"].value == pytest.approx(0.6)
    assert second.scores["error"].value == pytest.approx(0.2)
    assert second.settings["fields"]["targets"] == f"y in {tmp_path / 'y.npy'}"


@pytest.mark.filterwarnings("default:the targets of")
def test_models_judged_on_different_targets_are_warned_of(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.npz")
    save(tmp_path / "b.npz", targets=(TARGETS + 1) % K)
    monkeypatch.setattr("beliefmatch.cli.evaluate.evaluation_files", lambda records: [])
    assert main(["evaluate", "a.npz", "b.npz", *QUICK, "--out", "r"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: the targets of b.npz") and err.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_a_file_name_that_is_no_text_is_shown_as_well_as_can_be(tmp_path, capsys):
    path = save(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m.npz")))
    out = tmp_path / "r"
    assert main(["evaluate", f"{path}", *QUICK, "--out", f"{out}"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    (record,) = out.glob("*.json")
    assert EvaluationRecord.from_json(record.read_text("utf-8")).name == "\ufffd\ufffd[31m"


def interrupted(*arguments, **options):
    signal.raise_signal(signal.SIGINT)
    time.sleep(10)  # older Pythons answer a signal only a little later: let it be here


@pytest.mark.parametrize("where", ["beliefmatch.experiments.detections.roc", "os.fsync"])
def test_an_interrupt_ends_with_130_and_leaves_no_file(where, place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(where, interrupted)
    assert main(arguments(place, tmp_path / "r")) == 130
    assert capsys.readouterr().err == "beliefmatch: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing_and_shows_the_numbers(place, tmp_path, capsys, monkeypatch):
    written = []

    def fsync(descriptor):
        written.append(descriptor)
        if len(written) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fsync)
    assert main(arguments(place, tmp_path / "r")) == 2
    shown, err = capsys.readouterr()
    place = f"{tmp_path / 'r'} ({os.strerror(errno.ENOSPC)})"
    assert err.startswith(f"beliefmatch evaluate: cannot write to {place}") and err.count("\n") == 1
    assert "60 examples" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_bug_keeps_its_traceback_and_leaves_nothing(place, tmp_path, monkeypatch):
    def broken(*arguments):
        raise ValueError("a bug of ours")

    monkeypatch.setattr("beliefmatch.experiments.detections.roc", broken)
    with pytest.raises(ValueError, match="a bug of ours"):
        main(arguments(place, tmp_path / "r"))
    assert list(tmp_path.iterdir()) == []


def test_files_called_alike_are_named_by_their_directories():
    paths = [Path("s0/p.npz"), Path("s1/p.npz"), Path("other.csv"), Path("x/s0/p.npy")]
    assert model_names(paths, []) == ["s0/p", "s1/p", "other", "s0/p (2)"]
    assert model_names(paths[:2], ["m", "m"]) == ["m", "m (2)"]
    assert model_names(paths[:1], ["\x1b"]) == ["\ufffd"]


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (["a", "A", "a_2"], ["a", "A_2", "a_2_2"]),
        (["s0/p", "../../etc/passwd", ".hidden"], ["s0_p", "etc_passwd", "hidden"]),
        (["<script>", "名前", "", "///"], ["script", "名前", "model", "model_2"]),
        (["x" * 300], ["x" * 80]),
    ],
)
def test_names_become_files_that_stay_in_their_directory(names, files):
    assert file_names(names) == files


def test_each_model_gets_its_own_ood_files():
    first, second = model_files(["a.npz", "b.npz"], names=[], ood=["x=1.npz, 2.npz", "y=3.npz,4.npz"])
    assert first.ood == {"x": Path("1.npz"), "y": Path("3.npz")}
    assert second.ood == {"x": Path("2.npz"), "y": Path("4.npz")}
    (only,) = model_files(["a.npz"], names=["m"], ood=["x=1,2.npz"])
    assert (only.name, only.ood) == ("m", {"x": Path("1,2.npz")})
