"""Export of a classifier to one file: the network, its probabilities and the measures of its belief.

    beliefmatch.export(model, "model.onnx", images)

The file needs neither beliefmatch nor, as ONNX, torch. Its outputs are computed in float32 by exp, log and
arithmetic alone: ONNX has no digamma function, and onnxruntime's sigmoid is constant below −18.
"""

from __future__ import annotations

import io
import json
import logging
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from beliefmatch import _special as special
from beliefmatch import dirichlet, kernels
from beliefmatch._config import Record, RecordPart
from beliefmatch._environment import needs, versions
from beliefmatch._errors import ArgumentError
from beliefmatch._files import atomic_write, directory_in_use, refuse_url
from beliefmatch._rows import split
from beliefmatch._utils import reason_of, require_name
from beliefmatch._validate import describe, fail, naming_arguments, require_choice, require_index
from beliefmatch.adaptation.heads import call_model, deep_copy, logits_of, unwrapped
from beliefmatch.adaptation.surgery import BeliefMixin, EnsembleLinear
from beliefmatch.belief import Belief
from beliefmatch.data.predictions import are_distributions
from beliefmatch.metrics._readings import BINARY

__all__ = [
    "FORMATS",
    "OUTPUTS",
    "ExportRecord",
    "ExportedFile",
    "Format",
    "PortableFunctions",
    "TensorSpec",
    "export",
]

Format = Literal["onnx", "torchscript", "exported"]
Reads = Literal["belief", "softmax"]

FORMATS: dict[str, str] = {"onnx": ".onnx", "exported": ".pt2", "torchscript": ".pt"}
"""The ending of a file of each format."""

METADATA = "beliefmatch"
"""Key of the `ExportRecord` in the metadata of an ONNX file."""
METADATA_FILE = "beliefmatch.json"
"""Its name among the extra files of the other two formats."""

_CALLER = "export"
_LARGEST_ONNX = 2**31 - 2**20  # bytes of parameters: protobuf ends at 2 GiB
_TRACED_ROWS = 3
_BATCH_SIZES = (_TRACED_ROWS, 1, 5)
_LOGIT_TOLERANCE = 1e-4
"""Allowed difference of logits, relative to the largest: rounding in another order of operations."""

_SUM_TOLERANCE = 1e-4
"""Distance from 1 of the sum of a softmax in float32. One row of two standard normal logits comes as near by
chance once in 50,000 times."""


class _Output(NamedTuple):
    """What an exported file can compute of the logits."""

    compute: Callable[[Tensor], Tensor]
    description: str
    needs_belief: bool = False
    tolerance_floor: float = 1e-2
    """The size of a value below which differences are absolute."""


_IN_FLOAT32 = {"dim": 1, "dtype": torch.float32}

OUTPUTS: dict[str, _Output] = {
    "logits": _Output(lambda z: z, "Logits of the classes; log-concentrations ln α of a belief.", False, 1.0),
    "probs": _Output(lambda z: z.softmax(1), "Probabilities of the classes, which sum to one."),
    "predictions": _Output(lambda z: z.argmax(1), "Id of the most probable class."),
    "confidence": _Output(lambda z: z.softmax(1).amax(1), "Probability of the most probable class."),
    "entropy": _Output(
        lambda z: dirichlet.entropy(z, **_IN_FLOAT32),
        "Entropy of the probabilities in nats: total uncertainty.",
    ),
    "expected_entropy": _Output(
        lambda z: dirichlet.expected_entropy(z, **_IN_FLOAT32),
        "Expected entropy under the belief in nats: what would remain if the probabilities were known.",
        needs_belief=True,
    ),
    "mutual_information": _Output(
        lambda z: dirichlet.mutual_information(z, **_IN_FLOAT32),
        "Entropy less expected entropy in nats: uncertainty about the probabilities, a score for OOD inputs.",
        needs_belief=True,
        tolerance_floor=1e-6,
    ),
    "differential_entropy": _Output(
        lambda z: dirichlet.differential_entropy(z, **_IN_FLOAT32),
        "Entropy of the density of the belief.",
        needs_belief=True,
        tolerance_floor=1.0,
    ),
    "precision": _Output(
        lambda z: special.exp_saturating(_log_precision(z)),
        "Sum α₀ of the concentrations; higher is more certain.",
        needs_belief=True,
        tolerance_floor=0.0,
    ),
    "log_precision": _Output(
        lambda z: _log_precision(z), "Logarithm of the precision.", needs_belief=True, tolerance_floor=1.0
    ),
    "variance": _Output(
        lambda z: dirichlet.variance(z, **_IN_FLOAT32),
        "Variance of the probability of each class under the belief.",
        needs_belief=True,
    ),
}
"""Outputs by name. They are the properties and methods of `Belief` with the same names."""

