"""Time of evaluating very many predictions: error, top-5 error, NLL, Brier score and calibration error.

    python benchmarks/metrics_scale.py                           100,000 predictions over 1000 classes
    python benchmarks/metrics_scale.py --examples 1000000        a million
    python benchmarks/metrics_scale.py --threads 1 --classes 10

Predictions come in batches from a pool that is used again and again, so that memory stays below a gigabyte
whatever the number of examples. Every contender sees as many batches, in turns, each time another batch than
the contender before it, so that none finds its numbers in the cache. Ratios are to reading alone, the sum of
the batch. `Summary` computes all five numbers at once; torchmetrics three of them, each by itself, because it
has neither NLL nor Brier score for classes.
"""

import argparse
import random
import resource
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from beliefmatch._environment import hardware, versions
from beliefmatch.metrics import Summary, outcomes

POOL = 100_000_000  # numbers, 400 MB: more than a cache holds


class Batch(NamedTuple):
    """Predictions and what came true."""

    logits: Tensor
    probs: Tensor
    targets: Tensor


Contender = Callable[[Batch], object]


def contenders(classes: int) -> dict[str, Contender]:
    """What is compared, the first with itself."""
    ours, of_logits = Summary(), Summary()
    options = {"num_classes": classes, "validate_args": False}
    theirs = {
        "error": MulticlassAccuracy(average="micro", **options),
        "top-5": MulticlassAccuracy(average="micro", top_k=min(5, classes), **options),
        "ECE": MulticlassCalibrationError(n_bins=15, **options),
    }
    return {
        "read: probs.sum()": lambda batch: batch.probs.sum(),
        "Summary, probs": lambda batch: ours.update(batch.probs, batch.targets),
        "Summary, logits": lambda batch: of_logits.update(logits=batch.logits, target=batch.targets),
        "outcomes, probs": lambda batch: outcomes(batch.targets, probs=batch.probs),
        **{f"torchmetrics, {name}": _update(metric) for name, metric in theirs.items()},
    }


def _update(metric: Metric) -> Contender:
    return lambda batch: metric.update(batch.probs, batch.targets)


def pool(rows: int, batch: int, classes: int) -> list[Batch]:
    """Predictions of which three quarters are right."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(max(2, min(rows, POOL // classes) // batch)):
        logits = 3 * torch.randn(batch, classes, generator=generator)
        right = torch.rand(batch, generator=generator) < 0.75
        other = torch.randint(classes, (batch,), generator=generator)
        made.append(Batch(logits, logits.softmax(1), torch.where(right, logits.argmax(1), other)))
    return made


def measure(rows: int, batch: int, classes: int) -> dict[str, list[float]]:
    """Seconds of every batch, by contender."""
    batches, chosen = pool(rows, batch, classes), contenders(classes)
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    order = list(chosen)
    for turn in range(-1, rows // batch):  # the first is for warming up
        random.Random(turn).shuffle(order)
        for place, name in enumerate(order):
            given = batches[(turn * len(order) + place) % len(batches)]
            start = time.perf_counter()
            chosen[name](given)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Measure and print a table."""
    read = argparse.ArgumentParser(description="Time of evaluating very many predictions.")
    read.add_argument("--examples", type=int, default=100_000)
    read.add_argument("--classes", type=int, default=1000)
    read.add_argument("--batch", type=int, default=5000)
    read.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = read.parse_args()
    torch.set_num_threads(args.threads)
    print(hardware(), versions("torch", "numpy", "torchmetrics"))
    print(f"{args.examples:,} x {args.classes:,}, batches of {args.batch:,}, threads {args.threads}")
    found = measure(args.examples, args.batch, args.classes)
    base = median(next(iter(found.values())))
    print(f"{'':30s}{'seconds':>9s}{'ns/number':>11s}{'ratio':>8s}{'fastest':>9s}")
    fastest = min(next(iter(found.values())))
    for name, seconds in found.items():
        each = median(seconds) / args.batch / args.classes * 1e9
        ratio, best = median(seconds) / base, min(seconds) / fastest
        print(f"{name:30s}{sum(seconds):9.2f}{each:11.2f}{ratio:8.1f}{best:9.1f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak:.1f} GB")


if __name__ == "__main__":
    main()
