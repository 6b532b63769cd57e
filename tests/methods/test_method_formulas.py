"""Formulas of methods against torch's distributions, enumeration and free optimisation."""

import itertools
import re

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.distributions import Categorical, Dirichlet, kl_divergence
from torch.nn import functional

from beliefmatch import Belief, belief_matching_loss
from beliefmatch.methods import build
from beliefmatch.methods.ensemble import combine
from beliefmatch.methods.temperature import (
    Scaling,
    fit_matrix_scaling,
    fit_temperature,
    fit_vector_scaling,
)

GENERATOR = torch.Generator().manual_seed(3)
LOGITS = 2 * torch.randn(6, 4, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.tensor([0, 3, 1, 2, 0, 1])
LABEL = functional.one_hot(TARGETS, 4).double()


def test_softmax_and_belief_matching_minimise_their_losses():
    assert build("softmax").objective(LOGITS, TARGETS) == functional.cross_entropy(LOGITS, TARGETS)
    assert build("softmax").predictor(nn.Identity()).predict(LOGITS).belief is None
    matching = build("belief_matching", kl_weight=0.02, prior=1.5)
    expected = belief_matching_loss(LOGITS, TARGETS, kl_weight=0.02, prior=1.5)
    assert matching.objective(LOGITS, TARGETS) == expected
    assert torch.equal(matching.predictor(nn.Identity()).predict(LOGITS).belief.log_alpha, LOGITS)


def test_label_smoothing_is_cross_entropy_with_mixed_labels():
    objective = build("label_smoothing", smoothing=0.2).objective
    labels = 0.8 * LABEL + 0.2 / 4
    torch.testing.assert_close(objective(LOGITS, TARGETS), functional.cross_entropy(LOGITS, labels))


def test_confidence_penalty_subtracts_the_entropy():
    expected = functional.cross_entropy(LOGITS, TARGETS) - 0.3 * Categorical(logits=LOGITS).entropy().mean()
    torch.testing.assert_close(build("confidence_penalty", weight=0.3).objective(LOGITS, TARGETS), expected)


def test_belief_matching_without_kl_is_the_expected_log_likelihood():
    alpha = LOGITS.exp()
    expected = (alpha.sum(1).digamma() - alpha.gather(1, TARGETS[:, None])[:, 0].digamma()).mean()
    received = build("belief_matching_without_kl").objective(LOGITS, TARGETS)
    torch.testing.assert_close(received, expected)


@pytest.mark.parametrize("evidence", ["relu", "exp", "softplus"])
@pytest.mark.parametrize("data", ["squared", "cross_entropy", "likelihood"])
@pytest.mark.parametrize("progress", [0.0, 0.1, 0.2, 0.9])
def test_evidential_loss_is_the_papers(data, evidence, progress):
    act = {"relu": torch.relu, "exp": torch.exp, "softplus": functional.softplus}[evidence]
    alpha = 1 + act(LOGITS)
    belief = Dirichlet(alpha)
    fit = {
        "squared": ((LABEL - belief.mean) ** 2 + belief.variance).sum(1),
        "cross_entropy": (LABEL * (alpha.sum(1, keepdim=True).digamma() - alpha.digamma())).sum(1),
        "likelihood": -belief.mean.gather(1, TARGETS[:, None])[:, 0].log(),
    }[data]
    misleading = Dirichlet(torch.where(LABEL == 1, 1.0, alpha))
    divergence = kl_divergence(misleading, Dirichlet(torch.ones_like(alpha)))
    expected = (fit + min(1, progress / 0.2) * divergence).mean()
    method = build("evidential", data=data, evidence=evidence, annealing=0.2)
    torch.testing.assert_close(method.objective_at(progress)(LOGITS, TARGETS), expected)


def test_evidential_predictions_are_the_mean_of_its_belief():
    prediction = build("evidential").predictor(nn.Identity()).predict(LOGITS)
    torch.testing.assert_close(prediction.probs, Dirichlet(1 + torch.relu(LOGITS)).mean)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_prior_network_matches_a_dirichlet_for_each_example(direction):
    method = build("prior_network", direction=direction, precision=50.0, ood_weight=0.5)
    model, flat = Dirichlet(LOGITS.exp()), Dirichlet(torch.ones_like(LOGITS))
    sharp = Dirichlet(1 + 50 * LABEL)
    order = (lambda p, q: kl_divergence(q, p)) if direction == "forward" else kl_divergence
    torch.testing.assert_close(method.objective(LOGITS, TARGETS), order(model, sharp).mean())
    torch.testing.assert_close(method.ood(LOGITS), 0.5 * order(model, flat).mean())


def test_temperature_minimises_the_likelihood_of_validation_data():
    targets = LOGITS.argmax(1)
    targets[0] = (targets[0] + 1) % 4  # or the lower the temperature the better
    grid = torch.linspace(-3, 3, 6001, dtype=torch.float64).exp()
    best = min(grid.tolist(), key=lambda t: functional.cross_entropy(LOGITS / t, targets).item())
    assert fit_temperature(LOGITS, targets) == pytest.approx(best, rel=2e-3)
    votes = 3 * functional.one_hot(targets, 4).double()
    assert fit_temperature(LOGITS, votes) == pytest.approx(fit_temperature(LOGITS, targets))
    method = build("temperature")
    batches = [(LOGITS[:4], targets[:4]), (LOGITS[4:], targets[4:])]
    calibrated = method.calibrate(method.predictor(nn.Identity()), batches)
    torch.testing.assert_close(
        calibrated.predict(LOGITS).probs, (LOGITS / best).softmax(1), rtol=5e-3, atol=0
    )


def test_mc_dropout_converges_to_the_mean_over_all_masks():
    torch.manual_seed(0)
    head = nn.Linear(3, 4)
    network = nn.Sequential(nn.Dropout(0.4), head)
    x = torch.rand(5, 3)
    exact = torch.zeros(5, 4)
    for mask in itertools.product([0.0, 1.0], repeat=3):
        share = 0.6 ** sum(mask) * 0.4 ** (3 - sum(mask))
        exact += share * head(x * torch.tensor(mask) / 0.6).softmax(1).detach()
    method = build("mc_dropout", rate=0.4, samples=4000)
    received = method.predictor(network).predict(x).probs
    torch.testing.assert_close(received, exact.double(), rtol=0, atol=0.01)


def test_ensembles_average_probabilities():
    first, second = nn.Linear(4, 3), nn.Linear(4, 3)
    x = torch.rand(6, 4)
    received = build("ensemble", members=2).predictor(first, second).predict(x).probs
    torch.testing.assert_close(received, (first(x).double().softmax(1) + second(x).double().softmax(1)) / 2)


@pytest.mark.parametrize("shift", [0.0, -4.0])  # a precision above one, and below
def test_combined_beliefs_have_the_mean_and_the_total_variance_of_the_mixture(shift):
    parts = [Belief(LOGITS + shift), Belief(LOGITS.flip(0) + shift), Belief(LOGITS + 1 + shift)]
    dirichlets = [Dirichlet(part.alpha) for part in parts]
    mean = torch.stack([d.mean for d in dirichlets]).mean(0)
    second = torch.stack([d.variance + d.mean**2 for d in dirichlets]).mean(0)
    whole = combine(parts)
    torch.testing.assert_close(whole.probs, mean)
    torch.testing.assert_close(whole.variance.sum(1), (second - mean**2).sum(1))
    assert (whole.precision <= torch.stack([part.precision for part in parts]).amax(0)).all()
    torch.testing.assert_close(combine([Belief(LOGITS)]).alpha, LOGITS.exp())


@pytest.mark.parametrize(("kl_weight", "classes"), [(0.01, 4), (0.3, 7)])
def test_matched_label_smoothing_learns_the_mean_that_belief_matching_learns(kl_weight, classes):
    targets = torch.arange(classes)
    logits = torch.zeros(classes, classes, dtype=torch.float64, requires_grad=True)
    objective = build("label_smoothing", matched_kl_weight=kl_weight).objective
    optimizer = torch.optim.LBFGS([logits], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15)

    def closure():
        optimizer.zero_grad()
        loss = classes * objective(logits, targets)
        loss.backward()
        return loss

    optimizer.step(closure)
    posterior = 1 + functional.one_hot(targets, classes) / kl_weight  # the optimum of belief matching
    expected = posterior / posterior.sum(1, keepdim=True)
    torch.testing.assert_close(logits.detach().softmax(1), expected.double(), rtol=1e-5, atol=1e-6)


def test_matched_smoothing_of_votes_is_minimal_at_the_mean_of_belief_matchings_optimum():
    votes, kl_weight = torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.5, 0.0]], dtype=torch.float64), 0.05
    alpha = 1 + votes / kl_weight
    optimum = (alpha / alpha.sum(1, keepdim=True)).log().requires_grad_()
    loss = build("label_smoothing", matched_kl_weight=kl_weight).objective(optimum, votes)
    (grad,) = torch.autograd.grad(loss, optimum)
    torch.testing.assert_close(grad, torch.zeros_like(grad), atol=1e-15, rtol=0)


