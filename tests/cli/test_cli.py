"""The command line: quick help, honest exit codes, one line for a mistake."""

import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from beliefmatch._environment import extras
from beliefmatch.cli import main
from beliefmatch.cli.errors import UserError, user_errors
from beliefmatch.experiments.records import ComparisonRecord
from commands import PRODUCTS, QUICK, fails_in_training, python


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["--version"],
        *([name, "--help"] for name in ("compare", "train", "predict", "evaluate", "report")),
    ],
)
def test_help_loads_nothing_heavy(arguments):
    heavy = ["torch", "numpy", "matplotlib", "sklearn", "scipy"]
    done = python(
        "import sys; from beliefmatch.cli import main\n"
        f"code = main({arguments})\n"
        f"sys.exit(code or str([name for name in {heavy} if name in sys.modules] or ''))"
    )
    assert done.stderr.strip() == ""
    assert done.stdout


def test_help_lists_the_commands(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "compare" in shown
    assert "doctor" in shown


@pytest.mark.parametrize("columns", [40, 80])
def test_help_cuts_no_sentence_short(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", f"{columns}")
    assert main([]) == 0
    shown = capsys.readouterr().out.partition("Commands:")[2]
    assert "..." not in shown
    assert " ".join(shown.split()).endswith("the loss kernel and missing extras.")
    assert columns < 80 or len(shown.strip().splitlines()) == 8


def test_the_version_is_that_of_the_installation(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"beliefmatch {metadata.version('beliefmatch')}\n"


def test_without_typer_the_extra_is_named():
    done = python(
        "import sys; sys.modules['typer'] = None\nfrom beliefmatch.cli import main; sys.exit(main([]))"
    )
    assert done.returncode == 2
    assert done.stderr == '`beliefmatch` needs typer: pip install "beliefmatch[cli]"\n'


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("sklearn", '`load_digits` needs scikit-learn: pip install "beliefmatch[sklearn]"'),
        (
            "matplotlib",
            '`beliefmatch compare` needs matplotlib, jinja2 and plotly: pip install "beliefmatch[report]"',
        ),
    ],
)
def test_compare_without_an_extra_names_it(monkeypatch, tmp_path, capsys, module, line):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "beliefmatch.report.figures", raising=False)
    assert main([*QUICK, "--out", f"{tmp_path}"]) == 2
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dance"], "dance"),
        (["--nope"], "--nope"),
        (["compare", "--nope"], "--nope"),
        (["compare", "--epochs", "many"], "--epochs"),
        (["compare", "--epochs", "-3"], "beliefmatch compare: `--epochs` must be at least 1, got -3"),
        (["compare", "--seeds", "0"], "beliefmatch compare: `--seeds` must be at least 1, got 0"),
        (["compare", "--seed", "-1"], "`--seed` must lie in [0, 2**63), got -1"),
        (["compare", "--methods", "softmax,magic"], "compare: `--methods` must be among softmax, "),
        (["compare", "--data", "cifar11"], "cifar10"),
        (["compare", "--model", "preact_resnet19"], "preact_resnet18"),
        (["compare", "--set", "training.epoch=3"], "did you mean `training.epochs`?"),
        (["compare", "--set", "training.epochs"], "key=value"),
        (["compare", "--recipe", "cifarr"], "cifar"),
        (["compare", "--precision", "8"], "`--precision` must be one of auto, 32, bf16, 16"),
        (["compare", "--jobs", "0"], "compare: `--jobs` must be at least 1, got 0"),
        (["train", "--method", "softmax,ensemble"], "train: `--method` must be one method"),
        (["train", "--kl-weight", "much"], "train: `--kl-weight` must be a finite number or auto"),
        (["train", "--method", "softmax", "--kl-weight", "0.1"], "kl_weight"),
        (["predict", "nowhere", "x.png"], "nowhere"),
        (["predict", "nowhere", "x.png", "--out", "x.txt"], "`--out` must be a file ending in .csv"),
        (["predict", "nowhere", "x.png", "--abstain", "2"], "`--abstain` must lie strictly in (0, 1)"),
        (["compare", "--methods", "softmax,softmax"], "none twice"),
        (["compare", "--methods", ""], "got ''"),
        (["compare", "--kl-weight", "-1"], "`--kl-weight` must not be negative, got -1"),
        (["compare", "--kl-weight", "inf"], "compare: `--kl-weight` must be a finite number or auto"),
        (
            ["compare", "--methods", "softmax", "--kl-weight", "0.1"],
            "`--kl-weight` must come with belief_matching in `--methods`, got softmax.",
        ),
        (["compare", "--out", ""], "`--out` must be a directory (. for the current one), got ''"),
        (["compare", "--out", " "], "`--out` must be a directory (. for the current one), got ' '"),
        (["compare", "--out", "a" * 999], "`--out` must be a directory to write in, got aaa"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_place_for_results(tmp_path, capsys):
    place = tmp_path / "taken"
    place.write_text("precious")
    for out in (place, place / "below"):
        assert main([*QUICK, "--out", f"{out}"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("beliefmatch compare: `--out` must be a directory")
        assert err.count("\n") == 1
    assert place.read_text() == "precious"


@pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="needs a directory that even root cannot write in"
)
def test_an_unwritable_directory_is_refused(capsys):
    assert main([*QUICK, "--out", "/proc/self"]) == 2
    assert "`--out` must be a directory to write in, got /proc/self (" in capsys.readouterr().err


def test_compare_writes_all_and_says_where(tmp_path, capsys):
    out = tmp_path / "new" / "place"
    assert main([*QUICK, "--out", f"{out}", "--kl-weight", "0.003", "--seed", "4"]) == 0
    shown, err = capsys.readouterr()
    assert err == ""  # no progress bar without a terminal
    assert "\x1b" not in shown
    assert "belief matching (λ = 0.003)" in shown
    assert sorted(path.name for path in out.iterdir()) == PRODUCTS
    assert shown.split()[-1] == f"{out / 'report.html'}"
    record = ComparisonRecord.from_json((out / "comparison.json").read_text("utf-8"))
    assert record.seeds == [4]
    assert record.methods[1].runs[0].options == {"kl_weight": 0.003}
    assert record.settings["command"][:2] == ["beliefmatch", "compare"]


def test_a_terminal_without_greek_letters_shows_question_marks():
    done = python(
        "from beliefmatch.cli import app; from beliefmatch.cli.terminal import show\n"
        "app.doctor = lambda: show('\u03bb')\n"
        "app.run(['<lambda>'])",
        PYTHONIOENCODING="ascii",
    )
    assert done.stdout == "?\n"
    assert done.stderr == ""


COMMAND = SimpleNamespace(command_path="beliefmatch try", params={"kl_weight": 1.0})


def test_a_training_that_diverges_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    broken = fails_in_training(FloatingPointError("fit: the loss of epoch 3 is nan."))
    monkeypatch.setattr("beliefmatch.experiments.run.fit", broken)
    assert main([*QUICK, "--out", f"{tmp_path}"]) == 2
    assert capsys.readouterr().err == "fit: the loss of epoch 3 is nan.\n"


def test_a_bug_keeps_its_traceback(tmp_path, monkeypatch):
    broken = fails_in_training(ValueError("a bug of ours"))
    monkeypatch.setattr("beliefmatch.experiments.run.fit", broken)
    with pytest.raises(ValueError, match="a bug of ours"):
        main([*QUICK, "--out", f"{tmp_path}"])


def test_only_the_named_errors_are_told_plainly():
    with pytest.raises(UserError, match=r"^two lines$"), user_errors(ValueError, command=COMMAND):
        raise ValueError("two\n  lines")
    with pytest.raises(KeyError), user_errors(ValueError, command=COMMAND):
        raise KeyError("a bug")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Loss: `kl_weight` must be x.", "beliefmatch try: `--kl-weight` must be x."),
        ("Loss: `prior` must be x.", "Loss: `prior` must be x."),
        ("Loss: no `kl_weight` here.", "Loss: no `kl_weight` here."),
    ],
)
def test_an_argument_that_is_an_option_is_named_as_the_user_typed_it(said, told):
    with pytest.raises(UserError) as caught, user_errors(ValueError, command=COMMAND):
        raise ValueError(said)
    assert str(caught.value) == told


