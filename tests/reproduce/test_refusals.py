"""Options, settings and data that a reproduction refuses, in one line and before anything is run."""

import numpy as np
import pytest

from beliefmatch.cli import main
from beliefmatch.reproduce.config import transfer_fingerprint
from reproduced import runner


def refused(arguments, capsys) -> str:
    assert main(["reproduce", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def write_zeros(directory, *names, **arrays):
    whole = {"images": np.zeros((200, 8, 8, 3), np.uint8), "labels": np.arange(200) % 10}
    for name in names:
        np.savez(directory / f"{name}.npz", **whole | arrays)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tabel1"], "did you mean table1?"),
        (["table1", "--scale", "cpus"], "`--scale`"),
        (["table1", "--seeds", "0"], "`--seeds`"),
        (["table1", "--seeds", "9999"], "`--seeds`"),
        (["table1", "--jobs", "0"], "`--jobs`"),
        (["table1", "--out", " "], "`--out`"),
        (["table1", "--data-dir", ""], "`--data-dir`"),
        (["table1", "--set", "training.epoch=3"], "`training.epochs`"),
        (["table1", "--set", "training.warmup=[a"], "training.warmup: '[a' line 1"),
        (["table3", "--set", "transfer.options=5"], "`options`"),
        (["table3", "--set", "transfer.epoch=3"], "`epochs`"),
        (["table3", "--set", "transfer.training.epochs=3"], "transfer.KEY=VALUE"),
        (["table3", "--set", "training.epochs=1"], "transfer.KEY=VALUE, got 'training.epochs=1'"),
        (["table1", "--set", "transfer.epochs=1"], "`--set`"),
        *(  # settings that identify a row
            ([name, "--set", setting], f"{setting.partition('=')[0].removeprefix('transfer.')} of {name}")
            for name, setting in (
                ("table1", "method.name=softmax"),
                ("figure-beta", "method.options.kl_weight=0.5"),
                ("table1", "data.name=digits"),
                ("controls", "data.limit=80"),
                ("controls", "data.validation=80"),
                ("table1", "model={name: digits}"),
                ("table4", "semi.kind=vat"),
                ("table4", "teacher.run=there"),
                ("figure-rotation", "defaults.ensemble.members=2"),
                ("table3", "transfer.data.name=cifar100"),
            )
        ),
        (["figure-rotation", "--set", "seed=7"], "`--seeds`"),
        (["table1", "--set", "data.directory=there"], "`--data-dir`"),
        (["table3", "--set", "transfer.data.directory=there"], "`--data-dir`"),
    ],
)
def test_invalid_options_and_settings_are_refused_in_one_line(arguments, words, capsys):
    assert words in refused([*arguments, "--dry-run"], capsys)


def test_no_dataset_is_read_for_another(tmp_path, capsys):
    """A file, or files without a name, would be CIFAR-10, CIFAR-100 and SVHN at once."""
    line = ["table1", "--scale", "cpu", "--out", f"{tmp_path / 'o'}", "--data-dir"]
    error = refused([*line, f"{tmp_path}"], capsys)
    assert "`--data-dir` must hold cifar10, svhn and cifar100" in error
    assert "there is no cifar10 and no svhn and no cifar100 in" in error
    assert not (tmp_path / "o").exists()
    write_zeros(tmp_path, "train", "test", "cifar10_train", "cifar10_test", "svhn_test")
    assert "there is no cifar100 in" in refused([*line, f"{tmp_path}"], capsys)
    assert "`--data-dir`" in refused([*line, f"{tmp_path / 'train.npz'}"], capsys)
    write_zeros(tmp_path, "cifar100_train", "cifar100_test")
    few = ["--set", "data.limit=20", "--set", "data.validation=20"]
    error = refused([*line, f"{tmp_path}", *few, "--set", "data.validation=999"], capsys)
    assert "`validation`" in error and "--data-dir" not in error
    error = refused([*line, f"{tmp_path}", *few], capsys)
    assert "`--data-dir` must hold cifar100 with its 100 classes, got 10 classes" in error


def test_a_mistake_about_the_network_is_no_error_about_data(tmp_path, capsys):
    names = ("cifar10_train", "cifar10_test", "svhn_test", "food101_test", "stanford_cars_test")
    write_zeros(tmp_path, *names, images=np.zeros((200, 8, 8), np.uint8))
    line = ["figure-transfer", "--scale", "cpu", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path / 'o'}"]
    error = refused([*line, "--set", "transfer.model=beliefmatch.models.digits:Nope"], capsys)
    assert "has no Nope" in error and "--data-dir" not in error


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": np.zeros((200, 8, 8, 3))}, "cifar10_train.npz must hold images as uint8"),
        ({"labels": np.arange(200) % 10 - 1}, "got -1"),
        ({"labels": np.arange(200) % 10 * 11}, "got 11"),
    ],
)
def test_invalid_content_of_files_is_no_error_about_paths(tmp_path, capsys, change, words):
    write_zeros(tmp_path, "cifar10_test", "svhn_test")
    write_zeros(tmp_path, "cifar10_train", **change)
    line = ["figure-beta", "--scale", "cpu", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path / 'o'}"]
    error = refused([*line, "--set", "data.validation=20"], capsys)
    assert words in error and "--data-dir" not in error


def test_weights_are_identified_by_their_content(tmp_path):
    def names(key, path):
        return set(runner("table3", settings=(f"transfer.{key}={path}",)).costs())

    one, other, run = tmp_path / "a.pt", tmp_path / "b" / "a.pt", tmp_path / "run"
    for directory in (other.parent, run):
        directory.mkdir()
    for file in (one, other, run / "record.json"):
        file.write_bytes(b"1")
    before, model = names("weights", one), names("model", run)
    assert before == names("weights", other) != set(runner("table3").costs())
    for file in (one, run / "record.json"):
        file.write_bytes(b"2")
    assert names("weights", one) != before
    assert names("model", run).isdisjoint(model)


def test_settings_of_transfers_are_their_own_and_decide_their_fingerprints(tmp_path):
    settings = ("transfer.model=timm:resnet18", "transfer.data.limit=9", "training.epochs=3")
    found = runner("table3", settings=settings)
    assert {(config.model, config.data.limit, config.epochs) for config in found.configs.values()} == {
        ("timm:resnet18", 9, 100)
    }
    network = "Network, the paper's being Keras's ResNet-50: timm:resnet18 instead of timm:resnet50.tv_in1k."
    assert network in found.differences()
    one, other = (transfer_fingerprint(found.configs["food101"], seeds) for seeds in ([0], [0, 1]))
    assert one != other
    settings = ("transfer.device=cuda", "transfer.compile=true", "transfer.batch=7")
    elsewhere = runner("table3", data_dir=f"{tmp_path}", settings=settings)
    assert elsewhere.configs["cifar10"].data.directory == f"{tmp_path}"
    assert elsewhere.costs() == runner("table3").costs()
    equal = ("1", "1.0")
    one, other = (
        runner("table3", settings=(f"transfer.kl_weight={number}", f"transfer.options.width={number}"))
        for number in equal
    )
    assert one.costs() == other.costs() != runner("table3").costs()
