"""Differences of two models on the same draws: against numpy by hand, in theory, and at their limits."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from beliefmatch.metrics import bootstrap_differences, bootstrap_outcomes, outcomes
from beliefmatch.metrics.bootstrap import resample_outcomes
from beliefmatch.resampling import bias_corrected, fewest_to_tell, paired_difference
from forecasts import forecast

N, GROUPS, DRAWS = 300, 15, 60


def of_rows(probs: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """The main metrics of some rows, by numpy alone."""
    p, y = probs[rows], targets[rows]
    own, confidence, right = p[np.arange(len(y)), y], p.max(1), p.argmax(1) == y
    group = np.ceil(confidence * GROUPS).astype(int) - 1
    gaps = [abs(confidence[group == g].sum() - right[group == g].sum()) for g in range(GROUPS)]
    return {
        "error": 1 - right.mean(),
        "nll": -np.log(own).mean(),
        "brier": ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean(),
        "ece": sum(gaps) / len(y),
    }


def two_models(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of a model and of one that differs from it a little, and what came true."""
    logits, probs, targets = forecast(N, 5, seed)
    noise = 0.4 * torch.randn(N, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return probs.numpy(), (logits + noise).softmax(1).numpy(), targets.numpy()


def seen_of(probs: np.ndarray, targets: np.ndarray):
    return outcomes(torch.from_numpy(targets), probs=torch.from_numpy(probs))


def drawn_rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, N, (DRAWS, N), dtype=np.int32)


def test_every_draw_is_of_the_rows_that_numpy_draws():
    first, _, targets = two_models()
    found = resample_outcomes(seen_of(first, targets), n_bins=GROUPS, resamples=DRAWS, seed=3)
    expected = [of_rows(first, targets, rows) for rows in drawn_rows(3)]
    for key in expected[0]:
        assert found.draws[key].tolist() == pytest.approx([draw[key] for draw in expected], rel=1e-9)


def test_differences_equal_a_paired_bootstrap_by_hand():
    first, second, targets = two_models()
    found = bootstrap_differences(
        seen_of(first, targets), seen_of(second, targets), resamples=DRAWS, seed=3, level=0.8
    )
    rows = [np.arange(N), *drawn_rows(3)]
    pairs = [(of_rows(first, targets, each), of_rows(second, targets, each)) for each in rows]
    for key in ("error", "nll", "brier", "ece"):
        value, *draws = (one[key] - two[key] for one, two in pairs)
        below = (np.array(draws) < value - 1e-12).mean() + (
            np.abs(np.array(draws) - value) <= 1e-12
        ).mean() / 2
        bias, reach = stats.norm.ppf(below), stats.norm.ppf(0.9)
        ends = np.sort(draws)[np.rint(stats.norm.cdf([2 * bias - reach, 2 * bias + reach]) * 59).astype(int)]
        assert found[key] == pytest.approx((value, *ends), abs=1e-11), key


def test_which_rows_are_drawn_depends_on_nothing_but_their_number_and_the_seed():
    """Models of other classes, other precision, ties, and logits in place of probabilities."""
    targets = torch.arange(N) % 2
    models = [
        outcomes(targets, probs=forecast(N, 7, seed=1)[1]),
        outcomes(targets, logits=forecast(N, 2, seed=2)[0].float()),
        outcomes(targets, probs=torch.full((N, 4), 0.25)),
    ]
    digests = [resample_outcomes(seen, resamples=DRAWS, seed=5).rows_sha256 for seen in models]
    assert len(set(digests)) == 1
    others = [
        resample_outcomes(models[0], resamples=DRAWS, seed=6).rows_sha256,
        resample_outcomes(models[0], resamples=DRAWS + 1, seed=5).rows_sha256,
        resample_outcomes(outcomes(targets[1:], probs=torch.full((N - 1, 4), 0.25)), resamples=DRAWS, seed=5)[
            2
        ],
    ]
    assert len({digests[0], *others}) == 4


def test_a_paired_interval_is_as_wide_as_theory_says_and_narrower_than_an_unpaired_one():
    first, second, targets = two_models()
    one, two = seen_of(first, targets), seen_of(second, targets)
    found = bootstrap_differences(one, two, resamples=2000)["nll"]
    apart = (one.nll - two.nll).std().item() / math.sqrt(N)
    assert found.high - found.low == pytest.approx(2 * 1.96 * apart, rel=0.1)
    alone = [bootstrap_outcomes(seen, resamples=500)["nll"] for seen in (one, two)]
    unpaired = math.hypot(*(interval.high - interval.low for interval in alone))
    assert found.high - found.low < 0.6 * unpaired


def test_a_model_does_not_differ_from_itself():
    first, _, targets = two_models()
    found = bootstrap_differences(seen_of(first, targets), seen_of(first, targets), resamples=20)
    assert set(found.values()) == {(0.0, 0.0, 0.0)}


def test_intervals_of_equally_good_models_hold_zero_about_as_often_as_they_say():
    held = 0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (200,), generator=generator)
        seen = [
            outcomes(
                targets, logits=torch.randn(200, 3, generator=generator).double() + torch.eye(3)[targets]
            )
            for _ in range(2)
        ]
        found = bootstrap_differences(*seen, resamples=300, level=0.9)["nll"]
        held += found.low <= 0 <= found.high
    assert 83 <= held <= 97


@pytest.mark.parametrize(("better", "told"), [(5, False), (6, True)])
def test_five_examples_never_tell_two_error_rates_apart(better, told):
    """As in an exact sign test: five heads in a row have a probability of 6.25 %, counting both sides."""
    draws = [better / N] * 50
    value, low, high = paired_difference((better / N, 0.0), (draws, [0.0] * 50), level=0.95, trials=N)
    assert value == pytest.approx(better / N) and high == value
    assert (low > 0) == told == (stats.binomtest(better, better).pvalue <= 0.05)
    assert paired_difference((better / N, 0.0), (draws, [0.0] * 50), level=0.95)[1] > 0


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_the_fewest_to_tell_are_those_of_the_sign_test(level):
    enough = fewest_to_tell(level)
    assert stats.binomtest(enough, enough).pvalue <= 1 - level + 1e-12
    assert enough == 1 or stats.binomtest(enough - 1, enough - 1).pvalue > 1 - level


def test_differences_of_shares_that_are_equal_tie_in_spite_of_rounding():
    value, low, high = paired_difference((0.3, 0.2), ([0.3, 0.4, 0.7], [0.2, 0.3, 0.6]), level=0.95)
    assert (value, low, high) == (0.1, 0.1, 0.1)
    assert bias_corrected(2.0, [1.0, 2.0, 3.0], 0.95) == (1.0, 3.0)


def test_an_infinite_metric_has_no_difference():
    targets = torch.tensor([0, 1, 1])
    impossible = outcomes(targets, probs=torch.tensor([[1.0, 0.0]] * 3).double())
    other = outcomes(targets, probs=torch.full((3, 2), 0.5).double())
    found = bootstrap_differences(impossible, other, resamples=10)
    assert "nll" not in found and found["brier"].value == pytest.approx(4 / 3 - 0.5)


def test_models_of_other_targets_are_refused():
    first, second, targets = two_models()
    with pytest.raises(ValueError, match="`second`"):
        bootstrap_differences(seen_of(first, targets), seen_of(second, (targets + 1) % 5))
