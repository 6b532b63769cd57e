"""The solver reaches the optimum, and a head fitted among others is the head fitted alone."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from beliefmatch.adaptation import solver
from beliefmatch.adaptation.ensemble import bootstrap_weights
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.adaptation.objectives import loss_of
from beliefmatch.adaptation.solver import Design, solve
from beliefmatch.loss import belief_matching_loss
from head_features import CLASSES, WIDTH, features, votes

BELIEFS = [Candidate("belief_matching", {"kl_weight": one}, weight_decay=3e-3) for one in (0.1, 0.01, 1e-3)]
SMOOTHED = [
    Candidate("softmax", weight_decay=1e-2),
    Candidate("softmax", weight_decay=1e-4),
    Candidate("label_smoothing", {"smoothing": 0.1}, weight_decay=1e-3),
]


def fit(design, candidates, *, tolerance=1e-7, row_weights=None, background=False):
    many = len(candidates)
    start = torch.zeros(many, CLASSES, design.width), torch.zeros(many, CLASSES)
    decay = torch.tensor([one.weight_decay for one in candidates])
    loss = loss_of(candidates, CLASSES)
    options = {"row_weights": row_weights, "background": background, "tolerance": tolerance}
    return solve(design, loss, decay, start, **options)


def public_loss(candidate, logits, targets):
    """The mean loss of the public functions, in double."""
    if candidate.kind == "belief_matching":
        return belief_matching_loss(logits, targets, kl_weight=candidate.kl_weight)
    if targets.dim() == 2:
        some = targets.sum(1) > 0
        shares = targets[some].double() / targets[some].double().sum(1, keepdim=True)
        return candidate.method.objective(logits[some], shares) * some.sum() / len(targets)
    return candidate.method.objective(logits, targets)


def optimum(design, candidate, weight, bias):
    """The objective at the optimum by torch's L-BFGS in double precision, from the solver's weights on."""
    _, rows, targets = next(design.blocks(10**6))
    parameters = [weight.double().requires_grad_(), bias.double().requires_grad_()]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=2000, tolerance_grad=1e-11, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )
    decay = candidate.weight_decay

    def loss():
        optimizer.zero_grad()
        logits = rows.double() @ parameters[0].t() + parameters[1]
        centred = parameters[1] - parameters[1].mean()
        penalty = decay * parameters[0].square().sum() + min(decay, 1e-3) * centred.square().sum()
        value = public_loss(candidate, logits, targets) + penalty / 2
        value.backward()
        return value

    optimizer.step(loss)
    return loss().item()


@pytest.mark.parametrize("data", [features(120), votes(120)], ids=["ids", "counts"])
@pytest.mark.parametrize("candidates", [BELIEFS, SMOOTHED], ids=["belief matching", "cross-entropy"])
def test_every_head_is_at_its_optimum_and_says_so(data, candidates):
    design = Design(data)
    found = fit(design, candidates)
    assert bool(found.converged.all()) and bool((found.gap <= 1e-6).all())
    for place, one in enumerate(candidates):
        best = optimum(design, one, found.weight[place], found.bias[place])
        assert found.objective[place].item() == pytest.approx(best, rel=3e-6)
        alone = fit(design, [one])
        torch.testing.assert_close(found.weight[place], alone.weight[0], rtol=2e-3, atol=2e-4)
        torch.testing.assert_close(found.bias[place], alone.bias[0], rtol=2e-3, atol=1e-3)


def test_the_stated_gap_bounds_the_distance_to_the_minimum():
    design = Design(features(120))
    for tolerance in (0.3, 0.03, 3e-3):
        found = fit(design, SMOOTHED, tolerance=tolerance)
        for place, one in enumerate(SMOOTHED):
            best = optimum(design, one, found.weight[place], found.bias[place])
            above = (found.objective[place].item() - best) / found.objective[place].item()
            assert -1e-6 <= above <= found.gap[place].item() + 1e-6 <= tolerance + 1e-6


def test_softmax_is_the_logistic_regression_of_scikit_learn():
    data = features(300, 3)
    decay = 1e-3
    design = Design(data)
    found = fit(design, [Candidate("softmax", weight_decay=decay)])
    standardised = (data.rows - data.rows.mean(0)) / data.rows.std(0)
    theirs = LogisticRegression(C=1 / (decay * len(data)), tol=1e-8, max_iter=10_000)
    theirs.fit(standardised, data.targets.numpy())
    weight, bias = design.to_raw(found.weight, found.bias)
    ours = (torch.from_numpy(data.rows) @ weight[0].t() + bias[0]).softmax(1).numpy()
    np.testing.assert_allclose(
        ours, theirs.predict_proba(standardised), atol=5e-3
    )  # theirs has no bias decay


def test_features_are_standardised_and_folded_back():
    data = features(200, 1)
    units = np.array([1e-3, 1, 1e4, 1, 1, 1, 1], np.float32)
    offset = np.array([0, 1e3, 0, 0, 5, 0, 0], np.float32)
    rows = np.concatenate([data.rows * units + offset, np.full((200, 1), 3.5, np.float32)], 1)
    other = Features(rows, data.targets, "other units")
    one, two = Design(data), Design(other)
    assert two.scale[-1] == 0  # a constant feature
    (_, block, _), *_ = two.blocks(10**6)
    torch.testing.assert_close(block[:, :WIDTH].mean(0), torch.zeros(WIDTH), rtol=0, atol=2e-4)
    torch.testing.assert_close(block[:, :WIDTH].std(0, unbiased=False), torch.ones(WIDTH), rtol=1e-3, atol=0)
    logits = []
    for design, data_ in ((one, data), (two, other)):
        found = fit(design, SMOOTHED[:1])
        weight, bias = design.to_raw(found.weight, found.bias)
        logits.append(torch.from_numpy(data_.rows).double() @ weight[0].double().t() + bias[0])
        again, shift = design.to_standardized(weight[0], bias[0])
        torch.testing.assert_close(again, found.weight[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(shift, found.bias[0], rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(*(one - one.mean(1, keepdim=True) for one in logits), rtol=1e-2, atol=1e-2)


def test_one_rare_value_does_not_stretch_its_column():
    rows = np.zeros((1000, 2), np.float32)
    rows[:, 0] = np.random.default_rng(0).normal(size=1000)
    rows[7, 1] = 1.0  # its deviation would be 1/31.6
    design = Design(Features(rows, torch.arange(1000) % 2, ""))
    (_, block, _), *_ = design.blocks(10**6)
    assert block[7, 1].item() == pytest.approx(10, rel=1e-3)
    assert block[:, 0].std().item() == pytest.approx(1, rel=1e-3)


def test_rows_that_do_not_fit_into_memory_give_the_same_heads(monkeypatch):
    data = features(500)
    expected = fit(Design(data), SMOOTHED)
    monkeypatch.setattr("beliefmatch.adaptation.feature_rows.BLOCK_NUMBERS", 100 * WIDTH)
    monkeypatch.setattr(solver, "_BLOCK_LOGITS", 64)
    streamed = fit(Design(data, memory=1), SMOOTHED)
    torch.testing.assert_close(streamed.weight, expected.weight, rtol=2e-3, atol=2e-4)


def test_weighted_rows_are_repeated_rows():
    data = features(80)
    weights = bootstrap_weights(3, 80)
    assert weights.sum(1).tolist() == [80, 80, 80] and not torch.equal(weights[0], weights[1])
    assert torch.equal(weights, bootstrap_weights(3, 80)) and weights.max() > 1
    design = Design(data)
    found = fit(design, [SMOOTHED[2]] * 3, row_weights=weights)
    for place in range(3):
        repeated = weights[place].long()
        rows = torch.from_numpy(data.rows).repeat_interleave(repeated, 0).numpy()
        again = Design(Features(rows, data.targets.repeat_interleave(repeated), "repeated"))
        again.mean, again.scale = design.mean, design.scale  # the same units
        again._rows = [(torch.from_numpy(rows) - design.mean) * design.scale]
        alone = fit(again, [SMOOTHED[2]])
        torch.testing.assert_close(found.weight[place], alone.weight[0], rtol=2e-3, atol=2e-4)


def test_background_rows_are_rows_without_votes():
    data, background = features(90), features(40, 8)
    rows = np.concatenate([data.rows, background.rows])
    counts = functional.one_hot(data.targets, CLASSES).float()
    counts = torch.cat([counts, torch.zeros(40, CLASSES)])
    both = Design(Features(rows, counts, "both"))
    design = Design(data, background, CLASSES)
    both.mean, both.scale = design.mean, design.scale
    both._rows = [(torch.from_numpy(rows) - design.mean) * design.scale]
    one = fit(design, BELIEFS[1:2], background=True)
    # the same sum of losses over 90 and over 130 rows: weight decay in proportion
    candidate = Candidate("belief_matching", {"kl_weight": 0.01}, weight_decay=3e-3 * 90 / 130)
    two = fit(both, [candidate])
    torch.testing.assert_close(one.weight, two.weight, rtol=5e-3, atol=2e-3)
    calm = [
        (torch.from_numpy(background.rows) @ weight[0].t() + bias[0]).logsumexp(1).mean().item()
        for weight, bias in (
            design.to_raw(found.weight, found.bias) for found in (one, fit(design, BELIEFS[1:2]))
        )
    ]
    assert calm[0] < calm[1]  # beliefs of the background are drawn to the prior


def test_outlier_exposure_flattens_the_background():
    design = Design(features(90), features(40, 8), CLASSES)
    exposed = [Candidate("softmax", weight_decay=1e-3, background=True, exposure=one) for one in (0.0, 1.0)]
    found = fit(design, exposed, background=True)
    plain = fit(design, [Candidate("softmax", weight_decay=1e-3)])
    torch.testing.assert_close(found.weight[0], plain.weight[0], rtol=2e-3, atol=2e-4)
    rows = torch.from_numpy(features(40, 8).rows)
    weight, bias = design.to_raw(found.weight, found.bias)
    top = [(rows @ weight[place].t() + bias[place]).softmax(1).max(1).values.mean() for place in (0, 1)]
    assert top[1] < top[0] - 0.05


def test_a_head_that_cannot_converge_says_so():
    found = solve(
        Design(features(90)),
        loss_of(SMOOTHED[1:2], CLASSES),
        torch.tensor([1e-4]),
        (torch.zeros(1, CLASSES, WIDTH), torch.zeros(1, CLASSES)),
        max_iterations=2,
    )
    assert found.iterations.tolist() == [2] and found.converged.tolist() == [False]
