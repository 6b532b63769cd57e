"""Where a number was made: versions of the software, and the hardware it ran on."""

import os
import platform
from importlib import metadata
from pathlib import Path

__all__ = ["hardware", "versions"]


def versions(*distributions: str) -> dict[str, str]:
    """Python's version and those of the named distributions ("missing" where not installed)."""
    found = {"python": platform.python_version()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def hardware() -> dict[str, str | int]:
    """Operating system, processor and its number of logical cores."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "logical_cores": os.cpu_count() or 1,
    }


def _processor() -> str:
    # platform.processor() is empty or only the architecture on most Linux systems.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
