"""Runs that learn from unlabelled digits: every flavour, exact when taken up again, and with a teacher."""

import math
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from beliefmatch import belief_matching_loss
from beliefmatch.experiments import run as running
from beliefmatch.experiments.build import dataset, engine_for, method_of, network_of
from beliefmatch.experiments.compare import Comparison
from beliefmatch.experiments.config import config_from, fingerprint, overridden, recipe, with_method
from beliefmatch.experiments.method_spec import parse_methods
from beliefmatch.experiments.run import execute
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.search import TrainJob
from beliefmatch.experiments.training_inputs import (
    Teacher,
    _is_same_data,
    aux_loss,
    check_training_inputs,
    training_inputs,
    with_teacher_fingerprint,
)
from beliefmatch.report.run_tables import run_tables
from beliefmatch.train.checkpoint import final_weights
from small_training import digest

SHORT = [
    *("training.epochs=2", "training.warmup=[]", "data.limit=150", "ood=[]", "data.labels=30"),
    *("model.options.width=8", "training.batch_size=20"),
]
OTHERS = ("label_smoothing", "confidence_penalty", "temperature", "belief_matching_without_kl")
FLAVOURS = ["softmax", "belief_matching", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


def config_of(*settings: str, method: str = "belief_matching", **options):
    mapping = overridden(recipe("semi-digits"), [*SHORT, *settings])
    return config_from(with_method(mapping, method, **options))


def weights(directory: Path):
    found = final_weights(RunDirectory(directory).network(0))
    assert found is not None
    return found


def same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Thirty labels and nothing else."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    return directory, execute(config_of(), directory)


@pytest.mark.parametrize("kind", ["vat", "pi"])
@pytest.mark.parametrize("method", FLAVOURS)
def test_every_flavour_ends_with_finite_numbers_and_something_learnt(tmp_path, method, kind):
    record = execute(config_of(f"semi.kind={kind}", method=method), tmp_path / "run")
    (curve,) = record.curves
    assert all(value is not None and value > 0 and math.isfinite(value) for value in curve["consistency"])
    assert all(value is not None and math.isfinite(value) for value in curve["loss"])
    assert record.test.nll is not None and math.isfinite(record.test.nll)
    assert record.data["counts"] == {"train": 30, "unlabelled": 120, "validation": 359, "test": 540}
    log = (tmp_path / "run" / "network-0" / "log.csv").read_text().splitlines()
    assert "consistency" in log[0].split(",") and len(log) == 3


@pytest.mark.parametrize("method", ["mc_dropout", "ensemble", "belief_ensemble"])
def test_methods_of_many_passes_or_networks_learn_so_too(tmp_path, method):
    options = {"samples": 3} if method == "mc_dropout" else {"members": 2}
    settings = ["semi.kind=vat", "training.epochs=1"]
    record = execute(config_of(*settings, method=method, **options), tmp_path / "run")
    assert len(record.curves) == record.costs.networks
    assert all(curve["consistency"][0] > 0 for curve in record.curves)


@pytest.mark.parametrize("kind", ["vat", "pi"])
def test_without_weight_it_is_the_supervised_run_to_the_bit(tmp_path, alone, kind):
    directory, supervised = alone
    record = execute(config_of(f"semi.kind={kind}", "semi.weight=0"), tmp_path / "run")
    assert same(weights(tmp_path / "run"), weights(directory))
    assert record.test == supervised.test
    assert "consistency" not in record.curves[0]


def test_with_weight_it_is_not(tmp_path, alone):
    execute(config_of("semi.kind=vat"), tmp_path / "run")
    assert not same(weights(tmp_path / "run"), weights(alone[0]))


def test_averages_of_normalisation_see_labelled_images_alone(tmp_path):
    """With a weight of next to nothing the weights stay, and so must the averages."""
    execute(config_of("semi.kind=vat", "semi.weight=1e-30"), tmp_path / "tiny")
    execute(config_of("semi.kind=vat", "semi.weight=0"), tmp_path / "none")
    tiny, none = weights(tmp_path / "tiny"), weights(tmp_path / "none")
    for name in none:
        torch.testing.assert_close(tiny[name], none[name], rtol=1e-5, atol=1e-6)
        if name.endswith("num_batches_tracked"):
            assert int(tiny[name]) == 2 * 8  # one for each step, and each step has but one labelled batch


@pytest.mark.parametrize("kind", ["vat", "pi"])
def test_a_run_that_was_stopped_ends_the_same(tmp_path, kind, monkeypatch):
    config = config_of(f"semi.kind={kind}")
    expected = execute(config, tmp_path / "whole")

    class EnoughError(Exception):
        pass

    def stop(share, doing):
        if share > 0.5:
            raise EnoughError

    real = running.Checkpointing
    monkeypatch.setattr(running, "Checkpointing", lambda place, **options: real(place, 0, **options))
    with pytest.raises(EnoughError):
        execute(config, tmp_path / "stopped", on_progress=stop)
    record = execute(config, tmp_path / "stopped")
    assert same(weights(tmp_path / "stopped"), weights(tmp_path / "whole"))
    assert record.test == expected.test
    for name in ("loss", "consistency"):
        assert record.curves[0][name] == expected.curves[0][name]


def test_as_many_epochs_are_as_many_steps_with_and_without_labels(tmp_path, alone):
    whole = execute(config_of("data.labels=null"), tmp_path / "whole")
    for directory in (alone[0], tmp_path / "whole"):
        assert int(weights(directory)["layers.1.num_batches_tracked"]) == 2 * 8
    assert whole.data["counts"]["train"] == 150


def test_half_precision_learns_about_the_same(tmp_path):
    found = [
        execute(config_of("semi.kind=vat", f"engine.precision={precision}"), tmp_path / precision)
        for precision in ("32", "16")
    ]
    full, half = (record.curves[0]["consistency"] for record in found)
    assert half[0] == pytest.approx(full[0], rel=0.1) and half != full
    assert half[1] == pytest.approx(full[1], rel=0.5)  # a few steps are left out until the scale is found


def test_the_loss_of_a_plan_is_the_one_it_names():
    """Against the divergence written out, for a network whose passes are its predictions."""
    data = dataset(config_of().data)
    inputs = next(iter(data.train.batches([torch.arange(6)]))).inputs
    others = inputs + 0.1
    for method, of in (("softmax", "squared"), ("belief_matching", "dirichlet")):
        config = config_of("semi.kind=pi", method=method)
        network, found = (
            network_of(config, method_of(config), data).eval(),
            aux_loss(config, method_of(config)),
        )
        assert found is not None
        loss, views = found
        assert views == 2
        batches = [type("B", (), {"inputs": each})() for each in (inputs, others)]
        prediction, target = network(inputs).double(), network(others).double()
        if of == "squared":
            expected = (prediction.softmax(1) - target.softmax(1)).square().sum(1).mean()
        else:
            beliefs = [torch.distributions.Dirichlet(each.exp()) for each in (target, prediction)]
            expected = torch.distributions.kl_divergence(*beliefs).mean()
        assert loss(network, batches, 0).item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "method", "said"),
    [
        (["semi.kind=vat"], "evidential", "`method.name` must be one whose logits are read by softmax or as"),
        (
            ["semi.kind=pi", "data.augment=none", "data.noise=0"],
            "softmax",
            "must have something left to chance",
        ),
    ],
)
def test_methods_that_make_no_sense_are_refused(settings, method, said):
    config = config_of(*settings, method=method)
    with pytest.raises(ValueError, match=said):
        check_training_inputs(config, method_of(config), dataset(config.data))


