"""Any model will do: two scikit-learn classifiers, scored by `beliefmatch evaluate`.

    python examples/sklearn_logits.py [DIRECTORY]

The classifiers learn the digits 0 to 7 and also predict 8s and 9s, which are out-of-distribution. A logistic
regression has logits (its decision function); a random forest has probabilities only, so that the scores that
need logits are left out for it.

Needs `pip install "beliefmatch[cli,report,stats,sklearn]"`.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from beliefmatch.cli import main

KNOWN = 8  # digits below this are the classes


def predict(place: Path) -> None:
    """Train both classifiers and save what they say, of known and of OOD digits."""
    pixels, labels = load_digits(return_X_y=True)
    known = labels < KNOWN
    train, test, train_labels, targets = train_test_split(
        pixels[known] / 16, labels[known], test_size=0.5, stratify=labels[known], random_state=0
    )
    ood = pixels[~known] / 16
    images = test.reshape(-1, 8, 8)

    linear = LogisticRegression(max_iter=1000).fit(train, train_labels)
    np.savez(place / "linear.npz", logits=linear.decision_function(test), targets=targets, images=images)
    np.savez(place / "linear_ood.npz", logits=linear.decision_function(ood))

    forest = RandomForestClassifier(random_state=0).fit(train, train_labels)
    np.savez(place / "forest.npz", probs=forest.predict_proba(test), targets=targets, images=images)
    np.savez(place / "forest_ood.npz", probs=forest.predict_proba(ood))


def run(place: Path) -> int:
    """Save predictions, evaluate them, and return the command's exit code."""
    place.mkdir(parents=True, exist_ok=True)
    predict(place)
    models = [f"{place / 'linear.npz'}", f"{place / 'forest.npz'}"]
    ood = f"8 and 9={place / 'linear_ood.npz'},{place / 'forest_ood.npz'}"
    return main(["evaluate", *models, "--ood", ood, "--out", f"{place / 'report'}"])


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/sklearn")))
