"""Text that tests compare with files: tables, terminal output, Markdown and outlines of pages."""

import difflib
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parent / "golden"
updating = False  # set by `pytest --update-golden`


def assert_golden(name: str, text: str) -> None:
    """Fail with a unified diff unless `text` equals the file `tests/golden/NAME`.

    `pytest --update-golden` writes the file instead; look at the change with `git diff` before you commit it.
    Newlines at the end are not compared. Round numbers whose last digits depend on the processor first.
    """
    __tracebackhide__ = True
    file = DIRECTORY / name
    received = text.rstrip("\n") + "\n"
    if updating:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(received.encode())
        return
    if not file.is_file():
        pytest.fail(f"tests/golden/{name} is missing; write it with `pytest --update-golden`", pytrace=False)
    expected = file.read_bytes().decode()
    if received != expected:
        lines = [part.splitlines() for part in (expected, received)]
        diff = difflib.unified_diff(*lines, f"tests/golden/{name}", "received", lineterm="")
        remedy = "If the change is intended, run `pytest --update-golden`."
        pytest.fail("\n".join([*diff, remedy]), pytrace=False)
