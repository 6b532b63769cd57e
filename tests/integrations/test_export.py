"""Exported files compute what the network and its belief do, or are not written."""

import json
import logging
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import beliefmatch
from beliefmatch import Belief, export, kernels
from beliefmatch.integrations import export as exporting
from beliefmatch.integrations.export import METADATA, METADATA_FILE, OUTPUTS, ExportRecord, PortableFunctions
from outside_packages import imported
from small_classifiers import normalising

MAIN = ["probs", "predictions", "entropy", "expected_entropy", "mutual_information", "precision", "variance"]
ABSOLUTE = {"expected_entropy": 8e-6}
"""Outputs whose small values are differences of large numbers."""
RELATIVE = 8e-6


def rows(classes, seed=0):
    """Logits within ±80: of any pattern, of networks, nearly equal, and rows that one class dominates."""
    rng = torch.Generator().manual_seed(seed)

    def normal(count, width=classes):
        return torch.randn(count, width, generator=rng)

    def uniform(count, width=classes):
        return 2 * torch.rand(count, width, generator=rng) - 1

    dominated = normal(2000)
    dominated[:, 0] += 25 * (1 + uniform(2000)[:, 0])
    parts = [80 * uniform(2000), 4 * normal(2000), 0.1 * normal(2000) + 79 * uniform(2000, 1)]
    parts += [
        dominated + 20 * uniform(2000, 1),
        torch.full((1, classes), 80.0),
        torch.full((1, classes), -80.0),
    ]
    return torch.cat(parts).clamp(-80, 80)


def expected(logits, name):
    belief = Belief(logits.double())
    value = belief.log_alpha if name == "logits" else getattr(belief, name)
    return (value() if callable(value) else value).double()


def assert_agree(found, logits, names):
    for name in names:
        truth, value = expected(logits, name), torch.as_tensor(found[name]).double()
        assert value.shape == truth.shape
        distance = (value - truth).abs()
        if name in ("differential_entropy", "log_precision"):  # of either sign
            assert (distance <= RELATIVE * (1 + truth.abs())).all(), name
        else:
            allowed = RELATIVE * truth.abs() + ABSOLUTE.get(name, 1e-30)
            assert (distance <= allowed).all(), name


def session_of(path):
    onnxruntime = imported("onnxruntime")
    return onnxruntime.InferenceSession(f"{path}", providers=["CPUExecutionProvider"])


def run_onnx(session, **inputs):
    names = [one.name for one in session.get_outputs()]
    return dict(
        zip(names, session.run(None, {name: np.asarray(x) for name, x in inputs.items()}), strict=True)
    )


def loaded_script(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(path)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    """The outputs of seven logits, with names of the classes."""
    imported("onnxruntime"), imported("onnxscript")
    names = [f"class {index}" for index in range(7)]
    path = tmp_path_factory.mktemp("onnx") / "made" / "m.onnx"
    return export(
        nn.Identity(),
        path,
        torch.randn(2, 7),
        outputs=MAIN,
        class_names=names,
        preprocessing={"size": [1, 7]},
    )


def test_onnxruntime_computes_the_belief_of_logits_within_80(onnx_file):
    logits = rows(7)
    assert_agree(run_onnx(session_of(onnx_file.path), inputs=logits), logits, MAIN)


def test_an_onnx_file_takes_batches_of_any_size_and_describes_itself(onnx_file):
    session = session_of(onnx_file.path)
    (given,) = session.get_inputs()
    assert (given.name, given.shape, given.type) == ("inputs", ["batch", 7], "tensor(float)")
    shapes = {one.name: one.shape for one in session.get_outputs()}
    assert list(shapes) == MAIN
    assert shapes["probs"] == ["batch", 7] and shapes["entropy"] == ["batch"]
    for size in (1, 2, 64):
        logits = rows(7)[:size]
        assert_agree(run_onnx(session, inputs=logits), logits, MAIN)
    text = session.get_modelmeta().custom_metadata_map[METADATA]
    record = ExportRecord.from_json(text)
    assert record == onnx_file.record
    assert record.class_names[6] == "class 6" and record.preprocessing == {"size": [1, 7]}
    assert [one.name for one in record.outputs] == MAIN and all(one.description for one in record.outputs)


def test_an_onnx_file_has_no_double_numbers_no_sigmoid_and_no_paths(onnx_file):
    onnx = imported("onnx")
    proto = onnx.load(onnx_file.path)
    assert not {"Sigmoid", "Softplus"} & {node.op_type for node in proto.graph.node}
    assert all(one.data_type != onnx.TensorProto.DOUBLE for one in proto.graph.initializer)
    double = onnx.TensorProto.DOUBLE
    assert all(one.type.tensor_type.elem_type != double for one in proto.graph.value_info)
    assert b"site-packages" not in onnx_file.path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 100])
