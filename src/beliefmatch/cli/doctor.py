"""`beliefmatch doctor`: what is installed, what it runs on, and what is missing."""

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer

from beliefmatch._environment import Extra, Package, extras, hardware, needs, versions
from beliefmatch.cli.errors import BAD_INPUT, user_errors

__all__ = ["doctor"]


@dataclass(frozen=True)
class Torch:
    """What torch offers on this machine, or why it cannot be used as asked."""

    threads: int = 0
    devices: list[str] = field(default_factory=list)
    kernel: str = ""
    kernel_reason: str = ""
    problem: str | None = None


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show versions, devices, the loss kernel and missing extras."""
    torch, found = _torch(), extras()
    if as_json:
        typer.echo(_json(torch, found))
    else:
        _show(torch, found, context)
    if torch.problem:
        raise typer.Exit(1)


def _torch() -> Torch:
    try:
        import torch

        from beliefmatch import kernels
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        return Torch(problem=f"torch cannot be imported: {' '.join(str(error).split())}")
    devices = ["cpu"]
    devices += [
        f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())
    ]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    try:
        kernel = kernels.status()
    except BAD_INPUT as error:
        return Torch(problem=f"{error}")
    return Torch(torch.get_num_threads(), devices, kernel.name, kernel.reason)


def _versions() -> dict[str, str]:
    return versions("beliefmatch", "torch", "numpy")


def _json(torch: Torch, found: tuple[Extra, ...]) -> str:
    described = [
        {
            **asdict(extra),
            "satisfied": extra.satisfied,
            "remedy": None if extra.satisfied else extra.remedy,
        }
        for extra in found
    ]
    report = {
        "versions": _versions(),
        "hardware": hardware(),
        "torch": asdict(torch),
        "extras": described,
    }
    return json.dumps(report, indent=2)


def _show(torch: Torch, found: tuple[Extra, ...], command: typer.Context) -> None:
    with (
        user_errors(*BAD_INPUT, command=command),
        needs("rich", extra="cli", caller="beliefmatch doctor"),
    ):
        from rich.table import Column, Table
        from rich.text import Text

        from beliefmatch.cli.terminal import show

    facts = Table(Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False)
    for name, value in _facts(torch):
        facts.add_row(Text(name, "bold"), Text(value, "red" if value == torch.problem else ""))
    listing = Table(
        Column("extra", no_wrap=True), Column("packages", overflow="fold"), box=None, header_style="bold"
    )
    for extra in found:
        listing.add_row(extra.name, ", ".join(_describe(package) for package in extra.packages))
        if not extra.satisfied:  # below, not beside: a column of commands leaves others no room
            listing.add_row("", Text(extra.remedy, "yellow"))
    show(facts, "", listing)


def _facts(torch: Torch) -> list[tuple[str, str]]:
    machine = hardware()
    facts = [
        *_versions().items(),
        ("platform", f"{machine['platform']}"),
        ("processor", f"{machine['processor']}, {machine['logical_cores']} logical cores"),
    ]
    if torch.problem:
        return [*facts, ("broken", torch.problem)]
    return [
        *facts,
        ("threads", f"{torch.threads}"),
        ("devices", ", ".join(torch.devices)),
        ("loss kernel", f"{torch.kernel}: {torch.kernel_reason}"),
    ]


def _describe(package: Package) -> str:
    if package.satisfied:
        return f"{package.name} {package.installed}"
    return f"{package.name} {package.installed or 'missing'} (needs {package.specifier or 'any'})"
