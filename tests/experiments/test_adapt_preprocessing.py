"""The preprocessing of a user's own network is given, declared or found, and never silently another one."""

import csv
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from beliefmatch.cli import main
from beliefmatch.data import load
from beliefmatch.data.config import DataConfig
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.experiments import adapt_images
from beliefmatch.experiments.adapt_images import (
    PreprocessingTrial,
    _found,
    choose_preprocessing,
    usual_preprocessings,
)
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.adapted_directory import adapted_network
from commands import refused

pytestmark = pytest.mark.filterwarnings("ignore:adapt")  # one epoch makes no good head

CODE = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

def published():
    network = make()
    network.pretrained_cfg = {"mean": (0.5,), "std": (0.5,), "input_size": (1, 8, 8)}
    return network

def colours(classes=3):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))

def declaring():
    network = make()
    network.preprocessing = {"mean": (0.5,), "std": (0.25,)}
    return network
"""
SCALINGS = {
    "pixels in [0, 1]": (0.0, 1.0),
    "pixels in [-1, 1]": (0.5, 0.5),
    "pixels in [0, 255]": (0.0, 1 / 255),
    "mean/std of mnist": (0.1307, 0.3081),
}


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def trained(pixels, targets):
    """Weights of a network that has learnt these pixels."""
    torch.manual_seed(0)
    made = network()
    optimizer = torch.optim.Adam(made.parameters(), 0.01)
    for _ in range(40):
        for some in torch.randperm(len(pixels)).split(128):
            optimizer.zero_grad()
            functional.cross_entropy(made(pixels[some]), targets[some]).backward()
            optimizer.step()
    return made.state_dict()


def rescaled(weights, mean, std):
    """Weights of a network that does the same to scaled pixels as another does to pixels in [0, 1]."""
    weight, bias = weights["1.weight"], weights["1.bias"]
    return {**weights, "1.weight": weight * std, "1.bias": bias + mean * weight.sum(1)}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Code of networks, images in one file, and weights for each scaling of the pixels."""
    from sklearn.datasets import load_digits

    directory = tmp_path_factory.mktemp("preprocessing")
    (directory / "own_nets.py").write_text(CODE)
    levels, labels = load_digits(return_X_y=True)
    images = (levels.reshape(-1, 8, 8) * 15).astype(np.uint8)
    np.savez(directory / "images.npz", images=images, labels=labels)
    pixels = torch.from_numpy(images[:1000, None].astype(np.float32) / 255)
    weights = trained(pixels, torch.from_numpy(labels[:1000]))
    for number, scaling in enumerate(SCALINGS.values()):
        save_file(rescaled(weights, *scaling), directory / f"{number}.safetensors")
    save_file(network().state_dict(), directory / "untrained.safetensors")
    return directory


@pytest.fixture
def adapt(workspace, tmp_path, monkeypatch, capsys):
    """Run the command on a network of the workspace and return what it prints."""
    monkeypatch.chdir(workspace)
    line = ["--data", "images.npz", "--kl-weight", "0.01", "--weight-decay", "0.01", "--controls", "softmax"]
    line += ["--cache-dir", f"{tmp_path / 'cache'}", "--out", f"{tmp_path / 'out'}"]

    def run(weights, *options, model="own_nets:make"):
        capsys.readouterr()
        assert main(["adapt", "--model", model, "--weights", weights, *line, *options]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("number", "name"), [*enumerate(SCALINGS)], ids=list(SCALINGS))
def test_the_preprocessing_of_the_training_is_found(adapt, number, name):
    shown = adapt(f"{number}.safetensors", "--dry-run")
    mean, std = SCALINGS[name]
    assert f"preprocessing: {name} (existing head right on " in shown
    assert f"mean {mean:.6g}, std {std:.6g}\n" in shown


