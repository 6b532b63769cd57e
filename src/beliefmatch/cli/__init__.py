"""The `beliefmatch` command.

Each command is one file and imports what it runs on when it runs: help needs no torch. This file
imports next to nothing, so that Ctrl-C finds `main` at work however early it comes.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's own would take longer to load than all of this file
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
