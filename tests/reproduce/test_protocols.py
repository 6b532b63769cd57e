"""What each reproduction runs: the paper's settings, shared runs, and the differences from the paper."""

import math

import pytest
import torch
import yaml
from msgspec.structs import replace

from beliefmatch import belief_matching_loss
from beliefmatch.cli import main
from beliefmatch.experiments.config import config_from, fingerprint, recipe, with_method
from beliefmatch.experiments.records import Scores, Trial
from beliefmatch.experiments.train_job import Candidates
from beliefmatch.methods import build
from beliefmatch.reproduce import REPRODUCTIONS, reproduction
from beliefmatch.reproduce.arms import EXPONENTS
from beliefmatch.reproduce.dataset_paths import required_datasets, with_data_dir
from beliefmatch.reproduce.protocol_diff import data_sentences, ood_sentences
from beliefmatch.reproduce.registry import REGISTRY
from beliefmatch.reproduce.runner import arm_note
from beliefmatch.reproduce.scales import SCALES, training_images, two_core_seconds
from golden import assert_golden
from reproduced import runner

CIFAR = ("table1", "ablation-kl", "figure-reliability", "figure-ood", "figure-representation")


@pytest.fixture
def cifar_config():
    return config_from(with_method(recipe("cifar"), "softmax"))


def test_the_registry_has_the_ids_in_their_order():
    assert tuple(REGISTRY) == REPRODUCTIONS
    for name, one in REGISTRY.items():
        assert one.id == name and bool(one.arms("paper")) != bool(one.transfers)


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_reproduction_has_the_same_arms_at_every_scale_except_for_sweeps(name):
    keys = {scale: set(runner(name, scale=scale).configs) for scale in SCALES}
    if name == "figure-beta":
        assert keys["tiny"] < keys["cpu"] < keys["paper"]
        return
    kept = {scale: {key for key in own if not key.startswith("size/")} for scale, own in keys.items()}
    assert kept["paper"] == kept["cpu"] == kept["tiny"] != set()


