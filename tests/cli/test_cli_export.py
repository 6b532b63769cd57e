"""`beliefmatch export`: files that return what `predict` does, for every method, or one line of refusal."""

import warnings

import numpy as np
import pytest
import torch

from beliefmatch import Belief
from beliefmatch.cli import app, main
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import network_inputs
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
