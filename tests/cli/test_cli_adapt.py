"""`beliefmatch adapt` from end to end: the network of a run, a user's own network, stored features."""

import csv
import io
import json
import math
import runpy
import shutil
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import nn

from beliefmatch import Belief
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.cli import app, main
from beliefmatch.cli.adapt import _config
from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, FeatureAdaptConfig, ImageAdaptConfig
from beliefmatch.experiments.adapted_directory import adapted_network
from beliefmatch.experiments.build import trained_network
from beliefmatch.experiments.predict import none_of_these, set_threshold
from beliefmatch.metrics import error, nll
from commands import refused

NETWORK = "nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))"
HEADLESS = "nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())"
SHORT = ["--kl-weight", "0.01,0.001", "--weight-decay", "0.01"]
PAPER = ["--protocol", "paper", "--epochs", "5", "--kl-weight", "0.01,0.001"]


def record_of(directory) -> AdaptRecord:
    return AdaptRecord.from_json((directory / "record.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A directory with networks of the user's own, their weights, and other files."""
    workspace = tmp_path_factory.mktemp("adapt")
    for name, code in (("own_network", NETWORK), ("headless_network", HEADLESS)):
        (workspace / f"{name}.py").write_text(f"from torch import nn\ndef make():\n    return {code}\n")
        network = runpy.run_path(f"{workspace / name}.py")["make"]()
        save_file(network.state_dict(), workspace / f"{name}.safetensors")
    save_file({"1.weight": torch.zeros(24, 64)}, workspace / "half.safetensors")
    np.savez(workspace / "large.npz", images=np.zeros((40, 9, 9, 3), np.uint8), labels=np.arange(40) % 2)
    return workspace


@pytest.fixture(scope="module")
def run(workspace):
    out = workspace / "run"
    quick = ["--epochs", "3", "--set", "training.warmup=[]", "--method", "softmax", "--ood", "noise"]
    assert main(["train", *quick, "--out", f"{out}"]) == 0
    return out


@pytest.fixture(scope="module")
def cache(workspace):
    return ["--cache-dir", f"{workspace / 'cache'}"]


class Adapted(NamedTuple):
    directory: Path
    line: list[str]
    shown: str
    compiled: list[nn.Module]


@pytest.fixture(scope="module")
def adapted(run, workspace, cache):
    """The run after adaptation, with the command, its output and the modules that it compiled."""
    out, shown, compiled = workspace / "adapted", io.StringIO(), []
    line = ["adapt", "--model", f"{run}", "--ood", "noise", "--compile", *SHORT, *cache]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(shown):
        patch.setattr(torch, "compile", lambda module, **_: compiled.append(module) or module)
        assert main([*line, "--out", f"{out}"]) == 0
    return Adapted(out, line, shown.getvalue(), compiled)


def config_of(line: str):
    """The configuration that a command line amounts to."""
    commands = typer.main.get_command(app._application(["adapt"])).commands  # type: ignore[attr-defined]
    return _config(commands["adapt"].make_context("adapt", line.split()))


def test_without_options_the_configuration_has_its_defaults():
    assert config_of("--model m") == AdaptRunConfig(ImageAdaptConfig(model="m"))
    assert config_of("--features f") == AdaptRunConfig(FeatureAdaptConfig(train="f"))


def test_each_option_changes_its_setting():
    data = DataConfig(
        name="digits", directory="d", validation=0.3, limit=9, split_seed=4, size=8, margin=1.5,
        mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), corrupt="skip", workers=0, augment="none",
    )  # fmt: skip
    images = ImageAdaptConfig(
        model="m", options={"width": 3}, weights="w", head="fc", compile=True, cache_dir="c",
        cache_size="1GB", device="cuda", precision="32", validation_from="test", batch_size=5, data=data,
    )  # fmt: skip
    fit = AdaptConfig(
        labels="new", kl_weights=(0.1, 1.0), priors=(1.0, 2.0), epochs=7, laplace=True,
        controls=("softmax",), weight_decays=(0.1, 0.5), batchnorm=True, risks=(0.2,),
    )  # fmt: skip
    line = (
        "--data digits --data-dir d --validation 0.3 --limit 9 --split-seed 4 --size 8 --margin 1.5 "
        "--mean 0.1,0.2,0.3 --std 1,2,3 --skip-corrupt --workers 0 "
        "--model m --model-option width=3 --weights w --head fc --compile --cache-dir c --cache-size 1GB "
        "--device cuda --precision 32 --validation-from test --feature-batch 5 "
        "--labels new --kl-weight 0.1,1 --prior 1,2 --epochs 7 --laplace "
        "--controls softmax --weight-decay 0.1,0.5 --train-batchnorm --risk 0.2 --ood noise"
    )
    assert config_of(line) == AdaptRunConfig(images, fit, ("noise",))
    more = config_of("--features f --heads 5 --choose best --background b.npz --no-vote-scale")
    fit = AdaptConfig(heads=5, choose="best", vote_scale=False)
    assert more == AdaptRunConfig(FeatureAdaptConfig(train="f"), fit, background="b.npz")
    paper = config_of("--model m --protocol paper --seeds 3").adapt_config
    assert paper == AdaptConfig(protocol="paper", seeds=(0, 1, 2))


def test_a_run_is_adapted_on_its_own_images(run, adapted):
    record = record_of(adapted.directory)
    assert record.labels == "same"
    assert record.scored_on == "test"
    assert record.command == ["beliefmatch", *adapted.line, "--out", f"{adapted.directory}"]
    kinds = ["untouched", "softmax", "label smoothing", "belief matching"]
    assert [label for label in record.row_labels if "+" not in label] == kinds
    assert {"untouched + temperature", "softmax + temperature"} <= {*record.row_labels}
    before = json.loads((run / "record.json").read_text("utf-8"))["test"]
    assert record.scored[0].scores.error == pytest.approx(before["error"])
    assert record.scored[0].scores.nll == pytest.approx(before["nll"], rel=1e-4)
    assert [one.name for one in record.scored[0].ood] == ["noise"]
    assert len(adapted.compiled) == 1  # once for all sets


def test_only_the_head_is_new(run, adapted):
    old = adapted_network(adapted.directory).network.state_dict()
    new = load_file(adapted.directory / "model.safetensors")
    assert set(old) == set(new)
    assert all(torch.equal(old[name], new[name]) for name in new)
    before = trained_network(f"{run}").network.state_dict()
    changed = {name for name in new if not torch.equal(new[name], before[name])}
    head = record_of(adapted.directory).head
    assert head is not None
    assert changed == {f"{head.name}.weight", f"{head.name}.bias"}


def test_the_stored_predictions_have_the_scores_of_the_record(adapted):
    stored = np.load(adapted.directory / "predictions" / "test.npz", allow_pickle=False)
    probs = torch.from_numpy(stored["logits"]).double().softmax(1)
    targets = torch.from_numpy(stored["targets"])
    record = record_of(adapted.directory)
    scores = record.delivered(record.label).scores
    assert error(probs, targets) == pytest.approx(scores.error)
    assert nll(probs, targets) == pytest.approx(scores.nll, rel=1e-4)


def test_a_second_time_no_features_are_computed_and_verbose_shows_more(
    adapted, tmp_path, monkeypatch, capsys
):
    def computed(*arguments, **options):
        raise AssertionError("features were computed again")

    monkeypatch.setattr("beliefmatch.adaptation.features._computed", computed)
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    assert main([*adapted.line, "--verbose", "--out", f"{tmp_path}"]) == 0
    assert record_of(tmp_path).scored == record_of(adapted.directory).scored
    shown = capsys.readouterr().out
    assert "Every λ" not in adapted.shown and "Every λ" in shown
    assert "•" in adapted.shown and shown.split()[-1] == f"{tmp_path / 'report.html'}"
    assert adapted.shown.split()[-1] == f"{adapted.directory / 'report.html'}"


def test_predict_evaluate_and_report_take_the_directory(adapted, tmp_path, capsys):
    from sklearn.datasets import load_digits

    images = (load_digits().images[:7] * 15).astype(np.uint8)  # type: ignore[attr-defined]
    np.save(tmp_path / "images.npy", images)
    directory, answers = f"{adapted.directory}", tmp_path / "answers.csv"
    assert main(["predict", directory, f"{tmp_path / 'images.npy'}", "--out", f"{answers}"]) == 0
    rows = list(csv.DictReader(answers.read_text("utf-8").splitlines()))
    assert len(rows) == 7
    assert all(float(row["mutual_information"]) > 0 for row in rows)
    network = adapted_network(adapted.directory)
    how = network.preprocessing
    inputs = (torch.from_numpy(images)[:, None].float() / 255 - how.mean[0]) / how.std[0]
    best = network.network.predict(inputs).probs.max(1)
    assert [int(row["predicted"]) for row in rows] == best.indices.tolist()
    assert [float(row["confidence"]) for row in rows] == pytest.approx(best.values.tolist(), rel=1e-4)

    assert main(["evaluate", directory, "--resamples", "1000", "--out", f"{tmp_path / 'scored'}"]) == 0
    scored = json.loads((tmp_path / "scored" / "adapted.json").read_text("utf-8"))
    record = record_of(adapted.directory)
    expected = record.delivered(record.label).scores.error
    assert scored["scores"]["error"]["value"] == pytest.approx(expected)

    assert main(["report", directory, "--out", f"{tmp_path / 'again.html'}"]) == 0
    assert (tmp_path / "again.html").read_bytes() == (adapted.directory / "report.html").read_bytes()


def test_dry_run_shows_the_cost_and_writes_nothing(run, tmp_path, capsys):
    out, cache = tmp_path / "out", tmp_path / "cache"
    line = ["adapt", "--model", f"{run}", "--cache-dir", f"{cache}", "--out", f"{out}", "--dry-run"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "train 898, validation 359, test 540" in shown
    assert "898 to fit on, 359 to choose on, 540 to report on" in shown
    assert "inputs: 1 x 8 x 8, mean 0" in shown
    assert f"{cache}" in shown
    assert not out.exists()
    assert not cache.exists()


@pytest.mark.filterwarnings("ignore:adapt. these heads have not converged")
def test_an_own_network_gets_a_head_for_other_classes(workspace, cache, tmp_path, monkeypatch, capsys):
    """With half of the test images for validation, and two seeds of the paper's protocol."""
    monkeypatch.chdir(workspace)
    line = ["adapt", "--model", "own_network:make", "--weights", "own_network.safetensors", *PAPER, *cache]
    line += ["--data", "digits", "--labels", "new", "--seeds", "2", "--validation-from", "test"]
    line += ["--mean", "0", "--std", "1"]
    assert main([*line, "--out", f"{tmp_path}"]) == 0
    record = record_of(tmp_path)
    assert record.labels == "new"
    assert record.row_labels == ["softmax", "label smoothing", "belief matching"]
    assert {one.seed for one in record.scored} == {0, 1}
    rows = {one.set: one.rows for one in record.features}
    assert rows["validation"] == rows["test"] == 270
    assert "±" in capsys.readouterr().out
    again = adapted_network(tmp_path).network.predict(torch.rand(3, 1, 8, 8)).probs
    assert again.shape == (3, 10)


@pytest.fixture
def stored(tmp_path):
    rng, targets = np.random.default_rng(0), np.arange(300) % 3
    rows = rng.normal(size=(300, 5)).astype(np.float32) + 4 * np.eye(3, 5, dtype=np.float32)[targets]
    np.savez(tmp_path / "train.npz", features=rows[:200], targets=targets[:200])
    np.savez(tmp_path / "validation.npz", features=rows[200:250], targets=targets[200:250])
    np.savez(tmp_path / "test.npz", features=rows[250:], targets=targets[250:])
    np.savez(tmp_path / "far.npz", features=-rows[:40])
    return tmp_path


def test_stored_features_are_enough(stored, capsys):
    out = stored / "out"
    line = ["adapt", "--features", f"{stored / 'train.npz'}", "--validation", f"{stored / 'validation.npz'}"]
    line += ["--test-features", f"{stored / 'test.npz'}", "--ood", f"far={stored / 'far.npz'}"]
    assert main([*line, *SHORT, "--out", f"{out}"]) == 0
    record = record_of(out)
    assert record.head is None
    assert record.classes == 3
    assert record.delivered(record.label).scores.error < 0.1
    assert not (out / "model.safetensors").exists()
    assert load_file(out / "head.safetensors")["weight"].shape == (3, 5)
    capsys.readouterr()
    line = ["predict", f"{out}", f"{stored / 'x.npy'}", "--out", f"{stored / 'p.csv'}"]
    assert "features alone were adapted" in refused(line, capsys)


def test_votes_scale_the_belief_unless_that_is_declined(stored, capsys):
    rng, logits = np.random.default_rng(3), {}
    for name in ("train", "validation", "test"):
        with np.load(stored / f"{name}.npz") as file:
            rows, means = file["features"], 0.2 + 2 * np.eye(3)[file["targets"]]
        counts = np.stack([rng.multinomial(5, rng.dirichlet(one)) for one in means]).astype(np.float32)
        np.savez(stored / f"{name}.npz", features=rows, counts=counts)
    for name, more in (("scaled", []), ("plain", ["--no-vote-scale"])):
        out = stored / name
        line = ["--test-features", f"{stored / 'test.npz'}", *SHORT, *more, "--verbose", "--out", f"{out}"]
        assert main([*features_line(stored)[:-2], *line]) == 0
        with np.load(out / "predictions" / "test.npz") as file:
            logits[name] = torch.from_numpy(file["logits"]).double()
    record, plain = record_of(stored / "scaled"), record_of(stored / "plain")
    assert plain.vote_scale is None and plain.adapt_config["vote_scale"] is False
    scale = record.vote_scale.scale
    assert f"scale {scale:.4g}" in capsys.readouterr().out
    assert record.vote_scale.nll < record.vote_scale.nll_before
    shift = logits["scaled"] - logits["plain"]
    torch.testing.assert_close(shift, torch.full_like(shift, math.log(scale)), rtol=0, atol=1e-5)
    assert record.delivered(record.label).scores.nll == pytest.approx(plain.delivered(plain.label).scores.nll)
    page = (stored / "scaled" / "report.html").read_text("utf-8")
    assert "precision of the belief was fitted to the votes" in page


def test_findings_are_few_and_the_verdict_is_first(adapted):
    shown = [line for line in adapted.shown.splitlines() if line.startswith("•")]
    assert 3 <= len(shown) <= 4
    assert shown[0].startswith(("• Keep the", "• Do not keep the", "• Choose by what counts"))
    assert adapted.shown.index(shown[0]) < adapted.shown.index("test examples")


def features_line(stored, *more: str) -> list[str]:
    line = ["adapt", "--features", f"{stored / 'train.npz'}", "--validation", f"{stored / 'validation.npz'}"]
    return [*line, "--out", f"{stored / 'out'}", *more]


def test_a_missing_laplace_package_is_one_line_and_writes_nothing(stored, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "laplace", None)
    assert "beliefmatch[laplace]" in refused(features_line(stored, "--laplace"), capsys)
    assert not (stored / "out").exists()


def test_a_dry_run_of_features_lists_their_rows(stored, capsys):
    assert main(features_line(stored, "--dry-run")) == 0
    assert "rows: train 200, validation 50\n" in capsys.readouterr().out
    assert not (stored / "out").exists()


@pytest.mark.parametrize("error", [ValueError("adapt: `train` must be other."), KeyboardInterrupt()])
def test_what_fails_or_is_stopped_leaves_no_directory_and_prints_no_warnings(
    stored, error, monkeypatch, capsys
):
    def stopped(*arguments, **options):
        assert not (stored / "new").exists()  # so that a signal at this moment leaves nothing either
        warnings.warn("adapt: odd", UserWarning, stacklevel=1)
        raise error

    monkeypatch.setattr("beliefmatch.experiments.adapt_job.refit", stopped)
    line = [*features_line(stored)[:-1], f"{stored / 'new' / 'out'}"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code = main(line)
    out, err = capsys.readouterr()
    expected = (2, 1) if isinstance(error, ValueError) else (130, 1)
    assert (code, err.count("\n")) == expected and "odd" not in err and out == ""
    assert not (stored / "new").exists()


def test_an_adaptation_is_replaced_only_by_one_of_the_same_configuration(stored, capsys):
    def line(*more):
        return features_line(stored, *more, "--test-features", f"{stored / 'test.npz'}", *SHORT)

    out = stored / "out"
    assert main(line()) == main(line("--verbose")) == 0
    before = (out / "record.json").read_bytes()
    capsys.readouterr()
    for other in (["--choose", "best"], ["--split-seed", "3"], ["--ood", f"far={stored / 'far.npz'}"]):
        for more in ([], ["--dry-run"]):
            assert "`--out` must be new, or hold" in refused(line(*other, *more), capsys)
    assert (out / "record.json").read_bytes() == before
    (out / "record.json").write_text('{"schema": "beliefmatch.adaptation/1"}')
    assert "`--out` must be new" in refused(line(), capsys)
    (out / "record.json").write_text("{")  # neither of ours nor of any use
    assert main(line()) == 0


@pytest.mark.filterwarnings("default:adapt. no .validation. data")
@pytest.mark.filterwarnings("default:adapt. .validation. has only")
def test_stored_features_without_validation_data_give_a_warning(stored, capsys):
    line = ["adapt", "--features", f"{stored / 'train.npz'}", *SHORT, "--out", f"{stored / 'out'}"]
    assert main(line) == 0
    shown = capsys.readouterr().err
    assert "held out" in shown and "has only 40 labelled rows" in shown
    assert "`--validation`" in shown and "`--features`" in shown  # the options, not the arguments of Python
    assert "`train`" not in shown and "adapt: " not in shown


@pytest.mark.filterwarnings("default:adapt")
@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--features far.npz", "--features"),
        ("--features train.npz --validation absent.npz", "--validation"),
        ("--features train.npz --validation -1", "--validation"),
        ("--features several.npz --validation 0.3", "--validation"),
        ("--features train.npz --limit 5", "--limit"),
        ("--features train.npz --validation 5000", "--validation"),
        ("--features train.npz --validation narrow.npz", "--validation"),
        ("--features train.npz --test-features absent.npz", "--test-features"),
        ("--features train.npz --test-features far.npz", "--test-features"),
        ("--features train.npz --ood far=absent.npz", "--ood"),
        ("--features train.npz --ood far=narrow.npz", "--ood"),
        ("--features train.npz --ood background=far.npz --background far.npz", "--ood"),
        ("--features train.npz --background absent.npz", "--background"),
        ("--features train.npz --split-seed -1", "--split-seed"),
        ("--features train.npz --device cuda", "--device"),
        ("--features train.npz --cache-size foo", "--cache-size"),
        ("--features train.npz --train-batchnorm", "--train-batchnorm"),
        ("--features train.npz --prior 0", "--prior"),  # without the warning that was due before
        ("--features train.npz --labels same", "--labels"),
        ("--test-features test.npz", "--test-features"),
    ],
)
def test_what_is_wrong_with_features_names_its_option(stored, monkeypatch, capsys, line, option):
    monkeypatch.chdir(stored)
    np.savez("narrow.npz", features=np.zeros((9, 2), np.float32), targets=np.arange(9) % 3)
    sets = {"train": np.load("train.npz"), "validation": np.load("validation.npz")}
    np.savez("several.npz", **{f"{name}_{key}": one[key] for name, one in sets.items() for key in one})
    err = refused(["adapt", *line.split(), "--out", "new/out"], capsys)
    assert err.startswith(f"beliefmatch adapt: `{option}` ") and "`train`" not in err
    assert not (stored / "new").exists()


OWN = "--model own_network:make --weights own_network.safetensors"
KNOWN = f"{OWN} --data digits --mean 0 --std 1 --labels new"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        (f"{KNOWN} --head nope", "--head"),
        (f"{KNOWN} --weights absent.safetensors", "--weights"),
        (f"{KNOWN} --ood absent", "--ood"),
        (f"{KNOWN} --ood empty", "--ood"),
        (f"{KNOWN} --ood large=large.npz --ood large=large.npz", "--ood"),
        (f"{KNOWN} --background absent", "--background"),
        (f"{KNOWN} --background empty", "--background"),
        (f"{KNOWN} --data empty", "--data"),
        (f"{KNOWN} --limit 3", "--data"),
        (f"{KNOWN} --size 7", "--size"),
        (f"{KNOWN} --size 100000", "--size"),
        (f"{KNOWN} --feature-batch 0", "--feature-batch"),
        (f"{KNOWN} --cache-size foo", "--cache-size"),
        (f"{KNOWN} --model-option width=[", "--model-option"),
        (f"{KNOWN} --train-batchnorm", "--train-batchnorm"),
        (f"{KNOWN} --train-batchnorm --background noise", "--train-batchnorm"),
        (f"{KNOWN} --validation large.npz", "--validation"),
        (f"{KNOWN} --model own_network:absent", "--model"),
        ("--model run --size 8", "--data"),
    ],
)
def test_what_is_wrong_with_a_network_or_its_images_names_its_option(
    workspace, run, cache, monkeypatch, capsys, line, option
):
    monkeypatch.chdir(workspace)
    (workspace / "empty").mkdir(exist_ok=True)
    err = refused(["adapt", *line.split(), *cache, "--out", "new/out"], capsys)
    assert err.startswith(f"beliefmatch adapt: `{option}` ")
    assert not (workspace / "new").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--model own_network:make --weights half.safetensors --data digits", "3.weight"),
        (
            "--model headless_network:make --weights headless_network.safetensors --data digits",
            "tanh of the output of `1` (linear, 64 -> 10)",
        ),
        (f"{OWN} --data large.npz", "`--model` must take images of shape (3, 9, 9)"),
        ("--model run --out large.npz", "`--out`"),
        ("--model run --out run", "`--out` must be new"),
        ("--model run --device cuda", "`--device`"),
    ],
)
def test_networks_images_and_directories_that_do_not_fit_are_refused(
    workspace, run, cache, monkeypatch, capsys, line, words
):
    monkeypatch.chdir(workspace)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = (run / "record.json").read_bytes()
    assert words in refused(["adapt", *line.split(), *cache], capsys)
    assert (run / "record.json").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.json", lambda path: path.write_text("{")),
        ("model.json", lambda path: path.write_text("[]")),
        ("model.json", lambda path: path.write_text('{"schema": "beliefmatch.adapted/1", "head": 3}')),
        ("model.json", lambda path: path.unlink()),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("model.safetensors", lambda path: path.unlink()),
    ],
    ids=["no JSON", "no record", "fields missing", "no model.json", "half of the weights", "no weights"],
)
def test_predict_names_the_damaged_file_of_an_adaptation(adapted, tmp_path, capsys, file, damage):
    copy = shutil.copytree(adapted.directory, tmp_path / "copy")
    damage(copy / file)
    np.save(tmp_path / "x.npy", np.zeros((1, 8, 8), np.uint8))
    line = ["predict", f"{copy}", f"{tmp_path / 'x.npy'}", "--out", f"{tmp_path / 'p.csv'}"]
    assert file in refused(line, capsys)
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("adapted absent.npy", "INPUT"),
        ("adapted empty", "INPUT"),
        ("adapted own_network.safetensors", "INPUT"),
        ("adapted large.npz --workers -1", "--workers"),
        ("adapted large.npz --text-column a", "--text-column"),
        ("empty large.npz", "RUN"),
        ("absent large.npz --risk 0.1", "RUN"),
        ("adapted large.npz --risk 0.000001", "--risk"),
        ("adapted large.npz --out own_network.py/p.csv", "--out"),
    ],
)
def test_what_cannot_be_predicted_names_its_argument_and_makes_no_directory(
    adapted, workspace, monkeypatch, capsys, line, name
):
    monkeypatch.chdir(workspace)
    (workspace / "empty").mkdir(exist_ok=True)
    err = refused(["predict", "--out", "new/deep/p.csv", *line.split()], capsys)
    assert err.startswith(f"beliefmatch predict: `{name}` ") and not (workspace / "new").exists()


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_none_of_these_refuses_at_most_the_stated_share_of_validation_images(adapted, run, rate):
    stored = np.load(adapted.directory / "predictions" / "validation.npz", allow_pickle=False)
    doubt = Belief(torch.from_numpy(stored["logits"])).mutual_information().numpy()
    rule = none_of_these(adapted.directory, rate, measure="mutual_information")
    assert rule.measure == "mutual_information" and rule.examples == len(doubt) == 359
    # A new value exchangeable with these is above it with probability `rate`: one of the 360 · rate largest.
    assert rule.threshold == pytest.approx(np.sort(doubt)[-int(360 * rate)], rel=1e-5)
    assert none_of_these(run, rate, measure="entropy").measure == "entropy"
    with pytest.raises(ValueError, match="`none_of_these`"):
        none_of_these(adapted.directory, 1 / 361, measure="mutual_information")


