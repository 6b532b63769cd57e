"""Results behind URLs: brought, taken back, and found again by the same command."""

import signal
import time
from pathlib import Path

import pytest

from beliefmatch._files import EnvironmentFailure
from beliefmatch.experiments import storage
from beliefmatch.experiments.cost import gpu_share
from beliefmatch.experiments.storage import RemoteDirectory, local_output, mirrored, without_networks
from beliefmatch.experiments.train_job import TrainJob
from beliefmatch.train.checkpoint import has_checkpoints
from small_runs import comparison, digits_config, have_equal_weights, without_times


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"memory://{tmp_path.name}/grid" if request.param == "memory" else f"file://{tmp_path}/store/grid"


def content(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): path.read_text()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_files_come_back_as_they_were_taken(url, tmp_path):
    with local_output(url) as (path, name):
        assert name == url and content(path) == {}
        (path / "runs" / "a").mkdir(parents=True)
        (path / "runs" / "a" / "record.json").write_text("one")
        (path / "runs" / "a" / ".lock").touch()
    with local_output(url) as (path, _):
        assert content(path) == {"runs/a/record.json": "one"}
        (path / "runs" / "a" / "record.json").write_text("two")
        (path / "summary.md").write_text("three")
    RemoteDirectory(url).pull(tmp_path / "again")
    assert content(tmp_path / "again") == {"runs/a/record.json": "two", "summary.md": "three"}


def test_files_that_are_gone_are_removed_and_others_left_alone(url, tmp_path):
    here, other = tmp_path / "here", tmp_path / "other"
    for place, name in ((here, "step-1.json"), (other, "kept.json")):
        place.mkdir()
        (place / name).write_text(name)
    remote = RemoteDirectory(url)
    remote.push(here)
    RemoteDirectory(url).push(other)
    (here / "step-1.json").rename(here / "step-2.json")
    remote.push(here)
    RemoteDirectory(url).pull(tmp_path / "found")
    assert sorted(content(tmp_path / "found")) == ["kept.json", "step-2.json"]


def test_a_mirror_follows_its_directory_while_work_goes_on(url, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_PUSH_SECONDS", 0.05)
    with mirrored(url) as path:
        (path / "step-1.json").write_text("saved")
        deadline, seen = time.monotonic() + 10, tmp_path / "seen"
        while not (seen / "step-1.json").exists():
            assert time.monotonic() < deadline
            RemoteDirectory(url).pull(seen)
    assert content(seen) == {"step-1.json": "saved"}


def test_a_local_directory_stays_what_it_is(tmp_path):
    with local_output(f"{tmp_path}/runs") as places:
        assert places == (tmp_path / "runs", None)


def test_a_url_of_no_store_is_one_line():
    with pytest.raises(EnvironmentFailure) as raised:
        RemoteDirectory("nosuchstore://bucket/path")
    assert raised.value.argument == "out"


def test_a_grid_kept_behind_a_url_is_resumed_from_there(url, tmp_path):
    for _ in range(2):  # the second time all runs are finished
        with local_output(url) as (path, name):
            there = comparison(path, seeds=(5,), url=name).run()
            assert not list(path.rglob("*.safetensors"))  # networks stay where they are
    here = comparison(tmp_path / "here", seeds=(5,)).run()
    for one, other in zip(here.record.methods, there.record.methods, strict=True):
        assert [without_times(run) for run in one.runs] == [without_times(run) for run in other.runs]
    RemoteDirectory(url).pull(tmp_path / "all")
    assert len(list((tmp_path / "all").glob("runs/*/network-0/*.safetensors"))) >= 2
    assert not without_networks("network-0/step-000000012.json") and without_networks("network-0/log.csv")


def test_a_training_kept_behind_a_url_is_resumed_from_its_checkpoint(url, tmp_path):
    config, heard = digits_config(), list[float]()

    def interrupt(fraction, description):
        heard.append(fraction)
        if sum(one > 0.4 for one in heard) == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), local_output(url) as (path, name):
        TrainJob(config, path, url=name).run(interrupt)
    saved, stopped = tmp_path / "saved", max(heard)
    heard.clear()
    RemoteDirectory(url).pull(saved)
    assert has_checkpoints(saved) and not (saved / "record.json").exists()
    with local_output(url) as (path, name):
        there = TrainJob(config, path, url=name).run(lambda fraction, _: heard.append(fraction))
        assert TrainJob(config, path, url=name).run(lambda *_: None) == there  # finished
    assert min(heard) >= stopped > 0.4
    assert without_times(there) == without_times(TrainJob(config, tmp_path / "here").run(lambda *_: None))
    finished = tmp_path / "finished"
    RemoteDirectory(url).pull(finished)
    assert (finished / "record.json").is_file() and have_equal_weights(finished, tmp_path / "here")


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        (["engine.accelerator=cpu"], 0.0),
        ([], 0.25),
        (["model.options.width=1024", "training.batch_size=200"], 0.5),
        (["model.options.width=2048", "training.batch_size=200"], 1.0),
    ],
)
def test_small_networks_share_a_gpu(settings, share):
    assert gpu_share(digits_config("softmax", *settings)) == share
