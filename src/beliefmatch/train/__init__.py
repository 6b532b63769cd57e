"""Training of networks: a loop that knows an objective and a network, and nothing of the method behind them.

    engine = beliefmatch.train.Engine(beliefmatch.train.EngineConfig(precision="32"))
    history = beliefmatch.train.fit(engine, network, source, TrainConfig(), objective_at=..., seed=0)

Names are loaded on first use, so that the configuration can be read without torch.
"""

from typing import TYPE_CHECKING

from beliefmatch._utils import lazy_names

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


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "aux_loss": "AuxLoss",
        "checkpoint": "Checkpointing final_weights",
        "config": "EngineConfig TrainConfig",
        "engine": "Engine",
        "history": "CsvLog Epoch History Progress TensorBoardLog",
        "interrupt": "Interrupted",
        "loop": "fit",
        "predict": "PredictedSet predict_all",
    },
)