def test_results_do_not_go_into_the_folder_of_the_data(tmp_path, capsys):
    (tmp_path / "photos" / "a").mkdir(parents=True)
    line = ["adapt", "--model", "own:net", "--data", f"{tmp_path / 'photos'}", "--mean", "0", "--std", "1"]
    for out in (tmp_path / "photos", tmp_path / "photos" / "runs" / "1"):
        assert "`--out` must not be within the data" in refused([*line, "--out", f"{out}"], capsys)


def test_predict_gives_sets_that_hold_the_class_as_often_as_asked(adapted, tmp_path, capsys):
    stored = np.load(adapted.directory / "predictions" / "validation.npz", allow_pickle=False)
    probs = torch.from_numpy(stored["logits"]).double().softmax(1)
    own = probs[torch.arange(len(probs)), torch.from_numpy(stored["targets"])].sort().values
    least = set_threshold(adapted.directory, 0.9)
    assert least == pytest.approx(own[len(own) - int(np.ceil(0.9 * (len(own) + 1)))].item(), abs=1e-9)
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 17, (9, 8, 8)).astype(np.uint8))
    line = ["predict", f"{adapted.directory}", f"{tmp_path / 'a.npy'}", "--out", f"{tmp_path / 'a.csv'}"]
    line.append("--overwrite")
    assert main([*line, "--coverage", "0.9"]) == 0
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text("utf-8").splitlines()))
    for row in rows:
        wanted = {name for name in row if name.startswith("p_") and float(row[name]) >= least}
        assert {f"p_{name}" for name in row["prediction_set"].split(" | ") if name} == wanted
    assert "classes on average" in capsys.readouterr().out
    for value in ("0.9999", "1", "0"):
        assert "`--coverage`" in refused([*line, "--coverage", value], capsys)


def test_predict_marks_images_of_none_of_the_classes(adapted, tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 240, (30, 8, 8)).astype(np.uint8)
    np.save(tmp_path / "noise.npy", images)
    line = ["predict", f"{adapted.directory}", f"{tmp_path / 'noise.npy'}", "--out", f"{tmp_path / 'a.csv'}"]
    line.append("--overwrite")
    assert main(line) == 0
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text("utf-8").splitlines()))
    assert {row["none_of_these"] for row in rows} == {"0"}
    assert main([*line, "--none-of-these", "0.2"]) == 0
    threshold = none_of_these(adapted.directory, 0.2, measure="mutual_information").threshold
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text("utf-8").splitlines()))
    for row in rows:
        assert (row["none_of_these"] == "1") == (float(row["mutual_information"]) > threshold)
    assert f"{sum(row['none_of_these'] == '1' for row in rows)} none of these" in capsys.readouterr().out
    assert "`--text-column`" in refused([*line, "--text-column", "body"], capsys)
