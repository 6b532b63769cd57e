"""Measuring one cell: inputs, warm-up, peak memory, interleaved times."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from contender import Contender
from grid import DTYPES, TASKS, Cell
from memory import peak_bytes
from timing import Timing, interleaved, summary

__all__ = ["Measured", "measure"]

SEED = 0
WARM_UP_ROWS = 2
LAYER = 512, 512


@dataclass(frozen=True)
class Measured:
    """Times of a contender, and its peak memory in multiples of the logits' size."""

    timing: Timing
    peak_memory: float


def measure(
    cell: Cell,
    seconds: float,
    without: Collection[str],
    note: Callable[[str], None],
    alone: bool = False,
) -> dict[str, Measured]:
    """Times and memory of every contender, by name, save those of the packages to do without.

    `note` is called with each failure of an optional contender. A linear layer precedes every pass, untimed;
    not so if `alone`, which measures beliefmatch and the base of the ratios only.
    """
    torch.set_num_threads(cell.threads)
    task = TASKS[cell.task]
    contenders = {name: one for name, one in task.contenders.items() if one.package not in without}
    if alone:
        contenders = {
            name: one for name, one in contenders.items() if name == task.base or one.package == "beliefmatch"
        }
    has_compiled = any(one.compiled for one in contenders.values())
    if has_compiled:
        torch.compiler.reset()  # or torch gives up after eight shapes, types and numbers of threads
    rows = _inputs(cell, cell.shape[0])
    few_rows = _inputs(cell, WARM_UP_ROWS)
    passes, costs, peaks = {}, {}, {}
    for name, contender in contenders.items():
        try:
            run = partial(_run, contender.prepared(), backward=task.backward)
            run(rows if contender.compiled else few_rows)
            passes[name] = partial(run, rows)
            costs[name], peaks[name] = _cost_and_peak(passes[name])
        except Exception as error:
            _leave_out(contender, f"{cell}: {name}", error, note)
            passes.pop(name, None)
    # Not for compiled code, whose threads and those of torch wait for each other.
    before = (_layer(),) if not (alone or has_compiled) else ()
    rounds = interleaved(passes, costs, seconds, SEED, *before)
    size = rows[0].nbytes
    return {name: Measured(summary(rounds, name, task.base), peaks[name] / size) for name in passes}


def _layer() -> Callable[[], Tensor]:
    """A linear layer, which precedes a loss in training; the loss finds the caches full of other things."""
    features, weight = torch.ones(LAYER), torch.ones(LAYER)
    return partial(torch.mm, features, weight)


def _inputs(cell: Cell, rows: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(SEED)
    return TASKS[cell.task].inputs((rows, *cell.shape[1:]), DTYPES[cell.dtype], generator)


def _run(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], backward: bool) -> float:
    """Seconds of one pass. The gradient is dropped, for the next pass to start from the same memory."""
    with torch.set_grad_enabled(backward):
        start = time.perf_counter()
        if backward:
            function(*inputs).backward()
        else:
            function(*inputs)
        seconds = time.perf_counter() - start
    inputs[0].grad = None
    return seconds


def _cost_and_peak(run: Callable[[], float]) -> tuple[float, int]:
    seconds: list[float] = []
    peak = peak_bytes(lambda: seconds.append(run()))
    return seconds[0], peak


def _leave_out(contender: Contender, name: str, error: Exception, note: Callable[[str], None]) -> None:
    if not contender.optional:
        raise error
    note(f"{name} left out, {type(error).__name__}: {' '.join(str(error).split())[:200]}")
