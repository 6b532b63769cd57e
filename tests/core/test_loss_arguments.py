"""Arguments of the loss: each invalid one is named in one line, and a weak target is warned of."""

import math
import warnings

import pytest
import torch

from beliefmatch import BeliefMatchingLoss, belief_matching_loss
from beliefmatch.loss import LowTargetConfidence

LOGITS, IDS, COUNTS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), torch.ones(4, 3)
BOTH = {"kl_weight": 0.1, "target_confidence": 0.9}
INF, NAN = math.inf, math.nan


def with_entry(values, entry):
    changed = values.clone()
    changed.view(-1)[2] = entry
    return changed


WRONG_TYPE = [
    ("logits", LOGITS.long()),
    ("logits", LOGITS.to(torch.complex64)),
    ("logits", LOGITS.to(torch.float8_e4m3fn)),
    ("logits", LOGITS.to_sparse()),
    ("logits", [[0.0, 1.0]]),
    ("targets", COUNTS.bool()),
    ("targets", [0, 1, 2, 0]),
    ("prior", torch.ones(3).long()),
    ("prior", "uniform"),
    ("weight", [1.0, 1.0, 1.0]),
    *(("kl_weight", bad) for bad in ("0.1", torch.tensor(0.1), [0.1])),
    *(("ignore_index", bad) for bad in (None, "x", 1.5, True, [1])),
]
WRONG_SHAPE_OR_DEVICE = [
    ("logits", torch.tensor(1.0)),
    ("logits", torch.zeros(4, 0)),
    ("targets", torch.zeros(5, dtype=torch.long)),
    ("targets", torch.ones(4, 2)),
    ("targets", COUNTS.long()),
    ("targets", IDS.float()),
    ("targets", COUNTS.to_sparse()),
    ("prior", torch.ones(4)),
    ("prior", torch.ones(4, 2)),
    ("weight", torch.ones(4)),
    *((name, torch.ones(3, device="meta")) for name in ("weight", "prior")),
    ("targets", IDS.to("meta")),
    ("ignore_index", 2**70),
    *(("reduction", bad) for bad in ("avg", ["mean"])),
    ("kl_weight", 10**400),
]
WRONG_VALUE = [  # each is shown as it was received
    *(("targets", with_entry(IDS, bad), bad) for bad in (3, -1, 100)),
    *(("targets", with_entry(COUNTS, bad), bad) for bad in (-0.5, NAN, INF)),
    *(("prior", bad, bad) for bad in (0.0, -1.0, NAN, INF)),
    *(("prior", with_entry(torch.ones(3), bad), bad) for bad in (0.0, -1.0, NAN, INF)),
    *(("weight", with_entry(torch.ones(3), bad), bad) for bad in (-1.0, NAN)),
    *(("kl_weight", bad, bad) for bad in (-0.1, NAN, INF)),
    *(("target_confidence", bad, bad) for bad in (0.0, 1 / 3, 1.0, 1.5, -1.0, NAN)),
]


def message_of(kind, logits=LOGITS, targets=IDS, **options):
    with pytest.raises(kind) as caught:
        belief_matching_loss(logits, targets, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("argument", "value", "kind"),
    [
        *((*case, TypeError) for case in WRONG_TYPE),
        *((*case, ValueError) for case in WRONG_SHAPE_OR_DEVICE),
        *((*case[:2], ValueError) for case in WRONG_VALUE),
    ],
)
def test_an_invalid_argument_is_named_in_one_line(argument, value, kind):
    message = message_of(kind, **{argument: value})
    assert message.startswith(f"belief_matching_loss: `{argument}` "), message


@pytest.mark.parametrize(("argument", "value", "received"), WRONG_VALUE)
def test_an_invalid_value_is_shown_by_every_kernel(argument, value, received, kernel):
    for tracked in (False, True):
        call = {"logits": LOGITS.clone().requires_grad_(tracked), argument: value}
        assert f"got {received}" in message_of(ValueError, **call)


