"""Mistakes of the user, told apart from mistakes of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["BAD_INPUT", "UserError", "told_plainly"]

BAD_INPUT = (ValueError, TypeError, ModuleNotFoundError)
"""What the library raises about arguments and missing extras."""


class UserError(Exception):
    """Something the user can mend: one line on stderr, no traceback."""


@contextmanager
def told_plainly(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds inside the block are the user's to mend.

    A command checks all it was given inside such a block and works outside of it, so that an
    unexpected error keeps its traceback.
    """
    try:
        yield
    except kinds as error:
        raise UserError(" ".join(f"{error}".split())) from error
