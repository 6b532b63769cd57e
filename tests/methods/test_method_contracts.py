"""One contract for all methods: steps lower the loss, predictions are probabilities, restoring is exact."""

import json

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn import functional

from beliefmatch.methods import AUTO, METHODS, SEARCH, build, trials
from beliefmatch.methods.base import Calibrated, facts_of
from beliefmatch.models import build_model, build_seeded

CLASSES = 4
OPTIONS = {
    "belief_matching": {"kl_weight": 0.02},
    "belief_ensemble": {"kl_weight": 0.02, "members": 3},
    "ensemble": {"members": 3},
    "mc_dropout": {"samples": 7, "rate": 0.3},
}
VARIANTS = [
    *((name, OPTIONS.get(name, {})) for name in METHODS),
    ("label_smoothing", {"matched_kl_weight": 0.05}),
    ("mc_dropout", {"samples": 7, "rate": 0.3, "where": "all"}),
    ("evidential", {"data": "cross_entropy", "evidence": "exp", "annealing": 0.0}),
    ("evidential", {"data": "likelihood", "evidence": "softplus"}),
    ("prior_network", {"direction": "forward"}),
]
COUNTS = {"softmax", "label_smoothing", "belief_matching", "ensemble", "belief_ensemble"}
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(9, 1, 8, 8, generator=GENERATOR)
TARGETS = torch.randint(CLASSES, (9,), generator=GENERATOR)
LOGITS = 3 * torch.randn(9, CLASSES, generator=GENERATOR, dtype=torch.float64)

each = pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=[f"{name}-{index}" for index, (name, _) in enumerate(VARIANTS)]
)


def networks_of(method, seed=0):
    """Networks that are not trained, with the statistics of one batch."""

    def make():
        return build_model("digits", num_classes=CLASSES, channels=1, width=6, **method.model_options)

    networks = [build_seeded(make, 1000 * seed + member) for member in range(method.members)]
    for network in networks:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network.train()(IMAGES)
    return networks


def of_logits(method):
    """Its predictor of networks that return their input; for MC dropout by a module that drops nothing."""
    network = nn.Dropout(1e-30) if "samples" in method.options else nn.Identity()
    return method.predictor(*[network] * method.members)


def predictor_of(method, seed=0):
    """A predictor that is not trained, but calibrated."""
    predictor = method.predictor(*networks_of(method, seed))
    if method.calibrate is None:
        return predictor
    return method.calibrate(predictor, [(IMAGES[:5], TARGETS[:5]), (IMAGES[5:], TARGETS[5:])])


@each
def test_predictions_are_probabilities(name, options):
    prediction = predictor_of(build(name, **options)).predict(IMAGES)
    assert prediction.probs.shape == (9, CLASSES) and prediction.probs.dtype == torch.float64
    assert (prediction.probs >= 0).all() and not prediction.probs.requires_grad
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(9, dtype=torch.float64))
    if prediction.belief is not None:
        torch.testing.assert_close(prediction.belief.probs, prediction.probs)


@each
def test_steps_against_the_gradient_lower_the_loss_and_make_the_label_more_probable(name, options):
    method = build(name, **options)
    objective = method.objective_at(0.0)  # before the weight of a divergence has grown
    logits = torch.full((CLASSES, CLASSES), 0.5, dtype=torch.float64, requires_grad=True)
    optimizer, losses = torch.optim.SGD([logits], lr=0.1), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = objective(logits, torch.arange(CLASSES))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    predictor = of_logits(method)
    assert (predictor.predict(logits.detach()).probs.diagonal() > 1 / CLASSES + 0.005).all()


@each
@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_the_objective_is_a_mean_over_examples_with_a_gradient(name, options, progress):
    objective = build(name, **options).objective_at(progress)
    logits = LOGITS.clone().requires_grad_()
    loss = objective(logits, TARGETS)
    assert loss.shape == () and loss.isfinite()
    twice = objective(torch.cat([LOGITS, LOGITS]), torch.cat([TARGETS, TARGETS]))
    torch.testing.assert_close(twice, loss.detach())
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all() and gradient.abs().sum() > 0


@each
def test_votes_for_one_class_equal_its_id_where_a_method_takes_votes(name, options):
    method, votes = build(name, **options), functional.one_hot(TARGETS, CLASSES).double()
    assert method.takes_counts is (name in COUNTS)
    if method.takes_counts:
        expected = method.objective(LOGITS, TARGETS)
        torch.testing.assert_close(method.objective(LOGITS, votes), expected)
        if method.reads == "softmax" and "matched_kl_weight" not in options:  # votes are normalised
            torch.testing.assert_close(method.objective(LOGITS, 7 * votes), expected)


@each
def test_the_logits_alone_determine_probabilities_whatever_their_order_and_size(name, options):
    method = build(name, **options)
    predictor = of_logits(method)
    extreme = torch.tensor([[300.0, -300.0, 0.0], [0.0, 1.0, 2.0]])
    assert predictor.predict(extreme).probs.log().isfinite().all()
    if name != "evidential":
        expected = LOGITS.float().double().softmax(1)
        torch.testing.assert_close(predictor.predict(LOGITS.float()).probs, expected)
    order = torch.tensor([2, 0, 3, 1])
    targets = order.argsort()[TARGETS]
    torch.testing.assert_close(
        method.objective(LOGITS[:, order], targets), method.objective(LOGITS, TARGETS), rtol=1e-6, atol=1e-6
    )
    expected = predictor.predict(LOGITS).probs[:, order]
    torch.testing.assert_close(predictor.predict(LOGITS[:, order]).probs, expected)


