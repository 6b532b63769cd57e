"""Predictions for a whole set of examples, made by all processes together."""

from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.data.source import Source
from beliefmatch.methods.base import Prediction, Predictor
from beliefmatch.train.engine import Engine

__all__ = ["Predicted", "predict_all"]


class Predicted(NamedTuple):
    """Probabilities (N, K), logits or ln α (N, K) where the method has some, class ids (N,); on the CPU."""

    probs: Tensor
    logits: Tensor | None
    targets: Tensor
    has_belief: bool = False


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
    logits = [found for one in made if (found := _logits(one)) is not None]
    if len(logits) == len(made):
        rows.append(torch.cat(logits))
    probs, *others = (engine.gathered(each[: len(mine)], lengths).cpu() for each in rows)
    has_belief = all(one.belief is not None for one in made)
    return Predicted(probs, others[0] if others else None, source.targets, has_belief)


def _logits(prediction: Prediction) -> Tensor | None:
    return prediction.logits if prediction.belief is None else prediction.belief.log_alpha
