"""The package as a whole: its names, the cost of importing it, its files and requirements."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import beliefmatch

ROOT = Path(__file__).parents[2]


def test_the_package_has_few_names_its_version_and_its_types():
    assert set(beliefmatch.__all__) == {
        "Belief", "BeliefMatchingLoss", "Evaluation", "LinearBeliefMatchingLoss", "__version__", "adapt",
        "belief_matching_loss", "choose_kl_weight", "dirichlet_kl", "evaluate", "export", "fit_scale",
        "linear_belief_matching_loss", "votes_log_likelihood",
    }  # fmt: skip
    for name in beliefmatch.__all__:
        assert getattr(beliefmatch, name) is not None
    assert dir(beliefmatch) == sorted(beliefmatch.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        beliefmatch.nonsense  # noqa: B018
    assert beliefmatch.__version__ == importlib.metadata.version("beliefmatch")
    assert (Path(beliefmatch.__file__).parent / "py.typed").exists()


def test_importing_the_package_imports_no_torch_and_the_core_no_extra():
    code = (
        "import sys, beliefmatch; print('torch' in sys.modules, beliefmatch.__version__ != '')\n"
        "beliefmatch.belief_matching_loss, beliefmatch.Belief, beliefmatch.dirichlet_kl\n"
        "print([m for m in ('scipy', 'sklearn', 'matplotlib', 'typer', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "[]"]


def test_constraints_pin_versions_and_name_no_address():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert any(line.startswith("torch==") for line in pins)
    for line in pins:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; python_version [<>=]+ \"[\d.]+\")?", line), line


def test_the_extra_all_includes_every_extra_but_those_for_other_frameworks():
    distribution = importlib.metadata.metadata("beliefmatch")
    apart = {"all", "demo", "test", "dev", "docs", "vision", "huggingface", "laplace"}
    # for those who have these frameworks, want these files, or have a cluster
    apart |= {"lightning", "skorch", "export", "votes", "cluster"}
    extras = set(distribution.get_all("Provides-Extra") or []) - apart
    requirements = importlib.metadata.requires("beliefmatch") or []
    in_all = [line for line in requirements if line.startswith("beliefmatch[") and '"all"' in line]
    named = {name for line in in_all for name in line.split("[")[1].split("]")[0].split(",")}
    needed = {"cli", "stats", "sklearn", "metrics", "report", "files", "train", "data"}
    assert extras == needed
    assert named | {"files"} == needed  # train brings files
