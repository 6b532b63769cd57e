"""Adaptation for everyday use: a trained classifier in, one with doubt out, which tells what changed.

better = beliefmatch.adapt(model, train_data, validation=val_data)
better.belief(images)
print(better.summary())
better.report("out/")
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from torch import nn

from beliefmatch._environment import needs
from beliefmatch._files import ready_directory
from beliefmatch.adaptation import adapt as core
from beliefmatch.adaptation.add_belief import add_belief
from beliefmatch.experiments.adapted_head import head_file
from beliefmatch.experiments.adapted_judging import adapt_evaluations, adapt_record

__all__ = ["Adapted", "adapt"]

Given = ParamSpec("Given")


class Adapted(core.Adapted):
    """What `adapt` adds to a classifier: its belief, and what came of the adaptation."""

    def summary(self) -> str:
        """Before and after as a table of plain text, on the test data if there are any.

        Else on the validation data, which chose λ as well, and then it says so.
        """
        from beliefmatch.report.adaptation_text import adaptation_summary

        return adaptation_summary(adapt_record(self.adaptation, model_name=_name(self)))

    def report(
        self,
        directory: str | Path,
        *,
        class_names: Sequence[str] | None = None,
        data_facts: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write tables, figures, records, the new head and a page that needs no network.

        All files or none. What an earlier report left there and this one does not write is removed.

        Args:
            directory: where to; it is made if it is not there.
            class_names: one for each class; "0", "1", ... if not given.
            data_facts: what is to be told of the data, as JSON can hold it.

        Returns:
            The page, report.html.
        """
        said = {"model_name": _name(self), "class_names": class_names}
        with needs("matplotlib, jinja2 and plotly", extra="report", caller="report"):
            import jinja2  # noqa: F401
            import plotly  # noqa: F401

            from beliefmatch.report.adaptation_files import write_adaptation
        head = head_file(self.adaptation, self)
        record = adapt_record(self.adaptation, data_facts=data_facts, **said)
        place = ready_directory(str(directory), caller="report")
        evaluations = adapt_evaluations(self.adaptation, **said)
        return write_adaptation(place, record, evaluations, head=head)


def _name(model: nn.Module) -> str:
    return type(model).__name__.removesuffix("WithBelief")


def _telling(adapted: Callable[Given, nn.Module]) -> Callable[Given, nn.Module]:
    """The same function, with a classifier that can tell what changed."""

    @wraps(adapted)
    def adapt(*args: Given.args, **options: Given.kwargs) -> nn.Module:
        made = adapted(*args, **options)
        return made if "mixin" in options else add_belief(made, Adapted)

    return adapt


adapt = _telling(core.adapt)
