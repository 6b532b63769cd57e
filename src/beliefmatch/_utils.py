"""Small helpers without dependencies: names loaded on first use, the nearest valid name, messages, seeds."""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from difflib import get_close_matches
from hashlib import blake2b
from importlib import import_module
from typing import Any, TypeVar

from beliefmatch._errors import ArgumentError, fail

__all__ = [
    "OnProgress",
    "derive_seed",
    "first_repeated",
    "lazy_names",
    "nearest",
    "no_progress",
    "option_names",
    "reason_of",
    "require_name",
    "require_options",
    "short_repr",
]

Name = TypeVar("Name", bound=Hashable)

OnProgress = Callable[[float, str], None]
"""Called with the fraction of the work that is done, and a description of the current step."""


def no_progress(fraction: float, description: str) -> None:
    """Ignore progress."""


_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def lazy_names(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are loaded on first use.

    Args:
        package: Its `__name__`.
        names: The names that each of its modules holds, separated by spaces.
    """
    modules = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    def public() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return load, public


def first_repeated(names: Iterable[Name]) -> Name | None:
    """The first of several names that occurs more than once, in one pass over them; None if all differ.

    >>> first_repeated(["cat", "dog", "fox", "dog", "cat"]), first_repeated(["cat", "dog"])
    ('cat', None)
    """
    return next((name for name, times in Counter(names).items() if times > 1), None)


def nearest(word: str, valid: Collection[str]) -> str | None:
    """The name that a mistyped word is most like, if any is like it.

    >>> nearest("sofmax", ["softmax", "ensemble"]), nearest("CPU", ["paper", "cpu"])
    ('softmax', 'cpu')
    """
    same = [name for name in valid if name.lower() == word.lower()]
    return next(iter(same or get_close_matches(word, valid, n=1)), None)


def require_name(function: str, argument: str, word: str, valid: Collection[str], *, other: str = "") -> None:
    """`word` must be one of a table's names; the error has the nearest.

    `other` describes further accepted values.
    """
    if word in valid:
        return
    close = nearest(word, valid)
    hint = f"; did you mean {close}?" if close else "."
    raise fail(function, f"`{argument}` must be one of {', '.join(valid)}{other}, got {word!r}{hint}")


def option_names(factory: Callable[..., Any]) -> tuple[str, ...] | None:
    """What a function takes by name; None where it takes anything.

    A function that passes on what it does not know names the receiver by its return annotation, if that is a
    class of the same module: then the optional arguments of the class count too.
    """
    parameters = inspect.signature(factory).parameters.values()
    own = tuple(parameter.name for parameter in parameters if parameter.kind in _BY_NAME)
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return own
    returned = None if inspect.isclass(factory) else inspect.signature(factory).return_annotation
    if not inspect.isclass(returned) or returned.__module__ != factory.__module__:
        return None
    passed_on = inspect.signature(returned).parameters.values()
    return (*own, *(p.name for p in passed_on if p.default is not inspect.Parameter.empty))


def require_options(
    function: str, owner: str, factory: Callable[..., Any], options: Mapping[str, Any]
) -> None:
    """`options` must be keyword arguments of `factory`, including all required ones."""
    valid = option_names(factory)
    for name in options:
        if valid is not None and name not in valid:
            close = nearest(name, valid)
            there = f"the options are {', '.join(valid)}." if valid else "it has none."
            hint = f"did you mean `{close}`? {there[0].upper()}{there[1:]}" if close else there
            raise fail(function, f"{owner} has no option `{name}`; {hint}", TypeError)
    for parameter in inspect.signature(factory).parameters.values():
        is_required = parameter.kind in _BY_NAME and parameter.default is inspect.Parameter.empty
        if is_required and parameter.name not in options:
            raise fail(function, f"{owner} must be given the option `{parameter.name}`.", TypeError)


def short_repr(value: object) -> str:
    """Type and repr of a value on one line, at most 80 characters."""
    return " ".join(f"{type(value).__name__} {value!r}".split())[:80]


def reason_of(error: object, *, typed: bool = False, limit: int | None = None) -> str:
    """Message of an exception on one line, without the final full stop; its type where it has no message.

    Args:
        error: the exception, or the message itself. Of an `ArgumentError` the function is left out: it is one
            that the reader did not call.
        typed: whether the type goes first, for code of users: the message of a KeyError is a name alone.
        limit: the largest number of characters, for messages of other libraries about files of users.
    """
    text = error.message if isinstance(error, ArgumentError) else f"{error}"
    text = f"{type(error).__name__}: {error}" if typed else text
    return " ".join(text.split())[:limit].rstrip(".") or type(error).__name__


def derive_seed(*numbers: int) -> int:
    """One seed of several whole numbers, below 2⁶³; other numbers, or another order, give another.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    digest = blake2b(",".join(f"{int(number)}" for number in numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
