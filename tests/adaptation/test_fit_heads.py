"""Heads trained together are those trained alone, and reach the solutions of theory."""

import numpy as np
import pytest
import torch

from beliefmatch.adaptation import lbfgs
from beliefmatch.adaptation.batched import fit_heads, heads_together, paper_rate
from beliefmatch.adaptation.candidates import Candidate, candidates, default_kl_weights
from beliefmatch.adaptation.head_init import initial_weights
from beliefmatch.adaptation.scoring import score
from beliefmatch.adaptation.types import Features
from beliefmatch.loss import belief_matching_loss
from beliefmatch.metrics import error, expected_calibration_error, nll
from head_features import CLASSES, WIDTH, assert_same, features, trained_alone, votes

FAST = {"learning_rate": 0.01, "batch_size": 16}
UNEVEN = Candidate("uneven", "belief_matching", {"kl_weight": 0.02, "prior": [0.5, 1.0, 2.0, 1.5]})
SMOOTH = Candidate("smooth", "label_smoothing", {"smoothing": 0.2})
ALL = [*candidates(CLASSES, priors=[1.0, 0.3], seeds=[0, 1]), UNEVEN, SMOOTH]


@pytest.mark.parametrize(
    ("data", "weight_decay"),
    [(features(), 0.0), (features(), 0.1), (votes(), 0.0)],
    ids=["ids", "decay", "votes"],
)
def test_heads_trained_together_are_those_trained_alone_by_autograd(data, weight_decay):
    some = ALL if data.targets.dim() == 1 else [one for one in ALL if one.kind != "evidential"]
    options = {"classes": CLASSES, "epochs": 3, "batch_size": 16, "weight_decay": weight_decay}
    fitted = fit_heads(data, some, learning_rate=0.01, **options)
    assert [head.candidate for head in fitted] == some
    for head in fitted:
        alone = trained_alone(data, head.candidate, **options)
        torch.testing.assert_close(head.weight, alone.weight.detach(), rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(head.bias, alone.bias.detach(), rtol=1e-4, atol=2e-6)
        assert head.epoch == 3 and head.validation is None


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_a_constant_feature_gives_the_posterior_of_the_class_frequencies(optimizer):
    ids = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    data = Features(np.ones((10, 1), np.float32), ids, "")
    prior, weight = (0.5, 1.0, 2.0), 0.05
    one = Candidate("one", "belief_matching", {"kl_weight": weight, "prior": prior})
    options = {"epochs": 400, "batch_size": 10, "learning_rate": 0.05, "optimizer": optimizer}
    (head,) = fit_heads(data, [one], classes=3, **options)
    alpha = (head.weight[:, 0] + head.bias).exp()
    expected = torch.tensor(prior) + torch.tensor([0.5, 0.3, 0.2]) / weight
    torch.testing.assert_close(alpha, expected, rtol=2e-3, atol=0)
    assert bool(head.notes) == (optimizer == "lbfgs") and all(note == lbfgs.NOT_CONVEX for note in head.notes)


def test_lbfgs_finds_what_scikit_learn_finds():
    linear_model = pytest.importorskip("sklearn.linear_model")
    data, decay = features(200), 0.01
    options = {"classes": CLASSES, "epochs": 200, "weight_decay": decay, "optimizer": "lbfgs"}
    (head,) = fit_heads(data, [Candidate("softmax", "softmax")], **options)
    theirs = linear_model.LogisticRegression(C=1 / (200 * decay), tol=1e-10, max_iter=2000)
    theirs.fit(data.rows.astype(np.float64), data.targets.numpy())
    np.testing.assert_allclose(head.weight.numpy(), theirs.coef_, atol=2e-3)
    np.testing.assert_allclose(head.bias - head.bias.mean(), theirs.intercept_, atol=2e-3)


@pytest.mark.parametrize("monitor", ["nll", "error"])
def test_each_head_keeps_its_best_epoch_and_leaves_on_its_own(monitor):
    data, held_out = features(24), features(60, 5)
    options = {"classes": CLASSES, "validation": held_out, "patience": 3, "monitor": monitor}
    options |= {"epochs": 25, "learning_rate": 0.05, "batch_size": 8}
    some = ALL[::4]
    together = fit_heads(data, some, **options)
    ends = {len(head.curve) for head in together}
    assert len(ends) > 1 and min(ends) < 25
    for head in together:
        values = [getattr(point, monitor) for point in head.curve]
        assert head.epoch == 1 + values.index(min(values))
        assert len(values) == min(25, head.epoch + 3)
        assert getattr(head, monitor) == pytest.approx(min(values), rel=1e-6)
        (alone,) = fit_heads(data, [head.candidate], **options)
        assert_same(head, alone)


def test_validation_scores_are_those_of_the_metrics():
    held_out = features(50, 5)
    fitted = fit_heads(features(), ALL, classes=CLASSES, validation=held_out, epochs=2, **FAST)
    for head in fitted:
        probs = head.predict(torch.from_numpy(held_out.rows)).probs
        assert head.nll == pytest.approx(nll(probs, held_out.targets), rel=1e-5)
        assert head.error == pytest.approx(error(probs, held_out.targets), abs=1e-12)
        assert head.ece == pytest.approx(expected_calibration_error(probs, held_out.targets), rel=1e-4)
        assert score(head, held_out) == head.validation


def test_scores_of_counts_are_shares_of_votes():
    held_out = votes(50, 5)
    (head,) = fit_heads(features(), ALL[:1], classes=CLASSES, validation=held_out, epochs=2, **FAST)
    some = held_out.targets.sum(1) > 0
    shares = (held_out.targets / held_out.targets.sum(1, keepdim=True))[some].double()
    probs = head.predict(torch.from_numpy(held_out.rows)[some]).probs
    assert head.validation is not None and head.validation.rows == int(some.sum())
    assert head.nll == pytest.approx(-(shares * probs.log()).sum(1).mean().item(), rel=1e-5)
    hits = shares.gather(1, probs.argmax(1, keepdim=True))
    assert head.error == pytest.approx(1 - hits.mean().item(), rel=1e-6)


def test_passes_within_memory_change_nothing():
    data = features()
    each = 4 * (5 * CLASSES * (WIDTH + 1) + 6 * CLASSES * 16)
    assert heads_together(CLASSES, WIDTH, 16, 3 * each) == 3 and heads_together(CLASSES, WIDTH, 16, 1) == 1
    news = []
    options = {"classes": CLASSES, "epochs": 2, **FAST}
    at_once = fit_heads(data, ALL, **options)
    in_passes = fit_heads(data, ALL, memory=3 * each, on_progress=lambda *one: news.append(one), **options)
    for one, other in zip(at_once, in_passes, strict=True):
        assert_same(one, other)
    fractions = [fraction for fraction, _ in news]
    assert fractions == sorted(fractions) and fractions[-1] == 1 and "pass 10 of 10" in news[-1][1]


def test_fits_repeat_by_seed_and_leave_chance_alone():
    data, options = features(), {"classes": CLASSES, "epochs": 2, **FAST}
    state = torch.get_rng_state()
    first, second = (fit_heads(data, ALL[:3], **options) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one.weight, other.weight) for one, other in zip(first, second, strict=True))
    assert not torch.equal(first[0].weight, first[1].weight)  # seeds 0 and 1
    other = fit_heads(data, ALL[:1], order_seed=1, **options)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_heads_start_from_the_existing_one():
    data = features()
    init = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(3)), torch.zeros(CLASSES)
    heads = candidates(CLASSES)
    for head in fit_heads(data, heads, init=init, epochs=1, batch_size=90, learning_rate=1e-5):
        if head.candidate.kind == "belief_matching":  # scaled, by a number of its own
            scale = head.weight.norm() / init[0].norm()
            torch.testing.assert_close(head.weight, scale * init[0], rtol=0, atol=5e-5)
        else:
            torch.testing.assert_close(head.weight, init[0], rtol=0, atol=2e-5)
    with pytest.raises(ValueError, match="seeds"):
        fit_heads(data, candidates(CLASSES, seeds=[0, 1]), init=init)


