"""Belief matching with timm: a network of timm, its MixUp, and mixed labels as counts.

    python examples/timm_mixup.py

timm's MixUp mixes images and gives each the mixed labels of both, as soft targets (N, K). They are counts
that sum to one vote, so that `BeliefMatchingLoss` stands where `timm.loss.SoftTargetCrossEntropy` stood. A
small ResNet of timm, not pretrained, learns scikit-learn's digits with either loss.

timm needs torch's full build, so that this example has an environment of its own:

    python -m venv timm && timm/bin/pip install "beliefmatch[vision,sklearn]"
    timm/bin/python examples/timm_mixup.py
"""

import sys

import timm
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.utils import random_seed
from torch import Tensor, nn

from beliefmatch import Belief, BeliefMatchingLoss
from beliefmatch.metrics import error, expected_calibration_error, nll

BATCH = 64


def images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; 8x8 pixels enlarged to 32x32."""
    pixels, labels = load_digits(return_X_y=True)
    train, test, y, targets = train_test_split(
        pixels, labels, train_size=0.5, stratify=labels, random_state=0
    )
    inputs = [torch.from_numpy(part).float().view(-1, 1, 8, 8) / 16 for part in (train, test)]
    train, test = (nn.functional.interpolate(part, size=32, mode="bilinear") for part in inputs)
    return train, torch.from_numpy(y), test, torch.from_numpy(targets)


def trained(criterion: nn.Module, inputs: Tensor, labels: Tensor, *, epochs: int) -> nn.Module:
    """A ResNet of timm, trained on mixed images."""
    random_seed(0)  # numpy's too, which MixUp draws from
    network = timm.create_model("resnet10t", num_classes=10, in_chans=1)
    mixup = Mixup(mixup_alpha=0.2, label_smoothing=0.0, num_classes=10)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    network.train()
    for _ in range(epochs):
        order = torch.randperm(len(inputs))
        for rows in order[: len(order) // BATCH * BATCH].split(BATCH):
            mixed, counts = mixup(inputs[rows].clone(), labels[rows])
            optimizer.zero_grad()
            criterion(network(mixed), counts).backward()
            optimizer.step()
    return network.eval()


@torch.no_grad()
def run(epochs: int = 40) -> dict[str, dict[str, float]]:
    """Error, NLL and calibration error of both losses on the test images."""
    inputs, labels, test, targets = images()
    losses = {
        "soft cross-entropy": SoftTargetCrossEntropy(),
        "belief matching": BeliefMatchingLoss(target_confidence=0.99),
    }
    found = {}
    for name, criterion in losses.items():
        with torch.enable_grad():
            network = trained(criterion, inputs, labels, epochs=epochs)
        probs = Belief(network(test)).probs
        scores = {"error": error, "nll": nll, "ece": expected_calibration_error}
        found[name] = {key: score(probs, targets) for key, score in scores.items()}
    return found


if __name__ == "__main__":
    for name, scores in run(*map(int, sys.argv[1:])).items():
        print(f"{name:20}", "  ".join(f"{key} {value:.4f}" for key, value in scores.items()))
