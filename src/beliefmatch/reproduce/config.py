"""Options of a reproduction; importable without torch."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ReproduceConfig", "is_transfer_setting"]

_TRANSFER = "transfer."
_LIMITS = {"seeds": 1000, "jobs": 1024}


def is_transfer_setting(setting: str) -> bool:
    """Whether a `--set` is a setting of transfers rather than of training runs."""
    return setting.startswith(_TRANSFER)


@dataclass(frozen=True)
class ReproduceConfig:
    """How to run a reproduction.

    Args:
        scale: One of `SCALES`.
        directory: Output directory of all reproductions, which share the runs in it.
        data_dir: Directory with the datasets, each by its name; they come from the hub if not given.
        settings: `KEY=VALUE` over every configuration; those of transfers start with `transfer.`.
        seeds: Number of seeds; the default is that of the paper or of the scale.
        jobs: Runs at a time; the default depends on the number of cores.
    """

    scale: str = "paper"
    directory: Path = Path("runs/reproduce")
    data_dir: str | None = None
    settings: tuple[str, ...] = ()
    seeds: int | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        for name, most in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"reproduce: `{name}` must be from 1 to {most:,}, got {value}.")
        if self.data_dir is not None and not self.data_dir.strip():
            raise ValueError("reproduce: `data_dir` must be a directory, got an empty name.")

    @property
    def training_settings(self) -> list[str]:
        """Settings of training runs."""
        return [setting for setting in self.settings if not is_transfer_setting(setting)]

    @property
    def transfer_settings(self) -> list[str]:
        """Settings of transfers, without their prefix."""
        return [setting.removeprefix(_TRANSFER) for setting in self.settings if is_transfer_setting(setting)]