def test_dropout_is_chance_enough():
    config = config_of("semi.kind=pi", "data.augment=none", "data.noise=0", method="mc_dropout", rate=0.1)
    method, data = method_of(config), dataset(config.data)
    check_training_inputs(config, method, data)
    made, images = network_of(config, method, data), data.train.images[:4].permute(0, 3, 1, 2).float()
    assert not torch.equal(made.train()(images), made(images))  # two passes of the same images differ


# A teacher.


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    directory = tmp_path_factory.mktemp("teacher") / "run"
    return directory, execute(config_of("training.epochs=4", "seed=3"), directory)


def test_votes_are_the_teachers_mean_without_augmentation(teacher):
    directory, _ = teacher
    config = with_teacher_fingerprint(config_of(f"teacher.run={directory}", "teacher.strength=2.5"))
    data, engine = dataset(config.data), engine_for(config.engine)
    learnt = training_inputs(config, method_of(config), data, engine)
    network = network_of(config, method_of(config), data)
    network.load_state_dict(weights(directory))
    for source, told, label in (
        (data.train, learnt.source, 1.0),
        (data.unlabelled, learnt.aux and learnt.aux.source, 0.0),
    ):
        assert source is not None and told is not None
        (batch,) = source.batches([torch.arange(len(source))])
        with torch.no_grad():
            expected = 2.5 * network.eval()(batch.inputs).double().softmax(1)
        if label:
            expected += functional.one_hot(batch.targets, 10)
        torch.testing.assert_close(told.targets.double(), expected, rtol=1e-4, atol=1e-5)
    assert learnt.epoch_examples == 150
    assert digest(network)  # the teacher is only asked


