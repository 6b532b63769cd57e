"""What a classifier is given and what it returns, in the forms that networks use."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from beliefmatch._validate import describe, fail

__all__ = ["arguments", "logits_of", "output_of"]

_KEYS = ("logits", "out")


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a network takes a batch: a mapping by name, a tuple or list by place, else as its one argument."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, tuple | list):
        return tuple(batch), {}
    return (batch,), {}


def output_of(returned: Any, *, caller: str = "output_of") -> Tensor:
    """The tensor of logits in what a network returned.

    That tensor itself; what an output object or a mapping calls `logits` (else, in a mapping, `out`); of a
    tuple or list the first that has a dimension: a loss in front of the logits is passed over, and what
    auxiliary heads return follows them.
    """
    found = _found(returned)
    if found is None:
        expected = "logits: a tensor, an object or mapping with `logits`, or a tuple that begins with them"
        remedy = ""
        if hasattr(returned, "last_hidden_state"):
            remedy = "; wrap an encoder without head in beliefmatch.models.PooledEncoder"
        raise fail(
            caller, f"the model must return {expected}; got {_described(returned)}{remedy}.", TypeError
        )
    return found


def logits_of(returned: Any, *, caller: str = "logits_of") -> Tensor:
    """The logits of what a network returned as (N, K), without dimensions of size one behind or between."""
    logits = output_of(returned, caller=caller)
    if not logits.is_floating_point():
        raise fail(caller, f"the model must return floating-point logits, got {describe(logits)}.", TypeError)
    rows, *sizes = logits.shape or (0,)
    classes = [size for size in sizes if size != 1]
    if not sizes or len(classes) > 1:
        expected = "one row of logits for each example, (N, K)"
        raise fail(caller, f"the model must return {expected}, got shape {tuple(logits.shape)}.")
    return logits.reshape(rows, classes[0] if classes else 1)


def _found(returned: Any) -> Tensor | None:
    if isinstance(returned, Tensor):
        return returned
    if isinstance(returned, Mapping):
        return next((found for key in _KEYS if (found := _found(returned.get(key))) is not None), None)
    if isinstance(named := getattr(returned, "logits", None), Tensor):
        return named
    if isinstance(returned, tuple | list):
        return next((found for part in returned if _is_main(found := _found(part))), None)
    return None


def _is_main(found: Tensor | None) -> bool:
    return found is not None and found.dim() > 0


def _described(returned: Any) -> str:
    """What came, in a few words: the parts of an output object by name and shape."""
    kind = type(returned).__name__
    if not isinstance(returned, Mapping):
        return describe(returned)
    parts = (f"{key} {_shape(value)}" for key, value in returned.items() if value is not None)
    return f"{kind} with {', '.join(parts) or 'nothing in it'}"


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
