"""The engine: devices, processes, precision, and predictions of all examples."""

import os

import pytest
import torch
from torch import nn

from beliefmatch.methods.base import NetworkPredictor, Prediction
from beliefmatch.models import build_model
from beliefmatch.train import Engine, EngineConfig, predict_all
from beliefmatch.train import engine as engines
from small_training import Examples, engine, normalised_network

NAMES = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@pytest.mark.parametrize("precision", list(NAMES))
def test_an_engine_describes_itself_and_sets_threads_while_it_runs(precision):
    on, before = engine(precision), torch.get_num_threads()
    assert on.describe(on.prepare(normalised_network())) == {
        "device": "cpu",
        "processes": 1,
        "precision": NAMES[precision],
        "layout": "channels_last",
        "compiled": False,
        "threads": 1,
    }
    assert (on.rank, on.world_size, on.is_main_process) == (0, 1, True)
    assert (on.scaler is not None) == (precision == "16")
    on.config = EngineConfig(threads=torch.get_num_threads() + 1)
    with on.running():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_the_layout_of_a_record_is_that_of_the_network():
    on = engine()
    for width, layout, format in ((15, "contiguous", None), (16, "channels_last", torch.channels_last)):
        network = on.prepare(normalised_network(width=width))
        weight = network[0].weight
        assert on.describe(network)["layout"] == layout
        assert weight.is_contiguous(memory_format=format or torch.contiguous_format)


def test_missing_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="`accelerator`"):
        Engine(EngineConfig(accelerator="cuda"))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with pytest.raises(ValueError, match="`devices` must be at most 4"):
        Engine(EngineConfig(accelerator="cpu", devices="99"))
    monkeypatch.setattr("os.cpu_count", lambda: None)  # unknown
    with pytest.raises(ValueError, match="`devices` must be at most 2"):
        Engine(EngineConfig(accelerator="cpu", devices="3"))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("3", 1)),
        ({"WORLD_SIZE": "8"}, ("3", 1)),  # left over from another program
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, ("4", 2)),
    ],
)
def test_the_launcher_decides_the_number_of_processes(monkeypatch, variables, expected):
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert engines._devices_and_nodes(EngineConfig(devices="3")) == expected


@pytest.fixture
def processor(monkeypatch):
    """A processor with the given flags, on which a child process survives bfloat16 or not."""

    def set_up(flags, survives, without_tiles=False):
        forget()
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        monkeypatch.setattr(engines, "_cpu_flags", lambda: set(flags.split()))
        limited = {None: survives, "AVX512_CORE_BF16": without_tiles}
        monkeypatch.setattr(
            engines, "_child_survives_bf16", lambda: limited[os.environ.get("ONEDNN_MAX_CPU_ISA")]
        )

    yield set_up
    forget()


def forget():
    engines._tiles_work.cache_clear()
    engines._bf16_is_safe.cache_clear()


@pytest.mark.parametrize(
    ("flags", "survives", "without_tiles", "auto", "limit"),
    [
        ("avx2", False, False, "32-true", None),
        ("avx2 avx512_bf16", False, False, "32-true", None),  # no tiles, nothing to try
        ("avx512_bf16 amx_bf16", True, True, "bf16-mixed", None),
        ("avx512_bf16 amx_bf16", False, True, "32-true", "AVX512_CORE_BF16"),
    ],
)
def test_auto_is_bf16_where_tiles_work_and_bf16_avoids_tiles_that_do_not(
    processor, flags, survives, without_tiles, auto, limit
):
    processor(flags, survives, without_tiles)
    assert engines.resolve_precision("auto", "cpu") == auto
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    assert engines.resolve_precision("bf16", "cpu") == "bf16-mixed"
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == limit


def test_tiles_that_the_environment_forbids_are_not_used(processor, monkeypatch):
    processor("avx512_bf16 amx_bf16", True, True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert engines.resolve_precision("auto", "cpu") == "32-true"
    assert engines.resolve_precision("bf16", "cpu") == "bf16-mixed"


def test_bf16_that_would_end_the_process_is_refused(processor):
    processor("avx512_bf16 amx_bf16", False, False)
    with pytest.raises(ValueError, match=r"`precision`.*ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
        Engine(EngineConfig(accelerator="cpu", precision="bf16"))


def test_a_child_that_dies_or_hangs_has_not_survived(monkeypatch):
    monkeypatch.setattr(engines, "_multiply_and_exit", lambda: os.kill(os.getpid(), 9))
    assert engines._child_survives_bf16() is False
    monkeypatch.setattr(engines, "_multiply_and_exit", lambda: os._exit(0))
    assert engines._child_survives_bf16() is True
    monkeypatch.setattr(engines, "_CHILD_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(engines, "_multiply_and_exit", lambda: os.kill(os.getpid(), 19))
    assert engines._child_survives_bf16() is False


def test_predictions_are_read_in_double_precision_and_in_order():
    network, source = normalised_network(), Examples(11)
    predictor = NetworkPredictor(network, lambda logits: Prediction(logits.softmax(1)))
    exact = predict_all(engine(), predictor, source, batch_size=4)
    with torch.no_grad():
        expected = network(source.images).double().softmax(1)
    torch.testing.assert_close(exact.probs, expected, rtol=1e-5, atol=1e-7)
    assert exact.logits is None and exact.probs.dtype == torch.float64
    rough = predict_all(engine("bf16"), predictor, source)
    assert rough.probs.dtype == torch.float64
    assert 0 < (rough.probs - exact.probs).abs().max() < 0.02


@pytest.mark.parametrize(("many", "batch_size", "which"), [(0, 4, "source"), (3, 0, "batch_size")])
def test_no_examples_cannot_be_predicted(many, batch_size, which):
    with pytest.raises(ValueError, match=f"predict_all: `{which}` must be"):
        predict_all(engine(), None, Examples(many), batch_size)  # type: ignore[arg-type]


def test_narrow_networks_keep_the_default_layout_and_compute_the_same():
    network = build_model("preact_resnet18", num_classes=4, channels=3, width=4).eval()
    images = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    before, seen, on = network(images.contiguous()), [], engine()
    network.stem.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    torch.testing.assert_close(on.prepare(on.prepare(network))(images), before)
    assert seen[0].is_contiguous()
    wide = on.prepare(nn.Sequential(nn.Conv2d(3, 16, 3)))
    assert wide[0].weight.is_contiguous(memory_format=torch.channels_last)
