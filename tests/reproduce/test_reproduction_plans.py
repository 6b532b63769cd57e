"""What each reproduction would run: the paper's settings and numbers, shared runs, honest differences."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from beliefmatch import belief_matching_loss
from beliefmatch.cli import main
from beliefmatch.experiments.config import config_from, fingerprint, recipe, with_method
from beliefmatch.experiments.records import Diverged, Scores, Trial
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.search import search_of
from beliefmatch.methods import build
from beliefmatch.reproduce import REPRODUCTIONS, reproduction
from beliefmatch.reproduce.ablation import WITHOUT_KL_ERRORS
from beliefmatch.reproduce.beta import EXPONENTS
from beliefmatch.reproduce.differences import count_sentences, ood_sentences
from beliefmatch.reproduce.outcome import Trained
from beliefmatch.reproduce.places import needed, with_data_dir
from beliefmatch.reproduce.reliability import ECES
from beliefmatch.reproduce.scales import SCALES, training_images, two_core_seconds
from beliefmatch.reproduce.semi_supervised import ERRORS as SEMI_ERRORS
from beliefmatch.reproduce.table1 import ERRORS
from beliefmatch.reproduce.table2 import TOP1, TOP5
from beliefmatch.reproduce.transfer import ERRORS as TRANSFER_ERRORS
from reproduced import work

# As the paper prints them: CIFAR-10 / CIFAR-100, or as the heads of the tables say.
PRINTED = {
    "18 error": {
        "softmax": "6.13±.13 / 26.44±.33",
        "mc_last": "6.13±.08 / 26.15±.10",
        "mc_all": "6.50±.14 / 27.32±.45",
        "belief_matching": "5.93±.07 / 24.19±.34",
    },
    "50 error": {
        "softmax": "5.76±.06 / 25.00±.23",
        "mc_last": "5.75±.22 / 25.17±.09",
        "mc_all": "5.84±.23 / 26.74±.37",
        "belief_matching": "5.59±.05 / 23.86±.37",
        "without_kl": "5.68 / 24.69",
    },
    "50 ece": {
        "softmax": "3.82 / 13.48",
        "mc_last": "3.78 / 13.52",
        "mc_all": "1.50 / 9.76",
        "ensemble": "1.04 / 3.54",
        "belief_matching": "1.66 / 4.25",
    },
}
PRINTED_TABLE2 = {
    "ResNeXt-50": {"softmax": "22.23 / 6.36", "belief_matching": "22.03 / 6.29"},
    "ResNeXt-101": {"softmax": "20.72 / 5.59", "belief_matching": "20.23 / 5.26"},
}
PRINTED_TABLE3 = {
    "softmax": "5.44±.10 / 28.49±.08 / 42.99±.14",
    "belief_matching": "5.03±.04 / 26.41±.07 / 39.99±.20",
}
PRINTED_TABLE4 = {"softmax": "16.52±.21 / 13.33±.37", "belief_matching": "16.01±.36 / 12.40±.23"}


def printed(text):
    numbers = [re.fullmatch(r"([\d.]+)(?:±([\d.]+))?", one.strip()) for one in text.split("/")]
    return [(float(one[1]), float(one[2]) if one[2] else None) for one in numbers if one]


def told(reported):
    return reported.value, reported.deviation


def test_every_name_leads_to_its_reproduction():
    for name in REPRODUCTIONS:
        found = reproduction(name)
        assert found.id == name
        assert found.title
        assert found.place


def test_the_paper_numbers_are_those_that_it_prints():
    ours = {"18 error": ERRORS, "50 error": ERRORS | WITHOUT_KL_ERRORS, "50 ece": ECES}
    for table, ways in PRINTED.items():
        for way, text in ways.items():
            keys = [f"{data}/preact_resnet{table[:2]}/{way}" for data in ("cifar10", "cifar100")]
            assert [told(ours[table][key]) for key in keys] == printed(text)
    assert len(ERRORS) == 16
    assert len(ECES) == 10
    for network, ways in PRINTED_TABLE2.items():
        for way, text in ways.items():
            assert [told(TOP1[f"{network}/{way}"]), told(TOP5[f"{network}/{way}"])] == printed(text)
    for way, text in PRINTED_TABLE3.items():
        sets = ("cifar10", "food101", "stanford_cars")
        assert [told(TRANSFER_ERRORS[f"{one}/{way}"]) for one in sets] == printed(text)
    for way, text in PRINTED_TABLE4.items():
        assert [told(SEMI_ERRORS[f"{one}/{way}"]) for one in ("pi", "vat")] == printed(text)


@pytest.mark.parametrize(
    "name", ["table1", "ablation-kl", "figure-reliability", "figure-ood", "figure-representation"]
)
def test_cifar_at_paper_scale_is_the_paper_protocol(name):
    found = work(name)
    assert len(found.seeds) == 5
    for config in found.configs.values():
        training = config.training
        assert (training.epochs, training.batch_size, training.optimizer) == (200, 128, "sgd")
        assert (training.momentum, training.weight_decay, training.clip_norm) == (0.9, 1e-4, 1.0)
        assert not training.clip_each
        rates = [training.rate(epoch) for epoch in (0, 1, 2, 3, 4, 5, 99, 100, 149, 150, 199)]
        expected = [0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
        assert rates == pytest.approx(expected)
        assert (config.data.validation, config.data.limit, config.data.augment) == (10_000, None, "crop_flip")
        assert training_images(config) == 40_000
        assert config.model.options == {}
        assert config.ood == ("svhn",)
        _is_the_paper_method(config)


def _is_the_paper_method(config):
    search, options = search_of(config), config.method.options
    if config.method.name == "belief_matching":
        assert search == ("kl_weight", (0.01, 0.003, 0.001))
    elif config.method.name == "mc_dropout":
        assert search == ("rate", (0.1, 0.2, 0.5))
        assert options["samples"] == 100
    else:
        assert search is None
        assert options == ({"members": 5} if config.method.name == "ensemble" else {})


def test_table1_has_every_network_set_and_method():
    found = work("table1")
    cells = {
        (p.model.name, p.data.name, p.method.name, p.method.options.get("where"))
        for p in found.configs.values()
    }
    ways = [("softmax", None), ("mc_dropout", "last"), ("mc_dropout", "all"), ("belief_matching", None)]
    networks, sets = ("preact_resnet18", "preact_resnet50"), ("cifar10", "cifar100")
    assert cells == {(network, data, *way) for network in networks for data in sets for way in ways}
    # softmax five times; the others each of three values once, and the chosen four times more
    assert len(found.expected) == 4 * (5 + 3 * (3 + 4))


def test_imagenet_at_paper_scale_is_the_paper_protocol():
    found = work("table2")
    assert found.seeds == [0]
    configs = {key: (config.model.name, config.method.options) for key, config in found.configs.items()}
    assert configs == {
        "ResNeXt-50/softmax": ("timm:resnext50_32x4d", {}),
        "ResNeXt-50/belief_matching": ("timm:resnext50_32x4d", {"kl_weight": 0.001}),
        "ResNeXt-101/softmax": ("timm:resnext101_32x8d", {}),
        "ResNeXt-101/belief_matching": ("timm:resnext101_32x8d", {"kl_weight": 0.0001}),
    }
    for config in found.configs.values():
        assert (config.training.epochs, config.training.batch_size) == (100, 256)
        assert (config.data.name, config.data.size, config.training.weight_decay) == (
            "imagenet-1k",
            224,
            1e-4,
        )
        rates = [config.training.rate(epoch) for epoch in (0, 1, 5, 29, 30, 59, 60, 89, 90)]
        assert rates == pytest.approx([0.01, 0.02, 0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4])
        assert (config.training.optimizer, config.training.momentum, config.training.clip_norm) == (
            "sgd",
            0.9,
            1.0,
        )


def test_the_sweep_of_priors_spans_the_paper_range_in_both_ways():
    found = work("figure-beta")
    by_way = {"alone": {}, "joint": {}}
    for key, config in found.configs.items():
        way, exponent = key.rsplit("/", 2)[1:]
        by_way[way][int(exponent)] = (
            config.method.options.get("prior", 1.0),
            config.method.options["kl_weight"],
        )
    assert (min(EXPONENTS["paper"]), max(EXPONENTS["paper"])) == (-8, 16)
    assert {-2, -1, 4, 8} <= set(EXPONENTS["paper"])
    for exponent, (prior, kl_weight) in by_way["alone"].items():
        assert (prior, kl_weight) == (pytest.approx(math.exp(exponent)), 0.01)
    for exponent, (prior, kl_weight) in by_way["joint"].items():
        assert prior == pytest.approx(math.exp(exponent))
        assert prior * kl_weight == pytest.approx(0.01)
    assert {(config.model.name, config.data.name) for config in found.configs.values()} == {
        ("preact_resnet18", "cifar10")
    }
    assert len(found.expected) == 5 * (2 * len(EXPONENTS["paper"]) - 1)  # β = 1 is in both


def test_semi_supervised_at_paper_scale_is_the_paper_protocol():
    found = work("table4")
    assert len(found.seeds) == 5
    for key, config in found.configs.items():
        kind, method = key.split("/")
        assert (config.model.name, config.model.options) == ("wrn28_2", {"activation": "leaky_relu"})
        assert (config.data.name, config.data.validation, config.data.labels) == ("cifar10", 5000, 4000)
        assert config.method.options == ({} if method == "softmax" else {"kl_weight": 0.01})
        assert (config.training.optimizer, config.training.batch_size) == (
            "adam",
            50,
        )  # and 50 without labels
        assert config.training.epochs * (45_000 // 50) == pytest.approx(500_000, rel=1e-3)  # steps
        assert config.training.learning_rate == (3e-4 if kind == "pi" else 3e-3)
        assert (config.training.decay_at, config.training.decay_by) == ((0.8,), 0.2)
        if kind == "none":
            assert config.semi is None
            continue
        assert (config.semi.kind, config.semi.weight) == (kind, {"pi": 0.5, "vat": 0.03}[kind])
        assert config.semi.ramp_up == 200_000 / 500_000
        assert (config.semi.epsilon, config.semi.xi) == (6.0, 1e-6)


def test_transfer_at_paper_scale_is_the_paper_protocol():
    found = work("table3")
    assert len(found.seeds) == 5
    assert list(found.configs) == ["cifar10", "food101", "stanford_cars"]
    for name, config in found.configs.items():
        assert (config.epochs, config.batch_size, config.learning_rate, config.kl_weight) == (
            100,
            64,
            3e-4,
            0.01,
        )
        assert (config.data.name, config.data.limit, config.data.augment) == (name, None, "none")
        assert config.model.startswith("timm:resnet50")
        adapt_config = found._adaptation(config).adapt_config
        assert (adapt_config.labels, adapt_config.optimizer, adapt_config.patience) == ("new", "adam", None)
        assert (adapt_config.kl_weights, adapt_config.seeds, adapt_config.learning_rate) == (
            (0.01,),
            (0, 1, 2, 3, 4),
            3e-4,
        )
    assert (found.configs["cifar10"].data.size, found.configs["cifar10"].data.margin) == (8 * 32, 1.0)
    assert found.configs["cifar10"].ood == ("svhn", "food101", "stanford_cars")
    assert set(work("figure-transfer").costs()) < set(found.costs())  # one of the three adaptations


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_arms_are_the_same_at_the_scales_but_for_sweeps(name):
    keys = {scale: set(work(name, scale=scale).configs) for scale in SCALES}
    if name == "figure-beta":
        assert keys["tiny"] < keys["cpu"] < keys["paper"]
        return
    kept = {scale: {key for key in own if not key.startswith("size/")} for scale, own in keys.items()}
    assert kept["paper"] == kept["cpu"] == kept["tiny"] != set()


def test_tables_and_figures_share_their_runs():
    runs = {name: set(work(name, scale="cpu").costs()) for name in REPRODUCTIONS}
    assert runs["figure-ood"] < runs["figure-reliability"]
    assert runs["figure-representation"] < runs["ablation-kl"]
    ensembles = {
        name
        for name, config in work("figure-reliability", scale="cpu").expected.items()
        if config.method.name == "ensemble"
    }
    assert runs["figure-reliability"] - ensembles < runs["table1"]
    assert len(runs["figure-beta"] & runs["table1"]) == 3  # β = 1 and the first λ of the search
    controls = work("controls", scale="cpu").configs  # and the middle of the data sizes is one of its arms
    assert fingerprint(controls["size/1500"]) == fingerprint(controls["cifar10/preact_resnet18/belief_0.01"])


def test_cpu_scale_is_told_and_each_difference_with_it():
    found = work("table1", scale="cpu")
    assert found.words == "CPU scale: 1,000 images, 80 epochs, width 16 or 8"
    told = found.differences
    assert "Epochs: 80 instead of 200." in told
    assert "Stride of the first convolution: 2 instead of 1." in told
    assert "Training images: 1,000 instead of all." in told
    assert "Images in a batch: 32 instead of 128." in told
    assert "Validation images: 1,000 instead of 10,000." in told
    assert not any("validate_every" in one for one in told)
    assert "Seeds: 3 instead of 5." in told
    assert work("figure-beta", scale="cpu").words == "CPU scale: 1,000 images, 80 epochs, width 16"


def test_a_setting_of_the_user_is_told_as_a_difference():
    told = work("table1").differences
    assert told[:-1] == list(reproduction("table1").notes) and "the paper tells none" in told[-1]
    assert work("table1").words == "paper scale"
    found = work("table1", settings=("training.weight_decay=5e-4",), seeds=2)
    assert "`training.weight_decay`: 0.0005 instead of 0.0001." in found.differences
    assert found.words == "paper scale with changed settings"
    assert "Seeds: 2 instead of 5." in found.differences


def test_images_that_are_not_there_and_precision_are_told():
    config = config_from(with_method(recipe("cifar"), "softmax"))
    whole = {"train": 40_000, "validation": 10_000, "test": 10_000}
    assert count_sentences(config, whole) == []
    assert count_sentences(config, whole | {"train": 12_000, "test": 500}) == [
        "Training images: 12,000 of cifar10, where 40,000 were meant.",
        "Test images: 500 of cifar10, where 10,000 were meant.",
    ]
    semi = config_from(with_method(recipe("semi-vat"), "softmax"))
    assert count_sentences(semi, {"train": 4000, "validation": 5000, "test": 10_000}) == []
    assert work("table1", settings=("engine.precision=32",)).differences == list(reproduction("table1").notes)
    assert "Numbers are of precision bf16; the paper tells none." in (
        work("table1", settings=("engine.precision=bf16",)).differences
    )
    assert "`model.options.depth`: 10 instead of 28." in work("table4", scale="cpu").differences


def test_a_choice_tells_what_diverged_on_the_way():
    arm = next(arm for arm in reproduction("table1").arms("tiny") if arm.key.endswith("/belief_matching"))
    scores = Scores(9, error=0.1, nll=0.2, brier=0.1, ece=0.1, mean_confidence=0.9)
    trial = Trial("kl_weight", 0.01, scores, chosen=True)
    ended = [Diverged("a", "it did"), Diverged("b", "it did")]
    homes = [RunDirectory(Path(name)) for name in "ab"]
    trained = Trained(arm, arm.config, [0, 1], ended, homes, [trial], lost=(0.003, 0.001))
    assert trained.note == "λ = 0.01 by validation (0.003, 0.001 diverged); 2 of 2 diverged"


def test_data_directories_do_not_change_what_is_run(tmp_path):
    config = config_from(with_method(recipe("cifar"), "softmax"))
    moved = with_data_dir(config, f"{tmp_path}")
    assert (moved.data.directory, moved.ood) == (f"{tmp_path}", ("svhn",))
    other = with_data_dir(replace(config, data=replace(config.data, name="cifar100")), f"{tmp_path}")
    assert fingerprint(moved) == fingerprint(config) != fingerprint(other)
    assert needed([config, moved, other]) == ["cifar10", "svhn", "cifar100"]


def test_times_grow_with_what_is_trained():
    config = config_from(with_method(recipe("cifar"), "softmax"))
    once = two_core_seconds(config)
    five = two_core_seconds(config_from(with_method(recipe("cifar"), "ensemble", members=5)))
    assert five == pytest.approx(5 * once)
    longer = replace(config, training=replace(config.training, epochs=400))
    assert 1.9 < two_core_seconds(longer) / once < 2.1
    assert two_core_seconds(replace(config, data=replace(config.data, name="photos/"))) is None
    semi = {key: two_core_seconds(config) for key, config in work("table4").configs.items()}
    assert semi["none/softmax"] < semi["pi/softmax"] < semi["vat/softmax"]
    coarse = replace(config, model=replace(config.model, options={"stem_stride": 2}))
    assert two_core_seconds(coarse) < once / 2


def test_the_prior_of_belief_matching_is_that_of_the_loss():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([0, 3, 1, 1, 2])
    method = build("belief_matching", kl_weight=0.02, prior=2.5)
    expected = belief_matching_loss(logits, targets, kl_weight=0.02, prior=2.5)
    assert method.objective(logits, targets).item() == expected.item()
    assert method.options == {"kl_weight": 0.02, "prior": 2.5}
    assert build("belief_matching", kl_weight=0.02).options == {"kl_weight": 0.02}
    with pytest.raises(ValueError, match="`prior` must be positive"):
        build("belief_matching", kl_weight=0.02, prior=0.0)


def test_differences_say_where_they_are():
    told = work("table1", scale="cpu").differences
    assert "Samples of MC dropout: 10 instead of 100 (MC dropout, all layers)." in told
    assert "Rate of dropout: 0.1 instead of auto (MC dropout, last layer; MC dropout, all layers)." in told
    widths = next(one for one in told if one.startswith("Width"))
    assert widths == (
        "Width of the network: 16 instead of 64 (ResNet-18, CIFAR-10; ResNet-18, CIFAR-100); "
        "8 instead of 64 (ResNet-50, CIFAR-10; ResNet-50, CIFAR-100)."
    )
    told = work("table4", scale="cpu").differences
    assert "`semi.weight`: 5 instead of 0.5 (Pi-model: softmax); " in next(t for t in told if "semi.w" in t)
    assert ood_sentences({"svhn": 26_032, "noise": 3, "food101": 147}) == [
        "OOD images: 147 of food101 instead of 25,250."
    ]
    assert not any("Seeds" in one for one in work("controls", scale="cpu").differences)  # the paper has none


def test_the_list_has_every_name_and_both_scales(capsys):
    assert main(["reproduce", "list"]) == 0
    shown = capsys.readouterr().out
    for name in REPRODUCTIONS:
        assert name in shown
    told = shown[shown.index("figure-ood") : shown.index("figure-rotation")]
    paper, cpu = (len(work("figure-ood", scale=scale).expected) for scale in ("paper", "cpu"))
    assert re.search(rf" {paper} +\d+ days +{cpu} +[\d.]+ (h|min) +\n", told)
    together = {run for name in REPRODUCTIONS for run in work(name, scale="cpu").costs()}
    assert f"{len(together)} at CPU scale" in shown


def test_a_dry_run_shows_every_plan_and_leaves_nothing(tmp_path, capsys):
    assert main(["reproduce", "table1", "--dry-run", "--out", f"{tmp_path / 'x'}"]) == 0
    shown = capsys.readouterr().out
    configs = [config_from(_yaml(part)) for part in shown.split("---\n")[1:]]
    assert configs == list(work("table1").configs.values())
    assert "# runs in all 104, of which 0 are finished" in shown
    assert not (tmp_path / "x").exists()


def _yaml(text):
    import yaml

    return yaml.safe_load(text)


def test_weights_of_ones_own_are_told_by_the_name_of_their_file():
    own = work("table3", settings=("transfer.weights=/somewhere/resnet50.pt",))
    assert "Weights: resnet50.pt instead of those of its name." in own.differences
    named = "Weights are those that come with the network's name; the paper's are of Keras."
    assert named not in own.differences and named in work("table3").differences
