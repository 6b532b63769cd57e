"""The package as a whole: what it exposes, what importing it costs, what it ships."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import beliefmatch

ROOT = Path(__file__).parents[2]


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_exposes_few_names_and_each_can_be_had():
    assert set(beliefmatch.__all__) == {
        "Belief", "BeliefMatchingLoss", "__version__", "adapt", "belief_matching_loss", "dirichlet_kl",
    }  # fmt: skip
    for name in beliefmatch.__all__:
        assert getattr(beliefmatch, name) is not None
    assert dir(beliefmatch) == sorted(beliefmatch.__all__)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, beliefmatch; print('torch' in sys.modules, beliefmatch.__version__ != '')"
    assert run_python(code).stdout.split() == ["False", "True"]


def test_core_needs_torch_and_numpy_only():
    code = (
        "import sys, beliefmatch\n"
        "beliefmatch.belief_matching_loss, beliefmatch.Belief, beliefmatch.dirichlet_kl\n"
        "print([m for m in ('scipy', 'sklearn', 'matplotlib', 'typer', 'rich') if m in sys.modules])"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        beliefmatch.nonsense  # noqa: B018


def test_version_is_that_of_the_metadata():
    assert beliefmatch.__version__ == importlib.metadata.version("beliefmatch")


def test_ships_its_types():
    assert (Path(beliefmatch.__file__).parent / "py.typed").exists()


def test_constraints_pin_versions_and_name_no_address():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert any(line.startswith("torch==") for line in pins)
    for line in pins:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; python_version [<>=]+ \"[\d.]+\")?", line), line


def test_all_brings_every_extra_but_those_with_networks_or_a_torch_of_their_own():
    distribution = importlib.metadata.metadata("beliefmatch")
    apart = {"all", "test", "dev", "vision", "huggingface", "laplace"}
    extras = set(distribution.get_all("Provides-Extra") or []) - apart
    requirements = importlib.metadata.requires("beliefmatch") or []
    in_all = [line for line in requirements if line.startswith("beliefmatch[") and '"all"' in line]
    named = {name for line in in_all for name in line.split("[")[1].split("]")[0].split(",")}
    needed = {"cli", "stats", "sklearn", "metrics", "report", "files", "train", "data"}
    assert extras == needed
    assert named | {"files"} == needed  # train brings files
