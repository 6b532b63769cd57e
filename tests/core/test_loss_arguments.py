"""Bad input is refused in one line: function, argument, expected, received, remedy."""

import math
import warnings
from functools import partial

import pytest
import torch

from beliefmatch import BeliefMatchingLoss, belief_matching_loss

LOGITS = torch.zeros(4, 3)
IDS = torch.tensor([0, 1, 2, 0])
COUNTS = torch.ones(4, 3)


def assert_refused(kind, *expected, logits=LOGITS, targets=IDS, **options):
    with pytest.raises(kind) as caught:
        belief_matching_loss(logits, targets, **options)
    message = str(caught.value)
    assert message.startswith("belief_matching_loss: ") and "\n" not in message
    for part in expected:
        assert part in message, message


def test_logits_must_be_a_floating_tensor_with_classes():
    assert_refused(TypeError, "`logits`", "floating-point", "int64", logits=torch.zeros(4, 3).long())
    assert_refused(TypeError, "`logits`", "list", logits=[[0.0, 1.0]])
    assert_refused(TypeError, "`logits`", "complex64", logits=torch.zeros(4, 3, dtype=torch.complex64))
    assert_refused(ValueError, "`logits`", "()", logits=torch.tensor(1.0), targets=torch.tensor(0))
    assert_refused(ValueError, "`logits`", "(4, 0)", logits=torch.zeros(4, 0))


def test_targets_must_match_the_logits():
    assert_refused(
        ValueError, "`targets` must have shape (4,)", "`logits` (4, 3)", "got (5,)",
        targets=torch.zeros(5, dtype=torch.long),
    )  # fmt: skip
    assert_refused(ValueError, "(4, 3)", "counts", "got (4, 2)", targets=torch.ones(4, 2))
    assert_refused(TypeError, "`targets`", "bool", targets=torch.ones(4, 3, dtype=torch.bool))
    assert_refused(TypeError, "`targets`", "list", targets=[0, 1, 2, 0])


def test_ids_and_counts_are_not_guessed_from_each_other_but_named():
    assert_refused(ValueError, "got (4, 3)", "targets.float()", targets=COUNTS.long())
    assert_refused(ValueError, "got (4,)", "targets.long()", targets=IDS.float())


@pytest.mark.parametrize("bad", [3, -1, 100])
def test_ids_out_of_range_are_refused(bad):
    assert_refused(ValueError, "`targets`", "from 0 to 2", f"got {bad}", targets=torch.tensor([0, 1, bad, 2]))


@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf])
def test_counts_must_be_finite_and_not_negative(bad):
    counts = COUNTS.clone()
    counts[2, 1] = bad
    assert_refused(ValueError, "`targets`", "not negative", f"got {bad}", targets=counts)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_prior_must_be_positive_and_finite(bad):
    assert_refused(ValueError, "`prior`", f"got {bad}", prior=bad)
    assert_refused(ValueError, "`prior`", f"got {bad}", prior=torch.tensor([1.0, bad, 1.0]))


def test_prior_must_fit_the_logits():
    assert_refused(ValueError, "`prior`", "(3,)", "got (4,)", prior=torch.ones(4))
    assert_refused(ValueError, "`prior`", "got (4, 2)", prior=torch.ones(4, 2))
    assert_refused(TypeError, "`prior`", "int64", prior=torch.ones(3, dtype=torch.long))
    assert_refused(TypeError, "`prior`", "str", prior="uniform")


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_kl_weight_must_be_finite_and_not_negative(bad):
    assert_refused(ValueError, "`kl_weight`", f"got {bad}", kl_weight=bad)
    with pytest.raises(ValueError, match="BeliefMatchingLoss: `kl_weight`"):
        BeliefMatchingLoss(kl_weight=bad)


def test_kl_weight_must_be_a_number():
    assert_refused(TypeError, "`kl_weight`", "str", kl_weight="0.1")
    assert_refused(TypeError, "`kl_weight`", "tensor", kl_weight=torch.tensor(0.1))
    assert_refused(ValueError, "`kl_weight`", "finite", kl_weight=10**400)


@pytest.mark.parametrize("bad", [0.0, 1 / 3, 1.0, 1.5, -1.0, math.nan])
def test_target_confidence_must_lie_between_chance_and_certainty(bad):
    assert_refused(ValueError, "`target_confidence`", f"got {bad}", target_confidence=bad)


def test_kl_weight_and_target_confidence_exclude_each_other():
    both = {"kl_weight": 0.1, "target_confidence": 0.9}
    assert_refused(ValueError, "`kl_weight`", "`target_confidence`", "not both", **both)
    with pytest.raises(ValueError, match="not both"):
        BeliefMatchingLoss(**both)


def test_unknown_reduction_is_refused():
    assert_refused(ValueError, "`reduction`", "'mean'", "'sum'", "'none'", "got 'avg'", reduction="avg")
    with pytest.raises(ValueError, match="BeliefMatchingLoss: `reduction`"):
        BeliefMatchingLoss(reduction="avg")


