"""`beliefmatch evaluate` and `beliefmatch report`: files in, a page out, or one line and nothing."""

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
from beliefmatch.cli.model_files import config, file_names, names_of
from beliefmatch.experiments.evaluation_record import SCHEMA, Confusion, EvaluationRecord
from commands import python

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


def files_below(out: Path) -> list[str]:
    return sorted(f"{path.relative_to(out)}" for path in out.rglob("*") if path.is_file())


def test_a_run_writes_records_tables_figures_and_the_page(done):
    out, _ = done
    figures = [f"figures/{name}.{kind}" for name in FIGURES for kind in ("pdf", "png", "svg")]
    assert files_below(out) == sorted(
        [LEDGER, "a.json", "b.json", "report.html", "summary.csv", "summary.md", *figures]
    )


def test_the_terminal_shows_the_table_what_was_recognised_and_where_the_page_is(done, place):
    out, shown = done
    lines = shown.splitlines()
    assert "60 examples, 4 classes" in shown
    assert lines[-1] == f"{out / 'report.html'}"
    assert f"{place / 'a.npz'}: logits = logits, targets = targets, images = images" in lines
    assert f"{place / 'b_noise.npz'}: logits = logits" in lines
    assert "\x1b" not in shown


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
    line = f"removed what an earlier run left in {out}: {', '.join(gone)}"
    assert line in capsys.readouterr().out.splitlines()
    left = files_below(out)
    assert not set(gone) & set(left) and {"a.json", "b.json", "mine.json", "figures/roc.svg"} <= set(left)


def refused(command: list[str], capsys) -> str:
    """The one line that the command ends with."""
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def old_record(text: str) -> str:
    return text.replace(SCHEMA, "beliefmatch.evaluation/0")


def without_scores(text: str) -> str:
    content = json.loads(text)
    del content["scores"]
    return json.dumps(content)


