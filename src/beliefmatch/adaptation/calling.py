"""Calling somebody else's classifier: batches in any form, logits in any form of output, eval mode."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from beliefmatch._validate import describe, fail

__all__ = ["call_model", "deep_copy", "evaluating", "logits_of", "unwrapped"]


def call_model(model: nn.Module, batch: Any) -> Any:
    """The output of a model for a batch.

    Args:
        model: Any network.
        batch: A mapping is passed by keyword, a tuple or list by position, anything else as the one argument.
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def logits_of(returned: Any, *, caller: str = "logits_of") -> Tensor:
    """The logits (N, K) in the output of a classifier; other dimensions of size one are dropped.

    Args:
        returned: A tensor; an output object or mapping with `logits`, or a mapping with `out`; or a tuple or
            list in which the logits are the first tensor that is not a scalar: a loss may precede them, and
            the logits of auxiliary heads may follow.
        caller: Function that the error names.
    """
    logits = _find_logits(returned)
    if logits is None:
        expected = "logits: a tensor, an object or mapping with `logits`, or a tuple that begins with them"
        remedy = ""
        if hasattr(returned, "last_hidden_state"):
            remedy = "; wrap an encoder without head in beliefmatch.models.PooledEncoder"
        got = _describe_output(returned)
        raise fail(caller, f"the model must return {expected}; got {got}{remedy}.", TypeError)
    if not logits.is_floating_point():
        raise fail(caller, f"the model must return floating-point logits, got {describe(logits)}.", TypeError)
    rows, *sizes = logits.shape or (0,)
    classes = [size for size in sizes if size != 1]
    if not sizes or len(classes) > 1:
        expected = "one row of logits for each example, (N, K)"
        raise fail(caller, f"the model must return {expected}, got shape {tuple(logits.shape)}.")
    return logits.reshape(rows, classes[0] if classes else 1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients inside the block; afterwards every module is in its former mode."""
    modes = [(module, module.training) for module in model.modules()]
    if any(training for _, training in modes):
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if any(module.training != training for module, training in modes):
            model.train(model_mode := modes[0][1])  # for networks that do more there than set the flag
            for module, training in modes:
                if training != model_mode or module.training != training:
                    module.training = training


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside of DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        if "_orig_mod" in model._modules:  # torch.compile's
            inner = model._modules["_orig_mod"]
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        else:
            return model
        assert isinstance(inner, nn.Module)
        model = inner


def deep_copy(model: nn.Module, memo: dict[int, Any] | None = None, *, caller: str) -> nn.Module:
    """`copy.deepcopy` of a model, with an error that names the caller."""
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise fail(caller, f"`model` must be copyable by copy.deepcopy, got: {reason}", TypeError) from error


def _find_logits(returned: Any) -> Tensor | None:
    if isinstance(returned, Tensor):
        return returned
    if isinstance(returned, Mapping):
        values = (_find_logits(returned.get(key)) for key in ("logits", "out"))
        return next((value for value in values if value is not None), None)
    if isinstance(named := getattr(returned, "logits", None), Tensor):
        return named
    if isinstance(returned, tuple | list):
        parts = map(_find_logits, returned)
        return next((part for part in parts if part is not None and part.dim() > 0), None)
    return None


def _describe_output(returned: Any) -> str:
    """An output in a few words: a mapping by the names and shapes of its parts."""
    if not isinstance(returned, Mapping):
        return describe(returned)
    parts = [
        f"{key} {tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
        for key, value in returned.items()
        if value is not None
    ]
    return f"{type(returned).__name__} with {', '.join(parts) or 'nothing in it'}"
