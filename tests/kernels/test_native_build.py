"""Building the native kernel: into a wheel, without a compiler, and with sanitizers."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
NEEDS_COMPILER = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g"]
FLAGS = ["-std=c++17", "-fwrapv", "-fno-math-errno", "-Wno-psabi", "-fPIC", "-shared", "-pthread"]
# Runs tests with another build of the extension.
RUN_TESTS_WITH = (
    "import importlib.util, sys, pytest\n"
    "spec = importlib.util.spec_from_file_location('beliefmatch.kernels._native', sys.argv[1])\n"
    "module = importlib.util.module_from_spec(spec)\n"
    "spec.loader.exec_module(module)\n"
    "sys.modules[spec.name] = module\n"
    "sys.exit(pytest.main(sys.argv[2:]))\n"
)
LOSS = (
    "import torch, beliefmatch\n"
    "from beliefmatch import belief_matching_loss, kernels\n"
    "z = torch.randn(5, 37, requires_grad=True)\n"
    "y = torch.randint(37, (5,))\n"
    "belief_matching_loss(z, y).backward()\n"
    "own, z.grad = z.grad, None\n"
    "print(kernels.status().name, beliefmatch.__file__, kernels.status().reason)\n"
    "kernels.use('reference')\n"
    "belief_matching_loss(z, y).backward()\n"
    "torch.testing.assert_close(own, z.grad)\n"
)


def run(*command, cwd=ROOT, timeout=900, **environment):
    done = subprocess.run(
        [f"{part}" for part in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def library(name):
    """Path of one of the compiler's own libraries, None if it has none of that name."""
    path = run(COMPILER, f"-print-file-name={name}").strip()
    return path if os.path.isabs(path) else None


@pytest.fixture
def source(tmp_path):
    """A copy of the checkout, without build products."""
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__", "build")
    shutil.copytree(ROOT / "src", tmp_path / "source" / "src", ignore=built)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / "source")
    return tmp_path / "source"


def installed(wheel, directory):
    """Python of a fresh environment that has the wheel, and everything else from this one."""
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    paths = sysconfig.get_paths(vars={"base": f"{directory}", "platbase": f"{directory}"})
    (Path(paths["purelib"]) / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    target = ["--target", paths["purelib"]]
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", *target, wheel)
    return Path(paths["scripts"]) / Path(sys.executable).name


def has_build():
    try:
        return metadata.version("build") != ""
    except metadata.PackageNotFoundError:
        return False


@NEEDS_COMPILER
@pytest.mark.skipif(sys.platform != "linux", reason="sanitizers are preloaded as on Linux")
def test_sanitizers_find_nothing_in_all_tests_of_the_kernel(tmp_path):
    runtime, standard = library("libasan.so"), library("libstdc++.so.6")
    if runtime is None or standard is None:
        pytest.skip(f"{COMPILER} has no address sanitizer")
    extension = tmp_path / "_native.abi3.so"
    include = f"-I{sysconfig.get_path('include')}"
    code = ROOT / "src" / "beliefmatch" / "kernels" / "cpp" / "module.cpp"
    run(COMPILER, *FLAGS, *SANITIZERS, include, code, "-o", extension)
    names = "native", "native_readings", "loss_torch", "dirichlet_contract"
    tests = [ROOT / "tests" / "kernels" / f"test_{name}.py" for name in names]
    shown = run(
        *(sys.executable, "-c", RUN_TESTS_WITH, extension, "-q", "-s", "-p", "no:cacheprovider", *tests),
        *("-k", "not compile and not machine_code and not derivatives"),
        LD_PRELOAD=f"{runtime} {standard}",
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="print_stacktrace=1",
    )
    assert " passed" in shown and " skipped" not in shown


@NEEDS_COMPILER
@pytest.mark.skipif(not has_build(), reason="needs build")
def test_wheel_serves_every_python_and_works_when_installed(source, tmp_path):
    options = ["--wheel", "--no-isolation", "--outdir", tmp_path]
    run(sys.executable, "-m", "build", *options, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp310-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert [Path(name).name for name in names if "_native." in name] == ["_native.abi3.so", "_native.pyi"]
    assert not [name for name in names if name.endswith((".cpp", ".h"))]
    python = installed(wheel, tmp_path / "venv")
    kernel, rest = run(python, "-c", LOSS, cwd=tmp_path, PYTHONPATH="").split(maxsplit=1)
    assert kernel == "native" and f"{tmp_path}" in rest


@pytest.mark.parametrize(
    "environment",
    [{"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}, {"BELIEFMATCH_BUILD_NATIVE": "0"}],
    ids=["no compiler", "not wanted"],
)
def test_installs_and_works_without_a_compiler(source, tmp_path, environment):
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", tmp_path]
    run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=tmp_path, **environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    python = installed(wheel, tmp_path / "venv")
    kernel, rest = run(python, "-c", LOSS, cwd=tmp_path, PYTHONPATH="").split(maxsplit=1)
    assert kernel == "lean" and f"{tmp_path}" in rest and "it was not built" in rest
