"""Directories that are written as a whole: all files or none, and no file of somebody else is removed."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from beliefmatch._files import LEDGER, atomic_write, atomic_write_dir


def names(place):
    return sorted(f"{path.relative_to(place)}" for path in place.rglob("*") if path.is_file())


def test_files_of_an_earlier_report_are_removed_and_named(tmp_path):
    assert atomic_write_dir(tmp_path, [("a.json", b"1"), ("figures/x.svg", b"2"), ("page.html", b"3")]) == []
    assert atomic_write_dir(tmp_path, [("b.json", b"4"), ("page.html", b"5")]) == ["a.json", "figures/x.svg"]
    assert names(tmp_path) == [LEDGER, "b.json", "page.html"]
    assert (tmp_path / "page.html").read_bytes() == b"5"


def test_files_that_are_to_be_kept_are_kept(tmp_path):
    atomic_write_dir(tmp_path, [("a.json", b"1"), ("x.svg", b"2")])
    assert atomic_write_dir(tmp_path, [("b.json", b"3")], keep=".json") == ["x.svg"]
    assert names(tmp_path) == [LEDGER, "a.json", "b.json"]


def test_a_file_of_somebody_else_or_changed_since_stays(tmp_path):
    atomic_write_dir(tmp_path, [("a.json", b"1"), ("b.json", b"2")])
    (tmp_path / "a.json").write_bytes(b"edited")
    (tmp_path / "other.json").write_bytes(b"theirs")
    assert atomic_write_dir(tmp_path, [("c.json", b"3")]) == ["b.json"]
    assert names(tmp_path) == [LEDGER, "a.json", "c.json", "other.json"]


def test_a_name_that_differs_in_case_only_is_the_same(tmp_path):
    atomic_write_dir(tmp_path, [("Model.json", b"1")])
    assert atomic_write_dir(tmp_path, [("model.json", b"1")]) == []
    assert (tmp_path / "model.json").read_bytes() == b"1"


DIGEST = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"  # of b"1"


def test_nothing_outside_of_the_directory_is_touched(tmp_path):
    place, outside = tmp_path / "report", tmp_path / "outside.json"
    (tmp_path / "elsewhere").mkdir()
    place.mkdir()
    inner = tmp_path / "elsewhere" / "x.json"
    for path in (outside, inner):
        path.write_bytes(b"1")
    (place / "door").symlink_to(tmp_path / "elsewhere")
    (place / "link.json").symlink_to(outside)
    wanted = ["../outside.json", f"{outside}", "door/x.json", "link.json", "", ".", "\0", "no.json"]
    (place / LEDGER).write_text(json.dumps(dict.fromkeys(wanted, DIGEST)))
    assert atomic_write_dir(place, [("a.json", b"2")]) == []
    assert outside.read_bytes() == inner.read_bytes() == b"1" and (place / "link.json").is_symlink()


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"a.json": 3}', "null", "\ud800"])
def test_a_ledger_that_cannot_be_read_removes_nothing(tmp_path, content):
    (tmp_path / "a.json").write_bytes(b"1")
    (tmp_path / LEDGER).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert atomic_write_dir(tmp_path, [("b.json", b"2")]) == []
    assert names(tmp_path) == [LEDGER, "a.json", "b.json"]


def test_a_report_that_fails_removes_nothing(tmp_path):
    def broken():
        yield "b.json", b"2"
        raise OSError("no space")

    atomic_write_dir(tmp_path, [("a.json", b"1")])
    with pytest.raises(OSError, match="no space"):
        atomic_write_dir(tmp_path, broken())
    assert names(tmp_path) == [LEDGER, "a.json"] and DIGEST in (tmp_path / LEDGER).read_text()


def test_a_file_that_two_threads_write_is_always_that_of_one(tmp_path):
    path, contents = tmp_path / "a.json", [letter * 500_000 for letter in (b"a", b"b", b"c")]
    atomic_write(path, contents[0])

    def write_and_read(content):
        for _ in range(15):
            atomic_write(path, content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write_and_read, contents))  # with the error of each
    assert names(tmp_path) == ["a.json"]


def test_a_write_that_fails_leaves_the_file_and_no_neighbour(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    atomic_write(path, b"1")

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("beliefmatch._files.os.fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        atomic_write(path, b"2")
    assert caught.value.filename == f"{path}"
    assert names(tmp_path) == ["a.json"] and path.read_bytes() == b"1"
