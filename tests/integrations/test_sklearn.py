"""`BeliefClassifier`: scikit-learn's own checks, laws of weights and votes, and life inside pipelines."""

import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_circles, make_classification
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from beliefmatch import belief_matching_loss
from beliefmatch._errors import ArgumentError, ArgumentWarning
from beliefmatch.mlp import NetworkTraining
from beliefmatch.sklearn import BeliefClassifier

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"  # short trainings, on purpose
)
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "weights reach the same optimum as repeated rows to single precision; batches of networks differ"
    ),
}


def quick(**options):
    """A linear model without a search."""
    return BeliefClassifier((), **{"kl_weight": 0.01, "weight_decay": 0.01, "random_state": 0, **options})


@pytest.fixture(scope="module")
def rows():
    return make_classification(240, 8, n_informative=5, n_redundant=0, n_classes=3, random_state=8)


# scikit-learn's own checks


@pytest.mark.filterwarnings("ignore:.*has no row of positive weight")  # one check weighs a class with 0
@parametrize_with_checks(
    [quick(), BeliefClassifier((5,), kl_weight=0.01, weight_decay=0.01, max_iter=60)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:.*has no row of positive weight")
def test_the_checks_of_scikit_learn_pass_with_the_defaults():
    found = check_estimator(BeliefClassifier(), expected_failed_checks=EXPECTED_FAILURES, on_fail=None)
    assert [one["check_name"] for one in found if one["status"] == "failed"] == []


# The optimum


def test_the_linear_model_is_at_the_optimum_of_the_loss(rows):
    """The gradient of the public loss with weight decay vanishes at the fitted weights, found by autograd."""
    X, y = rows
    model = quick(kl_weight=0.05, weight_decay=0.02).fit(X, y)
    standardized = torch.from_numpy((X - X.mean(0)) / X.std(0))
    target = torch.from_numpy(model.decision_function(X))
    design = torch.cat([standardized, torch.ones(len(X), 1)], 1)
    layer = torch.linalg.lstsq(design, target).solution.requires_grad_()
    loss = belief_matching_loss(design @ layer, torch.from_numpy(y), kl_weight=0.05)

    def objective(parameters):
        value = belief_matching_loss(design @ parameters, torch.from_numpy(y), kl_weight=0.05)
        bias = parameters[-1]
        return value + 0.01 * parameters[:-1].square().sum() + 0.0005 * (bias - bias.mean()).square().sum()

    start = objective(layer).item()
    optimizer = torch.optim.LBFGS([layer], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = objective(layer)
        value.backward()
        return value

    optimizer.step(closure)
    assert loss.item() < start
    assert start == pytest.approx(objective(layer).item(), rel=2e-3)


def test_on_one_dimension_of_overlap_it_agrees_with_logistic_regression():
    """As λ goes to 0 belief matching is cross-entropy."""
    generator = np.random.default_rng(0)
    y = np.arange(4000) % 2
    X = generator.normal(2.0 * y[:, None], 1.0, (4000, 1))
    own = quick(kl_weight=1e-4, weight_decay=1e-6).fit(X, y)
    other = LogisticRegression(C=1e6).fit(X, y)
    np.testing.assert_allclose(own.predict_proba(X), other.predict_proba(X), atol=0.01)


@pytest.mark.filterwarnings("ignore:.*same features in every row")
def test_constant_features_give_the_posterior_of_the_base_rates():
    X, y = np.ones((30, 2)), np.array([0] * 20 + [1] * 10)
    alpha = quick(kl_weight=0.1, weight_decay=1e-6).fit(X, y).belief(X[:1]).alpha[0].numpy()
    np.testing.assert_allclose(alpha, [1 + 20 / 30 / 0.1, 1 + 10 / 30 / 0.1], rtol=0.02)


def test_auto_takes_the_network_where_no_line_divides_the_classes():
    X, y = make_circles(200, noise=0.1, factor=0.4, random_state=0)
    model = BeliefClassifier(random_state=0, max_iter=100).fit(X, y)
    assert model.hidden_layer_sizes_ == (100,)
    assert model.score(X, y) > 0.95
    table = model.cv_results_
    assert set(table["hidden_layer_sizes"]) == {(), (100,)}
    chosen = [
        nll
        for hidden, kl_weight, decay, nll in zip(*table.values(), strict=True)
        if (hidden, kl_weight, decay) == ((100,), model.kl_weight_, model.weight_decay_)
    ]
    assert chosen[0] <= 1.002 * min(
        nll
        for nll, decay in zip(table["nll"], table["weight_decay"], strict=True)
        if decay == model.weight_decay_
    )


def test_auto_chooses_a_linear_model_as_good_as_logistic_regression(rows):
    X, y = rows
    model = BeliefClassifier((), random_state=0).fit(X[:160], y[:160])
    other = LogisticRegression().fit(X[:160], y[:160])
    own = log_loss(y[160:], model.predict_proba(X[160:]))
    assert own < 1.05 * log_loss(y[160:], other.predict_proba(X[160:]))
    assert model.hidden_layer_sizes_ == ()


# What it predicts


def test_all_readings_of_a_prediction_agree(rows):
    X, y = rows
    model = quick().fit(X, y)
    probs, belief = model.predict_proba(X), model.belief(X)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probs)
    np.testing.assert_allclose(belief.probs.numpy(), probs)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probs.argmax(1)])
    np.testing.assert_allclose(np.exp(model.decision_function(X)), belief.alpha.numpy())
    np.testing.assert_array_equal(model.abstain(X, 0.8), probs.max(1) < 0.8)
    by_precision = model.abstain(X, 50, measure="precision")
    np.testing.assert_array_equal(by_precision, (belief.precision < 50).numpy())


