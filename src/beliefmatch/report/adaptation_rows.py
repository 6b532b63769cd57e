"""The numbers of an adaptation: its lines with their seeds, and what every λ reached on validation rows."""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from beliefmatch.experiments.adapt_record import AdaptRecord, ScoredHead, TriedHead
from beliefmatch.report.comparison_rows import AUROC, FPR95, INFINITE, KNOWN, SeedCell, SeedRow
from beliefmatch.report.evaluation_metrics import Metric
from beliefmatch.report.evaluation_text import MISSING, count_text, tidy

__all__ = [
    "KL",
    "SCORED",
    "ChoiceSeries",
    "Reached",
    "before_label",
    "choice_series",
    "detection_row",
    "detection_scores",
    "kl_weights",
    "line_title",
    "line_titles",
    "most_seeds",
    "ood_sets",
    "presentable_adaptation",
    "reference_lines",
    "score_rows",
    "scored_on_text",
    "seeds_words",
    "short_scores",
    "softmax_label",
]

BELIEF_LABEL = "belief matching"
KL = Metric("kl", "KL of the votes from the probabilities (nats)", "low", False, short="KL")
SCORED = ("error", "nll", "brier", "ece", "mean_confidence")
_HEADLINE, _BELIEF = "entropy", "mutual_information"


def presentable_adaptation(record: AdaptRecord, *, caller: str) -> AdaptRecord:
    """The record with visible characters and finite numbers only."""
    if not record.scored or record.label not in record.row_labels:
        raise ValueError(f"{caller}: `record` must have a line {record.label!r}, got {record.row_labels}.")
    return tidy(record)


def before_label(record: AdaptRecord) -> str | None:
    """The first head to compare with: the head as it was, or else the softmax head."""
    first = ("untouched", softmax_label(record), "label smoothing")
    return next((label for label in first if label in record.row_labels and label != record.label), None)


def softmax_label(record: AdaptRecord) -> str:
    """The line of softmax to compare with: with a temperature if the new head has a calibration."""
    scaled = "softmax + temperature"
    is_scaled = record.chosen_head.calibration is not None and scaled in record.row_labels
    return scaled if is_scaled else "softmax"


def lines(record: AdaptRecord) -> list[list[ScoredHead]]:
    """The heads of each line, in the order of the lines."""
    return [[one for one in record.scored if one.label == label] for label in record.row_labels]


def line_titles(record: AdaptRecord) -> list[str]:
    """What each line is called."""
    return [line_title(record.delivered(label)) for label in record.row_labels]


def line_title(scored: ScoredHead) -> str:
    """The label of a line with what was chosen for it."""
    options = [_OPTIONS[name](value) for name, value in scored.options.items() if name in _OPTIONS]
    label = _TITLES.get(scored.label, scored.label)
    options += [] if scored.converged else ["not converged"]
    return f"{label} ({', '.join(options)})" if options else label


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


_OPTIONS: dict[str, Callable[[Any], str]] = {
    "kl_weight": lambda value: f"λ\u00a0=\u00a0{_short(value)}",
    "prior": lambda value: f"β\u00a0=\u00a0{_short(value)}",
    "temperature": lambda value: f"T\u00a0=\u00a0{_short(value)}",
    "matched_kl_weight": lambda value: f"as λ\u00a0=\u00a0{_short(value)}",
    "smoothing": lambda value: f"ε\u00a0=\u00a0{_short(value)}",
}


_TITLES = {"laplace": "Laplace approximation"}


def most_seeds(record: AdaptRecord) -> int:
    """Of the line that has the most."""
    return max(map(len, lines(record)))


def seeds_words(record: AdaptRecord) -> str:
    """Of how many heads the numbers are."""
    most = most_seeds(record)
    if most == 1:
        return "one fit of each head"
    alone = any(len(line) == 1 for line in lines(record))
    return f"mean ± sd of {most} seeds" + (", where a head is trained" if alone else "")


def scored_on_text(record: AdaptRecord) -> str:
    """On what the numbers are."""
    examples = record.scored[0].scores.examples
    votes = " with votes" if record.targets == "votes" else ""
    return f"{count_text(examples, f'{record.scored_on} example')}{votes}"


class _HeadRow(SeedRow):
    """Marks the best only where every head has a number: the best of few is not the best."""

    def cells(self) -> list[SeedCell]:
        cells = super().cells()
        is_whole = all(value is not None for values in self.values for value in values)
        return cells if is_whole else [cell._replace(mark="") for cell in cells]


def _row(
    record: AdaptRecord, metric: Metric, of: Callable[[ScoredHead], float | None], **more: str
) -> SeedRow:
    found = lines(record)
    return _HeadRow(
        metric, [[of(one) for one in line] for line in found], [[one.seed for one in line] for line in found],
        **more,
    )  # fmt: skip


def score_rows(record: AdaptRecord) -> list[SeedRow]:
    """Error, NLL, Brier score, ECE and mean confidence; of votes the KL divergence as well."""
    rows = []
    for key in SCORED:

        def value(one: ScoredHead, key: str = key) -> float | None:
            return getattr(one.scores, key)

        rows.append(_row(record, KNOWN[key], value, gap=INFINITE if key == "nll" else MISSING))
    if record.targets == "votes":
        rows.insert(2, _row(record, KL, lambda one: one.kl, gap=INFINITE))
    return rows


