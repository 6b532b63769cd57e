"""`beliefmatch train`, `compare` and `predict` on tables, and the recipe that fits data and machine."""

import csv
import json
import warnings

import numpy as np
import pytest
from PIL import Image

from beliefmatch.cli import main
from beliefmatch.experiments.choose_recipe import choose_recipe, target_kl_weight
from beliefmatch.experiments.config import config_from, merged, recipe
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run import execute
from commands import refused

TOWNS = ("Bern", "Oslo", "Rome")


def rows_of(count, seed=0):
    """Rows whose class follows from age and town."""
    rng = np.random.default_rng(seed)
    for row in range(count):
        age, town = rng.normal(40, 10), rng.choice(TOWNS)
        yield row, f"{age:.2f}" if rng.random() > 0.1 else "", town, "old" if age > 40 else "young"


def write(path, rows, names=("id", "age", "town", "class")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables")
    data = write(directory / "people.csv", rows_of(150))
    line = ["train", "--data", f"{data}", "--epochs", "30", "--set", "training.learning_rate=0.01"]
    assert main([*line, "--out", f"{directory / 'run'}"]) == 0
    return directory / "run"


def test_a_run_on_a_table_says_what_was_taken_for_what_and_learns(run, capsys):
    record = RunRecord.from_json((run / "record.json").read_text("utf-8"))
    assert record.test.error < 0.2 and record.class_names == ["old", "young"]
    notes = " ".join(record.data["notes"])
    assert "class, recognised by its name" in notes and "id (numbers the rows)" in notes and "age" in notes
    kept = json.loads((run / "model.json").read_text("utf-8"))
    assert {column["name"] for column in kept["table"]["numeric"]} == {"age"}
    assert kept["table"]["categorical"] == [{"name": "town", "values": [*TOWNS], "others": False}]
    costs = record.costs
    assert (costs.train_cpu_seconds or 0) > 0 and (costs.predict_cpu_ms_per_image or 0) > 0
    assert main(["evaluate", f"{run}", "--resamples", "0", "--out", f"{run.parent / 'evaluation'}"]) == 0


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_class_with_one_training_row_is_warned_of_with_its_name(tmp_path, capsys, command):
    rows = [*rows_of(60), (60, "99", "Oslo", "ancient")]
    line = [command, "--data", f"{write(tmp_path / 'people.csv', rows)}", "--dry-run"]
    assert main([*line, "--out", f"{tmp_path / 'run'}"]) == 0
    (warning,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("warning:")]
    assert "`--data`" in warning and "1 example of class ancient" in warning
    plain = write(tmp_path / "plain.csv", rows[:-1])
    assert main([command, "--data", f"{plain}", "--dry-run"]) == 0
    assert "warning:" not in capsys.readouterr().err


def test_the_progress_of_a_table_counts_examples(tmp_path):
    data, seen = write(tmp_path / "people.csv", rows_of(60)), []
    changes = {"data": {"name": f"{data}"}, "training": {"epochs": 1}}
    config = config_from(merged(recipe("tabular"), changes))
    execute(config, tmp_path / "run", on_progress=lambda fraction, description: seen.append(description))
    speeds = [one for one in seen if "epoch" in one]
    assert speeds and all("examples/s" in one and "images" not in one for one in speeds)


@pytest.mark.filterwarnings("default:.*no training row")
def test_a_category_that_training_did_not_have_is_warned_of_by_the_file(run, tmp_path, capsys):
    new = write(tmp_path / "new.csv", [("40", "Paris"), ("50", "Oslo")], ("age", "town"))
    assert main(["predict", f"{run}", f"{new}"]) == 0
    (warning,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("warning:")]
    assert warning.startswith(f"warning: {new} has 'Paris' in column 'town'")


def test_predictions_for_new_rows_do_not_depend_on_the_order_of_columns(run, tmp_path, capsys):
    new = list(rows_of(40, seed=1))
    one = write(tmp_path / "new.csv", [(age, town) for _, age, town, _ in new], ("age", "town"))
    two = write(tmp_path / "other.csv", [(town, age) for _, age, town, _ in new], ("town", "age"))
    found = []
    for path in (one, two):
        out = tmp_path / f"{path.stem}-predictions.csv"
        assert main(["predict", f"{run}", f"{path}", "--out", f"{out}"]) == 0
        assert "40 rows" in capsys.readouterr().out
        found.append(list(csv.DictReader(out.read_text("utf-8").splitlines())))
    assert found[0][3]["row"] == "new.csv[3]"
    assert [row["p_old"] for row in found[0]] == [row["p_old"] for row in found[1]]
    right = [row["class"] == label for row, (*_, label) in zip(found[0], new, strict=True)]
    assert np.mean(right) > 0.8


def test_rows_that_do_not_fit_are_refused_in_one_line(run, tmp_path, capsys):
    cases = {
        "town": (("age",), [("30",)]),
        "'old'": (("age", "town"), [("30", "Rome"), ("old", "Bern")]),
        "rows": (("age", "town"), []),
    }
    for word, (names, rows) in cases.items():
        path = write(tmp_path / "bad.csv", rows, names)
        assert word in refused(["predict", f"{run}", f"{path}", "--out", f"{tmp_path / 'p.csv'}"], capsys)


def test_predictions_replace_neither_the_table_nor_the_run_nor_an_earlier_file(run, tmp_path, capsys):
    path = write(tmp_path / "new.csv", [("30", "Rome")], ("age", "town"))
    out = tmp_path / "p.csv"
    line = ["predict", f"{run}", f"{path}", "--out"]
    assert main([*line, f"{out}"]) == 0
    capsys.readouterr()
    before = {one: one.read_bytes() for one in (path, out, run / "record.json")}
    (tmp_path / "link.csv").symlink_to(path)
    taken = {
        path: "inputs",
        tmp_path / "link.csv": "inputs",
        run / "record.json": "run",
        run / "p.csv": "run",
    }
    for place, reason in taken.items():
        for more in ([], ["--overwrite"]):
            err = refused([*line, f"{place}", *more], capsys)
            assert err.startswith("beliefmatch predict: `--out` ") and reason in err
    assert "`--overwrite`" in refused([*line, f"{out}"], capsys)
    assert before == {one: one.read_bytes() for one in before} and not (run / "p.csv").exists()
    write(path, [("30", "Rome"), ("40", "Bern")], ("age", "town"))
    assert main([*line, f"{out}", "--overwrite"]) == 0
    assert len(out.read_text("utf-8").splitlines()) == 3


def test_a_network_of_a_table_is_not_adapted(run, capsys):
    assert "table" in refused(["adapt", "--model", f"{run}", "--data", "digits"], capsys)


def test_methods_are_compared_on_a_table(tmp_path, capsys):
    data = write(tmp_path / "people.csv", rows_of(80))
    line = ["compare", "--data", f"{data}", "--target", "class", "--drop", "id", "--epochs", "2"]
    line += ["--seeds", "1", "--jobs", "1", "--methods", "softmax,belief_matching,mc_dropout:samples=2"]
    assert main([*line, "--out", f"{tmp_path / 'out'}"]) == 0
    shown = capsys.readouterr().out
    assert (
        "Target: class" in shown and "recognised" not in shown and "id (by --drop)" in " ".join(shown.split())
    )
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_table_without_a_known_target_names_its_columns(tmp_path, capsys):
    data = write(tmp_path / "people.csv", rows_of(30), ("id", "age", "town", "group"))
    error = refused(["train", "--data", f"{data}", "--out", f"{tmp_path / 'out'}"], capsys)
    assert "--target" in error and "group" in error


# Recipes that fit data and machine


def photos(directory, count, sides):
    rng = np.random.default_rng(0)
    for name, level in (("cat", 60), ("dog", 190)):
        (directory / name).mkdir(parents=True)
        for index in range(count):
            side = sides[index % len(sides)]
            pixels = rng.integers(level - 50, level + 50, (side, side, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(directory / name / f"{index}.png")
    return directory


def test_photos_on_a_cpu_start_a_small_network_that_ends_in_minutes(tmp_path):
    chosen = choose_recipe({"name": f"{photos(tmp_path / 'photos', 6, (80, 100))}"}, accelerator="cpu")
    config = config_from(merged(recipe(chosen.name), chosen.changes))
    assert (chosen.name, config.model.name, config.data.size) == ("images-cpu", "small_cnn", 64)
    assert config.training.epochs == 40 and config.model.options == {"stem_stride": 2}
    assert "--recipe images" in chosen.notes[0]
    small = choose_recipe({"name": f"{photos(tmp_path / 'small', 6, (20,))}"}, accelerator="cpu")
    assert small.changes["data"] == {} and "model" not in small.changes
    given = choose_recipe({"name": f"{tmp_path / 'photos'}"}, accelerator="cpu", epochs=3)
    assert "3 epochs" in given.notes[0]


def test_many_images_are_limited_so_that_the_work_is_the_same(tmp_path):
    arrays = {"images": np.zeros((20_000, 32, 32, 1), np.uint8), "labels": np.arange(20_000) % 2}
    np.savez(tmp_path / "many.npz", **arrays)
    chosen = choose_recipe({"name": f"{tmp_path / 'many.npz'}"}, accelerator="cpu")
    assert chosen.changes["data"] == {"limit": 12_000} and chosen.changes["training"] == {"epochs": 5}
    free = choose_recipe({"name": f"{tmp_path / 'many.npz'}", "limit": 20_000}, accelerator="cpu")
    assert "limit" not in free.changes["data"]


def test_a_gpu_and_the_digits_keep_their_recipes(tmp_path):
    assert choose_recipe({"name": "digits"}).name == "digits"
    assert choose_recipe({"name": "cifar100"}, accelerator="cuda").name == "cifar"
    assert choose_recipe({"name": f"{tmp_path}"}, accelerator="cuda").name == "images"


@pytest.mark.parametrize(("rows", "epochs"), [(60, 100), (12_000, 78), (90_000, 10)])
def test_the_epochs_of_a_table_fall_with_its_rows(tmp_path, rows, epochs):
    data = write(tmp_path / "a.csv", [(row, row % 2) for row in range(rows)], ("x", "y"))
    assert choose_recipe({"name": f"{data}"}).changes["training"] == {"epochs": epochs}


@pytest.mark.parametrize("classes", [2, 3, 10, 64])
def test_belief_matching_asks_99_percent_confidence_whatever_the_number_of_classes(classes):
    votes = 1 / target_kl_weight(classes)
    assert (1 + votes) / (classes + votes) == pytest.approx(0.99, abs=0.005)


def test_train_skips_images_that_cannot_be_read(tmp_path, capsys):
    directory = photos(tmp_path / "photos", 12, (12,))
    (directory / "cat" / "3.png").write_bytes(b"no image")
    line = [
        "train",
        "--data",
        f"{directory}",
        "--epochs",
        "1",
        "--ood",
        "noise",
        "--out",
        f"{tmp_path / 'out'}",
    ]
    assert "3.png" in refused(line, capsys)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main([*line, "--skip-corrupt"]) == 0
    record = RunRecord.from_json((tmp_path / "out" / "record.json").read_text("utf-8"))
    assert record.data["skipped"] == {"all": 1} and record.config["data"]["corrupt"] == "skip"
