"""Features of sentences: computed by length, returned in the order of the files, and kept."""

import numpy as np
import pytest
import torch

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.data.config import TextConfig
from beliefmatch.experiments import adapt_inputs
from beliefmatch.experiments.adapt_inputs import text_inputs
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, TextAdaptConfig
from beliefmatch.models import PooledEncoder
from beliefmatch.models.text import TextModel
from encoders import TokenEncoder
from refusals import refusal
from tiny_text import write_csv

ROWS = [("abcdefgh"[: 1 + (7 * row) % 8], "even" if row % 2 == 0 else "odd") for row in range(50)]
OTHER = [(text,) for text in ("hh", "g", "fedcba", "hhh")]


class Letters:
    """A tokenizer with one token for each letter, and the interface of transformers."""

    def __call__(self, texts, *, padding, truncation, max_length, return_tensors):
        assert padding and truncation and return_tensors == "pt"
        ids = [[ord(letter) - ord("a") + 1 for letter in text[:max_length]] for text in texts]
        width = max(map(len, ids))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids])
        return {"input_ids": tokens, "attention_mask": (tokens > 0).long()}


@pytest.fixture
def model(monkeypatch):
    torch.manual_seed(0)
    model = TextModel(PooledEncoder(TokenEncoder()).eval(), Letters(), 6)
    monkeypatch.setattr(adapt_inputs, "text_model", lambda name, **options: model)
    return model


def built(directory, *, ood=(), batchnorm=False, **options):
    write_csv(directory / "data.csv", ROWS)
    data = TextConfig(name=f"{directory / 'data.csv'}", **options.pop("data", {}))
    config = TextAdaptConfig(
        model="hf:any", data=data, cache_dir=f"{directory / 'cache'}", batch_size=4, **options
    )
    return text_inputs(config, AdaptRunConfig(config, AdaptConfig(batchnorm=batchnorm), ood))


@torch.no_grad()
def alone(model, texts):
    """The features of sentences that go through the network one by one, without padding."""
    return torch.cat([model.network(**model.tokenize([text])) for text in texts])


def test_features_have_the_order_of_the_file(model, tmp_path):
    inputs = built(tmp_path, ood=(f"other={write_csv(tmp_path / 'o.csv', OTHER, ('text',))}",))
    sets = inputs.features(lambda share, doing: None)
    texts = [text for text, _ in ROWS]
    for role in ("train", "validation", "test"):
        rows, found = inputs.parts.role_rows[role].rows, getattr(sets, role)
        assert np.allclose(found.rows[:], alone(model, [texts[row] for row in rows]), atol=1e-6)
        assert found.targets.tolist() == [int(ROWS[row][1] == "odd") for row in rows]
    assert np.allclose(sets.ood["other"].rows[:], alone(model, [text for (text,) in OTHER]), atol=1e-6)
    assert sets.ood["other"].targets.tolist() == [-1] * 4
    assert inputs.uses == {"fit on": 32, "choose on": 8, "report on": 10}
    assert inputs.facts["max_length"] == 6 and inputs.facts["counts"]["train"] == 32


def test_another_split_computes_nothing_and_another_tokenizer_everything(model, tmp_path, monkeypatch):
    calls = []
    forward = TokenEncoder.forward

    def counted(self, input_ids, attention_mask=None):
        calls.append(len(input_ids))
        return forward(self, input_ids, attention_mask)

    monkeypatch.setattr(TokenEncoder, "forward", counted)

    def computed(inputs):
        calls.clear()
        inputs.features(lambda share, doing: None)
        return sum(calls)

    assert computed(built(tmp_path)) >= 50
    assert computed(built(tmp_path, data={"split_seed": 3, "validation": 5})) < 50  # a few to check the cache
    monkeypatch.setattr(adapt_inputs, "text_model", lambda name, **_: TextModel(model.network, Letters(), 5))
    assert computed(built(tmp_path)) >= 50


def test_of_limited_sentences_only_those_in_use_are_computed(model, tmp_path):
    inputs = built(tmp_path, data={"limit": 10})
    assert [len(one.source) for one in inputs.sets.values()] == [28]
    sets = inputs.features(lambda share, doing: None)
    texts = [ROWS[row][0] for row in inputs.parts.role_rows["train"].rows]
    assert np.allclose(sets.train.rows[:], alone(model, texts), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"compile": True}, "compile"),
        ({"batchnorm": True}, "train_batchnorm"),
        ({"head": "fc"}, "head"),
        ({"device": "nowhere"}, "device"),
        ({"ood": ("all=o.txt",)}, "ood"),
    ],
)
def test_what_text_does_not_have_is_refused(model, tmp_path, monkeypatch, options, argument):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o.txt").write_text("a\nb\n")
    assert f"`{argument}`" in refusal(built, tmp_path, **options)
