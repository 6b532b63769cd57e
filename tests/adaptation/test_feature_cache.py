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
from beliefmatch.adaptation import sizes
from beliefmatch.adaptation.cache import FeatureCache, default_directory
from beliefmatch.adaptation.features import extract, features_from_directory
from beliefmatch.adaptation.keys import model_digest
from beliefmatch.adaptation.locks import exclusive
from small_features import FEATURES, ROWS, SHARD, data, network, use_small_shards

FEW = 12  # rows of a kept set that are computed again, to see whether the network's code has changed
SCALE = 1.0


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(sizes, "_SHARD_ROWS", SHARD)


def features(cache, *, model=None, source=None, features_of=None, **options):
    """The features and how many rows went through the network."""
    model = model or network()
    before = model.seen
    options = {"key_parts": {"head": "fc"}, "batch_size": 5, **options}
    found = extract(model, features_of or model, data() if source is None else source, cache=cache, **options)
    return found, model.seen - before


def batches(rows=ROWS, size=5):
    return list(zip(*(part.split(size) for part in data(rows)), strict=True))


def of(directory, pattern="rows-*.npy"):
    return sorted(path for path in Path(directory).glob(f"*/{pattern}") if path.parent.name != "locks")


def test_the_second_time_nothing_is_computed(tmp_path):
    news = []
    first, many = features(FeatureCache(tmp_path), on_progress=news.append)
    assert many == ROWS + 5  # the first batch also gives the width
    assert [news[0].rows, news[0].total, news[0].found] == [0, ROWS, 0]
    assert news[-1].rows == ROWS and news[0].planned_bytes == news[-1].planned_bytes
    second, many = features(FeatureCache(tmp_path), on_progress=news.append)
    assert many == FEW and news[-1].found == ROWS
    assert np.array_equal(np.asarray(first.rows), np.asarray(second.rows)) and first.digest == second.digest


class Scaled(nn.Module):
    """Its features depend on a constant of this file, which is no part of any key."""

    def forward(self, inputs):
        return SCALE * inputs.flatten(1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("streamed", [False, True])
def test_features_of_changed_code_are_computed_anew_with_a_warning(tmp_path, monkeypatch, streamed, dtype):
    source, inputs = batches() if streamed else data(), data()[0].flatten(1).numpy()
    options = {"key_parts": {}, "cache": FeatureCache(tmp_path), "data_key": "mine", "dtype": dtype}

    def rows():
        return np.asarray(extract(model := Scaled(), model, source, **options).rows)

    old = rows()
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 1.01)
    with pytest.warns(UserWarning, match=r"extract: .*code.* 0\.0(1|099)"):
        new = rows()
    np.testing.assert_allclose(old, inputs, rtol=1e-3)
    np.testing.assert_allclose(new, 1.01 * inputs, rtol=1e-3, atol=1e-6)
    assert np.array_equal(rows(), new) and len(FeatureCache(tmp_path).sets()) == 1


def test_random_data_are_not_taken_for_changed_code(tmp_path):
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return ROWS

        def __getitem__(self, index):
            return torch.from_numpy(rng.normal(size=(2, 4, 4)).astype(np.float32)), 0

    rng, flat, cache = np.random.default_rng(0), nn.Flatten(), FeatureCache(tmp_path)
    one, two = (extract(flat, flat, Noisy(), key_parts={}, cache=cache, data_key="a") for _ in range(2))
    assert np.array_equal(np.asarray(one.rows), np.asarray(two.rows))


@pytest.mark.parametrize("classes", [None, 7])
def test_the_size_announced_is_enough_and_not_much_too_large(tmp_path, classes):
    targets = data()[1] if classes is None else torch.rand(ROWS, classes)
    news = []
    features(FeatureCache(tmp_path), source=(data()[0], targets), on_progress=news.append)
    (kept,) = FeatureCache(tmp_path).sets()
    shards = -(-ROWS // SHARD)
    assert kept.bytes <= news[0].planned_bytes <= kept.bytes + shards * 1024 + 16384


def test_other_weights_data_heads_and_types_are_other_features(tmp_path):
    cache, model = FeatureCache(tmp_path), network()
    digests = [
        features(cache)[0].digest,
        features(cache, model=network(seed=1))[0].digest,
        features(cache, source=data(seed=2))[0].digest,
        features(cache, key_parts={"head": "other"})[0].digest,
        features(cache, dtype="float16")[0].digest,
    ]
    assert len(set(digests)) == len(digests) == len(cache.sets())
    assert features(cache, model=model)[1] == FEW


def test_data_without_an_identity_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    source = batches(size=9)
    found, _ = features(FeatureCache(tmp_path / "cache"), source=source)
    assert not of(tmp_path / "cache") and found.digest == features(None, source=source)[0].digest
    assert list((tmp_path / "temporary").rglob("rows-*.npy"))
    del found
    assert not list((tmp_path / "temporary").rglob("rows-*.npy"))


def test_a_killed_extraction_goes_on_where_it_was(tmp_path):
    script = Path(__file__).parents[1] / "killed_extraction.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=True, timeout=120
    )
    kills, changed, left, same_targets, killed, alone = done.stdout.split()
    assert int(kills) > 0 and (changed, left, same_targets) == ("0", "0", "True") and killed == alone


