"""Encoders without a classification head: features of a sentence or an image, and classifiers built on them.

encoder = PooledEncoder(AutoModel.from_pretrained(directory), pooling="mean", normalize=True)
encoder(**tokens)                                             # features (N, F)
EncoderClassifier(encoder, nn.Linear(384, 150))(**tokens)     # logits (N, 150)
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch._validate import describe, fail, require_choice

__all__ = ["EncoderClassifier", "PooledEncoder", "Pooling", "SentencePooling", "sentence_pooling"]

Pooling = Literal["mean", "cls", "lasttoken", "none"]


class PooledEncoder(nn.Module):
    """An encoder and the pooling of its last hidden state to one feature vector for each example.

    The inputs are those of the encoder. The encoder returns hidden states (N, T, F): a tensor, the first
    element of a tuple, or `last_hidden_state` of a mapping or an output object.

    Args:
        encoder: Network from tokens to hidden states, such as a `transformers.AutoModel`.
        pooling: "mean" averages over the tokens that `attention_mask` marks, "cls" takes the first token and
            "lasttoken" the last one that it marks. "none" is for encoders that return features (N, F).
        normalize: Whether features are divided by their Euclidean norm.
    """

    def __init__(self, encoder: nn.Module, pooling: Pooling = "mean", *, normalize: bool = False) -> None:
        super().__init__()
        require_choice("PooledEncoder", "pooling", pooling, get_args(Pooling))
        self.encoder = encoder
        self.pooling: Pooling = pooling
        self.normalize = normalize
        self._arguments = tuple(inspect.signature(encoder.forward).parameters)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Features (N, F)."""
        hidden = _hidden_state(self.encoder(*args, **kwargs))
        dimensions = 2 if self.pooling == "none" else 3
        if hidden.dim() != dimensions:
            expected = "features (N, F)" if dimensions == 2 else "hidden states (N, T, F)"
            fact = f"`encoder` must return {expected} for the pooling {self.pooling!r}"
            raise fail("PooledEncoder", f"{fact}, got {describe(hidden)}.")
        if self.pooling != "none":
            named = {**dict(zip(self._arguments, args, strict=False)), **kwargs}
            hidden = _pool(hidden, named.get("attention_mask"), self.pooling)
        return functional.normalize(hidden, dim=-1) if self.normalize else hidden

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return f"pooling={self.pooling!r}, normalize={self.normalize}"


class EncoderClassifier(nn.Module):
    """A linear classifier on the features of an encoder.

    Args:
        backbone: Network from the inputs to features (N, F).
        head: Linear layer from the features to logits.
    """

    def __init__(self, backbone: PooledEncoder, head: nn.Linear) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Logits (N, K)."""
        return self.head(self.backbone(*args, **kwargs))


class SentencePooling(NamedTuple):
    """The options of a `PooledEncoder` that a sentence encoder was trained with."""

    pooling: Pooling
    normalize: bool


def sentence_pooling(read_json: Callable[[str], Any]) -> SentencePooling | None:
    """Pooling and normalisation that the files of a sentence encoder declare.

    Encoders published for `sentence-transformers` list their modules in modules.json.

    Args:
        read_json: Returns the content of a JSON file of the encoder by its relative path, and None where the
            file does not exist.

    Returns:
        None for an encoder that declares nothing.

    Raises:
        ValueError: The encoder needs a module or a pooling that `PooledEncoder` does not have.
    """
    modules = read_json("modules.json")
    if modules is None:
        return None
    pooling, normalize = None, False
    for module in modules:
        match module["type"].rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling":
                pooling = _declared_pooling(read_json(f"{module['path']}/config.json") or {})
            case "Normalize":
                normalize = True
            case other:
                supported = "of the modules Transformer, Pooling and Normalize"
                raise fail("sentence_pooling", f"the encoder must consist {supported}, got {other}.")
    return None if pooling is None else SentencePooling(pooling, normalize)


def _declared_pooling(config: Mapping[str, Any]) -> Pooling:
    """The one pooling of a module's configuration: a name, or a flag for each."""
    flags = [flag for flag, value in config.items() if flag.startswith("pooling_mode_") and value is True]
    declared = [re.sub("^pooling_mode_|_tokens?$", "", flag) for flag in flags]
    if isinstance(named := config.get("pooling_mode"), str):
        declared = [named]
    for pooling in ("mean", "cls", "lasttoken"):
        if declared == [pooling]:
            return pooling
    got = " and ".join(declared) or "none"
    raise fail("sentence_pooling", f"the encoder must pool by mean, cls or lasttoken, got {got}.")


def _hidden_state(returned: Any) -> Tensor:
    """The last hidden state in the output of an encoder."""
    found = returned
    if isinstance(returned, Mapping):
        found = returned.get("last_hidden_state")
    elif isinstance(returned, tuple | list):
        found = returned[0] if returned else None
    elif not isinstance(returned, Tensor):
        found = getattr(returned, "last_hidden_state", None)
    if not isinstance(found, Tensor):
        expected = "a tensor, or an output with `last_hidden_state`"
        raise fail("PooledEncoder", f"`encoder` must return {expected}, got {describe(returned)}.", TypeError)
    return found


def _pool(hidden: Tensor, attention_mask: Tensor | None, pooling: Pooling) -> Tensor:
    """One row (N, F) of hidden states (N, T, F); without a mask every token counts."""
    if pooling == "cls":
        return hidden[:, 0]
    if attention_mask is None:
        return hidden.mean(1) if pooling == "mean" else hidden[:, -1]
    mask = attention_mask.bool()
    if tuple(mask.shape) != tuple(hidden.shape[:2]):
        expected = f"shape {tuple(hidden.shape[:2])}"
        raise fail("PooledEncoder", f"`attention_mask` must have {expected}, got {tuple(mask.shape)}.")
    if pooling == "lasttoken":
        positions = torch.arange(mask.shape[1], device=mask.device)
        return hidden[torch.arange(len(hidden), device=mask.device), (positions * mask).argmax(1)]
    # Filled rather than multiplied by zero: the hidden state of padding may be NaN.
    total = hidden.masked_fill(~mask[:, :, None], 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)
