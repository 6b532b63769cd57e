"""What a reproduction cannot be asked: wrong words, settings that would belie a row, other data."""

import numpy as np
import pytest

from beliefmatch.cli import main
from beliefmatch.reproduce.differences import class_sentences
from beliefmatch.reproduce.scales import two_core_seconds
from beliefmatch.reproduce.transfer_config import transfer_fingerprint
from reproduced import work


def refused(arguments, capsys) -> str:
    assert main(["reproduce", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_what_cannot_be_asked_is_refused_in_one_line(tmp_path, capsys):
    assert "got 'tabel1'; did you mean table1?" in refused(["tabel1"], capsys)
    assert "`--scale` must be one of paper, cpu, tiny, got 'cpus'; did you mean cpu?" in refused(
        ["table1", "--scale", "cpus"], capsys
    )
    assert "`--seeds` must be from 1 to 1,000, got 0" in refused(["table1", "--seeds", "0"], capsys)
    assert "`--seeds` must be from 1 to 1,000, got 9999" in refused(["table1", "--seeds", "9999"], capsys)
    assert "`--out` must be a directory, got an empty name" in refused(["table1", "--out", " "], capsys)
    assert "`--data-dir` must be a directory, got an" in refused(["table1", "--data-dir", ""], capsys)
    assert "did you mean `training.epochs`?" in refused(["table1", "--set", "training.epoch=3"], capsys)
    told = refused(
        ["table1", "--scale", "cpu", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path / 'o'}"], capsys
    )
    assert "`--data-dir` must hold cifar10, svhn and cifar100 by their names for table1" in told
    assert "there is no cifar10 and no svhn and no cifar100 in" in told
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("table1", "method.name=softmax", "must leave method.name of table1 as it is; the rows are named"),
        ("figure-beta", "method.options.kl_weight=0.5", "must leave method.options.kl_weight of figure-beta"),
        ("table1", "data.name=digits", "must leave data.name of table1"),
        ("controls", "data.limit=80", "must leave data.limit of controls"),
        ("figure-rotation", "seed=7", "must leave seed of figure-rotation as it is; say how many with"),
        ("controls", "data.validation=80", "must leave data.validation of controls"),
        ("table1", "model={name: digits}", "must leave model of table1"),
        ("table4", "semi.kind=vat", "must leave semi.kind of table4"),
        ("table4", "teacher.run=there", "must leave teacher.run of table4"),
        ("figure-rotation", "defaults.ensemble.members=2", "must leave defaults.ensemble.members of"),
        ("table3", "transfer.data.name=cifar100", "must leave data.name of table3"),
        ("table3", "transfer.options=5", "`options` must be a mapping"),
        ("table3", "training.epochs=1", "as transfer.KEY=VALUE, got 'training.epochs=1'"),
        ("table1", "transfer.epochs=1", "those of training, got 'transfer.epochs=1'"),
        ("table1", "data.directory=there", "of table1 as it is; say where data lie with `--data-dir`"),
        ("table3", "transfer.data.directory=there", "as it is; say where data lie with `--data-dir`"),
        ("table1", "training.warmup=[a", "config: training.warmup: '[a' line 1: expected ',' or ']'"),
    ],
)  # fmt: skip
def test_settings_that_would_do_nothing_or_belie_a_row_are_refused(name, setting, words, capsys):
    assert words in refused([name, "--set", setting, "--dry-run"], capsys)


def test_no_set_stands_for_another(tmp_path, capsys):
    """A file, or files without a name, would be CIFAR-10, CIFAR-100 and SVHN at once."""
    images, ids = np.zeros((200, 4, 4, 3), np.uint8), np.arange(200) % 10
    for name in ("train", "test", "cifar10_train", "cifar10_test", "svhn_test"):
        np.savez(tmp_path / f"{name}.npz", images=images, labels=ids)
    line = ["table1", "--scale", "cpu", "--out", f"{tmp_path / 'o'}", "--data-dir"]
    assert "there is no cifar100 in" in refused([*line, f"{tmp_path}"], capsys)
    told = refused([*line, f"{tmp_path / 'train.npz'}"], capsys)
    assert "`--data-dir` must be a directory with cifar10, svhn and cifar100, got a file" in told
    for name in ("cifar100_train", "cifar100_test"):
        np.savez(tmp_path / f"{name}.npz", images=images, labels=ids)
    few = ["--set", "data.limit=20", "--set", "data.validation=20"]
    told = refused([*line, f"{tmp_path}", *few, "--set", "data.validation=999"], capsys)
    assert "`validation`" in told and "must be where they lie" not in told
    told = refused([*line, f"{tmp_path}", *few], capsys)
    assert "`--data-dir` must hold cifar100 with its 100 classes, got 10 classes" in told


