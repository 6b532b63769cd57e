"""Sequence classifiers and sentence encoders of Hugging Face, with their tokenizers.

Weights come from safetensors files, and no code of a model's repository is executed.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from beliefmatch._environment import needs
from beliefmatch._validate import fail
from beliefmatch.models.encoder import PooledEncoder, sentence_pooling
from beliefmatch.models.pretrained import hugging_face_location, load_weights, one_line_errors

__all__ = ["TextModel", "stored_text_model", "text_model"]

_CALLER = "text_model"
_UNLIMITED = 1_000_000  # tokenizers without a limit of their own state a larger number
_DEFAULT_NAME = "LABEL_"  # of classes that nobody named


@dataclass(frozen=True, eq=False)
class TextModel:
    """A network for sentences and its tokenizer.

    Args:
        network: a sequence classifier, or a `PooledEncoder`, which has no head.
        tokenizer: of transformers.
        max_length: tokens of a sentence that the network sees; the rest is cut off.
        class_names: by id, where the classifier has names for its classes.
    """

    network: nn.Module
    tokenizer: Any
    max_length: int
    class_names: tuple[str, ...] | None = None

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """The arguments of the network, padded to the longest of the sentences."""
        encoded = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        return dict(encoded)

    def files(self) -> dict[str, bytes]:
        """Configuration and tokenizer as files, from which `stored_text_model` builds it again."""
        config = _body(self.network).config
        with tempfile.TemporaryDirectory() as directory:
            for part in (config, self.tokenizer):
                part.save_pretrained(directory)
            return {
                file.relative_to(directory).as_posix(): file.read_bytes()
                for file in sorted(Path(directory).rglob("*"))
                if file.is_file()
            }

    def facts(self) -> dict[str, Any]:
        """What the files do not hold, as JSON."""
        pooled = self.network if isinstance(self.network, PooledEncoder) else None
        pooling = None if pooled is None else {"pooling": pooled.pooling, "normalize": pooled.normalize}
        return {"max_length": self.max_length, "pooling": pooling}


def text_model(
    name: str, *, options: Mapping[str, Any] | None = None, weights: str | Path | None = None
) -> TextModel:
    """A trained network for sentences, in eval mode and float32.

    A directory or repository whose configuration names an architecture for sequence classification is built
    with its classifier, every other as an encoder. The files of sentence-transformers, where there are any,
    say how an encoder's states are pooled, whether they are normalised, and how many tokens are used.

    Args:
        name: ``hf:OWNER/NAME`` on the Hugging Face hub, or ``hf:DIRECTORY``.
        options: passed to `from_pretrained`.
        weights: file of weights to load instead of the published ones; see `load_weights`.

    Raises:
        ValueError: the name, the options or the weights cannot be used; the message is one line.
    """
    given = dict(options or {})
    location = hugging_face_location(name, given, caller=_CALLER)
    transformers = _transformers(name)
    with one_line_errors(name, caller=_CALLER), _quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(location, trust_remote_code=False, **given)
        builder, is_classifier = _builder(transformers, config)
        if weights is None:
            network = builder.from_pretrained(
                location, config=config, use_safetensors=True, trust_remote_code=False
            )
        else:
            network = builder.from_config(config, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    if weights is not None:
        load_weights(network, weights)
    limit = (_published(location, "sentence_bert_config.json") or {}).get("max_seq_length")
    max_length = min(_max_length(network, tokenizer), limit if isinstance(limit, int) else _UNLIMITED)
    if is_classifier:
        return _finished(TextModel(network, tokenizer, max_length, _class_names(config)), name)
    pooling = sentence_pooling(lambda file: _published(location, file))
    encoder = PooledEncoder(network) if pooling is None else PooledEncoder(network, **pooling._asdict())
    return _finished(TextModel(encoder, tokenizer, max_length), name)


def stored_text_model(directory: Path, facts: Mapping[str, Any]) -> TextModel:
    """Build a model again, without its weights, from its `files` in a directory and its `facts`."""
    transformers = _transformers("predict")
    with one_line_errors(f"{directory}", caller="predict"), _quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)
        builder, is_classifier = _builder(transformers, config)
        network = builder.from_config(config, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    network = network if is_classifier else PooledEncoder(network, **facts["pooling"])
    return _finished(TextModel(network, tokenizer, facts["max_length"]), f"{directory}")


def _finished(model: TextModel, name: str) -> TextModel:
    """With a padding token, which decoders lack, and in eval mode."""
    tokenizer, network = model.tokenizer, model.network
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers builds such a one without any files
        raise fail(_CALLER, f"`name` must have a tokenizer with a vocabulary, got {name} without one.")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise fail(_CALLER, f"`name` must have a tokenizer with a padding token, got {name} without one.")
        tokenizer.pad_token = tokenizer.eos_token
    body = _body(network)
    if body.config.pad_token_id is None:
        body.config.pad_token_id = tokenizer.pad_token_id
    body.name_or_path = body.config.name_or_path = ""  # features do not depend on where it was loaded from
    network.float().eval()
    return model


def _transformers(caller: str) -> Any:
    with needs("transformers", extra="huggingface", caller=caller):
        return importlib.import_module("transformers")


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without progress bars, and without warnings of weights that an encoder does not need."""
    log = transformers.utils.logging
    level, has_bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if has_bar:
            log.enable_progress_bar()


def _builder(transformers: Any, config: Any) -> tuple[Any, bool]:
    is_classifier = any(f"{one}".endswith("ForSequenceClassification") for one in config.architectures or ())
    return transformers.AutoModelForSequenceClassification if is_classifier else transformers.AutoModel, (
        is_classifier
    )


def _max_length(network: Any, tokenizer: Any) -> int:
    """The tokenizer's limit, else the number of positions that the network has embeddings of."""
    if tokenizer.model_max_length < _UNLIMITED:
        return tokenizer.model_max_length
    positions = getattr(network.config, "max_position_embeddings", None) or 512
    tables = [module for name, module in network.named_modules() if name.endswith("position_embeddings")]
    padding = next((table.padding_idx for table in tables if isinstance(table, nn.Embedding)), None)
    return positions if padding is None else positions - padding - 1  # RoBERTa counts from there on


def _class_names(config: Any) -> tuple[str, ...] | None:
    names = tuple(f"{config.id2label[index]}" for index in sorted(config.id2label))
    return None if all(name.startswith(_DEFAULT_NAME) for name in names) else names


def _body(network: nn.Module) -> Any:
    """The network of transformers itself."""
    return network.encoder if isinstance(network, PooledEncoder) else network


def _published(location: str, file: str) -> Any:
    """The content of a JSON file of a model's directory or repository; None if there is none."""
    path = Path(location) / file
    if not Path(location).is_dir():
        import huggingface_hub
        from huggingface_hub.errors import EntryNotFoundError

        try:
            path = Path(huggingface_hub.hf_hub_download(location, file))
        except EntryNotFoundError:
            return None
    if not path.is_file():
        return None
    with one_line_errors(f"reading {path}", caller=_CALLER):
        return json.loads(path.read_text("utf-8"))
