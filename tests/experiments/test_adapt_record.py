"""The record of an adaptation: its numbers against the metrics themselves, and back from JSON."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import rel_entr
from sklearn.metrics import log_loss, roc_auc_score

from adaptations import CLASSES, NAMES, adaptation, evaluations, record, rows
from beliefmatch._config import plain, schema_of
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.result import BatchNormResult, RiskThreshold
from beliefmatch.adaptation.scoring import scorable
from beliefmatch.experiments import adapted_evaluation, feature_detection
from beliefmatch.experiments.adapt_job import AdaptResult
from beliefmatch.experiments.adapt_record import ADAPT_SCHEMA, AdaptRecord, adapt_evaluation_paths
from beliefmatch.experiments.adapted_directory import directory_files, head_file
from beliefmatch.experiments.adapted_evaluation import WITHOUT_EXAMPLES, score_adaptation
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.methods.base import Prediction
from beliefmatch.metrics import (
    auroc_interval,
    expected_calibration_error,
    knn_distance,
    mahalanobis_distance,
)

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "adapt"
KINDS = ("repair", "new", "votes")
LINES = ["untouched", "softmax", "label smoothing", "evidential", "belief matching"]


def probs(head, features):
    """By numpy, from the weights."""
    said = head.predict(torch.from_numpy(features.rows))
    return said.probs.double().numpy()


def scored(made, **options):
    return score_adaptation(made, model_name="x", settings=WITHOUT_EXAMPLES, **options)


def heads(kind):
    return [(label, head) for label, some in adaptation(kind).table.items() for head in some]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_comes_back_from_json_unchanged(kind):
    made = record(kind)
    assert AdaptRecord.from_json(made.to_json()) == made


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_is_there_with_its_validation_scores(kind):
    found = {one.name: one for one in record(kind).tried}
    assert len(found) == len(record(kind).tried) == len(adaptation(kind).fitted)
    for head in adaptation(kind).fitted:
        one = found[head.candidate.name]
        assert (one.nll, one.error, one.ece) == (head.nll, head.error, head.ece)
        assert (one.converged, one.iterations, one.gap) == (head.converged, head.iterations, head.gap)
        assert (one.weight_decay, one.calibration) == (
            head.candidate.weight_decay,
            head.candidate.calibration,
        )
        assert one.curve.epoch == [point.epoch for point in head.curve]
    assert record(kind).chosen == adaptation(kind).chosen.candidate.name
    assert record(kind).label == adaptation(kind).label
    assert record(kind).best.label == adaptation(kind).best.label


def test_lines_stand_in_the_order_of_the_comparison_table():
    found = record("repair").row_labels
    assert [label for label in found if "+" not in label] == LINES
    assert {"untouched + temperature", "softmax + temperature"} <= {*found}
    assert found == sorted(found, key=lambda label: LINES.index(label.partition(" +")[0]))
    assert record("new").row_labels == LINES[1:]
    assert [one.seed for one in record("new").scored if one.label == "softmax"] == [3, 8]


@pytest.mark.parametrize(("kind", "part"), [("repair", "test"), ("new", "validation")])
def test_scores_of_labels_are_those_of_other_libraries(kind, part):
    features = getattr(adaptation(kind).sets, part)
    made = record(kind)
    assert (made.scored_on, made.targets) == (part, "labels")
    for one, (label, head) in zip(made.scored, heads(kind), strict=True):
        p, y = probs(head, features), features.targets.numpy()
        assert one.label == label and one.kl is None and one.scores.examples == len(y)
        assert one.scores.nll == pytest.approx(log_loss(y, p, labels=range(CLASSES)), rel=1e-9)
        assert one.scores.error == pytest.approx((p.argmax(1) != y).mean())
        assert one.scores.brier == pytest.approx(((p - np.eye(CLASSES)[y]) ** 2).sum(1).mean())
        ece = expected_calibration_error(torch.from_numpy(p), features.targets)
        assert one.scores.ece == pytest.approx(ece)
        assert one.scores.mean_confidence == pytest.approx(p.max(1).mean())


def test_votes_count_by_their_shares():
    features, made = adaptation("votes").sets.test, record("votes")
    counts = features.targets.double().numpy()
    kept = counts.sum(1) > 0
    assert made.targets == "votes" and 0 < kept.sum() < len(counts) + 1
    shares = counts[kept] / counts[kept].sum(1, keepdims=True)
    for one, (_, head) in zip(made.scored, heads("votes"), strict=True):
        p = probs(head, features)[kept]
        one_hot = np.eye(CLASSES)[None]
        brier = (shares * ((p[:, None] - one_hot) ** 2).sum(2)).sum(1).mean()
        taken = np.take_along_axis(shares, p.argmax(1)[:, None], 1)
        assert one.scores.examples == kept.sum()
        assert one.scores.nll == pytest.approx(-(shares * np.log(p)).sum(1).mean())
        assert one.kl == pytest.approx(rel_entr(shares, p).sum(1).mean())
        assert one.scores.error == pytest.approx(1 - taken.mean())
        assert one.scores.brier == pytest.approx(brier)


def test_ood_sets_are_told_apart_as_scikit_learn_says():
    given = adaptation("repair").sets
    for one, (_, head) in zip(record("repair").scored, heads("repair"), strict=True):
        home, ood = probs(head, given.test), probs(head, given.ood["noise"])
        (found,) = (each for each in one.ood if each.name == "noise")
        for score, of in (("confidence", lambda p: 1 - p.max(1)), ("entropy", entropy)):
            values = np.concatenate([of(home), of(ood)])
            wanted = roc_auc_score(np.repeat([0, 1], [len(home), len(ood)]), values)
            assert found.auroc[score] == pytest.approx(wanted, abs=1e-3)
        assert found.examples == 60
        assert found.mean_confidence == pytest.approx(ood.max(1).mean())
        assert (
            ("mutual_information" in found.auroc)
            == one.has_belief
            == one.label.startswith(("evidential", "belief matching"))
        )


def entropy(p):
    return -(p * np.log(np.clip(p, 1e-300, 1))).sum(1)


def test_what_an_evaluation_says_is_what_the_record_says():
    for made, one in zip(evaluations("repair"), record("repair").scored, strict=True):
        assert made.name == one.label and made.class_names == NAMES
        for key in ("error", "nll", "brier", "ece"):
            assert made.scores[key].value == pytest.approx(getattr(one.scores, key), rel=1e-4, abs=1e-6)
        assert [each.name for each in made.ood] == ["noise", "|pipes| & more"]


def test_evaluations_are_of_the_chosen_seed():
    seed = adaptation("new").chosen.candidate.seed
    for made in evaluations("new"):
        one = record("new").delivered(made.name)
        assert one.seed == seed
        assert made.scores["nll"].value == pytest.approx(one.scores.nll, rel=1e-4)


def test_of_votes_the_majority_is_evaluated_and_that_is_told():
    features = adaptation("votes").sets.test
    kept = features.targets.sum(1) > 0
    for made, (_, head) in zip(evaluations("votes"), heads("votes"), strict=True):
        wrong = probs(head, features)[kept].argmax(1) != features.targets[kept].argmax(1).numpy()
        assert made.scores["error"].value == pytest.approx(wrong.mean())
        assert made.settings["fields"] == {"targets": "the class of the most votes"}


def test_too_many_numbers_are_evaluated_on_evenly_spaced_rows(monkeypatch):
    monkeypatch.setattr(adapted_evaluation, "MAX_NUMBERS", 140)
    whole = adaptation("repair")
    made = scored(replace(whole, table={whole.label: [whole.chosen]}))
    assert [one.examples for one in made.evaluations] == [47]
    assert made.record.scored[0].scores.examples == 47
    assert "one row in 3 of" in made.evaluations[0].source


@pytest.mark.parametrize("kind", ["repair", "votes"])
def test_risk_thresholds_are_checked_on_the_test_rows(kind):
    """Of votes, by the class of the most, as the thresholds are computed."""
    test = adaptation(kind).sets.test
    some = scorable(test)
    right = test.targets[some].numpy()
    right = right if kind == "repair" else right.argmax(1)
    p = probs(adaptation(kind).chosen, test)[some]
    promised = (RiskThreshold(0.1, 0.05, 0.7, 0.5, 0.09), RiskThreshold(0.001, 0.05, None, 0.0, None))
    made = scored(replace(adaptation(kind), risk_thresholds=promised)).record
    kept, none = made.risk_thresholds
    sure = p.max(1) >= 0.7
    assert kept.test_coverage == pytest.approx(sure.mean())
    assert kept.test_risk == pytest.approx((p.argmax(1) != right)[sure].mean())
    assert none.test_coverage is none.test_risk is none.threshold is None


def test_heads_that_say_probabilities_alone_are_judged_too():
    """As a Laplace approximation does."""

    class Sure(FittedHead):
        def predict(self, rows):
            shares = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
            return Prediction(probs=shares.expand(len(rows), 3))

    chosen = adaptation("repair").chosen
    sure = Sure(chosen.candidate, chosen.weight, chosen.bias, chosen.validation)
    table = {adaptation("repair").label: [sure]}
    made = scored(replace(adaptation("repair"), chosen=sure, fitted=[sure], table=table)).record
    (one,) = made.scored
    shares = torch.bincount(adaptation("repair").sets.test.targets, minlength=3) / 140
    assert one.scores.nll == pytest.approx(-(shares @ torch.tensor([0.7, 0.2, 0.1]).log()).item(), rel=1e-6)
    assert set(one.ood[0].auroc) == {"entropy", "confidence"}


def test_trained_batchnorm_has_a_line_with_features_of_its_own():
    whole = adaptation("repair")
    head, new, scores = whole.chosen, rows(70, 21), whole.chosen.validation
    ood = {"noise": rows(30, 22, ood=True)}
    batchnorm = BatchNormResult(("bn",), scores, scores, 2, (), head, rows(50, 20), new, ood)
    promised = (RiskThreshold(0.1, 0.05, 0.7, 0.5, 0.09),)
    made = replace(whole, batchnorm=batchnorm, risk_thresholds=promised, notes=("No Laplace.",))
    one, evaluated = scored(made)
    line = one.scored[-1]
    assert (line.label, line.scores.examples) == ("belief matching and BatchNorm", 70)
    p, y = probs(head, new), new.targets.numpy()
    assert line.scores.nll == pytest.approx(log_loss(y, p, labels=range(CLASSES)))
    assert [(each.name, each.examples) for each in line.ood] == [("noise", 30)]
    assert one.batchnorm["taken"] and one.batchnorm["layers"] == 1 and one.notes == ["No Laplace."]
    assert one.risk_thresholds[0].test_coverage == pytest.approx((p.max(1) >= 0.7).mean())
    assert AdaptRecord.from_json(one.to_json()) == one
    assert evaluated[-1].examples == 70
    kept = replace(batchnorm, epoch=0)
    assert "BatchNorm" not in scored(replace(made, batchnorm=kept)).record.row_labels[-1]


def test_heads_that_have_not_converged_are_marked():
    whole = adaptation("repair")
    (head,) = whole.table["softmax"]
    unfinished = replace(head, converged=False, gap=math.nan)
    fitted = [unfinished if one is head else one for one in whole.fitted]
    table = {**whole.table, "softmax": [unfinished]}
    made = scored(replace(whole, fitted=fitted, table=table)).record
    assert [one.label for one in made.scored if not one.converged] == ["softmax"]
    assert [(one.name, one.gap) for one in made.tried if not one.converged] == [(head.candidate.name, None)]


def test_long_curves_are_thinned_with_both_ends():
    whole = adaptation("new")
    point = whole.fitted[-1].curve[0]
    curve = tuple(point._replace(epoch=epoch, nll=math.inf if epoch == 1 else 0.5) for epoch in range(1, 301))
    made = scored(replace(whole, fitted=[*whole.fitted[:-1], replace(whole.fitted[-1], curve=curve)])).record
    kept = made.tried[-1].curve
    assert (kept.epoch[0], kept.epoch[-1], len(kept.epoch)) == (1, 300, 50)
    assert kept.nll[0] is None and kept.nll[1] == 0.5


def test_what_json_cannot_hold_is_made_plain():
    found = record("repair").data
    assert found == {"train": "clouds", "mean": [0.5, None]}
    assert plain({1: torch.zeros(2, 3), "x": (0, 1)}, adapted_evaluation._described) == {
        "1": {"shape": [2, 3]},
        "x": [0, 1],
    }


def test_bad_input_is_told_in_one_line():
    with pytest.raises(ValueError, match=r"report: `class_names` must be 3, one a class, got 1\."):
        scored(adaptation("repair"), class_names=["a"])
    empty = replace(adaptation("repair").sets, test=rows(5, 9, ood=True))
    with pytest.raises(ValueError, match=r"`test` must have rows with a class or votes, got none"):
        scored(replace(adaptation("repair"), sets=empty))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "beliefmatch.adaptation/1"}, "`schema` must be 'beliefmatch.adaptation/3'"),
        ({"chosen": "nobody"}, "`chosen` must be one of the tried heads, got 'nobody'"),
        ({"scored": []}, "`scored` must have a line 'belief matching + temperature', got none"),
        ({"class_names": ["a"]}, "`class_names` must be 3, one a class, got 1"),
        ({"extra": 1}, "`extra`"),
    ],
)
def test_broken_json_is_refused(change, words):
    text = json.dumps({**json.loads(record("repair").to_json()), **change})
    with pytest.raises(ValueError, match="AdaptRecord") as error:
        AdaptRecord.from_json(text)
    assert words in str(error.value)


def test_published_records_can_be_read():
    texts = [path.read_text("utf-8") for path in PUBLISHED.glob("*.json")]
    found = [text for text in texts if schema_of(text).startswith("beliefmatch.adaptation")]
    assert found
    for text in found:
        older = {"schema": ADAPT_SCHEMA, "feature_detection": []}
        assert json.loads(AdaptRecord.from_json(text).to_json()) == {
            "vote_scale": None,
            **json.loads(text),
            **older,
        }


@pytest.mark.parametrize("kind", ["repair", "votes"])
def test_features_detect_ood_rows_as_the_metrics_do(kind):
    """By hand from the features; of votes the class of the most."""
    made, found = adaptation(kind), record(kind)
    sets = made.sets
    name, other = next(iter(sets.ood.items()))
    train, test, ood = (torch.from_numpy(one.rows).double() for one in (sets.train, sets.test, other))
    known = sets.train.targets >= 0 if sets.train.targets.dim() == 1 else sets.train.targets.sum(1) > 0
    targets = sets.train.targets[known]
    test = test[scorable(sets.test)]
    classes = targets if targets.dim() == 1 else targets.argmax(1)
    train = train[known]
    k = math.ceil(len(train) / 100)
    distances = {
        "mahalanobis_distance": lambda x: mahalanobis_distance(x, train, classes, shrinkage="ledoit_wolf"),
        "knn_distance": lambda x: knn_distance(x, train, k=k),
    }
    of_set = {one.score: one for one in found.feature_detection if one.ood == name}
    assert of_set.keys() == distances.keys()
    for score, of in distances.items():
        one = of_set[score]
        expected = auroc_interval(of(test), of(ood))
        assert (one.auroc.value, one.auroc.low, one.auroc.high) == pytest.approx(expected, abs=1e-6)
        assert (one.train_rows, one.examples, one.ood_examples) == (len(train), len(test), len(ood))
    assert of_set["knn_distance"].neighbour == k


def test_many_rows_are_taken_evenly(monkeypatch):
    monkeypatch.setattr(feature_detection, "_EXAMPLES", 20)
    monkeypatch.setattr(feature_detection, "_PRODUCTS", 1)
    sets = adaptation("repair").sets
    for one in feature_detection.feature_detections(sets, sets.test, EvaluateConfig(resamples=0)):
        assert one.examples <= 20 and one.ood_examples <= 20 and one.auroc.low is None
        assert one.neighbour in (None, 1)
        assert one.score == "mahalanobis_distance" or one.train_rows <= 100


def test_without_two_examples_of_a_class_there_is_no_mahalanobis_distance():
    sets = adaptation("repair").sets
    one_each = replace(sets.train, rows=sets.train.rows[:2], targets=torch.tensor([0, 1]))
    found = feature_detection.feature_detections(replace(sets, train=one_each), sets.test, EvaluateConfig())
    assert {one.score for one in found} == {"knn_distance"}


def test_evaluations_lie_beside_the_record():
    assert adapt_evaluation_paths(["untouched", "belief matching"]) == [
        "evaluations/untouched.json",
        "evaluations/belief_matching.json",
    ]


@pytest.mark.parametrize("kind", ["repair", "votes"])
def test_stored_predictions_have_the_rows_that_have_a_target(kind):
    made = adaptation(kind)
    test = made.sets.test
    targets = test.targets.clone()
    targets[::9] = -1 if kind == "repair" else 0
    sets = replace(made.sets, test=replace(test, targets=targets))
    outcome = AdaptResult(replace(made, sets=sets), record(kind), evaluations(kind), None)
    files = dict(directory_files(outcome, None))
    some = (targets if kind == "repair" else targets.sum(1) - 1) >= 0
    with np.load(io.BytesIO(files["predictions/test.npz"])) as found:
        ids = targets[some] if kind == "repair" else targets[some].argmax(1)
        assert found["targets"].tolist() == ids.tolist()
        expected = made.chosen.predict(torch.from_numpy(test.rows)[some]).probs
        torch.testing.assert_close(torch.from_numpy(found["logits"]).softmax(1), expected.float())
    (noise,) = (content for name, content in files.items() if "noise" in name)
    with np.load(io.BytesIO(noise)) as found:
        assert list(found) == ["logits"] and len(found["logits"]) == 60


def test_the_head_is_kept_without_pickle():
    load = pytest.importorskip("safetensors.torch").load
    found, chosen = load(head_file(adaptation("repair"))), adaptation("repair").chosen
    assert torch.equal(found["weight"], chosen.weight) and torch.equal(found["bias"], chosen.bias)
