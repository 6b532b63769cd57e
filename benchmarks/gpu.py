"""Time and memory of the loss on a GPU, beside cross-entropy: for whoever has one.

    make bench-gpu                                   all shapes on the first GPU, about two minutes
    python benchmarks/gpu.py --device cuda:1         another device
    python benchmarks/gpu.py --shape 8192x32000      another shape; several may be given

Prints a table and appends every number to benchmarks/gpu_results.csv, with device, versions and date. A pass
is forward and backward; passes take turns, are timed by the clock between two synchronisations, and the ratio
is the median over rounds. Peak memory is what the allocator held beyond the logits.
"""

import csv
import datetime
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from beliefmatch import belief_matching_loss, kernels
from beliefmatch._environment import versions
from run import OneLineParser, parse_shape

SHAPES = ((128, 10), (512, 100), (4096, 1000), (8192, 32000), (2048, 128256))
TYPES = ("float32", "bfloat16")
RESULTS = Path(__file__).with_name("gpu_results.csv")
FIELDS = ("shape", "dtype", "contender", "kernel", "milliseconds", "ratio", "peak", "rounds")

Pass = Callable[[], None]


def contenders(rows: int, classes: int) -> dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    """The kernel and the function of each, cross-entropy first."""

    def ours(logits: Tensor, targets: Tensor) -> Tensor:
        return belief_matching_loss(logits, targets, kl_weight=0.1 / classes)

    made = {
        "cross_entropy": ("auto", F.cross_entropy),
        "cross_entropy, compiled": ("auto", torch.compile(F.cross_entropy, dynamic=False)),
        "beliefmatch": ("auto", ours),
        "beliefmatch, compiled": ("auto", torch.compile(ours, dynamic=False)),
        "beliefmatch, lean": ("lean", ours),
    }
    if rows * classes <= 4_096_000:  # 28 times the logits in memory
        made["beliefmatch, reference"] = ("reference", ours)
    return made


class Device:
    """Synchronisation and memory of one device."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.module = torch.get_device_module(self.device)

    def seconds(self, run: Pass) -> float:
        """Of one pass."""
        self.module.synchronize()
        start = time.perf_counter()
        run()
        self.module.synchronize()
        return time.perf_counter() - start

    def peak(self, run: Pass) -> float:
        """Bytes; not a number where torch does not know."""
        if not hasattr(self.module, "memory_allocated"):
            return math.nan
        self.module.synchronize()
        before = self.module.memory_allocated()
        self.module.reset_peak_memory_stats()
        run()
        self.module.synchronize()
        return self.module.max_memory_allocated() - before


def measure(device: Device, shape: tuple[int, int], dtype: str, seconds: float) -> list[dict[str, object]]:
    """One line for each contender."""
    rows, classes = shape
    logits = torch.randn(rows, classes, device=device.device, dtype=getattr(torch, dtype)).requires_grad_()
    targets = torch.randint(classes, (rows,), device=device.device)
    size = rows * classes * logits.element_size()
    found = contenders(rows, classes)

    def run(name: str) -> None:
        kernel, function = found[name]
        kernels.use(kernel)
        logits.grad = None
        function(logits, targets).backward()

    passes: dict[str, Pass] = {name: partial(run, name) for name in found}
    for warm_up in (*passes.values(),) * 3:
        warm_up()
    times: dict[str, list[float]] = {name: [] for name in passes}
    end = time.perf_counter() + seconds
    while len(times["cross_entropy"]) < 10 or time.perf_counter() < end:
        for name, one in passes.items():
            times[name].append(device.seconds(one))
    lines: list[dict[str, object]] = []
    for name, one in passes.items():
        ratios = [own / base for own, base in zip(times[name], times["cross_entropy"], strict=True)]
        logits.grad = None
        lines.append(
            {
                "shape": f"{rows}x{classes}",
                "dtype": dtype,
                "contender": name,
                "kernel": found[name][0],
                "milliseconds": f"{1000 * statistics.median(times[name]):.4g}",
                "ratio": f"{statistics.median(ratios):.3g}",
                "peak": f"{device.peak(one) / size:.3g}",
                "rounds": len(ratios),
            }
        )
    kernels.use("auto")
    return lines


def append(path: Path, lines: list[dict[str, object]], facts: dict[str, object]) -> None:
    """Add the lines to the file, with a head if it is new."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*FIELDS, *facts])
        if is_new:
            writer.writeheader()
        writer.writerows(line | facts for line in lines)


def main() -> int:
    """Measure and print; the exit code."""
    parser = OneLineParser(prog="benchmarks/gpu.py", description="The loss on a GPU, beside cross-entropy.")
    parser.add_argument("--device", help="default: the accelerator that torch finds")
    parser.add_argument("--shape", type=parse_shape, nargs="+", default=SHAPES, metavar="ROWSxCLASSES")
    parser.add_argument("--dtype", nargs="+", choices=TYPES, default=TYPES, metavar="TYPE")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line, default 3")
    parser.add_argument("--csv", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        parser.error("there is no accelerator that torch can use; `beliefmatch doctor` shows the devices")
    device = Device(args.device or found.type)
    status = kernels.status(device.device.type)
    has_name = hasattr(device.module, "get_device_name")
    name = device.module.get_device_name(device.device) if has_name else found.type
    facts = {
        "device": name,
        "loss_kernel": status.name,
        "date": datetime.date.today().isoformat(),
        **versions("beliefmatch", "torch", "triton"),
    }
    print(f"{name}; the loss is computed by {status.name} ({status.reason})")
    print(f"{'shape':>14} {'type':>9} {'contender':<26} {'ms':>9} {'ratio':>7} {'peak':>6}")
    for shape in args.shape:
        for dtype in args.dtype:
            lines = measure(device, shape, dtype, args.seconds)
            append(args.csv, lines, facts)
            for line in lines:
                print(
                    f"{line['shape']:>14} {dtype:>9} {line['contender']:<26} "
                    f"{line['milliseconds']:>9} {line['ratio']:>7} {line['peak']:>6}"
                )
    print(f"appended to {args.csv}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
