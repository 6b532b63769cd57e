"""Configurations for training on unlabelled images: fields, refusals and fingerprints."""

import pytest

from beliefmatch.experiments.config import (
    TeacherConfig,
    config_from,
    fingerprint,
    merged,
    overridden,
    recipe,
    to_mapping,
)
from beliefmatch.experiments.method_spec import label_of, parse_methods, with_spec

KEPT = {  # as before there were unlabelled images, so that runs of then are known again
    "cifar": "5e28c49e2745",
    "cifar-cpu": "27cb4c8dbd2f",
    "cifar-release": "9344bdc6aae8",
    "digits": "5614f6417e14",
    "imagenet": "59d888f4b635",
    "images": "78aec75c6ad4",
}


def config(*settings, base="digits"):
    return config_from(overridden(recipe(base), settings))


@pytest.mark.parametrize("name", KEPT)
def test_the_fingerprints_of_plans_without_it_are_as_they_were(name):
    assert fingerprint(config(base=name)) == KEPT[name]


def test_a_plan_of_a_file_from_before_reads_the_same():
    mapping = to_mapping(config())
    for section, names in {"data": ("labels", "shift", "noise")}.items():
        for name in names:
            del mapping[section][name]
    del mapping["semi"], mapping["teacher"]
    assert config_from(mapping) == config()


@pytest.mark.parametrize(
    "setting",
    [
        "data.labels=60",
        "data.shift=2",
        "data.noise=0.1",
        "semi.kind=pi",
        "semi.weight=2",
        "semi.order=release",
    ],
)
def test_each_of_its_settings_changes_the_fingerprint(setting):
    base = ["data.labels=50", "semi.kind=vat"]
    assert fingerprint(config(*base, setting)) != fingerprint(config(*base))


def test_where_a_teacher_lies_does_not_matter_but_who_it_is():
    one, moved, other, weaker = (
        config(f"teacher.run={run}", f"teacher.fingerprint={print_}", f"teacher.strength={strength}")
        for run, print_, strength in (("a", "x", 2), ("b", "x", 2), ("a", "y", 2), ("a", "x", 1))
    )
    assert fingerprint(one) == fingerprint(moved)
    assert len({fingerprint(each) for each in (one, other, weaker, config())}) == 4


def test_a_plan_survives_being_written_down():
    whole = config("data.labels=50", "semi.kind=vat", "semi.epsilon=2")
    assert config_from(to_mapping(whole)) == whole
    taught = config("teacher.run=here", "teacher.temperature=0.5")
    assert config_from(to_mapping(taught)) == taught


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["semi.kind=vat"],
            r"`semi` must come with `data.labels`, got all labels; .*--labels 4000",
        ),
        (
            ["data.labels=50", "semi.weight=1"],
            "`semi` must be given with its other settings",
        ),
        (["data.labels=50", "semi.kind=vta"], "`semi.kind` must be one of vat, pi, got str 'vta'"),
        (["data.labels=50", "semi.kind=pi", "semi.wight=1"], "`semi.wight` is not a setting; did you mean"),
        (["data.labels=50", "semi.kind=pi", "semi.weight=-1"], "`weight` must be finite and not negative"),
        (
            ["data.labels=50", "semi.kind=pi", "semi.batch_size=0"],
            "`batch_size` must be a whole number",
        ),
        (["semi.kind=pi", "teacher.run=x", "data.labels=50"], "must not come with a teacher, got"),
        (["teacher.strength=1"], "`prior_from` must be given with other settings of a teacher"),
        (["teacher.run=x", "teacher.strength=0"], "`prior_strength` must be finite and above 0, got 0.0"),
        (["teacher.run=x", "teacher.temperature=-1"], "`prior_temperature` must be finite and above 0"),
        (["teacher.run=x", "teacher.weight=-1"], "`prior_weight` must be finite and not negative, got -1.0"),
        (["teacher.run=' '"], "`prior_from` must be the directory of a finished run, got none"),
        (["defaults.vta.weight=1"], "`defaults.vta` is not a setting; did you mean `defaults.vat`"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings, said):
    with pytest.raises((ValueError, TypeError), match=said):
        config(*settings)


def test_a_recipe_has_defaults_for_each_kind_that_a_plan_may_overrule():
    digits = recipe("semi-digits")
    vat = config_from(merged(digits, {"semi": {"kind": "vat"}})).semi
    assert vat is not None and vars(vat).items() >= digits["defaults"]["vat"].items()
    told = config_from(overridden(digits, ["semi.kind=vat", "semi.weight=0.25"])).semi
    assert told is not None and told.weight == 0.25 and told.epsilon == vat.epsilon


