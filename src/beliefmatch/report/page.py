"""One page: a single HTML file that works from disk, in the dark, on a phone and on paper.

It opens with a verdict in one sentence, a few cards, two pictures and what to do about it; everything else is
below, folded. The page asks the network for nothing, and runs one short script of its own.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, ClassVar, Literal

from beliefmatch._environment import needs
from beliefmatch.report import table as tables
from beliefmatch.report.figure import Figure, inline_svg
from beliefmatch.report.style import INK, Look
from beliefmatch.report.table import Table
from beliefmatch.report.text import shorten

__all__ = [
    "Block",
    "Card",
    "Command",
    "Example",
    "Examples",
    "Facts",
    "Page",
    "Section",
    "Text",
    "Verdict",
    "facts_of",
    "render_notebook",
    "render_page",
]

Verdict = Literal["better", "worse", "even", ""]
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Card:
    """A number that a reader should remember, and how sure it is."""

    title: str
    value: str
    certainty: str
    verdict: Verdict = ""
    model: int | None = None


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Command:
    """A command to type."""

    kind: ClassVar[str] = "command"
    text: str


@dataclass(frozen=True)
class Facts:
    """Groups of names with a value each."""

    kind: ClassVar[str] = "facts"
    groups: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Example:
    """One prediction: an image where there is one, and lines of text."""

    lines: Sequence[str]
    image: str | None = None


@dataclass(frozen=True)
class Examples:
    """Predictions to look at."""

    kind: ClassVar[str] = "examples"
    title: str
    items: Sequence[Example]
    model: int | None = None


Block = Text | Command | Facts | Examples | Table | Figure


@dataclass(frozen=True)
class Section:
    """A part of the page that can be folded away."""

    title: str
    blocks: Sequence[Block]
    folded: bool = True

    @property
    def id(self) -> str:
        """The address of the section within the page."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """What a page says, from top to bottom."""

    command: str
    """Name of the command that made it, such as "evaluate"."""
    title: str
    verdict: str
    lead: str
    models: Sequence[str]
    looks: Sequence[Look]
    warnings: Sequence[str] = ()
    cards: Sequence[Card] = ()
    pictures: Sequence[Figure] = ()
    advice: Sequence[str] = ()
    sections: Sequence[Section] = ()
    version: str = ""

    def figures(self) -> list[Figure]:
        """Every figure of the page, in its order."""
        below = [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]
        return [*self.pictures, *below]


def render_page(page: Page, *, caller: str) -> str:
    """The page as one HTML file."""
    script = _file("page.js")
    return _render("page.html.j2", page, caller, style="page.css", script=script, policy=_policy(script))


def render_notebook(page: Page, table: Table, *, caller: str) -> str:
    """The top of the page with a table as a part of a notebook, in the colours of the notebook."""
    page = replace(page, pictures=[replace(figure, numbers=None) for figure in page.pictures])
    html = _render("notebook.html.j2", page, caller, style="notebook.css", table=table)
    digest = hashlib.sha256(html.encode()).hexdigest()[:12]  # a notebook may hold several
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>b{digest}-", html)


def _render(template: str, page: Page, caller: str, *, style: str, script: str = "", **given: Any) -> str:
    with needs("jinja2", extra="report", caller=caller):
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    environment = Environment(
        loader=PackageLoader("beliefmatch.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        block_kind=_block_kind,
        column_groups=tables.column_groups,
        column_parts=tables.column_parts,
        html_cell=tables.html_cell,
        picture=_picture,
        svgs=lambda figure: [Markup(svg) for svg in inline_svg(figure)],
        colour=lambda look: "currentColor" if look.colour == INK else look.colour,
    )
    environment.filters["shorten"] = shorten
    environment.filters["joined"] = lambda text: re.sub(r" (?=[%↓↑→])", "\u00a0", text)
    environment.filters["with_code"] = lambda text: Markup(
        re.sub("`([^`]+)`", r"<code>\1</code>", str(Markup.escape(text)))
    )
    return environment.get_template(template).render(
        page=page, script=Markup(script), style=Markup(_file(style)), **given
    )


def _block_kind(block: Block) -> str:
    if isinstance(block, Table):
        return "table"
    return "figure" if isinstance(block, Figure) else block.kind


def _policy(*scripts: str) -> str:
    """No network at all, and no script but these: what slips through the escaping still does not run."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _picture(image: str | None) -> str | None:
    """The address of an embedded PNG, if it is one."""
    is_png = image is not None and image.startswith("iVBORw0KGgo") and _BASE64.fullmatch(image)
    return f"data:image/png;base64,{image}" if is_png else None


def _file(name: str) -> str:
    text = resources.files("beliefmatch.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def facts_of(value: Any) -> dict[str, str]:
    """A mapping of settings as names in words and values as text; nested names are joined by colons."""
    found: dict[str, str] = {}

    def add(prefix: str, one: Any) -> None:
        if isinstance(one, Mapping) and one:
            for key, inner in one.items():
                add(f"{prefix}: {_words(key)}" if prefix else _words(key), inner)
        elif isinstance(one, list | tuple) and any(isinstance(item, Mapping) for item in one):
            found[prefix] = f"{len(one)} entries, in the record"
        elif isinstance(one, list | tuple) and one:
            found[prefix] = ", ".join(map(_value_text, one))
        else:
            found[prefix] = _value_text(one)

    add("", value)
    return found


def _words(key: Any) -> str:
    return f"{key}".replace("_", " ")


def _value_text(value: Any) -> str:
    if value is None or value in ((), [], {}, ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else f"{value}"
