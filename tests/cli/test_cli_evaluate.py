"""`beliefmatch evaluate` and `beliefmatch report`: records, tables and a page, or nothing."""

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
from beliefmatch.cli.evaluate import model_files, model_names
from beliefmatch.experiments.evaluation_record import SCHEMA, Confusion, EvaluationRecord
from commands import files_below, python, refused
from golden import assert_golden

N, K = 60, 4
RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, K, N)
FIGURES = ("classes", "confusion_0", "confusion_1", "entropy_noise", "reliability", "risk_coverage", "roc")
QUICK = ["--resamples", "1000"]


def record_of(path: Path) -> EvaluationRecord:
    return EvaluationRecord.from_json(path.read_text("utf-8"))


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
def inputs(tmp_path_factory) -> Path:
    """Two models, and their predictions for noise."""
    inputs = tmp_path_factory.mktemp("predictions")
    images = RNG.random((N, 5, 5))
    save(inputs / "a.npz", images=images)
    save(inputs / "b.npz", shift=1.0)
    for name in ("a", "b"):
        save(inputs / f"{name}_noise.npz", rows=30)
    (inputs / "names.txt").write_text("<script>alert(1)</script>\n=1+1\nbée\n| [red]\n", encoding="utf-8")
    return inputs


def arguments(inputs: Path, out: Path) -> list[str]:
    files = [f"{inputs / 'a.npz'}", f"{inputs / 'b.npz'}"]
    noise = f"noise={inputs / 'a_noise.npz'},{inputs / 'b_noise.npz'}"
    names = ["--class-names", f"{inputs / 'names.txt'}"]
    return ["evaluate", *files, "--ood", noise, *names, "--out", f"{out}", *QUICK]


@pytest.fixture(scope="module")
def done(inputs, tmp_path_factory) -> tuple[Path, str]:
    """The directory of an evaluation, and what was printed."""
    out = tmp_path_factory.mktemp("run") / "new" / "report"
    script = f"import sys; from beliefmatch.cli import main; sys.exit(main({arguments(inputs, out)}))"
    finished = python(script)
    assert finished.stderr == ""  # no progress bar without a terminal
    assert finished.returncode == 0
    return out, finished.stdout


def test_records_tables_figures_and_the_page_are_written(done):
    out, _ = done
    assert files_below(out) == [LEDGER, "a.json", "b.json", "report.html", "summary.csv", "summary.md"]
    assert "<script>alert(1)" not in (out / "report.html").read_text("utf-8")
    first, second = records = [record_of(out / f"{name}.json") for name in "ab"]
    assert [record.name for record in records] == ["a", "b"]
    assert first.class_names == ["<script>alert(1)</script>", "=1+1", "bée", "| [red]"]
    assert [ood.name for ood in second.ood] == ["noise"]
    assert second.ood[0].source.endswith("b_noise.npz")
    assert first.settings["resamples"] == 1000
    assert first.mistakes[0].image and second.mistakes[0].image is None


def test_the_terminal_shows_one_table_and_the_page_and_more_with_verbose(done, inputs, tmp_path, capsys):
    out, shown = done
    assert_golden("cli/evaluate.txt", shown.replace(f"{out}", "OUT"))
    out = tmp_path / "r"
    assert main([*arguments(inputs, out), "--verbose", "--figures", "svg"]) == 0
    more = capsys.readouterr().out
    assert "Adaptive ECE" in more and "Prediction sets" not in more
    assert [name for name in files_below(out) if name.startswith("figures/")] == sorted(
        f"figures/{name}.svg" for name in FIGURES
    )
    assert f"• {inputs / 'a.npz'}: logits = logits, targets = targets, images = images" in more
    assert f"• {inputs / 'b_noise.npz'}: logits = logits" in more
    for name in ("summary.csv", "summary.md"):  # the same bytes as before
        assert (out / name).read_bytes() == (done[0] / name).read_bytes()
    for name in ("a.json", "b.json"):
        before, after = (
            replace(record_of(run / name), created="", wall_seconds=0, hardware={}) for run in (done[0], out)
        )
        assert before.to_json() == after.to_json()


