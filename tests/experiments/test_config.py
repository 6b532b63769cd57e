"""Configurations: strict to read, exact to write, known by fingerprints; recipes have the paper's values."""

import json
import os
import re
import subprocess
import sys

import pytest
from msgspec.structs import asdict, replace

from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.config import (
    RECIPES,
    MethodConfig,
    ModelConfig,
    RunConfig,
    TeacherConfig,
    config_from,
    fingerprint,
    merged,
    overridden,
    recipe,
    to_mapping,
    with_method,
)
from beliefmatch.experiments.method_spec import label_of, parse_methods, with_spec
from beliefmatch.experiments.yaml_files import LARGEST, read_yaml, yaml_value
from beliefmatch.train.config import EngineConfig, TrainConfig

SMALL = {"method": {"name": "softmax"}, "model": {"name": "digits"}}
PINNED = {  # runs of earlier versions are found again by these
    "cifar": "5e28c49e2745",
    "cifar-cpu": "27cb4c8dbd2f",
    "cifar-release": "9344bdc6aae8",
    "digits": "5614f6417e14",
    "imagenet": "59d888f4b635",
    "images": "78aec75c6ad4",
}


def config_of(**sections):
    return config_from({**SMALL, **sections})


def config(*settings, base="digits"):
    return config_from(overridden(recipe(base), settings))


def python(code, **environment):
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_configurations_are_read_without_torch():
    code = "import sys\nfrom beliefmatch.experiments.config import *\n"
    code += "print(fingerprint(config_from(recipe('cifar'))) and 'torch' in sys.modules)"
    assert python(code) == "False"


def test_what_is_not_given_keeps_its_default():
    assert config_of() == RunConfig(method=MethodConfig("softmax"), model=ModelConfig("digits"))


WHOLE = RunConfig(
    method=MethodConfig("mc_dropout", {"rate": 0.5, "where": "all", "deep": {"a": [1, None, True]}}),
    model=ModelConfig("wide_resnet", {"depth": 10}),
    data=DataConfig(name="cifar10", directory="/somewhere", validation=10000.0, limit=7, size=32),
    training=TrainConfig(epochs=3, warmup=(), clip_norm=None, ema=0.99, decay_at=(0.1, 0.7)),
    engine=EngineConfig(devices="2", precision="16", threads=4),
    seed=2**62,
    ood=("svhn", "cifar100"),
    ood_training="svhn",
)


@pytest.mark.parametrize(
    "whole",
    [
        *(config_from(recipe(name)) for name in RECIPES),
        WHOLE,
        config("data.labels=50", "semi.kind=vat", "semi.epsilon=2"),
        config("teacher.run=here", "teacher.temperature=0.5"),
        config("data.mean=[0.5, 0.4, 0]", "data.std=[1, 0.2, 0.3]", "data.margin=1e0", base="cifar"),
    ],
)
def test_a_configuration_survives_json(whole):
    assert config_from(json.loads(json.dumps(to_mapping(whole), allow_nan=False))) == whole


