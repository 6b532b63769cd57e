"""Features are computed once: after kills, next to other processes, on full and broken disks."""

import errno
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch._files import EnvironmentFailure
from beliefmatch.adaptation import cache as cache_module
from beliefmatch.adaptation.cache import FeatureCache, FeatureFile, Layout, default_directory
from beliefmatch.adaptation.features import extract
from beliefmatch.adaptation.stored import features_from_file
from small_features import FEATURES, ROWS, data, network

FEW = 12  # kept rows that are computed again, to see whether the network's code has changed
RECORD = Layout(FEATURES).record.itemsize
SCALE = 1.0


def features(cache, *, model=None, source=None, features_of=None, data_key=None, **options):
    """The features and how many rows went through the network."""
    model = model or network()
    before, parts = model.seen, {"head": "fc"} if data_key is None else {"head": "fc", "data": data_key}
    options = {"key_parts": parts, "batch_size": 5, **options}
    found = extract(model, features_of or model, data() if source is None else source, cache=cache, **options)
    return found, model.seen - before


def batches(rows=ROWS, size=5):
    return list(zip(*(part.split(size) for part in data(rows)), strict=True))


def interrupted(cache, after, **options):
    """An extraction that ends after so many rows."""
    model, rows = network(), []

    def features_of(inputs):
        rows.append(len(inputs))
        if sum(rows) > after:
            raise KeyboardInterrupt
        return model(inputs)

    with pytest.raises(KeyboardInterrupt):
        features(cache, model=model, features_of=features_of, **options)


def file_in(directory):
    (path,) = Path(directory).glob("*.features")
    return path


def start_of(path):
    """Offset of the first record."""
    return path.stat().st_size - ROWS * RECORD


@pytest.mark.parametrize("classes", [None, 7])
def test_the_second_time_nothing_is_computed(tmp_path, classes):
    source, news = (data()[0], data()[1] if classes is None else torch.rand(ROWS, classes)), []
    first, many = features(FeatureCache(tmp_path), source=source, on_progress=news.append)
    assert many == ROWS + 5  # the first batch also gives the width
    assert [news[0], news[-1]] == [(0, ROWS), (ROWS, ROWS)]
    assert file_in(tmp_path).stat().st_size == Layout(FEATURES, classes).planned_bytes(ROWS)
    news.clear()
    second, many = features(FeatureCache(tmp_path), source=source, on_progress=news.append)
    assert many == FEW and news == [(ROWS, ROWS)]
    assert np.array_equal(first.rows, second.rows) and isinstance(second.rows, np.memmap)
    assert torch.equal(second.targets, source[1]) and first.digest == second.digest


class Scaled(nn.Module):
    """Its features depend on a constant of this file, which is no part of any key."""

    def forward(self, inputs):
        return SCALE * inputs.flatten(1)


@pytest.mark.parametrize("streamed", [False, True])
def test_features_of_changed_code_are_computed_anew_with_a_warning(tmp_path, monkeypatch, streamed):
    source, inputs = batches() if streamed else data(), data()[0].flatten(1).numpy()
    options = {"key_parts": {"data": "mine"}, "cache": FeatureCache(tmp_path)}

    def rows():
        return extract(model := Scaled(), model, source, **options).rows

    old = rows()
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 1.01)
    with pytest.warns(UserWarning, match=r"code.* 0\.0(1|099)"):
        new = rows()
    np.testing.assert_allclose(old, inputs, rtol=1e-3)  # who has them open keeps them
    np.testing.assert_allclose(new, 1.01 * inputs, rtol=1e-3, atol=1e-6)
    assert np.array_equal(rows(), new) and len(FeatureCache(tmp_path).sets()) == 1
    with file_in(tmp_path).open("r+b", buffering=0) as raw:
        FeatureFile.opened(raw).describe(rows=None)  # as if it had been killed before the end
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 1.0)
    with pytest.warns(UserWarning, match="code"):
        assert np.array_equal(rows(), old)