def test_the_page_is_rebuilt_from_records_alone_without_torch(done, tmp_path):
    out, _ = done
    page = tmp_path / "made" / "again.html"
    command = ["report", f"{out / 'a.json'}", f"{out / 'b.json'}", "--out", f"{page}"]
    finished = python(
        "import sys; sys.modules['torch'] = None\n"
        f"from beliefmatch.cli import main; code = main({command})\n"
        "heavy = [name for name in ('torch', 'scipy') if sys.modules.get(name)]\n"
        "sys.exit(code or str(heavy or ''))"
    )
    assert finished.stderr.strip() == ""
    assert finished.stdout == f"{page}\n"
    assert page.read_bytes() == (out / "report.html").read_bytes()


def test_a_directory_of_evaluations_is_answered_with_how_to_give_its_records(done, tmp_path, capsys):
    out, _ = done
    error = refused(["report", f"{out}", "--out", f"{tmp_path / 'page.html'}"], capsys)
    assert f"`RECORD` must be a directory with comparison.json or record.json, got {out} without" in error
    assert error.endswith(f"; give the records of `beliefmatch evaluate` as {out}/*.json.\n")
    error = refused(["report", f"{tmp_path}"], capsys)
    assert error.endswith(f"got {tmp_path} without.\n")


@pytest.mark.parametrize("file", ["missing.npz", "broken.npz", "weights.pt"])
def test_a_file_that_cannot_be_read_is_named_by_its_argument(file, inputs, tmp_path, capsys):
    good, bad = f"{inputs / 'a.npz'}", tmp_path / file
    if file != "missing.npz":
        bad.write_bytes(b"no archive")
    for line, option in (
        ([f"{bad}"], "FILE"),
        ([good, "--ood", f"noise={bad}"], "--ood"),
        ([good, "--targets-file", f"{bad}"], "--targets-file"),
    ):
        error = refused(["evaluate", *line, "--out", f"{tmp_path / 'out'}"], capsys)
        assert error.startswith(f"beliefmatch evaluate: `{option}` must ") and f"{bad}" in error


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ([""], "FILE"),
        (["a.npz", " "], "FILE"),
        (["a.npz", "--class-names", ""], "--class-names"),
        (["a.npz", "--targets-file", ""], "--targets-file"),
        (["a.npz", "--resamples", "1000000000"], "--resamples"),
        (["a.npz", "--resamples", "10"], "--resamples"),
        (["a.npz", "--n-bins", "100000000000"], "--n-bins"),
    ],
)
def test_an_empty_or_boundless_option_is_refused_before_any_work(
    line, option, inputs, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(inputs)
    before = files_below(inputs)
    error = refused(["evaluate", *line, "--out", f"{tmp_path / 'out'}"], capsys)
    assert error.startswith(f"beliefmatch evaluate: `{option}` must ")
    assert files_below(inputs) == before and not (tmp_path / "out").exists()


def test_headings_of_probabilities_are_the_names_of_the_classes(tmp_path, capsys):
    rows = [f"{p},{1 - p},{target}" for p, target in ((0.75, 0), (0.25, 1), (0.5, 0), (0.125, 1))]
    path = tmp_path / "tumours.csv"
    path.write_text("\n".join(["prob_malignant,prob_benign,target", *rows]) + "\n")
    assert main(["evaluate", f"{path}", "--out", f"{tmp_path / 'out'}", "--resamples", "0"]) == 0
    assert record_of(tmp_path / "out" / "tumours.json").class_names == ["malignant", "benign"]


def test_an_array_that_cannot_be_read_is_named_by_its_argument(inputs, tmp_path, capsys):
    """The list of the arrays is whole; the bytes of one are not."""
    good, bad = inputs / "b.npz", tmp_path / "spoilt.npz"
    content = bytearray(good.read_bytes())
    content[400] ^= 255
    bad.write_bytes(content)
    for line, option in (([f"{bad}"], "FILE"), ([f"{good}", "--ood", f"noise={bad}"], "--ood")):
        error = refused(["evaluate", *line, "--out", f"{tmp_path / 'out'}"], capsys)
        assert error.startswith(f"beliefmatch evaluate: `{option}` must be a whole .npz file")


def test_files_of_an_earlier_run_are_removed_and_named(inputs, tmp_path, capsys, monkeypatch):
    out = tmp_path / "r"
    line = ["evaluate", f"{inputs / 'a.npz'}", *QUICK, "--out", f"{out}"]
    files = {"a.json": b"{}", "b.json": b"{}", "figures/roc.svg": b"", "figures/old.svg": b""}
    monkeypatch.setattr(
        "beliefmatch.report.evaluation.evaluation_files", lambda *given, **more: files.items()
    )
    assert main(line) == 0
    (out / "mine.json").write_text("{}")
    (out / "figures" / "roc.svg").write_text("changed by hand")
    capsys.readouterr()
    files = {"a.json": b"{}"}
    assert main(line) == 0
    assert f"removed files of an earlier run in {out}: figures/old.svg" in capsys.readouterr().out
    assert files_below(out) == [LEDGER, "a.json", "b.json", "figures/roc.svg", "mine.json"]


DAMAGED = {
    "another schema": lambda text: text.replace(SCHEMA, "beliefmatch.evaluation/0"),
    "a field less": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "scores"}),
    "a word for a number": lambda text: json.dumps({**json.loads(text), "examples": "many"}),
    "half": lambda text: text[:1000],
    "a list": lambda text: "[]",
    "nothing": lambda text: "",
    "no UTF-8": lambda text: "\udcff",
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_report_names_a_file_that_is_no_record(done, tmp_path, capsys, damage):
    bad = tmp_path / "bad.json"
    damaged = damage((done[0] / "a.json").read_text("utf-8"))
    bad.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    err = refused(["report", f"{done[0] / 'b.json'}", f"{bad}", "--out", f"{tmp_path / 'x.html'}"], capsys)
    assert "`RECORD`" in err and f"got {bad}: " in err
    assert files_below(tmp_path) == ["bad.json"]


