"""Heads of `beliefmatch adapt` held against scikit-learn's LogisticRegression on the same features.

    python benchmarks/adapt_heads.py                                       the embedded digits
    python benchmarks/adapt_heads.py clinc=clinc.npz cifar10=cifar10.npz   and features of your own
    python benchmarks/adapt_heads.py --json results.json

A file holds the arrays of `beliefmatch adapt --features`: train_features, train_targets, and those of
validation and test. All contenders take turns, `--rounds` times; times are
processor seconds (all threads), and the median of the rounds is shown. LogisticRegression is fitted with the
defaults of scikit-learn and C from 1 to 1000, up to 1000 iterations; "one head" is a softmax head at the
weight decay that the search has chosen, from zero; "search" is everything that `adapt` fits by default, with
calibrations and the choice.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from beliefmatch._environment import hardware, versions
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.scoring import score
from beliefmatch.adaptation.search import HeadSearch
from beliefmatch.adaptation.stored import feature_sets

STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
PARTS = ("train", "validation", "test")


def digits() -> FeatureSets:
    """scikit-learn's 1,797 digits, pixels as features: 60, 20 and 20 %."""
    rows, targets = load_digits(return_X_y=True)
    rows, test_rows, targets, test_targets = train_test_split(
        rows, targets, test_size=0.2, random_state=0, stratify=targets
    )
    rows, val_rows, targets, val_targets = train_test_split(
        rows, targets, test_size=0.25, random_state=0, stratify=targets
    )
    made = [
        Features(np.asarray(x, np.float32), torch.from_numpy(np.asarray(y)).long(), "digits")
        for x, y in ((rows, targets), (val_rows, val_targets), (test_rows, test_targets))
    ]
    return FeatureSets(made[0], made[1], made[2])


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of all threads, and the result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def logistic_regression(sets: FeatureSets, strength: float) -> LogisticRegression:
    """What a user would type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=1000).fit(
            np.asarray(sets.train.rows), sets.train.targets.numpy()
        )


def one_head(sets: FeatureSets, classes: int, weight_decay: float) -> HeadSearch:
    """A softmax head from zero."""
    search = HeadSearch(
        sets.train, sets.validation, classes, config=AdaptConfig(weight_decays=[weight_decay])
    )
    search.softmax()
    return search


def measured(name: str, sets: FeatureSets, rounds: int) -> dict[str, Any]:
    """One data set: quality of every contender, and the median of its times."""
    classes = int(sets.train.targets.max()) + 1
    times: dict[str, list[float]] = {}
    rows: dict[str, dict[str, float]] = {}
    adaptation: Adaptation | None = None
    for _ in range(rounds):
        for strength in STRENGTHS:
            label = f"LogisticRegression C={strength:g}"
            spent, model = seconds(lambda strength=strength: logistic_regression(sets, strength))
            times.setdefault(label, []).append(spent)
            rows[label] = sklearn_scores(model, sets)
        spent, adaptation = seconds(lambda: refit(sets, adapt_config=AdaptConfig()))
        times.setdefault("search", []).append(spent)
        assert adaptation is not None
        decay = adaptation.table["softmax"][0].candidate.weight_decay
        spent, _ = seconds(lambda decay=decay: one_head(sets, classes, decay))
        times.setdefault("one head", []).append(spent)
    assert adaptation is not None and sets.test is not None
    for label, heads in adaptation.table.items():
        head, test = heads[0], score(heads[0], sets.test)
        assert head.validation is not None
        rows[label] = {
            "validation_nll": head.validation.nll,
            "test_nll": test.nll,
            "test_error": test.error,
            "test_ece": test.ece,
            "iterations": head.iterations,
            "converged": head.converged,
        }
    spent = {label: median(values) for label, values in times.items()}
    return {
        "name": name,
        "rows": [len(getattr(sets, part)) for part in PARTS],
        "width": sets.train.width,
        "classes": classes,
        "heads": rows,
        "seconds": spent,
        "bars": bars(rows, spent),
    }


def sklearn_scores(model: LogisticRegression, sets: FeatureSets) -> dict[str, float]:
    """NLL on validation and test rows, and the test error."""
    assert sets.test is not None
    labels = np.arange(model.coef_.shape[0]) if model.coef_.shape[0] > 1 else np.arange(2)
    found = {}
    for part in ("validation", "test"):
        features = getattr(sets, part)
        probs = model.predict_proba(np.asarray(features.rows))
        found[f"{part}_nll"] = float(log_loss(features.targets.numpy(), probs, labels=labels))
    wrong = np.asarray(model.predict(np.asarray(sets.test.rows))) != sets.test.targets.numpy()
    return {**found, "test_error": float(np.mean(wrong)), "iterations": int(model.n_iter_[0])}


def bars(rows: dict[str, dict[str, float]], spent: dict[str, float]) -> dict[str, float]:
    """The ratios that are to be kept below 1.01, 1.01, 1.03, 1 and 8."""
    regressions = {label: one for label, one in rows.items() if label.startswith("Logistic")}
    best = min(regressions, key=lambda label: regressions[label]["validation_nll"])
    least = {key: min(one[key] for one in regressions.values()) for key in ("validation_nll", "test_nll")}
    return {
        "softmax / best LogisticRegression, validation NLL": rows["softmax"]["validation_nll"]
        / least["validation_nll"],
        "softmax / best LogisticRegression, test NLL": rows["softmax"]["test_nll"] / least["test_nll"],
        "belief matching / softmax, test NLL": rows["belief matching"]["test_nll"]
        / rows["softmax"]["test_nll"],
        "one head / LogisticRegression, seconds": spent["one head"] / spent[best],
        "search / LogisticRegression, seconds": spent["search"] / spent[best],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="NAME=FILE", help="features with targets")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", help="file to write the results to")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    named = {"digits": digits()}
    for text in args.sets:
        name, _, path = text.partition("=")
        named[name], _ = feature_sets(path)
    results = [measured(name, sets, args.rounds) for name, sets in named.items()]
    for one in results:
        print(f"\n{one['name']}: rows {one['rows']}, {one['width']} features, {one['classes']} classes")
        for label, row in one["heads"].items():
            spent = one["seconds"].get(label)
            end = "" if spent is None else f"  {spent:7.3f} s"
            print(
                f"  {label:32} NLL {row['validation_nll']:.4f} validation, {row['test_nll']:.4f} test, "
                f"error {100 * row['test_error']:5.2f} %, {row['iterations']:4d} iterations{end}"
            )
        print(f"  one head {one['seconds']['one head']:.3f} s, search {one['seconds']['search']:.3f} s")
        for label, ratio in one["bars"].items():
            print(f"  {label:52} {ratio:.3f}")
    if args.json:
        facts = {"rounds": args.rounds, "threads": args.threads, "hardware": hardware()}
        packages = versions("beliefmatch", "torch", "numpy", "scikit-learn")
        text = json.dumps({"facts": {**facts, "versions": packages}, "sets": results}, indent=1)
        Path(args.json).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