def test_a_student_learns_from_labels_and_teacher(tmp_path, teacher, alone):
    config = config_of(f"teacher.run={teacher[0]}")
    record = execute(config, tmp_path / "run")
    (curve,) = record.curves
    assert all(value > 0 for value in curve["teacher"])
    assert not same(weights(tmp_path / "run"), weights(alone[0]))
    assert record.config["teacher"]["fingerprint"] == teacher[1].fingerprint
    assert execute(config, tmp_path / "run") == record
    shown = "".join(str(part) for part in [run_tables(record)[0].title])
    assert shown == "belief matching with 30 labels and a teacher of 1 vote, seed 0"


def test_a_student_with_all_labels_has_the_teachers_votes_beside_them(tmp_path, teacher):
    record = execute(config_of(f"teacher.run={teacher[0]}", "data.labels=null"), tmp_path / "run")
    assert "teacher" not in record.curves[0] and record.data["counts"]["train"] == 150


def test_the_prior_and_the_votes_have_one_gradient(teacher):
    """β = 1 + s·m/λ as the prior of each image is s·m more votes."""
    config = with_teacher_fingerprint(config_of(f"teacher.run={teacher[0]}", "teacher.strength=3"))
    data = dataset(config.data)
    assert data.unlabelled is not None
    votes = Teacher.of(config).votes(data.unlabelled, engine_for(config.engine))[:7].double()
    logits = torch.randn(7, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = []
    for counts, prior in ((votes, 1.0), (torch.zeros_like(votes), 1 + votes / 0.01)):
        z = logits.clone().requires_grad_()
        belief_matching_loss(z, counts, kl_weight=0.01, prior=prior).backward()
        gradients.append(z.grad)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


def test_teachers_and_students_of_softmax_will_do_and_students_that_take_no_votes_will_not(tmp_path, teacher):
    execute(config_of(method="softmax"), tmp_path / "softmax")
    for method in ("belief_matching", "softmax", "label_smoothing"):
        TrainJob(config_of(f"teacher.run={tmp_path / 'softmax'}", method=method), tmp_path / "student")
    for method in ("evidential", "mc_dropout", "confidence_penalty", "belief_matching_without_kl"):
        with pytest.raises(ValueError, match=rf"must be belief_matching, or softmax.* got {method}"):
            TrainJob(config_of(f"teacher.run={teacher[0]}", method=method), tmp_path / "other")


@pytest.mark.parametrize("method", ["softmax", "label_smoothing"])
def test_students_without_a_prior_learn_from_soft_labels(tmp_path, teacher, method):
    config = config_of(f"teacher.run={teacher[0]}", "training.epochs=1", method=method)
    (curve,) = execute(config, tmp_path / "run").curves
    assert curve["teacher"][0] > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["data.split_seed=1"],
            r"must have `data.split_seed` 1 as the student, or it may have .* got 0",
        ),
        (["data.validation=0.3"], r"must have `data.validation` 0.3 as the student, .* got 0.2"),
    ],
)
def test_a_teacher_that_may_have_seen_what_is_held_back_is_refused(tmp_path, teacher, settings, said):
    with pytest.raises(ValueError, match=said):
        TrainJob(config_of(f"teacher.run={teacher[0]}", *settings), tmp_path / "run")


def test_a_teacher_without_logits_votes_by_its_probabilities(tmp_path):
    teacher = tmp_path / "ensemble"
    execute(config_of("training.epochs=1", method="ensemble", members=2), teacher)
    config = with_teacher_fingerprint(config_of(f"teacher.run={teacher}", "teacher.strength=4"))
    data = dataset(config.data)
    assert data.unlabelled is not None
    votes = Teacher.of(config).votes(data.unlabelled, engine_for(config.engine))
    (batch,) = data.unlabelled.batches([torch.arange(len(data.unlabelled))])
    network, probs = network_of(config, method_of(config), data).eval(), []
    for member in range(2):
        found = final_weights(RunDirectory(teacher).network(member))
        assert found is not None
        network.load_state_dict(found)
        with torch.no_grad():
            probs.append(network(batch.inputs).double().softmax(1))
    torch.testing.assert_close(votes.double(), 4 * torch.stack(probs).mean(0), rtol=1e-5, atol=1e-6)


def test_what_is_no_teacher_is_refused(tmp_path, teacher):
    with pytest.raises(ValueError, match=r"`prior_from` must be the directory of a finished run, .*nothing"):
        TrainJob(config_of(f"teacher.run={tmp_path / 'nothing'}"), tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"`prior_from` must be the run of configuration 0123, got .* of configuration"
    ):
        TrainJob(config_of(f"teacher.run={teacher[0]}", "teacher.fingerprint='0123'"), tmp_path / "run")
    known = with_teacher_fingerprint(config_of(f"teacher.run={teacher[0]}"))
    data = dataset(known.data)
    with pytest.raises(ValueError, match="`prior_from` must be a run on 9 classes"):
        Teacher.of(known).require_fit(known.data, replace(data, class_names=data.class_names[:9]))


