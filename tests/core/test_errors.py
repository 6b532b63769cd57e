"""Errors about arguments: their line, their attributes, and the names that a layer above gives them."""

import ast
import copy
import pickle
import re
from pathlib import Path

import pytest

from beliefmatch._errors import ArgumentError, ArgumentTypeError, fail, naming_arguments
from beliefmatch._files import EnvironmentFailure
from beliefmatch._utils import reason_of

SOURCE = Path(__file__).parents[2] / "src" / "beliefmatch"


@pytest.mark.parametrize(
    ("message", "argument", "fact"),
    [
        ("`heads` must be 2, got 1.", "heads", "must be 2, got 1."),
        ("`ood['a b']` must be 2, as `heads` is.", "ood['a b']", "must be 2, as `heads` is."),
        ("`data.name` must be given.", "data.name", "must be given."),
        ("no `heads` here.", None, "no `heads` here."),
        ("`heads`", None, "`heads`"),
        ("", None, ""),
    ],
)
def test_an_error_has_its_function_argument_and_fact_as_attributes(message, argument, fact):
    error = fail("adapt", message)
    assert (error.function, error.argument, error.fact) == ("adapt", argument, fact)  # type: ignore[attr-defined]
    assert f"{error}" == f"adapt: {message}"


@pytest.mark.parametrize(
    ("kind", "made", "bases"),
    [
        (ValueError, ArgumentError, (ValueError,)),
        (TypeError, ArgumentTypeError, (ValueError, TypeError)),
        (EnvironmentFailure, EnvironmentFailure, (ValueError,)),
    ],
)
def test_the_kind_of_an_error_is_kept_by_copies_pickles_and_renaming(kind, made, bases):
    error = fail("adapt", "`heads` must be 2.", kind)
    for other in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is made and isinstance(other, bases) and other.argument == "heads"
    with pytest.raises(made, match=r"^adapt: `head` must be 2\.$"), naming_arguments("adapt", heads="head"):
        raise error


def test_an_error_of_another_kind_has_the_line_as_its_message():
    error = fail("kernels", "is not installed.", ModuleNotFoundError)
    assert type(error) is ModuleNotFoundError and error.args == ("kernels: is not installed.",)


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (fail("inner", "`rows` must be 2."), "outer: `data` must be 2."),
        (fail("inner", "`rows.3` must be 2."), "outer: `data` must be 2."),
        (fail("inner", "`size` must be 2."), "outer: `size` must be 2."),
        (fail("inner", "there is nothing."), "outer: `model` cannot be used: there is nothing."),
        (ValueError("x: of a library"), "outer: `model` cannot be used: x: of a library"),
        (TypeError("of a library"), "outer: `model` cannot be used: of a library"),
        (ValueError("two\n  lines"), "outer: `model` cannot be used: two lines"),
        (UnicodeDecodeError("utf-8", b"a", 0, 1, "odd"), "outer: `model` cannot be used: 'utf-8' codec"),
    ],
)
def test_errors_of_the_functions_below_name_the_function_that_was_called(raised, line):
    kind = TypeError if isinstance(raised, TypeError) else ValueError
    with pytest.raises(kind) as caught, naming_arguments("outer", "model", rows="data"):
        raise raised
    assert f"{caught.value}".startswith(line) and caught.value.__cause__ is raised


def test_without_others_errors_of_libraries_are_as_they_were():
    error = ValueError("of a library")
    with pytest.raises(ValueError) as caught, naming_arguments("outer", rows="data"):
        raise error
    assert caught.value is error


def test_a_reason_does_not_name_a_function_that_nobody_called():
    assert reason_of(fail("RunRecord", "`schema` must be x.")) == "`schema` must be x"


def test_every_error_about_an_argument_is_made_by_fail():
    """`raise ValueError("adapt: ...")` would reach the command line with the name of a function."""
    written = re.compile(r"f?['\"](\w+|\{[\w.()]+\}): ")
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name)
        if node.func.id in ("ValueError", "TypeError", "EnvironmentFailure")
        and written.match(ast.unparse(node.args[0]))
    ]
    assert found == []
