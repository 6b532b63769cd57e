"""The comparison with golden files."""

import pytest

import golden
from golden import assert_golden


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "DIRECTORY", tmp_path)
    monkeypatch.setattr(golden, "updating", False)
    return tmp_path


def test_a_difference_is_shown_line_by_line(directory):
    (directory / "table.txt").write_text("method  error\nsoftmax  0.10\n")
    assert_golden("table.txt", "method  error\nsoftmax  0.10")
    with pytest.raises(pytest.fail.Exception) as failure:
        assert_golden("table.txt", "method  error\nsoftmax  0.20\n")
    assert "\n-softmax  0.10\n+softmax  0.20\n" in str(failure.value)


def test_an_absent_file_fails_and_an_update_writes_it(directory, monkeypatch):
    with pytest.raises(pytest.fail.Exception, match=r"room/page\.txt"):
        assert_golden("room/page.txt", "a page")
    monkeypatch.setattr(golden, "updating", True)
    assert_golden("room/page.txt", "a page")
    assert (directory / "room/page.txt").read_text() == "a page\n"
