"""Mistakes of the user, told apart from mistakes of ours."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from beliefmatch._files import EnvironmentFailure

__all__ = ["BAD_INPUT", "OUTSIDE", "UserError", "resumable", "user_errors"]

BAD_INPUT = (ValueError, TypeError, ModuleNotFoundError)
"""What the library raises about arguments and missing extras."""

OUTSIDE = (EnvironmentFailure, FloatingPointError, OSError)
"""What can come up at work that is no mistake of ours: files, disks, other processes, divergence."""

_ABOUT_AN_ARGUMENT = re.compile(r"\w+: `(?P<argument>[\w.]+)` (?P<fact>.*)")
_SAYS_WHO = re.compile(r"\w+: ")
_OPTIONS = {
    "data.name": "data",
    "data.directory": "data_dir",
    "model.name": "model",
    "ood": "ood",
    "semi.kind": "semi",
    "semi.weight": "semi_weight",
    "teacher.run": "prior_from",
    "teacher.strength": "prior_strength",
    "teacher.temperature": "prior_temperature",
    "teacher.weight": "prior_weight",
    "risks": "risk",
    "kl_weights": "kl_weight",
    "priors": "prior",
    "batchnorm": "train_batchnorm",
}
"""Options that are called otherwise than the last word of the setting that they set."""


class UserError(Exception):
    """Something the user can mend: one line on stderr, no traceback."""


@contextmanager
def user_errors(*kinds: type[Exception], command: typer.Context) -> Iterator[None]:
    """Errors of these kinds inside the block are the user's to mend.

    A command checks all it was given inside such a block and works outside of it, so that an
    unexpected error keeps its traceback.
    """
    try:
        yield
    except kinds as error:
        raise UserError(_in_words_of(command, " ".join(_told(error, command).split()))) from error


@contextmanager
def resumable() -> Iterator[None]:
    """Ctrl-C inside the block has lost nothing; say so."""
    try:
        yield
    except KeyboardInterrupt:
        print("what was trained is saved; the same command goes on from there", file=sys.stderr)
        raise


def _told(error: Exception, command: typer.Context) -> str:
    """What it says; of an error of the system its words and the file, without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return f"{error}"
    place = f": {error.filename}" if error.filename is not None else ""
    is_ours = _SAYS_WHO.match(error.strerror) is not None
    return f"{'' if is_ours else f'{command.command_path}: '}{error.strerror}{place}"


def _in_words_of(command: typer.Context, message: str) -> str:
    """Say command and `--option` where the library says function and `argument`."""
    found = _ABOUT_AN_ARGUMENT.fullmatch(message)
    if found is None:
        return message
    setting = found["argument"]
    option = _OPTIONS.get(setting, setting.rpartition(".")[2])
    is_missing = found["fact"].startswith("must be given")
    is_of_recipe = "." in setting and command.params.get(option) is None and not is_missing
    if option not in command.params or is_of_recipe:
        return message
    return f"{command.command_path}: `--{option.replace('_', '-')}` {found['fact']}"
