"""Export of a finished training or adaptation: its network with all that was fitted after it, in one file.

A temperature, the mean of an ensemble, the evidence of an evidential network and a mixture of heads are
computed inside the file, so that it returns what `beliefmatch predict` writes. What a single pass does not
compute is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from beliefmatch._rows import work_dtype
from beliefmatch._validate import fail, naming_arguments
from beliefmatch.adaptation.heads import call_model, logits_of
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import network_inputs
from beliefmatch.data.table_encoding import TableEncoding
from beliefmatch.experiments.adapted_directory import adapted_network
from beliefmatch.experiments.build import method_of, trained_member
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.integrations.export import FORMATS, ExportedFile, Format, PortableFunctions, export
from beliefmatch.methods.base import NetworkPredictor, Prediction, Predictor
from beliefmatch.methods.ensemble import EnsemblePredictor, combine
from beliefmatch.methods.temperature import TemperaturePredictor

__all__ = ["export_run"]

_ROWS = 16  # of the example batch of a table
_MAX_OFFSET = 1e4  # deviations from 0 to the mean: more leave float32 fewer than three digits of a deviation
_SENTENCES = ("One sentence.", "A sentence that is a little longer, for padding.", "Another one, shorter.")


def export_run(
    run: str | Path,
    path: str | Path | None = None,
    *,
    format: Format | None = None,
    outputs: Sequence[str] | None = None,
    with_preprocessing: bool = False,
    opset: int | None = None,
    overwrite: bool = False,
) -> ExportedFile:
    """Write the network of a finished run to one file; see `beliefmatch.export`.

    Args:
        run: Directory that `beliefmatch train` or `beliefmatch adapt` wrote.
        path: File to write; by default model.onnx, model.pt2 or model.pt, by the format.
        format: "onnx", "exported" or "torchscript"; by the ending of `path`, or else onnx, by default.
        outputs: Names of `beliefmatch.integrations.export.OUTPUTS`.
        with_preprocessing: Whether the file prepares its inputs itself. Of images it then takes bytes
            (N, H, W, C) in the order red, green, blue, in place of normalised numbers (N, C, H, W). Of a
            table it takes the numbers of the columns, NaN where one is missing, and the indices of
            categories, in place of the encoded matrix.
        opset: Version of the operator set of ONNX.
        overwrite: Whether an existing file is replaced.

    Raises:
        ValueError: the directory holds no finished run, or its method cannot be exported.
    """
    if path is None:
        path = f"model{FORMATS.get(format or 'onnx', '')}"
    with naming_arguments("export", "run"):
        restored = _restored(Path(run))
    example, network, preprocessing = restored.inputs(with_preprocessing)
    with naming_arguments("export", model="run"):
        return export(
            network,
            path,
            example,
            format=format,
            outputs=outputs,
            has_belief=restored.has_belief,
            class_names=restored.class_names,
            preprocessing=preprocessing,
            dynamic={0: "batch"} if restored.tokenizer is None else {0: "batch", 1: "sequence"},
            opset=opset,
            overwrite=overwrite,
        )


@dataclass(frozen=True, eq=False)
class _Restored:
    """A network whose logits are read by `Belief` or softmax, and the form of its inputs."""

    network: nn.Module
    has_belief: bool
    class_names: tuple[str, ...]
    shape: tuple[int, int, int] | None = None
    preprocessing: Preprocessing | None = None
    encoding: TableEncoding | None = None
    tokenizer: dict[str, Any] | None = None
    tokens: dict[str, Tensor] | None = None

    def inputs(
        self, with_preprocessing: bool
    ) -> tuple[Tensor | dict[str, Tensor], nn.Module, dict[str, Any]]:
        """An example batch, the network that takes it, and what has to be done to inputs first."""
        if self.tokens is not None and self.tokenizer is not None:
            if with_preprocessing:
                fact = "`with_preprocessing` must be False for a network of sentences"
                raise fail("export", f"{fact}, whose tokenizer no such file can hold.")
            return self.tokens, self.network, self.tokenizer
        if self.encoding is not None:
            return _table_inputs(self.network, self.encoding, with_preprocessing)
        assert self.shape is not None and self.preprocessing is not None
        channels, height, width = self.shape
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (4, height, width, channels), dtype=torch.uint8, generator=generator)
        facts = _image_facts(self.shape, self.preprocessing, with_preprocessing)
        if with_preprocessing:
            return {"images": pixels}, _Named(_Normalised(self.network, self.preprocessing)), facts
        inputs = network_inputs(pixels, self.preprocessing).contiguous()
        return {"images": inputs}, _Named(self.network), facts


def _restored(directory: Path) -> _Restored:
    home = RunDirectory(directory)
    if home.is_adapted:
        found = adapted_network(directory)
        form: dict[str, Any] = {"shape": found.shape, "preprocessing": found.preprocessing}
        if found.tokenize is not None:
            form = {"tokenizer": _text_facts(home), "tokens": found.tokenize(_SENTENCES)}
        return _Restored(found.network, found.has_belief, found.class_names, **form)
    config, facts = home.config(), home.read_model()
    method = method_of(config)
    form = _form(facts)
    if not form:
        fact = "`run` must be of a network of images, tables or sentences"
        raise fail("export", f"{fact}, got {directory}; use beliefmatch.export in Python.")
    networks = [trained_member(home, member, caller="export").eval() for member in range(method.members)]
    return _Restored(
        _one_network(method.restored(networks, facts["learned"]), config.method.name),
        method.reads != "softmax",
        tuple(facts["class_names"]),
        **form,
    )


def _form(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the inputs of a trained network are; nothing where that is not known."""
    if "table" in facts:
        return {"encoding": TableEncoding.from_json(facts["table"])}
    if facts.get("shape") and facts.get("preprocessing"):
        preprocessing = Preprocessing.from_json(facts["preprocessing"])
        return {"shape": tuple(facts["shape"]), "preprocessing": preprocessing}
    return {}


