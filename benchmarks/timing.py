"""Contenders take turns: shuffled rounds, medians, and ratios within a round."""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Timing", "interleaved", "summary"]

MIN_ROUNDS, MAX_ROUNDS = 7, 2000
NEARBY = 5.0  # times the base, up to which a contender joins every round
PATIENCE = 3.0  # seconds of a pass, above which one pass is enough

Round = dict[str, float]


@dataclass(frozen=True)
class Timing:
    """Seconds, median and least; the ratio to the base in the same round, median and quartiles."""

    seconds: float
    fastest_seconds: float
    ratio: float
    quartiles: tuple[float, float]
    rounds: int


def interleaved(
    passes: Mapping[str, Callable[[], float]],
    costs: Mapping[str, float],
    seconds: float,
    seed: int = 0,
    before: Callable[[], object] = lambda: None,
) -> list[Round]:
    """Seconds of every contender in each round, until the time is used up.

    A busy moment of the machine hits all contenders of a round, and the order is shuffled, so that none
    always follows the same neighbour. `costs` are rough seconds of a pass: the first contender, the base,
    joins every round, a slow one only every nth, but at least two, and a very slow one the first. `before`
    is called ahead of every pass, untimed, so that all find the caches in the same state.
    """
    base_cost = costs[next(iter(passes))]
    allowance = max(seconds / (MIN_ROUNDS * len(passes)), NEARBY * base_cost)
    strides = {name: _stride(costs[name], allowance) for name in passes}
    shuffle = random.Random(seed).shuffle
    rounds: list[Round] = []
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while len(rounds) < MIN_ROUNDS or (len(rounds) < MAX_ROUNDS and time.perf_counter() < end):
            joining = [name for name, stride in strides.items() if len(rounds) % stride == 0]
            shuffle(joining)
            rounds.append({name: (before(), passes[name]())[1] for name in joining})
    finally:
        gc.enable()
    return rounds


def _stride(cost: float, allowance: float) -> int:
    if cost <= allowance:
        return 1
    return MAX_ROUNDS if cost > PATIENCE else min(math.ceil(cost / allowance), MIN_ROUNDS - 1)


def summary(rounds: list[Round], name: str, base: str) -> Timing:
    """What the rounds that a contender joined say about it."""
    joined = [times for times in rounds if name in times]
    seconds = [times[name] for times in joined]
    ratios = [times[name] / times[base] for times in joined]
    lower, ratio, upper = _quartiles(ratios)
    return Timing(statistics.median(seconds), min(seconds), ratio, (lower, upper), len(joined))


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
