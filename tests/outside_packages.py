"""Packages that tests do without where they are not installed."""

import importlib
import warnings

import pytest


def imported(name):
    """A package, or the test is skipped: also where it is there but does not fit the torch that is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"{name} cannot be imported: {type(error).__name__}")