def mixed_logits(rows=900, classes=4, seed=2):
    """Logits that confuse classes and are too sure, and the class ids."""
    generator = torch.Generator().manual_seed(seed)
    right = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(right.softmax(1), 1, generator=generator)[:, 0]
    mixing = torch.eye(classes, dtype=torch.float64) + 0.4 * torch.randn(
        classes, classes, generator=generator, dtype=torch.float64
    )
    return 2.5 * right @ mixing, targets


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of netcal's own libraries
def test_the_temperature_is_that_of_netcal():
    scaling = pytest.importorskip("netcal.scaling")

    logits, targets = mixed_logits()
    fitted = scaling.TemperatureScaling().fit(logits.softmax(1).numpy(), targets.numpy())
    expected = fitted.transform(logits.softmax(1).numpy())
    found = (logits / fit_temperature(logits, targets)).softmax(1)
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("regularisation", [0.03, 10.0])
def test_matrix_scaling_is_the_minimum_that_scipy_finds(regularisation):
    logits, targets = mixed_logits()
    z, label, temperature = logits.numpy(), targets.numpy(), fit_temperature(logits, targets)

    def objective(x):
        weight, bias = x[:16].reshape(4, 4), x[16:]
        nll = -log_softmax(z / temperature @ weight.T + bias, 1)[np.arange(len(z)), label].mean()
        off = weight[~np.eye(4, dtype=bool)]
        odir = regularisation * ((off**2).mean() + (bias**2).mean())
        return nll + odir + 1e-3 / 2 * ((np.diag(weight) - 1) ** 2).mean()

    best = minimize(objective, np.r_[np.eye(4).ravel(), np.zeros(4)], method="BFGS", options={"gtol": 1e-7})
    found = fit_matrix_scaling(logits, targets, regularisation=regularisation)
    np.testing.assert_allclose(found.weight * temperature, best.x[:16].reshape(4, 4), atol=2e-3)
    np.testing.assert_allclose(found.bias, best.x[16:], atol=2e-3)
    x = np.r_[(found.weight * temperature).numpy().ravel(), found.bias]
    assert objective(x) < best.fun + 1e-7
    again = fit_matrix_scaling(logits, targets, regularisation=regularisation, init=found)
    torch.testing.assert_close(again.weight, found.weight, rtol=0, atol=2e-3)


