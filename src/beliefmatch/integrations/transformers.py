"""Belief matching in the Trainer of Hugging Face: the loss, and metrics of calibration."""

import math
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from beliefmatch._labels import (
    require_kl_weight,
    require_prior_number,
    require_target_confidence,
)
from beliefmatch._validate import describe, fail, naming_arguments, require_floating, require_values
from beliefmatch.adaptation.scoring import score_logits
from beliefmatch.loss import belief_matching_loss

__all__ = ["compute_loss_func", "compute_metrics"]

IGNORED = -100
"""Label that the Trainer leaves out when it counts `num_items_in_batch`."""

LossFunc = Callable[..., Tensor]
Make = TypeVar("Make", bound=Callable[..., Any])


def _made_by_a_call(make: Make) -> Make:
    """`make`, which says so where the Trainer calls it in place of the function that it returns."""

    @wraps(make)
    def called(*given: Any, **options: Any) -> Any:
        if given or "num_items_in_batch" in options:
            fact = "the function that it returns is the loss; call it first"
            raise fail(make.__name__, f"{fact}: compute_loss_func={make.__name__}().", TypeError)
        return make(**options)

    return cast("Make", called)


@_made_by_a_call
def compute_loss_func(
    *,
    kl_weight: float | None = None,
    target_confidence: float | None = None,
    prior: float | Tensor = 1.0,
    weight: Tensor | None = None,
) -> LossFunc:
    """Belief matching as the `compute_loss_func` of a `transformers.Trainer`.

    For models whose logits have the classes last: sequence, token and image classification. Labels are class
    ids, of the logits' shape without the classes, or counts of votes, of the logits' shape. The shape alone
    distinguishes them, since data sets hold votes as lists of integers. A label of -100 is ignored, and so is
    an item whose counts are all -100, such as a padded token.

    The loss is the sum over the items of a batch, divided by the number of items in all batches that make up
    one step of the optimizer. Accumulated gradients therefore equal those of one large batch, whatever the
    number of items in each part. The Trainer counts an item with votes as K items; that is undone here.

    Args:
        kl_weight: λ ≥ 0, the weight of the prior; 0.01 if neither it nor `target_confidence` is given.
        target_confidence: Instead of λ, the probability that the optimum gives to the label of one vote.
        prior: β > 0: a number, or a tensor with one number a class.
        weight: One weight a class, which multiplies the loss of an item. The sum is divided by the number of
            items, as the Trainer counts them, not by the sum of their weights.

    Returns:
        A function of `(outputs, labels, num_items_in_batch=None)`, which can be pickled. Without
        `num_items_in_batch` it divides by the number of items in `labels`.

    Example:
        >>> import torch
        >>> from beliefmatch.integrations.transformers import compute_loss_func
        >>> loss = compute_loss_func(target_confidence=0.9)
        >>> outputs = {"logits": torch.zeros(4, 3)}
        >>> ids = torch.tensor([0, 1, 2, -100])
        >>> votes = torch.tensor([[5, 0, 0], [0, 3, 2], [1, 1, 1], [0, 0, 0]])
        >>> [f"{loss(outputs, labels):.3f}" for labels in (ids, votes)]
        ['1.500', '4.875']

    In a training: `Trainer(model, args, compute_loss_func=compute_loss_func(), ...)`.
    """
    function = "compute_loss_func"
    if target_confidence is None:
        kl_weight = require_kl_weight(function, kl_weight)
    else:
        require_target_confidence(function, kl_weight, target_confidence)
    if isinstance(prior, Tensor):
        require_floating(function, "prior", prior)
    else:
        prior = require_prior_number(function, prior)
    if weight is not None:
        require_floating(function, "weight", weight)
    options = {"kl_weight": kl_weight, "target_confidence": target_confidence}
    return partial(_loss, options=options, prior=prior, weight=weight)


def _loss(
    outputs: Any,
    labels: Tensor | None,
    num_items_in_batch: Tensor | int | None = None,
    *,
    options: Mapping[str, Any],
    prior: float | Tensor,
    weight: Tensor | None,
) -> Tensor:
    logits, targets = _rows("compute_loss_func", _logits(outputs), labels)
    with naming_arguments("compute_loss_func", targets="labels"):
        total = belief_matching_loss(
            logits,
            targets,
            prior=prior.to(logits.device) if isinstance(prior, Tensor) else prior,
            weight=None if weight is None else weight.to(logits.device),
            ignore_index=IGNORED,
            reduction="sum",
            **options,
        )
    if num_items_in_batch is None:
        return total / ((targets != IGNORED).sum() if targets.dim() == 1 else len(targets))
    return total / _items(num_items_in_batch, logits.shape[-1] if targets.dim() == 2 else 1, total)


def _items(counted: Tensor | int, labels_an_item: int, total: Tensor) -> Tensor | float:
    """The number of items, from the number of labels that the Trainer counted.

    With several GPUs in one process (`DataParallel`) the Trainer passes the number once for each, and
    multiplies the loss by the number of GPUs to make up for a mean over their losses. Here there is one loss,
    that of the outputs of all of them, so that the factor is taken out.
    """
    if isinstance(counted, Tensor):
        counted = counted.to(total.device).sum()
    return counted / labels_an_item


