"""What figures have in common: style, how names are written and models drawn, how files are made."""

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any

from matplotlib import font_manager, rc_context, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import shorten

__all__ = ["drawn_text", "legend_below", "model_line", "render", "rendered"]

_STYLE: list[Any] = [
    "default",  # or the reader's own settings, perhaps LaTeX, would draw the figures
    {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.titlesize": 9,
        "axes.titlepad": 8,
        "axes.titlelocation": "left",
        "axes.labelsize": 10,
        "figure.constrained_layout.h_pad": 0.08,
        "font.size": 9,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "lines.linewidth": 1.6,
        "pdf.fonttype": 42,  # text that stays text
        "text.usetex": False,
    },
]


def render(figure: Figure, kind: str) -> bytes:
    """The bytes of a figure as a "png", "svg" or "pdf" file; the same figure gives the same bytes."""
    buffer = BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": "beliefmatch"}):
        figure.savefig(buffer, format=kind, dpi=160, metadata=undated)
    return buffer.getvalue()


def rendered(name: str, draw: Callable[[], Figure], kinds: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of a figure's files, drawn in our style whatever the reader's is."""
    with style.context(_STYLE):
        figure = draw()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not once a file
        files = [(f"{name}.{kind}", render(figure, kind)) for kind in kinds]
    yield from files


def drawn_text(text: str, width: int = 28) -> str:
    """A name as text: no mathematics between dollars, no sign that the font lacks."""
    known = font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap()
    drawn = "".join(sign if ord(sign) in known else "□" for sign in shorten(text, width))
    drawn = drawn.replace("$", r"\$")
    return f"\u2009{drawn}" if drawn.startswith("_") else drawn  # legends leave out names that begin so


def model_line(index: int) -> dict[str, Any]:
    """Colour and dash of a model."""
    looks = look(index)
    dash = tuple(float(length) / 1.6 for length in looks.dash.split())
    return {"color": looks.colour, "linestyle": (0, dash) if dash else "-"}


def legend_below(figure: Figure, axes: Axes) -> None:
    """Below the panels, in as many columns as there is room for."""
    handles, labels = axes.get_legend_handles_labels()
    inches = 0.65 + 0.075 * max(map(len, labels), default=0)
    columns = max(int(figure.get_figwidth() / inches), 1)
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(handles), 4))
