"""The contract of all commands: fast and complete help, exit codes, one line for each error of the user."""

import json
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import typer

from beliefmatch._environment import Extra, Package
from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure
from beliefmatch.cli import app, main
from beliefmatch.cli.console import UserError, findings, show, user_errors
from beliefmatch.data import DATASETS
from beliefmatch.experiments.config import RECIPES
from beliefmatch.models import MODELS
from commands import QUICK, python, refused

COMMANDS = list(app.COMMANDS)


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


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_documents_every_parameter(declared, name, is_terminal, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    assert main([name, "--help"]) == 0
    shown = re.sub(r"\x1b\[[\d;]*m|│", "", capsys.readouterr().out)
    assert not re.search(r"<\w+|[{}]", shown)  # types of Python, such as <str>
    for parameter in declared[name].params:
        is_argument = parameter.param_type_name == "argument"
        assert is_argument or f" {parameter.opts[0]} " in shown
        assert parameter.metavar is None or parameter.metavar in shown
        assert len(parameter.help.split()) >= 4 and parameter.help.endswith(".")


@pytest.mark.parametrize("columns", [40, 80])
def test_the_list_of_commands_is_not_truncated(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", f"{columns}")
    assert main([]) == 0
    shown = capsys.readouterr().out.partition("Commands:")[2]
    assert "..." not in shown
    assert " ".join(shown.split()).endswith("their loss kernels and missing extras.")
    assert columns < 80 or [line.split()[0] for line in shown.strip().splitlines()] == COMMANDS


def test_help_names_every_recipe_dataset_and_network(declared):
    known = {"recipe": RECIPES, "data": DATASETS, "model": MODELS}
    for parameter in declared["train"].params:
        words = re.findall(r"[\w-]+", parameter.help or "")
        assert set(known.get(parameter.name, ())) <= set(words)


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
    ],
)
def test_a_missing_extra_is_named(monkeypatch, tmp_path, capsys, command, module, extra):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert f'pip install "beliefmatch[{extra}]"' in refused([*command, "--out", f"{tmp_path / 'x'}"], capsys)
    assert not (tmp_path / "x").exists()