def test_weight_must_be_one_number_a_class():
    assert_refused(ValueError, "`weight`", "(3,)", "got (4,)", weight=torch.ones(4))
    assert_refused(ValueError, "`weight`", "got -1.0", weight=torch.tensor([1.0, -1.0, 1.0]))
    assert_refused(ValueError, "`weight`", "got nan", weight=torch.tensor([1.0, math.nan, 1.0]))
    assert_refused(TypeError, "`weight`", "list", weight=[1.0, 1.0, 1.0])


def test_ignore_index_is_not_for_counts():
    assert_refused(ValueError, "`ignore_index`", "counts", targets=COUNTS, ignore_index=1)


@pytest.mark.parametrize("bad", [None, "x", 1.5, True])
def test_ignore_index_must_be_an_integer(bad):
    assert_refused(TypeError, "`ignore_index`", "integer", ignore_index=bad)


def test_everything_must_be_on_one_device():
    elsewhere = torch.ones(3, device="meta")
    assert_refused(ValueError, "`weight`", "device", "got meta", weight=elsewhere)
    assert_refused(ValueError, "`prior`", "device", "got meta", prior=elsewhere)
    assert_refused(ValueError, "`targets`", "device", "got meta", targets=IDS.to("meta"))


def test_what_is_neither_dense_nor_wide_enough_is_refused():
    assert_refused(TypeError, "`logits`", "16, 32 or 64", logits=LOGITS.to(torch.float8_e4m3fn))
    assert_refused(TypeError, "`logits`", "dense", logits=LOGITS.to_sparse())


def test_module_refuses_at_once():
    for options in (
        {"target_confidence": 1.5},
        {"target_confidence": "high"},
        {"prior": -1.0},
        {"prior": [1.0, 2.0]},
        {"prior": torch.ones(3).long()},
        {"weight": [1.0, 2.0]},
        {"ignore_index": "a"},
    ):
        with pytest.raises((ValueError, TypeError), match=r"^BeliefMatchingLoss: `"):
            BeliefMatchingLoss(**options)


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        belief_matching_loss(LOGITS, IDS, 0.1)


def test_warns_when_the_target_mean_is_below_one_half():
    logits, targets = torch.zeros(3, 1000), torch.tensor([1, 2, 3])
    with pytest.warns(UserWarning, match=r"K=1000 .* target mean of only 0\.0918.*target_confidence=0\.9"):
        belief_matching_loss(logits, targets)
    with pytest.warns(UserWarning, match="target mean"):
        BeliefMatchingLoss(prior=20.0)(torch.zeros(3, 10), targets)


def test_warns_without_asking_the_device():
    """Number, classes and one vote an id are known beforehand; the meta device has no values to ask for."""
    logits = torch.zeros(3, 1000, device="meta")
    with pytest.warns(UserWarning, match="target mean"):
        belief_matching_loss(logits, torch.zeros(3, dtype=torch.long, device="meta"))


def test_does_not_warn_when_the_target_mean_is_one_half_or_more():
    """(1 + 1/λ)/(K + 1/λ) is exactly one half at λ(K − 2) = 1."""
    ids, votes = torch.tensor([1, 0, 1]), torch.zeros(3, 1000).index_fill(1, torch.tensor([5]), 50.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        belief_matching_loss(torch.zeros(3, 102), ids, kl_weight=0.01)
        belief_matching_loss(torch.zeros(3, 2), ids, kl_weight=1e6)
        belief_matching_loss(torch.zeros(3, 1000), ids, target_confidence=0.3)
        belief_matching_loss(torch.zeros(3, 1000), votes, kl_weight=0.01)
    assert caught == []


def test_remedy_of_the_warning_is_the_weight_it_names():
    with pytest.warns(UserWarning, match="target mean") as caught:
        belief_matching_loss(torch.zeros(1, 1000), torch.tensor([1]))
    weight = float(str(caught[0].message).rsplit("kl_weight=", 1)[1].rstrip("."))
    assert (1 + 1 / weight) / (1000 + 1 / weight) == pytest.approx(0.9, rel=1e-2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kl_weight": [0.1]}, "`kl_weight` must be a number"),
        ({"reduction": ["mean"]}, "`reduction` must be one of"),
        ({"ignore_index": [1]}, "`ignore_index` must be an integer"),
        ({"ignore_index": 2**70}, "`ignore_index` must fit into 64 bits"),
    ],
)
def test_lists_and_giants_are_refused_in_one_line(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        belief_matching_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2]), **options)


def test_sparse_counts_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"must be dense, got torch.sparse_coo; use targets.to_dense"):
        belief_matching_loss(torch.zeros(3, 4), torch.eye(3, 4).to_sparse())


@pytest.mark.parametrize(
    "criterion",
    [partial(belief_matching_loss, kl_weight=0.1), BeliefMatchingLoss(kl_weight=0.1)],
    ids=["function", "module"],
)
def test_the_warning_points_at_the_line_of_the_caller(criterion):
    with pytest.warns(UserWarning, match="asks for a target mean") as caught:
        criterion(torch.zeros(2, 1000), torch.tensor([1, 2]))
    assert caught[0].filename == __file__