def ood_sets(record: AdaptRecord) -> list[str]:
    """Every OOD set, in the order of their first appearance."""
    return list(dict.fromkeys(ood.name for one in record.scored for ood in one.ood))


def detection_scores(record: AdaptRecord) -> list[str]:
    """Every score of doubt; the paper's first."""
    found = dict.fromkeys(score for one in record.scored for ood in one.ood for score in ood.auroc)
    return sorted(found, key=lambda score: score != _HEADLINE)


def short_scores(record: AdaptRecord) -> list[str]:
    """Those that a narrow table has room for: the first, and the mutual information of a belief."""
    found = detection_scores(record)
    return found[:1] + [score for score in found[1:] if score == _BELIEF]


def detection_row(record: AdaptRecord, name: str, score: str, key: str = "auroc") -> SeedRow:
    """AUROC or FPR95 of every head, for one OOD set and one score."""

    def of(one: ScoredHead) -> float | None:
        ood = next((ood for ood in one.ood if ood.name == name), None)
        return None if ood is None else getattr(ood, key).get(score)

    return _row(record, AUROC if key == "auroc" else FPR95, of, score=score)


class Reached(NamedTuple):
    """What heads with one λ reached on the validation rows."""

    kl_weight: float
    nll: list[float]
    """One a seed."""
    ece: list[float]
    error: list[float]
    chosen: bool

    def mean(self, key: str) -> float | None:
        """Over the seeds that have a value."""
        values = getattr(self, key)
        return fmean(values) if values else None


class ChoiceSeries(NamedTuple):
    """One kind of heads over the values of λ, in growing order."""

    label: str
    """Of its line in the table."""
    title: str
    points: list[Reached]


def choice_series(record: AdaptRecord) -> list[ChoiceSeries]:
    """Belief matching by prior and λ, and label smoothing by the λ that it was matched to."""
    found = (*_matched(record), *_smoothed(record))
    return [series for series in found if series.points and series.label in record.row_labels]


def _matched(record: AdaptRecord) -> Iterator[ChoiceSeries]:
    heads = [one for one in record.tried if one.kind == "belief_matching" and _is_plain(one)]
    priors = list(dict.fromkeys(_prior(one) for one in heads))
    for prior in priors:
        title = BELIEF_LABEL if len(priors) == 1 else f"{BELIEF_LABEL}, β = {prior}"
        of_prior = [one for one in heads if _prior(one) == prior]
        yield ChoiceSeries(BELIEF_LABEL, title, _points(of_prior, "kl_weight", record.chosen_head))


def _smoothed(record: AdaptRecord) -> Iterator[ChoiceSeries]:
    heads = [one for one in record.tried if one.kind == "label_smoothing" and _is_plain(one)]
    yield ChoiceSeries("label smoothing", "label smoothing to match", _points(heads, "matched_kl_weight"))


def _is_plain(head: TriedHead) -> bool:
    """Whether a head is as λ alone makes it."""
    return head.calibration is None and not head.background and head.members == 1


def _prior(head: TriedHead) -> str:
    return _short(head.options.get("prior", 1))


def _points(heads: Sequence[TriedHead], option: str, chosen: TriedHead | None = None) -> list[Reached]:
    given = [one for one in heads if isinstance(one.options.get(option), (int, float))]
    made = []
    for weight in sorted({one.options[option] for one in given}):
        here = [one for one in given if one.options[option] == weight]
        best = min(here, key=lambda one: math.inf if one.nll is None else one.nll)
        here = [one for one in here if one.weight_decay == best.weight_decay]
        able = [one for one in here if one.converged]
        nll, ece, error = (_present(able, key) for key in ("nll", "ece", "error"))
        taken = chosen is not None and any(one.options == chosen.options for one in here)
        made.append(Reached(float(weight), nll, ece, error, taken))
    return made


def _present(heads: Sequence[TriedHead], key: str) -> list[float]:
    return [value for one in heads if (value := getattr(one, key)) is not None]


def kl_weights(record: AdaptRecord) -> list[float]:
    """Every λ of belief matching that was tried, in growing order."""
    series = [one for one in choice_series(record) if one.label == BELIEF_LABEL]
    return sorted({point.kl_weight for one in series for point in one.points})


def reference_lines(record: AdaptRecord, key: str) -> dict[int, float]:
    """Validation values of the lines without a λ, means over their seeds, by the place of the line.

    Those that are far worse than the heads with a λ are left out: they would press these together.
    """
    spans = [
        value for series in choice_series(record) for one in series.points for value in getattr(one, key)
    ]
    if not spans:
        return {}
    most = max(spans) + (max(spans) - min(spans))
    tried = {one.name: one for one in record.tried}
    found = {}
    for place, line in enumerate(lines(record)):
        heads = [tried[one.name] for one in line if one.name in tried]
        if any({"kl_weight", "matched_kl_weight"} & {*one.options} for one in heads):
            continue
        values = _present(heads, key)
        if values and fmean(values) <= most:
            found[place] = fmean(values)
    return found
