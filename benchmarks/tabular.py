"""Hold the default of `train --data table.csv` against scikit-learn on tables written to CSV.

    python benchmarks/tabular.py                 # wine, breast cancer and digits, five splits
    python benchmarks/tabular.py --tuning        # made data, on which the recipe was chosen

Every model sees the same training rows, encoded alike, and is scored on the same test rows. scikit-learn's
models have their own defaults, with enough iterations to converge.
"""

import argparse
import csv
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from beliefmatch.data import DataConfig, load
from beliefmatch.data.sources import Dataset
from beliefmatch.data.tables import TableSource
from beliefmatch.experiments.choose_recipe import choose_recipe
from beliefmatch.experiments.config import config_from, merged, overridden, recipe, with_method
from beliefmatch.experiments.run import execute
from beliefmatch.metrics import expected_calibration_error

REAL: dict[str, Callable[..., Any]] = {
    "wine": datasets.load_wine,
    "breast cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}


def made(rows: int, classes: int, flip: float, seed: int) -> Any:
    """Inputs and targets: clusters with some wrong labels."""
    return datasets.make_classification(
        n_samples=rows,
        n_features=20,
        n_informative=8,
        n_classes=classes,
        flip_y=flip,
        class_sep=1.5,
        random_state=seed,
    )


MADE: dict[str, Callable[..., Any]] = {
    "200 rows, 3 classes": lambda: made(200, 3, 0.01, 1),
    "600 rows, 2 classes, 10 % flipped": lambda: made(600, 2, 0.1, 2),
    "2000 rows, 5 classes": lambda: made(2000, 5, 0.02, 3),
    "8000 rows, 4 classes, 5 % flipped": lambda: made(8000, 4, 0.05, 4),
}


def write_csv(path: Path, inputs: np.ndarray, targets: np.ndarray) -> None:
    """A table whose last column is the target."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(inputs.shape[1])), "target"])
        rows = zip(inputs.tolist(), targets.tolist(), strict=True)
        writer.writerows([*row, f"class {target}"] for row, target in rows)


def scores(probs: np.ndarray, targets: np.ndarray) -> tuple[float, float, float]:
    """Error in %, NLL, and ECE in % of 15 bins."""
    picked = np.clip(probs[np.arange(len(targets)), targets], 1e-12, None)
    ece = expected_calibration_error(torch.from_numpy(probs), torch.from_numpy(targets), n_bins=15)
    return 100 * float((probs.argmax(1) != targets).mean()), float(-np.log(picked).mean()), 100 * float(ece)


def arrays(source: object) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and class ids of a source."""
    assert isinstance(source, TableSource)
    return source.inputs.double().numpy(), source.targets.numpy()


def sklearn_scores(data: Dataset, model: object) -> tuple[float, float, float]:
    """Scores of an estimator fitted on the training rows."""
    inputs, targets = arrays(data.test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = model.fit(*arrays(data.train))  # type: ignore[attr-defined]
    return scores(fitted.predict_proba(inputs), targets)


def our_scores(
    path: Path, split_seed: int, method: str, settings: list[str], directory: Path
) -> tuple[float, float, float]:
    """Scores of what `beliefmatch train --data path` trains, in %, nats and %."""
    chosen = choose_recipe({"name": f"{path}"})
    mapping = merged(recipe(chosen.name), chosen.changes)
    mapping = merged(mapping, {"data": {"name": f"{path}", "split_seed": split_seed}})
    config = config_from(with_method(overridden(mapping, settings), method))
    test = execute(config, directory).test
    return 100 * test.error, test.nll or float("inf"), 100 * test.ece


def main() -> None:
    """Print a row of Markdown for each data set and model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    print("| data | model | error % | NLL | ECE % |\n|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as directory:
        for name, source in (MADE if options.tuning else REAL).items():
            inputs, targets = source() if options.tuning else source(return_X_y=True)
            path = Path(directory) / f"{len(targets)}.csv"
            write_csv(path, inputs, targets)
            found: dict[str, list[tuple[float, float, float]]] = {}
            for seed in range(options.splits):
                data = load(DataConfig(name=f"{path}", split_seed=seed))
                for method in ("belief_matching", "softmax"):
                    out = Path(directory) / f"{path.stem}-{method}-{seed}"
                    row = our_scores(path, seed, method, options.set, out)
                    found.setdefault(f"ours, {method.replace('_', ' ')}", []).append(row)
                logistic = sklearn_scores(data, LogisticRegression(max_iter=5000))
                found.setdefault("LogisticRegression", []).append(logistic)
                perceptron = sklearn_scores(data, MLPClassifier(max_iter=1000, random_state=seed))
                found.setdefault("MLPClassifier", []).append(perceptron)
            for model, rows in found.items():
                cells = [
                    f"{fmean(column):.{digits}f} ± {stdev(column):.{digits}f}"
                    for column, digits in zip(zip(*rows, strict=True), (1, 3, 1), strict=True)
                ]
                print(f"| {name} | {model} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