_DEFAULT_OUTPUTS: dict[Reads, tuple[str, ...]] = {
    "belief": ("probs", "mutual_information", "precision"),
    "softmax": ("probs", "entropy"),
}


class TensorSpec(RecordPart, frozen=True, kw_only=True):
    """An input or output of an exported file.

    Args:
        name: Its name in the file.
        dtype: Its type, in the words of numpy.
        shape: Its sizes; a dimension that may vary has a name.
        description: What it is.
    """

    name: str
    dtype: str
    shape: list[int | str]
    description: str = ""


class ExportRecord(Record, frozen=True, kw_only=True):
    """What an exported file says about itself, as JSON in its metadata.

    Args:
        inputs: In the order in which the file takes them.
        outputs: In the order in which the file returns them.
        reads: Whether the logits are log-concentrations of a belief, or read by softmax alone.
        class_names: Names of the classes by id, where they are known.
        preprocessing: What is done to an input before it enters the file, where it is known.
        versions: Versions of the software that wrote the file.
    """

    format: Format
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    reads: Reads
    class_names: list[str] | None = None
    preprocessing: dict[str, Any] | None = None
    versions: dict[str, str]
    schema: str = "beliefmatch.export/1"


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written, and how it was verified before.

    Args:
        path: The file.
        record: What the file says about itself.
        batch_sizes: Sizes of the batches on which the file was compared with the network.
        differences: Largest difference of each output from the network's, relative where values exceed 1.
    """

    path: Path
    record: ExportRecord
    batch_sizes: tuple[int, ...]
    differences: dict[str, float]


def export(
    model: nn.Module,
    path: str | Path,
    example_inputs: Any,
    *,
    format: Format | None = None,
    outputs: Sequence[str] | None = None,
    has_belief: bool | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    dynamic: Mapping[int, str] | None = None,
    opset: int | None = None,
    overwrite: bool = False,
) -> ExportedFile:
    """Write a classifier, its probabilities and the measures of its belief to one file.

    The file is loaded again and compared with the network on batches of several sizes before it takes its
    name; where a number differs, nothing is written. ONNX needs ``pip install "beliefmatch[export]"``.

    Args:
        model: Classifier that returns logits (N, K), in any form that `beliefmatch.adapt` accepts, or the
            result of `adapt`. It is not changed: a copy is exported, in eval mode and on the CPU.
        path: File to write.
        example_inputs: A batch that the model accepts: a tensor, a tuple of tensors that are passed by
            position, or a mapping of tensors that are passed by keyword. Its shapes and types enter the file.
        format: "onnx"; "exported", for `torch.export.load`; or "torchscript", for `torch.jit.load`. By
            default chosen by the ending of `path`: .onnx, .pt2 or .pt.
        outputs: Names of `OUTPUTS`, in the order of the file. By default probabilities, mutual information
            and precision; probabilities and entropy for a model without a belief.
        has_belief: Whether the logits are log-concentrations of a belief, rather than read by softmax alone.
            By default what an adapted model says of itself, and True for others, as for `Belief(logits)`.
        class_names: Names of the classes by id, for the metadata.
        preprocessing: What has to be done to an input first, any JSON values, for the metadata.
        dynamic: Names of the dimensions of the inputs that may vary, by index; ``{0: "batch"}`` by default.
        opset: Version of the operator set of ONNX; that of the installed exporter by default. One that the
            exporter cannot write is an error.
        overwrite: Whether an existing file is replaced.

    Returns:
        The path, the metadata of the file and the largest differences that were found.

    Raises:
        ValueError: an argument is wrong, the network cannot be exported, or the file computes other numbers.

    Example:
        >>> import tempfile, torch, beliefmatch
        >>> model = torch.nn.Linear(4, 3)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     made = beliefmatch.export(model, f"{place}/model.pt2", torch.randn(2, 4), outputs=["probs"])
        ...     program = torch.export.load(made.path).module()
        >>> torch.allclose(program(torch.ones(7, 4))["probs"], model(torch.ones(7, 4)).softmax(1))
        True
    """
    if not isinstance(model, nn.Module):
        raise fail(_CALLER, f"`model` must be a torch.nn.Module, got {describe(model)}.", TypeError)
    if has_belief is None:
        has_belief = model.has_belief if isinstance(model, BeliefMixin) else True
    reads: Reads = "belief" if has_belief else "softmax"
    chosen = _checked_outputs(outputs, reads)
    kind = _checked_format(format, path)
    place = _checked_path(path, overwrite)
    _checked_opset(opset, kind)
    names, tensors = _inputs(example_inputs)
    dynamic = _checked_dynamic(dynamic, tensors)
    _require_packages(kind)
    _require_known_opset(opset)
    network = _copied(model, kind)
    module = _Exportable(
        network, chosen, list(example_inputs) if isinstance(example_inputs, Mapping) else None
    )
    batches = _batches(tensors, dynamic)
    record = ExportRecord(
        format=kind,
        inputs=[_input_spec(name, tensor, dynamic) for name, tensor in zip(names, tensors, strict=True)],
        outputs=_output_specs(module, batches[0], chosen, dynamic),
        reads=reads,
        class_names=_checked_class_names(class_names, module, batches[0]),
        preprocessing=_checked_preprocessing(preprocessing),
        versions=versions("beliefmatch", "torch", *(("onnx",) if kind == "onnx" else ())),
    )
    _require_numbers(module, tensors)
    _require_logits(module, tensors)
    with _directory_in_use(place):  # proved before the work
        pass
    content = _content(module, batches[0], record, dynamic, opset)
    differences = _verify(_runner(content, record), module, batches, chosen)
    with _directory_in_use(place):
        atomic_write(place, content)
    return ExportedFile(place, record, tuple(len(batch[0]) for batch in batches), differences)


# Arguments


def _checked_outputs(outputs: Sequence[str] | None, reads: Reads) -> tuple[str, ...]:
    if outputs is None:
        return _DEFAULT_OUTPUTS[reads]
    is_list = isinstance(outputs, Collection) and not isinstance(outputs, str)  # a generator is read once
    if not is_list or not all(isinstance(name, str) for name in outputs):
        raise fail(_CALLER, f"`outputs` must be a list of names, got {describe(outputs)}.", TypeError)
    if not outputs:
        raise fail(_CALLER, f"`outputs` must name at least one of {', '.join(OUTPUTS)}, got none.")
    for name in outputs:
        require_name(_CALLER, "outputs", name, OUTPUTS)
        if OUTPUTS[name].needs_belief and reads == "softmax":
            valid = ", ".join(name for name, one in OUTPUTS.items() if not one.needs_belief)
            fact = f"must be among {valid} for a network that is read by softmax and has no belief"
            raise fail(_CALLER, f"`outputs` {fact}, got {name!r}.")
    if len(set(outputs)) < len(outputs):
        raise fail(_CALLER, f"`outputs` must name each output once, got {', '.join(outputs)}.")
    return tuple(outputs)


def _checked_format(format: str | None, path: str | Path) -> Format:
    if not isinstance(path, str | PathLike):
        raise fail(_CALLER, f"`path` must be the path of a file, got {describe(path)}.", TypeError)
    suffix = Path(path).suffix.lower()
    by_suffix = {ending: name for name, ending in FORMATS.items()}
    if format is not None:
        require_choice(_CALLER, "format", format, tuple(FORMATS))
        if by_suffix.get(suffix, format) != format:
            received = f"{format!r} for {Path(path).name}; end the file in {FORMATS[format]}"
            raise fail(
                _CALLER,
                f"`format` must be {by_suffix[suffix]!r} for a file ending in {suffix}, got {received}.",
            )
        return format  # type: ignore[return-value]
    if suffix not in by_suffix:
        endings = ", ".join(f"{ending} ({name})" for name, ending in FORMATS.items())
        raise fail(_CALLER, f"`path` must end in one of {endings}, or `format` be given, got {f'{path}'!r}.")
    return by_suffix[suffix]  # type: ignore[return-value]


def _checked_path(path: str | Path, overwrite: bool) -> Path:
    refuse_url(f"{path}", caller=_CALLER, argument="path")
    place = Path(path)
    if not f"{path}".strip() or place.is_dir():
        raise fail(_CALLER, f"`path` must be a file, got {f'{path}'!r}.")
    if place.exists() and not overwrite:
        raise fail(
            _CALLER, f"`path` must be a new file, got {place}, which exists; set `overwrite` to replace it."
        )
    return place


@contextmanager
def _directory_in_use(place: Path) -> Iterator[None]:
    """The directory of a file, with errors about `path`."""
    with naming_arguments(_CALLER, out="path"), directory_in_use(f"{place.parent}", caller=_CALLER):
        yield


def _checked_opset(opset: int | None, kind: Format) -> None:
    if opset is None:
        return
    if kind != "onnx":
        raise fail(_CALLER, f"`opset` must be given for the format onnx only, got {opset!r} for {kind}.")
    if require_index(_CALLER, "opset", opset) < 18:
        raise fail(_CALLER, f"`opset` must be at least 18, got {opset}.")


def _require_known_opset(opset: int | None) -> None:
    if opset is None:
        return
    from onnx.defs import onnx_opset_version

    if opset > (largest := onnx_opset_version()):
        fact = f"`opset` must be at most {largest}, the largest of the installed onnx"
        raise fail(_CALLER, f"{fact}, got {opset}.")


def _inputs(example_inputs: Any) -> tuple[list[str], list[Tensor]]:
    """Names and tensors of the inputs."""
    if isinstance(example_inputs, Tensor):
        names, values = ["inputs"], [example_inputs]
    elif isinstance(example_inputs, Mapping):
        names, values = list(example_inputs), list(example_inputs.values())
    elif isinstance(example_inputs, tuple | list):
        names, values = [f"inputs_{index}" for index in range(len(example_inputs))], list(example_inputs)
    else:
        names, values = [], [example_inputs]
    tensors = [value.detach().cpu() for value in values if isinstance(value, Tensor) and value.dim() > 0]
    if not tensors or len(tensors) < len(values) or len({len(tensor) for tensor in tensors}) > 1:
        expected = "a tensor, or a tuple or mapping of tensors, with examples along the first dimension"
        raise fail(
            _CALLER, f"`example_inputs` must be {expected}, got {describe(example_inputs)}.", TypeError
        )
    if len(tensors[0]) == 0:
        raise fail(_CALLER, "`example_inputs` must have at least one example, got none.")
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise fail(
                _CALLER, f"`example_inputs` must be in float32, got {describe(tensor)}; call `.float()`."
            )
    return names, tensors


def _checked_dynamic(dynamic: Mapping[int, str] | None, tensors: Sequence[Tensor]) -> dict[int, str]:
    dims = max(tensor.dim() for tensor in tensors)
    if dynamic is not None and not isinstance(dynamic, Mapping):
        expected = f"a dictionary of names by dimension, from 0 to {dims - 1}"
        raise fail(_CALLER, f"`dynamic` must be {expected}, got {describe(dynamic)}.", TypeError)
    chosen = {0: "batch", **(dynamic or {})}
    for dim, name in chosen.items():
        if (
            type(dim) is not int
            or not 0 <= dim < dims
            or not isinstance(name, str)
            or not name.isidentifier()
        ):
            expected = f"names by dimension, from 0 to {dims - 1}"
            raise fail(_CALLER, f"`dynamic` must be {expected}, got {dynamic!r}.")
    if len(set(chosen.values())) < len(chosen):
        raise fail(_CALLER, f"`dynamic` must have a name of its own for each dimension, got {dynamic!r}.")
    return chosen


def _require_packages(kind: Format) -> None:
    if kind == "onnx":
        with needs("onnx, onnxscript and onnxruntime", extra="export", caller=_CALLER):
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401


def _copied(model: nn.Module, kind: Format) -> nn.Module:
    """A copy in eval mode on the CPU, without wrappers."""
    network = deep_copy(unwrapped(model), caller=_CALLER).cpu().eval().requires_grad_(False)
    tensors = [*network.parameters(), *network.buffers()]
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise fail(_CALLER, f"`model` must be in float32, got {describe(tensor)}; call `.float()`.")
    if kind == "onnx" and any(isinstance(module, EnsembleLinear) for module in network.modules()):
        fact = "`model` must not mix bootstrap heads, whose belief takes a digamma function that ONNX lacks"
        raise fail(_CALLER, f"{fact}; choose the format exported or torchscript.")
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if kind == "onnx" and size > _LARGEST_ONNX:
        got = f"{size / 2**30:.1f} GiB; choose the format exported"
        raise fail(
            _CALLER,
            f"`model` must have less than 2 GiB of parameters, which one ONNX file can hold, got {got}.",
        )
    return network


def _checked_class_names(
    class_names: Sequence[str] | None, module: _Exportable, batch: Sequence[Tensor]
) -> list[str] | None:
    if class_names is None:
        return None
    classes = module.logits(*batch).shape[1]
    if isinstance(class_names, str) or not isinstance(class_names, Sized) or len(class_names) != classes:
        expected = f"{classes} names, one for each class"
        raise fail(_CALLER, f"`class_names` must be {expected}, got {describe(class_names)}.")
    return [f"{name}" for name in class_names]


def _checked_preprocessing(preprocessing: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if preprocessing is None:
        return None
    if not isinstance(preprocessing, Mapping):
        expected, got = "a dictionary of JSON values", describe(preprocessing)
        raise fail(_CALLER, f"`preprocessing` must be {expected}, got {got}.", TypeError)
    for name, value in preprocessing.items():
        try:
            json.dumps({name: value}, allow_nan=False)
        except (TypeError, ValueError) as error:
            received = f"{describe(value)} as {name!r}"
            raise fail(_CALLER, f"`preprocessing` must hold JSON values only, got {received}.") from error
    return dict(preprocessing)


def _require_numbers(module: _Exportable, tensors: Sequence[Tensor]) -> None:
    """Logits of the examples must be numbers where NaN inputs alone could be why they are not."""
    if not any(tensor.isnan().any() for tensor in tensors):
        return
    with torch.no_grad():
        if module.logits(*tensors).isnan().any():
            fact = "`example_inputs` must be numbers where the model has no answer for NaN, got NaN"
            raise fail(_CALLER, f"{fact}, for which its logits are NaN.")


def _require_logits(module: _Exportable, tensors: Sequence[Tensor]) -> None:
    """The network must not end in a softmax, whose output would be read as logits."""
    with torch.no_grad():
        logits = module.logits(*tensors)
    if are_distributions(logits, tolerance=_SUM_TOLERANCE):
        got = "rows that lie in [0, 1] and sum to 1, as probabilities do"
        raise fail(_CALLER, f"`model` must return logits, got {got}; remove the softmax at its end.")


def _input_spec(name: str, tensor: Tensor, dynamic: Mapping[int, str]) -> TensorSpec:
    shape = [dynamic.get(dim, size) for dim, size in enumerate(tensor.shape)]
    return TensorSpec(name=name, dtype=_dtype(tensor), shape=shape)


def _output_specs(
    module: _Exportable, batch: Sequence[Tensor], chosen: Sequence[str], dynamic: Mapping[int, str]
) -> list[TensorSpec]:
    try:
        with torch.no_grad():
            found = module(*batch)
    except ValueError:
        raise
    except Exception as error:  # the user's own code may raise anything
        reason = reason_of(error, typed=True, limit=200)
        raise fail(_CALLER, f"`example_inputs` must be a batch that the model accepts ({reason}).") from error
    return [
        TensorSpec(
            name=name,
            dtype=_dtype(found[name]),
            shape=[dynamic[0], *found[name].shape[1:]],
            description=OUTPUTS[name].description,
        )
        for name in chosen
    ]


def _dtype(tensor: Tensor) -> str:
    return f"{tensor.dtype}".removeprefix("torch.")


# What is exported


class _Exportable(nn.Module):
    """A network whose outputs are computed from its logits, by functions that every format has."""

    def __init__(self, network: nn.Module, outputs: Sequence[str], keywords: Sequence[str] | None) -> None:
        super().__init__()
        self.network, self.outputs, self.keywords = network, tuple(outputs), keywords

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs by name."""
        logits = self.logits(*inputs)
        with PortableFunctions():
            return {name: OUTPUTS[name].compute(logits) for name in self.outputs}

    def logits(self, *inputs: Tensor) -> Tensor:
        """Logits (N, K)."""
        batch = inputs if self.keywords is None else dict(zip(self.keywords, inputs, strict=True))
        logits = logits_of(call_model(self.network, batch), caller=_CALLER)
        if logits.shape[1] < 2:
            got = f"shape {tuple(logits.shape)}; {BINARY['logits']}"
            raise fail(_CALLER, f"`model` must return logits of at least 2 classes, got {got}.")
        return logits


