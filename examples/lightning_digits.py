"""Belief matching in Lightning, with calibration and the reliability diagram of each epoch in TensorBoard.

    python examples/lightning_digits.py [DIRECTORY]
    tensorboard --logdir runs/lightning

Needs `pip install "beliefmatch[lightning,sklearn,report,train]"`.
"""

import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from beliefmatch import BeliefMatchingLoss
from beliefmatch.integrations.lightning import CalibrationCallback


class Digits(pl.LightningModule):
    """A network of two layers and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.criterion = BeliefMatchingLoss(target_confidence=0.99)  # CrossEntropyLoss() stood here

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        inputs, targets = batch
        return self.criterion(self.network(inputs), targets)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        """What `CalibrationCallback` reads."""
        inputs, targets = batch
        return {"logits": self.network(inputs), "targets": targets}

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def loaders() -> list[DataLoader]:
    """Training, validation and test digits."""
    pixels, labels = (torch.as_tensor(column) for column in load_digits(return_X_y=True))
    rows = torch.arange(len(labels))
    train, rest = train_test_split(rows, train_size=800, stratify=labels, random_state=0)
    validation, test = train_test_split(rest, train_size=400, stratify=labels[rest], random_state=0)
    sets = [TensorDataset(pixels[part].float() / 16, labels[part]) for part in (train, validation, test)]
    return [DataLoader(one, batch_size=64, shuffle=one is sets[0]) for one in sets]


def run(place: Path, *, epochs: int = 20) -> dict[str, float]:
    """Train, keep the epoch of the lowest validation NLL, and test it."""
    pl.seed_everything(0, verbose=False)
    train, validation, test = loaders()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=TensorBoardLogger(place, name="digits"),
        callbacks=[CalibrationCallback(), ModelCheckpoint(monitor="val_nll")],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    trainer.fit(Digits(), train, validation)
    (found,) = trainer.test(dataloaders=test, ckpt_path="best", verbose=False)
    return dict(found)


if __name__ == "__main__":
    scores = run(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/lightning"))
    print("  ".join(f"{name} {value:.4f}" for name, value in scores.items()))
