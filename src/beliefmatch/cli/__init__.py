"""The `beliefmatch` command.

Commands import what they run on when they run, so that help needs no torch. This file imports next to
nothing, so that Ctrl-C is answered by `main` however early it comes.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would take longer than all of this file
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED_CODE = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        code = INTERRUPTED_CODE
    if code == INTERRUPTED_CODE:
        print("beliefmatch: interrupted", file=sys.stderr)
    return code


def _run(argv: Sequence[str]) -> int:
    from beliefmatch._environment import needs

    try:
        with needs("typer", extra="cli", caller="beliefmatch"):
            from beliefmatch.cli.app import run
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return run(argv)
