"""The new head as a file that the network's own `load_state_dict` takes."""

import json

from torch import nn

from beliefmatch._environment import needs
from beliefmatch.adaptation.ensemble import EnsembleHead
from beliefmatch.adaptation.result import Adaptation

__all__ = ["head_file"]


def head_file(adaptation: Adaptation, network: nn.Module | None = None) -> bytes:
    """What is new in the network in the form of safetensors, under the names of its `state_dict`.

    So that ``model.load_state_dict(load_file(path), strict=False)`` puts it in place where the number of
    classes is the same. Called "weight" and "bias" where there are features alone. Where BatchNorm layers
    were trained and taken, the head is the one trained with them, and they are in the file too: it is of no
    use without them.

    Args:
        adaptation: of `adapt` or `refit`.
        network: the adapted one, where there is one.
    """
    with needs("safetensors", extra="files", caller="report"):
        from safetensors.torch import save
    head, batchnorm = adaptation.head, adaptation.batchnorm
    taken = batchnorm if batchnorm is not None and batchnorm.is_taken else None
    new = adaptation.chosen if taken is None else taken.head
    is_convolution = head is not None and head.kind == "conv1x1"
    weight, bias = (new.weights, new.biases) if isinstance(new, EnsembleHead) else (new.weight, new.bias)
    weight = weight[:, :, None, None] if is_convolution else weight
    before = f"{head.name}." if head is not None and head.name else ""
    tensors = {f"{before}weight": weight.contiguous(), f"{before}bias": bias.contiguous()}
    if taken is not None and network is not None and head is not None:
        for name in taken.layers:
            state = network.get_submodule(name).state_dict()
            tensors |= {f"{name}.{key}": value.cpu().contiguous().clone() for key, value in state.items()}
    facts = {"kind": new.candidate.kind, "options": json.dumps(dict(new.candidate.options))}
    return save(tensors, metadata=facts)
