"""Encoders without a classification head: pooling to features, and the pooling that their files declare."""

import pytest
import torch
from torch import nn

from beliefmatch.models.encoder import EncoderClassifier, PooledEncoder, sentence_pooling
from encoders import TOKENS, TokenEncoder
from outside_packages import imported

LENGTHS = (4, 2, 3)


def by_hand(hidden, pooling):
    rows = [row[:length] for row, length in zip(hidden, LENGTHS, strict=True)]
    return torch.stack([{"mean": row.mean(0), "cls": row[0], "lasttoken": row[-1]}[pooling] for row in rows])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_features_are_those_of_the_tokens_that_the_mask_marks(pooling, normalize):
    encoder = TokenEncoder().double().eval()
    expected = by_hand(encoder(TOKENS["input_ids"]).last_hidden_state, pooling)
    if normalize:
        expected = expected / expected.square().sum(1, keepdim=True).sqrt()
    pooled = PooledEncoder(encoder, pooling, normalize=normalize)
    torch.testing.assert_close(pooled(**TOKENS), expected)
    torch.testing.assert_close(pooled(*TOKENS.values()), expected)
    head = nn.Linear(6, 3).double()
    torch.testing.assert_close(EncoderClassifier(pooled, head)(**TOKENS), head(expected))


def test_the_last_token_is_also_found_behind_padding_on_the_left():
    encoder = TokenEncoder().eval()
    flipped = {name: value.flip(1) for name, value in TOKENS.items()}
    last = PooledEncoder(encoder, "lasttoken")(**flipped)
    torch.testing.assert_close(last, PooledEncoder(encoder, "cls")(**TOKENS))


def test_every_token_counts_without_a_mask_and_none_of_an_empty_sentence():
    encoder = TokenEncoder().eval()
    ids, empty = TOKENS["input_ids"], torch.zeros(3, 4)
    hidden = encoder(ids).last_hidden_state
    torch.testing.assert_close(PooledEncoder(encoder)(ids), hidden.mean(1))
    torch.testing.assert_close(PooledEncoder(encoder, "lasttoken")(ids), hidden[:, -1])
    assert not PooledEncoder(encoder, normalize=True)(ids, empty).any()


class Returning(nn.Module):
    def __init__(self, returned):
        super().__init__()
        self.returned = returned

    def forward(self, input_ids, attention_mask=None):
        return self.returned


HIDDEN = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("returned", [HIDDEN, (HIDDEN, None), {"last_hidden_state": HIDDEN}])
def test_hidden_states_in_every_form_of_output(returned):
    pooled = PooledEncoder(Returning(returned))(**TOKENS)
    torch.testing.assert_close(pooled, by_hand(HIDDEN, "mean"))


def test_features_that_the_encoder_has_pooled_itself():
    rows = HIDDEN[:, 0]
    assert torch.equal(PooledEncoder(Returning(rows), "none")(TOKENS["input_ids"]), rows)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: PooledEncoder(TokenEncoder(), "max"), ValueError, "`pooling`"),  # pyright: ignore
        (lambda: PooledEncoder(Returning(HIDDEN[:, 0]))(**TOKENS), ValueError, "`encoder`"),
        (lambda: PooledEncoder(Returning(HIDDEN), "none")(**TOKENS), ValueError, "`encoder`"),
        (lambda: PooledEncoder(Returning({"logits": HIDDEN}))(**TOKENS), TypeError, "`encoder`"),
        (lambda: PooledEncoder(Returning(()))(**TOKENS), TypeError, "`encoder`"),
        (lambda: PooledEncoder(Returning(HIDDEN[:, :2]))(**TOKENS), ValueError, "`attention_mask`"),
    ],
)
def test_other_outputs_are_refused(call, error, named):
    with pytest.raises(error, match=f"^PooledEncoder: {named}"):
        call()


def module(kind, path=""):
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


FLAGS = {"word_embedding_dimension": 384, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("config", "normalize", "expected"),
    [
        (FLAGS | {"pooling_mode_mean_tokens": True}, True, ("mean", True)),
        (FLAGS | {"pooling_mode_cls_token": True}, False, ("cls", False)),
        (FLAGS | {"pooling_mode_lasttoken": True}, True, ("lasttoken", True)),
        (
            {"embedding_dimension": 384, "pooling_mode": "mean", "include_prompt": True},
            False,
            ("mean", False),
        ),
    ],
)
def test_the_pooling_that_a_sentence_encoder_declares(config, normalize, expected):
    modules = [module("Transformer"), module("Pooling", "1_Pooling")] + [module("Normalize")] * normalize
    files = {"modules.json": modules, "1_Pooling/config.json": config}
    assert sentence_pooling(files.get) == expected


@pytest.mark.parametrize("config", [FLAGS, {"pooling_mode": "max"}, dict.fromkeys(FLAGS, True)])
def test_a_pooling_that_is_not_supported_is_refused(config):
    files = {"modules.json": [module("Pooling", "1_Pooling")], "1_Pooling/config.json": config}
    with pytest.raises(ValueError, match=r"^sentence_pooling: "):
        sentence_pooling(files.get)


def test_encoders_that_declare_nothing_or_have_further_layers():
    assert sentence_pooling({}.get) is None
    assert sentence_pooling({"modules.json": [module("Transformer")]}.get) is None
    with pytest.raises(ValueError, match="Dense"):
        sentence_pooling({"modules.json": [module("Dense", "2_Dense")]}.get)


@pytest.mark.filterwarnings("ignore")
def test_the_hidden_states_of_a_bert():
    transformers = imported("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=20, **small)).eval()
    expected = by_hand(bert(**TOKENS).last_hidden_state, "mean")
    torch.testing.assert_close(PooledEncoder(bert)(**TOKENS), expected)
    torch.testing.assert_close(PooledEncoder(bert)(*TOKENS.values()), expected)
