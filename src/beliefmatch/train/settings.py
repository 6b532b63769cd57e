"""On what to train; read without torch."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PRECISIONS", "EngineSettings"]

PRECISIONS = ("auto", "32", "bf16", "16")


@dataclass(frozen=True)
class EngineSettings:
    """Devices, numbers and layout of a training.

    Args:
        accelerator: "auto", "cpu", "cuda" or "mps", as lightning-fabric names them.
        devices: processes on each machine, one a device; "auto" for all GPUs, one process on a CPU.
        nodes: machines.
        precision: "32"; "bf16" or "16" for mixed precision; "auto" for bf16 where the hardware has it.
        compile: have torch compile the network first.
        threads: of the CPU in each process; torch's own number if not given.
    """

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: str = "auto"
    nodes: int = 1
    precision: Literal["auto", "32", "bf16", "16"] = "auto"
    compile: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        choices = {"accelerator": ("auto", "cpu", "cuda", "mps"), "precision": PRECISIONS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"engine: `{name}` must be one of {', '.join(allowed)}, got {getattr(self, name)!r}."
                )
        if self.devices != "auto" and not (self.devices.isdigit() and int(self.devices) > 0):
            raise ValueError(f"engine: `devices` must be auto or a number above 0, got {self.devices!r}.")
        for name in ("nodes", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"engine: `{name}` must be at least 1, got {value}.")
