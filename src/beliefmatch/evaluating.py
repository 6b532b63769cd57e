"""The public function `evaluate`: predictions of one or more models in, an `Evaluation` out.

found = beliefmatch.evaluate(logits={"a": a, "b": b}, targets=y, ood={"svhn": {"a": a_svhn, "b": b_svhn}})
print(found)
found["a"].ece
found.plot()
found.report("report.html")
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from beliefmatch._environment import needs
from beliefmatch._errors import ArgumentError
from beliefmatch._files import atomic_write, atomic_write_dir, directory_in_use, ready_directory, refuse_url
from beliefmatch._torch_state import on_cpu
from beliefmatch._utils import OnProgress, first_repeated, require_name
from beliefmatch._validate import describe, fail, naming_arguments
from beliefmatch.data.predictions import Kind, Predictions
from beliefmatch.experiments.evaluate import ModelPredictions, evaluate_models
from beliefmatch.experiments.evaluate_config import (
    EvaluateConfig,
    require_enough_resamples,
    require_ood_name,
)
from beliefmatch.experiments.evaluation_record import Detection, EvaluationRecord, Number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

    from beliefmatch.report.figure import Figure
    from beliefmatch.report.page import Page
    from beliefmatch.report.table import Table

__all__ = ["Evaluation", "evaluate"]

_DEFAULT = EvaluateConfig()
_OTHER_FILES = (".pdf", ".png", ".svg", ".json", ".csv", ".md", ".txt", ".tex", ".docx", ".ipynb")


def evaluate(
    *,
    logits: Any = None,
    probs: Any = None,
    targets: Any,
    ood: Mapping[str, Any] | None = None,
    class_names: Sequence[str] | None = None,
    images: Any = None,
    name: str = "model",
    n_bins: int = _DEFAULT.n_bins,
    resamples: int = _DEFAULT.resamples,
    level: float = _DEFAULT.level,
    seed: int = _DEFAULT.seed,
    top_k: int = _DEFAULT.top_k,
    risks: Sequence[float] = _DEFAULT.risks,
    delta: float = _DEFAULT.delta,
    coverages: Sequence[float] = _DEFAULT.coverages,
    shown: int = _DEFAULT.shown,
    on_progress: OnProgress | None = None,
) -> "Evaluation":
    """Evaluate models by their predictions: error, calibration, selective prediction, detection of OOD input.

    Arrays are tensors of any device, numpy arrays, lists or data frames. Several models are a dictionary of
    arrays by name. It is never guessed whether values are logits or probabilities: the argument says it.

    Args:
        logits: Logits of shape (N, K), or a `Belief`; a dictionary of them for several models.
        probs: Probabilities of shape (N, K), rows summing to one; a dictionary of them for several models.
            With dictionaries, some models may have logits and others probabilities. Columns of data frames
            that are numbered, such as prob_0 or 0, are read in the order of their numbers.
        targets: Class ids from 0 to K − 1 of shape (N,), the same for all models; or texts among
            `class_names`.
        ood: Predictions for examples that belong to no class, by the name of their set. Of one model
            `{"svhn": array}`, of several `{"svhn": {"a": array, "b": array}}`; logits where the model has
            logits, else probabilities.
        class_names: One name for each class; by default those in the headings of a data frame, such
            as prob_cat or the texts of `targets`, else "0", "1", ...
        images: Images of the examples, of shape (N, H, W), (N, H, W, C) or (N, C, H, W), shown on the page
            for mistakes and uncertain examples.
        name: Name of the model, where there is one.
        n_bins: Number of confidence bins of the calibration errors.
        resamples: Number of bootstrap resamples of the intervals, from 1,000 to 100,000; 0 for no intervals.
        level: Confidence level of the intervals.
        seed: Seed of the bootstrap.
        top_k: Number of classes that `top_k_error` may name.
        risks: Error rates among answered examples for which to find a confidence threshold.
        delta: Probability with which each of these thresholds may fail.
        coverages: Probabilities with which prediction sets are to hold the true class.
        shown: Number of the most confident mistakes, and of the most uncertain examples, that are kept.
        on_progress: Called with (fraction, description).

    Returns:
        The numbers, which print, plot and report themselves. The metrics are defined in `docs/metrics.md`.

    Example:
        >>> import numpy as np
        >>> from beliefmatch import evaluate
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(0, 3, 400)
        >>> z = 2 * (rng.normal(size=(400, 3)) + 2 * np.eye(3)[y])
        >>> found = evaluate(logits={"plain": z, "too sure": 5 * z}, targets=y, resamples=1000)
        >>> found["plain"].error == found["too sure"].error == float((z.argmax(1) != y).mean())
        True
        >>> found["plain"].ece < found["too sure"].ece
        True
    """
    given = locals()
    fields = EvaluateConfig.__struct_fields__
    with naming_arguments("evaluate", **{field: field for field in fields}):
        config = EvaluateConfig(**{field: _as_tuple(given[field]) for field in fields})
    require_enough_resamples(resamples)
    if targets is None:
        raise fail("evaluate", "`targets` must be given, got none.")
    classes = None if class_names is None else _class_names(class_names)
    models = _models(logits, probs, name)
    sets = _ood_arrays(ood, list(models))
    made = []
    for model, predictions in _with_targets(models, targets, images, classes).items():
        others = {
            set_name: _predictions(models[model][0], *of_models[model], class_names=classes)
            for set_name, of_models in sets.items()
        }
        made.append(ModelPredictions(model, predictions, others))
    steps, done = sum(one.steps for one in made), 0

    def on_step(description: str) -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done / steps, description)

    with on_cpu():
        records = evaluate_models(made, settings=config, class_names=classes, on_step=on_step)
    return Evaluation(records)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _class_names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise fail("evaluate", f"`class_names` must be a list of names, got {describe(names)}.", TypeError)
    found = tuple(f"{name}" for name in names)
    twice = first_repeated(found)
    if twice is not None:
        raise fail("evaluate", f"`class_names` must name each class once, got {twice!r} twice.")
    return found


def _models(logits: Any, probs: Any, name: str) -> dict[str, tuple[Kind, str, Any]]:
    """Of each model: what its values are, the argument in words, and the values."""
    given: dict[Kind, Any] = {"logits": logits, "probs": probs}
    given = {kind: one for kind, one in given.items() if one is not None}
    if not given or (len(given) == 2 and not all(isinstance(one, Mapping) for one in given.values())):
        received = "both" if given else "neither"
        remedy = "; with dictionaries, some models may have logits and others probabilities" if given else ""
        raise fail("evaluate", f"`logits` or `probs` must be given, got {received}{remedy}.")
    models: dict[str, tuple[Kind, str, Any]] = {}
    for kind, one in given.items():
        named = one if isinstance(one, Mapping) else {name: one}
        if not named:
            raise fail("evaluate", f"`{kind}` must hold one model or more, got an empty dictionary.")
        for model, values in named.items():
            if not isinstance(model, str) or not model.strip():
                raise fail("evaluate", f"`{kind}` must have names of models as its keys, got {model!r}.")
            if model in models:
                raise fail("evaluate", f"`probs` must not repeat models of `logits`, got {model!r}.")
            models[model] = (kind, f"{kind}[{model!r}]" if isinstance(one, Mapping) else kind, values)
    return models


def _ood_arrays(
    ood: Mapping[str, Any] | None, models: Sequence[str]
) -> dict[str, dict[str, tuple[Any, str]]]:
    """By set and model: the values, and the argument in words."""
    if ood is not None and not isinstance(ood, Mapping):
        expected = "a dictionary of predictions by the name of the set"
        raise fail("evaluate", f"`ood` must be {expected}, got {describe(ood)}.", TypeError)
    found: dict[str, dict[str, tuple[Any, str]]] = {}
    for name, of_models in (ood or {}).items():
        if not isinstance(name, str) or not name.strip():
            raise fail("evaluate", f"`ood` must have names of sets as its keys, got {name!r}.")
        require_ood_name(name)
        title = f"ood[{name!r}]"
        if not isinstance(of_models, Mapping):
            if len(models) > 1:
                expected = f"a dictionary with the predictions of {', '.join(models)}"
                raise fail("evaluate", f"`{title}` must be {expected}, got {describe(of_models)}.")
            found[name] = {models[0]: (of_models, title)}
            continue
        if set(of_models) != set(models):
            received = ", ".join(map(str, of_models)) or "none"
            raise fail("evaluate", f"`{title}` must have the models {', '.join(models)}, got {received}.")
        found[name] = {model: (of_models[model], f"{title}[{model!r}]") for model in models}
    return found


def _with_targets(
    models: Mapping[str, tuple[Kind, str, Any]], targets: Any, images: Any, classes: tuple[str, ...] | None
) -> dict[str, Predictions]:
    """Checked predictions; where the targets fit one model, the shape of another one is to blame."""
    found: dict[str, Predictions] = {}
    refused: dict[str, ArgumentError] = {}
    for model, (kind, title, values) in models.items():
        try:
            found[model] = _predictions(
                kind, values, title, targets=targets, images=images, class_names=classes
            )
        except ArgumentError as error:
            if error.argument != "targets":
                raise
            refused[model] = error
    for model, error in refused.items():
        kind, title, values = models[model]
        own = _predictions(kind, values, title, class_names=classes).values.shape
        fitting = next(((name, one.values.shape) for name, one in found.items()), None)
        if fitting is None or fitting[1] == own:
            raise error
        expected = f"the shape {tuple(fitting[1])} of {fitting[0]!r}, which fits the targets"
        raise fail("evaluate", f"`{title}` must have {expected}, got {tuple(own)}.") from error
    return found


def _predictions(kind: Kind, values: Any, title: str, **given: Any) -> Predictions:
    """Checked predictions; errors name the user's argument."""
    with naming_arguments("evaluate", **{name: name for name in given}, **{kind: title}):
        return Predictions.from_arrays(**{kind: values}, **given)