def test_belief_starts_from_the_scale_and_shift_of_the_lowest_loss():
    data, (one,) = features(), candidates(CLASSES, kl_weights=[0.01], controls=[])
    options = {"classes": CLASSES, "epochs": 20, "optimizer": "lbfgs"}
    (head,) = fit_heads(data, [Candidate("softmax", "softmax")], **options)
    init = 8 * head.weight, 8 * head.bias  # of far too much confidence
    weight, bias = initial_weights([one], init, CLASSES, WIDTH, data)
    rows = torch.from_numpy(data.rows).double()
    logits = rows @ weight[0].double().t() + bias[0]

    def loss(scale, shift):
        return belief_matching_loss(scale * logits + shift, data.targets, kl_weight=0.01).item()

    best = loss(1, 0)
    assert best < min(loss(1.02, 0), loss(0.98, 0), loss(1, 0.05), loss(1, -0.05))
    assert torch.equal(logits.argmax(1), (rows @ init[0].double().t() + init[1]).argmax(1))


def test_the_rate_is_the_papers_at_its_batch_size():
    data, options = features(), {"classes": CLASSES, "epochs": 1}
    assert paper_rate(64) == 3e-4
    usual = fit_heads(data, ALL[:1], batch_size=16, **options)[0]
    assert_same(usual, fit_heads(data, ALL[:1], batch_size=16, learning_rate=7.5e-5, **options)[0])


