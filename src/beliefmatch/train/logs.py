"""Where the numbers of each epoch go besides the history: a table, TensorBoard, or several such places.

A log begins with the epochs that are already done, and drops what it holds beyond them: a training that was
killed after an epoch was logged, but before it was saved, does that epoch again.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from beliefmatch.extras import needs
from beliefmatch.files import write_whole
from beliefmatch.train.history import Epoch, History

__all__ = ["CsvLog", "Log", "Logs", "TensorBoardLog"]


class Log(Protocol):
    """Told of every epoch."""

    def begin(self, history: History) -> None:
        """Start with the epochs that are done."""
        ...

    def add(self, epoch: Epoch) -> None:
        """Take in one more."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


def _numbers(epoch: Epoch) -> Iterator[tuple[str, Any]]:
    grouped = ("validation", "extra")
    yield from ((name, value) for name, value in vars(epoch).items() if name not in grouped)
    yield from epoch.extra.items()
    yield from ((f"validation_{name}", value) for name, value in epoch.validation.items())


@dataclass
class CsvLog:
    """A table with a line for each epoch; an empty field is a number that there is not."""

    path: Path

    def begin(self, history: History) -> None:
        """Write the table of the epochs that are done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [dict(_numbers(epoch)) for epoch in history.epochs]
        text = _line(list(rows[0])) if rows else ""
        write_whole(self.path, (text + "".join(_line(list(row.values())) for row in rows)).encode())

    def add(self, epoch: Epoch) -> None:
        """Append a line, below the names if it is the first."""
        row = dict(_numbers(epoch))
        with self.path.open("a", encoding="utf-8", newline="") as file:
            if file.tell() == 0:
                file.write(_line(list(row)))
            file.write(_line(list(row.values())))

    def close(self) -> None:
        """The file is closed after every line."""


def _line(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


class TensorBoardLog:
    """Curves for `tensorboard --logdir directory`."""

    def __init__(self, directory: Path) -> None:
        with needs("tensorboard", extra="train", caller="TensorBoardLog"):
            import tensorboard  # noqa: F401  # torch's own error does not name the package to install
        self.directory = directory
        self._writer: Any = None

    def begin(self, history: History) -> None:
        """Open the log; what it holds beyond the epochs that are done is hidden."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.directory), purge_step=len(history.epochs))

    def add(self, epoch: Epoch) -> None:
        """Add a point to each curve."""
        for name, value in _numbers(epoch):
            if name != "epoch" and value is not None:
                self._writer.add_scalar(name.replace("validation_", "validation/"), value, epoch.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


@dataclass(frozen=True)
class Logs:
    """Several logs as one."""

    logs: Sequence[Log]

    def begin(self, history: History) -> None:
        """Start all."""
        for log in self.logs:
            log.begin(history)

    def add(self, epoch: Epoch) -> None:
        """Tell all."""
        for log in self.logs:
            log.add(epoch)

    def close(self) -> None:
        """End all."""
        for log in self.logs:
            log.close()
