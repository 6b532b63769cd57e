"""Run the Python examples of Markdown pages, each page from top to bottom in one namespace.

    python tools/run_snippets.py README.md docs/*.md

A block fenced as ```python is run and must not fail; lines of the form `expression  # -> value` must
evaluate to a value with that text. Blocks fenced otherwise are left alone.
"""

import ast
import re
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXPECTATION = re.compile(r"#\s*->\s*(.+?)\s*$")


def run_block(source: str, line: int, page: Path, namespace: dict[str, Any]) -> None:
    """Run one block statement by statement, checking the values that its comments state."""
    padded = "\n" * line + source
    lines = padded.splitlines()
    for statement in ast.parse(padded, filename=str(page)).body:
        expected = EXPECTATION.search(lines[(statement.end_lineno or statement.lineno) - 1])
        if expected and isinstance(statement, ast.Expr):
            code = compile(ast.Expression(statement.value), str(page), "eval")
            value = str(eval(code, namespace))
            if value != expected[1]:
                sys.exit(f"{page}:{statement.lineno}: expected {expected[1]!r}, got {value!r}")
        else:
            exec(compile(ast.Module([statement], []), str(page), "exec"), namespace)


def run_page(page: Path) -> int:
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__snippet__"}
    blocks = list(BLOCK.finditer(text))
    for block in blocks:
        run_block(block[1], text[: block.start(1)].count("\n"), page, namespace)
    return len(blocks)


def main() -> None:
    for name in sys.argv[1:]:
        print(f"{name}: {run_page(Path(name))} Python blocks ran")


if __name__ == "__main__":
    main()
