"""How a reproduction is asked for; read without torch."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ReproduceConfig", "is_of_transfers"]

_TRANSFER = "transfer."
MOST_SEEDS, MOST_JOBS = 1000, 1024


def is_of_transfers(setting: str) -> bool:
    """Whether a single setting is one of transfers, rather than of trainings."""
    return setting.startswith(_TRANSFER)


@dataclass(frozen=True)
class ReproduceConfig:
    """How to run a reproduction.

    Args:
        scale: of `SCALES`.
        directory: of all reproductions, which share their runs there.
        data_dir: where the data lie, each set by its name; from the hub if not given.
        settings: single ones over every config, as on the command line; of transfers those with `transfer.`.
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
        return [setting for setting in self.settings if not is_of_transfers(setting)]

    @property
    def of_transfers(self) -> list[str]:
        """Settings of transfers, without their first word."""
        return [one.removeprefix(_TRANSFER) for one in self.settings if is_of_transfers(one)]

    def __post_init__(self) -> None:
        for name, most in (("seeds", MOST_SEEDS), ("jobs", MOST_JOBS)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"reproduce: `{name}` must be from 1 to {most:,}, got {value}.")
        if self.data_dir is not None and not self.data_dir.strip():
            raise ValueError("reproduce: `data_dir` must be a directory, got an empty name.")
