"""The chosen head as a file that the network's own `load_state_dict` takes."""

import json

from torch import Tensor

from beliefmatch.adaptation.result import Adaptation
from beliefmatch.extras import needs

__all__ = ["head_file"]


def head_file(adaptation: Adaptation) -> bytes:
    """The chosen weight and bias in the form of safetensors, under the names of the network's `state_dict`.

    So that ``model.load_state_dict(load_file(path), strict=False)`` puts them in place where the number of
    classes is the same; it is the head for the network's layers as they were. Called "weight" and "bias"
    where there are features alone.
    """
    with needs("safetensors", extra="files", caller="report"):
        from safetensors.torch import save
    chosen, head = adaptation.chosen, adaptation.head
    weight = chosen.weight if head is None else _shaped(chosen.weight, head.module.weight.dim())
    before = f"{head.name}." if head is not None and head.name else ""
    tensors = {f"{before}weight": weight.contiguous(), f"{before}bias": chosen.bias.contiguous()}
    facts = {"kind": chosen.candidate.kind, "options": json.dumps(dict(chosen.candidate.options))}
    return save(tensors, metadata=facts)


def _shaped(weight: Tensor, dimensions: int) -> Tensor:
    """(K, F), or (K, F, 1, 1) for a convolution."""
    return weight.reshape(*weight.shape, *[1] * (dimensions - 2))
