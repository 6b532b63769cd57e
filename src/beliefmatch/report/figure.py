"""One description of a figure, drawn by matplotlib: as SVG inside a page, and as files for a paper.

Pages hold the SVG itself, so they need no chart library: text stays text, colours of ink and grid follow the
theme of the page, and every curve carries the number of its model, by which the page shows and hides it.
"""

import math
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO, StringIO
from typing import Any, Literal

from matplotlib import font_manager, rc_context, style
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from beliefmatch.report.style import INK, REFERENCE, Look
from beliefmatch.report.table import Table
from beliefmatch.report.text import shorten

__all__ = [
    "KINDS",
    "Axis",
    "Figure",
    "Matrix",
    "Panel",
    "Series",
    "figure_name",
    "inline_svg",
    "paper_canvas",
    "paper_files",
    "paper_style",
    "side_by_side",
    "themed_svg",
]

Drawing = Literal["line", "points", "area", "steps", "bars", "counts"]
KINDS = ("svg", "pdf", "png")
_INK, _SOFT, _GRID = "#102030", "#405060", "#708090"  # replaced by the page's colours
_PAGE_COLOURS = {_INK: "currentColor", _SOFT: "var(--soft)", _GRID: "var(--line)"}
_PAPER = {_INK: "#1b1f24", _SOFT: "#59636e", _GRID: "#c4cad0"}
_PAGE_COLOURS |= {_PAPER[name]: colour for name, colour in _PAGE_COLOURS.items()}
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_PALE = 0.35
_LETTERS = 5  # longer names along an x axis are slanted
_NARROW = 3.0  # inches; narrower panels have shorter titles and fewer ticks


@dataclass(frozen=True)
class Axis:
    """Label, limits and form of the numbers of an axis."""

    label: str = ""
    low: float | None = None
    high: float | None = None
    percent: bool = False
    log: bool = False
    ticks: Sequence[float] = ()
    """Where numbers stand, if not at round ones."""
    names: Sequence[str] = ()
    """Names at 0, 1, 2, ... instead of numbers; on the y axis the first is on top."""


@dataclass(frozen=True)
class Series:
    """Points of one model.

    "bars" are `bar_width` wide. "counts" are written with a cross above the axes, where y is not mistaken for
    a value.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    look: Look
    draw: Drawing = "line"
    low: Sequence[float] | None = None
    """Ends of intervals, along y; along x where the y axis has names."""
    high: Sequence[float] | None = None
    model: int | None = None
    width: float = 1.8
    bar_width: float = 1.0
    size: float = 4.5
    """Of markers, in points."""
    alpha: float = 1.0
    filled: bool = True
    """Whether markers are filled."""
    marker: bool = False
    """Whether a line has markers."""


@dataclass(frozen=True)
class Matrix:
    """Shares from 0 to 1 with a text each: rows of cells, the first row on top."""

    shares: Sequence[Sequence[float]]
    texts: Sequence[Sequence[str]] = ()
    wrong: Sequence[Sequence[bool]] = ()
    """Cells drawn in the second colour."""
    pictures: Sequence[Sequence[Sequence[float]]] = ()
    """A grey image above each column: rows of ink from 0 to 1."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    series: Sequence[Series] = ()
    x: Axis = Axis()
    y: Axis = Axis()
    title: str = ""
    diagonal: bool = False
    matrix: Matrix | None = None
    below: "Panel | None" = None
    """A lower panel a third as high, with the same x axis."""
    height: float = 2.7
    """In inches at a width of 3.6; of 7.4 if it is wide."""
    width: float = 3.6
    """In inches on a page, which scales it: the narrower, the larger its text."""
    wide: bool = False
    """Whether it takes a whole row."""


@dataclass(frozen=True)
class Figure:
    """Panels with a name for the files, and what they show in words and numbers."""

    name: str
    panels: Sequence[Panel]
    alt: str
    title: str = ""
    note: str = ""
    numbers: Table | None = None
    legend: Sequence[tuple[str, Look]] = field(default=())
    across: int = 3
    """Panels side by side, at most."""
    caption: str = ""
    """Text below the panels of a file; a page has it elsewhere."""


def figure_name(text: str, taken: Container[str] = ()) -> str:
    """A name that every file system takes, and that is not taken yet."""
    base = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:48] or "figure"
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


def side_by_side(figures: Sequence[Figure]) -> Figure:
    """Several figures of the same models as one."""
    panels = [
        panel if panel.title or len(one.panels) > 1 else replace(panel, title=one.title.partition(":")[0])
        for one in figures
        for panel in one.panels
    ]
    alt = " ".join(one.alt for one in figures)
    legend = max((one.legend for one in figures), key=len)
    return Figure("_".join(one.name for one in figures), panels, alt, legend=legend)


# For a page


