"""The engine: what it runs on, and that it leaves the caller's settings alone."""

import os

import pytest
import torch
from torch import nn

from beliefmatch.train import engine as engines
from beliefmatch.train import engine as precisions
from beliefmatch.train.config import EngineConfig
from beliefmatch.train.engine import Engine
from beliefmatch.train.predict import predict_all
from small_training import Examples, engine, normalised_network

NAMES = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@pytest.mark.parametrize("precision", list(NAMES))
def test_an_engine_says_what_it_is(precision):
    on = engine(precision)
    assert on.describe() == {
        "device": "cpu",
        "processes": 1,
        "precision": NAMES[precision],
        "layout": "channels_last",
        "compiled": False,
        "threads": 1,
    }
    assert (on.rank, on.world_size, on.is_main_process) == (0, 1, True)
    assert (on.scaler is not None) == (precision == "16")


def test_threads_are_set_for_the_time_of_a_training():
    before = torch.get_num_threads()
    with Engine(EngineConfig(accelerator="cpu", precision="32", threads=before + 1)).running():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"Engine: `accelerator` must be .*, got 'cuda'"):
        Engine(EngineConfig(accelerator="cuda"))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with pytest.raises(ValueError, match=r"`devices` must be at most 4, the logical cores of .*, got 99"):
        Engine(EngineConfig(accelerator="cpu", devices="99"))
    monkeypatch.setattr("os.cpu_count", lambda: None)  # unknown
    with pytest.raises(ValueError, match=r"`devices` must be at most 2, the logical cores of .*, got 3"):
        Engine(EngineConfig(accelerator="cpu", devices="3"))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("3", 1)),
        ({"WORLD_SIZE": "8"}, ("3", 1)),  # nobody has launched us: left over from something else
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, ("4", 2)),
    ],
)
def test_the_launcher_says_how_many_processes_there_are(monkeypatch, variables, expected):
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert engines._devices_and_nodes(EngineConfig(devices="3")) == expected


@pytest.fixture
def processor(monkeypatch):
    """A processor with the given flags, on which bfloat16 survives as told, without torch's trying."""

    def set_up(flags, survives, without_tiles=False):
        forget()
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        monkeypatch.setattr(precisions, "_cpu_flags", lambda: set(flags.split()))
        limited = {None: survives, "AVX512_CORE_BF16": without_tiles}
        monkeypatch.setattr(
            precisions, "_child_survives_bf16", lambda: limited[os.environ.get("ONEDNN_MAX_CPU_ISA")]
        )

    yield set_up
    forget()


def forget():
    precisions._tiles_work.cache_clear()
    precisions._bf16_is_safe.cache_clear()


@pytest.mark.parametrize(
    ("flags", "survives", "without_tiles", "auto", "limit"),
    [
        ("avx2", False, False, "32-true", None),
        ("avx2 avx512_bf16", False, False, "32-true", None),  # no tiles, nothing to try
        ("avx512_bf16 amx_bf16", True, True, "bf16-mixed", None),
        ("avx512_bf16 amx_bf16", False, True, "32-true", "AVX512_CORE_BF16"),
    ],
)
def test_auto_is_bf16_where_tiles_work_and_bf16_does_without_where_they_do_not(
    processor, flags, survives, without_tiles, auto, limit
):
    processor(flags, survives, without_tiles)
    assert precisions.resolve_precision("auto", "cpu") == auto
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    assert precisions.resolve_precision("bf16", "cpu") == "bf16-mixed"
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == limit


def test_tiles_that_the_environment_forbids_are_none(processor, monkeypatch):
    processor("avx512_bf16 amx_bf16", True, True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert precisions.resolve_precision("auto", "cpu") == "32-true"
    assert precisions.resolve_precision("bf16", "cpu") == "bf16-mixed"


def test_bf16_that_would_end_the_process_is_refused(processor):
    processor("avx512_bf16 amx_bf16", False, False)
    with pytest.raises(ValueError, match=r"`precision`.*ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
        Engine(EngineConfig(accelerator="cpu", precision="bf16"))


def test_a_child_that_dies_or_hangs_has_not_survived(monkeypatch):
    monkeypatch.setattr(precisions, "_multiply_and_exit", lambda: os.kill(os.getpid(), 9))
    assert precisions._child_survives_bf16() is False
    monkeypatch.setattr(precisions, "_multiply_and_exit", lambda: os._exit(0))
    assert precisions._child_survives_bf16() is True
    monkeypatch.setattr(precisions, "_CHILD_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(precisions, "_multiply_and_exit", lambda: os.kill(os.getpid(), 19))
    assert precisions._child_survives_bf16() is False


def test_predictions_are_read_in_double_precision_and_come_in_order():
    class Softmax:
        def __init__(self, network: nn.Module) -> None:
            self.network = network

        def predict(self, x):
            from beliefmatch.methods.base import Prediction

            return Prediction(self.network.eval()(x).double().softmax(1))

    network, source = normalised_network(), Examples(11)
    exact = predict_all(engine(), Softmax(network), source, batch_size=4)
    with torch.no_grad():
        expected = network(source.images).double().softmax(1)
    torch.testing.assert_close(exact.probs, expected, rtol=1e-5, atol=1e-7)
    assert exact.logits is None and exact.probs.dtype == torch.float64
    rough = predict_all(engine("bf16"), Softmax(network), source)
    assert rough.probs.dtype == torch.float64
    assert 0 < (rough.probs - exact.probs).abs().max() < 0.02


@pytest.mark.parametrize(("many", "batch_size", "which"), [(0, 4, "source"), (3, 0, "batch_size")])
def test_nothing_cannot_be_predicted(many, batch_size, which):
    with pytest.raises(ValueError, match=f"predict_all: `{which}` must be"):
        predict_all(engine(), None, Examples(many), batch_size)  # type: ignore[arg-type]