@pytest.mark.parametrize("out", [".", " ", "a.json/page.html"])
def test_report_refuses_an_output_that_cannot_be_written(done, capsys, monkeypatch, out):
    monkeypatch.chdir(done[0])
    assert "`--out`" in refused(["report", "a.json", "--out", out], capsys)


def test_a_record_is_given_once(done, tmp_path, capsys):
    record = f"{done[0] / 'a.json'}"
    line = ["report", record, record, "--out", f"{tmp_path / 'page.html'}"]
    assert "`RECORD`" in refused(line, capsys)
    assert not (tmp_path / "page.html").exists()


def test_two_models_do_not_get_the_same_name(inputs, tmp_path, capsys):
    files = [f"{inputs / name}" for name in ("a.npz", "b.npz")]
    line = ["evaluate", *files, "--name", "x", "--name", "x", "--out", f"{tmp_path / 'out'}"]
    assert "`--name`" in refused(line, capsys)
    assert not (tmp_path / "out").exists()


def test_records_of_different_classes_are_not_mixed(done, tmp_path, capsys):
    record = record_of(done[0] / "a.json")
    other = tmp_path / "other.json"
    two = replace(record, class_names=["x", "y"], classes=record.classes[:2], mistakes=[], doubtful=[])
    other.write_text(replace(two, confusion=Confusion(None, [])).to_json(), "utf-8")
    assert "got 2 and 4" in refused(["report", f"{done[0] / 'a.json'}", f"{other}"], capsys)