@each
def test_predictions_depend_on_the_seed_and_neither_on_random_state_nor_on_the_batch(name, options):
    method = build(name, **options)
    torch.manual_seed(1)
    first = predictor_of(method).predict(IMAGES).probs
    torch.manual_seed(2)
    state, predictor = torch.get_rng_state(), predictor_of(method)
    for _ in range(2):
        assert torch.equal(predictor.predict(IMAGES).probs, first)
    for size in (1, 2, 4):
        split = torch.cat([predictor.predict(part).probs for part in IMAGES.split(size)])
        torch.testing.assert_close(split, first, rtol=1e-5, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(predictor_of(method, seed=1).predict(IMAGES).probs, first)


@each
def test_a_predictor_is_restored_from_its_options_weights_and_facts(name, options):
    method = build(name, **options)
    assert {key: method.options[key] for key in options} == options
    predictor = predictor_of(method)
    networks = predictor.networks if method.members > 1 else [predictor.network]
    weights = [save(network.state_dict()) for network in networks]
    record = {"name": name, "options": method.options, "facts": facts_of(predictor)}

    record = json.loads(json.dumps(record, allow_nan=False))
    again = build(record["name"], **record["options"])
    assert again.options == method.options
    others = networks_of(again, seed=7)
    for network, content in zip(others, weights, strict=True):
        network.load_state_dict(load(content))
    restored = again.restored(others, record["facts"])
    assert torch.equal(restored.predict(IMAGES).probs, predictor.predict(IMAGES).probs)
    assert isinstance(predictor, Calibrated) is (name == "temperature")
    assert set(record["facts"]) == ({"temperature"} if name == "temperature" else set())


def test_an_impossible_temperature_and_a_missing_member_are_refused():
    method = build("temperature")
    with pytest.raises(ValueError, match="`temperature`"):
        method.restored([nn.Identity()], {"temperature": 0.0})
    with pytest.raises(TypeError, match="`temperature`"):
        method.restored([nn.Identity()], {"temperature": "warm"})
    with pytest.raises(ValueError, match="`batches`"):
        method.calibrate(method.predictor(nn.Identity()), [])
    with pytest.raises(ValueError, match="`networks`"):
        build("ensemble", members=3).restored([nn.Identity()] * 2)


def test_searches_have_the_grids_of_the_paper():
    assert SEARCH["belief_matching"] == ("kl_weight", (0.01, 0.003, 0.001))
    assert SEARCH["mc_dropout"] == ("rate", (0.1, 0.2, 0.5))
    assert trials("belief_ensemble", {"kl_weight": AUTO, "members": 2}) == [
        {"kl_weight": weight, "members": 2} for weight in (0.01, 0.003, 0.001)
    ]
    assert trials("softmax", {}) == [{}]
    for name, (option, _) in SEARCH.items():
        for options in trials(name, {option: AUTO}):
            assert build(name, **options).options[option] == options[option]


@pytest.mark.parametrize(
    ("name", "options", "argument"),
    [
        ("mc_dropout", {"rate": "much"}, "rate"),
        ("mc_dropout", {"samples": 1.5}, "samples"),
        ("mc_dropout", {"samples": 0}, "samples"),
        ("mc_dropout", {"where": "first"}, "where"),
        ("ensemble", {"members": "5"}, "members"),
        ("ensemble", {"members": 0}, "members"),
        ("evidential", {"annealing": None}, "annealing"),
        ("evidential", {"annealing": 2.0}, "annealing"),
        ("evidential", {"data": "cubic"}, "data"),
        ("confidence_penalty", {"weight": "x"}, "weight"),
        ("confidence_penalty", {"weight": -0.1}, "weight"),
        ("prior_network", {"precision": -1}, "precision"),
        ("prior_network", {"ood_weight": [1]}, "ood_weight"),
        ("prior_network", {"ood_weight": -1.0}, "ood_weight"),
        ("label_smoothing", {"smoothing": "x"}, "smoothing"),
        ("label_smoothing", {"smoothing": 1.0}, "smoothing"),
        ("label_smoothing", {"matched_kl_weight": "x"}, "matched_kl_weight"),
        ("label_smoothing", {"matched_kl_weight": -1.0}, "matched_kl_weight"),
        ("label_smoothing", {"smoothing": 0.1, "matched_kl_weight": 0.01}, "matched_kl_weight"),
        ("belief_matching", {"kl_weight": "x"}, "kl_weight"),
        ("belief_matching", {"kl_weight": -1.0}, "kl_weight"),
        ("belief_matching", {"kl_wieght": 1.0}, "kl_wieght`; did you mean `kl_weight"),
        ("belief_matching", {}, "kl_weight"),
        ("softmax", {"x": 1}, "x"),
        ("sofmax", {}, "name"),
    ],
)
def test_wrong_names_options_and_values_are_refused(name, options, argument):
    with pytest.raises((ValueError, TypeError), match=f"`{argument}`") as caught:
        build(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax", {"x": AUTO}),
        ("mc_dropout", {"samples": AUTO}),
        ("mc_dropout", {"samples": AUTO, "rate": AUTO}),
    ],
)
def test_options_without_a_grid_are_not_searched(name, options):
    with pytest.raises(ValueError, match="`kl_weight`"):
        trials(name, options)
    with pytest.raises(ValueError, match=f"options of {name}"):
        build(name, **options)
