"""Heads of `beliefmatch adapt --features` on small data sets, held against scikit-learn's LogisticRegression.

    python benchmarks/adapt_small.py                     six splits of each set, a few minutes
    python benchmarks/adapt_small.py --json small.json

Sets are those that scikit-learn carries, and one with 15 % wrong labels that it makes: 65 % of the rows to
fit on, 15 % to choose on, 20 % to test, stratified. LogisticRegression has its defaults, on features as they
are and standardised; LogisticRegressionCV chooses C by the log-loss of five folds. None of them sees the rows
to choose on, as C = 1 needs none and the last one has its folds.
"""

import argparse
import json
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from beliefmatch._environment import hardware, versions
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.scoring import score

SETS: dict[str, Any] = {
    "iris": load_iris(return_X_y=True),
    "wine": load_wine(return_X_y=True),
    "breast cancer": load_breast_cancer(return_X_y=True),
    "noisy labels": make_classification(600, 30, n_informative=8, n_classes=3, flip_y=0.15, random_state=1),
    "digits": load_digits(return_X_y=True),
}
CONTENDERS = {
    "LogisticRegression": lambda: LogisticRegression(max_iter=5000),
    "LogisticRegression, standardised": lambda: make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=5000)
    ),
    "LogisticRegressionCV, standardised": lambda: make_pipeline(
        StandardScaler(), LogisticRegressionCV(Cs=10, max_iter=2000, scoring="neg_log_loss", cv=5)
    ),
}
HEADS = ("softmax", "belief matching")


def features(rows: Any, targets: Any) -> Features:
    return Features(np.asarray(rows, np.float32), torch.as_tensor(np.asarray(targets)).long(), "small")


def split_scores(rows: np.ndarray, targets: np.ndarray, seed: int) -> dict[str, tuple[float, float]]:
    """Test NLL and error of every contender on one split."""
    rest, test, rest_targets, test_targets = train_test_split(
        rows, targets, test_size=0.2, random_state=seed, stratify=targets
    )
    train, held, train_targets, held_targets = train_test_split(
        rest, rest_targets, test_size=0.1875, random_state=seed, stratify=rest_targets
    )
    sets = FeatureSets(features(train, train_targets), features(held, held_targets))
    table = refit(sets).table
    found = {}
    for label in HEADS:
        scores = score(table[label][0], features(test, test_targets))
        found[label] = scores.nll, scores.error
    for label, make in CONTENDERS.items():
        model = make().fit(train, train_targets)
        wrong = np.asarray(model.predict(test)) != test_targets
        found[label] = float(log_loss(test_targets, model.predict_proba(test))), float(np.mean(wrong))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--json", help="file to write the results to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of few validation rows, and of scikit-learn
    labels = (*HEADS, *CONTENDERS)
    print(f"| test NLL (error %), mean of {args.splits} splits | {' | '.join(labels)} |")
    print("|---|" + "---:|" * len(labels))
    results = {}
    for name, (rows, targets) in SETS.items():
        splits = [split_scores(rows, targets, seed) for seed in range(args.splits)]
        results[name] = splits
        means = [[fmean(one[label][place] for one in splits) for place in (0, 1)] for label in labels]
        print(
            f"| {name} | {' | '.join(f'{nll:.4f} ({100 * error:.1f})' for nll, error in means)} |", flush=True
        )
    if args.json:
        packages = versions("beliefmatch", "torch", "numpy", "scikit-learn")
        text = json.dumps({"hardware": hardware(), "versions": packages, "splits": results}, indent=1)
        Path(args.json).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
