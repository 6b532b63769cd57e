"""A trained classifier in, the same classifier with a new last layer and a measure of doubt out."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.adapt_config import CONTROLS, AdaptConfig, Labels
from beliefmatch.adaptation.add_belief import BeliefMixin
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.choosing import table
from beliefmatch.adaptation.computing import running
from beliefmatch.adaptation.heads import find_head, head_weights
from beliefmatch.adaptation.laplace_head import require_laplace
from beliefmatch.adaptation.normed import Numbers, require_repeatable, with_norms
from beliefmatch.adaptation.norms import require_norms
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.sets import OOD, as_cache, extracted, first_inputs, given_sets
from beliefmatch.adaptation.settings import OnProgress
from beliefmatch.adaptation.subsets import parted_numbers, subset
from beliefmatch.adaptation.surgery import with_head
from beliefmatch.adaptation.types import Features

__all__ = ["Adapted", "adapt"]

ASIDE = 0.2
"""Of the training data, where there are none to choose on."""


class Adapted(BeliefMixin):
    """What `adapt` adds to a classifier beside its belief."""

    adaptation: Adaptation

    def summary(self) -> str:
        """All heads with their validation scores, the best first; the chosen one has a star."""
        lines = [f"{'':2}{'head':40}{'error %':>9}{'NLL':>9}{'ECE %':>8}"]
        for row in table(self.adaptation.fitted):
            mark = "*" if row["name"] == self.adaptation.chosen.candidate.name else ""
            numbers = ("", "", "") if row["nll"] is None else _numbers(row)
            lines.append(f"{mark:2}{row['name']:40}{numbers[0]:>9}{numbers[1]:>9}{numbers[2]:>8}")
        return "\n".join([*lines, *_told_norms(self.adaptation), self.adaptation.verdict.why])


def _numbers(row: dict[str, Any]) -> tuple[str, str, str]:
    return f"{100 * row['error']:.2f}", f"{row['nll']:.4f}", f"{100 * row['ece']:.2f}"


def _told_norms(adaptation: Adaptation) -> list[str]:
    norms = adaptation.norms
    if norms is None:
        return []
    many = f"{len(norms.layers)} BatchNorm layers trained with the head: validation"
    values = f"{many} NLL {norms.before.nll:.4f} -> {norms.after.nll:.4f}"
    return [f"{values}." if norms.is_taken else f"{many} data became no better, so they stay as they were."]


def adapt(
    model: nn.Module,
    train: Any,
    *,
    validation: Any = None,
    test: Any = None,
    ood: Mapping[str, Any] | Tensor | np.ndarray | None = None,
    classes: int | None = None,
    head: str | None = None,
    labels: Labels = "auto",
    kl_weights: Sequence[float] | None = None,
    priors: Sequence[float] = (1.0,),
    seeds: Sequence[int] = (0,),
    controls: Sequence[str] = CONTROLS,
    laplace: bool = False,
    choose_by: Literal["nll", "error"] = "nll",
    epochs: int = 100,
    batch_size: int = 256,
    learning_rate: float | None = None,
    optimizer: Literal["adam", "lbfgs"] = "adam",
    patience: int | None = 10,
    norms: bool = False,
    risks: Sequence[float] = (0.01, 0.05),
    delta: float = 0.05,
    cache: FeatureCache | str | Path | None = None,
    device: torch.device | str = "cpu",
    precision: str = "32",
    compile: bool = False,
    on_progress: OnProgress | None = None,
    mixin: type[Adapted] = Adapted,
) -> Any:
    """Refit the last layer of a trained classifier with belief matching; the rest stays as it is.

    What the last layer sees of the data is computed once. Every λ, and the heads to compare with, are fitted
    in one pass over it, and the choice is made on the validation data.

    Args:
        model: any classifier; it is left as it is, in its mode and on its device.
        train: examples to fit on, in any form that `extract` takes: a source, a dataset, a DataLoader, a
            tuple of tensors or of arrays. Targets are class ids or counts.
        validation: examples that the model was not trained on. Nothing is chosen on data that it has seen
            without a warning. Where none are given, a fifth of `train` is set aside, with a warning too.
        test: examples to judge on; nothing is chosen by them.
        OOD: examples that belong to no class, by the name of their set; images alone will do.
        classes: K, where targets do not tell.
        head: name of the last layer, where it shall not be looked for.
        labels: "same" repairs the existing head, "new" fits one for other classes; "auto" looks whether the
            existing head knows the classes.
        kl_weights: values of λ to try.
        priors: values of β to try.
        seeds: of first weights; where heads start from the existing one, of the order of batches.
        controls: heads to compare with: "softmax", "label_smoothing", "evidential".
        laplace: whether to compare with a Laplace approximation of the last layer, which needs an extra.
        choose_by: validation "nll" or "error".
        epochs: passes over the features.
        batch_size: rows of a step.
        learning_rate: of Adam; the paper's, in proportion to the batch, if not given.
        optimizer: "adam", or "lbfgs" for the convex heads.
        patience: epochs without a better validation value after which a head stops; None for never.
        norms: whether BatchNorm layers are trained together with the chosen head afterwards.
        risks: error rates to promise among answers.
        delta: with which probability such a promise may fail.
        cache: where features are kept for the next time; the path of a directory will do.
        device: where the model computes.
        precision: of features, see `extract`.
        compile: whether features are computed by a compiled model, see `extract`.
        on_progress: told the share that is done of what is being done, and what that is.
        mixin: what the result can do.

    Returns:
        A copy of the model with the new head: the same `forward` and the same names in `state_dict`, and
        beside them `belief`, `predict`, `abstain`, `summary` and `adaptation`.
    """
    given = locals()
    adapt_config = AdaptConfig(**{field.name: given[field.name] for field in fields(AdaptConfig)})
    _require_model(model)
    if laplace:
        require_laplace()
    data = given_sets(train, validation, test, ood)
    options = {"cache": as_cache(cache), "precision": precision, "compile": compile}
    if norms:
        require_repeatable(data)
    began = time.perf_counter()
    with running(model, torch.device(device)) as place:
        batch, data["train"] = first_inputs(train, place)
        found = find_head(model, batch, name=head)
        if norms:
            require_norms(model, batch)
        rows = extracted(model, found, data, device=place, on_progress=on_progress, **options)
        sets, numbers = _sets(rows)
        aside = None if "validation" in rows else ASIDE
        seconds = {"features": time.perf_counter() - began}
        start, plain = head_weights(found), replace(adapt_config, norms=False)
        made = refit(
            sets, classes=classes, start=start, adapt_config=plain, aside=aside, on_progress=on_progress
        )
    better = with_head(model, found, made.chosen.weight, made.chosen.bias, mixin=mixin)
    better.adaptation = replace(
        made, head=found, adapt_config=adapt_config, seconds={**seconds, **made.seconds}
    )
    if norms:
        better.adaptation = with_norms(better, batch, data, numbers, device=place, on_progress=on_progress)
    return better


def _require_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise fail("adapt", f"`model` must be a torch.nn.Module, got {describe(model)}.", TypeError)


def _sets(rows: Mapping[str, Features]) -> tuple[FeatureSets, Numbers | None]:
    """The sets; and where no validation data were given, which rows of the training data are which."""
    ood = {name.removeprefix(OOD): one for name, one in rows.items() if name.startswith(OOD)}
    if "validation" in rows:
        return FeatureSets(rows["train"], rows["validation"], rows.get("test"), ood), None
    numbers = parted_numbers(rows["train"], ASIDE)
    train, validation = (subset(rows["train"], some) for some in numbers)
    return FeatureSets(train, validation, rows.get("test"), ood), numbers