def test_without_regularisation_matrix_scaling_is_logistic_regression_on_logits():
    """And on log-probabilities, where it is Dirichlet calibration; scikit-learn finds the same."""
    logits, targets = mixed_logits()
    for values in (logits, logits.log_softmax(1)):
        found = fit_matrix_scaling(values, targets, regularisation=1e-7)(values).softmax(1)
        fitted = LogisticRegression(C=1e6, max_iter=5000, tol=1e-8).fit(values.numpy(), targets.numpy())
        np.testing.assert_allclose(found, fitted.predict_proba(values.numpy()), atol=0.01)


def test_a_matrix_mends_what_a_vector_cannot_and_a_vector_what_a_temperature_cannot():
    logits, targets = mixed_logits()
    scaled = [
        logits / fit_temperature(logits, targets),
        fit_vector_scaling(logits, targets)(logits),
        fit_matrix_scaling(logits, targets, regularisation=0.01)(logits),
    ]
    values = [functional.cross_entropy(one, targets).item() for one in scaled]
    assert values[2] < values[1] - 0.01 < values[0] - 0.02
    votes = 3 * functional.one_hot(targets, 4).double()
    for fit in (fit_vector_scaling, fit_matrix_scaling):
        torch.testing.assert_close(fit(logits, votes).weight, fit(logits, targets).weight)
    strong = fit_matrix_scaling(logits, targets, regularisation=1e7).weight
    assert (strong - strong.diag().diag()).abs().max() < 1e-4
    with pytest.raises(ValueError, match=r"^fit_matrix_scaling: `regularisation`"):
        fit_matrix_scaling(logits, targets, regularisation=0.0)