def test_without_a_threshold_answers_have_a_confidence_of_at_least_90_percent(rows):
    X, y = rows
    model = quick().fit(X, y)
    np.testing.assert_array_equal(model.abstain(X), model.predict_proba(X).max(1) < 0.9)


def test_a_risk_bounds_the_error_among_the_answers_to_fresh_rows():
    """Of 20 draws of calibration rows, at most a share `delta` gives a threshold that exceeds the risk."""
    names = np.array(["b", "f", "z"])
    X, y = make_classification(
        40_000, 6, n_informative=4, n_redundant=0, n_classes=3, flip_y=0, class_sep=1.5, random_state=3
    )
    model = quick().fit(X[:300], names[y[:300]])
    fresh, truth = X[20_000:], names[y[20_000:]]
    wrong = model.predict(fresh) != truth
    assert wrong.mean() > 0.2
    errors, coverages = [], []
    for start in range(300, 19_900, 980):
        rows = slice(start, start + 980)
        calibration = (X[rows], names[y[rows]])
        answered = ~model.abstain(fresh, risk=0.2, calibration=calibration, delta=0.1)
        errors.append(wrong[answered].mean())
        coverages.append(answered.mean())
    assert np.mean(np.array(errors) > 0.2) <= 0.1
    assert 0.3 < np.mean(coverages) < 0.7