LABELLED = {"data": {"labels": 50}}
REFUSED: dict[str, list] = {  # values by the setting that the error must name
    "training.epochs": ["many", 1.5, True, None, 0],
    "training.learning_rate": ["fast", True],
    "training.momentum": [float("nan"), float("inf")],
    "training.warmup": [0.1],
    "training.decay_at": [[0.5, 0.5]],
    "training.ema": [1.0],
    "training.optimizer": ["lion"],
    "training.clip_each": ["no", 1],
    "training": [[]],
    "method": ["softmax"],
    "model.name": ["dgits"],
    "defaults": [3],
    "seed": [-1, 2**63],
    "ood": ["svhn"],
    "engine.precision": ["8"],
    "engine.devices": ["many"],
    "data.validation": [0],
    "data.name": [" "],
    "data.mean": [0.5, [0.5]],  # without std
    "data.margin": [0.9],
    "teacher.run": [" "],
}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        *(
            ({path.partition(".")[0]: {path.partition(".")[2]: value} if "." in path else value}, path)
            for path, values in REFUSED.items()
            for value in values
        ),
        ({"training": {"epoch": 3}}, "training.epoch`.*`training.epochs"),
        ({"trainning": {}}, "trainning`.*`training"),
        ({"data": {"xyz": 1}}, "data.xyz"),
        ({"training": {"warmup": [0.1, "x"]}}, "training.warmup.1"),
        ({"training": {"warmup": [-0.1]}}, "training.warmup.0"),
        ({"method": {"name": "sofmax"}}, "method.name`.*did you mean softmax"),
        ({"method": {"options": {}}}, "method.name"),
        ({"method": {"name": "softmax", "options": {"a": {1, 2}}}}, "method.options"),
        ({"method": {"name": "softmax", "options": {"a": float("nan")}}}, "method.options"),
        ({"method": {"name": "softmax", "options": {1: 2}}}, "method.options"),
        ({"defaults": {"belief_maching": {}}}, "defaults.belief_maching`.*`defaults.belief_matching"),
        ({"defaults": {"softmax": 3}}, "defaults"),
        ({"data": {"mean": [0.5], "std": [1, 1, 1]}}, "data.std"),
        ({"data": {"mean": [0.5, 1], "std": [1, 1]}}, "data.mean"),
        ({"data": {"mean": [0], "std": [0]}}, "data.std.0"),
        ({"semi": {"kind": "vat"}}, "semi`.*--labels"),
        ({**LABELLED, "semi": {"weight": 1}}, "semi.kind"),
        ({**LABELLED, "semi": {"kind": "vta"}}, "semi.kind"),
        ({**LABELLED, "semi": {"kind": "pi", "wight": 1}}, "semi.wight`.*`semi.weight"),
        ({**LABELLED, "semi": {"kind": "pi", "weight": -1}}, "semi.weight"),
        ({**LABELLED, "semi": {"kind": "pi", "batch_size": 0}}, "semi.batch_size"),
        ({**LABELLED, "semi": {"kind": "pi"}, "teacher": {"run": "x"}}, "semi"),
        ({"teacher": {"strength": 1}}, "teacher.run"),
        ({"teacher": {"run": "x", "strength": 0}}, "teacher.strength"),
        ({"teacher": {"run": "x", "temperature": 0}}, "teacher.temperature"),
        ({"teacher": {"run": "x", "weight": -1}}, "teacher.weight"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_in_one_line(given, key):
    with pytest.raises(ValueError, match=f"^config: `{key}") as caught:
        config_of(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [None, [], "softmax"])
def test_a_configuration_is_made_of_a_mapping(given):
    with pytest.raises(ValueError, match="must be a mapping"):
        config_from(given)


def test_the_constructor_is_as_strict():
    with pytest.raises(ValueError, match="TrainConfig: `epochs`"):
        TrainConfig(epochs=0)
    with pytest.raises(ValueError, match="`momentum`"):
        replace(TrainConfig(), momentum=float("inf"))


def test_numbers_and_words_are_taken_as_they_are_meant():
    made = config_of(
        training={"learning_rate": "1e-4", "weight_decay": 0, "epochs": 3.0, "warmup": [1, "5E-1"]},
        engine={"devices": 2, "precision": 16},
        data={"validation": 10000},
    )
    assert (made.training.learning_rate, made.training.weight_decay) == (1e-4, 0.0)
    assert type(made.training.weight_decay) is float and type(made.training.epochs) is int
    assert made.training.warmup == (1.0, 0.5)
    assert (made.engine.devices, made.engine.precision) == ("2", "16")


def test_methods_take_the_defaults_of_the_recipe_where_they_are_silent():
    base = recipe("cifar-cpu")
    assert config_from(base).method == MethodConfig("belief_matching", {"kl_weight": 0.01})
    assert config_from(with_method(base, "softmax")).method == MethodConfig("softmax")
    dropout = config_from(with_method(base, "mc_dropout", where="all"))
    assert dropout.method.options == {"rate": 0.1, "where": "all"}
    assert config_from(with_method(base, "belief_matching", kl_weight=0.5)).method.options["kl_weight"] == 0.5


def test_semi_takes_the_defaults_of_its_kind_and_nothing_of_another():
    digits = recipe("semi-digits")
    vat = config_from(merged(digits, {"semi": {"kind": "vat"}})).semi
    assert vat is not None and asdict(vat).items() >= digits["defaults"]["vat"].items()
    own = config("semi.kind=vat", "semi.weight=0.25", base="semi-digits").semi
    assert own is not None and own.weight == 0.25 and own.epsilon == vat.epsilon
    switched = config_from(merged(recipe("semi-vat"), {"semi": {"kind": "pi"}})).semi
    assert switched is not None and switched.weight is None and switched.full_weight == 0.5
    same = config_from(merged(recipe("semi-vat"), {"semi": {"kind": "vat", "iterations": 2}})).semi
    assert same is not None and same.weight == 0.03 and same.iterations == 2


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


def test_single_settings_go_over_a_recipe_in_any_order():
    made = config(
        "training.epochs=3", "training.decay_at=[0.5, 0.9]", "training.learning_rate = 1e-4", "training.ema=",
        "training.clip_norm=null", "method.options.kl_weight=0.01", "data.directory=/a/b=c",
        "ood=[svhn, cifar100]", "seed=7", "seed=8", "model.options.depth=10", "model.name=wide_resnet",
        base="cifar",
    )  # fmt: skip
    assert made.training == replace(
        config(base="cifar").training, epochs=3, decay_at=(0.5, 0.9), learning_rate=1e-4, clip_norm=None
    )
    assert made.method.options == {"kl_weight": 0.01}
    assert made.model == ModelConfig("wide_resnet", {"depth": 10})
    assert (made.data.directory, made.ood, made.seed) == ("/a/b=c", ("svhn", "cifar100"), 8)


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("training.epoch=3", "`training.epoch`.*`training.epochs`"),
        ("trainig.epochs=3", "`trainig`.*`training`"),
        ("method.optoins.x=3", "`method.optoins`.*`method.options`"),
        ("seed.x=3", "`seed`.*`seed.x`"),
        ("training.epochs.x=3", "`training.epochs`"),
        ("training.epochs", "key=value"),
        ("=3", "key=value"),
        ("training..epochs=3", "key=value"),
        ("training.decay_at=[0.5", "training.decay_at"),
        ("training.epochs=!!python/name:os.system", "training.epochs"),
        ("semi.wait=1", "`semi.wait`"),
    ],
)
def test_settings_that_do_not_exist_are_refused(setting, key):
    with pytest.raises(ValueError, match=key) as caught:
        overridden(recipe("digits"), [setting])
    assert "\n" not in str(caught.value)