class Evaluation:
    """What one or more models are worth, from the predictions that they made.

    `evaluation["a"]` is the evaluation of one of its models. The numbers of one model are attributes:
    `error`, `nll`, `brier`, `ece`, `auroc`; all metrics with their intervals are in `numbers`, and those of
    all models in `scores`. Printed, it gives the verdict and a table; in a notebook also pictures.

    Args:
        records: One for each model, as `evaluate` makes them.
    """

    def __init__(self, records: Sequence[EvaluationRecord]) -> None:
        if not records:
            raise fail("Evaluation", "`records` must be one or more, got none.")
        self.records = list(records)

    @classmethod
    def load(cls, *paths: str | Path) -> "Evaluation":
        """An evaluation from the records (.json) of one or more models."""
        records = []
        for path in paths:
            try:
                records.append(EvaluationRecord.from_json(Path(path).read_text(encoding="utf-8")))
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or f"{error}"
                raise fail("Evaluation.load", f"`paths` must be records, got {path} ({reason}).") from error
        return cls(records)

    # Models

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return [record.name for record in self.records]

    def __len__(self) -> int:
        """Number of models."""
        return len(self.records)

    def __iter__(self) -> Iterator[str]:
        """Names of the models, as of a dictionary."""
        return iter(self.names)

    def __getitem__(self, name: str) -> "Evaluation":
        """The evaluation of one model."""
        for record in self.records:
            if record.name == name:
                return Evaluation([record])
        try:
            require_name("Evaluation", "name", f"{name}", self.names)
        except ValueError as error:
            raise KeyError(f"{error}") from None
        raise KeyError(name)

    # Numbers

    @property
    def record(self) -> EvaluationRecord:
        """The record of the only model: every number, curve and setting."""
        if len(self.records) > 1:
            fact = f"there are {len(self)} models; choose one of {', '.join(self.names)} by evaluation[name]."
            raise fail("Evaluation", fact, AttributeError)
        return self.records[0]

    @property
    def numbers(self) -> dict[str, Number]:
        """Every metric of the only model, with the ends of its interval."""
        return self.record.scores

    @property
    def error(self) -> float:
        """Share of wrong predictions of the only model."""
        return _value(self.numbers["error"])

    @property
    def nll(self) -> float:
        """Negative log-likelihood of the only model, in nats."""
        return _value(self.numbers["nll"])

    @property
    def brier(self) -> float:
        """Brier score of the only model, from 0 to 2."""
        return _value(self.numbers["brier"])

    @property
    def ece(self) -> float:
        """Expected calibration error of the only model."""
        return _value(self.numbers["ece"])

    @property
    def auroc(self) -> dict[str, dict[str, float]]:
        """AUROC of the only model by OOD set and score, such as `auroc["svhn"]["entropy"]`."""
        return {one.name: _by_score(one.detections, "auroc") for one in self.record.ood}

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """By model, its metrics by name; of OOD sets AUROC and FPR95 as "svhn/entropy/auroc".

        A number that does not exist is NaN. `pandas.DataFrame(evaluation.scores)` makes a table of it.
        """
        found = {}
        for record in self.records:
            numbers = {key: _value(number) for key, number in record.scores.items()}
            for one in record.ood:
                for area in ("auroc", "fpr95"):
                    by_score = _by_score(one.detections, area)
                    numbers |= {f"{one.name}/{score}/{area}": value for score, value in by_score.items()}
            found[record.name] = numbers
        return found

    # Words, tables and pictures; these need the extra `report`.

    @property
    def verdict(self) -> str:
        """Which model to take, or what is wrong with the only one, in one sentence."""
        return self._page().verdict

    @property
    def warnings(self) -> list[str]:
        """What has to be known before the numbers are compared."""
        return list(self._page().warnings)

    @property
    def advice(self) -> list[str]:
        """What to do."""
        return list(self._page().advice)

    def table(self) -> "Table":
        """Error, likelihood, calibration and OOD detection of each model; printed, it is a table of text.

        `beliefmatch.report.table` renders it as CSV and as Markdown.
        """
        with _report_extra():
            from beliefmatch.report.evaluation import summary_table
        return summary_table(self.records)

    def tables(self) -> "list[Table]":
        """Every number, by family."""
        with _report_extra():
            from beliefmatch.report.evaluation import evaluation_tables
        return evaluation_tables(self.records)

    @property
    def figures(self) -> "dict[str, Figure]":
        """Every figure of the page by its name, as a description that `plot` draws."""
        return {figure.name: figure for figure in self._page().figures()}

    def plot(self, figure: str | None = None) -> "MatplotlibFigure":
        """A figure of matplotlib, to show or to save by its `savefig`.

        Args:
            figure: Name of one of `figures`, such as "reliability", "risk_coverage", "roc" or "confusion_0".
                By default the reliability diagram with the entropies of test and OOD examples, or with
                the risk-coverage curve if there are no OOD sets.
        """
        with _report_extra():
            from beliefmatch.report.figure import paper_canvas, side_by_side
        if figure is None:
            return paper_canvas(side_by_side(self._page().pictures))
        known = self.figures
        require_name("plot", "figure", figure, known)
        return paper_canvas(known[figure])

    def files(self, *, figures: str | Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
        """Name and content of every file of a report; also figures as "pdf", "svg" or "png"."""
        with _report_extra():
            import jinja2  # noqa: F401

            from beliefmatch.report.evaluation import evaluation_files
        return evaluation_files(self.records, figures=_figure_formats("files", figures))

    def report(self, path: str | Path, *, figures: str | Sequence[str] = ()) -> Path:
        """Write the page, an HTML file that needs no network.

        Args:
            path: A file that ends in .html for the page alone. Any other path is a directory, which gets the
                records (.json) and tables too: all files or none; files of an earlier report that this one
                does not write are removed, but for records.
            figures: One or more formats in which every figure is written too: "pdf", "svg", "png"; in a
                directory.

        Returns:
            The path of the page.
        """
        figures = _figure_formats("report", figures)
        if not isinstance(path, str | PathLike):
            fact = "`path` must be the path of a directory or of an .html file"
            raise fail("report", f"{fact}, got {describe(path)}.", TypeError)
        refuse_url(f"{path}", caller="report", argument="path")
        place = Path(path)
        is_page = place.suffix.lower() in (".html", ".htm") and not place.is_dir()
        if place.suffix.lower() in _OTHER_FILES and not place.is_dir():
            raise fail("report", f"`path` must end in .html or be a directory, got {path}.")
        if is_page and figures:
            raise fail("report", f"`figures` must be written to a directory, got the file {path} as `path`.")
        with naming_arguments("report", out="path"):
            if is_page:
                ready_directory(f"{place.parent}", caller="report")
                atomic_write(place, dict(self.files())["report.html"])
                return place
            with directory_in_use(f"{path}", caller="report") as directory:
                atomic_write_dir(directory, list(self.files(figures=figures)), keep=".json")
                return directory / "report.html"

    def _page(self) -> "Page":
        with _report_extra():
            from beliefmatch.report.evaluation import evaluation_page
        return evaluation_page(self.records)

    def __repr__(self) -> str:
        """The verdict, warnings and the table; names and errors where the extra `report` is missing."""
        try:
            page, table = self._page(), f"{self.table()}"
        except ModuleNotFoundError:
            listed = (f"{name}: error {100 * self[name].error:.2f} %" for name in self)
            return f"Evaluation({', '.join(listed)})"
        return "\n".join([*(fill(one, 110) for one in (page.verdict, *page.warnings)), "", table])

    def _repr_html_(self) -> str:
        with _report_extra():
            import jinja2  # noqa: F401

            from beliefmatch.report.page import render_notebook
        return render_notebook(self._page(), self.table(), caller="Evaluation")


def _report_extra() -> Any:
    return needs("matplotlib, jinja2 and rich", extra="report", caller="Evaluation")


def _figure_formats(function: str, figures: Any) -> tuple[str, ...]:
    """One format or several, checked."""
    given = (figures,) if isinstance(figures, str) else figures
    if not isinstance(given, Iterable):
        raise fail(function, f"`figures` must be a list of formats, got {describe(figures)}.", TypeError)
    formats = tuple(given)
    for one in formats:
        require_name(function, "figures", one, ("pdf", "svg", "png"))
    return formats


def _value(number: Number) -> float:
    if number.value is not None:
        return number.value
    return math.inf if number.is_infinite else math.nan


def _by_score(detections: Sequence[Detection], area: str) -> dict[str, float]:
    return {one.score: _value(getattr(one, area)) for one in detections}
