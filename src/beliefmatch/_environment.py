"""The installation and the machine: optional dependencies, versions of the software, and the hardware.

An extra is imported inside the function that uses it, within `needs(...)`, which turns a missing package into
an error that names the extra to install.
"""

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

__all__ = [
    "Extra",
    "Package",
    "Provenance",
    "extras",
    "hardware",
    "install_command",
    "needs",
    "provenance",
    "rebuild_command",
    "software",
    "versions",
]


class Provenance(TypedDict):
    """Fields that every record ends with."""

    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float


def provenance(wall_seconds: float, *distributions: str, **hardware_facts: int) -> Provenance:
    """What a record states about its origin, as of now.

    Args:
        wall_seconds: Duration of the work.
        *distributions: Distributions whose versions are stated.
        **hardware_facts: Facts added to those of `hardware`.
    """
    return {
        "versions": versions(*distributions),
        "hardware": {**hardware(), **hardware_facts},
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "wall_seconds": wall_seconds,
    }


def versions(*distributions: str) -> dict[str, str]:
    """Python's version and those of the named distributions ("missing" where not installed)."""
    found = {"python": platform.python_version()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


@cache
def software() -> dict[str, str]:
    """What the numbers of a run depend on, as it has to be the same on all machines that share the work.

    Versions alone would not do: two copies of the sources under development have the same.
    """
    found, package = versions("torch", _DISTRIBUTION), Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode() + content)
    return {
        "Python": found["python"].rpartition(".")[0],
        "torch": found["torch"].partition("+")[0],  # +cpu and +cu128 are the same code
        _DISTRIBUTION: f"{found[_DISTRIBUTION]} with sources {digest.hexdigest()[:12]}",
    }


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


_DISTRIBUTION = "beliefmatch"
_BUNDLES = {"all", "demo", "test", "docs", "dev"}  # sums of other extras, or tools of the project itself

_REQUIREMENT = re.compile(
    r"""\s* (?P<name>[\w.-]+) \s*
        (?: \[ (?P<extras>[^\]]*) \] )? \s*
        (?P<specifier>[^;]*)
        (?: ; (?P<marker>.*) )? $""",
    re.VERBOSE,
)


def install_command(extra: str) -> str:
    """The command that installs an extra.

    It names the package however it was installed: pip takes the extra's requirements from the installed
    metadata, so that a clone or a wheel from elsewhere needs no other command.
    """
    return f'pip install "{_DISTRIBUTION}[{extra}]"'


def rebuild_command() -> str:
    """The command that compiles the package again, from where it was installed: an address, or the index.

    A wheel cannot be compiled again: for one that came from a file, the index has to have the sources.
    """
    recorded = metadata.distribution(_DISTRIBUTION).read_text("direct_url.json")
    origin = json.loads(recorded) if recorded else {}
    address = origin.get("url", "")
    if not address or address.endswith(".whl"):
        source = _DISTRIBUTION
    elif origin.get("dir_info", {}).get("editable"):
        source = f'--editable "{address}"'
    else:
        source = f'"{_DISTRIBUTION} @ {address}"'
    return f"pip install --force-reinstall --no-deps --no-cache-dir --no-binary {_DISTRIBUTION} {source}"


@contextmanager
def needs(package: str, *, extra: str, caller: str) -> Iterator[None]:
    """Turn a failed import inside the block into an error that names the extra to install.

    The imports stay ordinary ``import`` statements, visible to type checkers.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == _DISTRIBUTION:
            raise  # a bug in beliefmatch, not a missing extra
        raise ModuleNotFoundError(
            f"`{caller}` needs {package}: {install_command(extra)}",
            name=error.name,
        ) from error


@dataclass(frozen=True)
class Package:
    """A requirement of an extra and the version of it that is installed, if any."""

    name: str
    specifier: str
    installed: str | None

    @property
    def satisfied(self) -> bool:
        """Whether the installed version will do; any version does where `packaging` is absent."""
        return self.installed is not None and _within(self.installed, self.specifier)


@dataclass(frozen=True)
class Extra:
    """One optional feature of the library and the packages it needs."""

    name: str
    packages: tuple[Package, ...]

    @property
    def satisfied(self) -> bool:
        """Whether every package is installed in a fitting version."""
        return all(package.satisfied for package in self.packages)

    @property
    def remedy(self) -> str:
        """The command that installs the extra."""
        return install_command(self.name)


def extras() -> tuple[Extra, ...]:
    """Every extra this installation declares, with what is installed of it."""
    names = metadata.metadata(_DISTRIBUTION).get_all("Provides-Extra") or []
    return tuple(Extra(name, tuple(_packages(name))) for name in names if name not in _BUNDLES)


def _packages(extra: str) -> Iterator[Package]:
    for line in metadata.requires(_DISTRIBUTION) or []:
        match = _REQUIREMENT.match(line)
        if match is None or not _applies(match["marker"] or "", extra):
            continue
        if match["name"] == _DISTRIBUTION:  # an extra that includes other extras
            for included in (match["extras"] or "").split(","):
                yield from _packages(included.strip())
        else:
            yield Package(match["name"], match["specifier"].strip(), _version(match["name"]))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _applies(marker: str, extra: str) -> bool:
    if re.search(rf"""\bextra\s*==\s*["']{re.escape(extra)}["']""", marker) is None:
        return False
    try:
        from packaging.markers import Marker
    except ModuleNotFoundError:
        return True
    return Marker(marker).evaluate({"extra": extra})


def _within(version: str, specifier: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ModuleNotFoundError:
        return True
    return SpecifierSet(specifier).contains(version, prereleases=True)
