"""The loss and the metrics of belief matching in the Trainer of Hugging Face."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from beliefmatch import belief_matching_loss, metrics
from beliefmatch.integrations.transformers import compute_loss_func, compute_metrics
from outside_packages import imported

transformers = imported("transformers")
imported("accelerate")

CLASSES, LENGTH, RATE = 5, 7, 0.05
TEXT = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": LENGTH,
    "num_labels": CLASSES,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
IMAGE = {name: TEXT[name] for name in TEXT if name not in ("vocab_size", "max_position_embeddings")}


def sequence_model():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT))


def token_model():
    return transformers.BertForTokenClassification(transformers.BertConfig(**TEXT))


def image_model():
    config = transformers.ViTConfig(**IMAGE, image_size=4, patch_size=2)
    return transformers.ViTForImageClassification(config)


def words(rows):
    return {"input_ids": torch.randint(TEXT["vocab_size"], (rows, LENGTH))}


def pixels(rows):
    return {"pixel_values": torch.randn(rows, 3, 4, 4, dtype=torch.float64)}


def ids(*shape):
    return torch.randint(CLASSES, shape)


def some_ids(*shape):
    """Ids of which more are ignored in later rows, so that each part of a batch has another number."""
    share = torch.linspace(0.9, 0.2, shape[0])[:, None]
    return torch.where(torch.rand(shape) < share, ids(*shape), -100)


def votes(*shape):
    return torch.randint(4, (*shape, CLASSES))


def some_votes(*shape):
    share = torch.linspace(0.9, 0.2, shape[0])[:, None, None]
    return torch.where(torch.rand(*shape, 1) < share, votes(*shape), -100)


TASKS = {
    "sequence, ids": (sequence_model, words, lambda rows: ids(rows)),
    "sequence, votes": (sequence_model, words, lambda rows: votes(rows)),
    "tokens, ids": (token_model, words, lambda rows: some_ids(rows, LENGTH)),
    "tokens, votes": (token_model, words, lambda rows: some_votes(rows, LENGTH)),
    "image, ids": (image_model, pixels, lambda rows: ids(rows)),
    "image, votes": (image_model, pixels, lambda rows: votes(rows)),
}


def problem(task, rows, seed=0):
    """A model in double precision without dropout, and a list of examples."""
    torch.manual_seed(seed)
    make_model, make_inputs, make_labels = TASKS[task]
    columns = {**make_inputs(rows), "labels": make_labels(rows)}
    examples = [{name: column[row] for name, column in columns.items()} for row in range(rows)]
    return make_model().double(), examples


def trainer(model, examples, place, *, batch, accumulate=1, parameters=None, gpus=None, **options):
    usual = {
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "gradient_accumulation_steps": accumulate,
        "num_train_epochs": 2,
        "max_grad_norm": 0.0,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    arguments = transformers.TrainingArguments(output_dir=f"{place}", **usual | (parameters or {}))
    if gpus is not None:
        arguments._n_gpu = gpus
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return transformers.Trainer(
        model, arguments, train_dataset=examples, optimizers=(optimizer, constant), **options
    )


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def items(logits, labels):
    """Logits (N, K) and targets of the items that count, written out one by one."""
    flat = logits.reshape(-1, CLASSES)
    if labels.shape == logits.shape:
        rows = labels.reshape(-1, CLASSES)
        kept = [row for row in range(len(rows)) if (rows[row] >= 0).all()]
        return flat[kept], rows[kept].double()
    kept = [row for row, label in enumerate(labels.flatten().tolist()) if label != -100]
    return flat[kept], labels.flatten()[kept]


def trained_by_hand(model, examples, *, batch, epochs=2, **options):
    """The loop that the Trainer stands for: a mean over the items of each whole batch."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(epochs):
        for first in range(0, len(examples), batch):
            part = examples[first : first + batch]
            inputs = {name: torch.stack([example[name] for example in part]) for name in part[0]}
            labels = inputs.pop("labels")
            loss = belief_matching_loss(*items(model(**inputs).logits, labels), **options)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return weights(model)


# The Trainer


