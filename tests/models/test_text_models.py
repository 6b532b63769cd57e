"""Sequence classifiers and encoders of Hugging Face: built from a directory, and again from their files."""

import json

import pytest
import torch
from safetensors.torch import save_file

from beliefmatch.models import PooledEncoder
from beliefmatch.models.text import stored_text_model, text_model
from outside_packages import imported
from tiny_text import SIZES, TOPICS, WIDTH, save_modules, save_network, save_tokenizer, vocabulary

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of external packages are not ours

TEXTS = ["i want pizza", "my bank card now please", "ticket"]
NAMES = {0: "travel", 1: "food", 2: "money"}


@torch.no_grad()
def output(model, texts):
    found = model.network(**model.tokenize(texts))
    return getattr(found, "logits", found)


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("mean", False), ("cls", True)])
def test_an_encoder_pools_as_its_modules_say(tmp_path, pooling, normalize):
    theirs = save_network(tmp_path)
    save_modules(tmp_path, pooling=pooling, normalize=normalize)
    model = text_model(f"hf:{tmp_path}")
    assert isinstance(model.network, PooledEncoder) and not model.network.training
    assert model.max_length == 12 and model.class_names is None
    rows = []
    for text in TEXTS:  # one by one, so that there is no padding to leave out
        hidden = theirs(**model.tokenize([text])).last_hidden_state[0]
        row = hidden.mean(0) if pooling == "mean" else hidden[0]
        rows.append(row / row.norm() if normalize else row)
    assert torch.allclose(output(model, TEXTS), torch.stack(rows), atol=1e-5)


def test_an_encoder_without_modules_takes_the_mean_of_the_tokens(tmp_path):
    save_network(tmp_path, "BertForMaskedLM")
    model = text_model(f"hf:{tmp_path}")
    assert model.facts() == {"max_length": 20, "pooling": {"pooling": "mean", "normalize": False}}
    assert output(model, TEXTS).shape == (3, WIDTH)


def test_long_sentences_are_cut_off(tmp_path):
    save_network(tmp_path)
    save_tokenizer(tmp_path, model_max_length=10**30)
    model = text_model(f"hf:{tmp_path}")
    assert model.max_length == SIZES["max_position_embeddings"]
    assert model.tokenize(["pizza " * 99, "soup"])["input_ids"].shape == (2, 24)
    assert output(model, ["pizza " * 99]).isfinite().all()


def test_a_classifier_keeps_its_head_and_the_names_of_its_classes(tmp_path):
    theirs = save_network(tmp_path, "BertForSequenceClassification", id2label=NAMES)
    model = text_model(f"hf:{tmp_path}")
    assert model.class_names == ("travel", "food", "money")
    assert torch.equal(output(model, TEXTS), theirs(**model.tokenize(TEXTS)).logits)
    assert model.facts()["pooling"] is None
    other = tmp_path / "unnamed"
    save_network(other, "BertForSequenceClassification", num_labels=len(TOPICS))
    assert text_model(f"hf:{other}").class_names is None


@pytest.mark.parametrize("kind", ["BertModel", "BertForSequenceClassification"])
def test_a_model_is_built_again_from_its_files(tmp_path, kind):
    save_network(tmp_path / "model", kind)
    model = text_model(f"hf:{tmp_path / 'model'}")
    stored = tmp_path / "stored"
    for name, content in model.files().items():
        assert name.endswith((".json", ".txt"))
        (stored / name).parent.mkdir(parents=True, exist_ok=True)
        (stored / name).write_bytes(content)
    again = stored_text_model(stored, json.loads(json.dumps(model.facts())))
    again.network.load_state_dict(model.network.state_dict())
    assert torch.equal(output(again, TEXTS), output(model, TEXTS))
    (stored / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"^predict: "):
        stored_text_model(stored, model.facts())


def test_weights_of_a_file_take_the_place_of_the_published_ones(tmp_path):
    published = save_network(tmp_path / "a", "BertForSequenceClassification")
    other = save_network(tmp_path / "b", "BertForSequenceClassification", seed=1)
    save_file(other.state_dict(), tmp_path / "w.safetensors")
    model = text_model(f"hf:{tmp_path / 'a'}", weights=tmp_path / "w.safetensors")
    assert torch.equal(output(model, TEXTS), other(**model.tokenize(TEXTS)).logits)
    assert not torch.equal(output(model, TEXTS), published(**model.tokenize(TEXTS)).logits)


def test_a_decoder_pads_with_its_last_token(tmp_path):
    transformers = imported("transformers")
    config = transformers.GPT2Config(
        vocab_size=len(vocabulary()), n_positions=24, n_embd=WIDTH, n_layer=1, n_head=2, num_labels=3
    )
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, pad_token=None, eos_token="[SEP]")
    model = text_model(f"hf:{tmp_path}")
    one_by_one = torch.cat([output(model, [text]) for text in TEXTS])
    assert torch.allclose(output(model, TEXTS), one_by_one, atol=1e-5)
    save_tokenizer(tmp_path, pad_token=None)
    with pytest.raises(ValueError, match="padding token"):
        text_model(f"hf:{tmp_path}")


def test_half_precision_becomes_single(tmp_path):
    save_network(tmp_path).half().save_pretrained(tmp_path)
    assert {tensor.dtype for tensor in text_model(f"hf:{tmp_path}").network.parameters()} == {torch.float32}


def test_no_code_and_no_pickle_is_loaded(tmp_path):
    network = save_network(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=rf"^text_model: hf:{tmp_path} failed") as caught:
        text_model(f"hf:{tmp_path}")
    assert "\n" not in f"{caught.value}"
    with pytest.raises(ValueError, match="`trust_remote_code`"):
        text_model(f"hf:{tmp_path}", options={"trust_remote_code": True})


@pytest.mark.parametrize("name", ["resnet18", "timm:resnet18", "hf:", "hf:a/b/c", "hf:../absent dir"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="`name`"):
        text_model(name)


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    save_network(tmp_path)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"^text_model: .*tokenizer"):
        text_model(f"hf:{tmp_path}")
