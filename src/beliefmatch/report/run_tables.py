"""Tables of one run for the terminal."""

from rich.console import RenderableType

from beliefmatch.experiments.records import RunRecord, Scores
from beliefmatch.report.layout import Column, plain_table

__all__ = ["run_tables"]

_SCORE = "entropy"


def run_tables(record: RunRecord) -> tuple[RenderableType, ...]:
    """Scores on validation and test set, OOD sets, and a line on costs."""
    parts: list[RenderableType] = [_scores(record)]
    if record.ood:
        parts.append(_ood(record))
    if record.search:
        parts.append(_search(record))
    return *parts, _costs(record)


def _scores(record: RunRecord) -> RenderableType:
    sets = {"validation": record.validation, "test": record.test}
    return plain_table(
        Column("", list(sets), is_text=True),
        Column("images", [f"{scores.examples:,}" for scores in sets.values()]),
        Column("error %", [f"{100 * scores.error:.2f}" for scores in sets.values()]),
        Column("NLL", [_nll(scores) for scores in sets.values()]),
        Column("Brier", [f"{scores.brier:.4f}" for scores in sets.values()]),
        Column("ECE %", [f"{100 * scores.ece:.2f}" for scores in sets.values()]),
        title=f"{record.method.replace('_', ' ')}{_learnt_from(record)}, seed {record.seed}",
        caption="less is better",
    )


def _learnt_from(record: RunRecord) -> str:
    """Unlabelled data and other settings of a run that are not the defaults."""
    labels = record.config["data"].get("labels")
    semi, teacher = record.config.get("semi"), record.config.get("teacher")
    words = [f"{labels:,} labels"] if labels else []
    words += [semi["kind"]] if semi else []
    words += (
        [f"a teacher of {teacher['strength']:g} vote{'s' * (teacher['strength'] != 1)}"] if teacher else []
    )
    return f" with {' and '.join(words)}" if words else ""


def _nll(scores: Scores) -> str:
    return "infinite" if scores.nll is None else f"{scores.nll:.4f}"


def _ood(record: RunRecord) -> RenderableType:
    return plain_table(
        Column("OOD set", [one.name for one in record.ood], is_text=True),
        Column("images", [f"{one.examples:,}" for one in record.ood]),
        Column("AUROC %", [f"{100 * one.auroc[_SCORE]:.1f}" for one in record.ood]),
        Column("FPR95 %", [f"{100 * one.fpr95[_SCORE]:.1f}" for one in record.ood]),
        Column("confidence", [f"{one.mean_confidence:.2f}" for one in record.ood]),
        title="out-of-distribution detection by the entropy of the prediction",
    )


def _search(record: RunRecord) -> RenderableType:
    trials = record.search
    return plain_table(
        Column(trials[0].option, [f"{trial.value:g}{' *' if trial.chosen else ''}" for trial in trials]),
        Column("validation error %", [f"{100 * trial.validation.error:.2f}" for trial in trials]),
        Column("NLL", [_nll(trial.validation) for trial in trials]),
        caption="* chosen",
    )


def _costs(record: RunRecord) -> str:
    costs = record.costs
    networks = f"{costs.networks} networks of " if costs.networks > 1 else ""
    skipped = f", {record.skipped_steps} steps skipped" if record.skipped_steps else ""
    return (
        f"\n{networks}{costs.parameters:,} parameters, trained in {costs.train_seconds:.1f} s "
        f"({costs.train_images_per_second:.0f} images/s), {costs.predict_ms_per_image:.3f} ms a prediction, "
        f"{record.engine['device']}, {record.engine['precision']}{skipped}"
    )
