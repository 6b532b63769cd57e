"""The history of a training: progress after a step, numbers of each epoch, and logs that receive them."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from msgspec import convert, to_builtins

from beliefmatch._environment import needs
from beliefmatch._files import atomic_write

__all__ = ["CsvLog", "Epoch", "EpochSums", "History", "Log", "Logs", "Progress", "TensorBoardLog"]


class Progress(NamedTuple):
    """Progress after a step; `epoch` and `step` count those done, `loss` is this epoch's mean."""

    epoch: int
    epochs: int
    step: int
    steps: int
    images_per_second: float
    seconds_left: float
    loss: float


@dataclass(frozen=True)
class Epoch:
    """Numbers of one epoch, counted from 0.

    `loss` is the mean of the minimised sum and `gradient_norm` that of the norm before clipping, both over
    the steps that were not skipped. `rate` is the learning rate of the last step. `seconds`, and
    `cpu_seconds`, the processor time of the main process and its threads, do not include validation and
    checkpoints. `aux` has the mean of the unweighted auxiliary loss by its name.
    """

    epoch: int
    loss: float | None
    rate: float
    gradient_norm: float | None
    seconds: float
    images_per_second: float
    skipped: int
    validation: Mapping[str, float | None] = field(default_factory=dict)
    aux: Mapping[str, float | None] = field(default_factory=dict)
    cpu_seconds: float | None = None

    def numbers(self) -> Iterator[tuple[str, Any]]:
        """Name and value of each number: a row of a log."""
        grouped = ("validation", "aux", "cpu_seconds")  # the last is for the costs alone
        yield from ((name, value) for name, value in vars(self).items() if name not in grouped)
        yield from self.aux.items()
        yield from ((f"validation_{name}", value) for name, value in self.validation.items())


@dataclass(frozen=True)
class History:
    """The epochs of a training."""

    epochs: list[Epoch] = field(default_factory=list)

    def curve(self, name: str) -> list[Any]:
        """One number of each epoch: a field of `Epoch`, or an auxiliary loss or validation number by name."""
        if name in Epoch.__dataclass_fields__:
            return [getattr(epoch, name) for epoch in self.epochs]
        return [epoch.aux[name] if name in epoch.aux else epoch.validation[name] for epoch in self.epochs]

    @property
    def seconds(self) -> float:
        """Seconds of training over all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def cpu_seconds(self) -> float | None:
        """Processor time of training over all epochs; None if an epoch was trained before it was measured."""
        own = [epoch.cpu_seconds for epoch in self.epochs]
        return None if None in own else sum(seconds for seconds in own if seconds is not None)

    @property
    def skipped(self) -> int:
        """Number of steps that were skipped because they were not finite."""
        return sum(epoch.skipped for epoch in self.epochs)

    def to_json(self) -> list[dict[str, Any]]:
        """The epochs as JSON values."""
        return to_builtins(self.epochs)

    @classmethod
    def from_json(cls, epochs: list[dict[str, Any]]) -> "History":
        """The history that `to_json` described."""
        return cls(convert(epochs, list[Epoch]))


@dataclass
class EpochSums:
    """Sums over the steps of the running epoch."""

    loss: float = 0.0
    """Sum over the images of the steps that were taken."""
    images: int = 0
    norm: float = 0.0
    """Sum over the steps that were taken."""
    taken: int = 0
    skipped: int = 0
    seen: int = 0
    """Images, including those of skipped steps."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    aux: float = 0.0
    """Sum over the steps that computed an auxiliary loss."""
    aux_taken: int = 0

    def add(self, loss: float, norm: float, images: int, aux: float | None) -> None:
        """Add a step that was taken, with its auxiliary loss if it computed one."""
        self.loss += loss * images
        self.images += images
        self.norm += norm
        self.taken += 1
        if aux is not None:
            self.aux += aux
            self.aux_taken += 1

    @property
    def mean_loss(self) -> float | None:
        """Mean over the steps that were taken, if any."""
        return self.loss / self.images if self.images else None

    def epoch(
        self, epoch: int, *, rate: float, validation: Mapping[str, float | None], aux_name: str | None
    ) -> Epoch:
        """The numbers of the finished epoch."""
        mean_aux = self.aux / self.aux_taken if self.aux_taken else None
        return Epoch(
            epoch=epoch,
            loss=self.mean_loss,
            rate=rate,
            gradient_norm=self.norm / self.taken if self.taken else None,
            seconds=self.seconds,
            images_per_second=self.seen / self.seconds if self.seconds else 0.0,
            skipped=self.skipped,
            validation=dict(validation),
            aux={} if aux_name is None else {aux_name: mean_aux},
            cpu_seconds=self.cpu_seconds,
        )


class Log(Protocol):
    """Receives every epoch of a training."""

    def begin(self, history: History) -> None:
        """Start with the epochs that are already done."""
        ...

    def add(self, epoch: Epoch) -> None:
        """Add an epoch."""
        ...

    def close(self) -> None:
        """Write what is left and close."""
        ...


@dataclass
class CsvLog:
    """A CSV file with a line for each epoch; a missing number is an empty field."""

    path: Path

    def begin(self, history: History) -> None:
        """Write the table of the epochs that are already done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [dict(epoch.numbers()) for epoch in history.epochs]
        text = _csv_line(list(rows[0])) if rows else ""
        atomic_write(self.path, (text + "".join(_csv_line(list(row.values())) for row in rows)).encode())

    def add(self, epoch: Epoch) -> None:
        """Append a line, after the header if it is the first."""
        row = dict(epoch.numbers())
        with self.path.open("a", encoding="utf-8", newline="") as file:
            if file.tell() == 0:
                file.write(_csv_line(list(row)))
            file.write(_csv_line(list(row.values())))

    def close(self) -> None:
        """Do nothing: the file is closed after every line."""


def _csv_line(values: list[Any]) -> str:
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
        """Open the log; points after the epochs that are already done are hidden."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.directory), purge_step=len(history.epochs))

    def add(self, epoch: Epoch) -> None:
        """Add a point to each curve."""
        for name, value in epoch.numbers():
            if name != "epoch" and value is not None:
                self._writer.add_scalar(name.replace("validation_", "validation/"), value, epoch.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and close."""
        if self._writer is not None:
            self._writer.close()


@dataclass(frozen=True)
class Logs:
    """Several logs as one."""

    logs: Sequence[Log]

    def begin(self, history: History) -> None:
        """Begin all logs."""
        for log in self.logs:
            log.begin(history)

    def add(self, epoch: Epoch) -> None:
        """Add an epoch to all logs."""
        for log in self.logs:
            log.add(epoch)

    def close(self) -> None:
        """Close all logs."""
        for log in self.logs:
            log.close()
