"""One contract for all methods."""

import json

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

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
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(9, 1, 8, 8, generator=GENERATOR)
TARGETS = torch.randint(CLASSES, (9,), generator=GENERATOR)
LOGITS = 3 * torch.randn(9, CLASSES, generator=GENERATOR, dtype=torch.float64)

each = pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=[f"{name}-{index}" for index, (name, _) in enumerate(VARIANTS)]
)


def networks_of(method, seed=0):
    def made(member):
        network = build_seeded(
            lambda: build_model("digits", num_classes=CLASSES, channels=1, width=6, **method.model_options),
            1000 * seed + member,
        )
        network.train()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network(IMAGES)  # statistics of batch normalisation that are not those of the start
        return network

    return [made(member) for member in range(method.members)]


def predictor_of(method, seed=0):
    """Not trained, but calibrated."""
    predictor = method.predictor(*networks_of(method, seed))
    if method.calibrate is None:
        return predictor
    return method.calibrate(predictor, [(IMAGES[:5], TARGETS[:5]), (IMAGES[5:], TARGETS[5:])])


@each
def test_rows_are_probabilities(name, options):
    prediction = predictor_of(build(name, **options)).predict(IMAGES)
    assert prediction.probs.shape == (9, CLASSES) and prediction.probs.dtype == torch.float64
    assert (prediction.probs >= 0).all() and not prediction.probs.requires_grad
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(9, dtype=torch.float64))
    if prediction.belief is not None:
        torch.testing.assert_close(prediction.belief.probs, prediction.probs)


@each
def test_identity_networks_give_the_softmax_and_finite_logarithms(name, options):
    method = build(name, **options)
    predictor = method.predictor(*[nn.Identity()] * method.members)
    extreme = torch.tensor([[300.0, -300.0, 0.0], [0.0, 1.0, 2.0]])
    assert predictor.predict(extreme).probs.log().isfinite().all()
    if name != "evidential":
        torch.testing.assert_close(
            predictor.predict(LOGITS.float()).probs, LOGITS.float().double().softmax(1)
        )