def _log_precision(logits: Tensor) -> Tensor:
    return split(logits, 1, torch.float32).log_total.squeeze(1)


class PortableFunctions(TorchFunctionMode):
    """Replaces functions inside the block that formats lack or compute badly."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        portable: Any = _PORTABLE.get(func, func)
        return portable(*args, **(kwargs or {}))


def _log1p(x: Tensor) -> Tensor:
    """ln(1+x) for x > −1, with full relative precision (Kahan); ONNX would have ln of the rounded 1 + x."""
    u = 1 + x
    log = u.log()
    near = torch.where(u == 1, x, log * x / (u - 1))
    return torch.where(x.abs() < 0.5, near, log)


def _sigmoid(z: Tensor) -> Tensor:
    """1/(1+e^−z); onnxruntime's own is constant below z = −18."""
    return 1 / (1 + (-z).exp())


def _logsigmoid(z: Tensor) -> Tensor:
    """ln(1/(1+e^−z)), which ONNX would compute from the rounded sigmoid."""
    return z.clamp(max=0.0) - _log1p((-z.abs()).exp())


_PORTABLE: dict[Any, Callable[..., Tensor]] = {
    torch.log1p: _log1p,
    Tensor.log1p: _log1p,
    torch.sigmoid: _sigmoid,
    Tensor.sigmoid: _sigmoid,
    functional.logsigmoid: _logsigmoid,
}