@pytest.mark.parametrize("rows", [16, 18, 21])  # whole; a last step of one part; a last part of one row
@pytest.mark.parametrize("task", TASKS)
def test_accumulated_gradients_equal_those_of_one_large_batch(task, rows, tmp_path):
    model, examples = problem(task, rows)
    expected = trained_by_hand(copy.deepcopy(model), examples, batch=8, kl_weight=0.05)
    before = weights(model)
    loss = compute_loss_func(kl_weight=0.05)
    trainer(model, examples, tmp_path, batch=4, accumulate=2, compute_loss_func=loss).train()
    assert (expected - before).abs().max() > 1e-2
    torch.testing.assert_close(weights(model), expected, rtol=1e-9, atol=1e-9)


def test_the_loss_that_is_logged_is_the_mean_over_the_items(tmp_path):
    model, examples = problem("tokens, ids", 16)
    with torch.no_grad():
        logits = model(input_ids=torch.stack([example["input_ids"] for example in examples])).logits
    labels = torch.stack([example["labels"] for example in examples])
    expected = belief_matching_loss(*items(logits, labels)).item()
    options = {"num_train_epochs": 1, "logging_strategy": "steps", "logging_steps": 1}
    run = trainer(
        model,
        examples,
        tmp_path,
        batch=4,
        accumulate=4,
        parameters=options,
        compute_loss_func=compute_loss_func(),
    )
    run.train()
    assert run.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-6)


def test_evaluation_gives_the_loss_and_the_metrics_of_all_examples(tmp_path):
    model, examples = problem("sequence, ids", 20)
    run = trainer(
        model,
        examples,
        tmp_path,
        batch=6,
        compute_loss_func=compute_loss_func(),
        compute_metrics=compute_metrics,
    )
    found = run.evaluate(examples)
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.stack([example["input_ids"] for example in examples])).logits
    labels = torch.stack([example["labels"] for example in examples])
    assert found["eval_loss"] == pytest.approx(belief_matching_loss(logits, labels).item())
    probs = logits.softmax(1)
    assert found["eval_nll"] == pytest.approx(F.cross_entropy(logits, labels).item())
    assert found["eval_error"] == pytest.approx(metrics.error(probs, labels))
    assert found["eval_ece"] == pytest.approx(metrics.expected_calibration_error(probs, labels))


@pytest.mark.parametrize("task", ["tokens, ids", "tokens, votes"])
def test_evaluation_of_tokens_leaves_padding_out(task, tmp_path):
    model, examples = problem(task, 11)
    run = trainer(model, examples, tmp_path, batch=4, compute_metrics=compute_metrics)
    run.compute_loss_func = compute_loss_func()
    found = run.evaluate(examples)
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.stack([example["input_ids"] for example in examples])).logits
    logits, targets = items(logits, torch.stack([example["labels"] for example in examples]))
    if targets.dim() == 2:
        logits, targets = logits[targets.sum(1) > 0], targets[targets.sum(1) > 0]
        targets = targets / targets.sum(1, keepdim=True)
    assert found["eval_nll"] == pytest.approx(F.cross_entropy(logits, targets).item())


def test_the_trainers_own_loss_of_votes_is_binary_and_divided_by_all_their_entries(tmp_path):
    """Why votes need `compute_loss_func`: the default treats them as labels of independent classes."""
    model, examples = problem("sequence, votes", 8)
    for example in examples:
        example["labels"] = example["labels"].double()
    run = trainer(model, examples, tmp_path, batch=8)
    found = run.evaluate(examples)["eval_loss"]
    assert model.config.problem_type == "multi_label_classification"
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.stack([example["input_ids"] for example in examples])).logits
    counts = torch.stack([example["labels"] for example in examples])
    total = F.binary_cross_entropy_with_logits(logits, counts, reduction="sum").item()
    assert found == pytest.approx(total / counts.numel())


def test_the_trainer_counts_each_entry_of_votes_as_an_item(tmp_path):
    model, examples = problem("sequence, votes", 8)
    seen = []

    def loss(outputs, labels, num_items_in_batch):
        seen.append((len(labels), int(num_items_in_batch)))
        return compute_loss_func()(outputs, labels, num_items_in_batch)

    trainer(model, examples, tmp_path, batch=4, accumulate=2, compute_loss_func=loss).train()
    assert set(seen) == {(4, 8 * CLASSES)}


def test_several_gpus_of_one_process_train_like_one(tmp_path):
    """`DataParallel` without a GPU passes all examples to the one model; the Trainer scales as for two."""
    model, examples = problem("tokens, ids", 16)
    expected = trained_by_hand(copy.deepcopy(model), examples, batch=8)
    loss = compute_loss_func()
    run = trainer(model, examples, tmp_path, batch=2, accumulate=2, gpus=2, compute_loss_func=loss)
    assert run.args.train_batch_size == 4
    run.train()
    torch.testing.assert_close(weights(model), expected, rtol=1e-9, atol=1e-9)


