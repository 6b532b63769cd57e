"""The choice of a kernel: by the environment, by what is installed, and how commands report it."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from beliefmatch import belief_matching_loss, kernels
from beliefmatch._environment import rebuild_command
from commands import MAIN, QUICK, python
from kernel_contract import NEEDS_NATIVE, using

LOSS = (
    "import torch\n"
    "from beliefmatch import belief_matching_loss, kernels\n"
    "z = torch.linspace(-2, 3, 15).view(3, 5)\n"
    "loss = belief_matching_loss(z, torch.tensor([0, 4, 2]))\n"
    "print(f'{loss.item():.5f}', *kernels.status(), sep=chr(10))\n"
)
WITHOUT_EXTENSION = "import sys; sys.modules['beliefmatch.kernels._native'] = None\n"
WITH_BROKEN_EXTENSION = (
    "import sys\n"
    "class Broken:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name == 'beliefmatch.kernels._native':\n"
    "            raise ImportError('undefined symbol')\n"
    "sys.meta_path.insert(0, Broken())\n"
)
DOCTOR = MAIN.replace("sys.argv[1:]", "['doctor', '--json']")
REFUSED = "`BELIEFMATCH_KERNEL` must be one of auto, native, triton, lean, reference, got 'nonsense'."
REMEDY = f"install a C++ compiler (g++ or clang++) and reinstall: {rebuild_command()}"
NONSENSE = f"kernels.use: {REFUSED}"


def expected_loss():
    """The first line that LOSS prints."""
    with using("reference"):
        loss = belief_matching_loss(torch.linspace(-2, 3, 15).view(3, 5), torch.tensor([0, 4, 2]))
    return f"{loss.item():.5f}"


@NEEDS_NATIVE
@pytest.mark.parametrize(
    ("chosen", "name", "reason"),
    [
        ("auto", "native", "compiled for "),
        ("", "native", "compiled for "),
        ("native", "native", "compiled for "),
        ("lean", "lean", "chosen by BELIEFMATCH_KERNEL; the native kernel is installed"),
        ("reference", "reference", "chosen by BELIEFMATCH_KERNEL; the native kernel is installed"),
    ],
)
def test_the_environment_chooses_a_kernel(chosen, name, reason):
    done = python(LOSS, BELIEFMATCH_KERNEL=chosen)
    assert done.stderr == ""
    value, used, given_reason = done.stdout.splitlines()
    assert (value, used) == (expected_loss(), name) and given_reason.startswith(reason)


@pytest.mark.parametrize("chosen", ["nonsense", "Native", ""])
def test_a_kernel_that_does_not_exist_cannot_be_chosen(chosen):
    before = kernels.status()
    with pytest.raises(ValueError) as error:
        kernels.use(chosen)
    assert str(error.value) == NONSENSE.replace("nonsense", chosen)
    assert kernels.status() == before


@pytest.mark.parametrize(
    "command",
    [
        QUICK,
        ["evaluate", "predictions.npz"],
        ["predict", "run", "photo.png"],
        ["adapt", "--features", "features.npz"],
    ],
    ids=lambda command: command[0],
)
def test_commands_end_with_one_line_if_the_kernel_does_not_exist(command, tmp_path):
    out = tmp_path / "predictions.csv"
    arguments = [*command, "--out", f"{out if command[0] == 'predict' else tmp_path}"]
    done = python(MAIN.replace("sys.argv[1:]", f"{arguments}"), BELIEFMATCH_KERNEL="nonsense")
    assert done.returncode == 2 and done.stderr == f"beliefmatch {command[0]}: {REFUSED}\n"


def test_doctor_reports_a_kernel_that_does_not_exist():
    done = python(DOCTOR, BELIEFMATCH_KERNEL="nonsense")
    assert done.returncode == 1 and done.stderr == ""
    assert json.loads(done.stdout)["torch"]["problem"] == NONSENSE


def test_works_without_the_extension_and_explains_where_it_is_required():
    require = "try: kernels.use('native')\nexcept ModuleNotFoundError as error: print(error)"
    done = python(WITHOUT_EXTENSION + LOSS + require, BELIEFMATCH_KERNEL="auto")
    assert done.stderr == ""
    value, name, reason, refusal = done.stdout.splitlines()
    assert (value, name) == (expected_loss(), "lean")
    assert reason.endswith(f"(it was not built); {REMEDY}")
    assert refusal.startswith("BELIEFMATCH_KERNEL: ") and refusal.endswith(f"(it was not built); {REMEDY}.")


def test_doctor_explains_why_the_native_kernel_is_missing():
    for before, why in ((WITHOUT_EXTENSION, "it was not built"), (WITH_BROKEN_EXTENSION, "undefined symbol")):
        done = python(before + DOCTOR, BELIEFMATCH_KERNEL="auto")
        facts = json.loads(done.stdout)["torch"]
        assert done.returncode == 0 and facts["kernels"]["cpu"]["name"] == "lean"
        assert f"({why}); {REMEDY}" in facts["kernels"]["cpu"]["reason"]


def test_triton_is_refused_without_a_gpu_and_without_its_interpreter():
    done = python(LOSS, BELIEFMATCH_KERNEL="triton", TRITON_INTERPRET="0")
    missing = f"{kernels.TRITON_MISSING}" if kernels.TRITON_MISSING else "there is no GPU; TRITON_INTERPRET=1"
    assert done.returncode == 1 and missing in done.stderr.splitlines()[-1]


def test_triton_that_is_too_old_is_reported_and_not_used(monkeypatch, tmp_path):
    package = tmp_path / "triton"
    package.mkdir()
    (package / "__init__.py").write_text('"""Of another time."""\n__version__ = "3.6.1+git"\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert kernels._why_triton_is_missing() == "triton 3.6 is too old, it needs 3.7"
    (package / "__init__.py").write_text("__version__ = '3.10.0'\n")
    assert kernels._why_triton_is_missing() is None


def test_a_device_on_which_triton_fails_is_served_by_the_lean_kernel(monkeypatch):
    def failing(device):
        raise RuntimeError(f"no C compiler\nfor {device}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "TRITON_MISSING", None)
    monkeypatch.setattr(kernels, "triton", lambda: SimpleNamespace(probe=failing))
    kernels._failure_of_probe.cache_clear()
    with using("auto"):
        with pytest.warns(UserWarning, match="no C compiler for cuda"):
            assert kernels._kernels("cuda") == (kernels.lean,)
        assert kernels._kernels("cuda") == (kernels.lean,)  # without another warning
        name, reason = kernels.status("cuda")
    kernels._failure_of_probe.cache_clear()
    assert name == "lean" and reason.startswith("triton does not work here (RuntimeError: no C compiler")