def inline_svg(figure: Figure) -> list[str]:
    """One SVG element for each panel, without a declaration."""
    return [_inline(panel, f"{figure.name}-{place}") for place, panel in enumerate(figure.panels)]


def _inline(panel: Panel, prefix: str) -> str:
    with style.context(_style(_INK, _SOFT, _GRID)):
        canvas = Canvas(figsize=(7.4 if panel.wide else panel.width, _height(panel)), layout="constrained")
        canvas.patch.set_visible(False)
        _draw(canvas, [panel], 1, ink=_INK)
        return themed_svg(canvas, prefix)


def themed_svg(canvas: Canvas, prefix: str) -> str:
    """A figure of matplotlib as an SVG element that takes the colours of the page around it.

    It has no size but its proportions. Names of its elements start with `prefix`, so that they are no other
    figure's. Ink, soft ink and grid are recognised by their colours, those of `paper_style`.
    """
    buffer = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        canvas.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>\s*", "", svg, flags=re.DOTALL)  # would style the whole page
    for placeholder, colour in _PAGE_COLOURS.items():
        svg = svg.replace(placeholder, colour)
    svg = re.sub(r'\bid="(?!series-)', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r'<g id="series-(\w+)-\d+">', _series_tag, svg)
    svg = re.sub(r"font(-family)?: ?([^;\"]*?)'?DejaVu Sans'?[^;\"]*", _font, svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    return re.sub(r"<svg[^>]*>", f'<svg {view[0]} aria-hidden="true" focusable="false">', svg, count=1)


def _series_tag(found: re.Match[str]) -> str:
    return "<g>" if found[1] == "none" else f'<g data-model="{found[1]}">'


def _font(found: re.Match[str]) -> str:
    return f"font-family: {_FONTS}" if found[1] else f"font: {found[2]}{_FONTS}"


# For a paper


def paper_files(figures: Sequence[Figure], kinds: Sequence[str] = KINDS) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files of every figure; the same figure gives the same bytes."""
    for figure in figures:
        canvas = paper_canvas(figure)
        for kind in kinds:
            buffer = BytesIO()
            undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            canvas.savefig(buffer, format=kind, dpi=160, metadata=undated)
            yield f"{figure.name}.{kind}", buffer.getvalue()


def paper_style() -> list[Any]:
    """The style of every figure, for `matplotlib.style.context`."""
    return _style(*_PAPER.values())


class PaperCanvas(Canvas):
    """A figure of matplotlib that keeps its style when it is saved, and shows itself in a notebook."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """As of matplotlib."""
        files = rc_context({"svg.hashsalt": "beliefmatch", "pdf.fonttype": 42})
        with style.context(paper_style()), files:  # tick labels are made when saving
            super().savefig(*args, **kwargs)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=120)
        return buffer.getvalue()


def paper_canvas(figure: Figure) -> PaperCanvas:
    """The figure as matplotlib has it, laid out and not to be changed by the reader's own style."""
    columns = max(1, min(len(figure.panels), figure.across))
    heights = _row_heights(figure.panels, columns)
    with style.context(paper_style()):
        width = max(3.3 * columns, 7.4 * any(panel.wide for panel in figure.panels))
        canvas = PaperCanvas(figsize=(width, sum(heights, start=0.35)), layout="constrained")
        _draw(canvas, figure.panels, columns, ink=_PAPER[_INK])
        if figure.title and len(figure.panels) > 1:
            canvas.suptitle(drawn_text(figure.title, 80), fontsize=10, color=_PAPER[_SOFT])
        if len(figure.legend) > 1 or figure.caption:
            _draw_legend(canvas, figure)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")
    return canvas


_LEGEND_ROW_INCHES = 0.2


def _draw_legend(canvas: Canvas, figure: Figure) -> None:
    """Below the panels: the caption, and the looks of several models."""
    shown = figure.legend if len(figure.legend) > 1 else []
    handles = [Line2D([], [], **_stroke(look, _PAPER[_INK])) for _, look in shown]
    texts = [drawn_text(label, 36) for label, _ in shown]
    fitting = int(canvas.get_figwidth() / (0.65 + 0.075 * max(map(len, texts), default=1)))
    columns = min(max(fitting, 1), len(texts) or 1, 4)
    rows = math.ceil(len(texts) / columns)
    # more than two rows would take the room of the axes, or lie across them
    canvas.set_figheight(canvas.get_figheight() + _LEGEND_ROW_INCHES * max(0, rows - 2))
    legend = canvas.legend(
        handles,
        texts,
        loc="outside lower center",
        ncols=columns,
        title=drawn_text(figure.caption, 200) or None,
        title_fontsize=8,
    )
    legend.get_title().set_color(_PAPER[_SOFT])


# Drawing


def _style(ink: str, soft: str, grid: str) -> list[Any]:
    return [
        "default",  # or the reader's own settings, perhaps LaTeX, would draw the figures
        {
            "axes.edgecolor": grid,
            "axes.grid": True,
            "axes.labelcolor": soft,
            "axes.labelsize": 8.5,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlecolor": ink,
            "axes.titlelocation": "left",
            "axes.titlepad": 8,
            "axes.titlesize": 9,
            "axes.titleweight": "bold",
            "font.family": "DejaVu Sans",
            "font.size": 8.5,
            "grid.color": grid,
            "grid.linewidth": 0.5,
            "grid.alpha": 0.6,
            "legend.frameon": False,
            "legend.handlelength": 2.4,
            "legend.labelcolor": ink,
            "text.color": ink,
            "text.usetex": False,
            "xtick.color": grid,
            "xtick.labelcolor": soft,
            "xtick.labelsize": 8,
            "ytick.color": grid,
            "ytick.labelcolor": soft,
            "ytick.labelsize": 8,
        },
    ]


def _draw(canvas: Canvas, panels: Sequence[Panel], columns: int, *, ink: str) -> None:
    if not panels:
        return
    heights = _row_heights(panels, columns)
    grid = canvas.add_gridspec(len(heights), columns, height_ratios=heights)
    for panel, (row, column) in zip(panels, _places(panels, columns), strict=True):
        cell: Any = grid[row, :] if panel.wide else grid[row, column]
        if panel.below is None:
            # a grid of its own, as a panel with another below has: the columns are then equally wide
            _draw_panel(canvas.add_subplot(cell.subgridspec(1, 1)[0]), panel, ink)
            continue
        upper, lower = cell.subgridspec(2, 1, height_ratios=[3, 1]).subplots(sharex=True)
        _draw_panel(upper, panel, ink)
        upper.set_xlabel("")
        upper.tick_params(labelbottom=False)
        _draw_panel(lower, panel.below, ink)


def _places(panels: Sequence[Panel], columns: int) -> list[tuple[int, int]]:
    """Row and column of each panel; a wide one has a row of its own."""
    places, row, column = [], 0, 0
    for panel in panels:
        if column and (panel.wide or column == columns):
            row, column = row + 1, 0
        places.append((row, column))
        row, column = (row + 1, 0) if panel.wide else (row, column + 1)
    return places


def _height(panel: Panel) -> float:
    return panel.height + (0.9 if panel.below else 0)


def _row_heights(panels: Sequence[Panel], columns: int) -> list[float]:
    heights: dict[int, float] = {}
    for panel, (row, _) in zip(panels, _places(panels, columns), strict=True):
        heights[row] = max(heights.get(row, 0.0), _height(panel))
    return list(heights.values()) or [1.0]


def _draw_panel(axes: Axes, panel: Panel, ink: str) -> None:
    if panel.matrix is not None:
        _draw_matrix(axes, panel, panel.matrix, ink)
    if panel.diagonal:
        axes.plot([0, 1], [0, 1], color=REFERENCE, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for place, series in enumerate(panel.series):
        # for a line of no points matplotlib would reserve room at the corner of the figure
        if any(value is not None and math.isfinite(value) for value in series.y):
            _draw_series(axes, series, ink, horizontal=bool(panel.y.names), place=place)
    has_counts = any(series.draw == "counts" and series.x for series in panel.series)
    width = 90 if panel.wide else 44 if panel.width > _NARROW else 28
    lines = [drawn_text(line, width) for line in panel.title.split("\n")]
    axes.set_title("\n".join(lines), pad=26 if has_counts else None)
    _set_axis(axes, "x", panel.x, ticks=5 if panel.width > _NARROW else 3)
    _set_axis(axes, "y", panel.y)
    if panel.matrix is not None and panel.matrix.pictures:
        _draw_pictures(axes, panel.matrix)


def _set_axis(axes: Axes, which: Literal["x", "y"], axis: Axis, *, ticks: int = 5) -> None:
    drawn = axes.xaxis if which == "x" else axes.yaxis
    drawn.set_label_text(axis.label)
    if axis.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        drawn.set_minor_formatter(NullFormatter())
    if axis.ticks:
        drawn.set_ticks(axis.ticks, [f"{tick:,g}" for tick in axis.ticks])
    limits = axes.set_xlim if which == "x" else axes.set_ylim
    if axis.names:
        drawn.set_ticks(range(len(axis.names)), [drawn_text(name, 26) for name in axis.names])
        if which == "x" and max(map(len, axis.names)) > _LETTERS:
            drawn.set_tick_params(rotation=45)
        drawn.grid(visible=False)
        drawn.set_tick_params(length=0)
        limits(*((len(axis.names) - 0.5, -0.5) if which == "y" else (-0.5, len(axis.names) - 0.5)))
        return
    limits(axis.low, axis.high)
    if axis.percent:
        drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 6):g}%"))
    if not axis.log and not axis.ticks:
        axes.locator_params(axis=which, nbins=ticks)


