"""Evaluate several models: files in, one record for each model out."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.data.formats import open_arrays
from beliefmatch.data.predictions import FieldNames, Predictions, read_class_names, read_predictions
from beliefmatch.experiments.evaluate import STEPS, evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig, ModelFiles
from beliefmatch.experiments.evaluation_record import EvaluationRecord

__all__ = ["Evaluations", "Given"]


class Given(NamedTuple):
    """Predictions of one model for labelled and for OOD examples."""

    predictions: Predictions
    ood: Mapping[str, Predictions]


class _First(NamedTuple):
    """What later files are held against."""

    path: Path
    classes: int
    targets: Tensor | None


class Evaluations:
    """Models ready to be evaluated, one after the other, so that only one's predictions are in memory.

    What can be refused without reading whole files is refused on construction.
    """

    def __init__(
        self,
        models: Sequence[ModelFiles],
        *,
        settings: EvaluateConfig,
        names: FieldNames,
        class_names: str | Path | None = None,
        targets_file: str | Path | None = None,
    ) -> None:
        self.models, self.settings, self.names, self.targets_file = models, settings, names, targets_file
        self.class_names = None if class_names is None else read_class_names(class_names)
        self._first: _First | None = None
        for path in (path for model in models for path in (model.path, *model.ood.values())):
            open_arrays(path, caller="read_predictions")

    @property
    def steps(self) -> int:
        """Calls of `on_step` over all models."""
        return sum(STEPS + 1 + 2 * len(model.ood) for model in self.models)

    def read(self, model: ModelFiles, on_step: Callable[[str], None]) -> Given:
        """Read the files of a model; a ValueError says in one line what is wrong with them."""
        found = read_predictions(
            model.path, names=self.names, class_names=self.class_names, targets_file=self.targets_file
        )
        self._compare(found, "model")
        on_step(f"{model.name}: read")
        ood = {}
        for title, path in model.ood.items():
            ood[title] = read_predictions(path, names=self.names, labelled=False)
            self._compare(ood[title], f"OOD set {title!r}")
            on_step(f"{model.name}: read {title}")
        return Given(found, ood)

    def evaluate(self, model: ModelFiles, given: Given, on_step: Callable[[str], None]) -> EvaluationRecord:
        """The record of a model that was read."""
        return evaluate(
            given.predictions,
            name=model.name,
            class_names=self.class_names,
            ood=given.ood,
            settings=self.settings,
            on_step=on_step,
        )

    def _compare(self, found: Predictions, what: str) -> None:
        """All files must speak of the same classes, and should speak of the same examples."""
        classes = found.values.shape[1]
        first = self._first = self._first or _First(found.path, classes, found.targets)
        if classes != first.classes:
            expected = f"the {first.classes} classes of {first.path}"
            raise fail("evaluate", f"{what} in {found.path} must have {expected}, got {classes}.")
        if first.targets is None or found.targets is None or torch.equal(first.targets, found.targets):
            return
        warnings.warn(
            f"the targets of {found.path} are not those of {first.path}; "
            "the models were scored on different examples.",
            stacklevel=3,
        )
