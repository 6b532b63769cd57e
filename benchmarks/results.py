"""The file of results: one line for each contender of each cell, with machine, versions and date."""

import csv
import io
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from beliefmatch import kernels
from beliefmatch._environment import hardware, versions
from contender import Contender
from grid import Cell
from measurement import Measured

__all__ = ["COLUMNS", "DEFAULT_PATH", "append", "lines", "origin", "prepare", "read"]

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_PATH = ROOT / "benchmarks" / "results.csv"
ORIGIN = ("processor", "cores", "platform", "python", "torch", "beliefmatch", "commit", "kernel")
COLUMNS = (
    "date",
    *ORIGIN,
    "load",
    "task",
    "shape",
    "dtype",
    "threads",
    "contender",
    "contender_version",
    "seconds",
    "fastest_seconds",
    "ratio",
    "ratio_q1",
    "ratio_q3",
    "rounds",
    "peak_memory",
)

Line = Mapping[str, str]


def prepare(path: Path) -> None:
    """Make sure that lines can be appended: a new file gets a header, an old one must have the same."""
    if path.exists() and path.stat().st_size:
        _require_whole(path.read_text(encoding="utf-8"))
    else:
        path.write_text(_text([COLUMNS]), encoding="utf-8")


def _require_whole(text: str) -> None:
    if not text.startswith(_text([COLUMNS])):
        first = (text.splitlines() or [""])[0][:80]
        raise ValueError(f"expected a file with the header {','.join(COLUMNS)}, got {first!r}")
    if not text.endswith("\n"):
        raise ValueError(f"expected a file of whole lines, got one that ends in {text[-20:]!r}")


def origin() -> dict[str, str]:
    """Where and when this run is made; the same for all its lines."""
    machine, software = hardware(), versions("torch", "beliefmatch")
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "processor": str(machine["processor"]),
        "cores": str(machine["logical_cores"]),
        "platform": f"{platform.system()} {platform.machine()}",
        **software,
        "commit": _commit(),
        "kernel": kernels.status().name,
        "load": f"{_load():.2f}",
    }


def lines(
    made: Mapping[str, str], cell: Cell, contenders: Mapping[str, Contender], found: Mapping[str, Measured]
) -> list[Line]:
    """The lines of one cell."""
    return [
        {
            **made,
            "task": cell.task,
            "shape": cell.shape_name,
            "dtype": cell.dtype,
            "threads": str(cell.threads),
            "contender": name,
            "contender_version": versions(contenders[name].package)[contenders[name].package],
            "seconds": f"{measured.timing.seconds:.4g}",
            "fastest_seconds": f"{measured.timing.fastest_seconds:.4g}",
            "ratio": f"{measured.timing.ratio:.4g}",
            "ratio_q1": f"{measured.timing.quartiles[0]:.4g}",
            "ratio_q3": f"{measured.timing.quartiles[1]:.4g}",
            "rounds": str(measured.timing.rounds),
            "peak_memory": f"{measured.peak_memory:.2f}",
        }
        for name, measured in found.items()
    ]


def append(path: Path, new: Iterable[Line]) -> None:
    """Append in one write, so that an interrupted run leaves whole lines."""
    text = _text([line[column] for column in COLUMNS] for line in new)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def read(path: Path) -> list[dict[str, str]]:
    """All lines of the file."""
    text = path.read_text(encoding="utf-8")
    _require_whole(text)
    return list(csv.DictReader(io.StringIO(text)))


def _text(rows: Iterable[Iterable[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _load() -> float:
    """Processes that wanted to run in the last minute, on average; what disturbs the times."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def _commit() -> str:
    """The commit the code was run at, marked where code has changed since."""
    commit = _git("rev-parse", "--short=10", "HEAD")
    changed = _git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    return f"{commit}-changed" if commit and changed else commit or "unknown"


def _git(*arguments: str) -> str:
    try:
        answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return answer.stdout.strip()