def test_a_mistyped_command_gets_the_nearest(capsys):
    assert main(["compar"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "compare" in err


@pytest.mark.parametrize(
    "line", ["adapt --seeds x1", "adapt --seeds=x1", "train --epochs x1", "predict r --workers x1"]
)
def test_a_value_that_cannot_be_parsed_is_shown(line, capsys):
    assert "'x1'" in refused(line.split(), capsys)


def test_an_option_without_its_value_names_the_command(capsys):
    assert "--model" in refused(["adapt", "--model"], capsys)


LONG = "a" * 999
FEW_LABELS = "--recipe semi-digits --labels 30 --limit 150 --set ood=[] --out new"
BAD_VALUES = {
    "compare": "--epochs=-3 --seeds=0 --seed=-1 --methods=softmax,magic --methods=softmax,softmax --methods= "
    "--precision=8 --jobs=0 --kl-weight=-1 --kl-weight=inf --out= --out=a.npz --out=a.npz/below "
    f"--out={LONG}",
    "compare --methods softmax": "--kl-weight=0.1",
    "train": "--method=softmax,ensemble --kl-weight=much --accelerator=abacus",
    "train --semi none": "--semi-weight=2",
    **{
        f"{command} {FEW_LABELS}": "--semi=vta --labels=5 --labels=99999 --prior-from=nowhere"
        for command in ("train", "compare")
    },
    "predict nowhere x.png": "--out=x.txt --abstain=2 --risk=0",
    "predict nowhere x.png --risk 0.5": "--abstain=0.5",
    "adapt": "--model=.",
    "adapt --model x:y": "--test-features=x.npz",
    "adapt --features x.npz": "--model=timm:resnet18 --weights=w.pt --data=digits --head=fc --data-dir=d "
    "--model-option=a=1 --limit=9 --size=8 --margin=1.5 --mean=0 --std=1 --validation-from=test "
    "--cache-dir=c --cache-size=1GB --device=cpu --precision=32 --feature-batch=5 --workers=0 "
    "--text-column=a --label-column=b --epochs=3 --heads=1",
    "adapt --features x.npz --protocol paper": "--heads=4 --weight-decay=0.1",
    "adapt --model x:y --data digits": "--kl-weight=small --kl-weight=-1 --prior= --seeds=0 --labels=old "
    "--validation=many --validation-from=moon --mean=0.5 --risk=2 --model-option=width --controls=magic "
    "--feature-batch=0 --epochs=0 --weight-decay=none --weight-decay=0 --choose=luck --protocol=mine "
    "--heads=-1 --seeds=2 --precision=8",
    "evaluate a.npz": "--n-bins=0 --n-bins=10001 --resamples=-1 --resamples=100 --resamples=100001 --seed=-1 "
    "--risk=7 --ood=noise.npz --ood==noise.npz --ood=noise= --ood=misclassification=noise.npz "
    "--ood=x=noise.npz,a.npz --logits=scores --targets=truth --images=pictures --class-names=no.txt "
    f"--class-names=three.txt --out= --out=a.npz --out={LONG}",
    "evaluate a.npz a.npz": "--ood=x=noise.npz --name=x",
    "evaluate a.npz --ood x=noise.npz": "--ood=x=noise.npz",
    "reproduce table1": "--scale=huge --seeds=0 --jobs=0 --out=",
}
"""Values that are refused, by the command that they follow; the error names the option."""
URL = "s3://bucket/x.csv"
MISTAKES = [
    *((f"{name} --nonsense", "--nonsense") for name in COMMANDS),
    *(
        (f"{line} {value}", f"`{value.split('=')[0]}`")
        for line, of in BAD_VALUES.items()
        for value in of.split()
    ),
    # the nearest name
    ("train --epoch 3", "--epochs"),
    ("adapt --train-bachnorm", "--train-batchnorm"),
    ("compare --data cifar11", "did you mean cifar10?"),
    ("compare --model preact_resnet19", "did you mean preact_resnet18?"),
    ("compare --recipe cifarr", "did you mean cifar?"),
    ("compare --methods sofmax", "did you mean softmax?"),
    ("compare --methods belief_matching:kl_wieght=1", "did you mean `kl_weight`?"),
    # options of a method that it does not have; the error lists those that it has
    ("compare --methods softmax:foo=1", "has none"),
    ("compare --methods softmax,mc_dropout:foo=1", "rate, where, samples"),
    ("compare --methods belief_matching:semi_foo=1", "semi, semi_weight, semi_ramp_up"),
    ("train --method belief_matching:foo=1", "kl_weight, prior"),
    ("adapt --features x.npz --controls softmax:foo=1", "softmax, label_smoothing, evidential"),
    ("train --set training.epoch=3", "did you mean `training.epochs`?"),
    ("train --set epochs", "`--set`"),
    ("reproduce tabel1", "did you mean table1?"),
    # values of the wrong kind, options and arguments that are missing, files that are missing or bad
    ("compare --epochs many", "--epochs"),
    ("compare --out ' '", "`--out`"),
    ("compare --set training.epochs", "key=value"),
    ("train --method softmax --kl-weight 0.1", "kl_weight"),
    ("train --semi vat", "--labels"),
    *((f"{name} {FEW_LABELS} --semi-weight 2", "`--semi`") for name in ("train", "compare")),
    *((f"{name} {FEW_LABELS} --prior-strength 2", "`--prior-from`") for name in ("train", "compare")),
    *((f"{name} {FEW_LABELS} --prior-from x --semi vat", "`--semi`") for name in ("train", "compare")),
    (f"train {FEW_LABELS} --semi vat --method evidential", "`--semi`"),
    (f"compare {FEW_LABELS} --semi vat --methods evidential", "`--semi`"),
    ("predict nowhere x.png", "nowhere"),
    ("predict . x.png", "directory of a run"),
    ("adapt", "`--model`"),
    ("adapt --model nosuch --data digits", "`--model`"),
    ("adapt --features nothing.npz", "nothing.npz"),
    ("adapt --model nowhere:make --data digits", "nowhere"),
    ("adapt --model digits --data digits", "`--weights`"),
    ("adapt --model x:y --size 32", "`--data`"),
    ("adapt --features x.npz --compile", "`--compile`"),
    ("adapt --features x.npz --skip-corrupt", "`--skip-corrupt`"),
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
    # a URL where only a path can be written
    *(
        (f"{line} --out {URL}", f"`--out` must be a path of this machine, got the URL {URL}")
        for line in (
            *("evaluate a.npz", "adapt --model x --data digits", "votes a.npz", "predict run a.npz"),
            *("report a.json", "export run"),
        )
    ),
    (f"votes a.npz --multiannotator {URL}", "`--multiannotator` must be a path of this machine"),
    ("compare --out s3://", "`--out` must name a place"),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Files of predictions, good and bad, that commands are called with."""
    directory, targets = tmp_path_factory.mktemp("inputs"), np.arange(20) % 4
    logits = np.random.default_rng(0).normal(size=(20, 4))
    np.savez(directory / "a.npz", logits=logits, targets=targets, images=np.zeros((20, 3, 3)))
    np.savez(directory / "noise.npz", logits=logits)
    np.savez(directory / "five.npz", logits=np.zeros((20, 5)), targets=targets)
    np.savez(directory / "nan.npz", logits=np.where(logits > 1, np.nan, logits), targets=targets)
    (directory / "three.txt").write_text("a\nb\nc\n")
    return directory


@pytest.mark.parametrize(("line", "words"), MISTAKES, ids=lambda text: text[:60])
def test_a_mistake_is_one_line_and_writes_nothing(line, words, inputs, capsys, monkeypatch):
    monkeypatch.chdir(inputs)
    before = sorted(inputs.rglob("*"))
    assert words in refused(shlex.split(line), capsys)
    assert sorted(inputs.rglob("*")) == before


@pytest.mark.parametrize("command", ["train", "compare"])
def test_hardware_that_this_machine_lacks_is_refused(command, inputs, monkeypatch, capsys):
    monkeypatch.chdir(inputs)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert "`--accelerator`" in refused([command, "--accelerator", "cuda", "--out", "new"], capsys)
    err = refused([command, "--accelerator", "cpu", "--devices", "99", "--out", "new"], capsys)
    assert "`--devices` must be at most 4" in err
    assert not (inputs / "new").exists()


@pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="needs a directory that even root cannot write in"
)
def test_a_directory_that_cannot_be_written_to_is_refused(capsys):
    err = refused([*QUICK, "--out", "/proc/self"], capsys)
    assert "`--out`" in err and "/proc/self (" in err


@pytest.fixture
def context(declared):
    """The context of `beliefmatch adapt --kl-weight 1 --model x`."""
    return declared["adapt"].make_context("adapt", ["--kl-weight", "1", "--model", "x"])


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (fail("Loss", "`kl_weight` must be x."), "adapt: `--kl-weight` must be x."),
        (fail("adapt", "`kl_weights` must\n  be x."), "adapt: `--kl-weight` must be x."),
        (fail("config", "`model.name` must be x.", TypeError), "adapt: `--model` must be x."),
        (fail("config", "`data.name` must be x."), "adapt: `data.name` must be x."),
        (fail("adapt", "`model['a']` must be x."), "adapt: `--model` must be x."),
        (fail("Loss", "`magic` must be x."), "adapt: `magic` must be x."),
        (fail("Loss", "no `kl_weight` here."), "adapt: no `--kl-weight` here."),
        (fail("Loss", "x has no option `kl_weight`."), "adapt: x has no option `kl_weight`."),
        (fail("x", "`a` must be as in `model`."), "adapt: `a` must be as in `model`."),
        (fail("x", "`model` must be False for y."), "adapt: `--model` must not be given for y."),
        (fail("x", 'set `corrupt` to "skip".'), "adapt: give `--skip-corrupt`."),
        (fail("x", "`model` must be x.", EnvironmentFailure), "adapt: `--model` must be x."),
        (ValueError("line 3: nothing of ours"), "adapt: line 3: nothing of ours"),
        (TypeError("nothing named"), "adapt: nothing named"),
        (OSError(28, "No space left", "a/file"), "adapt: No space left: a/file"),
    ],
)
def test_an_error_names_the_command_and_the_option(raised, line, context):
    with pytest.raises(UserError) as caught, user_errors(context, ValueError, TypeError, OSError):
        raise raised
    assert str(caught.value) == line


def test_other_errors_are_not_caught(context):
    with pytest.raises(KeyError), user_errors(context):
        raise KeyError("a bug")


@pytest.mark.parametrize(
    ("body", "environment", "out", "err"),
    [
        ("show('\u03bb')", {"PYTHONIOENCODING": "ascii"}, "?\n", ""),
        ("warnings.warn('mind the gap')", {}, "", "warning: mind the gap\n"),
    ],
    ids=["a terminal without Greek letters", "a warning without a line of code"],
)
def test_output_suits_the_terminal(body, environment, out, err):
    done = python(
        "import warnings; from beliefmatch.cli import app, doctor; from beliefmatch.cli.console import show\n"
        f"doctor.doctor = lambda: {body}\n"
        "app.run(['doctor'])",
        **environment,
    )
    assert (done.stdout, done.stderr) == (out, err)


def test_findings_replace_control_characters_only(capsys):
    show(findings(["49\u00a0% of \x1b[31mred"]))
    assert capsys.readouterr().out.rstrip() == "• 49\u00a0% of \ufffd[31mred"


# doctor


def test_doctor_describes_the_installation(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name in ("beliefmatch", "torch", "numpy", "typer", "scikit-learn"):
        assert metadata.version(name) in shown
    assert "loss on cpu" in shown and "loss on cuda" in shown
    assert "cpu" in shown


@pytest.fixture
def one_extra_missing(monkeypatch):
    """Two extras, one of which has a package that is not installed."""
    found = (
        Extra("images", (Package("pillow", ">=10", "11.0"),)),
        Extra("report", (Package("matplotlib", ">=3.8", "3.9"), Package("jinja2", ">=5", None))),
    )
    monkeypatch.setattr("beliefmatch.cli.doctor.extras", lambda: found)


@pytest.mark.parametrize("columns", [40, 50])
@pytest.mark.usefixtures("one_extra_missing")
def test_doctor_is_complete_in_a_narrow_terminal(columns, capsys, monkeypatch):
    monkeypatch.setattr("beliefmatch.cli.console._PLAIN_WIDTH", columns)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    values = "".join(shown.split()).replace("pipinstalltriton", "")  # where it is missing
    assert "jinja2missing(needs>=5)" in values
    assert values.count("pipinstall") == 1 and 'pipinstall"beliefmatch[report]"' in values


@pytest.mark.usefixtures("one_extra_missing")
def test_doctor_prints_json(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["torch"]["devices"][0] == "cpu"
    assert found["torch"]["threads"] >= 1
    assert {"cpu", "cuda"} <= set(found["torch"]["kernels"])
    assert found["torch"]["problem"] is None
    assert [(extra["name"], extra["satisfied"], extra["remedy"]) for extra in found["extras"]] == [
        ("images", True, None),
        ("report", False, 'pip install "beliefmatch[report]"'),
    ]
    assert [package["installed"] for package in found["extras"][1]["packages"]] == ["3.9", None]


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


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["evaluate", "absent.npz"], 2)])
def test_the_package_runs_as_a_module_with_the_exit_code_of_the_command(arguments, code):
    line = [sys.executable, "-m", "beliefmatch", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == code and len(f"{done.stdout}{done.stderr}".splitlines()) == 1
