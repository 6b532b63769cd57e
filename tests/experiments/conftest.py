"""Runs that are trained once for all tests. To be read, not written."""

import pytest

from beliefmatch.experiments.run import execute
from small_runs import digits_config, semi_config


@pytest.fixture(scope="session")
def belief_run(tmp_path_factory):
    """Directory and record of belief matching on 200 digits, with noise as an OOD set."""
    directory = tmp_path_factory.mktemp("belief") / "run"
    return directory, execute(digits_config(), directory)


@pytest.fixture(scope="session")
def supervised(tmp_path_factory):
    """Directory and record of belief matching on 30 labels, without the 120 unlabelled images."""
    directory = tmp_path_factory.mktemp("supervised") / "run"
    return directory, execute(semi_config(), directory)