def test_every_output_of_an_onnx_file_is_exact(tmp_path, classes):
    imported("onnxruntime"), imported("onnxscript")
    logits = rows(classes)
    made = export(nn.Identity(), tmp_path / "m.onnx", logits[:2], outputs=list(OUTPUTS))
    assert_agree(run_onnx(session_of(made.path), inputs=logits), logits, OUTPUTS)


@pytest.mark.parametrize("classes", [2, 3, 50])
def test_every_output_of_a_script_is_exact(tmp_path, classes):
    logits = rows(classes)
    made = export(nn.Identity(), tmp_path / "m.pt", logits[:2], outputs=list(OUTPUTS))
    assert_agree(loaded_script(made.path)(logits), logits, OUTPUTS)
    files = {METADATA_FILE: ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.load(made.path, _extra_files=files)
    assert ExportRecord.from_json(files[METADATA_FILE]) == made.record


def test_an_exported_program_computes_the_belief(tmp_path):
    logits, names = rows(4), ["precision", "mutual_information"]
    made = export(nn.Identity(), tmp_path / "m.pt2", logits[:2], outputs=names)
    files = {METADATA_FILE: ""}
    program = torch.export.load(made.path, extra_files=files)
    found = program.module()(logits)
    assert list(found) == names
    assert_agree(found, logits, names)
    assert ExportRecord.from_json(files[METADATA_FILE]) == made.record


def test_functions_of_the_file_have_full_relative_precision():
    x = torch.cat([torch.logspace(-38, 2, 500), -torch.logspace(-38, -0.01, 500), torch.zeros(1)])
    z = torch.linspace(-87, 87, 1001)
    functions = {
        torch.log1p: x,
        torch.Tensor.log1p: x,
        torch.sigmoid: z,
        torch.Tensor.sigmoid: z,
        nn.functional.logsigmoid: z,
    }
    for function, values in functions.items():
        truth = function(values.double())
        with PortableFunctions():
            found = function(values)
        torch.testing.assert_close(found.double(), truth, rtol=1e-6, atol=1e-38)


# Networks


class Named(nn.Module):
    """A classifier of two inputs that returns an object, as those of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(11, 6), nn.Linear(6, 3)

    def forward(self, ids, mask=None):
        shares = mask / mask.sum(1, keepdim=True)
        return {"logits": self.last((self.embed(ids) * shares[..., None]).sum(1)), "loss": None}


def test_the_network_is_exported_in_eval_mode_and_not_changed(tmp_path):
    network = normalising(dtype=torch.float32, dropout=0.5).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    made = export(network, tmp_path / "m.pt", x)
    assert network.training and all(module.training for module in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert [one.name for one in made.record.outputs] == ["probs", "mutual_information", "precision"]
    with torch.no_grad():
        logits = network.eval()(x)
    found = loaded_script(made.path)(x)
    torch.testing.assert_close(found["probs"], logits.softmax(1))
    torch.testing.assert_close(found["precision"], logits.exp().sum(1))
    assert made.batch_sizes == (3, 1, 5, 8) and max(made.differences.values()) < 1e-5


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
@pytest.mark.parametrize("form", [dict, tuple])
def test_inputs_may_be_several_and_other_dimensions_may_vary(tmp_path, form, suffix):
    torch.manual_seed(0)
    network, ids = Named(), torch.randint(11, (4, 7))
    batch = {"ids": ids, "mask": (ids > 2).float() + 0.5}
    given = batch if form is dict else tuple(batch.values())
    made = export(network, tmp_path / f"m{suffix}", given, outputs=["logits"], dynamic={1: "length"})
    assert [one.shape for one in made.record.inputs] == [["batch", "length"]] * 2
    assert [one.name for one in made.record.inputs] == (
        list(batch) if form is dict else ["inputs_0", "inputs_1"]
    )
    program = loaded_script(made.path) if suffix == ".pt" else torch.export.load(made.path).module()
    shorter = [tensor[:2, :4] for tensor in batch.values()]
    torch.testing.assert_close(program(*shorter)["logits"], network(*shorter)["logits"])


@pytest.fixture(scope="module")
def adapted():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(200, 5)
    data, held_out = (x[:150], x[:150, :3].argmax(1)), (x[150:], x[150:, :3].argmax(1))

    def make(**options):
        options = {"kl_weights": (0.1, 0.01), "controls": ("softmax",), "labels": "new", **options}
        return beliefmatch.adapt(network, data, validation=held_out, **options)

    return make, x


def test_an_adapted_model_is_exported_with_its_belief(adapted, tmp_path):
    make, x = adapted
    model = make()
    made = export(model, tmp_path / "m.pt", x[:4], outputs=["probs", "mutual_information", "precision"])
    found, belief = loaded_script(made.path)(x), model.belief(x)
    torch.testing.assert_close(found["probs"], belief.probs)
    torch.testing.assert_close(found["precision"], belief.precision)
    torch.testing.assert_close(found["mutual_information"], belief.mutual_information(), rtol=1e-5, atol=1e-9)


def test_bootstrap_heads_are_exported_as_one_belief(adapted, tmp_path):
    make, x = adapted
    model = make(heads=3)
    made = export(model, tmp_path / "m.pt", x[:4], outputs=["logits"])
    with torch.no_grad():
        torch.testing.assert_close(loaded_script(made.path)(x)["logits"], model(x), rtol=1e-4, atol=1e-5)


def test_onnx_refuses_bootstrap_heads_with_a_remedy(adapted, tmp_path):
    make, x = adapted
    with pytest.raises(ValueError, match=r"`model`.*digamma.*torchscript"):
        export(make(heads=2), tmp_path / "m.onnx", x[:4])


class OwnClass(nn.Module):
    """A network whose last layer has the name of a method of adapted models."""

    def __init__(self):
        super().__init__()
        self.first, self.predict = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.predict(self.first(x).relu())


def test_an_adapted_model_can_be_scripted_and_traced(adapted, tmp_path):
    _, x = adapted
    torch.manual_seed(0)
    data, held_out = (x[:150], x[:150, :3].argmax(1)), (x[150:], x[150:, :3].argmax(1))
    options = {"kl_weights": (0.01,), "controls": (), "labels": "new"}
    model = beliefmatch.adapt(OwnClass(), data, validation=held_out, **options)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        for script in (torch.jit.script(model), torch.jit.trace(model, x[:3])):
            torch.testing.assert_close(script(x), model(x))


def test_measures_of_a_belief_are_refused_where_there_is_none(adapted, tmp_path):
    make, x = adapted
    model = make()
    model.has_belief = False
    with pytest.raises(ValueError, match=r"`outputs`.*'precision'"):
        export(model, tmp_path / "m.pt", x[:4], outputs=["probs", "precision"])
    made = export(model, tmp_path / "m.pt", x[:4])
    assert [one.name for one in made.record.outputs] == [
        "probs",
        "entropy",
    ] and made.record.reads == "softmax"
    with pytest.raises(ValueError, match="`outputs`"):
        export(nn.Linear(5, 3), tmp_path / "n.pt", x[:4], outputs=["variance"], has_belief=False)


# What cannot be exported


class OfTheFirstBatch(nn.Module):
    """Shifts logits by a number that a trace takes for a constant."""

    def forward(self, x):
        return x + float(x.shape[0])


class OfTheValues(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Failing(nn.Module):
    def forward(self, x):
        raise RuntimeError("no such kernel")


class OfFixedSize(nn.Module):
    def forward(self, x):
        return x.reshape(-1, 3, 4)[:, 0].repeat(3, 1)[: x.shape[0]] if x.shape[0] != 5 else x[:4]


@pytest.mark.parametrize(
    ("network", "suffix", "argument"),
    [
        (OfTheFirstBatch(), ".pt", "model"),
        (OfTheValues(), ".pt2", "model"),
        (OfTheValues(), ".pt", "model"),  # of which a trace keeps one branch
        (Failing(), ".pt", "example_inputs"),
        (OfFixedSize(), ".pt", "model"),
        (nn.Linear(4, 3).double(), ".pt", "model"),
        (nn.Linear(4, 3).bfloat16(), ".pt2", "model"),
    ],
)
def test_a_network_that_cannot_be_exported_leaves_no_file(tmp_path, capfd, network, suffix, argument):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=rf"^export: `{argument}` ") as caught:
        export(network, tmp_path / "new" / f"m{suffix}", x, outputs=["logits"])
    assert "\n" not in f"{caught.value}"
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_an_exporter_that_computes_other_numbers_is_found_out(tmp_path, monkeypatch):
    def wrong(content, record):
        run = runner(content, record)
        return lambda batch: {name: value * 1.01 for name, value in run(batch).items()}

    runner = exporting._runner
    monkeypatch.setattr(exporting, "_runner", wrong)
    for name in ("logits", "probs", "entropy", "mutual_information", "precision"):
        with pytest.raises(ValueError, match=rf"`model`.*{name}"):
            export(nn.Linear(4, 3), tmp_path / "m.pt", torch.randn(3, 4), outputs=[name])
    assert list(tmp_path.iterdir()) == []


GOOD = {"model": nn.Linear(4, 3), "path": "m.pt", "example_inputs": torch.zeros(3, 4)}


@pytest.mark.parametrize(
    ("argument", "value", "others"),
    [
        ("model", "resnet18", {}),
        ("model", nn.Flatten(0), {}),
        ("path", "m.tflite", {}),
        ("path", ".", {"format": "torchscript"}),
        ("path", "", {"format": "torchscript"}),
        ("path", "file/below/m.pt", {}),
        ("path", None, {}),
        ("format", "tflite", {}),
        ("format", "onnx", {}),
        ("outputs", ["probz"], {}),
        ("outputs", [], {}),
        ("outputs", "probs", {}),
        ("outputs", ["probs", "probs"], {}),
        ("outputs", 3, {}),
        ("outputs", iter(["probs"]), {}),
        ("example_inputs", np.zeros((3, 4)), {}),
        ("example_inputs", torch.zeros(3, 4).double(), {}),
        ("example_inputs", torch.zeros(0, 4), {}),
        ("example_inputs", torch.zeros(3, 9), {}),
        ("example_inputs", (torch.zeros(3, 4), torch.zeros(2, 4)), {}),
        ("example_inputs", torch.full((3, 4), torch.nan), {}),
        ("model", nn.Linear(4, 1), {}),
        ("model", nn.Linear(4, 1), {"has_belief": False}),
        ("preprocessing", {"mean": torch.zeros(3)}, {}),
        ("preprocessing", {"mean": float("nan")}, {}),
        ("preprocessing", ["mean"], {}),
        ("class_names", ["a", "b"], {}),
        ("class_names", "abc", {}),
        ("class_names", 3, {}),
        ("dynamic", {5: "far"}, {}),
        ("dynamic", [0], {}),
        ("dynamic", {1: "batch"}, {}),
        ("opset", 20, {}),
        ("opset", 7, {"path": "m.onnx"}),
        ("opset", 99, {"path": "m.onnx"}),
    ],
)
def test_arguments_are_checked_before_anything_is_written(tmp_path, monkeypatch, argument, value, others):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises((ValueError, TypeError), match=f"^export: .*`?{argument}`?") as caught:
        export(**{**GOOD, **others, argument: value})
    assert "\n" not in f"{caught.value}"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_binary_network_is_refused_with_the_two_logits_that_it_stands_for(tmp_path):
    with pytest.raises(ValueError, match=r"^export: `model` .*\[-z/2, z/2\]"):
        export(nn.Linear(4, 1), tmp_path / "m.pt", torch.zeros(3, 4))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("classes", [2, 5])
def test_a_network_that_ends_in_a_softmax_is_refused_with_a_remedy(tmp_path, rows, classes):
    linear = nn.Linear(4, classes)
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"^export: `model` .* softmax"):
        export(nn.Sequential(linear, nn.Softmax(1)), tmp_path / "m.pt", x)
    assert list(tmp_path.iterdir()) == []
    made = export(nn.Sequential(linear, nn.Sigmoid()), tmp_path / "m.pt", x)  # of other sums
    assert made.differences["probs"] < 1e-5


def test_an_operator_set_that_the_exporter_does_not_write_is_refused(tmp_path, monkeypatch):
    imported("onnxruntime")
    made, write = [], torch.onnx.export

    def keeps_its_own(*given, **options):
        made.append(write(*given, **{**options, "opset_version": None}))
        return made[-1]

    monkeypatch.setattr(torch.onnx, "export", keeps_its_own)
    with pytest.raises(ValueError, match=r"^export: `opset` .*got 19"):
        export(**{**GOOD, "path": tmp_path / "m.onnx"}, outputs=["probs"], opset=19)
    assert len(made) == 1 and list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_where_that_is_asked_for(tmp_path):
    path = tmp_path / "m.pt"
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"`path`.*`overwrite`"):
        export(**{**GOOD, "path": path})
    assert path.read_text() == "mine"
    export(**{**GOOD, "path": path}, outputs=["probs"], overwrite=True)
    assert loaded_script(path)(torch.zeros(2, 4))["probs"].shape == (2, 3)
    assert [one.name for one in tmp_path.iterdir()] == ["m.pt"]


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.pt"
    path.write_text("mine")

    def full(place, content):
        raise OSError(28, "No space left on device", f"{place}")

    monkeypatch.setattr(exporting, "atomic_write", full)
    with pytest.raises(OSError, match="No space"):
        export(**{**GOOD, "path": path}, outputs=["probs"], overwrite=True)
    assert path.read_text() == "mine"


def test_without_onnxruntime_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"beliefmatch\[export\]"):
        export(**{**GOOD, "path": tmp_path / "m.onnx"})
    assert list(tmp_path.iterdir()) == []


def test_the_kernel_in_use_stays(tmp_path):
    before = kernels.chosen()
    kernels.use("lean")
    try:
        export(**{**GOOD, "path": tmp_path / "m.pt"}, outputs=["probs"])
        assert kernels.chosen() == "lean"
    finally:
        kernels.use(before)


def test_exports_of_several_threads_leave_the_process_as_it_was(tmp_path):
    before = sys.stdout, sys.stderr, logging.root.manager.disable, kernels.chosen(), warnings.filters[:]

    def work(name):
        for number in range(3):
            export(**{**GOOD, "path": tmp_path / f"{name}{number}.pt"}, outputs=["probs"])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, "abc"))  # with the error of each
    assert len(list(tmp_path.iterdir())) == 9
    after = sys.stdout, sys.stderr, logging.root.manager.disable, kernels.chosen(), warnings.filters[:]
    assert after == before


def test_the_metadata_is_json_that_anybody_can_read(tmp_path):
    made = export(**{**GOOD, "path": tmp_path / "m.pt"}, outputs=["probs"], class_names=["α", "b", "c"])
    content = json.loads(made.record.to_json())
    assert content["schema"] == "beliefmatch.export/1" and content["class_names"] == ["α", "b", "c"]
    assert content["inputs"] == [
        {"name": "inputs", "dtype": "float32", "shape": ["batch", 4], "description": ""}
    ]
