"""Time of one forward and backward pass of the loss, as a ratio to torch's cross-entropy.

    python benchmarks/loss.py [--seconds 2] [--threads 2] [--shape 128x10 ...]

All contenders take turns within one run, so that a busy moment of the machine hits all of them; the
median of each is divided by the median of `F.cross_entropy`.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from beliefmatch import belief_matching_loss, kernels

SHAPES = ("128x10", "128x100", "256x1000", "1024x32000")
KL_WEIGHT = 1e-4


def pasted_formula(logits: Tensor, targets: Tensor) -> Tensor:
    """The paper's formula as usually pasted."""
    alpha = logits.exp()
    total = alpha.sum(-1, keepdim=True)
    mean_log = torch.digamma(alpha) - torch.digamma(total)
    divergence = (
        torch.lgamma(total).squeeze(-1)
        - torch.lgamma(alpha).sum(-1)
        - torch.lgamma(torch.tensor(float(logits.shape[-1])))
        + ((alpha - 1) * mean_log).sum(-1)
    )
    return (KL_WEIGHT * divergence - mean_log.gather(-1, targets[:, None]).squeeze(-1)).mean()


def ours(logits: Tensor, targets: Tensor) -> Tensor:
    return belief_matching_loss(logits, targets, kl_weight=KL_WEIGHT)


CONTENDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "beliefmatch": ours,
    "pasted formula": pasted_formula,
}


def one_pass(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor) -> float:
    logits.grad = None
    start = time.perf_counter()
    loss(logits, targets).backward()
    return time.perf_counter() - start


def measure(rows: int, classes: int, seconds: float) -> dict[str, list[float]]:
    """Times of every contender, taken in turns until the time is used up."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator).requires_grad_()
    targets = torch.randint(classes, (rows,), generator=generator)
    for loss in CONTENDERS.values():
        one_pass(loss, logits, targets)
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["cross_entropy"]) < 5:
        for name, loss in CONTENDERS.items():
            times[name].append(one_pass(loss, logits, targets))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="Loss timings as ratios to cross-entropy.")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each shape")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--shape", nargs="*", default=SHAPES, help="rows x classes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(
        f"torch {torch.__version__}, {platform.machine()}, {args.threads} threads, float32, "
        f"kernel {kernels.status().name}; forward + backward, median, ratio to F.cross_entropy"
    )
    print(
        f"{'shape':>12} {'rounds':>7} {'cross-entropy':>14}",
        *(f"{n:>15}" for n in CONTENDERS if n != "cross_entropy"),
    )
    for shape in args.shape:
        rows, classes = (int(part) for part in shape.split("x"))
        times = measure(rows, classes, args.seconds)
        base = statistics.median(times.pop("cross_entropy"))
        rounds = len(times["beliefmatch"])
        ratios = [f"{statistics.median(values) / base:14.2f}x" for values in times.values()]
        print(f"{shape:>12} {rounds:>7} {base * 1e3:>11.3f} ms", *ratios)


if __name__ == "__main__":
    main()
