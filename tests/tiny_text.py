"""Directories of tiny text networks with a tokenizer, as Hugging Face writes them, and sentences for them."""

import csv
import json

import torch

from outside_packages import imported

TOPICS = {"food": "pizza soup bread", "money": "bank card cash", "travel": "train plane ticket"}
COMMON = "i want the a my please now more"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WIDTH = 16
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}


def vocabulary():
    return [*SPECIAL, *" ".join([COMMON, *TOPICS.values()]).split()]


def save_tokenizer(directory, **options):
    """One token for each word."""
    transformers, tokenizers = imported("transformers"), imported("tokenizers")
    ids = {word: index for index, word in enumerate(vocabulary())}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    given = {**names, "model_max_length": 20, **options}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **given).save_pretrained(directory)


def save_network(directory, kind="BertModel", *, seed=0, **options):
    """A network that was not trained, but whose words of a topic are alike and which attends to all words."""
    transformers = imported("transformers")
    torch.manual_seed(seed)
    config = transformers.BertConfig(vocab_size=len(vocabulary()), **SIZES, **options)
    network = getattr(transformers, kind)(config).eval()
    body = getattr(network, "bert", network)
    with torch.no_grad():
        words = body.embeddings.word_embeddings.weight.normal_(std=0.3)
        for topic, named in enumerate(TOPICS.values()):
            for word in named.split():
                words[vocabulary().index(word), topic] += 4
        attention = body.encoder.layer[0].attention
        for layer in (attention.self.value, attention.output.dense):
            layer.weight.copy_(2 * torch.eye(WIDTH))
    network.save_pretrained(directory)
    save_tokenizer(directory)
    return network


def save_modules(directory, *, pooling="mean", normalize=True):
    """The files that sentence-transformers adds to an encoder."""
    kinds = ["Transformer", "Pooling", "Normalize"][: 3 if normalize else 2]
    modules = [
        {
            "idx": index,
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in ("cls_token", "mean_tokens")}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))


def sentences(count, *, seed=0, topics=tuple(TOPICS)):
    """Sentences of 3 to 9 words with their topics."""
    chance = torch.Generator().manual_seed(seed)

    def pick(words, many):
        return [words[int(place)] for place in torch.randint(len(words), (many,), generator=chance)]

    rows = []
    for index in range(count):
        topic = topics[index % len(topics)]
        few = int(torch.randint(1, 5, (1,), generator=chance))
        words = pick(COMMON.split(), few) + pick(TOPICS[topic].split(), 2) + pick(COMMON.split(), few - 1)
        rows.append((" ".join(words), topic))
    return rows


def write_csv(path, rows, columns=("text", "intent")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path
