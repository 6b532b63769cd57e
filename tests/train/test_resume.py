"""Trainings that are killed, interrupted, out of disk space or in another directory, and their logs."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from beliefmatch.train import AuxLoss, Checkpointing, CsvLog, Epoch, History, Interrupted, TensorBoardLog
from beliefmatch.train.checkpoint import final_weights
from beliefmatch.train.config import TrainConfig
from beliefmatch.train.history import Logs
from beliefmatch.train.interrupt import catch_signals
from small_training import (
    CONFIG,
    Examples,
    agreement,
    digest,
    engine,
    normalised_network,
    plain_network,
    train,
)


class StopError(Exception):
    pass


def stopped_at(step, checkpointing, network=None, **options):
    """Train until an exception after a step, with the previous step's checkpoint on disk."""

    def stop(progress):
        if progress.step == step:
            raise StopError

    with pytest.raises(StopError):
        train(network or normalised_network(), checkpointing=checkpointing, on_progress=stop, **options)


def resumed_as_whole(checkpointing, options=dict):
    """Resume; the weights must be those of an undisturbed training, bit for bit."""
    resumed, whole = normalised_network(seed=99), normalised_network()
    history = train(resumed, checkpointing=checkpointing, **options())
    expected = train(whole, **options())  # with an engine of its own: that of float16 has a loss scale
    assert digest(resumed) == digest(whole)
    for name in ("loss", "gradient_norm", "rate", "skipped"):
        assert history.curve(name) == expected.curve(name)
    return history, expected, digest(whole)


@pytest.mark.parametrize(
    ("precision", "step", "kind"),
    [
        ("32", 2, "plain"),
        ("32", 6, "plain"),  # the last step of an epoch
        ("bf16", 9, "plain"),
        ("16", 15, "plain"),
        ("32", 15, "aux"),
        ("bf16", 2, "aux"),
        ("16", 6, "aux"),
    ],
)
def test_a_resumed_training_ends_the_same(tmp_path, precision, step, kind):
    def options():
        common = {"on": engine(precision), "validate": lambda network: {"bits": int(digest(network)[:8], 16)}}
        if kind == "plain":
            return common
        aux = AuxLoss("size", Examples(31, seed=8), agreement, lambda progress: 0.5, views=2, batch_size=5)
        return {**common, "aux": aux, "epoch_examples": 45, "source": Examples(7)}

    checkpointing = Checkpointing(tmp_path, every_seconds=0)
    stopped_at(step, checkpointing, **options())
    history, expected, weights = resumed_as_whole(checkpointing, options)
    for name in ("bits", "size") if kind == "aux" else ("bits",):
        assert history.curve(name) == expected.curve(name)
    again = normalised_network(seed=98)
    assert train(again, checkpointing=checkpointing, **options()) == history
    assert digest(again) == weights


def test_a_training_that_is_killed_at_any_moment_has_the_same_weights(tmp_path):
    script = Path(__file__).with_name("killed_training.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    kills, alone, killed = done.stdout.split()
    assert alone == killed
    assert int(kills) >= 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_training_after_the_step_with_a_checkpoint(tmp_path, number):
    def interrupt(progress):
        if progress.step == 7:
            os.kill(os.getpid(), number)

    before, checkpointing = signal.getsignal(number), Checkpointing(tmp_path, every_seconds=None)
    with pytest.raises(Interrupted, match=r"after step 8 of 18, saved in .*; the same call resumes"):
        train(normalised_network(), checkpointing=checkpointing, on_progress=interrupt)
    assert signal.getsignal(number) is before
    facts = json.loads((tmp_path / "step-000000008.json").read_text())["facts"]
    assert facts["position"]["step"] == 8 and facts["sums"]["seen"] == 16
    resumed_as_whole(checkpointing)


def test_a_second_interrupt_ends_at_once_and_only_the_main_thread_catches_signals():
    before, received = signal.getsignal(signal.SIGINT), []
    with catch_signals(True) as request:
        signal.raise_signal(signal.SIGINT)
        assert request.received
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with catch_signals(False):
        assert signal.getsignal(signal.SIGINT) is before

    def catch():
        with catch_signals(True) as request:
            received.append(request.received)

    thread = threading.Thread(target=catch)
    thread.start()
    thread.join()
    assert received == [False]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_full_disk_ends_the_training_and_the_previous_checkpoint_is_resumed(tmp_path, monkeypatch):
    real, writes = os.replace, []

    def full(*arguments):
        writes.append(arguments)
        if len(writes) > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    checkpointing = Checkpointing(tmp_path, every_seconds=0)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"No space left.*the previous one is complete") as raised:
        train(normalised_network(), checkpointing=checkpointing)
    assert raised.value.errno == errno.ENOSPC
    monkeypatch.setattr(os, "replace", real)
    resumed_as_whole(checkpointing)