def _image_facts(
    shape: tuple[int, int, int], preprocessing: Preprocessing, is_included: bool
) -> dict[str, Any]:
    channels, height, width = shape
    colours = "grey" if channels == 1 else "rgb"
    crop = f"centre crop to {height} x {width} pixels"
    if preprocessing.margin != 1:
        crop = f"scaled so that the {crop} takes 1/{preprocessing.margin:g} of the short side"
    facts = {"size": [height, width], "crop": f"{crop}, bilinear, antialiased"}
    if is_included:
        order = {"layout": "NHWC", "channel_order": colours, "value_range": [0, 255]}
        return {**facts, **order, "normalisation": "included in the file"}
    order = colours if channels == 1 else preprocessing.channel_order
    scaled = {"layout": "NCHW", "channel_order": order, "value_range": [0, 1]}
    mean, std = (
        list(reversed(x)) if order == "bgr" else list(x) for x in (preprocessing.mean, preprocessing.std)
    )
    return {**facts, **scaled, "normalisation": "(pixel - mean) / std", "mean": mean, "std": std}


def _table_inputs(
    network: nn.Module, encoding: TableEncoding, with_preprocessing: bool
) -> tuple[Tensor | dict[str, Tensor], nn.Module, dict[str, Any]]:
    """An example batch of a table, the network that takes it, and what its columns are."""
    generator = torch.Generator().manual_seed(0)
    if not with_preprocessing:
        inputs = torch.randn(_ROWS, len(encoding.input_names), generator=generator)
        kept = {
            name: value for name, value in encoding.to_json().items() if name in ("numeric", "categorical")
        }
        return inputs, network, {"inputs": list(encoding.input_names), **kept}
    for column in encoding.numeric:
        if abs(column.mean) > _MAX_OFFSET * column.std:
            fact = f"`with_preprocessing` must be False for the column {column.name!r}, whose numbers near"
            remedy = "export without it and encode rows by the means and deviations in the metadata"
            raise fail("export", f"{fact} {column.mean:g} differ by {column.std:g}; {remedy}.")
    example, facts = {}, {}
    if encoding.numeric:
        mean, std = (
            torch.tensor([getattr(one, name) for one in encoding.numeric]) for name in ("mean", "std")
        )
        numbers = mean + std * torch.randn(_ROWS, len(mean), generator=generator)
        example["numbers"] = numbers.masked_fill(
            torch.rand(numbers.shape, generator=generator) < 0.2, torch.nan
        )
        facts |= {"numbers": [one.name for one in encoding.numeric], "missing_number": "NaN"}
    if encoding.categorical:
        sizes = torch.tensor([len(one.values) for one in encoding.categorical])
        drawn = torch.rand(_ROWS, len(sizes), generator=generator)
        example["categories"] = (drawn * (sizes + 1)).long() - 1
        values = {one.name: list(one.values) for one in encoding.categorical}
        facts |= {"categories": values, "unknown_category": "-1"}
    return example, _Encoded(network, encoding), facts


