"""Tables in scikit-learn: a classifier that says when not to believe it, and λ for a training of one's own.

    python examples/sklearn_classifier.py

Needs `pip install "beliefmatch[sklearn]"`.
"""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from beliefmatch import choose_kl_weight
from beliefmatch.sklearn import BeliefClassifier


def run() -> dict[str, float]:
    """Fit, predict, abstain; the numbers that are printed."""
    X, y = load_wine(return_X_y=True, as_frame=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    model = BeliefClassifier(random_state=0).fit(X_train, y_train)
    answered = ~model.abstain(X_test, 0.9)
    right = model.predict(X_test) == y_test
    far = X_test + 5 * X_train.std()  # wines that no cellar has
    found = {
        "log-loss": float(log_loss(y_test, model.predict_proba(X_test))),
        "accuracy": float(np.mean(right)),
        "share answered at 0.9": float(np.mean(answered)),
        "accuracy of answers": float(np.mean(right[answered])),
        "median precision": float(model.belief(X_test).precision.median()),
        "median precision far away": float(model.belief(far).precision.median()),
        "λ of the classifier": model.kl_weight_,
        "λ for a network": choose_kl_weight(X_train.to_numpy(), y_train.to_numpy()),
    }
    for name, value in found.items():
        print(f"{name:28}{value:.4g}")
    return found


if __name__ == "__main__":
    run()