def test_the_found_preprocessing_feeds_the_untouched_network_and_new_images(adapt, workspace, tmp_path):
    """The record and the predictions have the values of a direct computation on pixels in [0, 1]."""
    shown = adapt("0.safetensors")
    record = AdaptRecord.from_json((tmp_path / "out" / "record.json").read_text("utf-8"))
    best, second = record.data["preprocessing_tried"][:2]
    assert shown.startswith(
        f"preprocessing: pixels in [0, 1] (existing head right on {100 * best['accuracy']:.1f} % of 288 "
        f"validation images with the lowest NLL; next: {second['name']} {100 * second['accuracy']:.1f} %"
    )
    assert record.data["preprocessing_from"] == "search" and best["accuracy"] > 0.95
    assert any(note.startswith("Preprocessing: pixels in [0, 1]") for note in record.notes)

    stored = np.load(workspace / "images.npz")
    inputs = torch.from_numpy(stored["images"][:, None].astype(np.float32) / 255)
    rows = load(DataConfig(name="images.npz")).role_rows["test"].rows
    untouched = network()
    untouched.load_state_dict(load_file(workspace / "0.safetensors"))
    with torch.no_grad():
        direct = functional.cross_entropy(untouched(inputs[rows]), torch.from_numpy(stored["labels"][rows]))
    assert record.scored[0].label == "untouched"
    assert record.scored[0].scores.nll == pytest.approx(direct.item(), rel=1e-4)

    np.save(tmp_path / "new.npy", stored["images"][:9])
    line = ["predict", f"{tmp_path / 'out'}", f"{tmp_path / 'new.npy'}", "--out", f"{tmp_path / 'p.csv'}"]
    assert main(line) == 0
    answers = csv.DictReader((tmp_path / "p.csv").read_text("utf-8").splitlines())
    expected = adapted_network(tmp_path / "out").network.predict(inputs[:9]).probs.max(1).values
    assert [float(answer["confidence"]) for answer in answers] == pytest.approx(expected.tolist(), rel=1e-4)


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_the_order_of_channels_is_found_and_kept(monkeypatch, adapt, workspace, tmp_path, order):
    """Of a network that names the brightest of red, green and blue."""
    monkeypatch.setattr(adapt_images, "_MIN_ERRORS", 0)  # the images are easy
    labels = np.arange(240) % 3
    images = np.random.default_rng(0).integers(0, 200, (240, 4, 4, 3)).astype(np.uint8)
    images[np.arange(240), :, :, labels] //= 2
    images[np.arange(240), :, :, labels] += 140
    np.savez(workspace / f"{order}.npz", images=images, labels=labels)
    weight = 9 * (torch.eye(3) if order == "rgb" else torch.eye(3).flip(0))
    save_file({"2.weight": weight, "2.bias": torch.zeros(3)}, workspace / f"{order}.safetensors")
    shown = adapt(f"{order}.safetensors", "--data", f"{order}.npz", model="own_nets:colours")
    best = shown.partition("preprocessing: ")[2].partition(" (existing head right on 100.0 %")[0]
    assert best.endswith(", BGR") == (order == "bgr") and "\n" not in best
    record = AdaptRecord.from_json((tmp_path / "out" / "record.json").read_text("utf-8"))
    assert record.delivered("untouched").scores.error == 0
    np.save(tmp_path / "new.npy", images[:9])
    line = ["predict", f"{tmp_path / 'out'}", f"{tmp_path / 'new.npy'}", "--out", f"{tmp_path / 'p.csv'}"]
    assert main(line) == 0
    answers = csv.DictReader((tmp_path / "p.csv").read_text("utf-8").splitlines())
    assert [int(answer["predicted"]) for answer in answers] == labels[:9].tolist()


