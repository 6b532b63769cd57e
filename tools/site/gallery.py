"""The gallery: scripts in cells, executed when the site is built.

A script is a notebook in the percent format, which Jupyter (by jupytext), VS Code and Spyder open as one:
`# %% [markdown]` begins a cell of text, `# %%` a cell of code. Every code cell is followed by what it prints
and by the value of its last line: text, HTML, or a figure, drawn in the colours of the page.
"""

import ast
import contextlib
import html
import io
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot, style
from matplotlib.figure import Figure

from beliefmatch.report.figure import paper_style, themed_svg

__all__ = ["Cell", "executed_cells", "notebook", "page_of", "picture"]

_CELL = re.compile(r"^# %%(?P<kind> \[markdown\])?.*$", re.MULTILINE)


@dataclass
class Cell:
    """Source of one cell, and what it gave."""

    source: str
    is_text: bool
    line: int = 0
    """Lines of the script above it."""
    printed: str = ""
    shown: list[str] = field(default_factory=list)
    """Values and figures as HTML."""


def executed_cells(script: Path) -> list[Cell]:
    """The cells of a script, run from the first to the last in one namespace."""
    cells = list(_cells(script.read_text(encoding="utf-8")))
    matplotlib.use("agg")
    namespace: dict[str, Any] = {"__name__": "__gallery__", "__file__": f"{script}"}
    threads = torch.get_num_threads()
    with style.context(paper_style()):
        for number, cell in enumerate(cells):
            if not cell.is_text:
                _run(cell, namespace, script, prefix=f"{script.stem}-{number}")
    torch.set_num_threads(threads)
    return cells


def _cells(source: str) -> Iterator[Cell]:
    marks = list(_CELL.finditer(source))
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    for mark, end in zip(marks, ends, strict=True):
        body = source[mark.end() + 1 : end].rstrip("\n")
        if mark["kind"]:
            body = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        yield Cell(body, is_text=bool(mark["kind"]), line=source[: mark.end()].count("\n") + 1)


def _run(cell: Cell, namespace: dict[str, Any], script: Path, *, prefix: str) -> None:
    statements = ast.parse("\n" * cell.line + cell.source, filename=f"{script}").body
    last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), f"{script}", "exec"), namespace)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"{script}", "eval"), namespace)
    figures = [value] if isinstance(value, Figure) else []
    figures += [one for one in map(pyplot.figure, pyplot.get_fignums()) if one is not value]
    cell.shown = [picture(one, f"{prefix}-{place}") for place, one in enumerate(figures)]
    if value is not None and not isinstance(value, Figure):
        if hasattr(value, "_repr_html_") and type(value).__module__ == "beliefmatch.belief":
            cell.shown.append(f'<div class="shown">{value._repr_html_()}</div>')
        else:
            print(repr(value), file=printed)
    cell.printed = printed.getvalue().rstrip()
    pyplot.close("all")


def picture(figure: Figure, prefix: str, alt: str = "") -> str:
    """A figure as an element of the page; described by the titles of its axes if `alt` is empty."""
    titles = [text for axes in figure.axes for text in (axes.get_title("left"), axes.get_title()) if text]
    alt = alt or f"Figure: {'; '.join(titles) or 'see the text above'}"
    label = html.escape(alt.replace("\n", " "))
    width = figure.get_figwidth()
    drawn = re.sub(r"\n\s*", "\n", themed_svg(figure, prefix))
    return (
        f'<div class="picture" role="img" aria-label="{label}" style="max-width:{width:.1f}in">{drawn}</div>'
    )


def page_of(cells: list[Cell], *, downloads: str) -> str:
    """The page of a script in Markdown; `downloads` is a line below its heading."""
    parts = []
    for number, cell in enumerate(cells):
        if cell.is_text:
            heading, _, rest = cell.source.partition("\n") if number == 0 else ("", "", cell.source)
            parts += [heading, downloads, rest] if heading else [rest]
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.printed:
            parts.append(f"```{{.text .output}}\n{cell.printed}\n```")
        parts += [textwrap.dedent(one) for one in cell.shown]
    return "\n\n".join(parts) + "\n"


def notebook(cells: list[Cell]) -> str:
    """The same as a notebook of Jupyter, with the printed output."""
    made = []
    for number, cell in enumerate(cells):
        one: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": cell.source}
        if cell.is_text:
            one["cell_type"] = "markdown"
        else:
            text = {"output_type": "stream", "name": "stdout", "text": f"{cell.printed}\n"}
            one |= {"cell_type": "code", "execution_count": None, "outputs": [text] if cell.printed else []}
        made.append(one)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": made})