def _text_facts(home: RunDirectory) -> dict[str, Any]:
    facts = json.loads(home.model_file.read_text("utf-8"))["text"]
    tokenizer = "text/ in the directory of the run, for transformers.AutoTokenizer.from_pretrained"
    return {
        "tokenizer": tokenizer,
        "max_length": facts["max_length"],
        "padding": "to the longest",
    }


# One network of a predictor


def _one_network(predictor: Predictor, method: str) -> nn.Module:
    """A network with the logits, or log-concentrations, of the predictor."""
    if isinstance(predictor, NetworkPredictor):
        return _Read(predictor)
    if isinstance(predictor, TemperaturePredictor):
        return _Scaled(predictor.network, predictor.temperature)
    if isinstance(predictor, EnsemblePredictor):
        return _Ensemble([predictor.member.predictor(network) for network in predictor.networks])
    reason = (
        "whose probabilities are a mean over several passes with random masks, which no single pass computes"
    )
    other = "train with another method, such as belief_matching"
    raise fail("export", f"`run` must be of a method that can be exported, got {method}, {reason}; {other}.")


def _logits(prediction: Prediction) -> Tensor:
    found = prediction.logits if prediction.belief is None else prediction.belief.log_alpha
    assert found is not None
    return found


class _Read(nn.Module):
    """The logits of one network, as its method reads them."""

    def __init__(self, predictor: NetworkPredictor) -> None:
        super().__init__()
        self.network, self.read = predictor.network, predictor.read

    def forward(self, x: Tensor) -> Tensor:
        logits = logits_of(self.network(x), caller="export")
        with PortableFunctions():
            return _logits(self.read(logits))


class _Scaled(nn.Module):
    """Logits divided by a temperature."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.network(x), caller="export") / self.temperature


class _Ensemble(nn.Module):
    """Log-concentrations of the members' combined belief, or logarithms of their mean probabilities."""

    def __init__(self, predictors: Sequence[Any]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(predictor.network for predictor in predictors)
        self.reads = [predictor.read for predictor in predictors]

    def forward(self, x: Tensor) -> Tensor:
        logits = [logits_of(network(x), caller="export") for network in self.networks]
        wide = [one.to(work_dtype(one.device)) for one in logits]  # as the predictor computes them
        with PortableFunctions():
            predictions = [read(one) for read, one in zip(self.reads, wide, strict=True)]
            beliefs = [prediction.belief for prediction in predictions if prediction.belief is not None]
            if len(beliefs) == len(predictions):
                return combine(beliefs).log_alpha.to(logits[0].dtype)
            logs = torch.stack([_logits(prediction).log_softmax(1) for prediction in predictions])
            return (logs.logsumexp(0) - math.log(len(logs))).to(logits[0].dtype)


class _Normalised(nn.Module):
    """A network of bytes (N, H, W, C)."""

    def __init__(self, network: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network, self.preprocessing = network, preprocessing

    def forward(self, pixels: Tensor) -> Any:
        return self.network(network_inputs(pixels, self.preprocessing).contiguous())


class _Named(nn.Module):
    """A network whose one input has the name "images"."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        return call_model(self.network, images)


class _Encoded(nn.Module):
    """A network of the columns of a table, which it encodes as `TableEncoding.encode` does.

    `numbers` are the numeric columns, NaN where a cell is empty. `categories` are indices of the values of
    the text columns, int64; any other index is a value that no training row had.
    """

    def __init__(self, network: nn.Module, encoding: TableEncoding) -> None:
        super().__init__()
        self.network, self.encoding = network, encoding

    def forward(self, numbers: Tensor | None = None, categories: Tensor | None = None) -> Any:
        parts = []
        if numbers is not None:
            columns = self.encoding.numeric
            fill, mean, std = (
                torch.tensor([getattr(one, name) for one in columns], dtype=torch.float64)
                for name in ("fill", "mean", "std")
            )
            is_missing = numbers.isnan()
            parts.append((torch.where(is_missing, fill, numbers.double()) - mean) / std)
            indicators = [index for index, one in enumerate(columns) if one.indicator]
            parts += [is_missing[:, [index]].double() for index in indicators]
        if categories is not None:
            for index, column in enumerate(self.encoding.categorical):
                own = (categories[:, [index]] == torch.arange(len(column.values))).double()
                parts.append(own)
                if column.others:
                    parts.append(1 - own.sum(1, keepdim=True))
        return call_model(self.network, torch.cat(parts, 1).float())
