"""`beliefmatch adapt` from end to end: a run's network, one's own network, features alone."""

import csv
import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import nn

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.cli import app, main
from beliefmatch.cli.adapt import _config
from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, FeatureAdaptConfig, ImageAdaptConfig
from beliefmatch.experiments.adapted_directory import adapted_network
from beliefmatch.metrics import error, nll
from commands import refused

OWN = """
from torch import nn

def make(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, num_classes))
"""
SHORT = ["--epochs", "5", "--kl-weight", "0.01,0.001", "--controls", "softmax,label_smoothing"]


def record_of(place) -> AdaptRecord:
    return AdaptRecord.from_json((place / "record.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("adapt")


@pytest.fixture(scope="module")
def run(home):
    out = home / "run"
    quick = ["--epochs", "3", "--set", "training.warmup=[]", "--method", "softmax", "--ood", "noise"]
    assert main(["train", *quick, "--out", f"{out}"]) == 0
    return out


@pytest.fixture(scope="module")
def cache(home):
    return ["--cache-dir", f"{home / 'cache'}"]


@pytest.fixture(scope="module")
def adapted(run, home, cache):
    out = home / "adapted"
    assert main(["adapt", "--model", f"{run}", "--ood", "noise", *SHORT, *cache, "--out", f"{out}"]) == 0
    return out


def config_of(*line: str):
    """The configuration that a command line amounts to."""
    commands = typer.main.get_command(app._application(["adapt"])).commands  # type: ignore[attr-defined]
    return _config(commands["adapt"].make_context("adapt", [*line]))


def test_without_options_the_defaults_of_the_configuration_hold():
    assert config_of("--model", "m") == AdaptRunConfig(ImageAdaptConfig(model="m"))
    assert config_of("--features", "f") == AdaptRunConfig(FeatureAdaptConfig(train="f"))


def test_each_option_changes_its_setting():
    line = ["--model", "m", "--model-option", "width=3", "--weights", "w", "--head", "fc", "--compile"]
    line += ["--cache-dir", "c", "--cache-size", "1GB", "--device", "cuda", "--precision", "32"]
    line += ["--validation-from", "test", "--feature-batch", "5"]
    network = {"model": "m", "options": {"width": 3}, "weights": "w", "head": "fc", "compile": True}
    network |= {"cache_dir": "c", "cache_size": "1GB", "device": "cuda", "precision": "32"}
    network |= {"validation_from": "test", "batch_size": 5}
    line += [
        "--data",
        "digits",
        "--data-dir",
        "d",
        "--validation",
        "0.3",
        "--limit",
        "9",
        "--split-seed",
        "4",
    ]
    line += ["--size", "8", "--margin", "1.5", "--mean", "0.1,0.2,0.3", "--std", "1,2,3", "--skip-corrupt"]
    line += ["--workers", "0"]
    data = {"name": "digits", "directory": "d", "validation": 0.3, "limit": 9, "split_seed": 4, "size": 8}
    data |= {"margin": 1.5, "mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 3.0), "corrupt": "skip", "workers": 0}
    line += ["--labels", "new", "--kl-weight", "0.1,1", "--prior", "1,2", "--seeds", "3", "--laplace"]
    line += ["--controls", "softmax", "--choose-by", "error", "--epochs", "7", "--batch-size", "8"]
    line += ["--learning-rate", "0.5", "--optimizer", "lbfgs", "--train-batchnorm", "--risk", "0.2"]
    fit = {"labels": "new", "kl_weights": (0.1, 1.0), "priors": (1.0, 2.0), "seeds": (0, 1, 2), "epochs": 7}
    fit |= {"laplace": True, "controls": ("softmax",), "choose_by": "error", "batch_size": 8}
    fit |= {"learning_rate": 0.5, "optimizer": "lbfgs", "batchnorm": True, "risks": (0.2,)}
    images = ImageAdaptConfig(**network, data=DataConfig(**data, augment="none"))
    assert config_of(*line, "--ood", "noise") == AdaptRunConfig(images, AdaptConfig(**fit), ("noise",))


def test_the_terminal_shows_one_table_the_findings_and_the_page(run, cache, tmp_path, capsys):
    line = ["adapt", "--model", f"{run}", "--ood", "noise", *SHORT, *cache, "--out", f"{tmp_path}"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert main([*line, "--verbose"]) == 0
    more = capsys.readouterr().out
    assert "Every λ" not in shown and "Every λ" in more
    assert "•" in shown and shown.split()[-1] == more.split()[-1] == f"{tmp_path / 'report.html'}"


@pytest.fixture
def own(home, monkeypatch):
    """A network of the user's own with weights in a file, importable from the current directory."""
    (home / "own_network_of_test.py").write_text(OWN)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    save_file(network.state_dict(), home / "net.safetensors")
    monkeypatch.chdir(home)
    return ["--model", "own_network_of_test:make", "--weights", f"{home / 'net.safetensors'}"]


def test_a_run_is_adapted_on_its_own_images(run, adapted, capsys):
    record = record_of(adapted)
    assert record.labels == "same"
    assert record.scored_on == "test"
    assert record.row_labels == ["untouched", "temperature", "softmax", "label smoothing", "belief matching"]
    before = json.loads((run / "record.json").read_text("utf-8"))["test"]
    assert record.scored[0].scores.error == pytest.approx(before["error"])
    assert record.scored[0].scores.nll == pytest.approx(before["nll"], rel=1e-4)
    assert [one.name for one in record.scored[0].ood] == ["noise"]


def test_only_the_head_is_new(run, adapted):
    old = adapted_network(adapted).network.state_dict()
    new = load_file(adapted / "model.safetensors")
    assert set(old) == set(new)
    assert all(torch.equal(old[name], new[name]) for name in new)
    from beliefmatch.experiments.networks import trained_network

    untouched = trained_network(f"{run}").network.state_dict()
    changed = {name for name in new if not torch.equal(new[name], untouched[name])}
    head = record_of(adapted).head
    assert head is not None
    assert changed == {f"{head.name}.weight", f"{head.name}.bias"}


def test_what_is_kept_predicts_what_the_record_says(adapted):
    said = np.load(adapted / "predictions" / "test.npz", allow_pickle=False)
    probs = torch.from_numpy(said["logits"]).double().softmax(1)
    targets = torch.from_numpy(said["targets"])
    scores = record_of(adapted).delivered("belief matching").scores
    assert error(probs, targets) == pytest.approx(scores.error)
    assert nll(probs, targets) == pytest.approx(scores.nll, rel=1e-4)


def test_predict_and_evaluate_take_the_directory(adapted, tmp_path, capsys):
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    images = (found.images[:7] * 15).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    answers = tmp_path / "answers.csv"
    assert main(["predict", f"{adapted}", f"{tmp_path / 'images.npy'}", "--out", f"{answers}"]) == 0
    rows = list(csv.DictReader(answers.read_text("utf-8").splitlines()))
    assert len(rows) == 7
    assert all(float(row["mutual_information"]) > 0 for row in rows)
    network = adapted_network(adapted)
    how = network.preprocessing
    inputs = (torch.from_numpy(images)[:, None].float() / 255 - how.mean[0]) / how.std[0]
    best = network.network.predict(inputs).probs.max(1)
    assert [int(row["predicted"]) for row in rows] == best.indices.tolist()
    assert [float(row["confidence"]) for row in rows] == pytest.approx(best.values.tolist(), rel=1e-4)
    out = tmp_path / "scored"
    assert main(["evaluate", f"{adapted}", "--resamples", "20", "--out", f"{out}"]) == 0
    scored = json.loads((out / "adapted.json").read_text("utf-8"))
    assert scored["scores"]["error"]["value"] == pytest.approx(
        record_of(adapted).delivered("belief matching").scores.error
    )
    capsys.readouterr()


def test_report_is_made_again_from_the_record(adapted, tmp_path, capsys):
    page = tmp_path / "again.html"
    assert main(["report", f"{adapted}", "--out", f"{page}"]) == 0
    assert page.read_bytes() == (adapted / "report.html").read_bytes()
    capsys.readouterr()


def test_a_second_time_nothing_is_computed(run, adapted, home, cache, monkeypatch, capsys):
    def computed(*arguments, **options):
        raise AssertionError("features were computed again")

    monkeypatch.setattr("beliefmatch.adaptation.features._computed", computed)
    out = home / "again"
    line = ["adapt", "--model", f"{run}", "--ood", "noise", *SHORT, *cache, "--out", f"{out}"]
    assert main(line) == 0
    assert record_of(out).scored == record_of(adapted).scored
    capsys.readouterr()


def test_the_network_is_compiled_once_for_all_sets(run, tmp_path, monkeypatch, capsys):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda module, **_: compiled.append(module) or module)
    line = ["adapt", "--model", f"{run}", "--ood", "noise", "--compile", *SHORT]
    assert main([*line, "--cache-dir", f"{tmp_path / 'cache'}", "--out", f"{tmp_path / 'out'}"]) == 0
    assert len(compiled) == 1
    capsys.readouterr()


def test_dry_run_tells_the_size_and_writes_nothing(run, tmp_path, capsys):
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


def test_a_network_of_ones_own_on_other_classes(own, cache, tmp_path, capsys):
    out = tmp_path / "own"
    line = ["adapt", *own, "--data", "digits", "--labels", "new", "--seeds", "2", *SHORT, *cache]
    assert main([*line, "--out", f"{out}"]) == 0
    record = record_of(out)
    assert record.labels == "new"
    assert record.row_labels == ["softmax", "label smoothing", "belief matching"]
    assert {one.seed for one in record.scored} == {0, 1}
    assert "±" in capsys.readouterr().out
    again = adapted_network(out).network.predict(torch.rand(3, 1, 8, 8)).probs
    assert again.shape == (3, 10)


def test_half_of_the_test_images_chooses(own, cache, tmp_path, capsys):
    out = tmp_path / "halves"
    line = ["adapt", *own, "--data", "digits", "--labels", "new", "--validation-from", "test", *SHORT]
    assert main([*line, *cache, "--out", f"{out}"]) == 0
    rows = {one.set: one.rows for one in record_of(out).features}
    assert rows["validation"] + rows["test"] == 540
    assert abs(rows["validation"] - rows["test"]) <= 1
    capsys.readouterr()


@pytest.fixture
def stored(tmp_path):
    chance = np.random.default_rng(0)
    targets = np.arange(300) % 3
    rows = chance.normal(size=(300, 5)).astype(np.float32) + 4 * np.eye(3, 5, dtype=np.float32)[targets]
    np.savez(tmp_path / "train.npz", features=rows[:200], targets=targets[:200])
    np.savez(tmp_path / "validation.npz", features=rows[200:250], targets=targets[200:250])
    np.savez(tmp_path / "test.npz", features=rows[250:], targets=targets[250:])
    np.savez(tmp_path / "far.npz", features=-rows[:40])
    return tmp_path


def test_features_alone(stored, capsys):
    out = stored / "out"
    line = ["adapt", "--features", f"{stored / 'train.npz'}", "--validation", f"{stored / 'validation.npz'}"]
    line += ["--test-features", f"{stored / 'test.npz'}", "--ood", f"far={stored / 'far.npz'}"]
    assert main([*line, *SHORT, "--learning-rate", "1", "--epochs", "30", "--out", f"{out}"]) == 0
    record = record_of(out)
    assert record.head is None
    assert record.classes == 3
    assert record.delivered("belief matching").scores.error < 0.2
    assert not (out / "model.safetensors").exists()
    assert load_file(out / "head.safetensors")["weight"].shape == (3, 5)
    capsys.readouterr()
    line = ["predict", f"{out}", f"{stored / 'x.npy'}", "--out", f"{stored / 'p.csv'}"]
    assert "has none: features alone were adapted" in refused(line, capsys)


@pytest.mark.filterwarnings("default:feature_sets")
@pytest.mark.filterwarnings("default:adapt. .validation. has only")
def test_features_without_validation_say_so(stored, capsys):
    line = ["adapt", "--features", f"{stored / 'train.npz'}", *SHORT, "--out", f"{stored / 'out'}"]
    assert main(line) == 0
    told = capsys.readouterr().err
    assert "held out" in told and "has only 40 labelled rows" in told


def test_weights_that_do_not_fit_are_named(own, home, tmp_path, capsys):
    save_file({"1.weight": torch.zeros(24, 64)}, tmp_path / "half.safetensors")
    line = ["adapt", *own[:2], "--weights", f"{tmp_path / 'half.safetensors'}", "--data", "digits"]
    assert "3.weight" in refused(line, capsys)


def test_a_network_without_a_linear_head_lists_what_there_is(home, tmp_path, monkeypatch, capsys):
    layers = "nn.Flatten(), nn.Linear(64, 10), nn.Tanh()"
    code = f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n"
    (tmp_path / "no_head_of_test.py").write_text(code)
    save_file(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).state_dict(), tmp_path / "w.safetensors")
    monkeypatch.chdir(tmp_path)
    line = ["adapt", "--model", "no_head_of_test:make", "--weights", "w.safetensors", "--data", "digits"]
    assert "tanh of the output of `1` (linear, 64 -> 10)" in refused(line, capsys)


def test_a_disk_that_cannot_be_written_to(run, cache, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    line = ["adapt", "--model", f"{run}", *cache, "--out", f"{tmp_path / 'file'}"]
    assert "`--out` must be a directory" in refused(line, capsys)


def test_a_run_is_not_written_over(run, cache, capsys):
    before = (run / "record.json").read_bytes()
    assert "must not be the directory of a run" in refused(
        ["adapt", "--model", f"{run}", *cache, "--out", f"{run}"], capsys
    )
    assert (run / "record.json").read_bytes() == before


def test_a_device_that_is_not_there(run, cache, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    line = ["adapt", "--model", f"{run}", *cache, "--device", "cuda"]
    assert "`--device` must be one that torch has here, got 'cuda'" in refused(line, capsys)


def test_images_that_the_network_cannot_take(own, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", images=np.zeros((40, 9, 9, 3), np.uint8), labels=np.arange(40) % 2)
    line = ["adapt", *own, "--data", f"{tmp_path / 'x.npz'}"]
    assert "`--model` must take images of shape (3, 9, 9), but it failed" in refused(line, capsys)


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
    copy = shutil.copytree(adapted, tmp_path / "copy")
    damage(copy / file)
    np.save(tmp_path / "x.npy", np.zeros((1, 8, 8), np.uint8))
    line = ["predict", f"{copy}", f"{tmp_path / 'x.npy'}", "--out", f"{tmp_path / 'p.csv'}"]
    assert file in refused(line, capsys)
    assert not (tmp_path / "p.csv").exists()