@each
def test_equal_seeds_predict_alike_and_others_otherwise(name, options):
    method = build(name, **options)
    torch.manual_seed(1)
    first = predictor_of(method).predict(IMAGES).probs
    torch.manual_seed(2)
    state, predictor = torch.get_rng_state(), predictor_of(method)
    for _ in range(2):
        assert torch.equal(predictor.predict(IMAGES).probs, first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(predictor_of(method, seed=1).predict(IMAGES).probs, first)


@each
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_prediction_does_not_depend_on_its_batch(name, options, size):
    predictor = predictor_of(build(name, **options))
    split = torch.cat([predictor.predict(part).probs for part in IMAGES.split(size)])
    torch.testing.assert_close(split, predictor.predict(IMAGES).probs, rtol=1e-5, atol=1e-6)


@each
def test_a_predictor_comes_back_from_its_options_weights_and_facts(name, options):
    method = build(name, **options)
    predictor = predictor_of(method)
    networks = predictor.networks if method.members > 1 else [predictor.network]
    weights = [save(network.state_dict()) for network in networks]
    record = {"name": name, "options": method.options, "facts": facts_of(predictor)}

    kept = json.loads(json.dumps(record, allow_nan=False))
    again = build(kept["name"], **kept["options"])
    others = networks_of(again, seed=7)
    for network, content in zip(others, weights, strict=True):
        network.load_state_dict(load(content))
    restored = again.restored(others, kept["facts"])
    assert torch.equal(restored.predict(IMAGES).probs, predictor.predict(IMAGES).probs)


@each
def test_options_are_all_that_a_method_was_built_with(name, options):
    method = build(name, **options)
    assert build(name, **method.options).options == method.options
    assert {key: method.options[key] for key in options} == options


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
def test_no_class_is_special(name, options):
    method = build(name, **options)
    order = torch.tensor([2, 0, 3, 1])
    places = order.argsort()[TARGETS]
    torch.testing.assert_close(
        method.objective(LOGITS[:, order], places), method.objective(LOGITS, TARGETS), rtol=1e-6, atol=1e-6
    )
    predictor = method.predictor(*[nn.Identity()] * method.members)
    expected = predictor.predict(LOGITS).probs[:, order]
    torch.testing.assert_close(predictor.predict(LOGITS[:, order]).probs, expected)


@each
def test_steps_against_the_gradient_make_the_label_more_probable(name, options):
    method = build(name, **options)
    objective = method.objective_at(0.0)  # before a divergence has come in
    logits = torch.full((CLASSES, CLASSES), 0.5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        objective(logits, torch.arange(CLASSES)).backward()
        optimizer.step()
    predictor = method.predictor(*[nn.Identity()] * method.members)
    assert (predictor.predict(logits.detach()).probs.diagonal() > 1 / CLASSES + 0.005).all()


def test_only_temperature_fits_more_than_weights():
    for name, options in VARIANTS:
        predictor = predictor_of(build(name, **options))
        assert isinstance(predictor, Calibrated) is (name == "temperature")
        assert set(facts_of(predictor)) == ({"temperature"} if name == "temperature" else set())


def test_an_impossible_temperature_is_refused():
    method = build("temperature")
    with pytest.raises(ValueError, match="`temperature`"):
        method.restored([nn.Identity()], {"temperature": 0.0})
    with pytest.raises(TypeError, match="`temperature`"):
        method.restored([nn.Identity()], {"temperature": "warm"})
    with pytest.raises(ValueError, match="`batches`"):
        method.calibrate(method.predictor(nn.Identity()), [])


def test_an_ensemble_comes_back_with_all_its_members():
    with pytest.raises(ValueError, match="`networks`"):
        build("ensemble", members=3).restored([nn.Identity()] * 2)


def test_searches_take_the_papers_grids():
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
    ("name", "options"),
    [
        ("softmax", {"x": AUTO}),
        ("mc_dropout", {"samples": AUTO}),
        ("mc_dropout", {"samples": AUTO, "rate": AUTO}),
    ],
)
def test_what_has_no_grid_is_not_searched(name, options):
    with pytest.raises(ValueError, match="`kl_weight`"):
        trials(name, options)


def test_auto_is_not_a_value():
    with pytest.raises(ValueError, match="must be values"):
        build("mc_dropout", rate=AUTO)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("mc_dropout", "rate", "much"),
        ("mc_dropout", "samples", 1.5),
        ("mc_dropout", "where", "first"),
        ("ensemble", "members", "5"),
        ("ensemble", "members", 0),
        ("evidential", "annealing", None),
        ("evidential", "data", "cubic"),
        ("confidence_penalty", "weight", "x"),
        ("prior_network", "precision", -1),
        ("prior_network", "ood_weight", [1]),
        ("label_smoothing", "smoothing", "x"),
        ("label_smoothing", "smoothing", 1.0),
        ("label_smoothing", "matched_kl_weight", "x"),
        ("label_smoothing", "matched_kl_weight", -1.0),
        ("belief_matching", "kl_weight", "x"),
        ("belief_matching", "kl_weight", -1.0),
    ],
)
def test_wrong_values_are_refused(name, option, value):
    with pytest.raises((ValueError, TypeError), match=f"`{option}` must .*got") as caught:
        build(name, **{option: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("belief_matching", {"kl_wieght": 1.0}, r"`kl_wieght`; did you mean `kl_weight`\?"),
        ("belief_matching", {}, "`kl_weight`"),
        ("softmax", {"x": 1}, "`x`"),
        ("label_smoothing", {"smoothing": 0.1, "matched_kl_weight": 0.01}, "`matched_kl_weight`"),
        ("sofmax", {}, r"one of softmax, .*did you mean softmax\?"),
    ],
)
def test_wrong_options_and_names_are_refused(name, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        build(name, **options)