def _stroke(look: Look, ink: str) -> dict[str, Any]:
    dash = tuple(float(length) / 1.8 for length in look.dash.split())
    return {"color": ink if look.colour == INK else look.colour, "linestyle": (0, dash) if dash else "-"}


def _draw_series(axes: Axes, series: Series, ink: str, *, horizontal: bool, place: int) -> None:
    stroke = _stroke(series.look, ink)
    colour = stroke["color"]
    gid = f"series-{'none' if series.model is None else series.model}-{place}"
    x, y = list(series.x), [float("nan") if value is None else value for value in series.y]
    if series.draw == "steps":
        if y:
            axes.stairs(y, x, linewidth=1.4, alpha=series.alpha, gid=gid, **stroke)
        return
    if series.draw == "bars":
        bars = {"width": series.bar_width, "alpha": 0.45 * series.alpha, "edgecolor": "none", "gid": gid}
        axes.bar(x, y, color=colour, **bars)
        return
    if series.draw == "counts":
        if x:
            _draw_counts(axes, series, colour, gid)
        return
    if series.draw == "area":
        axes.fill_between(x, y, color=colour, alpha=0.16 * series.alpha, linewidth=0, gid=gid)
    if series.low is not None and series.high is not None:
        ends = (list(series.low), list(series.high))
        bars = {"color": colour, "alpha": 0.75 * series.alpha, "linewidth": 1.1, "gid": gid}
        axes.hlines(y, *ends, **bars) if horizontal else axes.vlines(x, *ends, **bars)
    has_points = series.draw == "points" or series.marker
    marks: dict[str, Any] = {"marker": series.look.marker, "markersize": series.size} if has_points else {}
    if has_points and not series.filled:
        marks |= {"markerfacecolor": "none", "markersize": 7, "markeredgewidth": 1.6}
    if series.draw == "points":
        stroke["linestyle"] = ""
    line = {"linewidth": series.width, "alpha": series.alpha, "clip_on": not has_points, "gid": gid}
    axes.plot(x, y, **stroke, **marks, **line)