# Files


def _content(
    module: _Exportable,
    batch: Sequence[Tensor],
    record: ExportRecord,
    dynamic: Mapping[int, str],
    opset: int | None,
) -> bytes:
    try:
        with torch.no_grad(), _quiet():
            if record.format == "torchscript":
                return _torchscript(module, batch, record)
            program = _exported_program(module, batch, dynamic)
            return (
                _onnx(program, record, dynamic, opset) if record.format == "onnx" else _saved(program, record)
            )
    except Exception as error:  # the user's own code, and three exporters, may raise anything
        if isinstance(error, ArgumentError) and error.argument == "opset":
            raise
        reason = reason_of(_first_cause(error), typed=True, limit=300)
        fact = f"`model` must be a network that can be exported as {record.format}"
        raise fail(_CALLER, f"{fact}, got {type(module.network).__name__} ({reason}).") from error


def _first_cause(error: BaseException) -> BaseException:
    """What went wrong first: exporters wrap it in pages of advice."""
    while (cause := error.__cause__) is not None:
        error = cause
    return error


# Standard output, logging, warnings and the kernel belong to the process: of two threads that set and restore
# them at a time, the second would restore what the first has set.
_PROCESS_STATE = threading.RLock()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without remarks of exporters; what is wrong with a file is found by comparing numbers.

    One thread at a time, which may also choose a kernel inside the block.
    """
    with _PROCESS_STATE:
        disabled = logging.root.manager.disable
        logging.disable(logging.ERROR)
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
                for category in (DeprecationWarning, FutureWarning, TracerWarning):
                    warnings.simplefilter("ignore", category)
                yield
        finally:
            logging.disable(disabled)


def _exported_program(
    module: _Exportable, batch: Sequence[Tensor], dynamic: Mapping[int, str]
) -> torch.export.ExportedProgram:
    shapes = tuple(
        {dim: torch.export.Dim.DYNAMIC for dim in dynamic if dim < tensor.dim()} for tensor in batch
    )
    program = torch.export.export(module, tuple(batch), dynamic_shapes=(shapes,), strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine, and most of a small file
    return program


def _saved(program: torch.export.ExportedProgram, record: ExportRecord) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA_FILE: record.to_json()})
    return buffer.getvalue()


def _torchscript(module: _Exportable, batch: Sequence[Tensor], record: ExportRecord) -> bytes:
    chosen = kernels.chosen()
    kernels.use("reference")  # a trace sees tensor operations alone
    try:
        traced = torch.jit.trace(module, tuple(batch), strict=False, check_trace=False)
    finally:
        kernels.use(chosen)
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer, _extra_files={METADATA_FILE: record.to_json()})
    return buffer.getvalue()


def _onnx(
    program: torch.export.ExportedProgram, record: ExportRecord, dynamic: Mapping[int, str], opset: int | None
) -> bytes:
    import onnx

    made = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        opset_version=opset,
        input_names=[one.name for one in record.inputs],
        output_names=[one.name for one in record.outputs],
    )
    assert made is not None
    proto = made.model_proto
    written = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), None)
    if opset not in (None, written):  # where an exporter cannot convert, it keeps its own version
        fact = f"`opset` must be one that torch {torch.__version__} can write"
        raise fail(_CALLER, f"{fact}, got {opset}, for which it wrote {written}.")
    _name_dimensions(proto, dynamic)
    for node in proto.graph.node:
        del node.metadata_props[:]
    onnx.helper.set_model_props(proto, {METADATA: record.to_json()})
    proto.producer_name, proto.producer_version = METADATA, record.versions["beliefmatch"]
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def _name_dimensions(proto: Any, dynamic: Mapping[int, str]) -> None:
    """Give dimensions that vary their names, in place of the symbols of torch."""
    symbols: dict[str, str] = {}
    for one in proto.graph.input:
        for dim, name in dynamic.items():
            sizes = one.type.tensor_type.shape.dim
            if dim < len(sizes) and sizes[dim].dim_param:
                symbols.setdefault(sizes[dim].dim_param, name)
    for one in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for size in one.type.tensor_type.shape.dim:
            if size.dim_param in symbols:
                size.dim_param = symbols[size.dim_param]


# Verification

_Runner = Callable[[Sequence[Tensor]], Mapping[str, Tensor]]


def _batches(tensors: Sequence[Tensor], dynamic: Mapping[int, str]) -> list[list[Tensor]]:
    """Batches of several sizes, the first to trace; where other dimensions vary, also a shorter one."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for index, size in enumerate((*_BATCH_SIZES, len(tensors[0]))):
        rows = torch.arange(size) % len(tensors[0])
        batches.append([_varied(tensor[rows], index == 2, generator) for tensor in tensors])
    others = [dim for dim in dynamic if dim > 0]
    if others:
        batches.append([_shortened(tensor, others) for tensor in batches[1]])
    return batches