def test_a_disk_that_is_full_from_the_start_leaves_nothing_to_resume(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left") as raised:
        train(normalised_network(), checkpointing=Checkpointing(tmp_path, every_seconds=0))
    assert raised.value.errno == errno.ENOSPC
    assert "there is none" in str(raised.value) and "complete" not in str(raised.value)


def test_the_previous_checkpoint_replaces_a_truncated_one(tmp_path):
    checkpointing = Checkpointing(tmp_path, every_seconds=0)
    stopped_at(9, checkpointing)
    last = max(tmp_path.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:100])
    with pytest.warns(UserWarning, match="is not used"):
        resumed_as_whole(checkpointing)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"config": TrainConfig(epochs=4, batch_size=8, learning_rate=0.1, ema=0.9)}, "config.epochs was 3"),
        ({"seed": 1}, "seed was 0 and is now 1"),
        ({"source": Examples(46)}, "examples was 45 and is now 46"),
        ({"network": plain_network()}, "network was"),
        ({"method": "softmax"}, "method was 'belief_matching' and is now 'softmax'"),
        ({"epoch_examples": 46}, "epoch_examples was None and is now 46"),
        (
            {"aux": AuxLoss("size", Examples(5), agreement, lambda progress: 0.5, views=2)},
            "aux_examples was None and is now 5",
        ),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, change, difference):
    def checkpointing(method="belief_matching"):
        return Checkpointing(tmp_path, every_seconds=0, configuration={"method": method})

    stopped_at(3, checkpointing())
    options = {"checkpointing": checkpointing(change.get("method", "belief_matching")), **change}
    network = options.pop("network", None) or normalised_network()
    options.pop("method", None)
    with pytest.raises(ValueError, match=f"`directory`.*{difference}"):
        train(network, **options)


def test_resuming_in_another_precision_is_allowed_with_a_warning(tmp_path):
    checkpointing = Checkpointing(tmp_path, every_seconds=0)
    stopped_at(3, checkpointing)
    with pytest.warns(UserWarning, match="precision was '32-true' and is now 'bf16-mixed'"):
        history = train(normalised_network(), on=engine("bf16"), checkpointing=checkpointing)
    assert len(history.epochs) == 3


def test_a_checkpoint_with_the_layout_of_earlier_versions_is_resumed_without_a_warning(tmp_path):
    """They stated "channels_last" for narrow networks too."""
    checkpointing = Checkpointing(tmp_path, every_seconds=0)
    stopped_at(3, checkpointing, network=normalised_network(width=8))
    for path in tmp_path.glob("*.json"):
        content = json.loads(path.read_text())
        assert content["facts"]["engine"]["layout"] == "contiguous"
        content["facts"]["engine"]["layout"] = "channels_last"
        path.write_text(json.dumps(content))
    resumed, whole = normalised_network(width=8), normalised_network(width=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(resumed, checkpointing=checkpointing)
    train(whole)
    assert digest(resumed) == digest(whole)


def test_a_finished_training_has_its_weights_and_is_not_repeated(tmp_path):
    assert final_weights(tmp_path) is None
    network = normalised_network()
    history = train(network, checkpointing=Checkpointing(tmp_path, every_seconds=None, every_epochs=2))
    names = [path.name for path in sorted(tmp_path.glob("*.json"))]
    assert names == ["step-000000012.json", "step-000000019.json"]
    weights = final_weights(tmp_path)
    assert weights is not None and all(
        weights[name].equal(value) for name, value in network.state_dict().items()
    )

    def never(progress):
        raise AssertionError("trained again")

    again = normalised_network(seed=99)
    assert train(again, checkpointing=Checkpointing(tmp_path), on_progress=never) == history
    assert digest(again) == digest(network)
    assert History.from_json(json.loads(json.dumps(history.to_json()))) == history


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_log_has_one_line_for_each_epoch_after_a_kill(tmp_path):
    log = CsvLog(tmp_path / "log" / "log.csv")
    checkpointing = Checkpointing(tmp_path, every_seconds=None, every_epochs=2)
    options = {"log": log, "validate": lambda network: {"nll": 0.25}}
    stopped_at(18, checkpointing, **options)  # in the third epoch; the checkpoint has two
    log.add(Epoch(2, None, 0.1, None, 1.0, 2.0, 3, {"nll": None}))  # logged, but not in the checkpoint
    expected = {"epoch": "2", "loss": "", "rate": "0.1", "gradient_norm": "", "seconds": "1.0"}
    assert rows_of(log.path)[-1] == expected | {
        "images_per_second": "2.0",
        "skipped": "3",
        "validation_nll": "",
    }
    history = train(normalised_network(), checkpointing=checkpointing, **options)
    rows = rows_of(log.path)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["loss"]) for row in rows] == history.curve("loss")
    assert {row["validation_nll"] for row in rows} == {"0.25"}


class RecordedLog:
    """The names of the methods that were called."""

    def __init__(self):
        self.calls = []

    def begin(self, history):
        self.calls.append("begin")

    def add(self, epoch):
        self.calls.append("add")

    def close(self):
        self.calls.append("close")


def test_a_log_is_closed_after_a_training_and_after_an_error():
    log = RecordedLog()
    train(normalised_network(), log=log)
    assert log.calls == ["begin", "add", "add", "add", "close"]
    log = RecordedLog()
    stopped_at(7, None, log=log)  # in the second epoch
    assert log.calls == ["begin", "add", "close"]


def test_tensorboard_holds_the_curves(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = Logs([TensorBoardLog(tmp_path / "curves"), CsvLog(tmp_path / "log.csv")])
    history = train(normalised_network(), config=CONFIG, log=logs, validate=lambda network: {"nll": 0.25})
    events = EventAccumulator(str(tmp_path / "curves"))
    events.Reload()
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == [0, 1, 2]
    assert [event.value for event in losses] == pytest.approx(history.curve("loss"))
    assert [event.value for event in events.Scalars("validation/nll")] == [0.25] * 3
    assert len(rows_of(tmp_path / "log.csv")) == 3
