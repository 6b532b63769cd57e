"""The new head as a file that the network's own `load_state_dict` takes."""

import json
from collections.abc import Iterator

from torch import Tensor, nn

from beliefmatch._environment import needs
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
    weight = new.weight[:, :, None, None] if is_convolution else new.weight
    before = f"{head.name}." if head is not None and head.name else ""
    tensors = {f"{before}weight": weight.contiguous(), f"{before}bias": new.bias.contiguous()}
    if taken is not None and network is not None and head is not None:
        tensors |= dict(_layers(network, taken.layers, head.name))
    facts = {"kind": new.candidate.kind, "options": json.dumps(dict(new.candidate.options))}
    return save(tensors, metadata=facts)


def _layers(network: nn.Module, names: tuple[str, ...], head: str) -> Iterator[tuple[str, Tensor]]:
    """What layers hold; names get what stood before the head's for a wrapper that was left off."""
    there, inner = dict(network.named_modules()), head
    while inner not in there and "." in inner:
        inner = inner.partition(".")[2]
    before = head.removesuffix(inner)
    for name in names:
        for key, value in there[name].state_dict().items():
            yield f"{before}{name}.{key}", value.detach().cpu().contiguous().clone()
