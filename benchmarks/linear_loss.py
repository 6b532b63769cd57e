"""Time and memory of `linear_belief_matching_loss` beside a linear layer and the loss of its logits.

    python benchmarks/linear_loss.py                              4096 rows, 512 features, 50,000 classes
    python benchmarks/linear_loss.py --shape 1024x512x50000 --rounds 3
    python benchmarks/linear_loss.py --json benchmarks/linear_loss.json

A pass is forward and backward, with gradients of features, weight and bias, in float32. For the time all
contenders run in one process and take turns, in an order that is shuffled in every round; a ratio is the
median over rounds of a contender's processor seconds (all threads) divided by those of the first in the same
round. For the memory each runs once in a process of its own: `resident` is how far the pass raised the
largest resident memory of the process, `allocated` the most that torch's allocator had handed out at one
time, both beyond what there was before the pass.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beliefmatch import belief_matching_loss, kernels, linear_belief_matching_loss
from beliefmatch._environment import hardware, versions
from memory import peak_bytes
from timing import summary

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
BASE = "linear + cross_entropy"
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in which `getrusage` counts


def of_cross_entropy(features: Tensor, weight: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(features, weight, bias), targets)


def of_belief_matching(features: Tensor, weight: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
    logits = functional.linear(features, weight, bias)
    return belief_matching_loss(logits, targets, kl_weight=0.1 / len(weight))


def in_chunks(features: Tensor, weight: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
    return linear_belief_matching_loss(features, weight, targets, bias, kl_weight=0.1 / len(weight))


def torch_in_chunks(features: Tensor, weight: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return functional.linear_cross_entropy(features, weight, targets, linear_bias=bias, options=options)


CONTENDERS: dict[str, Loss] = {
    BASE: of_cross_entropy,
    "linear + belief_matching_loss": of_belief_matching,
    "linear_belief_matching_loss": in_chunks,
}
if hasattr(torch.nn, "LinearCrossEntropyOptions"):  # torch 2.13
    CONTENDERS["linear_cross_entropy"] = torch_in_chunks


def inputs(rows: int, width: int, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, weight, targets and bias; the logits are standard normal."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(rows, width, generator=generator).requires_grad_()
    weight = (torch.randn(classes, width, generator=generator) / width**0.5).requires_grad_()
    targets = torch.randint(classes, (rows,), generator=generator)
    return features, weight, targets, torch.zeros(classes, requires_grad=True)


def run(loss: Loss, tensors: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
    """Processor seconds of one pass."""
    began = time.process_time()
    loss(*tensors).backward()
    spent = time.process_time() - began
    for tensor in tensors:
        tensor.grad = None
    return spent


def peaks(name: str, shape: tuple[int, int, int]) -> dict[str, int]:
    """Bytes of one pass of a contender in this process."""
    rows, width, classes = shape
    run(CONTENDERS[name], inputs(8, width, 100))  # code and thread pools are loaded before
    tensors = inputs(rows, width, classes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    allocated = peak_bytes(lambda: run(CONTENDERS[name], tensors))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"resident": (after - before) * UNIT, "allocated": allocated}


def peaks_apart(name: str, text: str, threads: int) -> dict[str, int]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--peaks-of", name, "--shape", text, "--threads", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def measured(text: str, shape: tuple[int, int, int], rounds: int, threads: int) -> dict[str, Any]:
    """Times and memory of every contender at one shape."""
    memory = {name: peaks_apart(name, text, threads) for name in CONTENDERS}
    tensors, spent, order = inputs(*shape), [], list(CONTENDERS)
    for name in order:
        run(CONTENDERS[name], inputs(8, shape[1], 100))
    for _ in range(rounds):
        random.Random(len(spent)).shuffle(order)
        spent.append({name: run(CONTENDERS[name], tensors) for name in order})
    found = {}
    for name in CONTENDERS:
        timing = summary(spent, name, BASE)
        found[name] = {
            "seconds": timing.seconds,
            "ratio": timing.ratio,
            "ratio_quartiles": timing.quartiles,
            **memory[name],
        }
    return {"shape": text, "rounds": rounds, "threads": threads, "contenders": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", default="4096x512x50000", help="rows x features x classes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--peaks-of", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows, width, classes = (int(part) for part in args.shape.split("x"))
    if args.peaks_of:
        print(json.dumps(peaks(args.peaks_of, (rows, width, classes))))
        return
    result = measured(args.shape, (rows, width, classes), args.rounds, args.threads)
    for name, one in result["contenders"].items():
        low, high = one["ratio_quartiles"]
        print(
            f"{name:30} {one['seconds']:6.2f} s, {one['ratio']:.2f} ({low:.2f} to {high:.2f}), "
            f"{one['resident'] / 1e6:5.0f} MB resident, {one['allocated'] / 1e6:5.0f} MB allocated"
        )
    if args.json:
        facts = {"hardware": hardware(), "versions": versions("beliefmatch", "torch")}
        text = json.dumps({**facts, "kernel": kernels.status().name, **result}, indent=1)
        Path(args.json).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