def test_another_kind_takes_nothing_from_the_one_before():
    switched = config_from(merged(recipe("semi-vat"), {"semi": {"kind": "pi"}})).semi
    assert switched is not None and switched.weight is None and switched.full_weight == 0.5
    same = config_from(merged(recipe("semi-vat"), {"semi": {"kind": "vat", "iterations": 2}})).semi
    assert same is not None and same.weight == 0.03 and same.iterations == 2


@pytest.mark.parametrize(("name", "rate", "weight"), [("semi-vat", 3e-3, 0.03), ("semi-pi", 3e-4, 0.5)])
def test_the_recipes_have_the_papers_values(name, rate, weight):
    paper = config(base=name)
    training, semi = paper.training, paper.semi
    assert semi is not None
    steps = training.epochs * 45_000 // training.batch_size
    assert steps == pytest.approx(500_000, rel=1e-3)
    assert paper.model.name == "wrn28_2" and paper.model.options == {"activation": "leaky_relu"}
    assert (paper.data.labels, paper.data.validation) == (4000, 5000)
    assert (paper.data.shift, paper.data.noise, paper.data.augment) == (2, 0.15, "crop_flip")
    assert paper.method.options == {"kl_weight": 0.01}
    assert training.rate(0) == rate
    assert training.rate(0.79 * training.epochs) == rate
    assert training.rate(0.81 * training.epochs) == pytest.approx(0.2 * rate)
    assert training.batch_size + (semi.batch_size or training.batch_size) == 100
    assert semi.weight_at(1.0) == weight and semi.ramp_up * steps == pytest.approx(200_000, rel=1e-3)
    assert (semi.epsilon, semi.xi, semi.iterations, semi.order) == (6.0, 1e-6, 1, "paper")


def test_a_method_may_say_what_it_learns_from():
    usual, base = recipe("semi-digits")["defaults"], overridden(recipe("semi-digits"), ["semi.kind=pi"])
    weighted = "belief_matching:kl_weight=0.1:semi=vat:semi_weight=0.2"
    specs = parse_methods(f"softmax,softmax:semi=none,softmax:semi=vat,{weighted}")
    configs = [config_from(with_spec(base, spec)) for spec in specs]
    assert [each.semi.kind if each.semi else None for each in configs] == ["pi", None, "vat", "vat"]
    assert configs[3].method.options == {"kl_weight": 0.1}
    assert [label_of(each) for each in configs] == [
        f"softmax (semi = pi, weight = {usual['pi']['weight']:g})",
        "softmax",
        f"softmax (semi = vat, weight = {usual['vat']['weight']:g})",
        "belief matching (λ = 0.1, semi = vat, weight = 0.2)",
    ]
    (taught,) = parse_methods("belief_matching:prior_from=runs/a:prior_strength=3")
    student = config_from(with_spec(recipe("semi-digits"), taught))
    assert student.teacher is not None
    assert (student.teacher.run, student.teacher.strength) == ("runs/a", 3.0)
    assert label_of(student) == "belief matching (λ = 0.01, prior from = a, prior strength = 3)"


def test_every_setting_of_what_it_learns_from_can_be_said():
    text = "belief_matching:semi=vat:semi_order=release:semi_divergence=categorical:semi_epsilon=2"
    specs = parse_methods(f"{text},belief_matching:prior_from=a:prior_temperature=0.5:prior_weight=2")
    consistent, taught = (config_from(with_spec(recipe("semi-digits"), spec)) for spec in specs)
    assert consistent.semi is not None and taught.teacher is not None
    semi = consistent.semi
    assert (semi.order, semi.divergence, semi.epsilon) == ("release", "categorical", 2)
    assert label_of(consistent).endswith("weight = 0.3, divergence = categorical, order = release)")
    assert (taught.teacher.temperature, taught.teacher.weight) == (0.5, 2)


def test_each_seed_may_have_a_teacher_of_its_own():
    teacher = TeacherConfig("runs/teacher-{seed}/it")
    assert teacher.has_seeds and not TeacherConfig("runs/teacher").has_seeds
    assert teacher.run_of(12) == "runs/teacher-12/it"
    assert TeacherConfig("runs/{other}").run_of(12) == "runs/{other}"


def test_none_switches_off_the_one_and_leaves_the_other():
    base = overridden(recipe("semi-digits"), ["semi.kind=pi"])
    (spec,) = parse_methods("belief_matching:semi=none:prior_from=a")
    config = config_from(with_spec(base, spec))
    assert config.semi is None and config.teacher == TeacherConfig("a")
    (spec,) = parse_methods("softmax:semi=none:semi_weight=3")
    with pytest.raises(ValueError, match="`semi_weight` must come with `semi` vat or pi, got none"):
        with_spec(base, spec)


@pytest.mark.parametrize("option", ["semi_wait=1", "prior_form=a"])
def test_what_no_plan_has_is_told_with_what_it_has(option):
    with pytest.raises(ValueError, match=r"must have options among semi, semi_weight.*Did you mean"):
        parse_methods(f"softmax:{option}")
