"""Predictions for a whole set of examples, made by all processes together."""

from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch.checks import fail
from beliefmatch.data.source import Source
from beliefmatch.methods.base import Prediction, Predictor
from beliefmatch.train.engine import Engine

__all__ = ["Predicted", "predict_all"]


class Predicted(NamedTuple):
    """Class probabilities (N, K), ln α (N, K) where the method has a belief, class ids (N,); on the CPU."""

    probs: Tensor
    log_alpha: Tensor | None
    targets: Tensor


def predict_all(engine: Engine, predictor: Predictor, source: Source, batch_size: int = 512) -> Predicted:
    """Predict every example of a source once, in its order; all processes get all rows.

    Each process predicts an equal stretch of the examples. The network computes in the engine's precision,
    its logits are read in double precision.

    Args:
        engine: where to compute.
        predictor: of the method, with its trained networks.
        source: the examples, seen without augmentation.
        batch_size: examples at once, in each process.
    """
    if len(source) == 0 or batch_size < 1:
        which, got = ("source", "no example") if len(source) == 0 else ("batch_size", f"{batch_size}")
        raise fail("predict_all", f"`{which}` must be at least one, got {got}.")
    stretches = torch.arange(len(source)).tensor_split(engine.world)
    mine, lengths = stretches[engine.rank], [len(stretch) for stretch in stretches]
    # a process without examples predicts one all the same, to know what a row looks like
    parts = mine.split(batch_size) if len(mine) else [torch.zeros(1, dtype=torch.int64)]
    with engine.running(), engine.autocast():
        made = [predictor.predict(batch.inputs) for batch in source.batches(parts, device=engine.device)]
    rows = [torch.cat([one.probs for one in made])]
    if all(one.belief is not None for one in made):
        rows.append(torch.cat([_log_alpha(one) for one in made]))
    probs, *log_alpha = (engine.gathered(each[: len(mine)], lengths).cpu() for each in rows)
    return Predicted(probs, log_alpha[0] if log_alpha else None, source.targets)


def _log_alpha(prediction: Prediction) -> Tensor:
    assert prediction.belief is not None
    return prediction.belief.log_alpha