# Side by side.


def test_a_comparison_tells_kinds_apart_and_shares_what_is_alike(tmp_path, teacher):
    text = f"softmax,softmax:semi=vat:semi_weight=0.3,belief_matching:prior_from={teacher[0]}"
    settings = overridden(recipe("semi-digits"), [*SHORT, "training.epochs=1"])
    work = Comparison(settings, parse_methods(text), seeds=[0], directory=tmp_path, jobs=1)
    record = work.run().record
    assert [method.label for method in record.methods] == [
        "softmax",
        "softmax (semi = vat, weight = 0.3)",
        "belief matching (λ = 0.01, prior from = run, prior strength = 1)",
    ]
    assert not {"semi", "teacher"} & set(record.settings)
    assert record.settings["data"]["labels"] == 30
    configs = [config_from(method.runs[0].config) for method in record.methods]
    assert len({fingerprint(config) for config in configs}) == 3
    assert [config.semi is None for config in configs] == [True, False, True]
    assert all(cost.train_seconds > 0 for _, cost in work.estimates())


def test_a_comparison_refuses_before_it_begins(tmp_path):
    specs = parse_methods("softmax,evidential")
    settings = overridden(recipe("semi-digits"), [*SHORT, "semi.kind=vat"])
    with pytest.raises(ValueError, match="got evidential"):
        Comparison(settings, specs, seeds=[0], directory=tmp_path, jobs=1)


def test_each_seed_of_a_comparison_has_the_teacher_of_its_own(tmp_path):
    teachers = {seed: execute(config_of(f"seed={seed}"), tmp_path / f"teacher-{seed}") for seed in (0, 1)}
    specs = parse_methods(f"belief_matching:prior_from={tmp_path}/teacher-{{seed}}")
    settings = overridden(recipe("semi-digits"), [*SHORT, "training.epochs=1"])
    record = Comparison(settings, specs, seeds=[0, 1], directory=tmp_path / "out", jobs=1).run().record
    for seed, run in enumerate(record.methods[0].runs):
        assert run.config["teacher"]["fingerprint"] == teachers[seed].fingerprint
    with pytest.raises(ValueError, match="teacher-2"):
        Comparison(settings, specs, seeds=[0, 2], directory=tmp_path / "other", jobs=1)


@pytest.fixture
def damaged(tmp_path, teacher):
    shutil.copytree(teacher[0], tmp_path / "damaged")
    return tmp_path / "damaged"


@pytest.mark.parametrize("harm", ["gone", "cut", "no model.json", "no JSON"])
def test_a_damaged_teacher_is_told_before_anything_is_written(tmp_path, damaged, harm):
    if harm == "gone":
        shutil.rmtree(damaged / "network-0")
    elif harm == "cut":
        for file in (damaged / "network-0").glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:100])
    else:
        file = damaged / {"no model.json": "model.json", "no JSON": "record.json"}[harm]
        file.write_text("{") if harm == "no JSON" else file.unlink()
    config = config_of(f"teacher.run={damaged}")
    warnings.simplefilter("ignore")  # of checksums, until the test ends
    with pytest.raises(ValueError, match=r"`prior_from` must .*damaged") as caught:
        TrainJob(config, tmp_path / "run")
    assert len(f"{caught.value}".splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_finished_student_is_shown_without_its_teacher(tmp_path, damaged, teacher):
    config = config_of(f"teacher.run={damaged}")
    record = execute(config, tmp_path / "run")
    damaged.rename(tmp_path / "elsewhere")
    assert TrainJob(config, tmp_path / "run").run(lambda share, doing: None) == record
    (tmp_path / "run" / "record.json").unlink()
    with pytest.raises(ValueError, match="`prior_from` must be the directory of a finished run"):
        TrainJob(config, tmp_path / "run")
    assert fingerprint(with_teacher_fingerprint(config_of(f"teacher.run={teacher[0]}"))) == record.fingerprint


def test_one_set_by_two_paths_is_one(tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _is_same_data("set", "./set") and _is_same_data(f"{tmp_path}/set", "set")
    assert not _is_same_data("set", "other") and _is_same_data("digits", "digits")


def test_more_images_in_a_batch_than_there_are_is_refused():
    config = config_of("semi.kind=vat", "semi.batch_size=121")
    with pytest.raises(ValueError, match="must be at most the 120 unlabelled images, got 121"):
        check_training_inputs(config, method_of(config), dataset(config.data))
