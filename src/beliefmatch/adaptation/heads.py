"""The head of a classifier, its last layer: how to find it, and how to compute the features it is given.

A layer is a head if the network returns ``weight @ features + bias`` with any weights in it, where the
features are those that `Backbone` computes. `find_head` tests this with random weights; it does not guess
from names or positions. A head that is fitted to the features gives the same logits when it is put in place.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from traceback import walk_tb
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from beliefmatch._errors import ArgumentError
from beliefmatch._utils import nearest, reason_of
from beliefmatch._validate import describe, fail
from beliefmatch.models.encoder import PooledEncoder

__all__ = [
    "Backbone",
    "Head",
    "HeadLayer",
    "call_model",
    "deep_copy",
    "evaluating",
    "find_head",
    "head_layer",
    "head_weights",
    "input_errors",
    "logits_of",
    "obstacle",
    "running",
    "unwrapped",
]

HeadPooling = Literal["none", "network", "mean"]
HeadLayer = nn.Linear | nn.Conv2d
_APPENDED = "head"  # name of the linear layer in `EncoderClassifier`


@dataclass(frozen=True)
class Head:
    """Name and shape of the layer that computes the logits."""

    name: str
    """Name of the layer in the network, as in `named_modules`, without the prefixes of wrappers."""
    kind: Literal["linear", "conv1x1"]
    in_features: int
    out_features: int
    """Number of classes; 0 for a `PooledEncoder`, to which a head is yet to be appended."""
    pooling: HeadPooling = "none"
    """How the inputs of the layer become one vector for each example. "none": they already are. "network": by
    what the network does to the outputs of the layer, such as selecting a token. "mean": by the mean over all
    positions, for networks that can pool no other number of features than that of their classes."""

    def __str__(self) -> str:
        return f"`{self.name}` ({self.kind}, {self.in_features} -> {self.out_features})"


def find_head(model: nn.Module, batch: Any, *, name: str | None = None) -> Head:
    """Find the linear layer or 1x1 convolution whose output a classifier returns.

    The batch, for which a few rows suffice, runs a few times through a copy of the network that shares its
    weights, in eval mode and without gradients. Layers are tested in the reverse order of their use.

    Args:
        model: Classifier that returns logits (N, K) as `logits_of` accepts them; or a `PooledEncoder`. It may
            be wrapped by DataParallel, DistributedDataParallel or torch.compile.
        batch: Inputs of the model, as `call_model` accepts them.
        name: Name of the layer. It must pass the same test.

    Returns:
        The head. For a `PooledEncoder` it is the one that `with_head` appends, with 0 outputs as yet.

    Raises:
        ValueError: No layer passes the test; the message gives the reason.
    """
    network = _require_network(model)
    if isinstance(network, PooledEncoder):
        return _appended_head(network, batch, name)
    run = _traced_run(_shared_copy(network), batch)
    tested = [head for head in reversed(run.layers) if head.out_features == run.logits.shape[1]]
    if name is not None:
        tested = [_named_layer(network, run, name)]
    for head in tested:
        if obstacle(network, head) is None:
            for pooling in ("none", "network", "mean"):
                found = replace(head, pooling=pooling)
                if _is_head(network, found, batch, run.inputs[head]):
                    return found
    raise fail("find_head", _reason(network, run, tested, name))


class Backbone(nn.Module):
    """A network up to its head: computes the features (N, F) of a batch, which its head multiplies.

    It runs a copy of the network in eval mode that shares parameters and buffers with the model. The copy
    needs no hooks, so that it can be compiled.

    Args:
        model: Classifier or `PooledEncoder`.
        head: Head of the model, from `find_head`.
    """

    def __init__(self, model: nn.Module, head: Head) -> None:
        super().__init__()
        self.head = head
        self.network = _shared_copy(unwrapped(model))
        self._inputs: list[Tensor] = []
        if not isinstance(self.network, PooledEncoder):
            layer: Any = head_layer(self.network, head, caller="Backbone")
            layer.__class__ = _recording(type(layer))
            layer.recorded, layer.passes_on = self._inputs, head.pooling == "network"
        self.eval()

    @torch.no_grad()
    def forward(self, batch: Any) -> Tensor:
        """Features (N, F), one row for each example of a batch."""
        self._inputs.clear()
        returned = call_model(self.network, batch)
        if isinstance(self.network, PooledEncoder):
            return returned
        if self.head.pooling == "network":
            return logits_of(returned, caller="adapt").clone()
        return self.recorded_features()

    def recorded_features(self) -> Tensor:
        """Features (N, F) of the inputs that the head was given last."""
        if len(self._inputs) == 1 and self._inputs[0].dim() > 1:
            vectors = _positions(self._inputs[0], self.head)
            if self.head.pooling == "mean":
                return vectors.mean(1)
            if vectors.shape[1] == 1:
                return vectors[:, 0]
        expected = f"one vector of {self.head.in_features} numbers for each example"
        shapes = [tuple(tensor.shape) for tensor in self._inputs]
        raise fail("adapt", f"`{self.head.name}` must be given {expected}, got the shapes {shapes}.")


def head_layer(network: nn.Module, head: Head, *, caller: str) -> HeadLayer:
    """The module of a head. The network must be `unwrapped`."""
    modules = dict(network.named_modules(remove_duplicate=False))
    found = _as_head(head.name, modules.get(head.name))
    if found is None or (found.kind, found.in_features) != (head.kind, head.in_features):
        raise fail(caller, f"`head` must be a layer of `model`, which has no layer {head}.")
    layer = modules[head.name]
    assert isinstance(layer, HeadLayer)
    return layer


def head_weights(model: nn.Module, head: Head) -> tuple[Tensor, Tensor] | None:
    """Copies of weight (K, F) and bias (K,) on the CPU in float32; a layer without bias has zeros.

    None for a `PooledEncoder`, which has no head.
    """
    network = unwrapped(model)
    if isinstance(network, PooledEncoder):
        return None
    layer = head_layer(network, head, caller="head_weights")
    bias = layer.weight.new_zeros(head.out_features) if layer.bias is None else layer.bias.detach()
    return layer.weight.detach().flatten(1).float().cpu().clone(), bias.float().cpu().clone()


# Calling somebody else's classifier


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


@contextmanager
def running(model: nn.Module, device: torch.device) -> Iterator[torch.device]:
    """`evaluating` with the model on a device, which is yielded; the model is moved back afterwards."""
    device = torch.empty(0, device=device).device  # with its number
    homes = {tensor.device for tensor in (*model.parameters(), *model.buffers())} or {device}
    if len(homes) > 1:
        listed = ", ".join(sorted(map(str, homes)))
        raise fail("adapt", f"`model` must be on one device, got {listed}.")
    (home,) = homes
    with evaluating(model):
        try:
            if home != device:
                model.to(device)
            yield device
        finally:
            if home != device:
                model.to(home)


@contextmanager
def input_errors(argument: str, batch: Any, *, caller: str = "adapt") -> Iterator[None]:
    """Turn what a network raises for inputs that it cannot take into one line that names their argument.

    The line also says what the layer that failed takes, if that is known.
    """
    try:
        yield
    except (torch.OutOfMemoryError, ArgumentError):
        raise
    except (RuntimeError, AssertionError, IndexError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        reason = reason_of(error, typed=True, limit=200)
        fact = f"`{argument}` must be inputs that `model` can take{_expected_width(error)}"
        raise fail(caller, f"{fact}, got {_describe_batch(batch)} ({reason}).", kind) from error


def _describe_batch(batch: Any) -> str:
    """A batch by the types and shapes of its tensors."""
    if isinstance(batch, Mapping):
        return ", ".join(f"{name} {_describe_batch(one)}" for name, one in batch.items())
    if isinstance(batch, tuple | list) and any(isinstance(one, Tensor) for one in batch):
        return ", ".join(map(_describe_batch, batch))
    return describe(batch)


def _expected_width(error: BaseException) -> str:
    """What the layer that failed takes, such as ", whose Linear takes 64 features"; empty if unknown."""
    frames = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    layers = [layer for layer in frames if isinstance(layer, nn.Module)]
    for name, words in (("in_features", "features"), ("in_channels", "channels")):
        if layers and isinstance(width := getattr(layers[-1], name, None), int):
            dtype = next((f" of {p.dtype}" for p in layers[-1].parameters()), "").replace("torch.", "")
            return f", whose {type(layers[-1]).__name__} takes {width} {words}{dtype}"
    return ""


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


# Running a copy of the network


def _shared_copy(network: nn.Module) -> nn.Module:
    """A copy that shares parameters and buffers with the network, also after these were moved or replaced."""
    shared = [*network.parameters(), *network.buffers()]
    for module in network.modules():
        shared += [module._parameters, module._buffers]
        shared += [value for value in vars(module).values() if isinstance(value, Tensor)]
    return deep_copy(network, {id(each): each for each in shared}, caller="find_head")


@cache
def _recording(layer_class: type[HeadLayer]) -> type[HeadLayer]:
    """The class of a layer that records its inputs, and may pass them on instead of multiplying them."""

    def forward(self: Any, input: Tensor) -> Tensor:
        self.recorded.append(input.clone())  # the network may change the tensor afterwards
        return input if self.passes_on else layer_class.forward(self, input)

    return cast("type[HeadLayer]", type(layer_class.__name__, (layer_class,), {"forward": forward}))


class _TracedRun(NamedTuple):
    """One batch through a network: the logits, and the last inputs of linear layers, in order of use."""

    logits: Tensor
    inputs: dict[Head, Tensor]

    @property
    def layers(self) -> list[Head]:
        return list(self.inputs)


def _traced_run(network: nn.Module, batch: Any) -> _TracedRun:
    """Run a batch through a copy of a network. The copy is of no further use: it keeps the hooks."""
    last_inputs: dict[Head, Tensor] = {}

    def trace(head: Head) -> Callable[..., None]:
        def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            last_inputs.pop(head, None)
            last_inputs[head] = args[0] if args else kwargs["input"]

        return keep

    for name, module in network.named_modules():
        if head := _as_head(name, module):
            module.register_forward_pre_hook(trace(head), with_kwargs=True)
    with torch.no_grad():
        logits = logits_of(call_model(network.eval(), batch), caller="find_head")
    if len(logits) == 0:
        raise fail("find_head", "`batch` must hold at least one example, got none.")
    if not logits.isfinite().all():
        raise fail("find_head", "`batch` must give finite logits, got NaN or infinity.")
    return _TracedRun(logits, last_inputs)


def _is_head(network: nn.Module, head: Head, batch: Any, inputs: Tensor) -> bool:
    """Whether the network returns ``weight @ features + bias`` with random weights in the layer."""
    passes_on = head.pooling == "network"
    trial = Backbone(network, replace(head, pooling="none") if passes_on else head)
    layer = head_layer(trial.network, head, caller="find_head")
    weight, bias = _random_weights(layer, inputs)
    own = {"weight": weight.reshape(layer.weight.shape), "bias": None if layer.bias is None else bias}
    layer._parameters = {name: value if value is None else nn.Parameter(value) for name, value in own.items()}
    with torch.no_grad():
        logits = logits_of(call_model(trial.network, batch), caller="find_head")
    try:
        features = Backbone(network, head)(batch) if passes_on else trial.recorded_features()
    except Exception:  # the user's network, given features for logits, may raise anything
        return False
    if features.dim() != 2 or features.shape[1] != head.in_features:
        return False
    expected = features.cpu().double() @ weight.cpu().double().T + bias.cpu().double()
    if logits.shape != expected.shape:
        return False
    error = (logits.cpu().double() - expected).abs().max()
    return bool(error <= _tolerance(logits, weight) * expected.abs().max())


def _random_weights(layer: HeadLayer, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (K, F) and bias (K,) for logits of about 4, which a clamp or an activation would change."""
    classes, width = layer.weight.flatten(1).shape
    generator = torch.Generator("cpu").manual_seed(width)
    mean_square = inputs.float().square().mean().clamp(min=1e-12).cpu()
    drawn = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    weight = torch.randn(classes, width, **drawn) * 4 / (width * mean_square).sqrt()
    bias = torch.randn(classes, **drawn) * (layer.bias is not None)
    return weight.to(layer.weight), bias.to(layer.weight)


