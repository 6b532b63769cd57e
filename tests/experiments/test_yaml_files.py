"""YAML files: data only, and one line about what is wrong."""

import pytest

from beliefmatch.experiments.config import LARGEST, read_yaml, yaml_value


def written(tmp_path, text):
    path = tmp_path / "r.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_scalars_lists_and_mappings(tmp_path):
    text = "a: 1\nb: [1.5, 1e-4, 3E+2, -2e3, .5e1]\nc: {d: null, e: true}\nf: 1e\n"
    expected = {"a": 1, "b": [1.5, 1e-4, 300.0, -2000.0, 5.0], "c": {"d": None, "e": True}, "f": "1e"}
    assert read_yaml(written(tmp_path, text)) == expected


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    assert read_yaml(written(tmp_path, b"\xef\xbb\xbfa: 1")) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' stands twice."),
        ("a:\n  b: 1\n  b: 2\n", "line 3: the key 'b' stands twice."),
        ("a: 1\nb: [1,\n", "line 3: "),
        ("a: &x 1\nb: *x\n", "line 2: aliases are not taken"),
        ("a: 1\nb: !!python/object/apply:os.system ['true']\n", "line 2: could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "line 2: "),
        ("[" * 5000, "line 1: nested more than 20 deep."),
        ("- 1\n- 2\n", "must hold a mapping of names to values, got list."),
        ("", "must hold a mapping of names to values, got nothing."),
        (b"a: \xff\n", "must be text in UTF-8"),
        (b"a: \x00\n", "r.yaml: "),
        ("a: 2020-13-45\n", "r.yaml: "),
        ("? [1]\n: 2\n", "line 1: found unhashable key."),
        ("a: " + "x" * LARGEST, "must not be larger than 64 KiB."),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, text, words):
    with pytest.raises(ValueError) as caught:
        read_yaml(written(tmp_path, text))
    assert str(caught.value).startswith("read_yaml: ")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*absent.yaml \(No such file or directory\)"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(ValueError, match=r"cannot read .* \(Is a directory\)"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("", None), ("adam", "adam"), ("{a: 1}", {"a": 1})]
)
def test_single_values(text, value):
    assert yaml_value(text, caller="config") == value
