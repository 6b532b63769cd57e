"""The application: its commands, and the exit code that each end of a command has."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from itertools import pairwise
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from beliefmatch._environment import versions
from beliefmatch.cli import INTERRUPTED_CODE
from beliefmatch.cli.console import UserError, show_warning

__all__ = ["run"]

BAD_INPUT_CODE = 2
BROKEN_PIPE_CODE = 141
_WIDEST_HELP = 120

COMMANDS = {
    "compare": "beliefmatch.cli.train",
    "train": "beliefmatch.cli.train",
    "adapt": "beliefmatch.cli.adapt",
    "predict": "beliefmatch.cli.evaluate",
    "evaluate": "beliefmatch.cli.evaluate",
    "report": "beliefmatch.cli.evaluate",
    "votes": "beliefmatch.cli.votes",
    "export": "beliefmatch.cli.export",
    "reproduce": "beliefmatch.cli.reproduce",
    "doctor": "beliefmatch.cli.doctor",
}
"""The module of each command, in the order of the help."""

# click's UsageError, parent of all errors about arguments; newer typers contain their own click.
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])


def run(argv: Sequence[str]) -> int:
    """Run one command: 0 for success, 2 for an error that the user can repair, else as after a signal."""
    if sys.stderr is None:  # closed by `2>&-`; errors must not end up among the results
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        return _fail("beliefmatch: standard output is closed; send it to a file or to /dev/null.")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without λ shows a question mark
            stream.reconfigure(errors="replace")
    try:
        code = _invoke(argv)
        sys.stdout.flush()
    except (UserError, _UsageError) as error:
        return _fail(_error_message(error, argv))
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED_CODE  # newer typers return it, older ones raise Abort
    except SystemExit:  # how typer and rich end when the reader of a pipe is gone
        return BROKEN_PIPE_CODE
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise  # an error about a stream has a number and no file name
        with suppress(OSError):  # a stream without a file, as in tests
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no second attempt at exit
        return _fail(f"beliefmatch: cannot write to standard output ({error.strerror}).")
    return code or 0


def _invoke(argv: Sequence[str]) -> int | None:
    command = typer.main.get_command(_application(argv))
    with warnings.catch_warnings():
        return command.main(list(argv) or ["--help"], "beliefmatch", standalone_mode=False, obj=list(argv))


class _Command(TyperCommand):
    """A command whose help shows the metavar of an argument, and a flag, without their Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if param.param_type_name == "argument" or param.is_flag:
                param.display_type_rich = lambda ctx: ""  # older typers have no such method and need none
        return params

    def invoke(self, ctx: Any) -> Any:
        warnings.showwarning = lambda message, *_: show_warning(ctx, message)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def _application(argv: Sequence[str]) -> typer.Typer:
    """All commands; only the one that is called, if one is, as that is faster to load."""
    application = typer.Typer(
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        add_completion=False,
        context_settings={"max_content_width": _WIDEST_HELP},
    )
    application.callback()(_main_options)
    for name in [argv[0]] if argv and argv[0] in COMMANDS else COMMANDS:
        function: Callable[..., Any] = getattr(import_module(COMMANDS[name]), name)
        paragraphs = [" ".join(paragraph.split()) for paragraph in (function.__doc__ or "").split("\n\n")]
        application.command(
            name,
            cls=_Command,
            help="\n\n".join(paragraphs),  # rich would keep the line breaks of the docstring
            short_help=paragraphs[0],  # typer would cut the first sentence
        )(function)
    return application


def _main_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=lambda wanted: _show_version() if wanted else None,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Train, adapt and evaluate classifiers that know how certain they are, with belief matching."""


def _show_version() -> None:
    typer.echo(f"beliefmatch {versions('beliefmatch')['beliefmatch']}")
    raise typer.Exit


def _error_message(error: Exception, argv: Sequence[str]) -> str:
    if isinstance(error, UserError):
        return f"{error}"
    command = f"beliefmatch {argv[0]}" if argv and argv[0] in COMMANDS else "beliefmatch"
    path = getattr(getattr(error, "ctx", None), "command_path", command)
    message = " ".join(getattr(error, "format_message", error.__str__)().split()).rstrip(".?")
    received = [value for value in _values(argv, error) if repr(value) not in message]
    got = f", got {' and '.join(map(repr, received))}" if received else ""
    return f"{path}: {message}{got}. Try `{path} --help`."


def _values(argv: Sequence[str], error: Exception) -> list[str]:
    """The values of the option that a usage error is about, as they were written."""
    flags = getattr(getattr(error, "param", None), "opts", ())
    followed = [value for flag, value in pairwise(argv) if flag in flags]
    joined = [word.partition("=") for word in argv]
    return followed + [value for flag, equals, value in joined if flag in flags and equals]


def _fail(line: str) -> int:
    print(line, file=sys.stderr)
    return BAD_INPUT_CODE