def interrupted(cache, after, **options):
    """An extraction that ends after so many rows."""
    model, batches = network(), []

    def features_of(inputs):
        batches.append(len(inputs))
        if sum(batches) > after:
            raise KeyboardInterrupt
        return model(inputs)

    with pytest.raises(KeyboardInterrupt):
        features(cache, model=model, features_of=features_of, **options)


@pytest.mark.parametrize("streamed", [False, True])
def test_only_what_is_missing_is_computed(tmp_path, streamed):
    options = {"source": batches() if streamed else data(), "data_key": "mine"}
    cache = FeatureCache(tmp_path)
    whole, _ = features(None, **options)
    interrupted(cache, after=50, **options)
    before = {path: path.stat().st_ino for path in of(tmp_path)}
    assert len(before) == 2
    found, many = features(cache, **options)
    assert all(path.stat().st_ino == inode for path, inode in before.items())
    assert many == ROWS - (30 if streamed else 32) + 5  # row 30 is in a batch with 32
    assert np.array_equal(np.asarray(found.rows), np.asarray(whole.rows))


def test_rows_in_another_order_are_refused(tmp_path):
    cache = FeatureCache(tmp_path)
    interrupted(cache, after=50, source=batches(), data_key="mine")
    for source, named in ((batches()[::-1], "targets at row"), (batches()[:4], "20 rows")):
        with pytest.raises(ValueError, match=named):
            features(cache, source=source, data_key="mine")


