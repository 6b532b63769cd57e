"""Trainings that are killed, interrupted, out of disk or in the wrong directory."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from beliefmatch.train.checkpoint import Checkpointing, final_weights
from beliefmatch.train.config import TrainConfig
from beliefmatch.train.history import CsvLog, Epoch, History, Logs, TensorBoardLog
from beliefmatch.train.interrupt import Interrupted, catch_signals
from small_training import CONFIG, Examples, digest, engine, normalised_network, plain_network, train

HERE = Path(__file__).parents[1]


class StopError(Exception):
    pass


def stopping_at(step):
    def stop(progress):
        if progress.step == step:
            raise StopError

    return stop


def test_killed_at_any_moment_the_weights_are_the_same_to_the_bit(tmp_path):
    script = [sys.executable, str(HERE / "killed_training.py"), str(tmp_path), "32", "bf16"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        _, kills, alone, killed = line.split()
        assert alone == killed
        assert int(kills) >= 3
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_obeyed_after_the_step_with_a_checkpoint(tmp_path, number):
    def interrupt(progress):
        if progress.step == 7:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    checkpointing = Checkpointing(tmp_path, every_seconds=None)
    with pytest.raises(Interrupted, match=r"after step 8 of 18, saved in .*: run the same command again"):
        train(normalised_network(), checkpointing=checkpointing, on_progress=interrupt)
    assert signal.getsignal(number) is before
    assert json.loads((tmp_path / "step-000000008.json").read_text())["facts"]["position"]["step"] == 8

    resumed, whole = normalised_network(seed=99), normalised_network()
    train(resumed, checkpointing=checkpointing)
    train(whole)
    assert digest(resumed) == digest(whole)


def test_a_second_interrupt_ends_at_once():
    with catch_signals(True) as request:
        signal.raise_signal(signal.SIGINT)
        assert request.received
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_without_a_directory_or_in_another_thread_signals_stay_as_they_are():
    before = signal.getsignal(signal.SIGINT)
    with catch_signals(False):
        assert signal.getsignal(signal.SIGINT) is before
    caught = []

    def listen():
        with catch_signals(True) as request:
            caught.append(request.received)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert caught == [False]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_full_disk_ends_the_training_and_the_checkpoint_before_serves(tmp_path, monkeypatch):
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
    resumed, whole = normalised_network(seed=99), normalised_network()
    train(resumed, checkpointing=checkpointing)
    train(whole)
    assert digest(resumed) == digest(whole)


def test_a_truncated_checkpoint_gives_way_to_the_one_before(tmp_path):
    checkpointing = Checkpointing(tmp_path, every_seconds=0)
    with pytest.raises(StopError):
        train(normalised_network(), checkpointing=checkpointing, on_progress=stopping_at(9))
    last = max(tmp_path.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:100])
    resumed, whole = normalised_network(seed=99), normalised_network()
    with pytest.warns(UserWarning, match="is not used"):
        train(resumed, checkpointing=checkpointing)
    train(whole)
    assert digest(resumed) == digest(whole)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"config": TrainConfig(epochs=4, batch_size=8, learning_rate=0.1, ema=0.9)},
            "config.epochs was 3 and is now 4",
        ),
        ({"seed": 1}, "seed was 0 and is now 1"),
        ({"source": Examples(46)}, "examples was 45 and is now 46"),
        ({"network": plain_network()}, "network was"),
        ({"method": "softmax"}, "method was 'belief_matching' and is now 'softmax'"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, change, said):
    def checkpointing(method):
        return Checkpointing(tmp_path, every_seconds=0, configuration={"method": method})

    with pytest.raises(StopError):
        train(
            normalised_network(), checkpointing=checkpointing("belief_matching"), on_progress=stopping_at(3)
        )
    network = change.pop("network", None) or normalised_network()
    with pytest.raises(ValueError, match=rf"`directory`.*{said}"):
        train(network, checkpointing=checkpointing(change.pop("method", "belief_matching")), **change)


def test_going_on_with_other_numbers_is_allowed_and_said(tmp_path):
    checkpointing = Checkpointing(tmp_path, every_seconds=0)
    with pytest.raises(StopError):
        train(normalised_network(), checkpointing=checkpointing, on_progress=stopping_at(3))
    with pytest.warns(UserWarning, match=r"not bit for bit: precision was '32-true' and is now 'bf16-mixed'"):
        history = train(normalised_network(), on=engine("bf16"), checkpointing=checkpointing)
    assert len(history.epochs) == 3


def test_a_finished_training_leaves_its_weights_and_is_not_done_again(tmp_path):
    assert final_weights(tmp_path) is None
    network = normalised_network()
    history = train(network, checkpointing=Checkpointing(tmp_path, every_seconds=None, every_epochs=2))
    assert [path.name for path in sorted(tmp_path.glob("*.json"))] == [
        "step-000000012.json",
        "step-000000019.json",
    ]
    left = final_weights(tmp_path)
    assert left is not None and all(map(bool, (left[k].equal(v) for k, v in network.state_dict().items())))

    def never(progress):
        raise AssertionError("trained again")

    again = normalised_network(seed=99)
    assert train(again, checkpointing=Checkpointing(tmp_path), on_progress=never) == history
    assert digest(again) == digest(network)
    assert History.from_json(json.loads(json.dumps(history.to_json()))) == history


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_log_has_one_line_an_epoch_whenever_it_was_killed(tmp_path):
    log, checkpointing = (
        CsvLog(tmp_path / "log" / "log.csv"),
        Checkpointing(tmp_path, every_seconds=None, every_epochs=2),
    )
    validate = {"validate": lambda network: {"nll": 0.25}}
    with pytest.raises(StopError):  # in the third epoch, when the checkpoint has two
        train(
            normalised_network(),
            checkpointing=checkpointing,
            log=log,
            on_progress=stopping_at(18),
            **validate,
        )
    log.add(Epoch(2, None, 0.1, None, 1.0, 2.0, 3, {"nll": None}))  # as if it had been logged, but not saved
    history = train(normalised_network(), checkpointing=checkpointing, log=log, **validate)
    rows = read(log.path)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["loss"]) for row in rows] == history.curve("loss")
    assert {row["validation_nll"] for row in rows} == {"0.25"}


def test_a_number_that_there_is_not_is_an_empty_field(tmp_path):
    log = CsvLog(tmp_path / "log.csv")
    log.begin(History())
    log.add(Epoch(0, None, 0.1, None, 1.0, 2.0, 3))
    assert read(log.path) == [
        {"epoch": "0", "loss": "", "rate": "0.1", "gradient_norm": "", "seconds": "1.0"}
        | {"images_per_second": "2.0", "skipped": "3"}
    ]


def test_tensorboard_holds_the_curves(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = Logs([TensorBoardLog(tmp_path / "curves"), CsvLog(tmp_path / "log.csv")])
    history = train(normalised_network(), config=CONFIG, log=logs, validate=lambda network: {"nll": 0.25})
    logs.close()
    events = EventAccumulator(str(tmp_path / "curves"))
    events.Reload()
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == [0, 1, 2]
    assert [event.value for event in losses] == pytest.approx(history.curve("loss"))
    assert [event.value for event in events.Scalars("validation/nll")] == [0.25] * 3
    assert len(read(tmp_path / "log.csv")) == 3