def test_arrays_with_other_names_and_a_targets_file_are_read(tmp_path, capsys):
    probs = np.full((5, 2), 0.5)
    np.savez(tmp_path / "m.npz", out=probs, truth=[0, 1, 0, 1, 1])
    np.save(tmp_path / "y.npy", np.array([0, 0, 0, 0, 1]))
    command = ["evaluate", f"{tmp_path / 'm.npz'}", "--probs", "out", *QUICK, "--name", "flat"]
    assert main([*command, "--targets", "truth", "--out", f"{tmp_path / '1'}"]) == 0
    assert main([*command, "--targets-file", f"{tmp_path / 'y.npy'}", "--out", f"{tmp_path / '2'}"]) == 0
    first, second = (record_of(tmp_path / run / "flat.json") for run in "12")
    assert first.scores["error"].value == pytest.approx(0.6)
    assert second.scores["error"].value == pytest.approx(0.2)
    assert second.settings["fields"]["targets"] == f"y in {tmp_path / 'y.npy'}"


@pytest.mark.filterwarnings("default:the targets of")
def test_different_targets_of_models_give_a_warning(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.npz")
    save(tmp_path / "b.npz", targets=(TARGETS + 1) % K)
    monkeypatch.setattr("beliefmatch.report.evaluation.evaluation_files", lambda *given, **more: [])
    assert main(["evaluate", "a.npz", "b.npz", *QUICK, "--out", "r"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: the targets of b.npz") and err.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_a_file_name_that_is_no_text_is_shown_with_replacements(tmp_path, capsys):
    path = save(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m.npz")))
    out = tmp_path / "r"
    assert main(["evaluate", f"{path}", *QUICK, "--out", f"{out}"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    (record,) = out.glob("*.json")
    assert record_of(record).name == "\ufffd\ufffd[31m"


def interrupted(*arguments, **options):
    signal.raise_signal(signal.SIGINT)
    time.sleep(10)  # older Pythons handle a signal a little later


@pytest.mark.parametrize("where", ["beliefmatch.experiments.evaluate.roc", "os.fsync"])
def test_an_interrupt_ends_with_130_and_leaves_no_file(where, inputs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(where, interrupted)
    assert main(arguments(inputs, tmp_path / "r")) == 130
    assert capsys.readouterr().err == "beliefmatch: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing_and_shows_the_numbers(inputs, tmp_path, capsys, monkeypatch):
    written = []

    def fsync(descriptor):
        written.append(descriptor)
        if len(written) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fsync)
    assert main(arguments(inputs, tmp_path / "r")) == 2
    shown, err = capsys.readouterr()
    reason = os.strerror(errno.ENOSPC)
    assert err.startswith(f"beliefmatch evaluate: cannot write to {tmp_path / 'r'} ({reason})")
    assert err.count("\n") == 1
    assert "60 examples" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_bug_keeps_its_traceback_and_leaves_nothing(inputs, tmp_path, monkeypatch):
    def broken(*arguments):
        raise ValueError("a bug of ours")

    monkeypatch.setattr("beliefmatch.experiments.evaluate.roc", broken)
    with pytest.raises(ValueError, match="a bug of ours"):
        main(arguments(inputs, tmp_path / "r"))
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_same_name_are_named_by_their_directories():
    paths = [Path("s0/p.npz"), Path("s1/p.npz"), Path("other.csv"), Path("x/s0/p.npy")]
    assert model_names(paths, []) == ["s0/p", "s1/p", "other", "s0/p (2)"]
    assert model_names(paths[:2], ["m", "m"]) == ["m", "m (2)"]
    assert model_names(paths[:1], ["\x1b"]) == ["\ufffd"]


def test_each_model_gets_its_own_ood_files():
    first, second = model_files(["a.npz", "b.npz"], names=[], ood=["x=1.npz, 2.npz", "y=3.npz,4.npz"])
    assert first.ood == {"x": Path("1.npz"), "y": Path("3.npz")}
    assert second.ood == {"x": Path("2.npz"), "y": Path("4.npz")}
    (only,) = model_files(["a.npz"], names=["m"], ood=["x=1,2.npz"])
    assert (only.name, only.ood) == ("m", {"x": Path("1,2.npz")})