def test_a_warning_is_one_line_without_a_place_in_our_code():
    done = python(
        "import warnings; from beliefmatch.cli import app\n"
        "app.doctor = lambda: warnings.warn('mind the gap')\n"
        "app.run(['<lambda>'])"
    )
    assert done.stderr == "warning: mind the gap\n"


def test_doctor_describes_the_installation(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name in ("beliefmatch", "torch", "numpy", "typer", "scikit-learn"):
        assert metadata.version(name) in shown
    assert "loss kernel" in shown
    assert "cpu" in shown


@pytest.mark.parametrize("columns", [40, 50])
def test_doctor_loses_nothing_in_a_narrow_terminal(columns, capsys, monkeypatch):
    monkeypatch.setattr("beliefmatch.cli.terminal._PLAIN_WIDTH", columns)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    values = "".join(shown.split())
    for extra in extras():
        assert extra.satisfied or "".join(extra.remedy.split()) in values


def test_doctor_speaks_json(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["torch"]["devices"][0] == "cpu"
    assert found["torch"]["threads"] >= 1
    assert found["torch"]["kernel"]
    assert found["torch"]["problem"] is None
    for extra in found["extras"]:
        lacking = any(package["installed"] is None for package in extra["packages"])
        assert extra["satisfied"] or extra["remedy"] == f'pip install "beliefmatch[{extra["name"]}]"'
        assert not (lacking and extra["satisfied"])


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_doctor_reports_a_torch_that_cannot_be_imported(tmp_path, arguments):
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    done = python(
        f"import sys; from beliefmatch.cli import main; sys.exit(main({arguments}))",
        PYTHONPATH=f"{tmp_path}",
    )
    assert done.returncode == 1
    assert "torch cannot be imported: libtorch.so: cannot open" in done.stdout
    assert done.stderr == ""
