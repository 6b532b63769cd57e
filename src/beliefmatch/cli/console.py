"""What a command prints: tables and findings, progress, and one line about an error of the user."""

import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from beliefmatch._environment import needs
from beliefmatch._errors import ArgumentError, ArgumentWarning
from beliefmatch._files import EnvironmentFailure, is_url
from beliefmatch.cli.options import option_of_error, option_of_setting

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = [
    "BAD_INPUT",
    "FAILURES",
    "UserError",
    "findings",
    "output",
    "printable",
    "progress",
    "require_packages",
    "resumable",
    "show",
    "show_warning",
    "step_progress",
    "user_errors",
    "warnings_held",
    "write_errors",
]

BAD_INPUT = (ValueError, TypeError, ModuleNotFoundError)
"""Errors that the library raises about arguments and missing extras."""

FAILURES = (EnvironmentFailure, FloatingPointError, OSError)
"""Errors during the work that are no bugs: files, disks, other processes, divergence."""

_PACKAGES = {
    "terminal": ("cli", ["rich"]),
    "figures": ("report", ["matplotlib"]),
    "page": ("report", ["matplotlib", "jinja2"]),
    "report": ("report", ["matplotlib", "jinja2"]),
    "statistics": ("stats", ["scipy"]),
    "weights": ("files", ["safetensors"]),
}
"""For each purpose, the extra that it needs and the packages of it."""
_LOG_SECONDS = 60.0  # between two lines of progress where there is no terminal
_PLAIN_WIDTH = 120  # files and pipes have no width; no row of our tables is folded in this one


class UserError(Exception):
    """An error that the user can repair: one line on stderr, no traceback."""


@contextmanager
def user_errors(context: typer.Context, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds, by default `BAD_INPUT`, into a `UserError` in the words of the command.

    A command checks its input inside such a block and works outside of it, so that a bug keeps its traceback.
    """
    caught = kinds or BAD_INPUT
    try:
        yield
    except caught as error:
        raise UserError(_message(context, error)) from error


@contextmanager
def write_errors(context: typer.Context, path: Path, option: str = "--out") -> Iterator[None]:
    """Turn a failure to write the results, to the path of an option, into a `UserError`."""
    try:
        yield
    except OSError as error:
        reason, remedy = error.strerror or error, f"repair that or choose another `{option}`"
        raise UserError(f"{context.command_path}: cannot write to {path} ({reason}); {remedy}.") from error


@contextmanager
def warnings_held(context: typer.Context, **options: str) -> Iterator[None]:
    """Print the warnings of the block at its end, and none if it fails: then its error is all that counts.

    Args:
        context: of the command.
        options: Options by the arguments of the library that are no option of the command.
    """
    with warnings.catch_warnings(record=True) as held:
        yield
    for one in held:
        show_warning(context, one.message, **options)


def show_warning(context: typer.Context, warning: Warning | str, **options: str) -> None:
    """Print a warning on one line of standard error, with `--option` where the library names an argument."""
    text = f"{warning}"
    if isinstance(warning, ArgumentWarning):
        text = warning.message
        for argument, option in options.items():
            text = text.replace(f"`{argument}`", f"`{option}`")
        text = _in_options(context, text)
    print(f"warning: {' '.join(text.split())}", file=sys.stderr)


@contextmanager
def output(context: typer.Context, out: str) -> Iterator[tuple[Path, str | None]]:
    """The local directory of `--out`, and its URL if it is one; see `local_output`."""
    from beliefmatch.experiments.storage import local_output

    if not is_url(out):  # what the block raises is its own
        yield Path(out), None
        return
    with user_errors(context, EnvironmentFailure), local_output(out) as places:
        yield places


@contextmanager
def resumable(directory: Path, url: str | None = None) -> Iterator[None]:
    """Say after Ctrl-C inside the block what became of the trainings in a directory, or at a URL."""
    try:
        yield
    except KeyboardInterrupt:
        from beliefmatch.train.checkpoint import has_checkpoints

        if url is not None or has_checkpoints(directory):
            print("what was trained is saved; the same command continues from there", file=sys.stderr)
        else:
            print("nothing was trained yet; the same command starts again", file=sys.stderr)
        raise


def _message(context: typer.Context, error: Exception) -> str:
    """One line that begins with the command and names `--option` where the library names an argument."""
    text = f"{error}"
    if isinstance(error, ArgumentError):
        option, text = option_of_error(context, error), _in_options(context, error.message)
        if option is not None:
            text = f"`{option}` {_in_options(context, error.fact)}"
    elif isinstance(error, OSError) and error.strerror:  # without the number of the error
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    text = " ".join(text.split())
    if text.startswith("`beliefmatch "):  # a missing extra of the command itself
        return text
    return f"{context.command_path}: {text}"


def _in_options(context: typer.Context, fact: str) -> str:
    """Words of Python about other arguments and their values, as the command has them."""
    if "skip_corrupt" in context.params:
        fact = fact.replace('set `corrupt` to "skip"', "give `--skip-corrupt`")
    if "classes" not in context.params:
        fact = fact.replace(", or give `classes`", "")
    fact = re.sub(r"^must be False for\b", "must not be given for", fact)
    names = "|".join(re.escape(name.rstrip("_")) for name in context.params)

    def written(found: re.Match[str]) -> str:
        return f"`{option_of_setting(context, found[1], owner='', missing=True)}`"

    # arrays of a file, and options of a method or network, may have the same names
    return re.sub(f"(?<!in )(?<!option )(?<!mean )`({names})`", written, fact) if names else fact


def require_packages(context: typer.Context, *purposes: str) -> None:
    """Import what the end of a command needs before its work begins."""
    for purpose in purposes:
        extra, packages = _PACKAGES[purpose]
        listed = " and ".join(filter(None, [", ".join(packages[:-1]), packages[-1]]))
        with needs(listed, extra=extra, caller=context.command_path):
            for package in packages:
                import_module(package)


def show(*parts: "RenderableType") -> None:
    """Print on standard output; a line too long for the terminal is continued, never cut."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(*parts, crop=False)


def findings(sentences: Sequence[str], *, sign: str = "•") -> "RenderableType":
    """Sentences as a list, each folded below its sign."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row(sign, Text(printable(sentence)))
    return grid


def printable(text: object) -> str:
    """Text with a replacement for each character that a terminal would take for a command."""
    return "".join(sign if sign.isprintable() or sign == "\u00a0" else "\ufffd" for sign in f"{text}")


@contextmanager
def step_progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error, gone when done; yields a function to call with a description at each step."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda description: bar.update(task, advance=1, description=description)


@contextmanager
def progress() -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error with the time left; yields a function of (fraction, description).

    Without a terminal it is a line each minute, so that a log shows that long work goes on.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _ProgressLog(console)
        return
    columns = (
        BarColumn(20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda fraction, description: bar.update(task, completed=fraction, description=description)


class _ProgressLog:
    """Prints a line of progress at most once a minute."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._start = self._last = time.monotonic()

    def __call__(self, fraction: float, description: str) -> None:
        now = time.monotonic()
        if now - self._last < _LOG_SECONDS:
            return
        self._last = now
        text = f"{100 * fraction:.0f} % after {(now - self._start) / 60:.0f} min: {description}"
        self._console.out(text, highlight=False)
