"""Configurations: strict to read, exact to write, and the paper's values in the recipes."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.config import (
    RECIPES,
    MethodConfig,
    ModelConfig,
    RunConfig,
    config_from,
    fingerprint,
    merged,
    overridden,
    recipe,
    to_mapping,
    with_method,
)
from beliefmatch.train.config import EngineConfig, TrainConfig

SMALL = {"method": {"name": "softmax"}, "model": {"name": "digits"}}


def config_of(**sections):
    return config_from({**SMALL, **sections})


def test_plans_are_read_without_torch():
    code = (
        "import sys\nfrom beliefmatch.experiments.config import *\n"
        "print(fingerprint(config_from(recipe('cifar'))) and 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_what_is_not_given_keeps_its_default():
    assert config_of() == RunConfig(MethodConfig("softmax"), ModelConfig("digits"))


@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_survives_json(name):
    config = config_from(recipe(name))
    assert config_from(json.loads(json.dumps(to_mapping(config), allow_nan=False))) == config


def test_every_section_survives_json():
    config = RunConfig(
        method=MethodConfig("mc_dropout", {"rate": 0.5, "where": "all", "deep": {"a": [1, None, True]}}),
        model=ModelConfig("wide_resnet", {"depth": 10}),
        data=DataConfig(name="cifar10", directory="/somewhere", validation=10000.0, limit=7, size=32),
        training=TrainConfig(epochs=3, warmup=(), clip_norm=None, ema=0.99, decay_at=(0.1, 0.7)),
        engine=EngineConfig(devices="2", precision="16", threads=4),
        seed=2**62,
        ood=("svhn", "cifar100"),
        ood_training="svhn",
    )
    assert config_from(json.loads(json.dumps(to_mapping(config)))) == config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"training": {"epoch": 3}}, "`training.epoch` is not a setting; did you mean `training.epochs`?"),
        ({"trainning": {}}, "`trainning` is not a setting; did you mean `training`?"),
        ({"data": {"xyz": 1}}, "`data.xyz` is not a setting; there are name, directory, "),
        ({"training": {"epochs": "many"}}, "`training.epochs` must be a whole number, got str 'many'."),
        ({"training": {"epochs": 1.5}}, "`training.epochs` must be a whole number, got float 1.5."),
        ({"training": {"epochs": True}}, "`training.epochs` must be a whole number, got bool True."),
        ({"training": {"epochs": None}}, "`training.epochs` must be a whole number, got NoneType"),
        ({"training": {"learning_rate": "fast"}}, "`training.learning_rate` must be a number, got str"),
        ({"training": {"learning_rate": True}}, "`training.learning_rate` must be a number, got bool"),
        ({"training": {"momentum": float("nan")}}, "`training.momentum` must be a finite number"),
        ({"training": {"warmup": 0.1}}, "`training.warmup` must be a list, each entry a number, got"),
        ({"training": {"warmup": [0.1, "x"]}}, "`training.warmup.1` must be a number, got str 'x'."),
        ({"training": {"warmup": [-0.1]}}, "`warmup` must be finite and not negative, got -0.1"),
        ({"training": {"optimizer": "lion"}}, "`training.optimizer` must be one of sgd, adam, got"),
        ({"training": {"clip_each": "no"}}, "`training.clip_each` must be true or false, got str 'no'."),
        ({"training": {"clip_each": 1}}, "`training.clip_each` must be true or false, got int 1."),
        ({"training": []}, "`training` must be a mapping of names to values, got list []."),
        ({"method": "softmax"}, "`method` must be a mapping of names to values, got str 'softmax'."),
        ({"method": {"name": "sofmax"}}, "got 'sofmax'; did you mean softmax?"),
        ({"method": {"options": {}}}, "`method.name` must be given."),
        ({"method": {"name": "softmax", "options": {"a": {1, 2}}}}, "`method.options.a` must be a finite"),
        ({"method": {"name": "softmax", "options": {1: 2}}}, "`method.options` must be a mapping whose"),
        ({"defaults": {"belief_maching": {}}}, "did you mean `defaults.belief_matching`?"),
        ({"defaults": {"softmax": 3}}, "`defaults.softmax` must be a mapping"),
        ({"defaults": 3}, "`defaults` must be a mapping"),
        ({"seed": -1}, r"`seed` must lie in [0, 2**63), got -1."),
        ({"seed": 2**63}, "`seed` must lie in"),
        ({"ood": "svhn"}, "`ood` must be a list, each entry text, got str 'svhn'."),
        ({"engine": {"precision": "8"}}, "`engine.precision` must be one of auto, 32, bf16, 16, got"),
        ({"data": {"validation": 0}}, "`validation` must be a share or a number above 0"),
    ],
)  # fmt: skip
def test_mistakes_are_named_in_one_line(given, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        config_of(**given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [None, [], "softmax"])
def test_a_plan_is_made_of_a_mapping(given):
    with pytest.raises((TypeError, ValueError), match="must be a mapping"):
        config_from(given)


def test_numbers_and_words_are_taken_as_they_are_meant():
    config = config_of(
        training={"learning_rate": "1e-4", "weight_decay": 0, "epochs": 3.0, "warmup": [1, "5E-1"]},
        engine={"devices": 2, "precision": 16},
        data={"validation": 10000},
    )
    assert (config.training.learning_rate, config.training.weight_decay) == (1e-4, 0.0)
    assert type(config.training.weight_decay) is float and type(config.training.epochs) is int
    assert config.training.warmup == (1.0, 0.5)
    assert (config.engine.devices, config.engine.precision) == ("2", "16")


def test_methods_take_the_defaults_of_the_recipe_where_they_are_not_told():
    base = recipe("cifar-cpu")
    assert config_from(base).method == MethodConfig("belief_matching", {"kl_weight": 0.01})
    assert config_from(with_method(base, "softmax")).method == MethodConfig("softmax")
    told = config_from(with_method(base, "mc_dropout", where="all"))
    assert told.method.options == {"rate": 0.1, "where": "all"}
    assert config_from(with_method(base, "belief_matching", kl_weight=0.5)).method.options["kl_weight"] == 0.5


def test_merging_goes_key_by_key_and_changes_neither():
    base = {"a": {"b": 1, "c": [1, 2]}, "d": 4}
    over = {"a": {"c": [3], "e": {"f": 5}}}
    kept = json.dumps([base, over])
    result = merged(base, over)
    assert result == {"a": {"b": 1, "c": [3], "e": {"f": 5}}, "d": 4}
    result["a"]["e"]["f"] = 6
    result["a"]["c"].append(7)
    assert json.dumps([base, over]) == kept


def test_options_of_another_name_do_not_carry_over():
    base = {"model": {"name": "preact_resnet18", "options": {"width": 16}}}
    assert merged(base, {"model": {"name": "wide_resnet"}}) == {"model": {"name": "wide_resnet"}}
    assert merged(base, {"model": {"name": "preact_resnet18"}}) == base


def test_single_settings_go_over_a_recipe():
    settings = [
        "training.epochs=3",
        "training.decay_at=[0.5, 0.9]",
        "training.learning_rate = 1e-4",
        "training.ema=",
        "training.clip_norm=null",
        "method.options.kl_weight=0.01",
        "data.directory=/a/b=c",
        "ood=[svhn, cifar100]",
        "seed=7",
        "seed=8",
    ]
    config = config_from(overridden(recipe("cifar"), settings))
    assert config.training == replace(
        config_from(recipe("cifar")).training,
        epochs=3,
        decay_at=(0.5, 0.9),
        learning_rate=1e-4,
        clip_norm=None,
    )
    assert config.method.options == {"kl_weight": 0.01}
    assert (config.data.directory, config.ood, config.seed) == ("/a/b=c", ("svhn", "cifar100"), 8)


def test_options_may_be_told_before_the_name_they_belong_to():
    settings = ["model.options.depth=10", "model.name=wide_resnet"]
    assert overridden(recipe("cifar-cpu"), settings)["model"] == {
        "name": "wide_resnet",
        "options": {"depth": 10},
    }


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.epoch=3", "`training.epoch` is not a setting; did you mean `training.epochs`?"),
        ("trainig.epochs=3", "`trainig` is not a setting; did you mean `training`?"),
        ("method.optoins.x=3", "`method.optoins` is not a setting; did you mean `method.options`?"),
        ("seed.x=3", "`seed` is one setting and has none below it, got `seed.x`."),
        ("training.epochs.x=3", "`training.epochs` is one setting"),
        ("training.epochs", "must be written key=value, got 'training.epochs'."),
        ("=3", "must be written key=value"),
        ("training..epochs=3", "must be written key=value"),
        ("training.decay_at=[0.5", "config: training.decay_at: '[0.5' line 1: "),
        ("training.epochs=!!python/name:os.system", "could not determine a constructor"),
    ],
)
def test_settings_that_are_none_are_refused(setting, words):
    with pytest.raises(ValueError) as caught:
        overridden(recipe("digits"), [setting])
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_unknown_recipes_are_told_the_nearest():
    with pytest.raises(ValueError, match=r"got 'cifra'; did you mean cifar\?"):
        recipe("cifra")


def test_a_recipe_may_be_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("method: {name: softmax}\nmodel: {name: digits}\ntraining: {learning_rate: 1e-4}\n")
    assert config_from(recipe(path)).training.learning_rate == 1e-4


def test_cifar_is_the_papers_table_1():
    config = config_from(recipe("cifar"))
    assert config.training == TrainConfig(
        epochs=200,
        batch_size=128,
        optimizer="sgd",
        learning_rate=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        warmup=(0.1, 0.2, 0.4, 0.6, 0.8),
        schedule="step",
        decay_at=(0.5, 0.75),
        decay_by=0.1,
        clip_norm=1.0,
        clip_each=False,
    )
    rates = [config.training.rate(epoch) for epoch in (0, 1, 2, 3, 4, 5, 99, 100, 149, 150)]
    assert rates == pytest.approx([0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001])
    assert config.model == ModelConfig("preact_resnet18")
    assert (config.data.name, config.data.validation, config.data.augment) == ("cifar10", 10000, "crop_flip")
    assert config.method.options == {"kl_weight": "auto"}
    assert recipe("cifar")["defaults"]["mc_dropout"] == {"rate": "auto", "where": "last", "samples": 100}
    assert recipe("cifar")["defaults"]["ensemble"] == {"members": 5}


def test_the_release_clips_each_tensor_and_warms_up_alike():
    paper, release = (config_from(recipe(name)).training for name in ("cifar", "cifar-release"))
    assert [paper.rate(e) for e in range(200)] == pytest.approx([release.rate(e) for e in range(200)])
    assert replace(release, clip_each=False, warmup=paper.warmup) == paper
    assert config_from(recipe("cifar-release")).method.options == {"kl_weight": 0.01}


def test_imagenet_is_the_papers_table_2():
    config = config_from(recipe("imagenet"))
    assert (config.training.epochs, config.training.batch_size, config.training.weight_decay) == (
        100,
        256,
        1e-4,
    )
    rates = [config.training.rate(epoch) for epoch in (0, 4, 5, 29, 30, 59, 60, 89, 90)]
    assert rates == pytest.approx([0.01, 0.08, 0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4])
    assert config.model == ModelConfig("timm:resnext50_32x4d")
    assert config.method == MethodConfig("belief_matching", {"kl_weight": 0.001})
    assert (config.data.name, config.data.size) == ("imagenet-1k", 224)


def test_cifar_cpu_is_the_paper_made_small():
    paper, small = config_from(recipe("cifar")), config_from(recipe("cifar-cpu"))
    assert small.training == replace(paper.training, epochs=60)
    assert small.model.options == {"width": 16} and small.data.limit == 5000


def test_digits_are_trained_as_in_the_first_comparison():
    config = config_from(recipe("digits"))
    assert config.training == TrainConfig(
        epochs=30, batch_size=64, optimizer="adam", learning_rate=3e-3, weight_decay=0.0
    )
    assert config.method.options == {"kl_weight": 0.001}
    assert (config.data.validation, config.data.augment, config.ood) == (
        0.2,
        "none",
        ("rotations", "patches", "noise"),
    )


def test_a_fingerprint_is_the_same_in_every_process_and_order_of_keys():
    code = (
        "from beliefmatch.experiments.config import *\n"
        "mapping = dict(reversed(recipe('cifar').items()))\n"
        "mapping['training'] = dict(reversed(mapping['training'].items()))\n"
        "print(fingerprint(config_from(mapping)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == fingerprint(config_from(recipe("cifar"))), done.stderr
    assert re.fullmatch("[0-9a-f]{12}", done.stdout.strip())


@pytest.mark.parametrize(
    "setting",
    ["data.directory=/x", "data.workers=9", "engine.accelerator=cpu", "engine.devices=2", "engine.nodes=3",
     "engine.compile=true", "engine.threads=1"],
)  # fmt: skip
def test_where_and_how_fast_do_not_change_the_fingerprint(setting):
    base = recipe("digits")
    assert fingerprint(config_from(overridden(base, [setting]))) == fingerprint(config_from(base))


@pytest.mark.parametrize(
    "setting",
    ["seed=1", "training.epochs=31", "training.ema=0.9", "training.validate_every=2",
     "method.options.kl_weight=0.002", "ood=[noise]",
     "model.options.width=8", "data.limit=9", "data.split_seed=1", "engine.precision=bf16",
     "data.corrupt=skip", "data.margin=1", "data.mean=[0.5]\tdata.std=[0.5]"],
)  # fmt: skip
def test_all_else_changes_the_fingerprint(setting):
    base = recipe("digits")
    assert fingerprint(config_from(overridden(base, setting.split("\t")))) != fingerprint(config_from(base))


def test_settings_that_came_later_leave_earlier_runs_as_they_were():
    assert fingerprint(config_from(recipe("digits"))) == "5614f6417e14"
    assert fingerprint(config_from(recipe("imagenet"))) == "59d888f4b635"


def test_scaling_can_be_set_in_a_line():
    lines = ["data.mean=[0.5, 0.4, 0]", "data.std=[1, 0.2, 0.3]", "data.margin=1e0"]
    config = config_from(overridden(recipe("cifar"), lines))
    assert (config.data.mean, config.data.std, config.data.margin) == ((0.5, 0.4, 0.0), (1.0, 0.2, 0.3), 1.0)
    assert config_from(to_mapping(config)) == config


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (
            ["data.mean=[0.5]"],
            r"must be given together, as many of each, got \[0.5\] and none",
        ),
        (["data.mean=[0.5]", "data.std=[1, 1, 1]"], "as many of each"),
        (
            ["data.mean=[0.5, 1]", "data.std=[1, 1]"],
            r"`mean` must be 1 or 3 finite numbers",
        ),
        (["data.mean=[0]", "data.std=[0]"], "`std` must be above 0"),
        (["data.margin=0.9"], "`margin` must be at least 1, got 0.9"),
        (["data.mean=0.5"], "`data.mean` must be a list"),
    ],
)
def test_scaling_that_cannot_be_is_refused(lines, complaint):
    with pytest.raises(ValueError, match=complaint):
        config_from(overridden(recipe("cifar"), lines))


def test_a_ood_set_counts_by_its_name():
    one, other, third = (config_of(ood=[name]) for name in ("svhn=/a", "svhn=/b/c", "cars=/a"))
    assert fingerprint(one) == fingerprint(other) != fingerprint(third)


def test_equal_plans_have_equal_fingerprints():
    one, other = (
        config_of(method={"name": "belief_matching", "options": {"kl_weight": w}}) for w in (1, 1.0)
    )
    assert one == other and fingerprint(one) == fingerprint(other)