def test_labels_with_gaps_calibrate_as_their_ids_do(rows):
    X, y = rows
    gaps = np.array([-3, 4, 90])
    by_id, by_label = quick().fit(X, y), quick().fit(X, gaps[y])
    some = y < 2  # the third class is absent
    expected = by_id.abstain(X, risk=0.3, calibration=(X[some], y[some]), delta=0.5)
    assert 0 < expected.sum() < len(X)
    found = by_label.abstain(X, risk=0.3, calibration=(X[some], gaps[y[some]]), delta=0.5)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        (lambda X, y: {"threshold": 0.5, "delta": 0.1}, "delta"),
        (lambda X, y: {"delta": 0.1}, "threshold"),
        (lambda X, y: {"threshold": 0.5, "risk": 0.1, "calibration": (X, y)}, "threshold"),
        (lambda X, y: {"risk": 0.1}, "threshold"),
        (lambda X, y: {"risk": 0.1, "calibration": X}, "calibration"),
        (lambda X, y: {"risk": 0.1, "calibration": (X, y[:-1])}, "calibration"),
        (lambda X, y: {"risk": 0.1, "calibration": (X, y + 1)}, "calibration"),
        (lambda X, y: {"risk": 0.1, "calibration": (X, np.eye(3)[y])}, "calibration"),
        (lambda X, y: {"risk": 0.1, "calibration": (X, y + 0.5)}, "calibration"),
        (lambda X, y: {"risk": 0.1, "calibration": (X, np.full(len(y), None))}, "calibration"),
        (lambda X, y: {"risk": 0.1, "calibration": (X, y.astype(str))}, "calibration"),
        (lambda X, y: {"risk": 0.1, "calibration": (X[:, :2], y)}, "calibration"),
        (lambda X, y: {"risk": 0.1, "calibration": (X * np.nan, y)}, "calibration"),
        (lambda X, y: {"risk": 2, "calibration": (X, y)}, "risk"),
        (lambda X, y: {"risk": 0.1, "calibration": (X, y), "delta": 0}, "delta"),
    ],
)
def test_abstention_that_cannot_be_decided_names_the_argument(rows, given, argument):
    X, y = rows
    model = quick().fit(X, y)
    with pytest.raises(ArgumentError) as caught:
        model.abstain(X, **given(X, y))
    assert (caught.value.function, caught.value.argument) == ("BeliefClassifier.abstain", argument)
    assert "\n" not in str(caught.value)


def test_the_decision_function_of_two_classes_is_the_log_odds(rows):
    X, y = rows
    model = quick().fit(X, np.array(["no", "yes"])[(y > 0).astype(int)])
    odds = model.predict_proba(X)[:, 1] / model.predict_proba(X)[:, 0]
    np.testing.assert_allclose(model.decision_function(X), np.log(odds))
    np.testing.assert_array_equal(model.predict(X) == "yes", model.decision_function(X) > 0)


# Weights and votes


def test_weights_are_repetitions_and_zero_leaves_out(rows):
    X, y = rows[0][:90], rows[1][:90]
    counts = np.arange(90) % 3
    weighted = quick().fit(X, y, sample_weight=counts)
    repeated = quick().fit(X.repeat(counts, 0), y.repeat(counts))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize(("weight_decay", "twice", "reverse"), [(0.01, 1e-4, 1e-5), (1e-4, 5e-4, 1e-4)])
def test_repeated_and_reordered_rows_give_the_same_probabilities(weight_decay, twice, reverse):
    """The bounds are at least twice the numbers in docs/sklearn.md, which are those of every third row."""
    X, y = load_iris(return_X_y=True)

    def probs(rows, weights=None):
        model = quick(kl_weight=0.01, weight_decay=weight_decay)
        return model.fit(X[rows], y[rows], sample_weight=weights).predict_proba(X)

    every = np.arange(len(X))
    for row in every[::15]:
        weighted = probs(every, 1.0 + (every == row))
        np.testing.assert_allclose(weighted, probs([*every, row]), rtol=0, atol=twice)
    np.testing.assert_allclose(probs(every[::-1]), probs(every), rtol=0, atol=reverse)


def test_one_vote_each_is_a_label(rows):
    X, y = rows
    labels, votes = quick().fit(X, y), quick().fit(X, np.eye(3)[y])
    np.testing.assert_allclose(votes.predict_proba(X), labels.predict_proba(X), atol=1e-4)
    assert votes.score(X, np.eye(3)[y]) == labels.score(X, y)


@pytest.mark.filterwarnings("ignore:.*same features in every row")
def test_more_votes_make_a_surer_belief():
    """The posterior of n votes in the shares (1, 0) is Dir(1 + n/λ, 1), whatever the features."""
    X = np.ones((40, 1))
    for n in (1, 10):
        alpha = quick(kl_weight=0.5).fit(X, np.tile([3.0 * n, n], (40, 1))).belief(X[:1]).alpha[0].numpy()
        np.testing.assert_allclose(alpha, [1 + 3 * n / 0.5, 1 + n / 0.5], rtol=0.05)


def test_rows_without_votes_draw_the_belief_to_the_prior(rows):
    X, y = rows
    votes = np.eye(3)[y]
    far = X + 10
    without = quick().fit(X, votes).belief(far).log_precision.mean()
    drawn = quick().fit(np.vstack([X, far]), np.vstack([votes, 0 * votes])).belief(far).log_precision.mean()
    assert drawn < without - 1


