"""Belief matching with fastai: `loss_func` of a learner, its MixUp, and probabilities from `get_preds`.

    python examples/fastai_digits.py

`BeliefMatchingLoss` stands where `CrossEntropyLossFlat` stood. fastai takes probabilities and classes from
its `activation` and `decodes`, and MixUp mixes its losses. A small network learns scikit-learn's digits with
either loss. fastai shows probabilities alone; the belief is read from the logits of the same network.

fastai needs torch's full build, so that this example has an environment of its own:

    python -m venv fastai && fastai/bin/pip install beliefmatch fastai scikit-learn
    fastai/bin/python examples/fastai_digits.py
"""

import sys
from collections.abc import Callable

import torch
from fastai.basics import CrossEntropyLossFlat, DataLoader, DataLoaders, Learner, set_seed
from fastai.callback.all import MixUp
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from beliefmatch import Belief, BeliefMatchingLoss
from beliefmatch.metrics import error, expected_calibration_error, nll

BATCH = 64


def loaders() -> DataLoaders:
    """Half of the digits for training, the other half for validation."""
    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16, labels, train_size=0.5, stratify=labels, random_state=0)
    train, valid, y, targets = (torch.from_numpy(part) for part in parts)
    sets = TensorDataset(train.float(), y), TensorDataset(valid.float(), targets)
    return DataLoaders(
        DataLoader(sets[0], bs=BATCH, shuffle=True, drop_last=True), DataLoader(sets[1], bs=BATCH)
    )


def trained(criterion: Callable[[Tensor, Tensor], Tensor], *, epochs: int) -> Learner:
    """A learner after one cycle of learning rates on mixed digits."""
    set_seed(0, reproducible=True)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    learner = Learner(loaders(), network, loss_func=criterion, cbs=MixUp(0.2))
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(epochs, 1e-2)
    return learner


def run(epochs: int = 40) -> dict[str, dict[str, float]]:
    """Error, NLL and calibration error of both losses, and of how many digits the belief is unsure."""
    losses = {
        "cross-entropy": CrossEntropyLossFlat(),
        "belief matching": BeliefMatchingLoss(target_confidence=0.99),
    }
    scores = {"error": error, "nll": nll, "ece": expected_calibration_error}
    found = {}
    for name, criterion in losses.items():
        learner = trained(criterion, epochs=epochs)
        with learner.no_bar():
            probs, targets = learner.get_preds()
        found[name] = {key: score(probs, targets) for key, score in scores.items()}
    with torch.no_grad():
        logits = torch.cat([learner.model(inputs) for inputs, _ in learner.dls.valid])
    belief = Belief(logits)
    torch.testing.assert_close(belief.probs, probs)  # fastai's probabilities are the belief's mean
    found["belief matching"]["abstains"] = belief.abstain(0.9).float().mean().item()
    return found


if __name__ == "__main__":
    for name, values in run(*map(int, sys.argv[1:])).items():
        print(f"{name:16}", "  ".join(f"{key} {value:.4f}" for key, value in values.items()))
