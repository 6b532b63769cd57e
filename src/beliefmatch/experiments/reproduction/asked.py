"""How a reproduction is asked for; read without torch."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Asked"]

_TRANSFER = "transfer."


@dataclass(frozen=True)
class Asked:
    """How to run a reproduction.

    Args:
        scale: of `SCALES`.
        directory: of all reproductions, which share their runs there.
        data_dir: where the data lie, each set by its name; from the hub if not given.
        settings: single ones over every plan, as on the command line; of transfers those with `transfer.`.
        seeds: how many; as the paper and the scale have them if not given.
        jobs: runs at a time; as the machine has cores for if not given.
    """

    scale: str = "paper"
    directory: Path = Path("runs/reproduce")
    data_dir: str | None = None
    settings: tuple[str, ...] = ()
    seeds: int | None = None
    jobs: int | None = None

    @property
    def of_runs(self) -> list[str]:
        """Settings of trainings."""
        return [setting for setting in self.settings if not setting.startswith(_TRANSFER)]

    @property
    def of_transfers(self) -> list[str]:
        """Settings of transfers, without their first word."""
        return [one.removeprefix(_TRANSFER) for one in self.settings if one.startswith(_TRANSFER)]

    def __post_init__(self) -> None:
        for name in ("seeds", "jobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"reproduce: `{name}` must be at least 1, got {value}.")
