"""The `beliefmatch` command.

Each command is one file and imports what it runs on when it runs: help needs no torch.
"""

import sys
from collections.abc import Sequence

from beliefmatch.extras import needs

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        with needs("typer", extra="cli", caller="beliefmatch"):
            from beliefmatch.cli.app import run
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return run(sys.argv[1:] if argv is None else argv)
