"""The application: its commands, and how it ends."""

import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, cast

import typer

from beliefmatch.cli.compare import compare
from beliefmatch.cli.doctor import doctor
from beliefmatch.cli.errors import UserError
from beliefmatch.environment import versions

__all__ = ["run"]

BAD_INPUT_CODE = 2
INTERRUPTED_CODE = 130

# click's UsageError, parent of all complaints about arguments; newer typers hide click inside.
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])


def run(argv: Sequence[str]) -> int:
    """Run one command: 0 if all went well, 2 for bad input, 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without λ shows a question mark
            stream.reconfigure(errors="replace")
    command = typer.main.get_command(_application())
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = command.main(list(argv) or ["--help"], "beliefmatch", standalone_mode=False)
    except UserError as error:
        return _end(f"{error}", BAD_INPUT_CODE)
    except _UsageError as error:
        return _end(_complaint(error), BAD_INPUT_CODE)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED_CODE  # newer typers return it, older ones raise Abort
    return _end("beliefmatch: interrupted", code) if code == INTERRUPTED_CODE else code or 0


def _application() -> typer.Typer:
    application = typer.Typer(rich_markup_mode="rich" if sys.stdout.isatty() else None, add_completion=False)
    application.callback()(_options)
    application.command()(compare)
    application.command()(doctor)
    return application


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"beliefmatch {versions('beliefmatch')['beliefmatch']}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Belief matching: calibrated probabilities with a measure of doubt."""


def _show_warning(message: Warning | str, *_: object) -> None:
    """One line without the place in our code, which says nothing to a user."""
    print(f"warning: {message}", file=sys.stderr)


def _complaint(error: Exception) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "beliefmatch")
    message = " ".join(getattr(error, "format_message", error.__str__)().split())
    return f"{path}: {message.rstrip('.')}. Try `{path} --help`."


def _end(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code