@pytest.mark.parametrize("width", ["0", "wide", "[1]"])
def test_a_strange_width_has_no_time(width, capsys):
    """It is told where the network is built."""
    assert main(["reproduce", "table1", "--set", f"model.options.width={width}", "--dry-run"]) == 0
    assert main(["reproduce", "list", "--set", f"model.options.width={width}"]) == 0
    assert capsys.readouterr().err == ""
    for config in work("table1", scale="cpu", settings=(f"model.options.width={width}",)).configs.values():
        assert two_core_seconds(config) is None


def test_a_mistake_about_the_network_is_not_told_as_missing_data(tmp_path, capsys):
    for name in ("cifar10_train", "cifar10_test", "svhn_test", "food101_test", "stanford_cars_test"):
        images, ids = np.zeros((200, 8, 8), np.uint8), np.arange(200) % 10
        np.savez(tmp_path / f"{name}.npz", images=images, labels=ids)
    line = ["figure-transfer", "--scale", "cpu", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path / 'o'}"]
    told = refused([*line, "--set", "transfer.model=beliefmatch.models.digits:Nope"], capsys)
    assert "has no Nope" in told and "--data-dir" not in told


def test_weights_are_known_by_their_content(tmp_path):
    one, other = tmp_path / "a.pt", tmp_path / "b" / "a.pt"
    other.parent.mkdir()
    one.write_bytes(b"1")
    other.write_bytes(b"1")

    def name(path):
        return set(work("table3", settings=(f"transfer.weights={path}",)).costs())

    before = name(one)
    assert before == name(other) != set(work("table3").costs())
    one.write_bytes(b"2")
    assert name(one) != before
    run = tmp_path / "run"
    run.mkdir()
    (run / "record.json").write_text("1")
    first = set(work("table3", settings=(f"transfer.model={run}",)).costs())
    (run / "record.json").write_text("2")
    assert set(work("table3", settings=(f"transfer.model={run}",)).costs()).isdisjoint(first)


def test_settings_of_transfers_are_strict_and_their_own(tmp_path):
    found = work(
        "table3", settings=("transfer.model=timm:resnet18", "transfer.data.limit=9", "training.epochs=3")
    )
    assert {(config.model, config.data.limit, config.epochs) for config in found.configs.values()} == {
        ("timm:resnet18", 9, 100)
    }
    network = "Network, the paper's being Keras's ResNet-50: timm:resnet18 instead of timm:resnet50.tv_in1k."
    assert network in found.differences
    with pytest.raises(ValueError, match="did you mean `epochs`"):
        work("table3", settings=("transfer.epoch=3",))
    with pytest.raises(ValueError, match=r"must be written transfer\.KEY=VALUE"):
        work("table3", settings=("transfer.training.epochs=3",))
    elsewhere = work(
        "table3", data_dir=f"{tmp_path}", settings=("transfer.device=cuda", "transfer.compile=true")
    )
    assert elsewhere.configs["cifar10"].data.directory == f"{tmp_path}"
    assert elsewhere.costs() == work("table3").costs()
    one, other = (transfer_fingerprint(found.configs["food101"], seeds) for seeds in ([0], [0, 1]))
    assert one != other


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": np.zeros((60, 8, 8, 3))}, "cifar10_train.npz must hold images as uint8 of shape (N, H"),
        (
            {"labels": np.arange(60) % 10 - 1},
            "labels of cifar10 (train) must be class ids from 0 to 9, got -1",
        ),
        ({"labels": np.arange(60) % 10 * 11}, "of cifar10 (train) must be class ids from 0 to 9, got 11 at"),
    ],
)
def test_what_files_hold_is_not_told_as_a_wrong_place(tmp_path, capsys, change, words):
    whole = {"images": np.zeros((60, 8, 8, 3), np.uint8), "labels": np.arange(60) % 10}
    for name in ("cifar10_train", "cifar10_test", "svhn_test"):
        np.savez(tmp_path / f"{name}.npz", **whole | (change if name == "cifar10_train" else {}))
    line = ["figure-beta", "--scale", "cpu", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path / 'o'}"]
    told = refused([*line, "--set", "data.validation=20"], capsys)
    assert words in told and "must be where they lie" not in told


def test_a_folder_that_stands_for_imagenet_tells_its_classes(tmp_path):
    config = work("table2", scale="cpu").configs["ResNeXt-50/softmax"]
    assert class_sentences(config, 4) == ["Classes: 4 instead of 1,000."]
    assert class_sentences(config, 1000) == []
    assert class_sentences(next(iter(work("figure-beta", scale="cpu").configs.values())), 10) == []
