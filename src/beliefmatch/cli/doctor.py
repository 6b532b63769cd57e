"""`beliefmatch doctor`: what is installed, what it runs on, and what is missing."""

import json
from dataclasses import asdict, dataclass, field

import typer

from beliefmatch._environment import Extra, Package, extras, hardware, versions
from beliefmatch._utils import reason_of
from beliefmatch.cli import options as opt
from beliefmatch.cli.console import BAD_INPUT, require_packages, show, user_errors

__all__ = ["doctor"]

_VERSIONS = ("beliefmatch", "torch", "numpy")


@dataclass(frozen=True)
class Torch:
    """What torch offers on this machine, or why it cannot be used."""

    threads: int = 0
    devices: list[str] = field(default_factory=list)
    kernels: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name and reason of the loss kernel, by type of device."""
    problem: str | None = None


def doctor(context: typer.Context, as_json: opt.Json = False) -> None:
    """Show versions, devices, their loss kernels and missing extras."""
    torch, found = _torch(), extras()
    if as_json:
        described = [
            asdict(extra)
            | {"satisfied": extra.satisfied, "remedy": None if extra.satisfied else extra.remedy}
            for extra in found
        ]
        report = {"versions": versions(*_VERSIONS), "hardware": hardware(), "torch": asdict(torch)}
        typer.echo(json.dumps(report | {"extras": described}, indent=2))
    else:
        with user_errors(context):
            require_packages(context, "terminal")
        _show(torch, found)
    if torch.problem:
        raise typer.Exit(1)


def _torch() -> Torch:
    try:
        import torch

        from beliefmatch import kernels
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        return Torch(problem=f"torch cannot be imported: {reason_of(error)}")
    devices = ["cpu"]
    devices += [
        f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())
    ]
    devices += [
        f"xpu:{index} ({torch.xpu.get_device_name(index)})" for index in range(torch.xpu.device_count())
    ]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    kinds = dict.fromkeys(device.split()[0].split(":")[0] for device in [*devices, "cuda", "mps"])
    try:
        found = {kind: kernels.status(kind)._asdict() for kind in kinds}
    except BAD_INPUT as error:
        return Torch(problem=f"{error}")
    return Torch(torch.get_num_threads(), devices, found)


def _show(torch: Torch, found: tuple[Extra, ...]) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    machine = hardware()
    facts = {
        **versions(*_VERSIONS),
        "platform": f"{machine['platform']}",
        "processor": f"{machine['processor']}, {machine['logical_cores']} logical cores",
    }
    if torch.problem:
        facts |= {"broken": torch.problem}
    else:
        facts |= {
            "threads": f"{torch.threads}",
            "devices": ", ".join(torch.devices),
        }
        facts |= {
            f"loss on {kind}": f"{kernel['name']}: {kernel['reason']}"
            for kind, kernel in torch.kernels.items()
        }
    summary = Table(Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False)
    for name, value in facts.items():
        summary.add_row(Text(name, "bold"), Text(value, "red" if name == "broken" else ""))
    listing = Table(
        Column("extra", no_wrap=True), Column("packages", overflow="fold"), box=None, header_style="bold"
    )
    for extra in found:
        listing.add_row(extra.name, ", ".join(_describe(package) for package in extra.packages))
        if not extra.satisfied:  # below: a third column would leave the packages no room
            listing.add_row("", Text(extra.remedy, "yellow"))
    show(summary, "", listing)


def _describe(package: Package) -> str:
    if package.satisfied:
        return f"{package.name} {package.installed}"
    return f"{package.name} {package.installed or 'missing'} (needs {package.specifier or 'any'})"
