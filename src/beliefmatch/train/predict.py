"""Predictions for all examples of a source, made by all processes together."""

from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.data.sources import Source
from beliefmatch.methods.base import Prediction, Predictor
from beliefmatch.train.engine import Inference

__all__ = ["PredictedSet", "predict_all"]


class PredictedSet(NamedTuple):
    """Probabilities (N, K), logits or ln α (N, K) where the method has them, class ids (N,); on the CPU."""

    probs: Tensor
    logits: Tensor | None
    targets: Tensor
    has_belief: bool = False
    mutual_information: Tensor | None = None
    """(N,), of masks or members; None where the prediction has none, or a belief that has its own."""


def predict_all(
    engine: Inference, predictor: Predictor, source: Source, batch_size: int = 512
) -> PredictedSet:
    """Predict every example of a source once, in order; all processes get all rows.

    Each process predicts a contiguous range of the examples. The network computes in the engine's precision;
    its logits are read in double precision.

    Args:
        engine: devices and precision to compute with.
        predictor: predictor of the method, with its trained networks.
        source: examples, read without augmentation.
        batch_size: examples at once, in each process.
    """
    if len(source) == 0 or batch_size < 1:
        which, got = ("source", "no example") if len(source) == 0 else ("batch_size", f"{batch_size}")
        raise fail("predict_all", f"`{which}` must be at least one, got {got}.")
    ranges = torch.arange(len(source)).tensor_split(engine.world_size)
    own, lengths = ranges[engine.rank], [len(each) for each in ranges]
    # a process without examples predicts the first one too, to know the shape of a row
    indices = own.split(batch_size) if len(own) else [torch.zeros(1, dtype=torch.int64)]
    with engine.running(), engine.autocast():
        batches = source.batches(indices, device=engine.device)
        predictions = [predictor.predict(batch.inputs) for batch in batches]
    rows = [torch.cat([one.probs for one in predictions])]
    logits = [found for one in predictions if (found := _logits(one)) is not None]
    entropies = [one.entropies for one in predictions if one.entropies is not None]
    has_logits, has_entropies = (len(each) == len(predictions) for each in (logits, entropies))
    rows += [torch.cat(logits)] if has_logits else []
    rows += [torch.cat([one.mutual_information for one in entropies])] if has_entropies else []
    probs, *others = (engine.gather(each[: len(own)], lengths).cpu() for each in rows)
    return PredictedSet(
        probs,
        logits=others[0] if has_logits else None,
        targets=source.targets,
        has_belief=all(one.belief is not None for one in predictions),
        mutual_information=others[-1] if has_entropies else None,
    )


def _logits(prediction: Prediction) -> Tensor | None:
    return prediction.logits if prediction.belief is None else prediction.belief.log_alpha