def damaged(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "one bit":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        path.unlink()


@pytest.mark.parametrize("name", ["rows-000001.npy", "targets-000001.npy"])
@pytest.mark.parametrize("how", ["truncated", "one bit", "missing"])
def test_a_broken_shard_is_named_and_computed_again(tmp_path, name, how):
    cache = FeatureCache(tmp_path)
    first, _ = features(cache)
    expected = np.asarray(first.rows)
    damaged(of(tmp_path, name)[0], how)
    with pytest.raises(ValueError, match="`features`"):
        features_from_directory(tmp_path / first.digest)
    with pytest.warns(UserWarning, match="rows-000001.npy"):
        found, many = features(cache)
    assert many == SHARD + 5 and np.array_equal(np.asarray(found.rows), expected)
    assert features(cache)[1] == FEW


@pytest.mark.parametrize("name", ["complete.json", "facts.json", "manifest.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"format": "other/9"}', b"\xff\n[0, 1]\n"])
def test_broken_descriptions_cost_time_at_most(tmp_path, name, content):
    cache = FeatureCache(tmp_path)
    first, _ = features(cache)
    expected = np.asarray(first.rows)
    of(tmp_path, name)[0].write_bytes(content)
    found, _ = features(cache)
    assert np.array_equal(np.asarray(found.rows), expected) and features(cache)[1] == FEW


def test_a_torn_last_line_is_no_line(tmp_path):
    cache = FeatureCache(tmp_path)
    interrupted(cache, after=50)
    with of(tmp_path, "manifest.jsonl")[0].open("ab") as file:
        file.write(b'[2, 16, "ab')
    (of(tmp_path)[0].parent / ".rows-000002.npy.77.part").write_bytes(b"half")
    assert features(cache)[1] == ROWS - 32 + 5
    assert not of(tmp_path, ".*.part")


def _work(directory, queue):
    use_small_shards()
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
    assert rows == again and sorted((one, other))[0] == 0


def test_the_process_that_computes_the_same_features_is_named(tmp_path):
    cache, model, refused = FeatureCache(tmp_path, wait=False), network(), []

    def features_of(inputs):
        if not refused:
            with pytest.raises(EnvironmentFailure, match=f"process {os.getpid()} on ") as error:
                features(cache)
            refused.append(error)
        return model(inputs)

    features(cache, model=model, features_of=features_of)
    assert len(refused) == 1


def test_the_least_recently_used_go_first_and_none_in_use(tmp_path):
    made = [features(FeatureCache(tmp_path), source=data(seed=seed))[0] for seed in range(3)]
    digests = [one.digest for one in made]
    for age, digest in enumerate(digests):
        os.utime(tmp_path / "locks" / f"{digest}.use", (1000 + age, 1000 + age))
    keeping, made = made[0], None
    each = FeatureCache(tmp_path).sets()[0].bytes
    cache = FeatureCache(tmp_path, size=each * 3 + sizes.planned_bytes(ROWS, FEATURES) - 1)
    features(cache, source=data(seed=9))
    left = {kept.key for kept in cache.sets()}
    assert digests[0] in left and digests[1] not in left and digests[2] in left and len(left) == 3
    assert keeping.rows[0].shape == (keeping.width,)


@pytest.mark.parametrize("size", ["9kB", "30kB"])
def test_a_set_that_does_not_fit_removes_nothing(tmp_path, size):
    held, _ = features(FeatureCache(tmp_path))
    with pytest.raises(EnvironmentFailure, match="`cache_size`"):
        features(FeatureCache(tmp_path, size=size), source=data(seed=5))
    assert [kept.key for kept in FeatureCache(tmp_path).sets()] == [held.digest]


def test_a_stream_of_unknown_length_is_bounded_too(tmp_path):
    with pytest.raises(EnvironmentFailure, match="`cache_size`"):
        features(FeatureCache(tmp_path, size="25kB"), source=batches(500), data_key="long")
    assert 0 < len(of(tmp_path)) < 500 // SHARD


def test_too_small_a_disk_is_refused_beforehand(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(EnvironmentFailure, match="1 kB free"):
        features(FeatureCache(tmp_path))
    assert not of(tmp_path)


def test_a_disk_that_fills_up_keeps_what_is_there(tmp_path, monkeypatch):
    cache, real, calls = FeatureCache(tmp_path), os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentFailure, match="No space left on device"):
            features(cache)
    assert not of(tmp_path, ".*.part")
    found, many = features(cache)
    assert 5 < many < ROWS and len(found) == ROWS


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
    with pytest.raises(EnvironmentFailure, match="`cache_dir`"):
        features(FeatureCache(tmp_path), source=data(seed=4))


def test_directories_of_another_model_or_without_a_whole_set_are_refused(tmp_path):
    model = network()
    found, _ = features(FeatureCache(tmp_path), model=model)
    place = tmp_path / found.digest
    mine, other = ({"model": model_digest(one)} for one in (model, network(seed=1)))
    assert torch.equal(features_from_directory(place, key_parts=mine).targets, found.targets)
    for key_parts in (other, {"split": "train"}):
        with pytest.raises(ValueError, match="`features`"):
            features_from_directory(place, key_parts=key_parts)
    (place / "complete.json").unlink()
    for unfinished in (place, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="`features`"):
            features_from_directory(unfinished)


def test_remains_of_a_killed_removal_are_removed(tmp_path):
    (tmp_path / ".gone-abc-1").mkdir(parents=True)
    features(FeatureCache(tmp_path))
    assert not (tmp_path / ".gone-abc-1").exists()


@pytest.mark.parametrize("key", ["../" * 20 + "a" * 4, "", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_a_key_is_no_path(tmp_path, key):
    with pytest.raises(ValueError, match="`key`"):
        FeatureCache(tmp_path).folder(key)


@pytest.mark.parametrize("size", ["", "-1", "many", "10 XB", "1e9", True, "nan"])
def test_a_size_is_a_number_of_bytes(size):
    with pytest.raises(ValueError, match="`cache_size`"):
        FeatureCache("somewhere", size=size)


def test_sizes_have_units():
    sizes_of = {"10GB": 10**10, " 500 mb ": 5 * 10**8, "4GiB": 1 << 32, "1.5kB": 1500, "7": 7, 7: 7}
    assert {size: FeatureCache("somewhere", size=size).size for size in sizes_of} == sizes_of


def test_the_usual_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "beliefmatch" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert default_directory() == tmp_path / "me" / ".cache" / "beliefmatch" / "features"
    with pytest.raises(ValueError, match="`cache_dir`"):
        FeatureCache(" ")


def test_a_lock_names_its_process_and_ends_with_its_block(tmp_path):
    for _ in range(2):
        with exclusive(tmp_path / "a", wait=False):
            assert (tmp_path / "a").read_text().startswith(f"process {os.getpid()} on ")
