"""How often 95 % intervals of AUROC and AUPR miss the truth, in simulations of two normal distributions.

    python benchmarks/intervals.py                                         the table of docs/metrics.md
    python benchmarks/intervals.py --simulations 50 --draws 100 --json intervals.json

In-distribution scores have mean 0 and OOD scores the mean `shift`, both with variance 1, so that the true
areas are known: AUROC = Φ(shift / √2), and AUPR by an integral over the threshold. Three intervals of the
same scores are compared: that of the library, normal on the logit scale; the plain normal one of the same
standard error; and the bias-corrected bootstrap.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch._environment import provenance
from beliefmatch.metrics import Interval, aupr, aupr_interval, auroc, auroc_interval, bootstrap

LEVEL = 0.95


class Measure(NamedTuple):
    """An area, its interval in the library, and its true value for a share of OOD examples and a shift."""

    title: str
    value: Callable[[Tensor, Tensor], float]
    interval: Callable[[Tensor, Tensor], Interval]
    truth: Callable[[float, float], float]


def _true_auroc(share: float, shift: float) -> float:
    return NormalDist().cdf(shift / math.sqrt(2))


def _true_aupr(share: float, shift: float) -> float:
    """Precision over recall, where `share` of all examples is positive and these lie higher by `shift`."""
    threshold = torch.linspace(-10, 10 + shift, 200_001, dtype=torch.float64)
    recall, flagged = torch.special.ndtr(shift - threshold), torch.special.ndtr(-threshold)
    precision = share * recall / (share * recall + (1 - share) * flagged).clamp(min=1e-300)
    return -torch.trapezoid(precision, recall).item()


AUROC = Measure("AUROC", auroc, auroc_interval, _true_auroc)
AUPR_OOD = Measure("AUPR, OOD positive", aupr, aupr_interval, _true_aupr)
AUPR_ID = Measure(
    "AUPR, in-distribution positive",
    lambda known, ood: aupr(known, ood, positive="in_distribution"),
    lambda known, ood: aupr_interval(known, ood, positive="in_distribution"),
    lambda share, shift: _true_aupr(1 - share, shift),
)
CASES = (
    (100, 100, 3.17, (AUROC, AUPR_OOD)),
    (1000, 1000, 3.62, (AUROC,)),
    (200, 30, 1.8, (AUROC, AUPR_ID)),
)
"""In-distribution examples, OOD examples, the distance of the means, and the areas near 1."""


def plain_normal(found: Interval) -> Interval:
    """The normal interval of the standard error that a normal one on the logit scale has."""
    if not 0 < found.value < 1:
        return Interval(found.value, found.value, found.value)
    low, high = (math.log(end / (1 - end)) for end in (found.low, found.high))
    reach = (high - low) / 2 * found.value * (1 - found.value)
    return Interval(found.value, found.value - reach, found.value + reach)


def bootstrapped(measure: Measure, known: Tensor, ood: Tensor, draws: int) -> Interval:
    """The bias-corrected bootstrap of all examples together."""
    scores, is_ood = torch.cat([known, ood]), torch.arange(len(known) + len(ood)) >= len(known)

    def statistic(scores: Tensor, is_ood: Tensor) -> float:
        return measure.value(scores[~is_ood], scores[is_ood])

    return bootstrap(statistic, [scores, is_ood], resamples=draws, level=LEVEL)


def simulate(
    measure: Measure, count: int, others: int, shift: float, *, simulations: int, draws: int
) -> dict[str, float]:
    """The true value, and the share of the simulations in which each interval misses it."""
    truth, rng = measure.truth(others / (count + others), shift), torch.Generator().manual_seed(0)
    missed = {"plain": 0, "bootstrap": 0, "logit": 0}
    for _ in range(simulations):
        known = torch.randn(count, generator=rng, dtype=torch.float64)
        ood = torch.randn(others, generator=rng, dtype=torch.float64) + shift
        found = measure.interval(known, ood)
        ways = {"plain": plain_normal(found), "bootstrap": bootstrapped(measure, known, ood, draws)}
        for name, one in {**ways, "logit": found}.items():
            missed[name] += not one.low <= truth <= one.high
    return {"truth": truth, **{name: count / simulations for name, count in missed.items()}}


def main() -> None:
    """Print the table, and write the numbers with what they were measured with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--simulations", type=int, default=400)
    parser.add_argument("--draws", type=int, default=300, help="Resamples of each bootstrap.")
    parser.add_argument("--json", type=Path, help="File to write the numbers to.")
    given = parser.parse_args()
    print("| in-distribution, OOD | metric | true value | plain normal | bootstrap | logit |")
    print("|---|---|---:|---:|---:|---:|")
    rows, start = [], time.perf_counter()
    for count, others, shift, measures in CASES:
        for measure in measures:
            found = simulate(measure, count, others, shift, simulations=given.simulations, draws=given.draws)
            rows.append({"in_distribution": count, "ood": others, "metric": measure.title, **found})
            shares = " | ".join(f"{100 * found[name]:.1f} %" for name in ("plain", "bootstrap", "logit"))
            print(f"| {count}, {others} | {measure.title} | {found['truth']:.4f} | {shares} |", flush=True)
    if given.json is not None:
        settings = {"level": LEVEL, "simulations": given.simulations, "draws": given.draws}
        record = {
            "settings": settings,
            "rows": rows,
            **provenance(time.perf_counter() - start, "beliefmatch", "torch"),
        }
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