@pytest.mark.parametrize(
    ("targets", "remedy"),
    [
        (COUNTS.long(), "targets.float()"),
        (IDS.float(), "targets.long()"),
        (COUNTS.to_sparse(), "targets.to_dense()"),
    ],
)
def test_targets_of_another_kind_are_not_guessed_but_a_remedy_is_given(targets, remedy):
    assert remedy in message_of(ValueError, targets=targets)


def test_arguments_that_exclude_each_other_are_named():
    message = message_of(ValueError, **BOTH)
    assert "`kl_weight`" in message and "`target_confidence`" in message
    assert "`ignore_index`" in message_of(ValueError, targets=COUNTS, ignore_index=1)
    with pytest.raises(TypeError):
        belief_matching_loss(LOGITS, IDS, 0.1)  # options are keyword-only


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        *(({"kl_weight": bad}, "kl_weight") for bad in (-0.1, NAN, INF)),
        (BOTH, "target_confidence"),
        ({"target_confidence": 1.5}, "target_confidence"),
        ({"target_confidence": "high"}, "target_confidence"),
        ({"prior": -1.0}, "prior"),
        ({"prior": [1.0, 2.0]}, "prior"),
        ({"prior": torch.ones(3).long()}, "prior"),
        ({"weight": [1.0, 2.0]}, "weight"),
        ({"ignore_index": "a"}, "ignore_index"),
        ({"reduction": "avg"}, "reduction"),
    ],
)
def test_the_module_raises_when_it_is_constructed(options, argument):
    with pytest.raises((ValueError, TypeError), match=rf"^BeliefMatchingLoss: .*`{argument}`"):
        BeliefMatchingLoss(**options)


# The warning of a target mean below one half

THOUSAND, LABELS = torch.zeros(3, 1000), torch.tensor([1, 2, 3])


@pytest.mark.parametrize(
    ("criterion", "logits"),
    [
        (belief_matching_loss, THOUSAND),
        (BeliefMatchingLoss(), THOUSAND),
        (BeliefMatchingLoss(prior=20.0), torch.zeros(3, 10)),
        (belief_matching_loss, THOUSAND.to("meta")),  # which has no values to read
    ],
)
def test_a_target_mean_below_one_half_is_warned_of_at_the_line_of_the_caller(criterion, logits):
    with pytest.warns(LowTargetConfidence, match="kl_weight=") as caught:
        criterion(logits, LABELS.to(logits.device))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("classes", "prior"), [(1000, 1.0), (10, 20.0)])
def test_the_warning_gives_the_mean_and_a_weight_that_cures_it(classes, prior):
    """(β + 1/λ)/(Kβ + 1/λ)."""
    mean = (prior + 100) / (classes * prior + 100)
    with pytest.warns(UserWarning, match=rf"K={classes} .* {mean:.3g};.*target_confidence=0\.9") as caught:
        belief_matching_loss(torch.zeros(3, classes), LABELS, prior=prior)
    weight = float(str(caught[0].message).rsplit("kl_weight=", 1)[1].rstrip("."))
    assert (prior + 1 / weight) / (classes * prior + 1 / weight) == pytest.approx(0.9, rel=1e-3)


def test_a_target_mean_of_one_half_or_more_is_not_warned_of():
    """It is exactly one half at λ(K − 2) = 1."""
    votes = torch.zeros(3, 1000).index_fill(1, torch.tensor([5]), 50.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        belief_matching_loss(torch.zeros(3, 102), LABELS, kl_weight=0.01)
        belief_matching_loss(torch.zeros(3, 2), LABELS % 2, kl_weight=1e6)
        belief_matching_loss(THOUSAND, LABELS, target_confidence=0.3)
        belief_matching_loss(THOUSAND, votes, kl_weight=0.01)
    assert caught == []
