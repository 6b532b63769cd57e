"""The directory of a run: its files, and who may write there.

`config.yaml` holds the configuration, `network-0/` and so on hold checkpoints and logs, `predictions/` the
predictions for each set, `model.json` what is needed to build the predictor again. `record.json`, written
last, marks the run as finished; `diverged.json`, in its place, as diverged.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from beliefmatch._config import schema_of
from beliefmatch._errors import fail
from beliefmatch._files import LEDGER, EnvironmentFailure, InUse, atomic_write, file_names
from beliefmatch._utils import reason_of
from beliefmatch.experiments.adapt_record import ADAPT_SCHEMA, AdaptRecord
from beliefmatch.experiments.config import RunConfig, config_from, fingerprint, to_mapping
from beliefmatch.experiments.records import Diverged, RunRecord
from beliefmatch.experiments.yaml_files import as_yaml, read_yaml

__all__ = ["ADAPTED_SCHEMA", "MODEL_SCHEMA", "RunDirectory", "require_directory_of"]

Content = TypeVar("Content")
Ended = TypeVar("Ended", RunRecord, Diverged)

MODEL_SCHEMA = "beliefmatch.model/1"
ADAPTED_SCHEMA = "beliefmatch.adapted/1"
"""Schema of the model.json that `beliefmatch adapt` writes."""
COMPARISON_FILE, HEAD_FILE = "comparison.json", "head.safetensors"
Contents = Literal["run", "comparison", "adaptation", "report"]
_A = {"run": "a run", "comparison": "a comparison", "adaptation": "an adaptation", "report": "a report"}


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The configuration."""
        return self.path / "config.yaml"

    @property
    def record_file(self) -> Path:
        """The record, which exists when the run is finished."""
        return self.path / "record.json"

    @property
    def diverged_file(self) -> Path:
        """The record of a training that diverged, where that is a result."""
        return self.path / "diverged.json"

    @property
    def model_file(self) -> Path:
        """What the predictor is built from, except the weights."""
        return self.path / "model.json"

    @property
    def classes_file(self) -> Path:
        """Names of the classes, one on each line."""
        return self.path / "classes.txt"

    def network(self, member: int) -> Path:
        """Directory of the checkpoints and logs of one network."""
        return self.path / f"network-{member}"

    def predictions(self, name: str) -> Path:
        """File of the predictions for a set: "test" or "validation"."""
        return self.path / "predictions" / f"{name}.npz"

    def ood_predictions(self, names: Sequence[str]) -> dict[str, Path]:
        """Files of the predictions for OOD sets, by the names of the sets."""
        safe = file_names(names)
        return {name: self.predictions(f"ood/{file}") for name, file in zip(names, safe, strict=True)}

    @property
    def is_ended(self) -> bool:
        """Whether the training is finished or diverged."""
        return self.record_file.is_file() or self.diverged_file.is_file()

    @property
    def is_adapted(self) -> bool:
        """Whether `beliefmatch adapt` wrote this, rather than a run; a network need not be there."""
        return _schema(self.model_file) == ADAPTED_SCHEMA or self._has_adapt_record

    @property
    def _has_adapt_record(self) -> bool:
        """Of any version."""
        return _schema(self.record_file).rpartition("/")[0] == ADAPT_SCHEMA.rpartition("/")[0]

    def record(self) -> RunRecord | None:
        """The record, if the run is finished."""
        return self._ending(self.record_file, RunRecord.from_json)

    def diverged(self) -> Diverged | None:
        """The record of a training that diverged, if it did."""
        return self._ending(self.diverged_file, Diverged.from_json)

    def _ending(self, file: Path, read: Callable[[str], Ended]) -> Ended | None:
        """A record of this run; an EnvironmentFailure where it is damaged, or is of another run."""
        if not file.is_file():
            return None
        found = _undamaged(file, read)
        if self.config_file.is_file() and found.fingerprint != fingerprint(self.config()):
            raise fail(
                "run",
                f"{file} must be of the run whose config.yaml is in the same directory, but is of "
                "another. Remove it, and the same command resumes the run.",
                EnvironmentFailure,
            )
        return found

    def finished(self) -> RunRecord:
        """The record; a ValueError if the run is not finished."""
        record = self.record()
        if record is None:
            raise fail(
                "run",
                f"{self.path} must hold a finished run; it has no record.json. Resume its training "
                "by the same command.",
            )
        return record

    def ood_names(self) -> list[str]:
        """Names of the OOD sets with predictions; a ValueError if nothing finished is here."""
        if self._has_adapt_record:
            record = AdaptRecord.from_json(self.record_file.read_text("utf-8"))
            return [one.name for one in record.scored[0].ood]
        return [one.name for one in self.finished().ood]

    def config(self) -> RunConfig:
        """The configuration; a ValueError where there is no run."""
        if not self.config_file.is_file():
            raise fail("run", f"{self.path} must be the directory of a run, which has a config.yaml.")
        try:
            return config_from(read_yaml(self.config_file))
        except EnvironmentFailure:
            raise
        except (ValueError, TypeError) as error:
            raise _damaged(self.config_file, error) from error

    def check(self, *configs: RunConfig) -> None:
        """Refuse a directory that holds the run of none of these configurations."""
        if self.config_file.is_file() and fingerprint(self.config()) not in map(fingerprint, configs):
            raise fail(
                "run",
                f"`out` must be new, or hold a run of the same configuration; {self.path} has another, "
                "see its config.yaml. Choose another directory, or remove this one.",
                EnvironmentFailure,
            )

    def begin(self, config: RunConfig) -> None:
        """Write the configuration."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.check(config)
        atomic_write(self.config_file, as_yaml(to_mapping(config)).encode())

    def write_model(self, facts: Mapping[str, Any]) -> None:
        """Write what the predictor is built from."""
        content = {"schema": MODEL_SCHEMA, **facts}
        atomic_write(self.model_file, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())

    def read_model(self) -> dict[str, Any]:
        """What `write_model` wrote."""
        if not self.model_file.is_file():
            remedy = (
                "Remove its directory and train it again"
                if self.record_file.is_file()
                else "Train it first, or resume its training by the same command"
            )
            raise fail("run", f"{self.path} must hold a finished run; it has no model.json. {remedy}.")
        content = _undamaged(self.model_file, json.loads)
        if not isinstance(content, dict) or content.get("schema") != MODEL_SCHEMA:
            raise fail("run", f"{self.model_file} must be of {MODEL_SCHEMA!r}.")
        return content

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else train here inside the block; a crash frees the lock."""
        from filelock import FileLock, Timeout

        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", blocking=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise fail(
                "run",
                f"`out` must be free, but {self.path} is in use by another process. "
                "Wait until it has ended, and run the same command again.",
                InUse,
            ) from error
        try:
            yield
        finally:
            lock.release()


