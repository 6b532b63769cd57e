"""Errors about what a caller gave: one line, with the function and the argument as attributes.

The attributes let a layer above put its own words in their place: `naming_arguments` those of the public
function that the user called, the command line those of its options. `fail` reads the argument off the start
of the sentence, where every message of the library has it; nothing else is read out of a message.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

__all__ = ["ArgumentError", "ArgumentTypeError", "ArgumentWarning", "fail", "naming_arguments"]


class ArgumentError(ValueError):
    """A value that a function cannot use.

    Its message is one line: the function, the argument, what was expected, what was received, and a remedy if
    there is one.

    Args:
        function: Function that was called, or name of the configuration that was made.
        argument: Name of the argument; None where the error is about none, or about several.
        fact: Sentence about the argument without its subject, the argument; a whole sentence without one.

    Attributes:
        function: As given.
        argument: As given.
        fact: As given.
        message: The whole sentence.

    >>> try:
    ...     raise fail("adapt", "`heads` must be at least 2, got 1.")
    ... except ValueError as error:
    ...     print(error, error.function, error.argument, error.fact, sep="\\n")
    adapt: `heads` must be at least 2, got 1.
    adapt
    heads
    must be at least 2, got 1.
    """

    def __init__(self, function: str, argument: str | None, fact: str) -> None:
        super().__init__(function, argument, fact)  # all, so that the error can be pickled
        self.function, self.argument, self.fact = function, argument, fact

    @property
    def message(self) -> str:
        """The sentence, which begins with the argument in backquotes, if the error is about one."""
        return self.fact if self.argument is None else f"`{self.argument}` {self.fact}"

    def __str__(self) -> str:
        return f"{self.function}: {self.message}"

    @property
    def is_missing(self) -> bool:
        """Whether the argument was not given but is needed."""
        return self.fact.startswith("must be given")


class ArgumentTypeError(ArgumentError, TypeError):
    """A value of a type that a function cannot use."""


class ArgumentWarning(UserWarning):
    """A warning about what a function was given; its message begins with the function."""

    def __init__(self, function: str, message: str) -> None:
        super().__init__(function, message)
        self.function, self.message = function, message

    def __str__(self) -> str:
        return f"{self.function}: {self.message}"


Kind = TypeVar("Kind", bound=Exception)
_KINDS: dict[type[Exception], type[ArgumentError]] = {ValueError: ArgumentError, TypeError: ArgumentTypeError}


def fail(function: str, message: str, kind: type[Kind] = ValueError) -> Kind:
    """An exception of the one-line form ``function: `argument` fact``, to be raised.

    Args:
        function: Function that was called.
        message: Sentence that begins with the argument in backquotes, if the error is about one: that is
            where the argument of the error comes from.
        kind: ValueError and TypeError give an `ArgumentError` that is one of them too, and a subclass of
            `ArgumentError` gives itself. Any other class gets the line as its message.
    """
    made = _KINDS.get(kind, kind)
    if not issubclass(made, ArgumentError):
        return cast("Kind", made(f"{function}: {message}"))
    name, ends, fact = message[1:].partition("` ")
    is_named = message.startswith("`") and bool(ends)
    return cast("Kind", made(function, name, fact) if is_named else made(function, None, message))


@contextmanager
def naming_arguments(function: str, others: str | None = None, **names: str) -> Iterator[None]:
    """Let errors of the block name `function` and its arguments in place of the functions that it calls.

    Args:
        function: that the user called.
        others: its argument that errors without an argument are about; these stay as they are if not given.
        names: its argument for each one that an error may name; all others keep their names.
    """
    try:
        yield
    except ArgumentError as error:
        argument, fact = error.argument, error.fact
        if argument is not None:
            argument = names.get(argument) or names.get(argument.partition(".")[0]) or argument
        elif others is not None:
            argument, fact = others, f"cannot be used: {fact}"
        if (function, argument) == (error.function, error.argument):
            raise
        raise type(error)(function, argument, fact) from error
    except (ValueError, TypeError) as error:  # of another library
        if others is None:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise fail(function, f"`{others}` cannot be used: {' '.join(str(error).split())}", kind) from error