def _logits(outputs: Any) -> Tensor:
    function = "compute_loss_func"
    if "CausalLM" in type(outputs).__name__:
        remedy = "use a model for sequence, token or image classification"
        fact = (
            f"`outputs` must be those of a classifier, got {type(outputs).__name__}, whose labels are shifted"
        )
        raise fail(function, f"{fact}; {remedy}.", TypeError)
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    if isinstance(outputs, (tuple, list)) and outputs:
        logits = outputs[0]
    if not isinstance(logits, Tensor):
        received = f"the keys {', '.join(outputs)}" if isinstance(outputs, Mapping) else describe(outputs)
        expected = "hold `logits`, or be a tuple that begins with them"
        raise fail(function, f"`outputs` must {expected}, got {received}.", TypeError)
    return logits


def _rows(function: str, logits: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits (N, K) of the items, with class ids (N,), -100 where ignored, or counts (N, K)."""
    if not isinstance(labels, Tensor):
        remedy = "the data set needs a column `labels`, or `label` that the collator renames"
        raise fail(function, f"`labels` must be a tensor, got {describe(labels)}; {remedy}.", TypeError)
    shape, classes = tuple(logits.shape), logits.shape[-1]
    if len(shape) >= 2 and tuple(labels.shape) == shape[:-1]:
        return logits.reshape(-1, classes), labels.reshape(-1)
    if len(shape) < 2 or tuple(labels.shape) != shape:
        expected = f"{shape[:-1]} as class ids or {shape} as counts, to match `logits` {shape}"
        hint = "" if len(shape) < 4 else " Logits with the classes elsewhere than last are not supported."
        raise fail(function, f"`labels` must have shape {expected}, got {tuple(labels.shape)}.{hint}")
    logits, counts = logits.reshape(-1, classes), labels.reshape(-1, classes)
    kept = (counts != IGNORED).any(-1)
    counts = counts if counts.is_floating_point() else counts.float()
    return logits[kept], counts[kept]


def _require_targets(function: str, targets: Tensor, classes: int) -> None:
    """Class ids below the number of classes, or counts."""
    if targets.dim() == 2:
        valid, expected = targets.isfinite() & (targets >= 0), "counts that are finite and at least 0"
    elif targets.is_floating_point() or targets.dtype == torch.bool:
        raise fail(function, f"`label_ids` must be integers, got {describe(targets)}.", TypeError)
    else:
        valid = (targets >= 0) & (targets < classes)
        expected = f"class ids from 0 to {classes - 1}, or {IGNORED}"
    require_values(function, "label_ids", targets, valid, expected)


def compute_metrics(predictions: Any) -> dict[str, float]:
    """Error, NLL and expected calibration error, as the `compute_metrics` of a `transformers.Trainer`.

    Args:
        predictions: The `EvalPrediction` of the Trainer: logits, with the classes last, and labels as for
            `compute_loss_func`. Of counts, the NLL is the mean over the votes of each item, and an answer is
            right to the share of its votes; items without votes are left out.

    Returns:
        `error`, `nll` in nats, and `ece` with 15 bins, to which the Trainer adds the prefix `eval_`. All are
        NaN where a logit is, so that `metric_for_best_model` does not choose a model that diverged.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> from beliefmatch.integrations.transformers import compute_metrics
        >>> logits = np.log([[0.8, 0.2], [0.6, 0.4], [0.5, 0.5]])
        >>> found = compute_metrics(SimpleNamespace(predictions=logits, label_ids=np.array([0, 1, -100])))
        >>> {name: round(value, 4) for name, value in found.items()}
        {'error': 0.5, 'nll': 0.5697, 'ece': 0.4}
    """
    function = "compute_metrics"
    logits, labels = predictions.predictions, predictions.label_ids
    logits = logits[0] if isinstance(logits, (tuple, list)) and len(logits) else logits  # others may follow
    if not isinstance(logits, (np.ndarray, Tensor)):
        expected = "an array of logits, or a tuple that begins with it"
        received = (
            f"the keys {', '.join(map(str, logits))}" if isinstance(logits, Mapping) else describe(logits)
        )
        raise fail(function, f"`predictions` must be {expected}, got {received}.", TypeError)
    if not isinstance(labels, (np.ndarray, Tensor)):
        remedy = "name one column of labels by `label_names` of the TrainingArguments"
        raise fail(function, f"`label_ids` must be an array, got {describe(labels)}; {remedy}.", TypeError)
    with naming_arguments(function, labels="label_ids"):
        logits, targets = _rows(function, torch.as_tensor(logits), torch.as_tensor(labels))
    kept = targets != IGNORED if targets.dim() == 1 else (targets != 0).any(-1)
    logits, targets = logits[kept], targets[kept]
    _require_targets(function, targets, logits.shape[-1])
    if not len(logits) or bool(logits.double().log_softmax(-1).isnan().any()):
        return dict.fromkeys(("error", "nll", "ece"), math.nan)  # never the best of a run
    found = score_logits(logits, targets)
    return {"error": found.error, "nll": found.nll, "ece": found.ece}