def test_a_head_that_diverges_is_left_out_and_the_others_go_on(monkeypatch):
    data, heads = features(), ALL[:4]
    options = {"classes": CLASSES, "epochs": 3, "validation": features(30, 3), **FAST}
    whole = fit_heads(data, heads, **options)
    from beliefmatch.adaptation.objectives import Objectives

    real, calls = Objectives.grads, []

    def broken(self, logits, targets, out, progress=1.0):
        losses = real(self, logits, targets, out, progress)
        calls.append(len(logits))
        if len(calls) == 8:  # in the second epoch
            losses[1], out[1] = float("nan"), float("nan")
        return losses

    monkeypatch.setattr(Objectives, "grads", broken)
    fitted = fit_heads(data, heads, **options)
    (lost,) = [head for head in fitted if head.diverged]
    assert lost.epoch == 1 and "epoch 2" in lost.notes[0] and bool(lost.weight.isfinite().all())
    assert calls[8] == 3
    for one, other in zip(fitted, whole, strict=True):
        if one is not lost:
            assert_same(one, other)
            assert one.curve[-1].loss == pytest.approx(other.curve[-1].loss, rel=1e-5)


def test_all_heads_may_diverge():
    data = Features(np.full((20, 2), 3e38, np.float32), torch.arange(20) % 2, "")
    fitted = fit_heads(data, candidates(2, controls=[]), classes=2, epochs=2, batch_size=8)
    assert all(head.diverged and head.epoch == 0 and head.curve == () for head in fitted)


def test_many_classes():
    data = features(64, classes=1500, width=5)
    heads = candidates(1500, kl_weights=[1e-4], controls=["softmax"])
    fitted = fit_heads(data, heads, classes=1500, validation=data, epochs=3, **FAST)
    for head in fitted:
        assert head.weight.shape == (1500, 5)
        assert head.curve[-1].loss < head.curve[0].loss


def test_the_grid_follows_the_number_of_classes():
    assert default_kl_weights(2) == [0.01, 0.003, 0.001]
    for classes in (3, 10, 196, 1000, 20000):
        grid = default_kl_weights(classes)
        assert grid == sorted(grid, reverse=True) and len(grid) >= 3
        assert max(grid) * classes <= 1.0 + 1e-9 and min(grid) * classes <= 0.003 + 1e-9
    names = [one.name for one in candidates(10, priors=[1.0, 2.0], seeds=[0, 1])]
    assert len(set(names)) == len(names) == 2 * (5 * 2 + 1 + 5 + 1)


def unlabelled(values):
    return Features(np.full((9, WIDTH), values, np.float32), torch.full((9,), -1), "")


@pytest.mark.parametrize(
    ("argument", "changed"),
    [
        ("classes", {"classes": None}),
        ("features", {"classes": 3}),
        ("features", {"features": unlabelled(0)}),
        (
            "features",
            {"features": Features(np.full((9, WIDTH), np.nan, np.float32), torch.arange(9) % 2, "")},
        ),
        ("epochs", {"epochs": 0}),
        ("patience", {"patience": 0}),
        ("learning_rate", {"learning_rate": 0.0}),
        ("weight_decay", {"weight_decay": -1.0}),
        ("optimizer", {"optimizer": "sgd"}),
        ("monitor", {"monitor": "ece"}),
        ("candidates", {"candidates": []}),
        ("candidates", {"candidates": ALL[:1] * 2}),
        ("candidates", {"features": votes(), "candidates": [Candidate("e", "evidential")]}),
        ("kind", {"candidates": [Candidate("u", "untouched")]}),
        ("prior", {"candidates": [Candidate("p", "belief_matching", {"prior": [1, 1]})]}),
        ("init", {"init": (torch.zeros(3, WIDTH), torch.zeros(3))}),
        ("features", {"init": (torch.zeros(4, 2), torch.zeros(4))}),
        ("validation", {"validation": features(10, width=3)}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(argument, changed):
    given = {"features": features(), "candidates": ALL[:1], "classes": CLASSES, "epochs": 1, **changed}
    with pytest.raises(ValueError, match=f"{argument}`"):
        fit_heads(given.pop("features"), given.pop("candidates"), **given)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Candidate("x", "dropout"), "kind"),  # pyright: ignore
        (lambda: Candidate("x", "belief_matching", {"kl_wieght": 1}), "kl_weight"),
        (lambda: Candidate("x", "belief_matching", {"prior": -1.0}), "prior"),
        (lambda: Candidate("x", "belief_matching", {"prior": torch.ones(2)}), "prior"),
        (lambda: Candidate("x", "label_smoothing", {"smoothing": 2}), "smoothing"),
        (lambda: candidates(1), "classes"),
        (lambda: candidates(3, controls=["dropout"]), "controls"),
    ],
)
def test_candidates_that_cannot_be_fitted_are_refused(make, argument):
    with pytest.raises((ValueError, TypeError), match=argument):
        make()
