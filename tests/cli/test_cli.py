"""The contract of all commands: quick help in sentences, honest exit codes, one line for an error."""

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import typer

from beliefmatch._environment import extras
from beliefmatch.cli import app, main
from beliefmatch.cli.console import UserError, user_errors
from beliefmatch.data import DATASETS
from beliefmatch.experiments.config import RECIPES
from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.models import MODELS
from commands import PRODUCTS, QUICK, fails_in_training, python, refused

COMMANDS = list(app.COMMANDS)
VAGUE = ("Of ", "That ", "By ", "For ", "Where ", "What ", "On ", "Its ", "It ")


@pytest.fixture(scope="module")
def declared():
    """Every command by its name, as typer sees it."""
    return typer.main.get_command(app._application([])).commands  # type: ignore[attr-defined]


def test_help_loads_nothing_heavy():
    heavy = ["torch", "numpy", "matplotlib", "sklearn", "scipy"]
    lines = [[], ["--version"], *([name, "--help"] for name in COMMANDS)]
    done = python(
        "import sys; from beliefmatch.cli import main\n"
        f"code = max(main(line) for line in {lines})\n"
        f"sys.exit(code or str([name for name in {heavy} if name in sys.modules] or ''))"
    )
    assert done.stderr.strip() == ""
    assert done.stdout.count("Usage: ") == len(lines) - 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_text_is_a_sentence_that_can_be_read_alone(declared, name):
    command = declared[name]
    texts = {"command": command.help.partition("\n")[0]}
    for parameter in command.params:
        texts[parameter.name] = parameter.help
        is_flag = getattr(parameter, "is_flag", False)
        assert is_flag or parameter.name == "help" or parameter.metavar, f"{parameter.name} has no metavar"
    for owner, text in texts.items():
        assert text and text[0].isupper() and text.endswith("."), f"{name} {owner}: {text!r}"
        assert len(text.split()) >= 4 and not text.startswith(VAGUE), f"{name} {owner}: {text!r}"


def test_help_names_every_recipe_dataset_and_network(declared):
    known = {"recipe": RECIPES, "data": DATASETS, "model": MODELS}
    for parameter in declared["train"].params:
        missing = [name for name in known.get(parameter.name, ()) if name not in parameter.help]
        assert missing == []


