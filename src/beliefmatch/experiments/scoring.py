"""Predictions of a run in, the numbers of its record out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from beliefmatch._files import atomic_write
from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.detections import score_columns
from beliefmatch.experiments.records import OODScores, Scores
from beliefmatch.metrics import auroc, calibration_error, fpr_at_tpr, outcomes, reliability_bins

_OF_BELIEFS = {"mutual_information", "differential_entropy", "precision"}
"""Scores that mean nothing where the logits are no log-concentrations."""

__all__ = ["SetPredictions", "as_npz", "detection_scores", "ood_scores", "scores", "to_npz"]


@dataclass(frozen=True, eq=False)
class SetPredictions:
    """Predictions for N examples: logits where the method has some, else probabilities (N, K)."""

    probs: Tensor
    logits: Tensor | None
    """Log-concentrations of a belief, or a network's own logits; their softmax are the probabilities."""
    targets: Tensor
    has_belief: bool = False

    def as_read(self, path: Path) -> Predictions:
        """The predictions as if read from a file, but in their own precision."""
        kind, values = ("probs", self.probs) if self.logits is None else ("logits", self.logits)
        targets = self.targets if len(self.targets) and int(self.targets.min()) >= 0 else None
        names = {kind: kind} if targets is None else {kind: kind, "targets": "targets"}
        return Predictions(path, kind, values, targets, None, names)

    def as_written(self, path: Path) -> Predictions:
        """The predictions as they are read from the file that `to_npz` writes, in single precision."""
        read = self.as_read(path)
        return replace(read, values=read.values.float())


def scores(predictions: SetPredictions) -> Scores:
    """How good the predictions are."""
    logits, probs = predictions.logits, predictions.probs
    given: dict[str, Any] = {"probs": probs} if logits is None else {"logits": logits}
    seen = outcomes(predictions.targets, **given)
    nll = seen.nll.mean().item()
    return Scores(
        examples=len(seen),
        error=(~seen.correct).double().mean().item(),
        nll=nll if math.isfinite(nll) else None,
        brier=seen.brier.mean().item(),
        ece=calibration_error(reliability_bins(seen.confidence, seen.correct)),
        mean_confidence=seen.confidence.mean().item(),
    )


def ood_scores(name: str, in_distribution: SetPredictions, ood: SetPredictions) -> OODScores:
    """How well each score separates OOD examples from those of the test set."""
    columns, ood_columns = (score_columns(one.as_read(Path())) for one in (in_distribution, ood))
    return detection_scores(name, columns, ood_columns, has_belief=in_distribution.has_belief)


def detection_scores(
    name: str, in_distribution: Mapping[str, Tensor], ood: Mapping[str, Tensor], *, has_belief: bool
) -> OODScores:
    """How well each score separates OOD from in-distribution examples, given both `score_columns`."""
    names = [score for score in in_distribution if has_belief or score not in _OF_BELIEFS]
    return OODScores(
        name=name,
        examples=len(ood["confidence"]),
        auroc={score: float(auroc(in_distribution[score], ood[score])) for score in names},
        fpr95={score: float(fpr_at_tpr(in_distribution[score], ood[score])) for score in names},
        mean_confidence=1 - ood["confidence"].mean().item(),
    )


def to_npz(path: Path, predictions: SetPredictions, **others: Any) -> None:
    """Write predictions as `beliefmatch evaluate` reads them; OOD ones have no targets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, as_npz(predictions, **others))


def as_npz(predictions: SetPredictions, **others: Any) -> bytes:
    """What `to_npz` writes."""
    read = predictions.as_written(Path())
    arrays = {read.kind: read.values.numpy(), **others}
    if read.targets is not None:
        arrays["targets"] = read.targets.numpy()
    buffer = BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
