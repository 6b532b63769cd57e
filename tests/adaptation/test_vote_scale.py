"""The precision of an adapted belief, fitted to held-out votes: it shifts the bias and nothing else."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch import Belief, adapt, fit_scale, votes_log_likelihood
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.experiments.adapted_directory import head_file
from beliefmatch.experiments.adapted_evaluation import WITHOUT_EXAMPLES, score_adaptation

CLASSES, WIDTH, PRECISION = 3, 5, 4.0
QUICK = {"labels": "new", "kl_weights": (0.01,), "weight_decays": (0.01,), "risks": ()}


def simulated(many: int, seed: int, panel: int = 5) -> Features:
    """Votes drawn from a Dirichlet of precision 4 around means that a linear head can express."""
    weight = np.random.default_rng(7).normal(size=(CLASSES, WIDTH))
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(many, WIDTH)).astype(np.float32)
    means = torch.from_numpy(rows @ weight.T).softmax(1).numpy()
    shares = np.stack([rng.dirichlet(PRECISION * one) for one in means])
    counts = np.stack([rng.multinomial(panel, one) for one in shares]).astype(np.float32)
    return Features(rows, torch.from_numpy(counts), f"{seed}-{panel}")


SETS = FeatureSets(simulated(600, 0), simulated(500, 1), simulated(400, 2))


def made(sets: FeatureSets = SETS, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return refit(sets, classes=CLASSES, adapt_config=AdaptConfig(**{**QUICK, **options}))


def log_alpha(head, features):
    return head.predict(torch.tensor(features.rows)).belief.log_alpha.double()


def test_the_scale_is_that_of_fit_scale_on_the_validation_votes():
    plain, scaled = made(vote_scale=False), made()
    expected = fit_scale(log_alpha(plain.chosen, SETS.validation), SETS.validation.targets)
    assert plain.vote_scale is None
    assert scaled.vote_scale.scale == pytest.approx(expected, rel=1e-6) and expected < 0.1
    assert scaled.vote_scale.examples == 500 and scaled.vote_scale.reason == ""
    shift = scaled.chosen.bias.double() - plain.chosen.bias.double()
    torch.testing.assert_close(shift, torch.full_like(shift, math.log(expected)), rtol=0, atol=1e-5)
    assert torch.equal(scaled.chosen.weight, plain.chosen.weight)


def test_probabilities_stay_and_test_votes_are_likelier():
    plain, scaled = made(vote_scale=False).chosen, made().chosen
    before, after = (Belief(log_alpha(head, SETS.test)) for head in (plain, scaled))
    torch.testing.assert_close(after.probs, before.probs, rtol=0, atol=1e-6)
    likelihood = [votes_log_likelihood(one.log_alpha, SETS.test.targets).item() for one in (before, after)]
    assert likelihood[1] > likelihood[0] + 0.1


def test_the_chosen_head_is_the_one_of_the_table_and_of_those_tried():
    found = made()
    assert found.chosen is found.table[found.label][0]
    assert any(head is found.chosen for head in found.fitted)
    assert found.chosen.notes[-1] == f"scale {found.vote_scale.scale:.4g}"


def test_the_mixture_of_several_heads_is_at_the_likeliest_scale():
    scaled = made(heads=3)
    assert scaled.vote_scale.scale is not None
    left = fit_scale(log_alpha(scaled.chosen, SETS.validation), SETS.validation.targets)
    assert left == pytest.approx(1, abs=1e-3)
    plain = made(heads=3, vote_scale=False)
    before, after = (Belief(log_alpha(one.chosen, SETS.test)).probs for one in (plain, scaled))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


def agreeing(features: Features) -> Features:
    return replace(features, targets=3.0 * nn.functional.one_hot(features.targets.argmax(1), CLASSES).float())


@pytest.mark.parametrize(
    ("validation", "options", "reason"),
    [
        (simulated(200, 1, panel=1), {}, "no validation example has two votes"),
        (replace(SETS.validation, targets=SETS.validation.targets / 5), {}, "shares"),
        (agreeing(SETS.validation), {}, "always agree"),
        (SETS.validation, {"choose": "best", "kl_weights": (10.0,)}, "no belief"),
    ],
    ids=["one vote", "shares", "agreeing", "softmax"],
)
def test_where_nothing_tells_the_precision_the_head_stays_and_the_record_says_why(
    validation, options, reason
):
    sets = replace(SETS, validation=validation)
    found, plain = made(sets, **options), made(sets, vote_scale=False, **options)
    assert found.vote_scale.scale is None and reason in found.vote_scale.reason
    assert torch.equal(found.chosen.bias, plain.chosen.bias)
    record = score_adaptation(found, model_name="m", settings=WITHOUT_EXAMPLES).record
    assert record.vote_scale.scale is None and record.vote_scale.reason == found.vote_scale.reason


def test_class_ids_have_no_scale():
    train, validation = (replace(one, targets=one.targets.argmax(1)) for one in (SETS.train, SETS.validation))
    found = made(FeatureSets(train, validation))
    assert found.vote_scale is None
    assert score_adaptation(found, model_name="m", settings=WITHOUT_EXAMPLES).record.vote_scale is None


def test_the_record_has_the_likelihood_of_the_test_votes_without_and_with_the_scale():
    found = made()
    record = score_adaptation(found, model_name="m", settings=WITHOUT_EXAMPLES).record
    z, counts = log_alpha(found.chosen, SETS.test), SETS.test.targets
    each = -votes_log_likelihood(z, counts, reduction="sum").item() / counts.sum().item()
    plain = z - math.log(found.vote_scale.scale)
    before = -votes_log_likelihood(plain, counts, reduction="sum").item() / counts.sum().item()
    assert record.vote_scale.scale == found.vote_scale.scale and record.vote_scale.examples == 500
    assert (record.vote_scale.nll, record.vote_scale.nll_before) == pytest.approx((each, before), rel=1e-9)
    assert type(record).from_json(record.to_json()).vote_scale == record.vote_scale


def data(features: Features):
    return torch.from_numpy(np.asarray(features.rows)), features.targets


def network(*, batchnorm: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(WIDTH) if batchnorm else nn.Identity(), nn.Linear(WIDTH, CLASSES))


def adapted(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = {"validation": data(SETS.validation), "test": data(SETS.test), **QUICK, **options}
        return adapt(network(batchnorm=options.get("batchnorm", False)), data(SETS.train), **given)


@pytest.mark.parametrize("batchnorm", [False, True], ids=["head", "batchnorm"])
def test_a_network_has_the_scale_in_its_own_weights(batchnorm):
    options = {"batchnorm": True, "epochs": 3} if batchnorm else {}
    better, plain = adapted(**options).eval(), adapted(vote_scale=False, **options).eval()
    x, votes = data(SETS.validation)
    scale = better.adaptation.vote_scale.scale
    assert scale == pytest.approx(fit_scale(plain.belief(x).log_alpha, votes), rel=1e-4)
    torch.testing.assert_close(better(x), plain(x) + math.log(scale), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(better.predict(x).probs, plain.predict(x).probs, rtol=0, atol=1e-6)
    assert fit_scale(better.belief(x).log_alpha, votes) == pytest.approx(1, abs=1e-4)
    fresh = network(batchnorm=batchnorm).eval()
    fresh.load_state_dict(better.state_dict())
    torch.testing.assert_close(fresh(x), better(x))


def test_head_file_and_summary_carry_the_scale():
    load = pytest.importorskip("safetensors.torch").load
    better = adapted()
    fresh = network().eval()
    fresh.load_state_dict(load(head_file(better.adaptation, better)), strict=False)
    x, _ = data(SETS.test)
    torch.testing.assert_close(Belief(fresh(x)).alpha, better.belief(x).alpha)
    text = " ".join(better.summary().split())
    assert f"scale {better.adaptation.vote_scale.scale:.4g}" in text


def test_an_exported_network_has_the_scaled_belief(tmp_path):
    from beliefmatch import export

    better = adapted()
    x, _ = data(SETS.test)
    path = tmp_path / "better.pt"
    export(better, path, x[:8], format="torchscript")
    out = torch.jit.load(f"{path}")(x)
    expected = better.belief(x).mutual_information()
    torch.testing.assert_close(out["mutual_information"].double(), expected.double(), rtol=1e-3, atol=1e-5)
