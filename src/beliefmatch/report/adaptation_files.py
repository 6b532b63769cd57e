"""All files of an adaptation: records, tables, figures, the page and the new head."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from beliefmatch._files import atomic_write_dir
from beliefmatch.experiments.adapt_record import AdaptRecord, adapt_evaluation_paths
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.adaptation_figures import adaptation_figures
from beliefmatch.report.adaptation_page import render_adaptation
from beliefmatch.report.adaptation_text import adaptation_csv, adaptation_markdown

__all__ = ["RECORD_NAME", "adaptation_files", "write_adaptation"]

RECORD_NAME = "record.json"
HEAD_NAME = "head.safetensors"
PAGE_NAME = "report.html"


def adaptation_files(
    record: AdaptRecord, evaluations: Sequence[EvaluationRecord], *, head: bytes | None = None
) -> list[tuple[str, bytes]]:
    """Name and content of each file, below a directory that is the adaptation's own.

    Args:
        record: the adaptation.
        evaluations: one for each line of its table, in their order.
        head: the chosen weights as a file, where they are to be kept as well.
    """
    page = render_adaptation(record, evaluations)
    paths = adapt_evaluation_paths(record.row_labels)
    texts = [
        (RECORD_NAME, record.to_json()),
        *((path, evaluation.to_json()) for path, evaluation in zip(paths, evaluations, strict=True)),
        ("summary.csv", adaptation_csv(record)),
        ("summary.md", adaptation_markdown(record, evaluations)),
        (PAGE_NAME, page),
    ]
    figures = [(f"figures/{name}", content) for name, content in adaptation_figures(record, evaluations)]
    weights = [] if head is None else [(HEAD_NAME, head)]
    return [*((name, text.encode()) for name, text in texts), *figures, *weights]


def write_adaptation(
    directory: Path,
    record: AdaptRecord,
    evaluations: Sequence[EvaluationRecord],
    *,
    head: bytes | None = None,
    others: Iterable[tuple[str, bytes]] = (),
) -> Path:
    """Write all files, or none, into a directory that is there, `others` too; report.html is returned.

    What an earlier report left there and this one does not write is removed.
    """
    atomic_write_dir(directory, [*others, *adaptation_files(record, evaluations, head=head)])
    return directory / PAGE_NAME