def test_images_that_are_all_right_tell_no_scale(adapt, workspace, capsys):
    """The largest scale has the lowest NLL of images without errors; none is taken by that."""
    stored = np.load(workspace / "images.npz")
    dark = stored["labels"] % 2
    images = np.where(dark[:, None, None], stored["images"] // 3, 120 + stored["images"] // 3).astype(
        np.uint8
    )
    np.savez(workspace / "easy.npz", images=np.repeat(images[..., None], 3, 3), labels=dark)
    save_file({"2.weight": torch.tensor([[9.0] * 3, [-9.0] * 3]), "2.bias": torch.tensor([-9.0, 9.0])},
              workspace / "easy.safetensors")  # fmt: skip
    line = (
        "adapt --model own_nets:colours --model-option classes=2 --weights easy.safetensors --data easy.npz"
    )
    words = refused([*line.split(), "--out", f"{workspace}/never"], capsys)
    assert "`--mean` must be given" in words and "100.0 %" in words and "pixels in [0, 1]" in words


def test_grey_images_of_three_channels_are_taken_for_rgb(adapt, workspace, monkeypatch):
    monkeypatch.setattr(adapt_images, "_MIN_ERRORS", 0)  # the images are easy
    stored = np.load(workspace / "images.npz")
    images = np.repeat(stored["images"][..., None], 3, 3)[:, ::2, ::2]
    dark = stored["labels"] % 2
    images = np.where(dark[:, None, None, None], images // 3, 80 + images // 3).astype(np.uint8)
    np.savez(workspace / "grey.npz", images=images, labels=dark)
    weights = {"2.weight": torch.tensor([[9.0] * 3, [-9.0] * 3]), "2.bias": torch.tensor([-6.0, 6.0])}
    save_file(weights, workspace / "grey.safetensors")
    options = ["--data", "grey.npz", "--model-option", "classes=2", "--dry-run"]
    shown = adapt("grey.safetensors", *options, model="own_nets:colours")
    assert "preprocessing: " in shown and "BGR" not in shown


@pytest.mark.parametrize(
    ("model", "options", "inputs"),
    [
        ("own_nets:make", "--mean 0.3 --std 0.4", "mean 0.3, std 0.4"),
        ("own_nets:declaring", "", "mean 0.5, std 0.25"),
        ("own_nets:declaring", "--mean 0 --std 1", "mean 0, std 1"),
    ],
)
def test_a_given_preprocessing_is_used_before_a_declared_one_and_nothing_is_tried(
    adapt, model, options, inputs
):
    shown = adapt("0.safetensors", *options.split(), "--dry-run", model=model)
    assert f"{inputs}\n" in shown and "preprocessing:" not in shown


@pytest.mark.parametrize(
    ("weights", "inputs"),
    [("0.safetensors", "mean 0, std 1"), ("untrained.safetensors", "mean 0.5, std 0.5")],
)
def test_the_preprocessing_of_published_weights_is_kept_for_others_unless_a_better_one_is_found(
    adapt, weights, inputs
):
    assert f"{inputs}\n" in adapt(weights, "--dry-run", model="own_nets:published")


@pytest.mark.parametrize("line", ["--weights untrained.safetensors", "--weights 0.safetensors --labels new"])
def test_mean_and_std_are_demanded_where_the_head_does_not_know_the_classes(
    workspace, line, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(workspace)
    line = f"adapt --model own_nets:make {line} --data images.npz --cache-dir {tmp_path} --out {tmp_path}/out"
    assert "`--mean` must be given" in refused(line.split(), capsys)
    assert not (tmp_path / "out").exists()


def trial(name, correct, nll):
    surprise = torch.full((100,), float(nll))
    return PreprocessingTrial(name, Preprocessing((0.0,), (1.0,)), torch.arange(100) < correct, surprise)


TARGETS = torch.arange(100) % 4


@pytest.mark.parametrize(
    ("correct", "nll", "order"),
    [
        ({"a": 90, "b": 70, "c": 80}, {"a": 2, "b": 0, "c": 1}, "acb"),  # by accuracy where it differs
        ({"a": 90, "b": 88, "c": 70}, {"a": 2, "b": 1, "c": 0}, "bac"),  # by NLL where it does not
        ({"a": 25, "b": 37, "c": 20}, {"a": 2, "b": 1, "c": 0}, ""),  # 37 of 100 may be chance: 3 were tried
        ({"a": 25, "b": 45, "c": 20}, {"a": 2, "b": 1, "c": 0}, "bac"),
    ],
)  # fmt: skip
def test_the_most_often_right_is_taken_and_nll_breaks_ties(correct, nll, order):
    trials = [trial(name, correct[name], nll[name]) for name in correct]
    assert "".join(one.name for one in choose_preprocessing(trials, TARGETS)) == order


def test_a_single_preprocessing_has_no_runners_up():
    text = _found([trial("a", 90, 1)])
    assert text == "preprocessing: a (existing head right on 90.0 % of 100 validation images)"


@pytest.mark.parametrize("number", [0, 1])
def test_what_a_trial_divides_by_is_the_number_of_rows_it_scored(adapt, monkeypatch, tmp_path, number):
    """Of many classes, a head is tried on evenly spaced rows."""
    monkeypatch.setattr("beliefmatch.adaptation.scoring.MAX_LOGITS", 900)
    monkeypatch.setattr(adapt_images, "_MIN_ERRORS", 0)
    shown = adapt(f"{number}.safetensors", "--dry-run")
    assert f"preprocessing: {[*SCALINGS][number]} (existing head right on " in shown
    scored = int(re.search(r" of (\d+) validation images", shown)[1])
    assert scored < 90 and (288 // scored) * scored > 200  # every third or fourth of 288


def test_trials_that_more_images_show_to_be_chance_find_nothing(workspace, monkeypatch, capsys, tmp_path):
    """The first round finds ties, the second nothing."""
    rounds, choose = [], adapt_images.choose_preprocessing

    def chosen(trials, targets):
        rounds.append(len(targets))
        return choose(trials, targets) if len(rounds) == 1 else []

    monkeypatch.setattr(adapt_images, "choose_preprocessing", chosen)
    monkeypatch.chdir(workspace)
    line = f"adapt --model own_nets:make --weights 0.safetensors --data images.npz --cache-dir {tmp_path}"
    assert "`--mean` must be given" in refused([*line.split(), "--out", f"{tmp_path}/out"], capsys)
    assert len(rounds) == 2


def test_each_usual_preprocessing_is_listed_once_and_keeps_the_margin():
    like = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), margin=1.5)
    found = usual_preprocessings(like, {"own": like})
    assert next(iter(found)) == "own" and "ImageNet mean/std" not in found
    assert len(set(found.values())) == len(found) and {one.margin for one in found.values()} == {1.5}
    assert {one.channels for one in found.values()} == {3}
    orders = [one.channel_order for one in found.values()]
    assert orders == ["rgb"] * (len(found) // 2) + ["bgr"] * (len(found) // 2)
    grey = Preprocessing((0.3,), (0.2,))
    assert {one.channels for one in usual_preprocessings(grey, {}).values()} == {1}


def test_bootstrap_heads_with_a_background_are_kept_and_built_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = ["--model", "beliefmatch.models.digits:DigitsNet", "--data", "digits", "--labels", "new"]
    options = ["--mean", "0", "--std", "1", "--heads", "3", "--background", "noise", "--limit", "300"]
    assert main(["adapt", *line, *options, "--kl-weight", "0.001", "--out", "run"]) == 0
    record = AdaptRecord.from_json((tmp_path / "run/record.json").read_text("utf-8"))
    assert record.label == "belief matching with background, 3 heads"
    network = adapted_network(tmp_path / "run").network
    with np.load("run/predictions/test.npz") as stored:
        expected = torch.from_numpy(stored["logits"])
    part = load(DataConfig(name="digits", mean=(0.0,), std=(1.0,))).test
    (batch,) = part.batches([torch.arange(len(part))], device="cpu")
    torch.testing.assert_close(network(batch.inputs), expected, rtol=1e-3, atol=1e-3)