def _varied(rows: Tensor, is_opposite: bool, generator: torch.Generator) -> Tensor:
    """The rows, or their opposite, which finds code that depends on values; numbers have noise added."""
    if rows.dtype == torch.float32:
        known = rows[~rows.isnan()]  # missing values of a table are NaN
        scale = 0.1 + (known.std(correction=0).nan_to_num() if known.numel() else 0.0)
        noisy = rows + 0.3 * scale * torch.randn(rows.shape, generator=generator)
        return -2 * noisy if is_opposite else noisy
    return 255 - rows if is_opposite and rows.dtype == torch.uint8 else rows


def _shortened(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        if dim < tensor.dim():
            tensor = tensor.narrow(dim, 0, (tensor.shape[dim] + 1) // 2)
    return tensor


def _runner(content: bytes, record: ExportRecord) -> _Runner:
    """Load the file as its users do."""
    if record.format == "onnx":
        return _onnx_runner(content, record)
    with _quiet():
        if record.format == "torchscript":
            module = torch.jit.load(io.BytesIO(content))
        else:
            module = torch.export.load(io.BytesIO(content)).module()
    return lambda batch: module(*batch)


def _onnx_runner(content: bytes, record: ExportRecord) -> _Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(batch: Sequence[Tensor]) -> dict[str, Tensor]:
        given = {
            one.name: np.ascontiguousarray(tensor) for one, tensor in zip(record.inputs, batch, strict=True)
        }
        found = session.run([one.name for one in record.outputs], given)
        return {
            one.name: torch.from_numpy(np.asarray(value))
            for one, value in zip(record.outputs, found, strict=True)
        }

    return run


@torch.no_grad()
def _verify(
    run: _Runner, module: _Exportable, batches: Sequence[Sequence[Tensor]], chosen: Sequence[str]
) -> dict[str, float]:
    """The largest difference of each output from the belief of the network's logits, computed in double."""
    largest = dict.fromkeys(chosen, 0.0)
    for batch in batches:
        size = f"a batch of {len(batch[0])}"
        try:
            with _quiet():
                found = run(batch)
        except Exception as error:
            reason = reason_of(error, typed=True, limit=300)
            fact = f"`model` must accept {size} when exported, as it does in torch"
            raise fail(_CALLER, f"{fact}, but {type(module.network).__name__} failed ({reason}).") from error
        logits = module.logits(*batch)
        tolerance = 4 * _LOGIT_TOLERANCE * max(1.0, logits.abs().max().item())
        belief = Belief(logits.double(), dim=1)
        for name in chosen:
            expected = _expected(belief, name)
            largest[name] = max(
                largest[name], _difference(name, found[name], expected, tolerance, size, belief)
            )
    return largest


def _expected(belief: Belief, name: str) -> Tensor:
    value: Any = belief.log_alpha if name == "logits" else getattr(belief, name)
    if not isinstance(value, Tensor):
        value = value()
    return special.saturate(value.double(), torch.float32).double()


def _difference(
    name: str, found: Tensor, expected: Tensor, tolerance: float, size: str, belief: Belief
) -> float:
    if found.shape != expected.shape:
        received = f"shape {tuple(found.shape)} for {size}"
        raise fail(
            _CALLER,
            f"`model` must give `{name}` of shape {tuple(expected.shape)} when exported, got {received}.",
        )
    if name == "predictions":  # where two classes are as probable, either will do
        found, expected = (belief.probs.gather(1, ids.long()[:, None]) for ids in (found, expected))
    distance = (found.double() - expected).abs()
    distance = distance.masked_fill(found.isnan() & expected.isnan(), 0.0)
    allowed = tolerance * (expected.abs() + OUTPUTS[name].tolerance_floor)
    if not (distance <= allowed).all():
        worst = distance.nan_to_num(nan=torch.inf).max().item()
        fact = f"`model` must give the same {name} when exported, got a difference of {worst:.2g} for {size}"
        raise fail(_CALLER, f"{fact}; does its code depend on values, or on the size of the batch?")
    return (distance / expected.abs().clamp(min=1.0)).max().item()