def test_a_recipe_is_a_name_or_a_file(tmp_path):
    with pytest.raises(ValueError, match=r"`name_or_path`.*did you mean cifar\?"):
        recipe("cifra")
    path = tmp_path / "mine.yaml"
    path.write_text("method: {name: softmax}\nmodel: {name: digits}\ntraining: {learning_rate: 1e-4}\n")
    assert config_from(recipe(path)).training.learning_rate == 1e-4


def test_cifar_is_the_papers_table_1_and_its_variants_differ_as_they_say():
    paper, release, small = (config(base=name) for name in ("cifar", "cifar-release", "cifar-cpu"))
    assert paper.training == TrainConfig()
    rates = [paper.training.rate(epoch) for epoch in (0, 1, 2, 3, 4, 5, 99, 100, 149, 150)]
    assert rates == pytest.approx([0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001])
    assert (paper.training.epochs, paper.training.batch_size, paper.training.clip_norm) == (200, 128, 1.0)
    assert paper.model == ModelConfig("preact_resnet18")
    assert (paper.data.name, paper.data.validation, paper.data.augment) == ("cifar10", 10000, "crop_flip")
    assert paper.method.options == {"kl_weight": "auto"}
    assert recipe("cifar")["defaults"]["mc_dropout"] == {"rate": "auto", "where": "last", "samples": 100}
    assert recipe("cifar")["defaults"]["ensemble"] == {"members": 5}
    every = range(200)
    assert [paper.training.rate(e) for e in every] == pytest.approx([release.training.rate(e) for e in every])
    assert replace(release.training, clip_each=False, warmup=paper.training.warmup) == paper.training
    assert release.method.options == {"kl_weight": 0.01}
    assert small.training == replace(paper.training, epochs=60)
    assert small.model.options == {"width": 16} and small.data.limit == 5000


def test_imagenet_is_the_papers_table_2():
    made = config(base="imagenet")
    training = made.training
    assert (training.epochs, training.batch_size, training.weight_decay) == (100, 256, 1e-4)
    rates = [training.rate(epoch) for epoch in (0, 4, 5, 29, 30, 59, 60, 89, 90)]
    assert rates == pytest.approx([0.01, 0.08, 0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4])
    assert made.model == ModelConfig("timm:resnext50_32x4d")
    assert made.method == MethodConfig("belief_matching", {"kl_weight": 0.001})
    assert (made.data.name, made.data.size) == ("imagenet-1k", 224)


def test_digits_are_trained_as_in_the_first_comparison():
    made = config()
    assert made.training == TrainConfig(
        epochs=30, batch_size=64, optimizer="adam", learning_rate=3e-3, weight_decay=0.0
    )
    assert made.method.options == {"kl_weight": 0.001}
    assert (made.data.validation, made.data.augment) == (0.2, "none")
    assert made.ood == ("rotations", "patches", "noise")


