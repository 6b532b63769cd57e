"""Predictions of single images, sentences or rows as CSV, JSON or Parquet."""

import csv
import io
import json
from collections.abc import Callable, Sequence

from beliefmatch._environment import needs
from beliefmatch.experiments.records import PredictionRow
from beliefmatch.report.text import spreadsheet_text

__all__ = ["FORMATS", "prediction_file"]


def prediction_file(
    kind: str, rows: Sequence[PredictionRow], class_names: Sequence[str], *, inputs: str = "image"
) -> bytes:
    """The content of a file of a kind of `FORMATS`.

    Args:
        kind: ending of the file.
        rows: of a run, in the order of the inputs.
        class_names: by id.
        inputs: heading of the names of the inputs, "image", "text" or "row".
    """
    return FORMATS[kind]([_columns(row, inputs) for row in rows], [row.probs for row in rows], class_names)


_Columns = Sequence[dict[str, object]]
_Probs = Sequence[Sequence[float]]


def _columns(row: PredictionRow, inputs: str) -> dict[str, object]:
    return {
        inputs: row.name,
        "predicted": row.predicted,
        "class": row.class_name,
        "confidence": row.confidence,
        "entropy": row.entropy,
        "mutual_information": row.mutual_information,
        "abstained": row.abstained,
        "none_of_these": row.none_of_these,
        **({} if row.prediction_set is None else {"prediction_set": " | ".join(row.prediction_set)}),
    }


def _csv(rows: _Columns, probs: _Probs, class_names: Sequence[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(rows[0]) if rows else []
    writer.writerow([*names, *(spreadsheet_text(f"p_{name}") for name in class_names)])
    for row, of_row in zip(rows, probs, strict=True):
        writer.writerow([*map(_cell, row.values()), *of_row])
    return text.getvalue().encode()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return spreadsheet_text(value)
    return "" if value is None else int(value) if isinstance(value, bool) else value


def _json(rows: _Columns, probs: _Probs, class_names: Sequence[str]) -> bytes:
    predictions = [row | {"probs": list(of_row)} for row, of_row in zip(rows, probs, strict=True)]
    content = {"classes": list(class_names), "predictions": predictions}
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _parquet(rows: _Columns, probs: _Probs, class_names: Sequence[str]) -> bytes:
    with needs("pyarrow", extra="files", caller="beliefmatch predict"):
        import pyarrow
        from pyarrow import parquet

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = pyarrow.table({**columns, "probs": [list(of_row) for of_row in probs]})
    table = table.replace_schema_metadata({"classes": json.dumps(list(class_names))})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


FORMATS: dict[str, Callable[[_Columns, _Probs, Sequence[str]], bytes]] = {
    ".csv": _csv,
    ".json": _json,
    ".parquet": _parquet,
}
"""By the ending of the file."""