def test_a_checkpoint_resumes_to_the_weights_of_one_run(tmp_path):
    model, examples = problem("sequence, votes", 12)
    again, expected = copy.deepcopy(model), copy.deepcopy(model)
    loss, saving = compute_loss_func(target_confidence=0.9), {"save_strategy": "epoch"}
    trainer(expected, examples, tmp_path / "whole", batch=4, compute_loss_func=loss).train()
    run = trainer(model, examples, tmp_path, batch=4, parameters=saving, compute_loss_func=loss)
    run.train()
    run = trainer(again, examples, tmp_path, batch=4, compute_loss_func=loss)
    run.train(resume_from_checkpoint=f"{tmp_path / 'checkpoint-3'}")
    torch.testing.assert_close(weights(run.model), weights(expected), rtol=1e-9, atol=1e-9)


# The function itself

LOGITS = torch.randn(6, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([0, 4, 2, -100, 1, 1])


@pytest.mark.parametrize("options", [{}, {"kl_weight": 0.1, "prior": 2.0}, {"target_confidence": 0.8}])
@pytest.mark.parametrize("outputs", [{"logits": LOGITS}, (LOGITS, None)])
def test_without_a_number_of_items_it_is_the_mean(options, outputs):
    found = compute_loss_func(**options)(outputs, IDS)
    torch.testing.assert_close(found, belief_matching_loss(LOGITS, IDS, **options))


def test_a_prior_and_weights_of_each_class_are_those_of_the_loss():
    prior, weight = torch.rand(CLASSES, dtype=torch.float64) + 0.5, torch.rand(CLASSES, dtype=torch.float64)
    loss = compute_loss_func(prior=prior, weight=weight)
    each = belief_matching_loss(LOGITS, IDS, prior=prior, weight=weight, reduction="none")
    torch.testing.assert_close(loss({"logits": LOGITS}, IDS, num_items_in_batch=20), each.sum() / 20)


def test_a_part_without_any_item_adds_nothing():
    loss = compute_loss_func()({"logits": LOGITS.requires_grad_()}, torch.full((6,), -100), torch.tensor(9))
    assert loss.item() == 0
    loss.backward()
    assert not LOGITS.grad.any()
    LOGITS.grad = None
    LOGITS.requires_grad_(False)


def test_one_hot_votes_equal_class_ids_also_as_integers_and_in_half_precision():
    valid = IDS.clamp(min=0)
    hot = F.one_hot(valid, CLASSES)
    loss, outputs = compute_loss_func(), {"logits": LOGITS}
    torch.testing.assert_close(loss(outputs, hot, 6 * CLASSES), loss(outputs, valid, 6))
    half = loss({"logits": LOGITS.bfloat16()}, hot)
    torch.testing.assert_close(half, loss({"logits": LOGITS.bfloat16()}, valid))


def test_it_can_be_pickled():
    loss = pickle.loads(pickle.dumps(compute_loss_func(weight=torch.ones(CLASSES, dtype=torch.float64))))
    torch.testing.assert_close(loss({"logits": LOGITS}, IDS), belief_matching_loss(LOGITS, IDS))


@pytest.mark.parametrize(
    ("outputs", "labels", "kind", "argument"),
    [
        ({"logits": LOGITS}, None, TypeError, "labels"),
        ({"logits": LOGITS}, IDS[:4], ValueError, "labels"),
        ({"logits": LOGITS}, IDS[:, None], ValueError, "labels"),
        ({"logits": LOGITS}, IDS + CLASSES, ValueError, "labels"),
        ({"logits": LOGITS}, IDS.double(), ValueError, "labels"),
        ({"logits": LOGITS}, torch.full((6, CLASSES), -1), ValueError, "labels"),
        ({"logits": torch.zeros(2, CLASSES, 3, 3)}, torch.zeros(2, 3, 3).long(), ValueError, "labels"),
        ({"last_hidden_state": LOGITS}, IDS, TypeError, "outputs"),
        (LOGITS, IDS, TypeError, "outputs"),
        ((), IDS, TypeError, "outputs"),
    ],
)
def test_invalid_outputs_and_labels_are_named(outputs, labels, kind, argument):
    with pytest.raises(kind, match=rf"^compute_loss_func: `{argument}` ") as caught:
        compute_loss_func()(outputs, labels)
    assert "\n" not in f"{caught.value}"


def test_a_causal_language_model_is_refused_because_its_labels_are_shifted():
    outputs = transformers.modeling_outputs.CausalLMOutput(logits=LOGITS[None])
    with pytest.raises(TypeError, match=r"^compute_loss_func: `outputs` .*CausalLM"):
        compute_loss_func()(outputs, IDS[None])


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"kl_weight": -1.0}, "kl_weight"),
        ({"kl_weight": 0.1, "target_confidence": 0.9}, "kl_weight"),
        ({"target_confidence": 1.5}, "target_confidence"),
        ({"prior": 0.0}, "prior"),
        ({"weight": [1.0, 2.0]}, "weight"),
    ],
)
def test_invalid_options_are_named_at_once(options, argument):
    with pytest.raises((ValueError, TypeError), match=rf"^compute_loss_func: .*`{argument}`"):
        compute_loss_func(**options)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (({"logits": LOGITS}, IDS), {"num_items_in_batch": 6}),
        ((), {"num_items_in_batch": 6}),
        ((LOGITS,), {}),
    ],
)
def test_the_trainer_that_got_the_maker_in_place_of_the_loss_is_told(given, options):
    with pytest.raises(TypeError, match=r"^compute_loss_func: .*compute_loss_func=compute_loss_func\(\)\.$"):
        compute_loss_func(*given, **options)


