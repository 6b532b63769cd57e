"""Build the source distribution and the wheel; try the wheel in a clean environment of each Python present.

    python tools/wheels.py [--pythons python3.10 python3.13 ...] [--out dist]

The wheel is built from the source distribution, so that a file that is missing there is missed here. Each
environment installs the wheel with the extra `demo` and runs `tools/smoke_test.py`. The Pythons are those of
the path, and those of pyenv.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MINORS = range(10, 15)
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def pythons_present() -> list[str]:
    """One interpreter for each supported minor version."""
    names = [f"python3.{minor}" for minor in MINORS]
    pyenv = Path.home() / ".pyenv" / "versions"
    installed = [f"{path}" for minor in MINORS for path in sorted(pyenv.glob(f"3.{minor}.*/bin/python"))]
    return supported([sys.executable, *names, *installed])


def supported(candidates: Iterable[str]) -> list[str]:
    """Those candidates that run and are supported, the first of each minor version, oldest first."""
    found: dict[int, str] = {}
    for python in candidates:
        minor = _minor_version(python)
        if minor is not None and minor in MINORS:
            found.setdefault(minor, python)
    return [found[minor] for minor in sorted(found)]


def _minor_version(python: str) -> int | None:
    if shutil.which(python) is None:
        return None
    done = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True)
    major, _, minor = done.stdout.strip().partition(".")
    return int(minor) if done.returncode == 0 and major == "3" else None


def build(out: Path) -> Path:
    """Build both files into an empty directory, check their metadata, and return the wheel."""
    shutil.rmtree(out, ignore_errors=True)
    _run([sys.executable, "-m", "build", "--outdir", f"{out}", f"{ROOT}"], quiet=True)
    files = sorted(out.iterdir())
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    (wheel,) = out.glob("*.whl")
    return wheel


def try_wheel(wheel: Path, python: str) -> None:
    """Install the wheel in a new environment and run the smoke test, in a directory without the sources."""
    with tempfile.TemporaryDirectory() as directory:
        _run([python, "-m", "venv", f"{directory}/venv"])
        scripts = Path(directory, "venv", "Scripts" if sys.platform == "win32" else "bin")
        pip = [f"{scripts / 'python'}", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--constraint", f"{ROOT / 'constraints.txt'}", f"{wheel}[demo]"])
        kernel = ["--native"] if "abi3" in wheel.name else []
        smoke_test = f"{ROOT / 'tools' / 'smoke_test.py'}"
        _run([f"{scripts / 'python'}", "-I", smoke_test, *kernel], cwd=directory)


def _run(command: list[str], *, quiet: bool = False, cwd: str | Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE if quiet else None, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}tools/wheels.py: {' '.join(command)} failed")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, then try with every Python."""
    parser = argparse.ArgumentParser(description="Build the wheel and try it with every Python present.")
    parser.add_argument("--pythons", nargs="+", help="interpreters instead of those that are found")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory; it is emptied first")
    args = parser.parse_args(arguments)
    pythons = supported(args.pythons) if args.pythons else pythons_present()
    if not pythons:
        parser.error("argument --pythons: none of them runs and is supported")
    wheel = build(args.out.resolve())
    for python in pythons:
        print(f"{wheel.name} with {python}", flush=True)
        try_wheel(wheel, python)
    print(f"{args.out}: the wheel works with {len(pythons)} Pythons")


if __name__ == "__main__":
    main()
