"""Ways to run the command line in tests."""

import os
import subprocess
import sys
from pathlib import Path

from beliefmatch._files import LEDGER
from beliefmatch.cli import main

QUICK = [
    *("compare", "--epochs", "1", "--seeds", "1", "--methods", "softmax,belief_matching", "--jobs", "1"),
    *("--limit", "100", "--ood", "noise"),
]
PRODUCTS = sorted(
    [LEDGER, "comparison.json", "evaluations", "figures", "report.html", "runs", "summary.csv", "summary.md"]
)
MAIN = "import sys; from beliefmatch.cli import main; sys.exit(main(sys.argv[1:]))"


def python(code: str, *, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter; `shell` follows it on the command line."""
    line = [sys.executable, "-c", code]
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$@" {shell}', "bash", *line] if shell else line,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,  # a machine may be busy
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )


def refused(arguments: list[str], capsys) -> str:
    """The one line of the error that a command ends with."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith((f"beliefmatch {arguments[0]}: ", f"`beliefmatch {arguments[0]}` needs "))
    return err


def files_below(out: Path) -> list[str]:
    return sorted(f"{path.relative_to(out)}" for path in out.rglob("*") if path.is_file())


def fails_in_training(error):
    def fit(*arguments, **options):
        raise error

    return fit
