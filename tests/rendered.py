"""Reading what reports write: terminal output, CSV, Markdown and figures."""

import csv
import re
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from matplotlib.figure import Figure
from rich.console import Console

STARTS = {"svg": b"<?xml", "pdf": b"%PDF-", "png": b"\x89PNG\r\n\x1a\n"}


def terminal(*parts, width=100):
    """What a terminal of that width shows."""
    console = Console(file=StringIO(), width=width, color_system=None, highlight=False)
    console.print(*parts, crop=False)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def csv_rows(text):
    return list(csv.DictReader(StringIO(text)))


def markdown_rows(text):
    """The cells of each table row by its first cell; the first of several with the same one."""
    rows = {}
    for line in text.splitlines():
        if line.startswith("|"):
            first, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            rows.setdefault(first, cells)
    return rows


def rounded(text):
    """With six significant digits, which do not depend on the processor."""
    return re.sub(r"\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.6g}", text)


def masked(text):
    """Without the digits of fitted numbers, which depend on the processor, and without their alignment."""
    text = re.sub(r"[+−-]?\d[\d,]*\.(\d+)", lambda found: "#." + "#" * len(found[1]), text)
    return "\n".join(re.sub(" +", " ", line).rstrip() for line in text.splitlines()) + "\n"


@contextmanager
def figures_drawn(*kinds):
    """Only files of these kinds are really drawn, which takes most of a report's time.

    Yields a function that gives matplotlib's figures, by name, for the (name, content) of a report's files.
    """
    saved = []
    draw = Figure.savefig

    def save(figure, target, *, format, **options):
        saved.append(figure)
        if format in kinds:
            draw(figure, target, format=format, **options)
        else:
            target.write(STARTS[format])

    def collect(files):
        return {Path(name).stem: saved[-1] for name, _ in files}

    with ExitStack() as patches:
        patches.enter_context(patch.object(Figure, "savefig", save))
        if not kinds:
            patches.enter_context(patch.object(Figure, "draw_without_rendering"))
        yield collect


def figure_outline(figures):
    """Titles, axes, ticks that are names, and legends of figures by name, line by line."""
    lines = []
    for name, figure in sorted(figures.items()):
        lines.append(f"# {name}")
        for axes in (axes for axes in figure.axes if axes.get_visible()):
            title = axes.get_title(loc="left") or axes.get_title()
            lines.append(f"panel: {title} | x: {axes.get_xlabel()} | y: {axes.get_ylabel()}")
            ticks = [tick.get_text() for tick in axes.get_yticklabels()]
            if any(re.search("[a-z]{2}", tick) for tick in ticks):
                lines.append(f"ticks: {', '.join(ticks)}")
        for legend in [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]:
            lines.append(f"legend: {', '.join(text.get_text() for text in legend.get_texts())}")
    return "\n".join(" ".join(line.split()) for line in lines) + "\n"
