"""The public function `adapt`: a trained classifier in, the same classifier with a Dirichlet belief out.

better = beliefmatch.adapt(model, train_data, validation=val_data)
better.belief(images)
print(better.summary())
better.report("out/")
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from beliefmatch._environment import needs
from beliefmatch._files import directory_in_use
from beliefmatch._torch_state import on_cpu
from beliefmatch._utils import OnProgress
from beliefmatch._validate import describe, fail, naming_arguments
from beliefmatch.adaptation.adapt import adapt_data
from beliefmatch.adaptation.adapt_config import (
    CONTROLS,
    TOLERANCE,
    AdaptConfig,
    Choice,
    Control,
    Labels,
    Protocol,
)
from beliefmatch.adaptation.cache import FeatureCache, as_cache
from beliefmatch.adaptation.result import Adaptation
from beliefmatch.adaptation.surgery import BeliefMixin, add_belief
from beliefmatch.experiments.adapted_directory import head_file
from beliefmatch.experiments.adapted_evaluation import WITHOUT_EXAMPLES, score_adaptation
from beliefmatch.experiments.run_dir import RunDirectory

__all__ = ["Adapted", "adapt"]


class Adapted(BeliefMixin):
    """A classifier with a refitted last layer: the user's own class with a belief, a summary and a report."""

    adaptation: Adaptation
    """All heads that were fitted, their scores and their features; copies and pickles leave it out."""
    __jit_ignored_attributes__ = ("adaptation",)  # which torch.jit.script cannot compile

    def summary(self) -> str:
        """Whether to keep the new head, and before and after as a table of plain text, on the test data.

        Without test data the scores are on the validation data, which also chose λ; a caveat says so.
        """
        with needs("rich", extra="report", caller="summary"):
            from beliefmatch.report.adaptation import adaptation_summary
        with on_cpu():
            made = score_adaptation(self.adaptation, model_name=_name(self), settings=WITHOUT_EXAMPLES)
        return adaptation_summary(made.record, made.evaluations)

    def report(
        self,
        directory: str | Path,
        *,
        class_names: Sequence[str] | None = None,
        data_facts: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write tables, figures, records, the new head and a page that needs no network.

        All files are written or none. Files of an earlier report that this one does not write are removed.

        Args:
            directory: Output directory; created if it does not exist.
            class_names: One name for each class; "0", "1", ... by default.
            data_facts: Description of the data for the record, any JSON values.

        Returns:
            The path of the page, report.html.
        """
        with needs("matplotlib, jinja2 and rich", extra="report", caller="report"):
            import jinja2  # noqa: F401

            from beliefmatch.report.adaptation import write_adaptation
        if not isinstance(directory, str | PathLike):
            raise fail("report", f"`directory` must be a path, got {describe(directory)}.", TypeError)
        if RunDirectory(Path(directory)).model_file.is_file():
            fact = f"`directory` must not be that of `beliefmatch adapt` or of a run, got {directory}"
            raise fail("report", f"{fact}, whose network would be lost; choose another.")
        head = head_file(self.adaptation, self)
        with on_cpu(), directory_in_use(str(directory), caller="report", argument="directory") as place:
            made = score_adaptation(
                self.adaptation, model_name=_name(self), class_names=class_names, data_facts=data_facts
            )
            return write_adaptation(place, made.record, made.evaluations, head=head)


def _name(model: nn.Module) -> str:
    return type(model).__name__.removesuffix("WithBelief")


def adapt(
    model: nn.Module,
    train: Any,
    *,
    validation: Any = None,
    test: Any = None,
    ood: Mapping[str, Any] | Tensor | np.ndarray | None = None,
    background: Any = None,
    classes: int | None = None,
    head: str | None = None,
    labels: Labels = "auto",
    choose: Choice = "belief_matching",
    kl_weights: Sequence[float] | None = None,
    weight_decays: Sequence[float] | None = None,
    priors: Sequence[float] = (1.0,),
    controls: Sequence[Control] = CONTROLS,
    laplace: bool = False,
    heads: int = 0,
    tolerance: float = TOLERANCE,
    protocol: Protocol = "default",
    epochs: int = 100,
    batch_size: int = 64,
    learning_rate: float = 3e-4,
    seeds: Sequence[int] = (0,),
    batchnorm: bool = False,
    vote_scale: bool = True,
    risks: Sequence[float] = (0.01, 0.05),
    delta: float = 0.05,
    cache: FeatureCache | str | Path | None = None,
    device: torch.device | str = "cpu",
    precision: str = "32",
    compile: bool = False,
    on_progress: OnProgress | None = None,
) -> Adapted:
    """Refit the last layer of a trained classifier with belief matching; all other layers stay as they are.

    The inputs of the last layer are computed once for all data. Belief matching heads of several λ, and the
    heads to compare with, are fitted to them, and the validation data choose among them.

    Args:
        model: Any classifier. It is not changed; its mode and device are restored.
        train: Examples to fit on, in any form that `extract` accepts: a source, a dataset, a DataLoader, a
            tuple of tensors or arrays. Targets are class ids or counts.
        validation: Examples that the model was not trained on; they choose the head. A warning is issued if
            the model seems to have seen them. By default a fifth of `train` is held out, with a warning.
        test: Examples to score the heads on. They choose nothing.
        ood: Out-of-distribution examples by the name of their set, or images alone.
        background: Examples of no class that take part in the fit: belief matching draws them to its prior.
        classes: Number of classes, where the targets do not determine it.
        head: Name of the last layer; found automatically by default.
        labels: "same" repairs the existing head, "new" fits one for other classes; "auto" tests whether the
            existing head knows the classes.
        choose: "belief_matching" delivers the best belief matching head, "best" the head of the lowest
            validation NLL of any kind.
        kl_weights: Values of λ to try; by default a path that ends where the validation NLL rises.
        weight_decays: Values of the weight decay to try; likewise by default.
        priors: Values of the prior β to try.
        controls: Heads to compare with: "softmax", "label_smoothing", "evidential".
        laplace: Whether to compare with a Laplace approximation of the last layer, which needs an extra.
        heads: Number of additional heads that are fitted to resampled rows; 0 for none.
        tolerance: Relative distance of a head's objective to its minimum at which the head has converged.
        protocol: "paper" trains heads as the paper does: Adam on minibatches, without weight decay.
        epochs: Passes over the features with the protocol "paper", and over the images with `batchnorm`.
        batch_size: Rows of a step with the protocol "paper".
        learning_rate: Learning rate of Adam with the protocol "paper".
        seeds: Seeds of the initial weights with the protocol "paper".
        batchnorm: Whether BatchNorm layers are trained together with the chosen head afterwards.
        vote_scale: Whether the precision of the belief is fitted to the validation votes, where targets are
            counts and some examples have two votes or more; the probabilities stay as they are. The scale is
            in the bias of the head: `belief(x)` has it, and so do copies, exports and records.
        risks: Error rates among answered examples for which to compute a confidence threshold.
        delta: Probability with which each of these thresholds may fail.
        cache: Directory, or `FeatureCache`, that keeps the features for the next call.
        device: Device of the model while features are computed.
        precision: Precision of the features, see `extract`.
        compile: Whether features are computed by a compiled model, see `extract`.
        on_progress: Called with (fraction, description).

    Returns:
        A copy of the model with the new head: the same `forward` and the same names in `state_dict`, with the
        additional methods `belief`, `predict`, `abstain`, `summary` and `report` and the attribute
        `adaptation`.
    """
    given = locals()
    names = {name: name for name in AdaptConfig.__struct_fields__}
    with naming_arguments("adapt", **names, name="head", prior="priors", directory="cache"):
        config = AdaptConfig(**{name: given[name] for name in AdaptConfig.__struct_fields__})
        network, adaptation = adapt_data(
            model,
            train,
            validation=validation,
            test=test,
            ood=ood,
            background=background,
            classes=classes,
            head=head,
            config=config,
            cache=as_cache(cache),
            device=device,
            precision=precision,
            compile=compile,
            on_progress=on_progress,
        )
    better = add_belief(network, Adapted, has_belief=adaptation.chosen.candidate.has_belief)
    better.adaptation = adaptation
    return better