@pytest.mark.parametrize(("name", "rate", "weight"), [("semi-vat", 3e-3, 0.03), ("semi-pi", 3e-4, 0.5)])
def test_the_recipes_of_table_4_have_the_papers_values(name, rate, weight):
    paper = config(base=name)
    training, semi = paper.training, paper.semi
    assert semi is not None
    steps = training.epochs * training.epoch_examples(45_000) // training.batch_size
    assert steps == 500_000
    assert paper.model == ModelConfig("wrn28_2", {"activation": "leaky_relu"})
    assert (paper.data.labels, paper.data.validation) == (4000, 5000)
    assert (paper.data.shift, paper.data.noise, paper.data.augment) == (2, 0.15, "crop_flip")
    assert paper.method.options == {"kl_weight": 0.01}
    assert training.rate(0) == training.rate(0.79 * training.epochs) == rate
    per_epoch = steps // training.epochs
    assert training.rate(399_999 / per_epoch) == rate
    assert training.rate(400_000 / per_epoch) == pytest.approx(0.2 * rate)
    assert training.batch_size + (semi.batch_size or training.batch_size) == 100
    assert semi.weight_at(1.0) == weight and semi.ramp_up * steps == 200_000
    assert (semi.epsilon, semi.xi, semi.iterations, semi.order) == (6.0, 1e-6, 1, "paper")


@pytest.mark.parametrize("name", PINNED)
def test_fingerprints_stay_as_they_were(name):
    assert fingerprint(config(base=name)) == PINNED[name]


def test_a_configuration_from_before_unlabelled_images_reads_the_same():
    mapping = to_mapping(config())
    for name in ("labels", "shift", "noise"):
        del mapping["data"][name]
    del mapping["semi"], mapping["teacher"]
    assert config_from(mapping) == config()


def test_a_fingerprint_is_the_same_in_every_process_and_order_of_keys():
    code = (
        "from beliefmatch.experiments.config import *\n"
        "mapping = dict(reversed(recipe('cifar').items()))\n"
        "mapping['training'] = dict(reversed(mapping['training'].items()))\n"
        "print(fingerprint(config_from(mapping)))"
    )
    found = python(code, PYTHONHASHSEED="12345")
    assert found == fingerprint(config(base="cifar")) and re.fullmatch("[0-9a-f]{12}", found)


SAME = ["data.directory=/x", "data.workers=9", "engine.accelerator=cpu", "engine.devices=2", "engine.nodes=3",
        "engine.compile=true", "engine.threads=1"]  # fmt: skip
OTHER = [
    "seed=1", "training.epochs=31", "training.ema=0.9", "training.validate_every=2",
    "method.options.kl_weight=0.002", "ood=[noise]", "model.options.width=8", "data.limit=9",
    "data.split_seed=1", "engine.precision=bf16", "data.corrupt=skip", "data.margin=1",
    "data.mean=[0.5]\tdata.std=[0.5]", "data.labels=60", "data.shift=2", "data.noise=0.1", "semi.kind=pi",
    "semi.weight=2", "semi.order=release",
]  # fmt: skip


@pytest.mark.parametrize("settings", [*SAME, *OTHER])
def test_all_settings_but_where_and_how_fast_change_the_fingerprint(settings):
    base = ["data.labels=50", "semi.kind=vat"]
    changed = fingerprint(config(*base, *settings.split("\t"))) != fingerprint(config(*base))
    assert changed == (settings in OTHER)


def test_a_fingerprint_knows_sets_and_teachers_by_name_and_numbers_by_value():
    one, other, third = (config_of(ood=[name]) for name in ("svhn=/a", "svhn=/b/c", "cars=/a"))
    assert fingerprint(one) == fingerprint(other) != fingerprint(third)
    one, other = (
        config_of(method={"name": "belief_matching", "options": {"kl_weight": w}}) for w in (1, 1.0)
    )
    assert one == other and fingerprint(one) == fingerprint(other)
    one, moved, other, weaker = (
        config(f"teacher.run={run}", f"teacher.fingerprint={known}", f"teacher.strength={strength}")
        for run, known, strength in (("a", "x", 2), ("b", "x", 2), ("a", "y", 2), ("a", "x", 1))
    )
    assert fingerprint(one) == fingerprint(moved)
    assert len({fingerprint(each) for each in (one, other, weaker, config())}) == 4


_SEMI = recipe("semi-digits")["defaults"]
PI, VAT = (
    f"weight = {_SEMI[kind]['weight']:g}, divergence = {_SEMI[kind]['divergence']}" for kind in ("pi", "vat")
)
SEMI_OPTIONS = "semi=vat:semi_order=release:semi_divergence=categorical:semi_epsilon=2"