def test_random_data_are_not_taken_for_changed_code(tmp_path):
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return ROWS

        def __getitem__(self, index):
            return torch.from_numpy(rng.normal(size=(2, 4, 4)).astype(np.float32)), 0

    rng, flat, cache = np.random.default_rng(0), nn.Flatten(), FeatureCache(tmp_path)
    one, two = (extract(flat, flat, Noisy(), key_parts={"data": "a"}, cache=cache) for _ in range(2))
    assert np.array_equal(one.rows, two.rows)


def test_other_weights_data_and_heads_are_other_features(tmp_path):
    cache, model = FeatureCache(tmp_path), network()
    digests = [
        features(cache)[0].digest,
        features(cache, model=network(seed=1))[0].digest,
        features(cache, source=data(seed=2))[0].digest,
        features(cache, key_parts={"head": "other"})[0].digest,
    ]
    assert len(set(digests)) == len(digests) == len(cache.sets())
    assert features(cache, model=model)[1] == FEW


def test_data_without_an_identity_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    source = batches(size=9)
    found, _ = features(FeatureCache(tmp_path / "cache"), source=source)
    again, _ = features(None, source=source)
    assert not list(tmp_path.rglob("*.features")) and not list((tmp_path / "temporary").iterdir())
    assert found.digest == again.digest != features(None, source=batches(80))[0].digest
    assert isinstance(found.rows, np.memmap) and len(found) == ROWS


def test_a_killed_extraction_goes_on_where_it_was(tmp_path):
    script = Path(__file__).parents[1] / "killed_extraction.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=True, timeout=120
    )
    kills, changed, same_targets, killed, alone = done.stdout.split()
    assert int(kills) > 0 and (changed, same_targets) == ("0", "True") and killed == alone


@pytest.mark.parametrize("streamed", [False, True])
def test_only_what_is_missing_is_computed(tmp_path, streamed):
    options = {"source": batches() if streamed else data(), "data_key": "mine"}
    cache = FeatureCache(tmp_path)
    whole, _ = features(None, **options)
    interrupted(cache, after=50, **options)  # the first batch twice: 45 rows are kept
    found, many = features(cache, **options)
    assert many == ROWS - 45 + 5 + (5 if streamed else FEW)
    assert np.array_equal(found.rows, whole.rows) and features(cache, **options)[1] <= FEW


def test_rows_in_another_order_are_refused(tmp_path):
    cache = FeatureCache(tmp_path)
    interrupted(cache, after=50, source=batches(), data_key="mine")
    for source, named in ((batches()[::-1], "targets from row 0"), (batches()[:4], "20 rows")):
        with pytest.raises(ValueError, match=f"`source`.*{named}"):
            features(cache, source=source, data_key="mine")


def changed(path, offset, content):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


DAMAGES = {
    "truncated": (lambda path: os.truncate(path, start_of(path) + 40 * RECORD + 7), 43),
    "one bit of a feature": (lambda path: changed(path, start_of(path) + 41 * RECORD, b"\x01"), 5),
    "one bit of a target": (
        lambda path: changed(path, start_of(path) + 41 * RECORD + 4 * FEATURES, b"\x09"),
        5,
    ),
    "a page of zeros": (lambda path: changed(path, start_of(path) + 10 * RECORD, bytes(7 * RECORD)), 10),
    "other rows": (lambda path: changed(path, start_of(path), np.random.default_rng(0).bytes(800)), 25),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_rows_are_named_and_computed_again(tmp_path, how):
    cache, (damage, many) = FeatureCache(tmp_path), DAMAGES[how]
    expected = np.array(features(cache)[0].rows)
    damage(file_in(tmp_path))
    with pytest.raises(ValueError, match=r"`path`.*damaged"):
        features_from_file(file_in(tmp_path))
    with pytest.warns(UserWarning, match=r"\d+ rows of .*\.features are damaged, from row \d+"):
        found, computed = features(cache)
    assert computed == many + 5 + (4 if how == "other rows" else FEW) and np.array_equal(found.rows, expected)
    assert features(cache)[1] == FEW


def described(path, **facts):
    """Write another description, with the right checksum."""
    with path.open("r+b", buffering=0) as raw:
        file = FeatureFile.opened(raw)
        file.facts |= facts
        file.describe(rows=file.facts["rows"])


HEADERS = [
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"{"),
    lambda path: path.write_bytes(path.read_bytes()[:1000]),
    lambda path: changed(path, 0, b"\xff"),
    lambda path: changed(path, 0, b"BELIEFM2"),
    lambda path: changed(path, 8, b"\xff\xff\xff\xff"),
    lambda path: changed(path, 8, b"\0\0\0\0"),
    lambda path: changed(path, 100, b"\xff\n[0"),
    lambda path: changed(path, 0, np.random.default_rng(0).bytes(5000)),
    lambda path: described(path, layout={}),
    lambda path: described(path, layout={"width": "5"}),
    lambda path: described(path, layout={"width": 5, "dtype": "object"}),
    lambda path: described(path, rows=-3),
]


