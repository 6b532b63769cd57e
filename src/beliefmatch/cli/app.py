"""The application: its commands, and how it ends."""

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, cast

import typer

from beliefmatch._environment import versions
from beliefmatch.cli import INTERRUPTED_CODE
from beliefmatch.cli.adapt import adapt
from beliefmatch.cli.compare import compare
from beliefmatch.cli.doctor import doctor
from beliefmatch.cli.errors import UserError
from beliefmatch.cli.evaluate import evaluate
from beliefmatch.cli.predict import predict
from beliefmatch.cli.report import report
from beliefmatch.cli.reproduce import reproduce
from beliefmatch.cli.train import train

__all__ = ["run"]

BAD_INPUT_CODE = 2
BROKEN_PIPE_CODE = 141

# click's UsageError, parent of all complaints about arguments; newer typers hide click inside.
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])


def run(argv: Sequence[str]) -> int:
    """Run one command: 0 if all went well, 2 for what the user can mend, else as after a signal."""
    if sys.stderr is None:  # closed by `2>&-`; complaints must not end up among the results
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        return _end("beliefmatch: standard output is closed; send it to a file or to /dev/null.")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without λ shows a question mark
            stream.reconfigure(errors="replace")
    try:
        code = _invoke(argv)
        sys.stdout.flush()
    except (UserError, _UsageError) as error:
        return _end(_complaint(error))
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED_CODE  # newer typers return it, older ones raise Abort
    except SystemExit:  # typer's and rich's answer to a reader that went away
        return BROKEN_PIPE_CODE
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise  # not about a stream: those carry a number and no name
        _silence_output()
        return _end(f"beliefmatch: cannot write to standard output ({error.strerror}).")
    return code or 0


def _invoke(argv: Sequence[str]) -> int | None:
    command = typer.main.get_command(_application())
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return command.main(list(argv) or ["--help"], "beliefmatch", standalone_mode=False, obj=list(argv))


def _silence_output() -> None:
    """What could not be written is not tried again at exit."""
    with suppress(OSError):  # a stream without a file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _application() -> typer.Typer:
    application = typer.Typer(rich_markup_mode="rich" if sys.stdout.isatty() else None, add_completion=False)
    application.callback()(_options)
    for command in (
        compare,
        train,
        adapt,
        predict,
        evaluate,
        report,
        reproduce,
        doctor,
    ):  # a short help of one's own is folded, not cut
        application.command(short_help=(command.__doc__ or "").partition("\n")[0])(command)
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
    if isinstance(error, UserError):
        return f"{error}"
    path = getattr(getattr(error, "ctx", None), "command_path", "beliefmatch")
    message = " ".join(getattr(error, "format_message", error.__str__)().split())
    return f"{path}: {message.rstrip('.')}. Try `{path} --help`."


def _end(line: str) -> int:
    print(line, file=sys.stderr)
    return BAD_INPUT_CODE