# The paper's protocol


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_at_paper_scale_is_the_paper_protocol(name):
    found = runner(name)
    assert len(found.seeds) == 5
    for config in found.configs.values():
        training, options = config.training, config.method.options
        assert (training.epochs, training.batch_size, training.optimizer) == (200, 128, "sgd")
        assert (training.momentum, training.weight_decay, training.clip_norm) == (0.9, 1e-4, 1.0)
        assert not training.clip_each
        rates = [training.rate(epoch) for epoch in (0, 1, 2, 3, 4, 5, 99, 100, 149, 150, 199)]
        assert rates == pytest.approx([0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
        assert (config.data.validation, config.data.limit, config.data.augment) == (10_000, None, "crop_flip")
        assert (training_images(config), config.model.options, config.ood) == (40_000, {}, ("svhn",))
        assert (Candidates.of(config).search, options.get("samples"), options.get("members")) == {
            "belief_matching": (("kl_weight", (0.01, 0.003, 0.001)), None, None),
            "mc_dropout": (("rate", (0.1, 0.2, 0.5)), 100, None),
            "ensemble": (None, None, 5),
        }.get(config.method.name, (None, None, None))


def test_table1_has_every_network_dataset_and_method():
    found = runner("table1")
    cells = {
        (one.model.name, one.data.name, one.method.name, one.method.options.get("where"))
        for one in found.configs.values()
    }
    methods = [("softmax", None), ("mc_dropout", "last"), ("mc_dropout", "all"), ("belief_matching", None)]
    networks, sets = ("preact_resnet18", "preact_resnet50"), ("cifar10", "cifar100")
    assert cells == {(network, data, *method) for network in networks for data in sets for method in methods}
    # softmax five times; the others each of three values once, and the chosen four times more
    assert len(found.costs()) == 4 * (5 + 3 * (3 + 4))


def test_imagenet_at_paper_scale_is_the_paper_protocol():
    found = runner("table2")
    assert found.seeds == [0]
    cells = {(one.model.name, one.method.options.get("kl_weight")) for one in found.configs.values()}
    names = ("timm:resnext50_32x4d", "timm:resnext101_32x8d")
    assert cells == {(names[0], None), (names[0], 0.001), (names[1], None), (names[1], 0.0001)}
    for config in found.configs.values():
        training = config.training
        assert (training.epochs, training.batch_size, training.weight_decay) == (100, 256, 1e-4)
        assert (training.optimizer, training.momentum, training.clip_norm) == ("sgd", 0.9, 1.0)
        assert (config.data.name, config.data.size) == ("imagenet-1k", 224)
        rates = [training.rate(epoch) for epoch in (0, 1, 5, 29, 30, 59, 60, 89, 90)]
        assert rates == pytest.approx([0.01, 0.02, 0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4])


def test_the_sweep_of_priors_spans_the_paper_range_in_both_ways():
    found, exponents = runner("figure-beta"), EXPONENTS["paper"]
    assert (min(exponents), max(exponents)) == (-8, 16) and {-2, -1, 4, 8} <= set(exponents)
    for key, config in found.configs.items():
        kind, exponent = key.split("/")[-2:]
        prior, kl_weight = config.method.options.get("prior", 1.0), config.method.options["kl_weight"]
        assert prior == pytest.approx(math.exp(int(exponent)))
        assert kl_weight * (prior if kind == "joint" else 1) == pytest.approx(0.01)
        assert (config.model.name, config.data.name) == ("preact_resnet18", "cifar10")
    assert len(found.configs) == 2 * len(exponents)
    assert len(found.costs()) == 5 * (2 * len(exponents) - 1)  # β = 1 is in both


def test_semi_supervised_at_paper_scale_is_the_paper_protocol():
    found = runner("table4")
    assert len(found.seeds) == 5
    for key, config in found.configs.items():
        (kind, method), training, semi = key.split("/"), config.training, config.semi
        assert (config.model.name, config.model.options) == ("wrn28_2", {"activation": "leaky_relu"})
        assert (config.data.name, config.data.validation, config.data.labels) == ("cifar10", 5000, 4000)
        assert config.method.options == ({} if method == "softmax" else {"kl_weight": 0.01})
        assert (training.optimizer, training.batch_size) == ("adam", 50)  # and 50 without labels
        assert training.epochs * training.epoch_examples(45_000) // 50 == 500_000  # steps
        assert training.learning_rate == (3e-4 if kind == "pi" else 3e-3)
        assert (training.decay_at, training.decay_by) == ((0.8,), 0.2)
        found_semi = semi and (semi.kind, semi.weight, semi.ramp_up, semi.epsilon, semi.xi)
        weights = {"pi": 0.5, "vat": 0.03}
        assert found_semi == (None if kind == "none" else (kind, weights[kind], 0.4, 6.0, 1e-6))


def test_transfer_at_paper_scale_is_the_paper_protocol():
    found = runner("table3")
    assert found.seeds == [0, 1, 2, 3, 4]
    assert list(found.configs) == ["cifar10", "food101", "stanford_cars"]
    for name, config in found.configs.items():
        assert (config.epochs, config.batch_size, config.learning_rate) == (100, 64, 3e-4)
        assert (config.data.name, config.data.limit, config.data.augment) == (name, None, "none")
        assert config.model.startswith("timm:resnet50")
        adapt = found.adapt_run_config(config).adapt_config
        assert (adapt.labels, adapt.protocol, adapt.epochs, adapt.batch_size) == ("new", "paper", 100, 64)
        assert (adapt.kl_weights, adapt.seeds, adapt.learning_rate) == ((0.01,), (0, 1, 2, 3, 4), 3e-4)
    cifar = found.configs["cifar10"]
    assert (cifar.data.size, cifar.data.margin) == (8 * 32, 1.0)
    assert cifar.ood == ("svhn", "food101", "stanford_cars")


def test_the_prior_of_belief_matching_is_that_of_the_loss():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([0, 3, 1, 1, 2])
    method = build("belief_matching", kl_weight=0.02, prior=2.5)
    expected = belief_matching_loss(logits, targets, kl_weight=0.02, prior=2.5)
    assert method.objective(logits, targets).item() == expected.item()
    assert method.options == {"kl_weight": 0.02, "prior": 2.5}
    assert build("belief_matching", kl_weight=0.02).options == {"kl_weight": 0.02}
    with pytest.raises(ValueError, match="`prior`"):
        build("belief_matching", kl_weight=0.02, prior=0.0)


# Runs that are shared


def test_tables_and_figures_share_their_runs():
    runs = {name: set(runner(name, scale="cpu").costs()) for name in REPRODUCTIONS}
    assert runs["figure-ood"] < runs["figure-reliability"]
    assert runs["figure-representation"] < runs["ablation-kl"]
    assert runs["figure-transfer"] < runs["table3"]
    expected = runner("figure-reliability", scale="cpu").expected()
    ensembles = {name for name, config in expected.items() if config.method.name == "ensemble"}
    assert runs["figure-reliability"] - ensembles < runs["table1"]
    assert len(runs["figure-beta"] & runs["table1"]) == 3  # β = 1 and the first λ of the search
    controls = runner("controls", scale="cpu").configs  # the middle of the data sizes is one of its arms
    assert fingerprint(controls["size/1500"]) == fingerprint(controls["cifar10/preact_resnet18/belief_0.01"])


def test_data_directories_do_not_change_what_is_run(tmp_path, cifar_config):
    moved = with_data_dir(cifar_config, f"{tmp_path}")
    assert (moved.data.directory, moved.ood) == (f"{tmp_path}", ("svhn",))
    other = replace(moved, data=replace(moved.data, name="cifar100"))
    assert fingerprint(moved) == fingerprint(cifar_config) != fingerprint(other)
    assert required_datasets([cifar_config, moved, other]) == ["cifar10", "svhn", "cifar100"]


# Differences from the paper


@pytest.mark.parametrize("scale", SCALES)
def test_the_scale_and_the_differences_from_the_paper_are_listed(scale):
    """Each setting that differs is listed, with the arms in which it does; the registry adds notes."""
    parts = []
    for name in REPRODUCTIONS:
        found, notes = runner(name, scale=scale), reproduction(name).notes
        assert [one for one in found.differences() if one in notes] == list(notes)
        parts += ["", f"{name}: {found.scale_words()}"]
        parts += [f"- {one}" for one in found.differences() if one not in notes]
    assert_golden(f"reproduce/differences-{scale}.txt", "\n".join(parts[1:]))


def test_a_setting_of_the_user_is_a_difference():
    found = runner("table1", settings=("training.weight_decay=5e-4",), seeds=2)
    assert found.differences()[:2] == [
        "`training.weight_decay`: 0.0005 instead of 0.0001.",
        "Seeds: 2 instead of 5.",
    ]
    assert found.scale_words() == "paper scale with changed settings"
    notes = list(reproduction("table1").notes)
    assert runner("table1", settings=("engine.precision=32",)).differences() == notes
    (*half, precision) = runner("table1", settings=("engine.precision=bf16",)).differences()
    assert half == notes and "bf16" in precision
    weights = runner("table3", settings=("transfer.weights=/somewhere/resnet50.pt",)).differences()
    assert "Weights: resnet50.pt instead of those of its name." in weights
    assert not any("Keras" in sentence for sentence in weights)  # as where the weights are those of the name


def test_images_and_classes_that_are_missing_are_differences(cifar_config):
    complete = {"train": 40_000, "validation": 10_000, "test": 10_000}
    assert data_sentences(cifar_config, complete, 10) == ([], [])
    missing = data_sentences(cifar_config, complete | {"train": 12_000, "test": 500}, 10)
    assert missing[0] == [
        "Training images: 12,000 of cifar10 instead of 40,000.",
        "Test images: 500 of cifar10 instead of 10,000.",
    ]
    semi = config_from(with_method(recipe("semi-vat"), "softmax"))
    assert data_sentences(semi, {"train": 4000, "validation": 5000, "test": 10_000}, 10) == ([], [])
    assert ood_sentences({"svhn": 26_032, "noise": 3, "food101": 147}) == [
        "OOD images: 147 of food101 instead of 25,250."
    ]
    imagenet = runner("table2", scale="cpu").configs["ResNeXt-50/softmax"]
    assert data_sentences(imagenet, complete, 4)[1] == ["Classes: 4 instead of 1,000."]
    assert data_sentences(imagenet, complete, 1000)[1] == []


def test_the_note_of_a_row_names_the_chosen_value_and_divergences():
    scores = Scores(9, error=0.1, nll=0.2, brier=0.1, ece=0.1, mean_confidence=0.9)
    note = arm_note([None, None], [Trial("kl_weight", 0.01, scores, chosen=True)], [0.003, 0.001])
    assert note == "λ = 0.01 by validation (0.003, 0.001 diverged); 2 of 2 diverged"


# Costs, list and dry run


def test_the_list_has_the_runs_and_times_of_both_scales(tmp_path, capsys):
    assert main(["reproduce", "list", "--out", f"{tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert_golden("reproduce/list.txt", shown)
    together = {run for name in REPRODUCTIONS for run in runner(name, scale="cpu").costs()}
    assert f"{len(together)} at CPU scale" in shown


def test_times_grow_with_the_work(cifar_config):
    def seconds(**options):
        return two_core_seconds(replace(cifar_config, model=replace(cifar_config.model, options=options)))

    assert seconds(width=128) == pytest.approx(4 * seconds())
    assert seconds(stem_stride=2) < seconds() / 2
    semi = {key: two_core_seconds(config) for key, config in runner("table4").configs.items()}
    assert semi["none/softmax"] < semi["pi/softmax"] < semi["vat/softmax"]
    five = two_core_seconds(config_from(with_method(recipe("cifar"), "ensemble", members=5)))
    assert five == pytest.approx(5 * seconds())
    assert two_core_seconds(replace(cifar_config, data=replace(cifar_config.data, name="photos/"))) is None


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("table1", "model.options.width=0"),
        ("table1", "model.options.width=wide"),
        ("table1", "model.options.width=[1]"),
        ("table2", "model.options.width=4"),
        ("table2", "training.epochs=1"),
    ],
)
def test_networks_of_unknown_speed_have_no_time(name, setting, capsys):
    """An error about an invalid width comes where the network is built."""
    assert set(runner(name, settings=(setting,)).costs().values()) == {None}
    assert main(["reproduce", name, "--set", setting, "--dry-run"]) == 0
    assert capsys.readouterr().err == ""


def test_a_dry_run_shows_every_configuration_and_leaves_nothing(tmp_path, capsys):
    assert main(["reproduce", "table1", "--dry-run", "--out", f"{tmp_path / 'x'}"]) == 0
    shown = capsys.readouterr().out
    configs = [config_from(yaml.safe_load(part)) for part in shown.split("---\n")[1:]]
    assert configs == list(runner("table1").configs.values())
    assert "# runs in all 104, of which 0 are finished" in shown
    assert not (tmp_path / "x").exists()