def test_columns_of_a_frame_of_votes_name_the_classes(rows):
    X, y = rows
    for frame in (pd.DataFrame, pl.DataFrame):
        votes = frame(dict(zip("abc", np.eye(3)[y].T, strict=True)))
        model = quick().fit(X, votes)
        assert model.classes_.tolist() == ["a", "b", "c"]
        assert set(model.predict(X)) <= {"a", "b", "c"}


def test_votes_are_scored_in_the_columns_of_the_fit_alone(rows):
    X, y = rows
    votes = pd.DataFrame(np.eye(3)[y], columns=["zebra", "ant", "fox"])
    model = quick().fit(X, votes)
    assert (
        model.score(X, votes)
        == model.score(X, votes.to_numpy())
        == (model.predict(X) == votes.columns[y]).mean()
    )
    for other in (votes[["fox", "ant", "zebra"]], votes.rename(columns={"fox": "hen"})):
        for call in (model.score, model.partial_fit):
            with pytest.raises(ValueError, match=r"^BeliefClassifier: `y` .*zebra"):
                call(X, other)


def test_class_weights_equal_sample_weights_for_labels_and_for_votes(rows):
    X, y = rows
    per_class = {0: 1.0, 1: 3.0, 2: 0.5}
    by_row = np.array([per_class[one] for one in y])
    expected = quick().fit(X, y, sample_weight=by_row).predict_proba(X)
    for targets in (y, np.eye(3)[y]):
        model = quick(class_weight=per_class).fit(X, targets)
        np.testing.assert_allclose(model.predict_proba(X), expected, atol=2e-3)


@pytest.mark.filterwarnings("ignore:.*same features in every row")
def test_balanced_weights_even_out_the_classes():
    y = np.array([0] * 90 + [1] * 10)
    X = np.ones((100, 1))
    for targets in (y, np.eye(2)[y]):
        model = quick(class_weight="balanced", kl_weight=1e-3).fit(X, targets)
        np.testing.assert_allclose(model.predict_proba(X[:1]), [[0.5, 0.5]], atol=0.01)


# Reproducibility and incremental training


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_a_seed_repeats_and_a_pickle_predicts_the_same(rows, hidden):
    X, y = rows
    model = BeliefClassifier(hidden, kl_weight=0.01, max_iter=15, random_state=3)
    probs = model.fit(X, y).predict_proba(X)
    torch.manual_seed(99)
    np.testing.assert_array_equal(clone(model).fit(X, y).predict_proba(X), probs)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), probs)


def test_training_leaves_the_global_random_state_alone(rows):
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    BeliefClassifier((4,), kl_weight=0.01, weight_decay=0.01, max_iter=3).fit(*rows)
    assert torch.equal(torch.random.get_rng_state(), before[0])


def test_partial_fit_comes_to_what_fit_finds(rows):
    X, y = rows
    model = quick(learning_rate=0.02, batch_size=120)
    for _ in range(100):
        for part in np.array_split(np.arange(len(X)), 2):
            model.partial_fit(X[part], y[part], classes=[0, 1, 2])
    expected = quick().fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), expected.predict_proba(X), atol=0.05)
    assert model.n_iter_ == 200


def test_partial_fit_goes_on_from_fit(rows):
    X, y = rows
    model = BeliefClassifier((8,), kl_weight=0.01, weight_decay=0.01, max_iter=20, random_state=0).fit(X, y)
    before = log_loss(y, model.predict_proba(X))
    for _ in range(5):
        model.partial_fit(X, y)
    assert log_loss(y, model.predict_proba(X)) < before


def test_partial_fit_meets_a_class_later(rows):
    X, y = rows
    model = BeliefClassifier((), random_state=0).partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (240, 3)
    with pytest.raises(ValueError, match="`y`"):
        model.partial_fit(X, y + 1)
    with pytest.raises(ValueError, match="`classes`"):
        BeliefClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="`classes`"):
        model.partial_fit(X, y, classes=[0, 1, 2, 3])


