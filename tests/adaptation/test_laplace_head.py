"""Last-layer Laplace is laplace-torch's, computed without Jacobians, and fitted on the same features."""

import sys
import warnings

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from beliefmatch.adaptation import laplace_head as module
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.adaptation.laplace_head import LaplaceHead, WeightPosterior, laplace_head, why_no_laplace
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.scoring import score
from beliefmatch.adaptation.search import HeadSearch
from beliefmatch.metrics import error, expected_calibration_error, nll
from head_features import CLASSES, WIDTH, features, quiet, votes

SETS = FeatureSets(features(150), features(120, 5))
FEW = AdaptConfig(kl_weights=(0.03,), weight_decays=(0.01,), laplace=True, risks=(0.4,))


def softmax_head():
    return HeadSearch(SETS.train, SETS.validation, CLASSES, config=FEW).softmax()


@pytest.fixture
def laplace():
    """That library, if it is there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("laplace")


def spread_by_hand(head, rows, precision):
    """Kronecker factors of a softmax layer: the mean of φφᵀ, and the sum of diag(p) − ppᵀ."""
    rows = rows.double()
    probs = (rows @ head.weight.double().t() + head.bias).softmax(1)
    of_classes = torch.diag(probs.sum(0)) - probs.t() @ probs
    of_features = rows.t() @ rows / len(rows)
    weight = torch.kron(of_classes, of_features) + precision * torch.eye(CLASSES * WIDTH, dtype=torch.float64)
    bias = of_classes + precision * torch.eye(CLASSES, dtype=torch.float64)
    return torch.linalg.inv(weight), torch.linalg.inv(bias)


def test_the_variance_is_that_of_the_whole_matrix():
    head, precision = softmax_head(), 0.7
    rows = torch.from_numpy(SETS.train.rows)
    probs = (rows.double() @ head.weight.double().t() + head.bias).softmax(1)
    of_classes = torch.linalg.eigh(torch.diag(probs.sum(0)) - probs.t() @ probs)
    of_features = torch.linalg.eigh(rows.double().t() @ rows.double() / len(rows))
    posterior = WeightPosterior(
        of_features.eigenvectors,
        of_classes.eigenvectors,
        1 / (of_features.eigenvalues[:, None] * of_classes.eigenvalues + precision),
        1 / (of_classes.eigenvalues + precision),
    )
    weight, bias = spread_by_hand(head, rows, precision)
    new = torch.from_numpy(SETS.validation.rows).double()
    jacobian = torch.stack([torch.kron(torch.eye(CLASSES), row[None]) for row in new])
    full = torch.einsum("nkp,pq,nkq->nk", jacobian, weight, jacobian) + bias.diagonal()
    torch.testing.assert_close(posterior.variance(new), full, rtol=1e-9, atol=1e-12)


def test_it_is_what_laplace_torch_predicts(laplace):
    from laplace.baselaplace import KronLaplace
    from laplace.curvature.curvlinops import CurvlinopsGGN

    head = softmax_head()
    ours = laplace_head(head, SETS.train, SETS.validation)
    layer = nn.Linear(WIDTH, CLASSES)
    layer.load_state_dict({"weight": head.weight, "bias": head.bias})
    theirs = KronLaplace(layer, "classification", backend=CurvlinopsGGN)
    pairs = TensorDataset(torch.from_numpy(SETS.train.rows), SETS.train.targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(DataLoader(pairs, 150))
        theirs.optimize_prior_precision(method="marglik")
    rows = torch.from_numpy(SETS.validation.rows)
    expected = torch.cat([theirs(row[None], link_approx="probit").reshape(1, -1) for row in rows[:20]])
    torch.testing.assert_close(ours.predict(rows[:20]).probs.float(), expected, rtol=1e-4, atol=1e-5)
    assert ours.candidate.options["prior_precision"] == pytest.approx(float(theirs.prior_precision), rel=1e-3)


def test_scores_are_those_of_its_own_predictions(laplace):
    ours = laplace_head(softmax_head(), SETS.train, SETS.validation)
    rows, targets = torch.from_numpy(SETS.validation.rows), SETS.validation.targets
    probs = ours.predict(rows).probs
    assert ours.nll == pytest.approx(nll(probs, targets))
    assert ours.error == pytest.approx(error(probs, targets))
    assert ours.ece == pytest.approx(expected_calibration_error(probs, targets))
    assert probs.sum(1).tolist() == pytest.approx([1.0] * len(rows))
    assert score(ours, SETS.validation) == ours.validation
    plain = softmax_head().predict(rows).probs
    assert probs.max(1).values.mean() < plain.max(1).values.mean()  # it doubts more


def test_it_doubts_more_with_fewer_rows(laplace):
    few = Features(SETS.train.rows[:30], SETS.train.targets[:30], "")
    head, rows = softmax_head(), torch.from_numpy(SETS.validation.rows)
    variances = [laplace_head(head, one).posterior.variance(rows).mean() for one in (few, SETS.train)]
    assert variances[0] > variances[1]


def test_it_leaves_chance_alone_and_repeats(laplace):
    state = torch.get_rng_state()
    one, two = (laplace_head(softmax_head(), SETS.train) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    rows = torch.from_numpy(SETS.validation.rows)
    assert torch.equal(one.predict(rows).probs, two.predict(rows).probs)


def test_rows_of_no_class_and_small_batches_change_nothing(laplace, monkeypatch):
    head, data = softmax_head(), SETS.train
    whole = laplace_head(head, data)
    more = np.concatenate([data.rows, np.full((9, WIDTH), 7, np.float32)])
    padded = Features(more, torch.cat([data.targets, torch.full((9,), -1)]), "")
    monkeypatch.setattr(module, "_BATCH_ROWS", 32)
    again, rows = laplace_head(head, padded), torch.from_numpy(SETS.validation.rows)
    torch.testing.assert_close(again.predict(rows).probs, whole.predict(rows).probs, rtol=2e-3, atol=1e-4)


def test_a_refit_has_one_for_every_softmax_head(laplace):
    config = AdaptConfig(
        protocol="paper", kl_weights=(0.03,), epochs=4, seeds=(0, 1), controls=(), laplace=True, risks=()
    )
    with pytest.warns(UserWarning, match="not converged"):
        rows = refit(SETS, adapt_config=config).table
    assert list(rows) == ["softmax", "laplace", "belief matching"]
    for head, around in zip(rows["laplace"], rows["softmax"], strict=True):
        assert isinstance(head, LaplaceHead) and torch.equal(head.weight, around.weight)
        assert head.candidate.seed == around.candidate.seed


def test_a_repair_has_one_around_the_untouched_head(laplace):
    old = softmax_head()
    init = old.weight, old.bias
    rows = quiet(SETS, init=init, adapt_config=structs.replace(FEW, labels="same")).table
    (head,) = rows["laplace"]
    assert torch.equal(head.weight, rows["untouched"][0].weight)
    assert head.notes == ("around the weights of untouched",)


@pytest.mark.filterwarnings("ignore:.* belong to no class")
def test_votes_have_no_laplace_head(laplace):
    sets = FeatureSets(votes(150), votes(100, 5))
    with pytest.warns(UserWarning, match="Laplace"):
        made = refit(sets, adapt_config=FEW)
    assert len(made.notes) == 1 and "Laplace" in made.notes[0] and "laplace" not in made.table


@pytest.mark.parametrize(
    ("rows", "width", "classes", "named"),
    [(3, 7, 20_000, "20000 classes"), (3, 9000, 4, "9000 features"), (60_000, 1, 2000, "60000 rows")],
)
def test_it_has_bounds(rows, width, classes, named):
    data = Features(np.zeros((rows, width), np.float32), torch.zeros(rows, dtype=torch.int64), "")
    assert named in why_no_laplace(data, classes)
    assert why_no_laplace(SETS.train, CLASSES) is None


def test_its_name_has_its_options():
    """Of numbers and of text; the record lists it by this name."""
    head = Candidate("laplace", {"prior_precision": 0.25, "structure": "kron"})
    assert head.name == "laplace prior_precision=0.25 structure=kron"


def test_a_missing_package_is_named_before_anything_is_fitted(monkeypatch):
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(ModuleNotFoundError, match=r"beliefmatch\[laplace\]"):
        refit(SETS, adapt_config=FEW)