def require_directory_of(kind: Contents, directory: Path, *, caller: str) -> None:
    """Refuse a directory that holds what another command wrote: files of the same name would be lost."""
    try:
        found = _contents(directory)
    except OSError:  # a name that no file system takes; whoever makes the directory says so
        return
    if found is not None and found != kind:
        got = f"{directory}, which holds {_A[found]}; choose another"
        raise fail(caller, f"`out` must be new, or the directory of {_A[kind]}, got {got}.")


def _contents(directory: Path) -> Contents | None:
    """What a command wrote into a directory; None if that is nothing."""
    home = RunDirectory(directory)
    if home.is_adapted or (directory / HEAD_FILE).is_file():  # whose record may be damaged
        return "adaptation"
    if (directory / COMPARISON_FILE).is_file():
        return "comparison"
    if home.config_file.is_file():
        return "run"
    return "report" if (directory / LEDGER).is_file() else None


def _undamaged(file: Path, read: Callable[[str], Content]) -> Content:
    try:
        return read(file.read_text("utf-8"))
    except ValueError as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> EnvironmentFailure:
    return fail(
        "run",
        f"{file} is damaged ({reason_of(error)}). "
        "Remove the run's directory, and the same command trains it again.",
        EnvironmentFailure,
    )


def _schema(file: Path) -> str:
    """The schema that a JSON file names; empty if it cannot be read or names none."""
    try:
        return schema_of(file.read_bytes())
    except OSError:
        return ""