def test_classes_name_the_columns_of_votes_in_partial_fit(rows):
    X, y = rows
    votes = np.eye(3)[y]
    model = BeliefClassifier((), random_state=0).partial_fit(X, votes, classes=["no", "yes", "maybe"])
    assert model.classes_.tolist() == ["no", "yes", "maybe"]
    names = model.classes_[y]
    for _ in range(30):
        model.partial_fit(X, votes).partial_fit(X, names)
    assert (model.predict(X) == names).mean() == model.score(X, votes) > 0.6
    model.partial_fit(X, names, classes=["maybe", "no", "yes"])
    assert model.classes_.tolist() == ["no", "yes", "maybe"]
    for wrong in (["no", "yes"], ["no", "yes", "yes"], ["yes", "no", "maybe"]):
        with pytest.raises(ValueError, match="`classes`"):
            model.partial_fit(X, votes, classes=wrong)
    with pytest.raises(ValueError, match="`classes`"):
        BeliefClassifier(()).partial_fit(X, votes, classes=["no", "yes"])
    with pytest.raises(ValueError, match="`y`"):
        model.partial_fit(X, pd.DataFrame(votes, columns=["yes", "no", "maybe"]))


def test_changed_parameters_hold_for_the_next_calls_of_partial_fit(rows):
    X, y = rows

    def trained(**changes):
        model = quick().partial_fit(X, y, classes=[0, 1, 2]).set_params(**changes)
        before = model.decision_function(X)
        steps = [model.partial_fit(X, y).decision_function(X) for _ in range(60)]
        return model, np.abs(steps[0] - before).max(), model.belief(X).alpha.sum(1).mean().item()

    same, step, precision = trained()
    slow, slow_step, _ = trained(learning_rate=3e-6)
    assert slow_step < 0.01 * step and slow.kl_weight_ == same.kl_weight_ == 0.01
    doubtful, _, doubtful_precision = trained(kl_weight=0.3)
    assert doubtful.kl_weight_ == 0.3 and doubtful_precision < 0.8 * precision
    decayed, _, _ = trained(weight_decay=5.0)
    assert decayed.weight_decay_ == 5.0
    assert decayed.predict_proba(X).max(1).mean() < same.predict_proba(X).max(1).mean()
    kept, _, kept_precision = trained(kl_weight="auto")
    assert kept.kl_weight_ == 0.01 and kept_precision == precision


def test_without_early_stopping_one_network_trains_for_all_epochs(rows):
    model = BeliefClassifier((8,), kl_weight=0.01, early_stopping=False, max_iter=7, random_state=0).fit(
        *rows
    )
    assert model.n_iter_ == 7
    assert len(model.cv_results_["nll"]) == 3


# In the company of scikit-learn


def test_it_works_in_pipeline_and_grid_search(rows):
    X, y = rows
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), quick()),
        {"beliefclassifier__kl_weight": [0.001, 30.0]},
        scoring="neg_log_loss",
        cv=3,
    ).fit(X, y)
    assert search.best_params_ == {"beliefclassifier__kl_weight": 0.001}
    assert cross_val_score(quick(), X, np.eye(3)[y], cv=3).min() > 0.5


def test_it_can_be_calibrated(rows):
    X, y = rows
    model = CalibratedClassifierCV(quick(kl_weight=1.0), method="sigmoid", cv=3).fit(X, y)
    assert log_loss(y, model.predict_proba(X)) < log_loss(y, quick(kl_weight=1.0).fit(X, y).predict_proba(X))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_are_read_by_their_columns(rows, frame):
    X, y = rows
    names = [f"column {one}" for one in range(8)]
    table = frame(dict(zip(names, X.T, strict=True)))
    model = quick().fit(table, y)
    assert model.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(model.predict_proba(table), quick().fit(X, y).predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[names[::-1]])


def test_folds_of_the_user_are_used(rows):
    X, y = rows
    by_group = list(LeaveOneGroupOut().split(X, y, np.arange(240) % 3))
    model = BeliefClassifier((), cv=by_group).fit(X, y, sample_weight=np.arange(240) % 4)
    assert np.isfinite(model.cv_results_["nll"]).all()
    perceptron = BeliefClassifier(
        (4,), kl_weight=0.01, cv=TimeSeriesSplit(3), max_iter=50, random_state=0
    ).fit(X, y)
    assert perceptron.score(X, y) > 0.6