def with_a_word_for_a_number(text: str) -> str:
    return json.dumps({**json.loads(text), "examples": "many"})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (old_record, f"`schema` must be '{SCHEMA}', got 'beliefmatch.evaluation/0'"),
        (without_scores, "got others: scores"),
        (with_a_word_for_a_number, "`record.examples` must be int, got str"),
        (lambda text: text[:1000], "the text is not JSON"),
        (lambda text: "[]", "got 'list'"),
        (lambda text: "", "the text is not JSON"),
        (lambda text: "\udcff", "it is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_record_is_told_in_one_line(done, tmp_path, capsys, spoil, words):
    text = (done[0] / "a.json").read_text("utf-8")
    bad = tmp_path / "bad.json"
    bad.write_bytes(spoil(text).encode("utf-8", "surrogateescape"))
    err = refused(["report", f"{done[0] / 'b.json'}", f"{bad}", "--out", f"{tmp_path / 'x.html'}"], capsys)
    assert words in err
    assert f"got {bad}: " in err
    assert files_below(tmp_path) == ["bad.json"]


def test_report_refuses_what_is_not_there_and_where_it_cannot_write(done, tmp_path, capsys):
    record = f"{done[0] / 'a.json'}"
    assert "No such file" in refused(["report", f"{tmp_path / 'no.json'}"], capsys)
    assert "a directory with comparison.json or record.json" in refused(["report", f"{tmp_path}"], capsys)
    assert "`--out` must be a file to write" in refused(["report", record, "--out", f"{tmp_path}"], capsys)
    assert "`--out` must be a file to write" in refused(["report", record, "--out", " "], capsys)
    err = refused(["report", record, "--out", f"{record}/page.html"], capsys)
    assert "`--out` must be a directory" in err


def test_records_of_different_classes_are_not_mixed(done, tmp_path, capsys):
    record = EvaluationRecord.from_json((done[0] / "a.json").read_text("utf-8"))
    other = tmp_path / "other.json"
    two = replace(record, class_names=["x", "y"], classes=record.classes[:2], mistakes=[], doubtful=[])
    other.write_text(replace(two, confusion=Confusion(None, [])).to_json(), "utf-8")
    err = refused(["report", f"{done[0] / 'a.json'}", f"{other}"], capsys)
    assert "must have the same number of classes, got 2 and 4" in err


BAD_ARGUMENTS = [
    (["missing.npz"], "`path` must be a file, got no file at missing.npz"),
    (["."], "must hold a finished run"),
    (["a.npz", "--n-bins", "0"], "beliefmatch evaluate: `--groups` must be at least 1, got 0"),
    (["a.npz", "--resamples", "-1"], "beliefmatch evaluate: `--resamples` must be at least 0, got -1"),
    (["a.npz", "--seed", "-1"], "`--seed` must be at least 0, got -1"),
    (["a.npz", "--risk", "0.1", "--risk", "7"], "`--risk` must lie strictly in (0, 1), got 7"),
    (["a.npz", "--ood", "noise.npz"], "`--ood` must be SET=FILE, such as svhn=svhn.npz, got 'noise.npz'"),
    (["a.npz", "--ood", "=noise.npz"], "`--ood` must be SET=FILE"),
    (["a.npz", "--ood", "noise="], "`--ood` must be SET=FILE"),
    (["a.npz", "--ood", "x=a_noise.npz", "--ood", "x=a_noise.npz"], "must name each set once, got 'x' twice"),
    (
        ["a.npz", "b.npz", "--ood", "x=a_noise.npz"],
        "one file for each of the 2 models, with commas between, got 1",
    ),
    (
        ["a.npz", "--ood", "x=a_noise.npz,b.npz"],
        "`--ood` must give one file, as there is one model, got 2 for 'x'",
    ),
    (["a.npz", "--ood", "x=no.npz"], "got no file at no.npz"),
    (["a.npz", "--name", "x", "--name", "y"], "`--name` must be given 1 times, once a file, got 2"),
    (["a.npz", "--logits", "scores"], "`--logits` must be in a.npz as scores, got logits, images, targets"),
    (["a.npz", "--targets", "truth"], "beliefmatch evaluate: `--targets` must be in a.npz as truth"),
    (["a.npz", "--images", "pictures"], "`--images` must be in a.npz as pictures"),
    (["a_noise.npz"], "`--targets` must be in a_noise.npz as targets or target"),
    (["a.npz", "--targets-file", "no.npz"], "got no file at no.npz"),
    (["a.npz", "--class-names", "no.txt"], "`--class-names` must be a text file, got no.txt (No such file"),
    (
        ["a.npz", "--class-names", "three.txt"],
        "`--class-names` must be one for each of the 4 classes of a.npz",
    ),
    (["a.npz", "five.npz"], "model in five.npz must have the 4 classes of a.npz, got 5"),
    (["a.npz", "--ood", "x=five.npz"], "OOD set 'x' in five.npz must have the 4 classes of a.npz, got 5"),
    (["a.npz", "nan.npz"], "nan.npz must hold finite logits in `logits`, got nan in row 3"),
    (["a.npz", "--ood", "x=nan.npz"], "nan.npz must hold finite logits"),
    (["a.npz", "--out", ""], "`--out` must be a directory (. for the current one), got ''"),
    (["a.npz", "--out", "a.npz"], "`--out` must be a directory, got the file a.npz"),
    (["a.npz", "--out", "a" * 999], "`--out` must be a directory to write in"),
    (["a.npz", "--resamples", "many"], "--resamples"),
    ([], "FILE"),
]


@pytest.mark.parametrize(("given", "words"), BAD_ARGUMENTS)
def test_a_mistake_is_told_in_one_line_and_leaves_nothing(given, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.npz", images=np.zeros((N, 3, 3)))
    save(tmp_path / "b.npz")
    save(tmp_path / "a_noise.npz", rows=30)
    save(tmp_path / "five.npz", classes=5)
    with (tmp_path / "nan.npz").open("wb") as file:
        np.savez(file, logits=np.where(np.arange(N)[:, None] == 3, np.nan, np.zeros((N, K))), y=TARGETS)
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    before = sorted(tmp_path.rglob("*"))
    out = [] if "--out" in given else ["--out", "new/place"]
    assert words in refused(["evaluate", *given, *QUICK[: 0 if "--resamples" in given else 2], *out], capsys)
    assert sorted(tmp_path.rglob("*")) == before


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
    monkeypatch.setattr("beliefmatch.cli.evaluate._renderer", lambda: lambda records: [])
    assert main(["evaluate", "a.npz", "b.npz", *QUICK, "--out", "r"]) == 0
    assert capsys.readouterr().err == (
        "warning: the targets of b.npz are not those of a.npz; "
        "the models were judged on different examples.\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_a_file_name_that_is_no_text_is_shown_as_well_as_can_be(tmp_path, capsys):
    path = save(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m.npz")))
    out = tmp_path / "r"
    assert main(["evaluate", f"{path}", *QUICK, "--out", f"{out}"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    (record,) = out.glob("*.json")
    assert EvaluationRecord.from_json(record.read_text("utf-8")).name == "\ufffd\ufffd[31m"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            "jinja2",
            '`beliefmatch evaluate` needs matplotlib, jinja2 and plotly: pip install "beliefmatch[report]"\n',
        ),
        (
            "plotly",
            '`beliefmatch evaluate` needs matplotlib, jinja2 and plotly: pip install "beliefmatch[report]"\n',
        ),
    ],
)
def test_without_an_extra_it_is_named(module, line, place, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    assert refused(arguments(place, tmp_path / "r"), capsys) == line
    assert list(tmp_path.iterdir()) == []


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
    assert err == (
        f"beliefmatch evaluate: cannot write to {tmp_path / 'r'} ({os.strerror(errno.ENOSPC)}); "
        "mend that or choose another `--out`.\n"
    )
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
    assert names_of(paths, []) == ["s0/p", "s1/p", "other", "s0/p (2)"]
    assert names_of(paths[:2], ["m", "m"]) == ["m", "m (2)"]
    assert names_of(paths[:1], ["\x1b"]) == ["\ufffd"]


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
    first, second = config(["a.npz", "b.npz"], names=[], ood=["x=1.npz, 2.npz", "y=3.npz,4.npz"])
    assert first.ood == {"x": Path("1.npz"), "y": Path("3.npz")}
    assert second.ood == {"x": Path("2.npz"), "y": Path("4.npz")}
    (only,) = config(["a.npz"], names=["m"], ood=["x=1,2.npz"])
    assert (only.name, only.ood) == ("m", {"x": Path("1,2.npz")})
