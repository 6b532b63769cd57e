"""All files of a comparison: records, tables, figures and the page."""

from collections.abc import Sequence

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import ComparisonRecord, evaluation_paths
from beliefmatch.report.comparison_page import render_comparison
from beliefmatch.report.comparison_text import comparison_csv, comparison_markdown
from beliefmatch.report.figures import comparison_figures

__all__ = ["comparison_files"]


def comparison_files(
    record: ComparisonRecord, evaluations: Sequence[EvaluationRecord]
) -> list[tuple[str, bytes]]:
    """Name and content of each file, below a directory that is the comparison's own.

    Args:
        record: the comparison.
        evaluations: those of each method's first seed, in the order of the methods.
    """
    page = render_comparison(record, evaluations)
    paths = evaluation_paths([method.key for method in record.methods])
    texts = [
        ("comparison.json", record.to_json()),
        *((path, evaluation.to_json()) for path, evaluation in zip(paths, evaluations, strict=True)),
        ("summary.csv", comparison_csv(record)),
        ("summary.md", comparison_markdown(record)),
        ("report.html", page),
    ]
    figures = [(f"figures/{name}", content) for name, content in comparison_figures(record)]
    return [*((name, text.encode()) for name, text in texts), *figures]