def test_large_offsets_of_a_column_cost_no_digits(rows):
    X, y = rows
    expected = quick().fit(X, y).predict_proba(X)
    np.testing.assert_allclose(quick().fit(X + 1e9, y).predict_proba(X + 1e9), expected, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*a single row of")
def test_few_rows_and_rare_classes_are_fitted():
    X, y = load_iris(return_X_y=True)
    few = [0, 1, 50, 51, 100]
    assert BeliefClassifier(random_state=0).fit(X[few], y[few]).predict(X[few]).tolist() == y[few].tolist()
    rare = [*range(30), 60]
    assert np.isfinite(BeliefClassifier((), random_state=0).fit(X[rare], y[rare]).predict_log_proba(X)).all()


# Mistakes


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"hidden_layer_sizes": "deep"}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": 100}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
        ({"kl_weight": 0}, "kl_weight"),
        ({"kl_weight": "strong"}, "kl_weight"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"prior": 0.0}, "prior"),
        ({"prior": (1.0, 2.0)}, "prior"),
        ({"class_weight": "even"}, "class_weight"),
        ({"class_weight": {7: 1.0}}, "class_weight"),
        ({"class_weight": {0: -1.0}}, "class_weight"),
        ({"prior": (1.0, 2.0), "hidden_layer_sizes": (3,)}, "prior"),
        ({"cv": 1}, "cv"),
        ({"cv": 1000}, "cv"),
        ({"cv": [([0, 1, 2], [3, 240])]}, "cv"),
        ({"cv": [([0, 1, 2], [-1])]}, "cv"),
        ({"cv": [(["a"], [1])]}, "cv"),
        ({"cv": [([0.5], [1])]}, "cv"),
        ({"cv": []}, "cv"),
        ({"hidden_layer_sizes": (10**12,)}, "hidden_layer_sizes"),
        ({"batch_size": np.array([32, 64])}, "batch_size"),
        ({"early_stopping": "no"}, "early_stopping"),
        ({"max_iter": 0}, "max_iter"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"tol": -1.0}, "tol"),
        ({"n_iter_no_change": 1.5}, "n_iter_no_change"),
    ],
)
def test_a_wrong_parameter_is_named(rows, options, argument):
    with pytest.raises((ValueError, TypeError), match=f"`{argument}`"):
        BeliefClassifier(**options).fit(*rows)


@pytest.mark.parametrize("classes", [[0, 1, None], [0, 1, float("nan")], ["a", 1, 2.0, b"c"], 3])
def test_classes_that_are_no_labels_are_refused(rows, classes):
    with pytest.raises((ValueError, TypeError), match=r"^BeliefClassifier: `classes` "):
        quick().partial_fit(*rows, classes=np.array(classes, dtype=object))


def test_a_fit_that_fails_leaves_the_model_as_it_was(rows):
    X, y = rows
    model = quick().fit(pd.DataFrame(X, columns=list("abcdefgh")), y)
    frame, before = pd.DataFrame(X, columns=list("abcdefgh")), dict(model.__dict__)
    expected = model.predict_proba(frame)
    other = np.array(["u", "v"])[y % 2]
    for call in (
        lambda: model.fit(X[:, :3], other, sample_weight=np.zeros(240)),
        lambda: model.set_params(prior=(1.0, 2.0, 3.0, 4.0)).fit(X[:, :3], other),
        lambda: model.set_params(prior=1.0, cv=[]).fit(X[:, :3], other),
        lambda: model.set_params(cv="auto").partial_fit(frame, np.where(y == 0, 7, y)),
        lambda: model.fit(1e300 * X, y),
    ):
        with pytest.raises((ValueError, TypeError)):
            call()
        assert np.array_equal(model.predict_proba(frame), expected)
        assert model.classes_.tolist() == [0, 1, 2] and model.n_features_in_ == 8
    assert model.__dict__.keys() == before.keys()