def _draw_counts(axes: Axes, series: Series, colour: str, gid: str) -> None:
    """Two series of the same x stand above each other by their looks' markers, which differ."""
    height = 1.03 + 0.06 * (series.look.marker != "o")
    place = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(series.x, [height] * len(series.x), color=colour, marker="x", linestyle="", gid=gid, **place)
    for x, count in zip(series.x, series.y, strict=True):
        axes.annotate(
            f"{count:.0f}", (x, height), xycoords=axes.get_xaxis_transform(), xytext=(5, -3),
            textcoords="offset points", fontsize=7, color=colour, annotation_clip=False,
        )  # fmt: skip


def _draw_pictures(axes: Axes, matrix: Matrix) -> None:
    rows, columns = len(matrix.shares), len(matrix.pictures)
    for place, picture in enumerate(matrix.pictures):
        extent = (place - 0.46, place + 0.46, -0.6, -1.8)
        look: dict[str, Any] = {"cmap": "gray_r", "vmin": 0, "vmax": 1, "interpolation": "none"}
        axes.imshow(picture, extent=extent, aspect="auto", **look)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -1.85))


def _draw_matrix(axes: Axes, panel: Panel, matrix: Matrix, ink: str) -> None:
    maps = [LinearSegmentedColormap.from_list("share", [(*_rgb(c), 0.0), (*_rgb(c), 0.9)]) for c in _HEAT]
    for row, shares in enumerate(matrix.shares):
        for column, share in enumerate(shares):
            is_wrong = bool(matrix.wrong) and matrix.wrong[row][column]
            depth = min(max(share, 0.0), 1.0) ** 1.5
            axes.add_patch(_cell_patch(row, column, maps[is_wrong](depth)))
            if matrix.texts:
                text = "\n".join(drawn_text(line, 12) for line in matrix.texts[row][column].split("\n"))
                colour = "white" if depth > _DEEP else ink
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    axes.set_xlim(-0.5, max(map(len, matrix.shares), default=1) - 0.5)
    axes.set_ylim(len(matrix.shares) - 0.5, -0.5)
    axes.grid(visible=False)


_HEAT, _DEEP = ("#0072B2", "#D55E00"), 0.7  # from which depth on text is white


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue


def _cell_patch(row: int, column: int, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, facecolor=colour, linewidth=0)


def drawn_text(text: str, width: int = 28) -> str:
    """A name as text: no mathematics between dollars, no sign that the font lacks."""
    known = font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap()
    drawn = "".join(sign if ord(sign) in known else "□" for sign in shorten(text, width))
    drawn = drawn.replace("$", r"\$")
    return f"\u2009{drawn}" if drawn.startswith("_") else drawn  # legends leave out names that begin so
