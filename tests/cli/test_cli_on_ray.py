"""Commands with `--on ray` give what the same commands give on this machine."""

import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from beliefmatch.cli import main
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import RunRecord
from commands import python, refused
from ray_clusters import needs_ray, own_ray, quiet
from reproduced import command, record_of, runs_of
from small_runs import without_times

pytestmark = quiet
SHORT = ["--epochs", "2", "--set", "training.warmup=[]", "--limit", "200", "--ood", "noise"]
HEAD = ["--kl-weight", "0.01", "--weight-decay", "0.01"]
on_ray = pytest.mark.usefixtures("one_node")


@pytest.fixture(scope="module")
def one_node():
    with own_ray():
        yield


def both(line: list[str], tmp_path: Path) -> list[Path]:
    """The directories of a command on this machine and on Ray."""
    places = [tmp_path / "local", tmp_path / "ray"]
    for place in places:
        assert main([*line, "--on", place.name, "--out", f"{place}"]) == 0
    return places


@pytest.mark.slow
@needs_ray
@on_ray
def test_a_searched_option_is_chosen_from_the_same_trials(tmp_path):
    here, there = both(["train", *SHORT, "--kl-weight", "auto"], tmp_path)
    one, other = (RunRecord.from_json((place / "record.json").read_text()) for place in (here, there))
    assert len(one.search) > 2 and without_times(one) == without_times(other)


@pytest.mark.slow
@needs_ray
@on_ray
def test_several_files_get_the_same_evaluations(tmp_path):
    draws, targets = np.random.default_rng(0), np.arange(60) % 4
    for name in ("a", "b", "c"):
        np.savez(tmp_path / f"{name}.npz", logits=draws.normal(size=(60, 4)), targets=targets)
        np.savez(tmp_path / f"{name}_noise.npz", logits=draws.normal(size=(30, 4)))
    files = [f"{tmp_path / name}.npz" for name in "abc"]
    noise = ",".join(f"{tmp_path / name}_noise.npz" for name in "abc")
    places = both(["evaluate", *files, "--ood", f"noise={noise}", "--resamples", "1000"], tmp_path)
    found = [sorted(place.rglob("*.json")) for place in places]
    found = [[path for path in paths if not path.name.startswith(".")] for paths in found]
    assert [path.name for path in found[0]] == [path.name for path in found[1]] and len(found[0]) >= 3
    for one, other in zip(*found, strict=True):
        records = [EvaluationRecord.from_json(path.read_text()) for path in (one, other)]
        first, second = (replace(record, created="", wall_seconds=0.0) for record in records)
        assert first == second


@pytest.mark.slow
@needs_ray
@on_ray
def test_features_of_shards_fill_the_cache_with_the_same_bytes_under_the_same_keys(tmp_path):
    run = tmp_path / "run"
    assert main(["train", *SHORT, "--method", "softmax", "--out", f"{run}"]) == 0
    caches = []
    for on in ("local", "ray"):
        cache = tmp_path / f"cache of {on}"
        line = ["adapt", "--model", f"{run}", *HEAD, "--feature-batch", "16"]
        assert main([*line, "--cache-dir", f"{cache}", "--on", on, "--out", f"{tmp_path / on}"]) == 0
        files = [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 0]
        caches.append({path.relative_to(cache): path.read_bytes() for path in files})
    assert sorted(caches[0]) == sorted(caches[1]) and len(caches[0]) > 2
    assert caches[0] == caches[1]


@pytest.mark.slow
@needs_ray
@on_ray
def test_a_reproduction_has_the_same_rows(tmp_path):
    places = [tmp_path / "local", tmp_path / "ray"]
    for place in places:
        assert main(command("figure-rotation", place, "--on", place.name)) == 0
    here, there = map(runs_of, places)
    assert here.keys() == there.keys() and len(here) > 1
    assert all(without_times(here[name]) == without_times(there[name]) for name in here)
    one, other = (record_of(place, "figure-rotation").rows for place in places)
    assert [row.values for row in one] == [row.values for row in other]


@pytest.mark.parametrize(
    "line",
    [["compare"], ["train", "--kl-weight", "auto"], ["reproduce", "figure-rotation", "--scale", "tiny"]],
)
def test_without_ray_one_line_names_the_extra(line, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    text = refused([*line, "--on", "ray", "--out", f"{tmp_path / 'out'}"], capsys)
    assert 'pip install "beliefmatch[cluster]"' in text
    assert not (tmp_path / "out").exists()


def test_ray_is_imported_only_where_it_is_asked_for():
    ran = python(
        "import sys; from beliefmatch.experiments import adapt_job, compare, evaluate, executors, train_job\n"
        "from beliefmatch.reproduce import runner; workers = executors.workers_on('local', jobs=2)\n"
        "sys.exit('ray is imported' if 'ray' in sys.modules else 0)"
    )
    assert ran.returncode == 0, ran.stderr
