"""Training of networks: a loop that knows an objective and a network, and nothing of the method behind them.

    engine = beliefmatch.train.Engine(beliefmatch.train.EngineConfig(precision="32"))
    history = beliefmatch.train.fit(engine, network, source, TrainConfig(), objective_at=..., seed=0)

Names are loaded on first use, so that the configuration can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beliefmatch.train.aux_loss import AuxLoss
    from beliefmatch.train.checkpoint import Checkpointing, final_weights
    from beliefmatch.train.config import EngineConfig, TrainConfig
    from beliefmatch.train.engine import Engine
    from beliefmatch.train.history import CsvLog, Epoch, History, Progress, TensorBoardLog
    from beliefmatch.train.interrupt import Interrupted
    from beliefmatch.train.loop import fit
    from beliefmatch.train.predict import PredictedSet, predict_all

__all__ = [
    "AuxLoss",
    "Checkpointing",
    "CsvLog",
    "Engine",
    "EngineConfig",
    "Epoch",
    "History",
    "Interrupted",
    "PredictedSet",
    "Progress",
    "TensorBoardLog",
    "TrainConfig",
    "final_weights",
    "fit",
    "predict_all",
]

_MODULES = {
    "AuxLoss": "aux_loss",
    "Checkpointing": "checkpoint",
    "CsvLog": "history",
    "Engine": "engine",
    "EngineConfig": "config",
    "Epoch": "history",
    "History": "history",
    "Interrupted": "interrupt",
    "PredictedSet": "predict",
    "Progress": "history",
    "TensorBoardLog": "history",
    "TrainConfig": "config",
    "final_weights": "checkpoint",
    "fit": "loop",
    "predict_all": "predict",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'beliefmatch.train' has no attribute {name!r}")
    return getattr(import_module(f"beliefmatch.train.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
