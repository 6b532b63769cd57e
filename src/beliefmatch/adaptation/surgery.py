"""A copy of a classifier with other weights in its head, and the methods that adapted classifiers have."""

import copyreg
from functools import cache, partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from beliefmatch._rows import work_dtype
from beliefmatch._validate import describe, fail, naming_arguments, require_choice, warn
from beliefmatch.adaptation.ensemble import mixed
from beliefmatch.adaptation.heads import (
    Head,
    HeadLayer,
    call_model,
    deep_copy,
    evaluating,
    head_layer,
    input_errors,
    logits_of,
    obstacle,
    unwrapped,
)
from beliefmatch.belief import AbstentionRule, Belief, Measure
from beliefmatch.methods.base import Prediction
from beliefmatch.models.encoder import EncoderClassifier, PooledEncoder

__all__ = [
    "BeliefMixin",
    "EnsembleLinear",
    "add_belief",
    "require_ensemble",
    "with_ensemble",
    "with_head",
]

_MEASURES_OF_PROBS = ("confidence", "entropy")  # which depend on nothing but the probabilities

# Attributes that hold the number of classes in networks and their configurations.
_CLASS_COUNTS = ("num_classes", "num_labels", "n_classes", "nb_classes", "out_features", "out_channels")


def with_head(model: nn.Module, head: Head, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A deep copy of a classifier with other weights in its head.

    The layer keeps its class, device, dtype and `requires_grad`, and `state_dict` its names, except that a
    layer without bias gets one if one is given. Where the number of classes changes, attributes such as
    `num_classes` of the modules around the layer follow. A `PooledEncoder` becomes an `EncoderClassifier`.
    DataParallel, DistributedDataParallel and torch.compile are left off.

    Args:
        model: Classifier or `PooledEncoder`; it is not changed.
        head: Head of the model, from `find_head`.
        weight: Weight (K, F) for any number of classes K.
        bias: Bias (K,). None is zero.
    """
    network = unwrapped(model)
    _require_weights(head, weight, bias)
    if isinstance(network, PooledEncoder):
        return _with_appended_head(deep_copy(network, caller="with_head"), weight, bias)
    layer = head_layer(network, head, caller="with_head")
    if reason := obstacle(network, head):
        raise fail("with_head", f"`head` must be a layer with a weight of its own, but {reason}.")
    _warn_of_ties(network, head, layer)
    adapted = deep_copy(network, caller="with_head")
    _replace_weights(head_layer(adapted, head, caller="with_head"), weight, bias)
    if len(weight) != head.out_features:
        _replace_class_counts(adapted, head, len(weight))
    return adapted


class EnsembleLinear(nn.Module):
    """Several linear heads whose beliefs are mixed: the outputs are log-concentrations of the mixture.

    Args:
        weight: (H, K, F).
        bias: (H, K).
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        self.in_features, self.out_features = weight.shape[2], weight.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Log-concentrations (N, K) for features (N, F)."""
        logits = torch.einsum("hkf,nf->hnk", self.weight, x) + self.bias[:, None]
        return mixed(logits.to(work_dtype(x.device))).to(x.dtype)


def require_ensemble(model: nn.Module, head: Head, heads: int) -> None:
    """The last layer must be one that an `EnsembleLinear` can replace: a linear one given a vector a row."""
    fact = None
    if head.kind == "conv1x1" or (not head.name and not isinstance(unwrapped(model), PooledEncoder)):
        fact = "whose last layer is a convolution or the network itself"
    elif head.pooling != "none":  # the mixture of the heads is not linear
        fact = "that pools the outputs of its last layer"
    if fact is not None:
        raise fail("adapt", f"`heads` must be 0 for a network {fact}, got {heads}.")


def with_ensemble(model: nn.Module, head: Head, weights: Tensor, biases: Tensor) -> nn.Module:
    """A deep copy of a classifier with an `EnsembleLinear` in place of its head.

    Args:
        model: Classifier or `PooledEncoder`; it is not changed.
        head: Head of the model, from `find_head`.
        weights: (H, K, F).
        biases: (H, K).
    """
    require_ensemble(model, head, len(weights))
    adapted = with_head(model, head, weights[0], biases[0])
    name = "head" if isinstance(adapted, EncoderClassifier) else head.name
    like = next(adapted.get_submodule(name).parameters())
    layer = EnsembleLinear(weights.to(like), biases.to(like)).train(adapted.training)
    parent, _, last = name.rpartition(".")
    setattr(adapted.get_submodule(parent), last, layer)
    return adapted


# The weights of the head


def _require_weights(head: Head, weight: Tensor, bias: Tensor | None) -> None:
    given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    for name, value in given.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            expected = "a floating-point tensor"
            raise fail("with_head", f"`{name}` must be {expected}, got {describe(value)}.", TypeError)
        if not value.isfinite().all():
            raise fail("with_head", f"`{name}` must be finite, got NaN or infinity.")
    if weight.dim() != 2 or len(weight) == 0 or weight.shape[1] != head.in_features:
        expected = f"shape (K, {head.in_features})"
        raise fail("with_head", f"`weight` must have {expected}, got {tuple(weight.shape)}.")
    if bias is not None and tuple(bias.shape) != (len(weight),):
        raise fail("with_head", f"`bias` must have shape ({len(weight)},), got {tuple(bias.shape)}.")


def _warn_of_ties(network: nn.Module, head: Head, layer: HeadLayer) -> None:
    """Warn of modules that share weights with the head: they keep the old ones."""
    own = {parameter.data_ptr() for parameter in layer.parameters()}
    tied = [
        f"{name}.{key}"
        for name, module in network.named_modules()
        if module is not layer
        for key, parameter in module.named_parameters(recurse=False)
        if parameter.numel() and parameter.data_ptr() in own
    ]
    if tied:
        fact = f"`{head.name}` shares its weights with {', '.join(tied)}, which keeps the old ones"
        warn("with_head", f"{fact}; the copy separates them.")


def _with_appended_head(encoder: nn.Module, weight: Tensor, bias: Tensor | None) -> EncoderClassifier:
    """A classifier of an encoder and a linear layer with these weights."""
    layer = nn.Linear(weight.shape[1], len(weight), device="meta")  # draws no random numbers
    like = next(encoder.parameters(), weight)
    layer.weight = nn.Parameter(weight.to(like, copy=True))
    layer.bias = nn.Parameter((weight.new_zeros(len(weight)) if bias is None else bias).to(like, copy=True))
    return EncoderClassifier(cast("PooledEncoder", encoder), layer).train(encoder.training)


def _replace_weights(layer: HeadLayer, weight: Tensor, bias: Tensor | None) -> None:
    """Replace the parameters of a layer, so that its class, hooks and mode stay."""
    old = layer.weight
    layer.weight = _parameter(weight.reshape(len(weight), *old.shape[1:]), old)
    if bias is None and layer.bias is not None:
        bias = weight.new_zeros(len(weight))
    if bias is not None:
        layer.bias = _parameter(bias, old if layer.bias is None else layer.bias)
    if isinstance(layer, nn.Linear):
        layer.out_features = len(weight)
    else:
        layer.out_channels = len(weight)


def _parameter(value: Tensor, like: Tensor) -> nn.Parameter:
    copied = value.detach().to(like, copy=True, memory_format=torch.contiguous_format)
    return nn.Parameter(copied, requires_grad=like.requires_grad)


def _replace_class_counts(network: nn.Module, head: Head, classes: int) -> None:
    """Set the number of classes in the modules that contain the head and in their `config`."""
    path = head.name.split(".")
    for depth in range(len(path) if head.name else 0):
        module = network.get_submodule(".".join(path[:depth]))
        config = getattr(module, "config", None)
        owners = [module] if config is None or isinstance(config, dict | type) else [module, config]
        for owner in owners:
            for count in _CLASS_COUNTS:
                value = getattr(owner, count, None)
                if type(value) is int and value == head.out_features:
                    setattr(owner, count, classes)


# The methods of an adapted classifier


class BeliefMixin(nn.Module):
    """Methods that `add_belief` adds to a classifier.

    Inputs are batches as `call_model` accepts them: a mapping is passed by keyword, a tuple or list by
    position. Logits are computed in eval mode and without gradients.
    """

    has_belief: bool = True
    """Whether the logits are log-concentrations; not where a softmax head was delivered."""

    def belief(self, x: Any, *, scale: float = 1.0) -> Belief:
        """The belief about the classes of a batch."""
        if not self.has_belief:
            fact = "`model` must have a belief matching head, got one whose logits are read by softmax"
            raise fail("belief", f"{fact}; use `predict`, or adapt with `choose` belief_matching.")
        return Belief(_logits(self, x, "belief"), scale=scale)

    def predict(self, x: Any) -> Prediction:
        """Probabilities of a batch in double precision, and its belief if there is one."""
        logits = _logits(self, x, "predict")
        logits = logits.to(work_dtype(logits.device))
        if not self.has_belief:
            return Prediction(probs=logits.softmax(1), logits=logits)
        belief = Belief(logits)
        return Prediction(probs=belief.probs, belief=belief)

    def abstain(
        self,
        x: Any,
        threshold: float | None = None,
        *,
        measure: Measure = "confidence",
        risk: float | None = None,
        calibration: tuple[Any, Any] | None = None,
        delta: float | None = None,
    ) -> Tensor:
        """Whether to withhold the prediction, for each example of a batch; see `Belief.abstain`.

        Args:
            x: A batch.
            threshold: Value of the measure.
            measure: Measure of uncertainty. Without a belief, "confidence" or "entropy".
            risk: Error rate that the answers must not exceed, in place of `threshold`.
            calibration: A held-out batch and its class ids, with `risk`. A Belief may take the place of the
                batch: `Belief.cat` joins those of several.
            delta: Probability with which the guarantee of `risk` may fail, 0.05 by default.
        """
        if not self.has_belief:
            require_choice("abstain", "measure", measure, _MEASURES_OF_PROBS)
        rule = AbstentionRule("abstain", threshold, measure, risk, calibration, delta)
        return rule.abstains(Belief(_logits(self, x, "abstain")), partial(_held_out, self))


def _held_out(model: nn.Module, function: str, inputs: Any, targets: Any) -> tuple[Belief, Any]:
    """The belief about a held-out batch, and its class ids."""
    if isinstance(targets, np.ndarray) and targets.dtype.kind in "iu":
        targets = torch.from_numpy(targets.astype(np.int64))
    if isinstance(inputs, Belief):
        return inputs, targets
    with naming_arguments(function, x="calibration"):
        return Belief(_logits(model, inputs, function)), targets


def _logits(model: nn.Module, x: Any, caller: str) -> Tensor:
    if isinstance(x, np.ndarray):
        own = next(model.parameters())
        x = torch.from_numpy(x).to(own.device, own.dtype if x.dtype.kind == "f" else None)
    with evaluating(model), input_errors("x", x, caller=caller):
        return logits_of(call_model(model, x), caller=caller)


Mixin = TypeVar("Mixin", bound=BeliefMixin)


def add_belief(network: nn.Module, mixin: type[Mixin] = BeliefMixin, *, has_belief: bool = True) -> Mixin:
    """Change the class of a network, in place, to a subclass of it that has the methods of a mixin.

    Methods and layers of the network with the name of such a method keep it, except `belief`.

    Args:
        network: Classifier. One that has a mixin loses that.
        mixin: `BeliefMixin` or a subclass of it.
        has_belief: Whether the logits are log-concentrations, rather than read by softmax.

    Returns:
        The network.
    """
    own = vars(type(network)).get("_made_of", (type(network),))[0]
    parts = {*network._modules, *network._parameters, *network._buffers}
    if "belief" in parts:
        raise fail("add_belief", f"`model` ({own.__name__}) must not have a part named `belief`; rename it.")
    hidden = frozenset(name for name in parts if hasattr(mixin, name) and not hasattr(nn.Module, name))
    network.__class__ = _class_with(own, mixin, hidden)  # pyright: ignore[reportAttributeAccessIssue]
    made = cast("Mixin", network)
    made.has_belief = has_belief
    return made


@cache
def _class_with(own: type[nn.Module], mixin: type[BeliefMixin], hidden: frozenset[str]) -> type[nn.Module]:
    """A subclass of both: the attributes of the network's own class come first.

    Args:
        own: Class of the network.
        mixin: Class whose methods are added.
        hidden: Names of layers that methods of the mixin would hide, since modules are looked up last.
    """
    name = own.__name__ + "WithBelief"
    parts = {part: property(lambda self, part=part: nn.Module.__getattr__(self, part)) for part in hidden}
    attributes = {
        "_made_of": (own, mixin, hidden),
        "__module__": own.__module__,
        "__qualname__": own.__qualname__ + "WithBelief",
        "__doc__": own.__doc__,
        "__reduce_ex__": _reduce,
        "__jit_unused_properties__": [*getattr(own, "__jit_unused_properties__", ()), *hidden],
        "belief": mixin.belief,
    }
    bases: Any = (own, mixin)
    return type(name, bases, attributes | parts)


def _reduce(self: Any, protocol: Any) -> Any:
    """How to copy and pickle the network: its class is made again, since no module holds it.

    The attribute `adaptation` is left out: it holds the features of all data.
    """
    made_of = type(self)._made_of
    reduced = made_of[0].__reduce_ex__(self, protocol)
    if reduced[0] is not getattr(copyreg, "__newobj__", None):
        return reduced
    state = {name: value for name, value in reduced[2].items() if name != "adaptation"}
    return _new_instance, made_of, state, *reduced[3:]


def _new_instance(own: type[nn.Module], mixin: type[BeliefMixin], hidden: frozenset[str]) -> nn.Module:
    made = _class_with(own, mixin, hidden)
    return made.__new__(made)