@pytest.mark.filterwarnings("ignore:adapt. 83 rows")
@pytest.mark.parametrize("damage", HEADERS)
def test_broken_headers_cost_time_at_most(tmp_path, damage):
    cache = FeatureCache(tmp_path)
    expected = np.array(features(cache)[0].rows)
    damage(file_in(tmp_path))
    with pytest.raises(ValueError, match="`path`"):
        features_from_file(file_in(tmp_path))
    assert np.array_equal(features(cache)[0].rows, expected) and features(cache)[1] == FEW
    described(file_in(tmp_path), key="a" * 64)  # renamed
    assert np.array_equal(features(cache)[0].rows, expected)


def _work(directory, queue):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # one of the two warns that it waits
    found, many = features(FeatureCache(directory))
    queue.put((many, np.asarray(found.rows).tobytes()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_compute_them_once(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_work, args=(tmp_path, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    (one, rows), (other, again) = (queue.get(timeout=30) for _ in workers)
    for worker in workers:
        worker.join()
    assert rows == again and sorted((one, other)) in ([0, ROWS + 5], [FEW, ROWS + 5])


def test_the_process_that_computes_the_same_features_is_named(tmp_path):
    cache, model, calls = FeatureCache(tmp_path, wait=False), network(), []

    def features_of(inputs):
        calls.append(len(inputs))
        if len(calls) in (1, 3):
            who = "another process" if len(calls) == 1 else f"process {os.getpid()} on "
            with pytest.raises(EnvironmentFailure, match=f"`directory`.*{who}"):
                features(cache)
        return model(inputs)

    features(cache, model=model, features_of=features_of)
    assert len(calls) > 3


def test_the_least_recently_used_go_first_and_stay_readable_while_open(tmp_path):
    made = [features(FeatureCache(tmp_path), source=data(seed=seed))[0] for seed in range(3)]
    for age, one in enumerate(made):
        os.utime(FeatureCache(tmp_path).path(one.digest), (1000 + age, 1000 + age))
    features(FeatureCache(tmp_path), source=data(seed=0))  # used again
    rows = np.array(made[1].rows)
    each = FeatureCache(tmp_path).sets()[0].bytes
    cache = FeatureCache(tmp_path, size=each * 2 + Layout(FEATURES).planned_bytes(ROWS))
    new, _ = features(cache, source=data(seed=9))
    assert {kept.key for kept in cache.sets()} == {made[0].digest, made[2].digest, new.digest}
    assert np.array_equal(made[1].rows, rows)


def test_a_set_that_does_not_fit_removes_nothing(tmp_path):
    cache, model, kept = FeatureCache(tmp_path), network(), []
    features(cache, source=data(seed=7))

    def features_of(inputs):
        kept.append({one.key for one in cache.sets()})
        if len(kept) == 3:  # with this one being written, and another that could be removed
            for size in ("5kB", "12kB"):
                with pytest.raises(EnvironmentFailure, match="`size`"):
                    features(FeatureCache(tmp_path, size=size), source=data(seed=5))
        return model(inputs)

    features(cache, model=model, features_of=features_of)
    assert {one.key for one in cache.sets()} == kept[2] and len(kept[2]) == 2


def test_a_stream_of_unknown_length_is_bounded_too(tmp_path):
    cache = FeatureCache(tmp_path, size="10kB")
    with pytest.raises(EnvironmentFailure, match="`size`"):
        features(cache, source=batches(500), data_key="long")
    assert 0 < file_in(tmp_path).stat().st_size <= cache.size


def test_too_small_a_disk_is_refused_beforehand(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(EnvironmentFailure, match=r"`directory`.* 1 kB free"):
        features(FeatureCache(tmp_path))
    assert not list(tmp_path.glob("*.features"))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_disk_that_fills_up_keeps_what_is_there(tmp_path, monkeypatch, streamed):
    cache, real, calls = FeatureCache(tmp_path), cache_module._write, []
    options = {"source": batches() if streamed else data(), "data_key": "mine"}

    def full(file, offset, content):
        calls.append(offset)
        if len(calls) > 9:  # half of it is written
            real(file, offset, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, offset, content)

    with monkeypatch.context() as patched:
        patched.setattr(cache_module, "_write", full)
        with pytest.raises(EnvironmentFailure, match="No space left on device"):
            features(cache, **options)
    found, many = features(cache, **options)
    assert many == ROWS - 40 + 5 + (5 if streamed else FEW) and np.array_equal(
        found.rows, features(None, **options)[0].rows
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_directory_that_cannot_be_written_to_can_be_read(tmp_path):
    features(FeatureCache(tmp_path))
    tmp_path.chmod(0o500)
    try:
        assert features(FeatureCache(tmp_path))[1] == FEW
    finally:
        tmp_path.chmod(0o700)


def test_reading_needs_no_right_to_write(tmp_path, monkeypatch):
    features(FeatureCache(tmp_path))
    real = os.open

    def read_only(path, flags, *rest, **options):
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT) and str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "utime", lambda path: read_only(path, os.O_RDWR))
    assert features(FeatureCache(tmp_path))[1] == FEW
    with pytest.raises(EnvironmentFailure, match="`directory`"):
        features(FeatureCache(tmp_path), source=data(seed=4))


def test_a_file_of_the_cache_can_be_read_by_its_path(tmp_path):
    found, _ = features(FeatureCache(tmp_path))
    again = features_from_file(file_in(tmp_path))
    assert np.array_equal(again.rows, found.rows) and torch.equal(again.targets, found.targets)
    assert again.digest == found.digest
    assert features_from_file(file_in(tmp_path), labelled=False).targets.tolist() == [-1] * ROWS
    file_in(tmp_path).unlink()
    interrupted(FeatureCache(tmp_path), after=50)
    with pytest.raises(ValueError, match=r"`path`.*unfinished"):
        features_from_file(file_in(tmp_path))


def test_sizes_have_units_and_keys_and_directories_are_checked(tmp_path):
    sizes = {"10GB": 10**10, " 500 mb ": 5 * 10**8, "4GiB": 1 << 32, "1.5kB": 1500, "7": 7, 7: 7}
    assert {size: FeatureCache("somewhere", size=size).size for size in sizes} == sizes
    for size in ("", "-1", "many", "10 XB", "1e9", True, "nan"):
        with pytest.raises(ValueError, match="`size`"):
            FeatureCache("somewhere", size=size)
    for key in ("../" * 20 + "a" * 4, "", "A" * 64, "a" * 63, "a" * 64 + "\n"):
        with pytest.raises(ValueError, match="`key`"):
            FeatureCache(tmp_path).path(key)
    with pytest.raises(ValueError, match="`directory`"):
        FeatureCache(" ")


def test_the_usual_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert FeatureCache().directory == default_directory() == tmp_path / "beliefmatch" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert default_directory() == tmp_path / "me" / ".cache" / "beliefmatch" / "features"
