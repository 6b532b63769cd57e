"""Resident memory of fitting heads to many classes, beside the size of all their logits.

    python benchmarks/head_memory.py --rows 2000 --features 64 --classes 20000

Features are standard normal, and the rows of a class are spread evenly. The memory is what the solver adds to
the process at its peak; 25 iterations fill the memory of L-BFGS.
"""

import argparse
import resource
import sys
import time

import torch

from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.adaptation.objectives import loss_of
from beliefmatch.adaptation.solver import Design, solve

DEFAULTS = {"rows": 2000, "features": 64, "classes": 20000, "heads": 1, "iterations": 25}
MEGABYTE = 2**20
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def main() -> None:
    """Fit, and print one line."""
    parser = argparse.ArgumentParser(description="Resident memory of fitting heads to many classes.")
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows, ids = torch.randn(args.rows, args.features).numpy(), torch.arange(args.rows) % args.classes
    options = {"kl_weight": 0.1 / args.classes, "prior": 1.0}
    candidates = [Candidate("belief_matching", options, weight_decay=1e-3 * 2**i) for i in range(args.heads)]
    design, decays = Design(Features(rows, ids, "")), [one.weight_decay for one in candidates]
    init = torch.zeros(args.heads, args.classes, args.features), torch.zeros(args.heads, args.classes)
    before, started = peak_bytes(), time.process_time()
    solution = solve(
        design,
        loss_of(candidates, args.classes),
        torch.tensor(decays),
        init,
        tolerance=0.0,  # so that no head stops before
        max_iterations=args.iterations,
    )
    added, seconds = peak_bytes() - before, time.process_time() - started
    logits = 4 * args.heads * args.rows * args.classes
    parameters = 4 * args.heads * args.classes * (args.features + 1)
    print(
        f"{int(solution.iterations.max())} iterations, {seconds:.0f} s of processor time: "
        f"{added / MEGABYTE:.0f} MB; all logits {logits / MEGABYTE:.0f} MB, "
        f"parameters {parameters / MEGABYTE:.1f} MB"
    )


def peak_bytes() -> int:
    """The most memory that the process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


if __name__ == "__main__":
    main()