@pytest.mark.parametrize("fit", [fit_temperature, fit_vector_scaling, fit_matrix_scaling])
def test_a_row_without_votes_is_refused(fit):
    logits, targets = mixed_logits()
    votes = functional.one_hot(targets, 4).double()
    votes[3] = 0
    with pytest.raises(ValueError, match=rf"^{fit.__name__}: `targets` .* row 3"):
        fit(logits, votes)


@pytest.mark.parametrize("fit", [fit_temperature, fit_vector_scaling, fit_matrix_scaling])
@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"logits": LOGITS.masked_fill(LOGITS > 2, torch.nan)}, "`logits` must be finite, got nan."),
        ({"logits": LOGITS[:0], "targets": TARGETS[:0]}, "`logits` must have shape (N, K) .* got (0, 4)."),
        ({"logits": LOGITS[0]}, "`logits` must have shape (N, K) .* got (4,)."),
        ({"logits": LOGITS.tolist()}, "`logits` must be a dense floating-point tensor .*"),
        ({"logits": LOGITS.long()}, "`logits` must be a dense floating-point tensor .*"),
        ({"targets": TARGETS + 1}, "`targets` must be class ids from 0 to 3, got 4."),
        ({"targets": TARGETS - 1}, "`targets` must be class ids from 0 to 3, got -1."),
        ({"targets": TARGETS.double()}, "`targets` must be class ids of an integer type.*"),
        ({"targets": TARGETS[:5]}, "`targets` must have shape (6,) or (6, 4) .* got (5,)."),
        ({"targets": LABEL[:, :3]}, "`targets` must have shape (6,) or (6, 4) .* got (6, 3)."),
        ({"targets": LABEL - 0.5}, "`targets` must be votes of at least 0, got -0.5."),
        ({"targets": TARGETS.tolist()}, "`targets` must be a tensor .*"),
    ],
)
def test_calibration_refuses_what_is_no_example(fit, change, fact):
    with pytest.raises((ValueError, TypeError)) as error:
        fit(**{"logits": LOGITS, "targets": TARGETS, **change})
    pattern = ".*".join(map(re.escape, fact.split(".*")))
    assert re.fullmatch(f"{fit.__name__}: {pattern}", str(error.value))


@pytest.mark.parametrize(
    ("fit", "init", "fact"),
    [
        (fit_temperature, 0.0, "must be positive, got 0.0."),
        (fit_temperature, -2.0, "must be positive, got -2.0."),
        (fit_temperature, float("nan"), "must be finite, got nan."),
        (fit_temperature, "one", "must be a number, got str 'one'."),
        (fit_vector_scaling, 1.0, "must be a Scaling or None, got float 1.0."),
        (
            fit_vector_scaling,
            Scaling(torch.eye(4), torch.zeros(4)),
            "must have a weight (4,) and a bias (4,), got (4, 4) and (4,).",
        ),
        (
            fit_matrix_scaling,
            Scaling(torch.ones(4), torch.zeros(4)),
            "must have a weight (4, 4) and a bias (4,), got (4,) and (4,).",
        ),
        (fit_matrix_scaling, Scaling(torch.eye(4), torch.full((4,), torch.nan)), "must be finite, got nan."),
    ],
)
def test_calibration_refuses_a_guess_of_another_kind(fit, init, fact):
    with pytest.raises((ValueError, TypeError)) as error:
        fit(LOGITS, TARGETS, init=init)
    assert str(error.value) == f"{fit.__name__}: `init` {fact}"


def test_class_ids_of_any_integer_type_calibrate_alike():
    assert fit_temperature(LOGITS, TARGETS.to(torch.uint8)) == fit_temperature(LOGITS, TARGETS)
    found, expected = (fit_vector_scaling(LOGITS, ids).weight for ids in (TARGETS.int(), TARGETS))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("fit", [fit_vector_scaling, fit_matrix_scaling])
def test_scaling_is_fitted_on_the_device_of_the_logits(fit):
    """Tensors that are made without a device would be on this default one, which has no numbers."""
    logits, targets = mixed_logits()
    expected = fit(logits, targets)
    with torch.device("meta"):
        found = fit(logits, targets)
    torch.testing.assert_close(found.weight, expected.weight)
