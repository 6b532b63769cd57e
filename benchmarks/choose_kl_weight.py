"""λ of `choose_kl_weight` and of a rule of thumb, held against a grid of trainings and against the
default.

    python benchmarks/choose_kl_weight.py                               a few minutes on one core
    python benchmarks/choose_kl_weight.py --json benchmarks/choose_kl_weight.json
    python benchmarks/choose_kl_weight.py --table benchmarks/choose_kl_weight.json     the table alone

The training of one's own is a perceptron with 100 hidden units, Adam and early stopping on validation rows:
50 % of the rows to train on, 25 % for validation, 25 % to test. It is trained once for each λ of a grid. λ
is chosen

* by `choose_kl_weight` on the inputs of the training rows (no network is needed),
* by `choose_kl_weight` on the hidden layer of the network of the default λ, on validation rows,
* by `choose_kl_weight` on that network's logits, on validation rows,
* by rule: a target confidence of 1 − error / 5, with the validation error of the network of the default λ,
* by the NLL of the validation rows over the whole grid, which costs nine trainings,

and the network is trained once more at the chosen λ. The best of the grid is taken on the test rows: no
method can know it.
"""

import argparse
import json
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_wine,
    make_classification,
    make_gaussian_quantiles,
)
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from beliefmatch import choose_kl_weight
from beliefmatch._environment import hardware, versions
from beliefmatch._labels import DEFAULT_KL_WEIGHT, kl_weight_of
from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.metrics import expected_calibration_error
from beliefmatch.mlp import Layers, Schedule, forward, initial_layers, train_networks

SETS: dict[str, Any] = {
    "wine": load_wine(return_X_y=True),
    "breast cancer": load_breast_cancer(return_X_y=True),
    "digits": load_digits(return_X_y=True),
    "8 classes": make_classification(1500, 20, n_informative=10, n_classes=8, random_state=3),
    "15 % wrong labels": make_classification(
        1000, 20, n_informative=8, n_classes=3, flip_y=0.15, random_state=4
    ),
    "35 % wrong labels": make_classification(
        1000, 20, n_informative=8, n_classes=3, flip_y=0.35, random_state=14
    ),
    "5 % positive": make_classification(1500, 15, n_informative=6, weights=[0.95], random_state=5),
    "quantiles": make_gaussian_quantiles(n_samples=1000, n_features=6, n_classes=4, random_state=7),
}
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
SCHEDULE = Schedule(max_epochs=200, learning_rate=3e-3, batch_size=64, patience=15, tolerance=1e-4)
HIDDEN = 100
WAYS = ("default 0.01", "rule", "inputs", "hidden layer", "logits", "grid, validation", "grid, test")


class Split:
    """One split of a set, and the networks trained on it."""

    def __init__(self, rows: np.ndarray, targets: np.ndarray, seed: int) -> None:
        train, rest, self.train_targets, rest_targets = (
            torch.from_numpy(np.asarray(one))
            for one in train_test_split(rows, targets, test_size=0.5, random_state=seed, stratify=targets)
        )
        val, test, self.val_targets, self.test_targets = (
            torch.from_numpy(one)
            for one in train_test_split(
                rest.numpy(), rest_targets.numpy(), test_size=0.5, random_state=seed, stratify=rest_targets
            )
        )
        scaler = StandardScaler().fit(train)
        self.train, self.val, self.test = (
            torch.from_numpy(scaler.transform(one)).float() for one in (train, val, test)
        )
        self.classes, self.seed = int(targets.max()) + 1, seed

    def trained(self, kl_weights: tuple[float, ...]) -> Layers:
        """One network for each λ."""
        count, n_train = len(kl_weights), len(self.train)
        candidates = [Candidate("belief_matching", {"kl_weight": one}) for one in kl_weights]
        sizes = (self.train.shape[1], HIDDEN, self.classes)
        shares = torch.bincount(self.train_targets, minlength=self.classes) / n_train
        is_train = (torch.arange(n_train + len(self.val)) < n_train).float()
        return train_networks(
            initial_layers(sizes, candidates, shares, [self.seed] * count),
            torch.cat([self.train, self.val]),
            torch.cat([self.train_targets, self.val_targets]).long(),
            candidates,
            SCHEDULE,
            row_weights=is_train.expand(count, -1),
            held_out=(1 - is_train).expand(count, -1),
            seed=self.seed,
        ).layers


