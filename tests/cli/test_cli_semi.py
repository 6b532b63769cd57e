"""What a user types to learn from unlabelled images, and what is answered."""

import json

import pytest
from test_cli_train import refused

from beliefmatch.cli import main
from beliefmatch.experiments.config import config_from
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.yaml_files import read_yaml

SHORT = [
    *("--epochs", "1", "--limit", "150", "--labels", "30", "--set", "training.warmup=[]"),
    *("--set", "ood=[]", "--set", "model.options.width=8", "--recipe", "semi-digits"),
]
VAT = ["--semi", "vat", "--semi-weight", "0.4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("semi") / "vat"
    assert main(["train", *SHORT, *VAT, "--out", f"{out}"]) == 0
    return out


def record_of(out) -> RunRecord:
    return RunRecord.from_json((out / "record.json").read_text("utf-8"))


def test_a_run_with_few_labels_is_kept_and_shown(run, capsys):
    record = record_of(run)
    assert (record.config["semi"]["kind"], record.config["semi"]["weight"]) == ("vat", 0.4) and record.config[
        "data"
    ]["labels"] == 30
    assert record.curves[0]["consistency"][0] > 0
    assert main(["train", *SHORT, *VAT, "--out", f"{run}"]) == 0
    assert "belief matching with 30 labels and vat, seed 0" in capsys.readouterr().out


def test_a_run_can_be_judged_and_teach(run, tmp_path, capsys):
    out = tmp_path / "student"
    taught = ["--prior-from", f"{run}", "--prior-strength", "2"]
    assert main(["train", *SHORT, *taught, "--out", f"{out}"]) == 0
    record = record_of(out)
    assert record.config["teacher"]["strength"] == 2.0
    assert record.config["teacher"]["fingerprint"] == record_of(run).fingerprint
    assert main(["evaluate", f"{out}", "--out", f"{tmp_path / 'judged'}"]) == 0
    assert "a teacher of 2 votes" in capsys.readouterr().out


def test_the_whole_plan_is_shown_and_can_be_read_back(tmp_path, capsys):
    arguments = ["train", *SHORT, "--semi", "pi", "--method", "softmax", "--out", f"{tmp_path / 'no'}"]
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    (tmp_path / "config.yaml").write_text(shown)
    config = config_from(read_yaml(tmp_path / "config.yaml"))
    assert config.semi is not None and config.semi.kind == "pi" and config.data.labels == 30
    assert "steps of one network 3 of" in shown  # 150 images in batches of 50
    assert not (tmp_path / "no").exists()


def test_none_switches_off_what_a_recipe_switches_on(tmp_path, capsys):
    data = ["--data", "digits", "--model", "digits", "--recipe", "semi-vat", "--labels", "50"]
    small = ["--set", "data.validation=0.2", "--set", "ood=[]", "--dry-run", "--set", "data.limit=200"]
    for flag, expected in (([], "vat"), (["--semi", "none"], None), (["--semi", "pi"], "pi")):
        assert main(["train", *data, *small, *flag, "--out", f"{tmp_path / 'no'}"]) == 0
        (tmp_path / "config.yaml").write_text(capsys.readouterr().out)
        semi = config_from(read_yaml(tmp_path / "config.yaml")).semi
        assert (semi.kind if semi else None) == expected


def test_kinds_are_compared_in_one_table(tmp_path, capsys):
    methods = "softmax,softmax:semi=pi:semi_weight=0.5,belief_matching:semi=vat:semi_weight=0.1"
    out = tmp_path / "compared"
    options = ["--methods", methods, "--seeds", "1", "--jobs", "1", "--out", f"{out}"]
    assert main(["compare", *SHORT, *options]) == 0
    found = json.loads((out / "comparison.json").read_text("utf-8"))
    labels = [
        "softmax",
        "softmax (semi = pi, weight = 0.5)",
        "belief matching (λ = 0.01, semi = vat, weight = 0.1)",
    ]
    assert [method["label"] for method in found["methods"]] == labels
    shown = " ".join(capsys.readouterr().out.split())
    assert "semi = pi" in shown and (out / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--semi", "vta"], "`--semi` must be one of vat, pi, none, got 'vta'"),
        (["--semi", "vat", "--labels", "5"], "`--labels` must be one for each of 10 classes at least"),
        (["--semi", "vat", "--labels", "99999"], "and below the 150 training images, got 99999"),
        (["--semi", "vat", "--method", "evidential"], "for `semi`, got evidential"),
        (["--prior-from", "nowhere"], "`--prior-from` must be the directory of a finished run, got nowhere"),
        (["--semi-weight", "2"], "`--semi` must be given"),
        (["--prior-strength", "2"], "`--prior-from` must be given"),
        (["--prior-from", "nowhere", "--semi", "vat"], "must not come with a teacher, got"),
    ],
)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_what_cannot_be_is_told_in_one_line(tmp_path, capsys, command, flags, said):
    if command == "compare" and "--method" in flags:
        flags = [*flags[:-2], "--methods", flags[-1]]
    out = tmp_path / "out"
    assert said in refused([command, *SHORT, *flags, "--out", f"{out}"], capsys)
    assert not out.exists()


def test_labels_are_needed(tmp_path, capsys):
    out = ["--out", f"{tmp_path / 'out'}"]
    assert "such as --labels 4000" in refused(["train", "--semi", "vat", *out], capsys)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_flags_are_explained(command, capsys):
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "--semi vat|pi|none",
        "--semi-weight",
        "--labels",
        "--prior-from RUN",
        "--prior-strength",
        "a label is one",
    ):
        assert words in shown
