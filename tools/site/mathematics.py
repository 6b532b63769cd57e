"""LaTeX to MathML when the site is built, so that pages need no script and no fonts for their formulas.

Pages and docstrings write `$...$` and `$$...$$`; docstrings also write `.. math::` and the role `:math:`, as
their readers in a terminal are used to. `pymdownx.arithmatex` finds the formulas and marks them.
"""

import html
import re

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

__all__ = ["DirectiveExtension", "with_mathml"]

_MARKED = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<kind>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
_ROLE = re.compile(r":math:`(?P<latex>[^`]+)`")
_DIRECTIVE = re.compile(r"^(?P<indent> *)\.\. math::(?P<rest>.*)$")


def with_mathml(page: str) -> str:
    """HTML in which marked formulas are MathML."""
    return _MARKED.sub(_mathml, page)


def _mathml(found: re.Match[str]) -> str:
    latex = html.unescape(found["latex"]).strip()
    latex = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", latex)
    latex = re.sub(r"\\text(?:rm)?\{([^{}]*)\}", r"\\text{\1}", latex)
    is_block = found["kind"] == "["
    formula = convert(latex, display="block" if is_block else "inline")
    formula = re.sub(r"<mi>&</mi>", "", formula)
    return f'<div class="formula">{formula}</div>' if is_block else formula


class DirectiveExtension(Extension):
    """Reads `.. math::` of docstrings as `$$`, and the role as `$`."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the preprocessor, before every other."""
        md.preprocessors.register(_Directive(md), "math_directive", 1000)


class _Directive(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        made: list[str] = []
        rest = list(lines)
        while rest:
            line = rest.pop(0)
            found = _DIRECTIVE.match(line)
            if found is None:
                made.append(_ROLE.sub(r"$\g<latex>$", line))
                continue
            indent, latex = found["indent"], [found["rest"].strip()]
            while rest and not rest[0].strip() and not any(latex):
                rest.pop(0)
            while rest and rest[0].strip() and rest[0].startswith(f"{indent} "):
                latex.append(rest.pop(0).strip())
            made += ["", f"{indent}$$", *(f"{indent}{one}" for one in latex if one), f"{indent}$$", ""]
        return made