def scores(logits: Tensor, targets: Tensor) -> tuple[float, float]:
    """NLL and calibration error of logits (K, N)."""
    logs = logits.t().double().log_softmax(1)
    nll = torch.nn.functional.nll_loss(logs, targets).item()
    return nll, expected_calibration_error(logs.exp(), targets)


def run(rows: np.ndarray, targets: np.ndarray, seed: int) -> dict[str, dict[str, float]]:
    """λ, test NLL and test calibration error of each way to choose."""
    split = Split(rows, targets, seed)
    networks = split.trained(GRID)
    val, test = forward(networks, split.val), forward(networks, split.test)
    by_test = [scores(one, split.test_targets) for one in test]
    default = GRID.index(DEFAULT_KL_WEIGHT)
    error = (val[default].argmax(0) != split.val_targets).float().mean().item()
    confidence = 1 - max(error, 1 / len(split.val)) / 5
    (weight, bias), _ = networks
    hidden = (split.val @ weight[default].t() + bias[default]).relu()
    chosen = {
        "rule": float(kl_weight_of(confidence, 1.0, split.classes)),
        "inputs": choose_kl_weight(split.train, split.train_targets),
        "hidden layer": choose_kl_weight(hidden, split.val_targets),
        "logits": choose_kl_weight(val[default].t(), split.val_targets),
    }
    new = forward(split.trained(tuple(chosen.values())), split.test)
    by_val = [scores(one, split.val_targets)[0] for one in val]
    picks = {
        "default 0.01": default,
        "grid, validation": int(np.argmin(by_val)),
        "grid, test": int(np.argmin([one[0] for one in by_test])),
    }
    made = {
        way: (value, *scores(one, split.test_targets))
        for (way, value), one in zip(chosen.items(), new, strict=True)
    } | {way: (GRID[place], *by_test[place]) for way, place in picks.items()}
    return {way: dict(zip(("kl_weight", "nll", "ece"), made[way], strict=True)) for way in WAYS}


def table(results: dict[str, list[dict[str, dict[str, float]]]]) -> str:
    """NLL, calibration error and geometric mean of λ by set, and the excess over the best of the grid."""
    lines = [f"| NLL (ECE %) at λ | {' | '.join(WAYS)} |", "|---|" + "---:|" * len(WAYS)]
    excess: dict[str, list[float]] = {way: [] for way in WAYS}
    eces: dict[str, list[float]] = {way: [] for way in WAYS}
    for name, seeds in results.items():
        cells = []
        best = fmean(one["grid, test"]["nll"] for one in seeds)
        for way in WAYS:
            nll, ece = (fmean(one[way][column] for one in seeds) for column in ("nll", "ece"))
            kl_weight = float(np.exp(fmean(np.log(one[way]["kl_weight"]) for one in seeds)))
            cells.append(f"{nll:.4f} ({100 * ece:.1f}) at {kl_weight:.1g}")
            excess[way].append(nll / best - 1)
            eces[way].append(ece)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    means = [f"{100 * fmean(excess[way]):+.1f} % ({100 * fmean(eces[way]):.1f})" for way in WAYS]
    lines.append(f"| mean, NLL to the last column (ECE %) | {' | '.join(means)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--table", help="print the table of this file and train nothing")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(Path(args.table).read_text("utf-8"))["results"]))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = {}
    for name, (rows, targets) in SETS.items():
        results[name] = [run(rows, targets, seed) for seed in range(args.seeds)]
        print(name, results[name][0], flush=True)
    print(table(results))
    if args.json:
        packages = versions("beliefmatch", "torch", "numpy", "scikit-learn")
        text = json.dumps({"hardware": hardware(), "versions": packages, "results": results}, indent=1)
        Path(args.json).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