def _tolerance(logits: Tensor, weight: Tensor) -> float:
    """Relative error of logits that rounding explains."""
    coarsest = max((logits.dtype, weight.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    if torch.is_autocast_enabled(logits.device.type) or coarsest == torch.bfloat16:
        return 5e-2
    if coarsest == torch.float32:  # products may keep fewer bits, on other devices or by a setting
        precision = "high" if logits.device.type != "cpu" else torch.get_float32_matmul_precision()
        return {"highest": 1e-4, "high": 2e-3}.get(precision, 5e-2)
    return 1e-2 if coarsest == torch.float16 else 1e-9


def _positions(inputs: Tensor, head: Head) -> Tensor:
    """Inputs of a layer as (N, positions, F)."""
    vectors = inputs.movedim(1, -1) if head.kind == "conv1x1" else inputs
    return vectors.reshape(len(vectors), -1, vectors.shape[-1])


def _as_head(name: str, module: nn.Module | None) -> Head | None:
    """A module as a possible head; None for anything but a linear layer and a 1x1 convolution."""
    if isinstance(module, nn.Linear):
        return Head(name, "linear", module.in_features, module.out_features)
    if isinstance(module, nn.Conv2d) and module.groups == 1:
        is_padded = not isinstance(module.padding, str) and any(module.padding)  # "same" and "valid" add none
        if (*module.kernel_size, *module.stride) == (1, 1, 1, 1) and not is_padded:
            return Head(name, "conv1x1", module.in_channels, module.out_channels)
    return None


def _appended_head(encoder: PooledEncoder, batch: Any, name: str | None) -> Head:
    if name not in (None, _APPENDED):
        raise fail("find_head", f"`name` must be {_APPENDED!r} for an encoder without head, got {name!r}.")
    with evaluating(encoder):
        return Head(_APPENDED, "linear", call_model(encoder, batch).shape[1], 0)


def _require_network(model: Any) -> nn.Module:
    """The network inside of wrappers; it must be a module in Python whose parameters have shapes."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        expected = "an nn.Module that Python runs"
        raise fail("find_head", f"`model` must be {expected}, got a {type(model).__name__}.", TypeError)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise fail("find_head", f"`model` must have run once, but {lazy[0]} has no shape yet.")
    return unwrapped(model)


def _named_layer(network: nn.Module, run: _TracedRun, name: str) -> Head:
    """The layer that a user named; it must be a linear layer that the batch runs through."""
    modules = dict(network.named_modules(remove_duplicate=False))
    inner = name
    while inner not in modules and inner.startswith(("module.", "_orig_mod.")):
        inner = inner.partition(".")[2]
    layers = f"layers: {_format_layers(run.layers)}"
    if inner not in modules:
        close = nearest(inner, [head.name for head in run.layers]) or nearest(inner, list(modules))
        hint = f"did you mean `{close}`?" if close else f"{layers}."
        raise fail("find_head", f"`name` must be the name of a module, got {name!r}; {hint}")
    head = _as_head(inner, modules[inner])
    if head is None:
        got = f"got `{name}`, a {type(modules[inner]).__name__}"
        raise fail("find_head", f"`name` must be a linear layer or a 1x1 convolution, {got}; {layers}.")
    used = [other for other in run.layers if modules[other.name] is modules[inner]]
    if not used:
        raise fail("find_head", f"`name` must be a layer that the batch runs through, got {head}; {layers}.")
    return used[0]


# Why there is no head


def obstacle(network: nn.Module, head: Head) -> str | None:
    """The reason why the weight of a layer cannot be replaced; None if it can."""
    layer = head_layer(network, head, caller="find_head")
    if not isinstance(layer._parameters.get("weight"), nn.Parameter):
        remedy = "remove it first (remove_parametrizations, remove_weight_norm)"
        return f"the weight of {head} is computed by a parametrization such as weight_norm; {remedy}"
    if not layer.weight.is_floating_point():
        dtype = str(layer.weight.dtype).removeprefix("torch.")
        return f"the weight of {head} is quantized ({dtype}); convert the model to floating point"
    remedy = "merge them into its weight first"
    parent = network.get_submodule(head.name.rpartition(".")[0])
    parameters = [name for name, _ in layer.named_parameters()]
    around = [*(name for name, child in parent.named_children() if child is not layer), *parameters]
    if adapters := [name for name in around if name.startswith("lora_")]:
        return f"{head} is changed by adapters ({', '.join(adapters)}); {remedy}"
    if others := sorted({*parameters} - {"weight", "bias"}):
        return f"{head} has other parameters than weight and bias ({', '.join(others)}); {remedy}"
    return None


def _reason(network: nn.Module, run: _TracedRun, tested: Sequence[Head], name: str | None) -> str:
    """The error for a network without head: expected, and the first explanation that fits."""
    expected = "`model` must return the output of a linear layer or 1x1 convolution"
    if name is not None:
        expected = f"`name` must be the layer whose output the model returns, got {name!r}"
    reasons = [obstacle(network, head) for head in tested if ".lora_" not in head.name]
    outputs = {head: _outputs(network, head, run) for head in tested}
    outputs = {head: output for head, output in outputs.items() if output is not None}
    logits = run.logits.cpu().double()
    reasons += [_combined(outputs, logits)]
    reasons += [_transformed(head, output, logits) for head, output in outputs.items()]
    if reason := next(filter(None, reasons), None):
        return f"{expected}, but {reason}."
    layers = f"layers, last first: {_format_layers(run.layers)}"
    fact = "no layer returns the logits" if name is None else "it does not return the logits"
    return f"{expected}, but {fact} {tuple(logits.shape)}; {layers}."


def _format_layers(layers: Sequence[Head], shown: int = 6) -> str:
    """The layers used last, the last first, and the number of further ones."""
    listed = ", ".join(str(head) for head in reversed(layers[-shown:]))
    more = f" and {len(layers) - shown} more before" if len(layers) > shown else ""
    return listed + more or "none was used"


def _outputs(network: nn.Module, head: Head, run: _TracedRun) -> Tensor | None:
    """The product of a layer's weight with its last input at each position, (N, positions, K)."""
    layer, inputs = head_layer(network, head, caller="find_head"), run.inputs[head]
    weight = layer._parameters.get("weight")
    if weight is None or not weight.is_floating_point() or inputs.dim() < 2:
        return None
    bias = None if layer.bias is None else layer.bias.detach().cpu().double()
    return functional.linear(
        _positions(inputs, head).cpu().double(), weight.detach().flatten(1).cpu().double(), bias
    )


def _combined(outputs: Mapping[Head, Tensor], logits: Tensor) -> str | None:
    """Whether the logits are the mean or the sum of the outputs of two layers."""
    for other, one in combinations(outputs, 2):
        total = outputs[one].mean(1) + outputs[other].mean(1)
        for word, both in (("mean", total / 2), ("sum", total)):
            if _close(both, logits):
                return f"the logits are the {word} of {one} and {other}; return those of one layer"
    return None


_TRANSFORMATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "log_softmax": lambda output: output.log_softmax(-1),
    "softmax": lambda output: output.softmax(-1),
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "normalize": lambda output: functional.normalize(output, dim=-1),
}


def _transformed(head: Head, output: Tensor, logits: Tensor) -> str | None:
    """The common operation that turns the output of a layer, (N, positions, K), into the logits."""
    mean = output.mean(1)
    if _close(mean, logits):
        return f"{head} does not return its weight times its input plus its bias, or the result is clamped"
    for name, transform in _TRANSFORMATIONS.items():
        if _close(transform(mean), logits) or _close(transform(output).mean(1), logits):
            return f"the logits are {name} of the output of {head}; return the output itself"
    if mean.shape == logits.shape and mean.any():
        factor = float((mean * logits).sum() / mean.square().sum())
        if factor != 0 and _close(mean * factor, logits):
            remedy = "multiply its weight and bias instead"
            return f"the logits are the output of {head} multiplied by {factor:.4g}; {remedy}"
    if _close(output.amax(1), logits):
        return f"the logits are the maximum of the output of {head} over a map; take the mean instead"
    return None


def _close(values: Tensor, logits: Tensor) -> bool:
    if values.shape != logits.shape:
        return False
    return bool((values - logits).abs().max() <= 1e-3 * logits.abs().max().clamp(min=1e-9))
