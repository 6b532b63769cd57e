"""From features alone to a chosen head: the search, calibrations, bootstrap heads, the choice, the table."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional

from beliefmatch.adaptation import calibration, scoring
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.calibration import calibrate, calibrations
from beliefmatch.adaptation.ensemble import mixed
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import Candidate, FittedHead, HeadScores
from beliefmatch.adaptation.objectives import loss_of
from beliefmatch.adaptation.paper_protocol import default_kl_weights, fit_by_adam
from beliefmatch.adaptation.refit import _delivered, refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.scoring import Evaluator, risk_thresholds, score
from beliefmatch.adaptation.search import MAX_RISE, HeadSearch, best_prior, strongest_prior
from beliefmatch.belief import Belief
from beliefmatch.methods.mixture import disagreement
from beliefmatch.methods.temperature import fit_matrix_scaling
from beliefmatch.metrics import coverage_at_risk, error, expected_calibration_error, nll
from beliefmatch.train.sampler import EpochSampler
from head_features import CLASSES, FEW, SETS, WIDTH, assert_same, features, knowing_head, quiet, votes


def head_of(kl_weight, value, prior=1.0):
    candidate = Candidate("belief_matching", {"kl_weight": kl_weight, "prior": prior})
    return FittedHead(candidate, torch.zeros(2, 1), torch.zeros(2), HeadScores(value, 0.1, 0.0, 9))


def test_the_strongest_prior_within_one_percent_of_the_best_is_chosen():
    path = [head_of(0.1, 0.5), head_of(0.03, 0.2019), head_of(0.01, 0.2), head_of(0.003, 0.201)]
    assert strongest_prior(path) is path[1]
    assert strongest_prior([head_of(0.1, math.nan), path[2]]) is path[2]
    assert best_prior([*path, head_of(0.3, 0.2021, 2.0), head_of(0.1, 0.2018, 2.0)]) is path[1]
    other = head_of(0.001, 0.2018, 2.0)  # of a smaller λ, but of the lower NLL
    assert best_prior([*path, other]) is other


def test_a_head_that_was_given_up_is_not_chosen():
    search = HeadSearch(SETS.train, features(400, 5), CLASSES, config=AdaptConfig(weight_decays=(0.01,)))
    best = search.softmax()
    for is_finished in (False, True):
        stronger = replace(best, candidate=Candidate("softmax", weight_decay=1.0), converged=is_finished)
        search.heads = [best, stronger]
        assert search._strongest_decay(best) is (stronger if is_finished else best)


@pytest.mark.parametrize("validation", [SETS.validation, features(400, 5)], ids=["few", "many"])
def test_the_paths_end_where_the_nll_rises(validation):
    search = HeadSearch(SETS.train, validation, CLASSES, config=AdaptConfig())
    best = search.run()
    softmax = {one.candidate.weight_decay: one for one in search.heads if one.candidate.kind == "softmax"}
    chosen = best["softmax"]
    decay = chosen.candidate.weight_decay
    lowest = min(softmax.values(), key=search.nll)
    excess = search.row_nll(chosen) - search.row_nll(lowest)
    assert decay >= lowest.candidate.weight_decay and excess.mean() <= excess.std() / math.sqrt(len(excess))
    assert min(softmax) >= 0.03 / len(SETS.train) and len(softmax) > 2
    beliefs = [one for one in search.heads if one.candidate.kind == "belief_matching"]
    assert {one.candidate.weight_decay for one in beliefs} == {decay}
    least = min(map(search.nll, beliefs))
    belief = best["belief matching"]
    assert search.nll(belief) <= (1 + MAX_RISE) * least
    stronger = [one for one in beliefs if one.candidate.kl_weight > belief.candidate.kl_weight]
    assert stronger and all(search.nll(one) > (1 + MAX_RISE) * least for one in stronger)
    smoothed = [one for one in search.heads if one.candidate.kind == "label_smoothing"]
    matched = {one.candidate.options["matched_kl_weight"] for one in smoothed}
    assert matched == {one.candidate.kl_weight for one in beliefs}
    assert all(one.converged and one.gap <= AdaptConfig().tolerance for one in best.values())


@pytest.mark.parametrize("kind", [features, votes])
def test_few_validation_rows_choose_together_with_training_rows_that_are_held_out(kind):
    train, validation = kind(100), kind(60, 1)
    config = AdaptConfig(weight_decays=[0.01], tolerance=1e-6)
    search = HeadSearch(train, validation, CLASSES, config=config)
    head = search.softmax()
    targets = train.targets if kind is features else train.targets.argmax(1)
    has_votes = torch.ones(100, dtype=torch.bool) if kind is features else train.targets.sum(1) > 0
    rows = search.row_nll(head)
    assert len(rows) == len(search.evaluator) + int(has_votes.sum())
    torch.testing.assert_close(rows[: len(search.evaluator)], search.evaluator.row_nll(head))
    held_out = rows[len(search.evaluator) :]
    assert search.nll(head) == pytest.approx(rows.mean().item())
    if kind is votes:
        return
    _, design, _ = next(search.design.blocks(1000))
    expected = []
    for fold in search._folds:
        kept = fold.kept.bool()
        assert torch.bincount(targets[~kept], minlength=CLASSES).float().std() < 6
        model = LogisticRegression(C=1 / (0.01 * int(kept.sum())), tol=1e-9, max_iter=5000)
        probs = model.fit(design[kept], targets[kept]).predict_proba(design[~kept])
        expected.append(-np.log(probs[np.arange(len(probs)), targets[~kept]]))
    torch.testing.assert_close(held_out, torch.from_numpy(np.concatenate(expected)), rtol=0.02, atol=0.002)


def test_training_rows_that_an_existing_head_may_have_seen_choose_nothing():
    head = torch.zeros(CLASSES, WIDTH), torch.zeros(CLASSES)
    few, many = features(60, 1), features(300, 1)
    searches = [
        HeadSearch(features(100), few, CLASSES, init=head, config=AdaptConfig()),
        HeadSearch(features(100), many, CLASSES, config=AdaptConfig()),
    ]
    for search in searches:
        chosen = search.softmax()
        assert search.nll(chosen) == chosen.nll and len(search.row_nll(chosen)) == len(search.evaluator)


def test_a_grid_that_is_given_is_kept_to():
    config = AdaptConfig(kl_weights=(0.3, 0.003), weight_decays=(0.1, 0.01), controls=("softmax",))
    search = HeadSearch(SETS.train, SETS.validation, CLASSES, config=config)
    best = search.run()
    names = [one.candidate.name for one in search.heads]
    decay = best["softmax"].candidate.weight_decay
    assert names == [
        "softmax weight_decay=0.1",
        "softmax weight_decay=0.01",
        f"belief_matching kl_weight=0.3 weight_decay={decay:g}",
        f"belief_matching kl_weight=0.003 weight_decay={decay:g}",
    ]


def test_the_default_head_is_no_worse_than_scikit_learn():
    from sklearn.datasets import load_wine
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    rows, targets = load_wine(return_X_y=True)
    x, x_test, y, y_test = train_test_split(rows, targets, test_size=0.4, random_state=1, stratify=targets)
    x, x_val, y, y_val = train_test_split(x, y, test_size=0.4, random_state=1, stratify=y)
    sets = FeatureSets(
        *(Features(a.astype(np.float32), torch.from_numpy(b).long(), "") for a, b in ((x, y), (x_val, y_val)))
    )
    made = quiet(sets)
    test = Features(x_test.astype(np.float32), torch.from_numpy(y_test).long(), "")
    theirs = LogisticRegression(max_iter=5000).fit((x - x.mean(0)) / x.std(0), y)
    standardised = (x_test - x.mean(0)) / x.std(0)
    expected = -np.log(theirs.predict_proba(standardised)[np.arange(len(y_test)), y_test]).mean()
    for label in ("softmax", "belief matching"):
        assert score(made.table[label][0], test).nll <= 1.1 * expected


@pytest.mark.parametrize("data", [features(150, 5), votes(150, 5)], ids=["ids", "counts"])
def test_scores_are_those_of_the_metrics(data):
    head = FittedHead(Candidate("untouched"), *knowing_head())
    found = score(head, data)
    logits = torch.from_numpy(data.rows) @ head.weight.t() + head.bias
    probs = logits.double().softmax(1)
    if data.targets.dim() == 1:
        expected = [nll(probs, data.targets), error(probs, data.targets)]
        expected.append(expected_calibration_error(probs, data.targets, n_bins=15))
        assert (found.nll, found.error, found.ece) == pytest.approx(
            [float(one) for one in expected], rel=1e-5
        )
        assert found.rows == 150
        return
    some = data.targets.sum(1) > 0
    shares = data.targets[some].double() / data.targets[some].sum(1, keepdim=True)
    assert found.nll == pytest.approx(-(shares * probs[some].log()).sum(1).mean().item(), rel=1e-5)
    taken = shares.gather(1, probs[some].argmax(1, keepdim=True))
    assert found.error == pytest.approx(1 - taken.mean().item(), rel=1e-6)
    assert found.rows == int(some.sum())


def validation_logits(head, data):
    return (torch.from_numpy(data.rows) @ head.weight.t() + head.bias).double()


@pytest.mark.parametrize("data", [features(300, 5), votes(300, 5)], ids=["ids", "counts"])
def test_calibrations_minimise_the_nll_of_the_validation_rows(data):
    weight, bias = knowing_head()
    head = FittedHead(Candidate("softmax"), 3 * weight, 3 * bias + torch.arange(4.0))
    evaluator = Evaluator(data)
    logits = validation_logits(head, data)
    ids = data.targets.dim() == 1
    goal = functional.one_hot(data.targets, CLASSES).double() if ids else data.targets.double()
    goal = goal[goal.sum(1) > 0] / goal[goal.sum(1) > 0].sum(1, keepdim=True)
    logits = logits if ids else logits[data.targets.sum(1) > 0]

    def value(scale, shift):
        scaled = logits * torch.as_tensor(scale) + torch.as_tensor(shift)
        return -(goal * scaled.log_softmax(1)).sum(1).mean().item()

    scaled = calibrate(head, evaluator, "temperature")
    best = minimize(lambda x: value(x[0], 0.0), [1.0], method="Nelder-Mead", options={"xatol": 1e-8})
    torch.testing.assert_close(scaled.weight, head.weight * float(best.x[0]), rtol=1e-5, atol=0)
    vector = calibrate(head, evaluator, "vector_scaling")
    ridge = 1e-3 / CLASSES / 2
    start = best.x[0]

    def objective(x):
        away = ((x[:4] / start - 1) ** 2).sum() + (x[4:] ** 2).sum()
        return value(x[:4], x[4:]) + ridge * away

    found = minimize(objective, [start] * 4 + [0.0] * 4, method="BFGS", options={"gtol": 1e-9})
    torch.testing.assert_close(
        vector.weight, head.weight * torch.tensor(found.x[:4])[:, None].float(), rtol=1e-3, atol=1e-4
    )
    assert vector.nll < scaled.nll < score(head, data).nll  # the shift of classes is mended by vectors alone


def confusing_head():
    """A head that mixes its logits, which only a matrix can undo."""
    weight, bias = knowing_head()
    mixing = torch.eye(CLASSES) + 0.5 * torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    return FittedHead(Candidate("softmax"), mixing @ weight, mixing @ bias)


def test_matrix_scaling_mends_a_head_that_confuses_classes():
    data = features(900, 5)
    head = replace(confusing_head(), validation=score(confusing_head(), data))
    found, why = calibrations(head, Evaluator(data))
    assert why is None
    assert found[-1].candidate.label == "softmax + matrix scaling"
    assert [one.nll for one in found] == sorted((one.nll for one in found), reverse=True)
    matrix = calibrate(head, Evaluator(data), "matrix_scaling")
    (note,) = matrix.notes
    scaling = fit_matrix_scaling(
        validation_logits(head, data),
        data.targets,
        regularisation=float(note.removeprefix("regularisation ")),
    )
    torch.testing.assert_close(
        validation_logits(matrix, data), scaling(validation_logits(head, data)), rtol=1e-4, atol=1e-4
    )
    assert score(matrix, data).nll < matrix.nll  # which is of cross-fitting


@pytest.mark.parametrize(("rows", "is_tried"), [(49, False), (50, True)])
def test_a_matrix_is_fitted_only_to_enough_rows(rows, is_tried, monkeypatch):
    """Two and a half for each of its K² + K numbers."""
    tried, data = [], features(rows, 5)
    real = calibration.calibrate
    monkeypatch.setattr(calibration, "calibrate", lambda *args: tried.append(args[2]) or real(*args))
    calibrations(replace(confusing_head(), validation=score(confusing_head(), data)), Evaluator(data))
    assert ("matrix_scaling" in tried) is is_tried


def test_no_confusion_asks_for_the_strongest_regularisation():
    """Of those within a standard error of the best."""
    head, data = FittedHead(Candidate("softmax"), *knowing_head()), features(900, 5)
    probs = validation_logits(head, data).softmax(1)
    drawn = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    (note,) = calibrate(head, Evaluator(replace(data, targets=drawn)), "matrix_scaling").notes
    assert float(note.removeprefix("regularisation ")) >= 100


def test_a_calibrated_head_is_scored_by_cross_fitting():
    """Each row by the temperature of the other folds: worse than on the rows that it was fitted to."""
    head = FittedHead(Candidate("softmax"), *knowing_head())
    data = features(40, 5)
    scaled = calibrate(head, Evaluator(data), "temperature")
    assert scaled.nll > score(scaled, data).nll
    assert scaled.candidate.name == "softmax + temperature"


def test_a_temperature_keeps_the_scale_of_a_belief():
    made = quiet(SETS, adapt_config=FEW)
    head = made.table["belief matching"][0]
    scaled = calibrate(head, Evaluator(SETS.validation), "temperature")
    one, two = (validation_logits(each, SETS.validation).logsumexp(1).mean() for each in (head, scaled))
    assert one.item() == pytest.approx(two.item(), rel=1e-5)


def test_a_mixture_of_beliefs_has_its_mean_and_its_mutual_information():
    logits = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    found = Belief(mixed(logits))
    members = [Belief(one) for one in logits]
    mean = torch.stack([one.probs for one in members]).mean(0)
    torch.testing.assert_close(found.probs, mean)
    within = torch.stack([one.entropy() - one.mutual_information() for one in members]).mean(0)
    torch.testing.assert_close(found.mutual_information(), torch.special.entr(mean).sum(1) - within)
    same = logits[:1].expand(4, -1, -1)
    torch.testing.assert_close(mixed(same), logits[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(disagreement(same), torch.zeros(3, dtype=torch.float64))
    assert bool((disagreement(logits) > 0).all())
    sure = torch.tensor([[[40.0, 0.0]], [[0.0, 40.0]]], dtype=torch.float64)  # they contradict each other
    assert Belief(mixed(sure)).mutual_information().item() == pytest.approx(math.log(2), abs=1e-6)


def test_bootstrap_heads_disagree_less_with_more_rows():
    config = structs.replace(FEW, heads=5, kl_weights=(0.01,), controls=())
    doubts = []
    for rows in (60, 600):
        made = quiet(FeatureSets(features(rows), SETS.validation), adapt_config=config)
        head = made.table["belief matching, 5 heads"][0]
        assert made.chosen is head and made.label == "belief matching, 5 heads"
        assert head in made.fitted  # the record looks it up there
        assert head.weights.shape == (5, CLASSES, WIDTH)
        assert len(made.fitted) == len({one.candidate.name for one in made.fitted})
        logits = head.member_logits(torch.from_numpy(SETS.validation.rows))
        doubts.append(disagreement(logits).mean().item())
    assert doubts[1] < 0.5 * doubts[0]


@pytest.mark.parametrize("kind", ["belief_matching", "softmax", "evidential"])
def test_losses_and_gradients_are_of_each_row(kind):
    """So that weights of rows act on both."""
    targets = torch.tensor([0, 2, 1, 1, 0])
    options = {"kl_weight": 0.1} if kind == "belief_matching" else {}
    loss_and_grad = loss_of([Candidate(kind, options)] * 2, 3)
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    loss, grad = loss_and_grad(logits, targets, slice(None))
    assert loss.std(1).min() > 0.01
    for row in range(5):
        alone, own = loss_and_grad(logits[:, :, row : row + 1], targets[row : row + 1], slice(None))
        torch.testing.assert_close((loss[:, row], grad[:, :, row]), (alone[:, 0], own[:, :, 0]))


def test_only_heads_that_a_network_can_express_are_delivered():
    lines = {
        kind: FittedHead(Candidate(kind), torch.zeros(2, 1), torch.zeros(2), HeadScores(value, 0.1, 0.0, 9))
        for kind, value in (("evidential", 0.1), ("laplace", 0.2), ("softmax", 0.3), ("untouched", 0.4))
    }
    assert _delivered(lines, AdaptConfig(choose="best")) == "softmax"


def test_the_best_head_is_named_and_can_be_chosen():
    weight, bias = knowing_head()
    old = (4 * weight, 4 * bias)  # right, and far too sure
    made = quiet(SETS, init=old, adapt_config=structs.replace(FEW, labels="same"))
    best = min((heads[0].nll, label) for label, heads in made.table.items())
    assert made.best.nll == best[0]
    assert made.best.excess == pytest.approx(made.chosen.nll - best[0])
    assert made.chosen.candidate.kind == "belief_matching"
    again = quiet(SETS, init=old, adapt_config=structs.replace(FEW, labels="same", choose="best"))
    assert again.chosen.nll == best[0] and again.best.excess == 0
    assert {"untouched", "untouched + temperature", "softmax", "softmax + temperature"} <= {*made.table}


def test_background_rows_have_a_belief_matching_and_a_softmax_line():
    sets = replace(SETS, background=features(50, 8))
    made = quiet(sets, adapt_config=FEW)
    assert made.label == "belief matching with background"
    assert {"belief matching", "softmax with outlier exposure"} <= {*made.table}
    plain, drawn = (made.table[one][0] for one in ("belief matching", "belief matching with background"))
    assert drawn.iterations > 0 and not torch.equal(plain.weight, drawn.weight)


def test_priors_are_part_of_the_search():
    made = quiet(SETS, adapt_config=structs.replace(FEW, priors=(1.0, 3.0), controls=()))
    beliefs = [one for one in made.fitted if one.candidate.kind == "belief_matching"]
    assert {one.candidate.prior for one in beliefs} == {1.0, 3.0}
    assert "softmax" not in made.table


def test_evidential_heads_come_on_request_and_never_for_counts():
    config = structs.replace(FEW, controls=("softmax", "evidential"))
    fitted = quiet(SETS, adapt_config=config).table["evidential"][0]
    assert fitted.iterations > 0 and fitted.nll < 0.9 * math.log(CLASSES)
    assert "evidential" not in quiet(SETS, adapt_config=FEW).table
    made = quiet(FeatureSets(votes(200), votes(100, 5)), adapt_config=config)
    assert "evidential" not in made.table and made.classes == CLASSES
    again = quiet(FeatureSets(votes(200), features(100, 5)), adapt_config=config)  # chosen by single labels
    assert again.chosen.validation.rows == 100


def test_what_has_not_converged_is_named():
    config = AdaptConfig(protocol="paper", epochs=1, kl_weights=(0.03,), controls=("softmax",), risks=())
    with pytest.warns(UserWarning, match="not converged"):
        made = refit(SETS, adapt_config=config)
    assert not made.chosen.converged and any("not converged" in one for one in made.notes)


def test_the_paper_protocol_is_adam_on_a_linear_layer():
    """The same first weights and batches as a plain loop of torch."""
    candidate = Candidate("softmax", seed=3)
    config = AdaptConfig(protocol="paper", epochs=4, batch_size=32, learning_rate=0.01)
    (found,) = fit_by_adam(SETS, [candidate], CLASSES, config)
    hardly = structs.replace(config, epochs=1, batch_size=200, learning_rate=1e-12)
    (first,) = fit_by_adam(SETS, [candidate], CLASSES, hardly)
    layer = nn.Linear(WIDTH, CLASSES)
    layer.load_state_dict({"weight": first.weight, "bias": first.bias})
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    sampler, rows = EpochSampler(len(SETS.train), 32, 0), torch.from_numpy(SETS.train.rows)
    best = (math.inf, None)
    for epoch in range(4):
        for batch in sampler.batches(epoch):
            optimizer.zero_grad()
            functional.cross_entropy(layer(rows[batch]), SETS.train.targets[batch]).backward()
            optimizer.step()
        wrong = layer(torch.from_numpy(SETS.validation.rows)).argmax(1) != SETS.validation.targets
        best = min(best, (wrong.float().mean().item(), -epoch))
        assert found.curve[epoch].error == pytest.approx(wrong.float().mean().item())
    assert found.error == pytest.approx(best[0])


def test_every_seed_of_the_paper_protocol_is_in_the_table():
    config = AdaptConfig(protocol="paper", epochs=3, seeds=(0, 1), kl_weights=(0.3, 0.03), risks=())
    made = quiet(SETS, adapt_config=config)
    assert {label: len(heads) for label, heads in made.table.items()} == {
        "softmax": 2, "label smoothing": 2, "belief matching": 2,
    }  # fmt: skip
    means = {
        weight: np.mean([one.nll for one in made.fitted if one.candidate.options == {"kl_weight": weight}])
        for weight in (0.3, 0.03)
    }
    assert made.chosen.candidate.kl_weight == min(means, key=lambda one: means[one])
    alone = quiet(SETS, adapt_config=structs.replace(config, seeds=(1,)))
    for label, heads in made.table.items():
        assert_same(heads[1], alone.table[label][0])


@pytest.mark.parametrize("kind", ["ids", "counts"])
def test_risk_thresholds_are_those_of_the_metrics(kind):
    held_out = features(800, 8) if kind == "ids" else votes(800, 8)
    adapt_config = structs.replace(FEW, risks=(0.4, 1e-4), delta=0.1)
    made = quiet(FeatureSets(features(400), held_out), adapt_config=adapt_config)
    some = torch.ones(len(held_out), dtype=torch.bool) if kind == "ids" else held_out.targets.sum(1) > 0
    right = held_out.targets[some] if kind == "ids" else held_out.targets[some].argmax(1)
    probs = made.chosen.predict(torch.from_numpy(held_out.rows)[some]).probs
    confidence, place = probs.max(1)
    likely, unlikely = made.risk_thresholds
    expected = coverage_at_risk(confidence, place == right, risk=0.4, delta=0.1)
    assert likely.threshold == pytest.approx(expected.threshold, rel=1e-6)
    assert (likely.coverage, likely.bound) == pytest.approx((expected.coverage, expected.bound))
    assert likely.coverage > 0 and likely.bound <= 0.4
    assert (unlikely.threshold, unlikely.coverage, unlikely.bound) == (None, 0.0, None)


def test_risk_thresholds_do_not_depend_on_the_size_of_blocks(monkeypatch):
    made = quiet(SETS, adapt_config=FEW)
    monkeypatch.setattr("beliefmatch.adaptation.scoring._LOGITS", 4 * CLASSES)
    (again,) = risk_thresholds(made.chosen, SETS.validation, risks=(0.4,), delta=0.05)
    assert again.coverage == made.risk_thresholds[0].coverage
    assert again.threshold == pytest.approx(made.risk_thresholds[0].threshold, rel=1e-6)


def test_default_values_of_kl_weight_follow_the_classes():
    assert default_kl_weights(10) == [0.01, 0.003, 0.001, 0.0003, 0.0001]
    assert default_kl_weights(1000)[0] == 0.001


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("seeds", {"seeds": (0, 1)}),
        ("heads", {"heads": 1}),
        ("heads", {"heads": 10**8}),
        ("batchnorm", {"batchnorm": True, "heads": 3}),
        ("batchnorm", {"batchnorm": True, "choose": "best"}),
        ("heads", {"heads": 5, "protocol": "paper"}),
        ("weight_decays", {"weight_decays": (0.1,), "protocol": "paper"}),
        ("weight_decays", {"weight_decays": (0.0,)}),
        ("choose", {"choose": "worst"}),
        ("tolerance", {"tolerance": 0.0}),
    ],
)
def test_options_that_contradict_are_refused(argument, options):
    with pytest.raises(ValueError, match=f"`{argument}"):
        AdaptConfig(**options)


def test_thousands_of_classes_in_few_rows_at_a_time(monkeypatch):
    """Blocks and the fit of scales are bounded by numbers, not by rows."""
    classes, width = 2500, 6
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(classes, width))
    ids = np.arange(2 * classes) % classes

    def some(numbers):
        rows = centres[numbers] + 0.3 * rng.normal(size=(len(numbers), width))
        return Features(rows.astype(np.float32), torch.from_numpy(numbers), "")

    sets = FeatureSets(some(ids), some(ids[:300]))
    seen = []
    real = scoring.product
    monkeypatch.setattr(scoring, "product", lambda *args: seen.append(real(*args)) or seen[-1])
    monkeypatch.setattr(scoring, "_LOGITS", 500_000)
    config = AdaptConfig(kl_weights=(1e-4,), weight_decays=(1e-5,), controls=("softmax",), tolerance=0.2)
    with pytest.warns(UserWarning, match="`validation` has only 300"):
        made = refit(sets, adapt_config=config)
    assert made.classes == classes and made.chosen.weight.shape == (classes, width)
    assert max(logits.numel() for logits in seen) <= 500_000
    assert made.chosen.error < 0.5
    assert any("vector scaling" in one for one in made.notes)


def test_rows_that_are_all_right_calibrate_nothing():
    """A temperature near 0 would be certain of everything."""
    rows = np.repeat(5 * np.eye(CLASSES, dtype=np.float32), 40, 0)
    rows += 0.1 * np.random.default_rng(0).normal(size=rows.shape).astype(np.float32)
    easy = Features(rows, torch.arange(CLASSES).repeat_interleave(40), "easy")
    made = quiet(FeatureSets(easy, easy), adapt_config=FEW)
    assert not any("+" in label for label in made.table)
    assert any("calibration" in one for one in made.notes)


def test_labels_by_chance_are_fitted_without_warnings_about_lambda():
    """λ grows until hardly any confidence is left; the search does not warn of its own trials."""
    rng = np.random.default_rng(0)
    sets = [
        Features(rng.normal(size=(many, 5)).astype(np.float32), torch.arange(many) % CLASSES, "")
        for many in (200, 120)
    ]
    made = refit(FeatureSets(*sets), adapt_config=AdaptConfig(risks=()))
    assert made.chosen.candidate.kl_weight > 0.03
    assert made.chosen.nll < 1.05 * math.log(CLASSES)
