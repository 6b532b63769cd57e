"""Predictions of single images as CSV, JSON or Parquet."""

import csv
import io
import json
from collections.abc import Callable, Sequence

from beliefmatch._environment import needs
from beliefmatch.experiments.records import PredictionRow
from beliefmatch.report.safe_text import spreadsheet_text

__all__ = ["FORMATS", "prediction_file"]


def prediction_file(kind: str, rows: Sequence[PredictionRow], class_names: Sequence[str]) -> bytes:
    """The content of a file of a kind of `FORMATS`; rows are a run's, in the order of the images."""
    return FORMATS[kind](rows, class_names)


def _columns(row: PredictionRow) -> dict[str, object]:
    return {
        "image": row.name,
        "predicted": row.predicted,
        "class": row.class_name,
        "confidence": row.confidence,
        "entropy": row.entropy,
        "mutual_information": row.mutual_information,
        "abstained": row.abstained,
    }


def _csv(rows: Sequence[PredictionRow], class_names: Sequence[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(_columns(rows[0])) if rows else []
    writer.writerow([*names, *(spreadsheet_text(f"p_{name}") for name in class_names)])
    for row in rows:
        values = _columns(row) | {
            "image": spreadsheet_text(row.name),
            "class": spreadsheet_text(row.class_name),
        }
        values["abstained"] = int(row.abstained)
        writer.writerow([*("" if value is None else value for value in values.values()), *row.probs])
    return text.getvalue().encode()


def _json(rows: Sequence[PredictionRow], class_names: Sequence[str]) -> bytes:
    content = {
        "classes": list(class_names),
        "predictions": [_columns(row) | {"probs": list(row.probs)} for row in rows],
    }
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _parquet(rows: Sequence[PredictionRow], class_names: Sequence[str]) -> bytes:
    with needs("pyarrow", extra="files", caller="beliefmatch predict"):
        import pyarrow
        from pyarrow import parquet

    columns = {name: [_columns(row)[name] for row in rows] for name in _columns(rows[0])}
    table = pyarrow.table({**columns, "probs": [list(row.probs) for row in rows]})
    table = table.replace_schema_metadata({"classes": json.dumps(list(class_names))})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


FORMATS: dict[str, Callable[[Sequence[PredictionRow], Sequence[str]], bytes]] = {
    ".csv": _csv,
    ".json": _json,
    ".parquet": _parquet,
}
"""By the ending of the file."""
