"""Belief matching in torch-uncertainty: the loss of its routine, and the belief as its OOD criterion.

    python examples/torch_uncertainty_digits.py

A small network learns the digits 0 to 7; the 8s and 9s are out of distribution. `ClassificationRoutine` of
torch-uncertainty trains and tests it, first with cross-entropy and its own criterion, the largest softmax
probability, then with belief matching and the mutual information of the belief.

torch-uncertainty needs torch's full build, so that this example has an environment of its own:

    python -m venv tu && tu/bin/pip install beliefmatch "torch-uncertainty[cpu]" scikit-learn
    tu/bin/python examples/torch_uncertainty_digits.py
"""

import sys
import tempfile
from math import log

import torch
from lightning.pytorch import Trainer, seed_everything
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_uncertainty.ood_criteria import OODCriterionInputType, TUOODCriterion
from torch_uncertainty.routines import ClassificationRoutine

from beliefmatch import Belief, BeliefMatchingLoss

KNOWN = 8  # digits below this are the classes
SHOWN = ("test/cls/Acc", "test/cls/NLL", "test/cal/ECE", "ood/AUROC")


class MutualInformation(TUOODCriterion):
    """What the belief does not know about the probabilities; higher for more OOD."""

    input_type = OODCriterionInputType.LOGIT

    def forward(self, inputs: Tensor) -> Tensor:
        """Mutual information of the belief of each example, from logits (N, estimators, K).

        It is given as a share of its bound ln K: torchmetrics takes scores outside of [0, 1] for logits.
        """
        return Belief(inputs.flatten(0, 1)).mutual_information().view(inputs.shape[:2]).mean(1) / log(KNOWN)


def loaders() -> tuple[DataLoader, DataLoader, DataLoader]:
    """Training digits, test digits, and digits of no class."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(pixels / 16).float(), torch.from_numpy(labels)
    known = torch.nonzero(targets < KNOWN)[:, 0]
    train, test = train_test_split(known, train_size=0.5, stratify=targets[known], random_state=0)
    parts = (train, test, torch.nonzero(targets >= KNOWN)[:, 0])
    sets = [TensorDataset(inputs[part], targets[part]) for part in parts]
    first, second, third = (DataLoader(one, batch_size=64, shuffle=one is sets[0]) for one in sets)
    return first, second, third


def tested(loss: nn.Module, criterion: TUOODCriterion | str, epochs: int) -> dict[str, float]:
    """What the routine finds after training."""
    seed_everything(0, verbose=False)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, KNOWN))
    routine = ClassificationRoutine(
        network,
        KNOWN,
        loss,
        optim_recipe=torch.optim.Adam(network.parameters(), lr=1e-2),
        eval_ood=True,
        ood_criterion=criterion,
    )
    train, test, ood = loaders()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(),
    )
    trainer.fit(routine, train)
    found: dict[str, float] = {}
    for part in trainer.test(routine, [test, ood], verbose=False):
        found.update(part)
    return found


def run(epochs: int = 20) -> dict[str, dict[str, float]]:
    """All that torch-uncertainty measures, for both losses."""
    return {
        "cross-entropy": tested(nn.CrossEntropyLoss(), "msp", epochs),
        "belief matching": tested(BeliefMatchingLoss(target_confidence=0.99), MutualInformation(), epochs),
    }


if __name__ == "__main__":
    for name, scores in run(*map(int, sys.argv[1:])).items():
        print(f"{name:16}", "  ".join(f"{key} {scores[key]:.4f}" for key in SHOWN))
