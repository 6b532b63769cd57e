"""`beliefmatch export`: files that return what `predict` does, for every method, or one line of refusal."""

import csv
import json
import warnings

import numpy as np
import pytest
import torch

from beliefmatch import Belief
from beliefmatch.cli import app, main
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import network_inputs
from beliefmatch.data.table_encoding import MAX_CATEGORIES
from beliefmatch.experiments.predict import restore
from beliefmatch.experiments.run import execute
from beliefmatch.integrations.export import OUTPUTS
from beliefmatch.integrations.export_run import _image_facts, export_run
from commands import refused
from outside_packages import imported
from small_runs import digits_config
from tiny_text import save_network, sentences, write_csv

METHODS = {
    "belief_matching": {"kl_weight": 0.01},
    "temperature": {},
    "ensemble": {"members": 2},
    "belief_ensemble": {"members": 2, "kl_weight": 0.01},
    "evidential": {},
    "mc_dropout": {"samples": 2},
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Directories of runs by their methods, each trained once."""
    made = {}

    def run(method):
        if method not in made:
            made[method] = tmp_path_factory.mktemp(method) / "run"
            config = digits_config(method, "training.epochs=1", "data.limit=60", "ood=[]", **METHODS[method])
            execute(config, made[method])
        return made[method]

    return run


def pixels(count=9, seed=3):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, 8, 8, 1), dtype=np.uint8))


def loaded_script(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(path)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mc_dropout"])
def test_the_file_returns_what_predict_does(run_of, tmp_path, method):
    directory, images = run_of(method), pixels()
    predictor = restore(directory)
    made = export_run(directory, tmp_path / "m.pt", outputs=None)
    truth = predictor.predictor.predict(network_inputs(images, predictor.preprocessing))
    found = loaded_script(made.path)(network_inputs(images, predictor.preprocessing))
    torch.testing.assert_close(found["probs"].double(), truth.probs, rtol=1e-4, atol=1e-6)
    if truth.belief is None:
        assert list(found) == ["probs", "entropy"]
        entropy = torch.special.entr(truth.probs).sum(1)
        torch.testing.assert_close(found["entropy"].double(), entropy, rtol=1e-4, atol=1e-6)
    else:
        assert list(found) == ["probs", "mutual_information", "precision"]
        precision, information = truth.belief.precision, truth.belief.mutual_information()
        torch.testing.assert_close(found["precision"].double(), precision, rtol=1e-3, atol=0)
        torch.testing.assert_close(found["mutual_information"].double(), information, rtol=1e-3, atol=1e-7)


def test_the_command_writes_onnx_that_normalises_images_itself(run_of, tmp_path, capsys):
    onnxruntime = imported("onnxruntime")
    directory, images, out = run_of("temperature"), pixels(), tmp_path / "m.onnx"
    line = ["export", f"{directory}", "--out", f"{out}", "--outputs", "probs, logits", "--with-preprocessing"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "input images: uint8 (batch, 8, 8, 1)" in shown and "output probs: float32 (batch, 10)" in shown
    assert "value_range: 0, 255" in shown and "verified: " in shown and shown.splitlines()[-1] == f"{out}"
    session = onnxruntime.InferenceSession(f"{out}", providers=["CPUExecutionProvider"])
    probs, logits = session.run(None, {"images": images.numpy()})
    predictor = restore(directory)
    truth = predictor.predictor.predict(network_inputs(images, predictor.preprocessing))
    assert predictor.predictor.temperature != 1
    np.testing.assert_allclose(probs, truth.probs, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(logits, truth.logits, rtol=1e-4, atol=1e-5)


def test_the_default_file_is_named_by_its_format(run_of, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["export", f"{run_of('belief_matching')}", "--format", "torchscript", "--outputs", "probs"]) == 0
    )
    assert capsys.readouterr().out.endswith("\nmodel.pt\n")
    assert [one.name for one in tmp_path.iterdir()] == ["model.pt"]


def test_the_metadata_states_the_order_of_the_channels():
    how = Preprocessing((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), channel_order="bgr", margin=1.25)
    facts = _image_facts((3, 16, 16), how, False)
    assert facts["mean"] == [0.3, 0.2, 0.1] and facts["std"] == [3.0, 2.0, 1.0]
    assert facts["channel_order"] == "bgr" and facts["layout"] == "NCHW" and "1.25" in facts["crop"]
    images = torch.randint(256, (2, 16, 16, 3), dtype=torch.uint8)
    bgr = images.flip(3).permute(0, 3, 1, 2) / 255  # what the facts say
    mean, std = (torch.tensor(facts[name])[:, None, None] for name in ("mean", "std"))
    torch.testing.assert_close((bgr - mean) / std, network_inputs(images, how))
    included = _image_facts((3, 16, 16), how, True)
    assert included["channel_order"] == "rgb" and "mean" not in included


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_network_of_sentences_is_exported_for_its_tokens(tmp_path, capsys):
    imported("transformers")
    save_network(tmp_path / "encoder")
    write_csv(tmp_path / "data.csv", sentences(90))
    adapt = ["adapt", "--model", f"hf:{tmp_path / 'encoder'}", "--data", f"{tmp_path / 'data.csv'}"]
    adapt += ["--cache-dir", f"{tmp_path / 'cache'}", "--kl-weight", "0.01", "--controls", "softmax"]
    assert main([*adapt, "--out", f"{tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    line = ["export", f"{tmp_path / 'run'}", "--out", f"{tmp_path / 'm.pt'}"]
    assert main([*line, "--outputs", "probs,precision"]) == 0
    assert "input input_ids: int64 (batch, sequence)" in capsys.readouterr().out
    restored = restore(tmp_path / "run")
    tokens = restored.tokenize(["i want pizza now please more", "my bank", "the train"])
    found = loaded_script(tmp_path / "m.pt")(*tokens.values())
    with torch.no_grad():
        belief = Belief(restored.predictor(**tokens))
    torch.testing.assert_close(found["probs"], belief.probs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found["precision"], belief.precision, rtol=1e-4, atol=0)
    assert "--with-preprocessing" in refused([*line, "--with-preprocessing", "--overwrite"], capsys)


# Tables


TOWNS = ("Bern", "Oslo", "Rome")


def table_rows(count, seed=0):
    """Age, with gaps, height, a town and a colour, and a class that follows from age and town."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        age, town = rng.normal(40, 10), rng.choice(TOWNS)
        colour = f"c{rng.geometric(0.04)}"  # more colours than have inputs of their own
        name = "old" if age + 10 * (town == "Rome") > 42 else "young"
        yield f"{age:.3f}" if rng.random() > 0.1 else "", f"{rng.normal(170, 9):.2f}", town, colour, name


def write_table(path, rows, names=("age", "height", "town", "colour", "class")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables")
    data = write_table(place / "people.csv", table_rows(900))
    assert main(["train", "--data", f"{data}", "--epochs", "8", "--out", f"{place / 'run'}"]) == 0
    return place / "run"


def onnx_session(path):
    session = imported("onnxruntime").InferenceSession(f"{path}", providers=["CPUExecutionProvider"])
    return session, json.loads(session.get_modelmeta().custom_metadata_map["beliefmatch"])


def predicted(run, place, rows, names=("age", "height", "town", "colour")):
    """Probabilities that `beliefmatch predict` writes for a table."""
    data, out = write_table(place / "new.csv", rows, names), place / "predictions.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a town that no training row had
        assert main(["predict", f"{run}", f"{data}", "--out", f"{out}", "--overwrite"]) == 0
    return np.array([one["probs"] for one in json.loads(out.read_text("utf-8"))["predictions"]])


def test_a_network_of_a_table_encodes_its_columns_itself(table_run, tmp_path, capsys):
    """Raw numbers and indices of categories in onnxruntime give what `predict` gives for the same rows."""
    imported("onnxruntime")
    out = tmp_path / "m.onnx"
    line = ["export", f"{table_run}", "--out", f"{out}", "--outputs", "probs", "--with-preprocessing"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "input numbers: float32 (batch, 2)" in shown and "input categories: int64 (batch, 2)" in shown
    session, about = onnx_session(out)
    how = about["preprocessing"]
    assert how["numbers"] == ["age", "height"] and list(how["categories"]) == ["town", "colour"]
    assert len(how["categories"]["colour"]) == MAX_CATEGORIES - 1
    rows = [*table_rows(60, seed=1), ("35", "171", "Nowhere", "c9999", ""), ("", "", "", "", "")]
    columns = {name: [row[at] for row in rows] for at, name in enumerate(("age", "height", "town", "colour"))}
    numbers = [[float(cell or "nan") for cell in columns[name]] for name in how["numbers"]]
    categories = [
        [values.index(cell) if cell in values else -1 for cell in columns[name]]
        for name, values in how["categories"].items()
    ]
    given = {"numbers": np.array(numbers, np.float32).T, "categories": np.array(categories).T}
    (probs,) = session.run(None, {name: np.ascontiguousarray(value) for name, value in given.items()})
    truth = predicted(table_run, tmp_path, [row[:4] for row in rows])
    assert truth.std(0).min() > 0.05
    np.testing.assert_allclose(probs, truth, atol=2e-5)


def test_without_preprocessing_the_metadata_says_what_each_input_of_a_table_is(table_run, tmp_path, capsys):
    imported("onnxruntime")
    out = tmp_path / "m.onnx"
    assert main(["export", f"{table_run}", "--out", f"{out}", "--outputs", "probs"]) == 0
    session, about = onnx_session(out)
    how, rows = about["preprocessing"], [*table_rows(40, seed=2)]
    assert f"input inputs: float32 (batch, {len(how['inputs'])})" in capsys.readouterr().out
    assert how["inputs"][:4] == ["age", "height", "age is missing", "town=Bern"]
    inputs = np.zeros((40, len(how["inputs"])), np.float32)
    for row, cells in enumerate(rows):
        cells = dict(zip(("age", "height", "town", "colour"), cells, strict=False))
        for column in how["numeric"]:
            name, cell = column["name"], cells[column["name"]]
            value = float(cell) if cell else column["fill"]
            inputs[row, how["inputs"].index(name)] = (value - column["mean"]) / column["std"]
            if column["indicator"] and not cell:
                inputs[row, how["inputs"].index(f"{name} is missing")] = 1
        for column in how["categorical"]:
            value = cells[column["name"]] if cells[column["name"]] in column["values"] else "other"
            inputs[row, how["inputs"].index(f"{column['name']}={value}")] = 1
    (probs,) = session.run(None, {"inputs": inputs})
    np.testing.assert_allclose(probs, predicted(table_run, tmp_path, [row[:4] for row in rows]), atol=2e-5)


@pytest.mark.parametrize("ending", [".pt", ".pt2"])
def test_a_table_of_numbers_alone_has_one_input_in_every_format(tmp_path, ending):
    rows = [(age, height, name) for age, height, _, _, name in table_rows(200)]
    data = write_table(tmp_path / "people.csv", rows, ("age", "height", "class"))
    line = ["train", "--data", f"{data}", "--epochs", "2", "--out", f"{tmp_path / 'run'}"]
    assert main(line) == 0
    made = export_run(tmp_path / "run", tmp_path / f"m{ending}", with_preprocessing=True)
    assert [(one.name, one.shape) for one in made.record.inputs] == [("numbers", ["batch", 2])]
    network = loaded_script(made.path) if ending == ".pt" else torch.export.load(made.path).module()
    numbers = torch.tensor([[30.0, 160.0], [float("nan"), 190.0], [55.0, float("nan")]])
    found = network(numbers)["probs"].numpy()
    texts = [["" if np.isnan(one) else f"{one}" for one in row] for row in numbers.tolist()]
    truth = predicted(tmp_path / "run", tmp_path, texts, ("age", "height"))
    np.testing.assert_allclose(found, truth, atol=2e-5)


def test_a_column_that_float32_cannot_hold_is_refused_by_name(tmp_path, capsys):
    rows = [(f"{1.7e9 + 10 * float(height)}", name) for _, height, _, _, name in table_rows(100)]
    data = write_table(tmp_path / "times.csv", rows, ("seconds", "class"))
    assert main(["train", "--data", f"{data}", "--epochs", "1", "--out", f"{tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    line = ["export", f"{tmp_path / 'run'}", "--out", f"{tmp_path / 'm.pt'}"]
    said = refused([*line, "--with-preprocessing"], capsys)
    assert "--with-preprocessing" in said and "'seconds'" in said
    assert main(line) == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--format tflite", "--format"),
        ("--format onnx --out m.pt", "--format"),
        ("--out m.tflite", "--out"),
        ("--out .", "--out"),
        ("--out file/m.pt", "--out"),
        ("--out file.pt", "--overwrite"),
        ("--out m.pt --outputs probz", "probs"),
        ("--out m.pt --outputs probs,probs", "--outputs"),
        ("--out m.pt --outputs=", "--outputs"),
        ("--out m.pt --opset 18", "--opset"),
        ("--out m.onnx --opset 3", "--opset"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(run_of, tmp_path, monkeypatch, capsys, options, named):
    directory = run_of("belief_matching")
    monkeypatch.chdir(tmp_path)
    for name in ("file", "file.pt"):
        (tmp_path / name).write_text("mine")
    assert named in refused(["export", f"{directory}", *options.split()], capsys)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "file.pt"]
    assert (tmp_path / "file.pt").read_text() == "mine"


def test_what_is_no_finished_run_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "empty", "file", ""):
        assert "RUN" in refused(["export", name, "--out", "m.pt"], capsys)
    assert not (tmp_path / "m.pt").exists()


def test_mc_dropout_is_refused_with_the_reason(run_of, tmp_path, capsys):
    said = refused(["export", f"{run_of('mc_dropout')}", "--out", f"{tmp_path / 'm.pt'}"], capsys)
    assert "mc_dropout" in said and "`RUN`" in said


def test_measures_of_a_belief_are_refused_for_a_method_without(run_of, tmp_path, capsys):
    line = ["export", f"{run_of('temperature')}", "--out", f"{tmp_path / 'm.pt'}", "--outputs", "precision"]
    assert "precision" in refused(line, capsys)


def test_the_missing_extra_is_named(run_of, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    said = refused(["export", f"{run_of('belief_matching')}", "--out", f"{tmp_path / 'm.onnx'}"], capsys)
    assert "beliefmatch[export]" in said


def test_the_help_names_every_output(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert "export" in app.COMMANDS and main(["export", "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").replace(".", " ").split()
    assert set(OUTPUTS) <= set(words)