@pytest.mark.parametrize("error", [ArgumentError, KeyboardInterrupt])
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_pass_that_fails_halfway_leaves_the_model_as_it_was(rows, monkeypatch, error, calls):
    X, y = rows
    models = [quick(batch_size=len(X)).fit(X, y) for _ in range(2)]  # one step a pass: no order of rows
    for model in models:
        for _ in range(calls):
            model.partial_fit(X, y)
    model, other = models
    before, keys = model.predict_proba(X), model.__dict__.keys()
    step = NetworkTraining._step

    def failing(training, *given):
        step(training, *given)
        if error is KeyboardInterrupt:
            raise KeyboardInterrupt
        training._flat.fill_(torch.nan)  # as too large a learning rate does

    monkeypatch.setattr(NetworkTraining, "_step", failing)
    with pytest.raises(error):
        model.partial_fit(X, y, sample_weight=1.0 + y)
    monkeypatch.setattr(NetworkTraining, "_step", step)
    assert np.array_equal(model.predict_proba(X), before)
    assert model.__dict__.keys() == keys and model.n_iter_ == other.n_iter_
    after = other.partial_fit(X, y).predict_proba(X)
    np.testing.assert_allclose(model.partial_fit(X, y).predict_proba(X), after, rtol=0, atol=1e-6)
    assert np.abs(after - before).max() > 1e-4


def test_a_class_whose_rows_all_weigh_nothing_is_warned_of(rows):
    X, y = rows
    model = quick()
    with pytest.warns(ArgumentWarning, match="`y` has no row of positive weight of class 2"):
        model.fit(X, y, sample_weight=(y != 2).astype(float))
    assert model.predict_proba(X)[:, 2].max() < 0.05


def test_numbers_too_large_to_be_squared_are_named(rows):
    with pytest.raises(ValueError, match="`X`"):
        quick().fit(rows[0] * 1e300, rows[1])


def test_wrong_votes_are_named(rows):
    X, y = rows
    votes = np.eye(3)[y]
    for wrong in (-votes, 0 * votes, votes[:-1], pd.DataFrame(votes, columns=["a", "a", "b"])):
        with pytest.raises(ValueError, match="`y`"):
            quick().fit(X, wrong)
    with pytest.raises(ValueError, match="`y`"):
        quick().fit(X, y).score(X, votes[:, :2] + 1)
    with pytest.raises(ValueError, match="sample_weight"):
        quick().fit(X, y, sample_weight=-np.ones(240))
    for read in (quick().belief, lambda X: quick().score(X, votes), lambda X: quick().score(X, y)):
        with pytest.raises(NotFittedError):
            read(X)


# Data and parameters that cannot give a useful model


def with_value(X, value):
    return np.concatenate([np.full((1, X.shape[1]), value), X[1:]])


