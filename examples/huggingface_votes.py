"""Votes in the Trainer of Hugging Face: belief matching, and what the Trainer does by itself.

    python examples/huggingface_votes.py

A small BERT, not pretrained, learns from sentences of made-up words that five people each have voted on.
Four trainings see the same sentences: belief matching on the votes, cross-entropy on their shares and on the
class with most votes, and the Trainer's own loss of the votes, which takes them for labels of independent
classes. All are scored by the NLL of held-out votes; lower is better, and the probabilities that the votes
were drawn from give the least.

Needs `pip install "beliefmatch[huggingface]" accelerate`.
"""

import sys
import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from beliefmatch.integrations.transformers import compute_loss_func, compute_metrics

CLASSES, WORDS, LENGTH, PEOPLE = 3, 40, 6, 5


def sentences(rows: int, seed: int) -> tuple[list[dict[str, Tensor]], Tensor]:
    """Examples with votes as labels, and the probabilities that the votes were drawn from."""
    meanings = 1.5 * torch.randn(WORDS, CLASSES, generator=torch.Generator().manual_seed(0))
    chance = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (rows, LENGTH), generator=chance)
    probs = meanings[words].mean(1).mul(2).softmax(1)
    drawn = torch.multinomial(probs, PEOPLE, replacement=True, generator=chance)
    votes = torch.nn.functional.one_hot(drawn, CLASSES).sum(1).float()
    return [{"input_ids": ids, "labels": row} for ids, row in zip(words, votes, strict=True)], probs


def trained(examples: list[dict[str, Tensor]], *, epochs: int = 8, **options) -> Trainer:
    """A small network, trained with gradients accumulated over two batches."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, num_labels=CLASSES, **sizes)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=examples,  # pyright: ignore[reportArgumentType]
        compute_metrics=compute_metrics,
        **options,
    )
    trainer.train()
    trainer.compute_loss_func = compute_loss_func()  # so that predictions can be evaluated by votes
    return trainer


def shares_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int) -> Tensor:
    """Cross-entropy on the shares of the votes; the Trainer counts each example as many times as classes."""
    total = torch.nn.functional.cross_entropy(outputs.logits, labels / PEOPLE, reduction="sum")
    return total / (num_items_in_batch / CLASSES)


def run(rows: int = 2000) -> dict[str, float]:
    """NLL of held-out votes of each training, and of the people's own probabilities."""
    votes, _ = sentences(rows, seed=1)
    test, probs = sentences(rows // 2, seed=2)
    majority = [{**example, "labels": example["labels"].argmax()} for example in votes]
    trainers = {
        "belief matching on votes": trained(votes, compute_loss_func=compute_loss_func(kl_weight=0.1)),
        "cross-entropy on shares": trained(votes, compute_loss_func=shares_loss),
        "cross-entropy on the majority": trained(majority),
        "the Trainer's own loss of votes": trained(votes),
    }
    found = {name: trainer.predict(test).metrics["test_nll"] for name, trainer in trainers.items()}
    shares = torch.stack([example["labels"] for example in test]) / PEOPLE
    return {**found, "the people's probabilities": -(shares * probs.log()).sum(1).mean().item()}


if __name__ == "__main__":
    for name, nll in run(*map(int, sys.argv[1:])).items():
        print(f"{name:32} NLL of a vote {nll:.3f}")
