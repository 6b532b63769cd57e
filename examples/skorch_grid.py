"""Belief matching in skorch, with λ chosen by scikit-learn's grid search.

    python examples/skorch_grid.py

A small network learns scikit-learn's digits from 300 images; `GridSearchCV` chooses λ by the log-loss of
three folds. The same network with cross-entropy is the control.

Needs `pip install "beliefmatch[skorch]"`.
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from torch import nn

from beliefmatch.integrations.skorch import BeliefNetClassifier
from beliefmatch.metrics import expected_calibration_error

GRID = {"criterion__kl_weight": [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03]}


def network() -> nn.Module:
    """Two layers from 64 pixels to ten logits."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def run(epochs: int = 40) -> dict[str, dict[str, float]]:
    """Accuracy, log-loss and calibration error of both on the test images."""
    pixels, labels = load_digits(return_X_y=True)
    train, test, y, targets = train_test_split(
        (pixels / 16).astype(np.float32), labels, train_size=300, stratify=labels, random_state=0
    )
    options = {"max_epochs": epochs, "lr": 0.3, "batch_size": 32, "train_split": None, "verbose": 0}
    torch.manual_seed(0)
    softmax = BeliefNetClassifier(network, criterion=nn.CrossEntropyLoss, **options)
    belief = GridSearchCV(BeliefNetClassifier(network, **options), GRID, scoring="neg_log_loss", cv=3)
    found = {}
    for name, classifier in {"cross-entropy": softmax, "belief matching": belief}.items():
        probs = classifier.fit(train, y).predict_proba(test)
        ece = expected_calibration_error(torch.from_numpy(probs), torch.from_numpy(targets))
        error = 1 - accuracy_score(targets, probs.argmax(1))
        found[name] = {"error": error, "nll": log_loss(targets, probs), "ece": ece}
    found["belief matching"]["kl_weight"] = belief.best_params_["criterion__kl_weight"]
    return found


if __name__ == "__main__":
    for name, scores in run(*map(int, sys.argv[1:])).items():
        print(f"{name:16}", "  ".join(f"{key} {value:.4f}" for key, value in scores.items()))
