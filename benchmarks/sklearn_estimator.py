"""`BeliefClassifier` with its defaults, held against LogisticRegressionCV and MLPClassifier on ten data sets.

    python benchmarks/sklearn_estimator.py                                     ten minutes on one core
    python benchmarks/sklearn_estimator.py --json benchmarks/sklearn_estimator.json
    python benchmarks/sklearn_estimator.py --table benchmarks/sklearn_estimator.json     the table alone

Every set is split five times, 75 % of the rows to fit on and 25 % to test, stratified. The others get
standardised features from a Pipeline. LogisticRegressionCV chooses C by the log-loss of five folds.
MLPClassifier has its defaults, and with `early_stopping` in a second line, which does not count for the bar.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from beliefmatch._environment import hardware, versions
from beliefmatch.metrics import expected_calibration_error
from beliefmatch.sklearn import BeliefClassifier

SETS: dict[str, Any] = {
    "iris": load_iris(return_X_y=True),
    "wine": load_wine(return_X_y=True),
    "breast cancer": load_breast_cancer(return_X_y=True),
    "digits": load_digits(return_X_y=True),
    "200 rows": make_classification(200, 10, n_informative=5, random_state=1),
    "60 features, 5 informative": make_classification(400, 60, n_informative=5, random_state=2),
    "8 classes": make_classification(1500, 20, n_informative=10, n_classes=8, random_state=3),
    "15 % wrong labels": make_classification(
        1000, 20, n_informative=8, n_classes=3, flip_y=0.15, random_state=4
    ),
    "5 % positive": make_classification(1500, 15, n_informative=6, weights=[0.95], random_state=5),
    "3000 rows, 3 clusters a class": make_classification(
        3000, 20, n_informative=8, n_clusters_per_class=3, random_state=6
    ),
}
OURS = "BeliefClassifier"
BAR = ("LogisticRegressionCV", "MLPClassifier")
CONTENDERS: dict[str, Any] = {
    OURS: lambda seed: BeliefClassifier(random_state=seed),
    "LogisticRegressionCV": lambda seed: make_pipeline(
        StandardScaler(), LogisticRegressionCV(Cs=10, cv=5, scoring="neg_log_loss", max_iter=2000)
    ),
    "MLPClassifier": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
    "MLPClassifier, early stopping": lambda seed: make_pipeline(
        StandardScaler(), MLPClassifier(early_stopping=True, max_iter=1000, random_state=seed)
    ),
}


def scores(make: Any, rows: np.ndarray, targets: np.ndarray, seed: int) -> dict[str, Any]:
    """Log-loss, calibration error and error on one test split, and processor seconds of the fit."""
    train, test, train_targets, test_targets = train_test_split(
        rows, targets, test_size=0.25, random_state=seed, stratify=targets
    )
    began = time.process_time()
    model = make(seed).fit(train, train_targets)
    seconds = time.process_time() - began
    probs = np.asarray(model.predict_proba(test), np.float64)
    found = {
        "log_loss": float(log_loss(test_targets, probs)),
        "ece": expected_calibration_error(torch.from_numpy(probs), torch.from_numpy(test_targets).long()),
        "error": float(np.mean(probs.argmax(1) != test_targets)),
        "fit_seconds": seconds,
    }
    if isinstance(model, BeliefClassifier):
        found |= {"hidden_layer_sizes": model.hidden_layer_sizes_, "kl_weight": model.kl_weight_}
        found["weight_decay"] = model.weight_decay_
    return found


def table(results: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Log-loss and calibration error by set, and their means against the better contender of each set."""
    names = list(CONTENDERS)
    lines = [
        f"| log-loss (ECE %) | {' | '.join(names)} | to the better |",
        "|---|" + "---:|" * (len(names) + 1),
    ]
    ratios, own, others = [], [], []
    for name, by_contender in results.items():
        means = {one: fmean(run["log_loss"] for run in runs) for one, runs in by_contender.items()}
        eces = {one: 100 * fmean(run["ece"] for run in runs) for one, runs in by_contender.items()}
        spread = stdev(run["log_loss"] for run in by_contender[OURS])
        better = min(BAR, key=means.__getitem__)
        ratios.append(means[OURS] / means[better] - 1)
        own.append(eces[OURS])
        others.append(eces[better])
        cells = [f"{means[one]:.4f} ({eces[one]:.1f})" for one in names]
        cells[0] = f"{means[OURS]:.4f} ± {spread:.4f} ({eces[OURS]:.1f})"
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * ratios[-1]:+.1f} % |")
    lines += [
        "",
        f"Log-loss to the better of {' and '.join(BAR)}, mean over sets: {100 * fmean(ratios):+.1f} %. "
        f"Calibration error, mean over sets: {fmean(own):.2f} %, of the better one {fmean(others):.2f} %.",
        "",
    ]
    seconds = {
        one: fmean(run["fit_seconds"] for runs in results.values() for run in runs[one]) for one in names
    }
    lines.append("Processor seconds a fit: " + ", ".join(f"{k} {v:.2f}" for k, v in seconds.items()) + ".")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--table", help="print the table of this file and fit nothing")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(Path(args.table).read_text("utf-8"))["results"]))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # MLPClassifier has not converged after its default 200 epochs
    results: dict[str, Any] = {}
    for name, (rows, targets) in SETS.items():
        results[name] = {
            label: [scores(make, rows, targets, seed) for seed in range(args.seeds)]
            for label, make in CONTENDERS.items()
        }
        print(name, flush=True)
        if args.json:
            packages = versions("beliefmatch", "torch", "numpy", "scikit-learn")
            text = json.dumps({"hardware": hardware(), "versions": packages, "results": results}, indent=1)
            Path(args.json).write_text(text + "\n", "utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