def test_the_command_lines_of_the_documentation_have_options_that_exist(declared):
    root, checked = Path(__file__).parents[2], 0
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = page.read_text("utf-8").replace("\\\n", " ")
        for name, line in re.findall(r"^(?:torchrun .*)?beliefmatch (\w+) (.*)$", text, re.MULTILINE):
            options = {option for parameter in declared[name].params for option in parameter.opts}
            given = set(re.findall(r"(?<!\S)--[\w-]+", line.partition("#")[0]))
            assert given <= options, f"{page.name}: {name} {given - options}"
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("columns", [40, 80])
def test_help_cuts_no_sentence_short(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", f"{columns}")
    assert main([]) == 0
    shown = capsys.readouterr().out.partition("Commands:")[2]
    assert "..." not in shown
    assert " ".join(shown.split()).endswith("the loss kernel and missing extras.")
    assert columns < 80 or [line.split()[0] for line in shown.strip().splitlines()] == COMMANDS


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
    ("command", "module", "extra"),
    [
        (QUICK, "sklearn", "sklearn"),
        (QUICK, "matplotlib", "report"),
        (["evaluate", "a.npz"], "jinja2", "report"),
        (["evaluate", "a.npz"], "plotly", "report"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, tmp_path, capsys, command, module, extra):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "beliefmatch.report.figures", raising=False)
    assert f'pip install "beliefmatch[{extra}]"' in refused([*command, "--out", f"{tmp_path / 'x'}"], capsys)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_one_line(name, capsys):
    assert "--nonsense" in refused([name, "--nonsense"], capsys)


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("compar", "compare"),
        ("train --epoch 3", "--epochs"),
        ("adapt --train-batchnorms", "--train-batchnorm"),
        ("compare --data cifar11", "cifar10"),
        ("compare --model preact_resnet19", "preact_resnet18"),
        ("compare --recipe cifarr", "cifar"),
        ("compare --methods sofmax", "softmax"),
        ("train --set training.epoch=3", "training.epochs"),
        ("reproduce tabel1", "table1"),
    ],
)
def test_a_mistyped_name_gets_the_nearest(line, nearest, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and nearest in err
    assert list(tmp_path.iterdir()) == []


LONG = "a" * 999
BAD_VALUES = {
    "compare": "--epochs=-3 --seeds=0 --seed=-1 --methods=softmax,magic --methods=softmax,softmax --methods= "
    "--precision=8 --jobs=0 --kl-weight=-1 --kl-weight=inf --out= --out=a.npz --out=a.npz/below "
    f"--out={LONG}",
    "compare --methods softmax": "--kl-weight=0.1",
    "train": "--method=softmax,ensemble --kl-weight=much --accelerator=abacus",
    "train --semi none": "--semi-weight=2",
    "predict nowhere x.png": "--out=x.txt --abstain=2 --risk=0",
    "predict nowhere x.png --risk 0.5": "--abstain=0.5",
    "adapt": "--model=.",
    "adapt --model x:y": "--test-features=x.npz",
    "adapt --features x.npz": "--model=timm:resnet18 --weights=w.pt --data=digits",
    "adapt --model x:y --data digits": "--kl-weight=small --kl-weight=-1 --prior= --seeds=0 --labels=old "
    "--validation=many --validation-from=moon --mean=0.5 --risk=2 --model-option=width --controls=magic "
    "--feature-batch=0 --epochs=0 --learning-rate=-1 --optimizer=sgd --choose-by=luck --precision=8",
    "evaluate a.npz": "--n-bins=0 --resamples=-1 --seed=-1 --risk=7 --ood=noise.npz --ood==noise.npz "
    "--ood=noise= --ood=misclassification=noise.npz --ood=x=noise.npz,a.npz --logits=scores "
    f"--targets=truth --images=pictures --class-names=no.txt --class-names=three.txt --out= --out=a.npz "
    f"--out={LONG}",
    "evaluate a.npz a.npz": "--ood=x=noise.npz --name=x",
    "evaluate a.npz --ood x=noise.npz": "--ood=x=noise.npz",
    "reproduce table1": "--scale=huge --seeds=0 --jobs=0 --out=",
}
"""Values that are refused, by the command that they come after; the line names the option."""
MISTAKES = [
    *(
        (f"{line} {value}", f"`{value.split('=')[0]}`")
        for line, of in BAD_VALUES.items()
        for value in of.split()
    ),
    ("compare --epochs many", "--epochs"),
    ("compare --out ' '", "`--out`"),
    ("compare --set training.epochs", "key=value"),
    ("train --method softmax --kl-weight 0.1", "kl_weight"),
    ("train --semi vat", "--labels"),
    ("predict nowhere x.png", "nowhere"),
    ("predict . x.png", "directory of a run"),
    ("adapt", "`--model`"),
    ("adapt --features nothing.npz", "nothing.npz"),
    ("adapt --model nowhere:make --data digits", "nowhere"),
    ("adapt --model digits --data digits", "`--weights`"),
    ("adapt --model x:y --size 32", "`--data`"),
    ("evaluate", "FILE"),
    ("evaluate missing.npz", "missing.npz"),
    ("evaluate .", "finished run"),
    ("evaluate noise.npz", "`--targets`"),
    ("evaluate a.npz --resamples many", "--resamples"),
    ("evaluate a.npz --targets-file no.npz", "no.npz"),
    *((f"evaluate a.npz {file}", file) for file in ("five.npz", "nan.npz", "no.npz")),
    *((f"evaluate a.npz --ood x={file}", file) for file in ("five.npz", "nan.npz", "no.npz")),
    ("report no.json", "no.json"),
    ("report .", "`RECORD`"),
    ("report a.npz", "`RECORD`"),
    ("reproduce table9", "`ID`"),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Files of predictions, good and bad, that commands are called with."""
    place, targets = tmp_path_factory.mktemp("inputs"), np.arange(20) % 4
    logits = np.random.default_rng(0).normal(size=(20, 4))
    np.savez(place / "a.npz", logits=logits, targets=targets, images=np.zeros((20, 3, 3)))
    np.savez(place / "noise.npz", logits=logits)
    np.savez(place / "five.npz", logits=np.zeros((20, 5)), targets=targets)
    np.savez(place / "nan.npz", logits=np.where(logits > 1, np.nan, logits), targets=targets)
    (place / "three.txt").write_text("a\nb\nc\n")
    return place


@pytest.mark.parametrize(("line", "words"), MISTAKES, ids=lambda text: text[:50])
def test_a_mistake_is_one_line_and_leaves_nothing(line, words, inputs, capsys, monkeypatch):
    monkeypatch.chdir(inputs)
    before = sorted(inputs.rglob("*"))
    assert words in refused(shlex.split(line), capsys)
    assert sorted(inputs.rglob("*")) == before


@pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="needs a directory that even root cannot write in"
)
def test_an_unwritable_directory_is_refused(capsys):
    assert "`--out` must be a directory to write in, got /proc/self (" in refused(
        [*QUICK, "--out", "/proc/self"], capsys
    )


def test_compare_writes_all_and_shows_one_table_the_findings_and_the_page(tmp_path, capsys):
    out = tmp_path / "new" / "place"
    line = [*QUICK, "--out", f"{out}", "--kl-weight", "0.003", "--seed", "4"]
    assert main(line) == 0
    shown, err = capsys.readouterr()
    assert err == ""  # no progress bar without a terminal
    assert "\x1b" not in shown
    assert "belief matching (λ = 0.003)" in shown and "OOD set noise: AUROC" in shown
    assert sorted(path.name for path in out.iterdir()) == PRODUCTS
    assert shown.split()[-1] == f"{out / 'report.html'}"
    record = ComparisonRecord.from_json((out / "comparison.json").read_text("utf-8"))
    assert record.seeds == [4]
    assert record.methods[1].runs[0].options == {"kl_weight": 0.003}
    assert record.settings["command"][:2] == ["beliefmatch", "compare"]
    assert main([*line, "--verbose"]) == 0  # finished runs are not repeated
    assert "Costs" not in shown and "Costs" in capsys.readouterr().out


def test_a_training_that_diverges_is_one_line(tmp_path, capsys, monkeypatch):
    broken = fails_in_training(FloatingPointError("fit: the loss of epoch 3 is nan."))
    monkeypatch.setattr("beliefmatch.experiments.run.fit", broken)
    assert refused([*QUICK, "--out", f"{tmp_path}"], capsys) == (
        "beliefmatch compare: the loss of epoch 3 is nan.\n"
    )


def test_a_bug_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr("beliefmatch.experiments.run.fit", fails_in_training(ValueError("a bug of ours")))
    with pytest.raises(ValueError, match="a bug of ours"):
        main([*QUICK, "--out", f"{tmp_path}"])


@pytest.fixture
def context(declared):
    """As of `beliefmatch adapt --kl-weight 1 --model x`."""
    return declared["adapt"].make_context("adapt", ["--kl-weight", "1", "--model", "x"])


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (ValueError("Loss: `kl_weight` must be x."), "adapt: `--kl-weight` must be x."),
        (ValueError("adapt: `kl_weights` must\n  be x."), "adapt: `--kl-weight` must be x."),
        (ValueError("config: `model.name` must be x."), "adapt: `--model` must be x."),
        (ValueError("config: `data.name` must be x."), "adapt: `data.name` must be x."),
        (ValueError("Loss: `magic` must be x."), "adapt: `magic` must be x."),
        (ValueError("Loss: no `kl_weight` here."), "adapt: no `kl_weight` here."),
        (TypeError("nothing named"), "adapt: nothing named"),
        (OSError(28, "No space left", "a/file"), "adapt: No space left: a/file"),
    ],
)
def test_an_error_names_the_command_and_the_option_as_typed(raised, line, context):
    with pytest.raises(UserError) as caught, user_errors(context, ValueError, TypeError, OSError):
        raise raised
    assert str(caught.value) == line


def test_other_errors_pass(context):
    with pytest.raises(KeyError), user_errors(context):
        raise KeyError("a bug")


@pytest.mark.parametrize(
    ("body", "environment", "out", "err"),
    [
        ("show('\u03bb')", {"PYTHONIOENCODING": "ascii"}, "?\n", ""),
        ("warnings.warn('mind the gap')", {}, "", "warning: mind the gap\n"),
    ],
    ids=["a terminal without Greek letters", "a warning without a place in our code"],
)
def test_what_a_command_prints_is_fit_for_its_terminal(body, environment, out, err):
    done = python(
        "import warnings; from beliefmatch.cli import app, doctor; from beliefmatch.cli.console import show\n"
        f"doctor.doctor = lambda: {body}\n"
        "app.run(['doctor'])",
        **environment,
    )
    assert (done.stdout, done.stderr) == (out, err)


def test_doctor_describes_the_installation(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name in ("beliefmatch", "torch", "numpy", "typer", "scikit-learn"):
        assert metadata.version(name) in shown
    assert "loss kernel" in shown
    assert "cpu" in shown


@pytest.mark.parametrize("columns", [40, 50])
def test_doctor_loses_nothing_in_a_narrow_terminal(columns, capsys, monkeypatch):
    monkeypatch.setattr("beliefmatch.cli.console._PLAIN_WIDTH", columns)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    values = "".join(shown.split())
    for extra in extras():
        assert extra.satisfied or "".join(extra.remedy.split()) in values


def test_doctor_prints_json(capsys):
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
