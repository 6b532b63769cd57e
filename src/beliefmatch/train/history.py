"""What a training tells of itself: on the way, after each epoch, and in the end."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from beliefmatch._environment import needs
from beliefmatch._files import atomic_write

__all__ = ["CsvLog", "Epoch", "History", "Log", "Logs", "Progress", "Sums", "TensorBoardLog"]


class Progress(NamedTuple):
    """Where a training is; `epoch` and `step` count those that are done, `loss` is this epoch's mean."""

    epoch: int
    epochs: int
    step: int
    steps: int
    images_per_second: float
    seconds_left: float
    loss: float


@dataclass(frozen=True)
class Epoch:
    """One epoch, counted from 0.

    `loss` and `gradient_norm` (before clipping) are means over its steps, without skipped ones; `rate` is
    that of its last step; `seconds` are those of training, without validation and saving. `extra` has the
    mean of a further loss by its name, before it is weighted; `loss` is the sum that is minimised.
    """

    epoch: int
    loss: float | None
    rate: float
    gradient_norm: float | None
    seconds: float
    images_per_second: float
    skipped: int
    validation: Mapping[str, float | None] = field(default_factory=dict)
    extra: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """The epochs of a training."""

    epochs: list[Epoch] = field(default_factory=list)

    def curve(self, name: str) -> list[Any]:
        """One number of each epoch: a field of `Epoch`, a further loss or a validation number by its name."""
        return [_value(epoch, name) for epoch in self.epochs]

    @property
    def seconds(self) -> float:
        """Of training, over all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def skipped(self) -> int:
        """Steps that were not finite."""
        return sum(epoch.skipped for epoch in self.epochs)

    def plain(self) -> list[dict[str, Any]]:
        """As JSON can hold it."""
        return [asdict(epoch) for epoch in self.epochs]

    @classmethod
    def of(cls, plain: list[dict[str, Any]]) -> "History":
        """The history that `plain` was made of."""
        return cls([Epoch(**epoch) for epoch in plain])


def _value(epoch: Epoch, name: str) -> Any:
    if name in Epoch.__dataclass_fields__:
        return getattr(epoch, name)
    return epoch.extra[name] if name in epoch.extra else epoch.validation[name]


@dataclass
class Sums:
    """An epoch so far."""

    loss: float = 0.0
    norm: float = 0.0
    images: int = 0
    """That the loss is a sum over."""
    taken: int = 0
    skipped: int = 0
    seen: int = 0
    """Images, of skipped steps too."""
    seconds: float = 0.0
    extra: float = 0.0
    """Of the steps that had such a loss."""
    extra_taken: int = 0

    def take(self, loss: float, norm: float, images: int, extra: float | None = None) -> None:
        """Add a step that was taken, with its further loss if it had one."""
        if extra is not None:
            self.extra += extra
            self.extra_taken += 1
        self.loss += loss * images
        self.norm += norm
        self.images += images
        self.taken += 1

    @property
    def mean_loss(self) -> float | None:
        """Of the steps that were taken, if any were."""
        return self.loss / self.images if self.images else None

    def epoch(
        self, epoch: int, rate: float, validation: Mapping[str, float | None], *, extra: str | None = None
    ) -> Epoch:
        """The epoch, when it is over, with a further loss by its name if it had one."""
        mean = self.extra / self.extra_taken if self.extra_taken else None
        return Epoch(
            epoch=epoch,
            loss=self.mean_loss,
            rate=rate,
            gradient_norm=self.norm / self.taken if self.taken else None,
            seconds=self.seconds,
            images_per_second=self.seen / self.seconds if self.seconds else 0.0,
            skipped=self.skipped,
            validation=dict(validation),
            extra={} if extra is None else {extra: mean},
        )


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
        atomic_write(self.path, (text + "".join(_line(list(row.values())) for row in rows)).encode())

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
