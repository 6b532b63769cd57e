"""A model card of Hugging Face, written from a record: scores and calibration as metadata and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beliefmatch._environment import needs
from beliefmatch._validate import describe, fail
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import RunRecord, Scores
from beliefmatch.methods import METHODS, build

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

__all__ = ["model_card"]

_TAGS = ("calibration", "uncertainty")
_METRICS = {
    "accuracy": "Accuracy",
    "nll": "Negative log-likelihood (nats)",
    "brier_score": "Brier score",
    "ece": "Expected calibration error",
}
_PACKAGES = ("beliefmatch", "torch", "python")
_USE = """## Use

The logits are log-concentrations of a Dirichlet distribution over the class probabilities. Their softmax is
its mean, the predicted probabilities; `beliefmatch.Belief` reads the rest.

```python
from beliefmatch import Belief

belief = Belief(logits)
belief.probs                 # probabilities
belief.mutual_information()  # uncertainty about them
```
"""


def model_card(
    record: EvaluationRecord | AdaptRecord | RunRecord,
    *,
    dataset: str,
    model_name: str | None = None,
    dataset_name: str | None = None,
    split: str | None = None,
    task: str = "image-classification",
    evaluations: Sequence[EvaluationRecord] = (),
    **metadata: Any,
) -> ModelCard:
    """The model card of an evaluated, adapted or trained model.

    Its metadata hold accuracy, NLL, Brier score and expected calibration error as evaluation results, which
    the Hub shows next to the model. Its text depends on the record. An evaluation gives its verdict and its
    tables, an adaptation its verdict, tables and caveats, and a run one table of test scores. A section on
    use follows for an adaptation or a run whose logits are log-concentrations of a Dirichlet. Nothing is
    sent: `card.save("README.md")` writes the card, and `card.push_to_hub(repo_id)` uploads it. The card
    leaves out what a record says of the machine and of the command.

    Args:
        record: A record of `beliefmatch evaluate`, `adapt` or `train`, such as
            `EvaluationRecord.from_json(Path("report/model.json").read_text("utf-8"))`.
        dataset: Identifier of the data set of the scores on the Hub, such as "cifar10".
        model_name: Name of the model; by default that of the record.
        dataset_name: Name of the data set for readers; by default `dataset`.
        split: Split of the data set. By default that of the record: "validation" for an adaptation that had
            no test data, else "test".
        task: Task of the model as the Hub names it, also its pipeline tag.
        evaluations: For an adaptation, the evaluations of its heads, which add intervals to the tables.
        **metadata: Further fields of `huggingface_hub.ModelCardData`, such as `license` and `base_model`.

    Example:
        >>> from pathlib import Path
        >>> from beliefmatch.experiments.adapt_record import AdaptRecord
        >>> text = Path("docs/results/adapt/story_resnet20.json").read_text("utf-8")
        >>> card = model_card(AdaptRecord.from_json(text), dataset="cifar10", license="mit")
        >>> for found in card.data.eval_results:
        ...     print(found.metric_type, f"{found.metric_value:.4f}")
        accuracy 0.9174
        nll 0.2633
        brier_score 0.1233
        ece 0.0101
    """
    function = "model_card"
    if not isinstance(record, EvaluationRecord | AdaptRecord | RunRecord):
        kinds = "an EvaluationRecord, AdaptRecord or RunRecord"
        raise fail(function, f"`record` must be {kinds}, got {describe(record)}.", TypeError)
    for name, text in (("dataset", dataset), ("task", task)):
        if not isinstance(text, str) or not text.strip():
            raise fail(function, f"`{name}` must be a name, got {describe(text)}.")
    with needs("huggingface_hub", extra="huggingface", caller=function):
        from huggingface_hub import EvalResult, ModelCard, ModelCardData
    with needs("matplotlib and rich", extra="report", caller=function):
        body, name = _text(record, evaluations)
    results = [
        EvalResult(
            task_type=task,
            dataset_type=dataset,
            dataset_name=dataset_name or dataset,
            dataset_split=split or _split(record),
            metric_type=kind,
            metric_name=_METRICS[kind],
            metric_value=value,
        )
        for kind, value in _values(record).items()
    ]
    tags = [*dict.fromkeys([*_TAGS, *(metadata.pop("tags", None) or [])])]
    fields = {"pipeline_tag": task, "datasets": [dataset], **metadata, "tags": tags}
    data = ModelCardData(model_name=model_name or name, eval_results=results, **fields)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_heading(model_name or name)}\n\n{body}")


def _values(record: EvaluationRecord | AdaptRecord | RunRecord) -> dict[str, float]:
    """By metric of the Hub, without those that are not finite."""
    found = _scores(record)
    error = found.get("error")
    values = {
        "accuracy": None if error is None else 1 - error,
        "nll": found.get("nll"),
        "brier_score": found.get("brier"),
        "ece": found.get("ece"),
    }
    return {name: round(value, 6) for name, value in values.items() if value is not None}


def _scores(record: EvaluationRecord | AdaptRecord | RunRecord) -> Mapping[str, float | None]:
    if isinstance(record, EvaluationRecord):
        return {key: number.value for key, number in record.scores.items()}
    scores: Scores = (
        record.test if isinstance(record, RunRecord) else record.delivered(record.new_label).scores
    )
    return {key: getattr(scores, key) for key in ("error", "nll", "brier", "ece")}


def _split(record: EvaluationRecord | AdaptRecord | RunRecord) -> str:
    return record.scored_on if isinstance(record, AdaptRecord) else "test"


def _heading(name: str) -> str:
    from beliefmatch.report.text import markdown_text

    return f"# {markdown_text(name)}"


def _text(
    record: EvaluationRecord | AdaptRecord | RunRecord, evaluations: Sequence[EvaluationRecord]
) -> tuple[str, str]:
    """The text of the card, and the name of the model."""
    from beliefmatch.report.adaptation import adaptation_markdown
    from beliefmatch.report.evaluation import evaluation_tables, summary_table
    from beliefmatch.report.evaluation_words import evaluation_verdict
    from beliefmatch.report.table import markdown_report
    from beliefmatch.report.text import markdown_text, presentable

    if isinstance(record, AdaptRecord):
        name, has_belief = record.model, record.delivered(record.new_label).has_belief
        parts = [adaptation_markdown(record, evaluations)]
    elif isinstance(record, RunRecord):
        name, has_belief = record.method.replace("_", " "), _reads_belief(record)
        parts = [markdown_report([_run_table(record)])]
    else:
        (shown,) = presentable([record], caller="model_card")
        name, has_belief = shown.name, False
        tables = markdown_report([summary_table([record]), *evaluation_tables([record])])
        parts = [f"**{markdown_text(evaluation_verdict([shown]))}**", tables]
    parts += [_USE] if has_belief else []
    return "\n\n".join(part.strip() for part in [*parts, _provenance(record)]) + "\n", name


def _reads_belief(record: RunRecord) -> bool:
    """Whether the method reads logits as log-concentrations; not known of a method of another version."""
    if record.method not in METHODS:
        return False
    return build(record.method, **record.options).reads == "belief"


def _run_table(record: RunRecord) -> Any:
    """Scores on the test examples, and detection of OOD examples by predictive entropy."""
    from beliefmatch.report.columns import CALIBRATION, PREDICTIONS
    from beliefmatch.report.table import Cell, Column, Row, Table

    columns = [column for column in (*PREDICTIONS, *CALIBRATION) if column.key in _scores(record)]
    cells = [Cell(_scores(record)[column.key]) for column in columns]
    for ood in record.ood:
        if "entropy" in ood.auroc:
            columns.append(Column("auroc", "AUROC", "%", "high", 1, 100.0, group=ood.name))
            cells.append(Cell(ood.auroc["entropy"]))
    title = f"{record.test.examples:,} test examples"
    return Table(title, columns, [Row(record.method.replace("_", " "), cells)], row_title="method")


def _provenance(record: EvaluationRecord | AdaptRecord | RunRecord) -> str:
    from beliefmatch.report.text import markdown_text

    versions = [f"{name} {record.versions[name]}" for name in _PACKAGES if name in record.versions]
    made = markdown_text(f"{', '.join(versions)}; {record.created[:10]}")
    return f"## Provenance\n\nScored by {made}."
