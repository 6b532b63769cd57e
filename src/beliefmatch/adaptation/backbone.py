"""A network up to its last layer: inputs to features, as it is or in a form that can be compiled."""

import copy
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from beliefmatch._validate import fail
from beliefmatch.adaptation.heads import Head, Pooling, head_inputs, pooled
from beliefmatch.adaptation.outputs import arguments, logits_of
from beliefmatch.adaptation.tracing import Layer, layer_named, unwrapped
from beliefmatch.models.encoder import PooledEncoder

__all__ = ["HeadInputs"]


class HeadInputs:
    """Features of a batch by `head_inputs`.

    Args:
        model: the classifier.
        head: of `find_head`.
    """

    def __init__(self, model: nn.Module, head: Head) -> None:
        self.model, self.head = model, head

    def __call__(self, inputs: Any) -> Tensor:
        """Features (N, F)."""
        return head_inputs(self.model, self.head, inputs)

    @cached_property
    def traceable(self) -> nn.Module:
        """The same without hooks, in eval mode, for torch.compile: a copy that shares all weights."""
        network = unwrapped(self.model)[0]
        return network if isinstance(network, PooledEncoder) else _Backbone(self.model, self.head)


class _Backbone(nn.Module):
    def __init__(self, model: nn.Module, head: Head) -> None:
        super().__init__()
        network, prefix = unwrapped(model)
        shared: dict[int, Any] = {
            id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())
        }
        copied = copy.deepcopy(network, shared)
        self.network, self.kept = _kept_in_place(copied, head.name.removeprefix(prefix), head)
        self.eval()

    def forward(self, batch: Any) -> Tensor:
        kept = self.kept
        kept.seen.clear()
        args, kwargs = arguments(batch)
        returned = self.network(*args, **kwargs)
        if kept.passes_on:
            return logits_of(returned, caller="head_inputs")
        rows = pooled(kept.seen, kept.layer, kept.pooling)
        if rows is None:
            raise fail("head_inputs", f"`{kept.layer.name}` must be used once for each batch.")
        return rows


class _Kept(nn.Module):
    """A layer that remembers what it was given, or passes it on where the rest of the network pools it."""

    def __init__(self, layer: Layer, pooling: Pooling) -> None:
        super().__init__()
        self.inner, self.layer = layer.module, layer
        self.pooling: Pooling = pooling
        self.passes_on = pooling == "other"
        self.seen: list[Tensor] = []

    def forward(self, input: Tensor) -> Tensor:
        self.seen.append(input)
        return input if self.passes_on else self.inner(input)


def _kept_in_place(network: nn.Module, name: str, head: Head) -> tuple[nn.Module, _Kept]:
    layer = layer_named(network, name)
    if layer is None:
        raise fail("head_inputs", f"`head` must be of this model, which has no such layer `{head.name}`.")
    kept = _Kept(layer, head.pooling)
    owner, _, own = name.rpartition(".")
    if name:
        setattr(network.get_submodule(owner), own, kept)
    return network if name else kept, kept