def test_metrics_of_logits_that_are_not_numbers_are_not_numbers():
    logits = LOGITS.numpy().copy()
    logits[2] = np.nan
    found = compute_metrics(SimpleNamespace(predictions=logits, label_ids=IDS.numpy()))
    assert found.keys() == {"error", "nll", "ece"} and np.isnan([*found.values()]).all()
    logits[2], logits[3] = 0, np.nan  # an ignored row
    found = compute_metrics(SimpleNamespace(predictions=logits, label_ids=IDS.numpy()))
    assert np.isfinite([*found.values()]).all()


@pytest.mark.parametrize(
    ("predictions", "labels", "argument"),
    [
        (LOGITS.numpy(), None, "label_ids"),
        (LOGITS.numpy(), (IDS.numpy(), IDS.numpy()), "label_ids"),
        (LOGITS.numpy(), IDS.numpy() + CLASSES, "label_ids"),
        (LOGITS.numpy(), np.where(IDS == 4, -1, IDS), "label_ids"),
        (LOGITS.numpy(), IDS.double().numpy(), "label_ids"),
        (LOGITS.numpy(), IDS.numpy()[:4], "label_ids"),
        (LOGITS.numpy(), np.full((6, CLASSES), -1), "label_ids"),
        (LOGITS.numpy(), np.tile([1, -1, 0, 0, 0], (6, 1)), "label_ids"),
        ({"logits": LOGITS.numpy(), "hidden": 0}, IDS.numpy(), "predictions"),
        (({"logits": LOGITS.numpy()},), IDS.numpy(), "predictions"),
        ((), IDS.numpy(), "predictions"),
    ],
)
def test_predictions_that_metrics_cannot_use_are_named(predictions, labels, argument):
    with pytest.raises((ValueError, TypeError), match=rf"^compute_metrics: `{argument}` ") as caught:
        compute_metrics(SimpleNamespace(predictions=predictions, label_ids=labels))
    assert "\n" not in f"{caught.value}"


def test_metrics_of_votes_are_means_over_votes():
    logits = LOGITS.numpy()
    counts = np.array([[3, 0, 0, 0, 1], [0] * 5, [-100] * 5, [0, 2, 0, 0, 0], [1] * 5, [0] * 5])
    found = compute_metrics(SimpleNamespace(predictions=(logits, "hidden"), label_ids=counts))
    logs = LOGITS.log_softmax(1)
    shares = {0: [0.75, 0, 0, 0, 0.25], 3: [0, 1, 0, 0, 0], 4: [0.2] * 5}
    surprise = [-(logs[row] * torch.tensor(share).double()).sum().item() for row, share in shares.items()]
    hits = [share[logs[row].argmax()] for row, share in shares.items()]
    assert found["nll"] == pytest.approx(np.mean(surprise))
    assert found["error"] == pytest.approx(1 - np.mean(hits))