@pytest.mark.parametrize(
    ("text", "semi", "teacher", "label"),
    [
        ("softmax", {"kind": "pi"}, None, f"softmax (semi = pi, {PI})"),
        ("softmax:semi=none", None, None, "softmax"),
        ("softmax:semi=vat", {"kind": "vat"}, None, f"softmax (semi = vat, {VAT})"),
        (
            "belief_matching:kl_weight=0.1:semi=vat:semi_weight=0.2",
            {"kind": "vat", "weight": 0.2},
            None,
            "belief matching (λ = 0.1, semi = vat, weight = 0.2, divergence = categorical)",
        ),
        (
            f"softmax:{SEMI_OPTIONS}",
            {"kind": "vat", "order": "release", "divergence": "categorical", "epsilon": 2},
            None,
            f"softmax (semi = vat, {VAT}, order = release)",
        ),
        (
            "belief_matching:semi=none:prior_from=runs/a:prior_strength=3:prior_temperature=0.5:prior_weight=2",
            None,
            TeacherConfig("runs/a", strength=3.0, temperature=0.5, weight=2.0),
            "belief matching (λ = 0.0003, prior from = a, prior strength = 3)",
        ),
    ],
)
def test_options_of_a_method_may_name_what_else_it_learns_from(text, semi, teacher, label):
    (spec,) = parse_methods(text)
    made = config_from(with_spec(overridden(recipe("semi-digits"), ["semi.kind=pi"]), spec))
    assert (made.semi is None) == (semi is None)
    assert made.semi is None or asdict(made.semi).items() >= semi.items()
    assert made.teacher == teacher
    assert label_of(made) == label
    assert not {"semi", "semi_weight", "prior_from"} & set(made.method.options)


def test_no_settings_are_taken_for_a_loss_that_is_switched_off():
    (spec,) = parse_methods("softmax:semi=none:semi_weight=3")
    with pytest.raises(ValueError, match="`semi_weight`"):
        with_spec(recipe("semi-digits"), spec)


def test_each_seed_may_have_a_teacher_of_its_own():
    teacher = TeacherConfig("runs/teacher-{seed}/it")
    assert teacher.has_seeds and not TeacherConfig("runs/teacher").has_seeds
    assert teacher.run_of(12) == "runs/teacher-12/it"
    assert TeacherConfig("runs/{other}").run_of(12) == "runs/{other}"


def written(tmp_path, text):
    path = tmp_path / "r.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_yaml_is_scalars_lists_and_mappings(tmp_path):
    text = "a: 1\nb: [1.5, 1e-4, 3E+2, -2e3, .5e1]\nc: {d: null, e: true}\nf: 1e\n"
    expected = {"a": 1, "b": [1.5, 1e-4, 300.0, -2000.0, 5.0], "c": {"d": None, "e": True}, "f": "1e"}
    assert read_yaml(written(tmp_path, text)) == expected
    assert read_yaml(written(tmp_path, b"\xef\xbb\xbfa: 1")) == {"a": 1}  # a byte order mark
    values = {"1e-4": 1e-4, "": None, "adam": "adam", "{a: 1}": {"a": 1}}
    assert {text: yaml_value(text, caller="config") for text in values} == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: .*'a'"),
        ("a:\n  b: 1\n  b: 2\n", "line 3: .*'b'"),
        ("a: 1\nb: [1,\n", "line 3: "),
        ("a: &x 1\nb: *x\n", "line 2: aliases"),
        ("a: 1\nb: !!python/object/apply:os.system ['true']\n", "line 2: .*constructor"),
        ("a: 1\n---\nb: 2\n", "line 2: "),
        ("[" * 5000, "line 1: nested"),
        ("- 1\n- 2\n", "mapping.*list"),
        ("", "mapping.*nothing"),
        (b"a: \xff\n", "UTF-8"),
        (b"a: \x00\n", "r.yaml: "),
        ("a: 2020-13-45\n", "r.yaml: "),
        ("? [1]\n: 2\n", "line 1: found unhashable key."),
        ("a: " + "x" * LARGEST, "64 KiB"),
    ],
)
def test_a_mistake_in_a_yaml_file_is_named_in_one_line(tmp_path, text, words):
    with pytest.raises(ValueError, match=words) as caught:
        read_yaml(written(tmp_path, text))
    assert str(caught.value).startswith("read_yaml: ") and "\n" not in str(caught.value)


def test_yaml_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(ValueError, match=rf"cannot read {path}"):
            read_yaml(path)