def fit_warnings(model, X, y):
    """Category and message of each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return [(one.category, f"{one.message}") for one in caught]


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_classes_of_a_single_row_are_warned_of(rows, hidden):
    X, y = rows
    names = np.array(["a", "b", "c", "rare"])
    model = BeliefClassifier(hidden, kl_weight=0.01, weight_decay=0.01, learning_rate=0.03, random_state=0)
    [(kind, message)] = fit_warnings(model, X, names[np.r_[3, y[1:]]])
    assert kind is ArgumentWarning and "`y`" in message and "class 'rare'" in message
    assert model.predict_proba(X).shape == (240, 4)
    assert fit_warnings(model, X, names[y]) == []


def test_a_class_without_a_vote_is_warned_of_and_is_improbable(rows):
    X, y = rows
    votes = np.eye(4)[y] * 3
    model = quick()
    [(kind, message)] = fit_warnings(model, X, votes)
    assert kind is ArgumentWarning and "`y`" in message and "class 3" in message
    assert model.predict_proba(X)[:, 3].max() < 0.05


def test_features_that_never_vary_are_warned_of_and_give_the_frequencies(rows):
    _, y = rows
    model = quick(kl_weight=1e-4)
    [(kind, message)] = fit_warnings(model, np.full((240, 2), 7.0), y)
    assert kind is ArgumentWarning and "`X`" in message
    np.testing.assert_allclose(model.predict_proba([[7.0, 7.0]])[0], np.bincount(y) / 240, atol=1e-3)


def test_features_whose_variance_rounds_to_zero_are_warned_of(rows):
    X, y = rows
    [(kind, message)] = fit_warnings(quick(), X * 1e-200, y)
    assert kind is ArgumentWarning and "`X`" in message


def test_an_empty_fold_of_the_user_is_left_out(rows):
    X, y = rows
    halves = (np.arange(0, 240, 2), np.arange(1, 240, 2))
    with_empty = BeliefClassifier((), cv=[halves, ([], [1])], random_state=0).fit(X, y)
    without = BeliefClassifier((), cv=[halves], random_state=0).fit(X, y)
    assert with_empty.cv_results_ == without.cv_results_


def test_labels_of_another_type_name_the_classes(rows):
    X, y = rows
    for labels in (y.astype(str), y + 7):
        with pytest.raises(ArgumentError, match=r"labels of 0, 1, 2, got '?\d") as caught:
            quick().partial_fit(X, labels, classes=[0, 1, 2])
        assert caught.value.argument == "y"


def test_one_feature_that_never_varies_changes_nothing(rows):
    X, y = rows
    model = quick()
    assert fit_warnings(model, np.c_[X, np.ones(240)], y) == []
    expected = quick().fit(X, y).predict_proba(X)
    np.testing.assert_allclose(model.predict_proba(np.c_[X, np.ones(240)]), expected, atol=1e-4)


@pytest.mark.parametrize(("value", "is_warned"), [(1e3, False), (1e12, True), (-1e120, True)])
def test_a_value_that_hides_all_others_is_warned_of(rows, value, is_warned):
    X, y = rows
    found = fit_warnings(quick(), np.c_[with_value(X[:, :1], value), X[:, 1:]], y)
    assert [kind for kind, _ in found] == [ArgumentWarning] * is_warned
    assert all("`X`" in message and "column 0" in message for _, message in found)


@pytest.mark.parametrize(
    "model",
    [
        BeliefClassifier((4,), kl_weight=0.01, weight_decay=0.01, max_iter=2, random_state=0),
        quick(kl_weight=1e30),
    ],
)
def test_a_fit_that_has_not_converged_is_warned_of(rows, model):
    [(kind, _)] = fit_warnings(model, *rows)
    assert kind is ConvergenceWarning


def test_a_fixed_number_of_epochs_is_no_failure_to_converge(rows):
    model = BeliefClassifier(
        (4,), kl_weight=0.01, weight_decay=0.01, max_iter=2, early_stopping=False, random_state=0
    )
    assert fit_warnings(model, *rows) == []


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("learning_rate", lambda X, y: BeliefClassifier((4,), learning_rate=1e30).fit(X, y)),
        (
            "learning_rate",
            lambda X, y: BeliefClassifier((4,), learning_rate=1e30, early_stopping=False).fit(X, y),
        ),
        (
            "learning_rate",
            lambda X, y: BeliefClassifier((4,), learning_rate=1e30).partial_fit(X, y, [0, 1, 2]),
        ),
        ("y", lambda X, y: quick().fit(X, 1e30 * np.eye(3)[y])),
        ("y", lambda X, y: quick().fit(X, 1e300 * np.eye(3)[y])),
        ("sample_weight", lambda X, y: quick().fit(X, y, np.full(len(y), 1e200))),
        ("X", lambda X, y: quick().fit(with_value(X, 1e300), y)),
    ],
)
def test_numbers_that_overflow_name_their_argument(rows, argument, call):
    with pytest.raises(ArgumentError) as caught:
        call(*rows)
    assert (caught.value.function, caught.value.argument) == ("BeliefClassifier", argument)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("call", ["fit", "partial_fit", "predict_proba", "belief", "abstain"])
def test_features_that_are_not_finite_are_refused_by_every_method(rows, value, call):
    X, y = rows
    model = quick().fit(X, y)
    more = {"fit": (y,), "partial_fit": (y,)}.get(call, ())
    with pytest.raises(ValueError, match="Input X contains"):
        getattr(model, call)(with_value(X, value), *more)
