"""Time and memory of the loss and of the measures of a belief, beside what one would use instead.

    python benchmarks/run.py                            everything, about ten minutes on two cores
    python benchmarks/run.py --quick                    a look, about a minute, not recorded
    python benchmarks/run.py --task ids --shape 64x50   one's own shape

Prints a table of ratios and appends every number to benchmarks/results.csv. docs/performance.md describes
how it is measured.
"""

import argparse
import math
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

import torch

import results
from contender import Shape, unavailable
from grid import DTYPES, TASKS, Cell, Selection, cells
from measurement import measure
from terminal import note, print_head, print_row, progress

BAD_INPUT = 2
INTERRUPTED = 130
BUSY = 0.25  # load of others for each core
INSTALL = "pip install -r benchmarks/requirements.txt"


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong on one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}\n")


def parser() -> OneLineParser:
    """Of the command line."""
    made = OneLineParser(prog="benchmarks/run.py", description="Time and memory, as ratios.")
    add = made.add_argument
    add("--seconds", type=_seconds, help="time for each line, default 2, with --quick 1")
    add("--task", type=_one_of(TASKS), nargs="+", default=(), metavar="TASK", help=", ".join(TASKS))
    add(
        "--shape",
        type=parse_shape,
        nargs="+",
        default=(),
        metavar="SHAPE",
        help="such as 128x10 or 8x21x64x64",
    )
    add("--dtype", type=_one_of(DTYPES), nargs="+", default=(), metavar="TYPE", help=", ".join(DTYPES))
    add("--threads", type=_threads, nargs="+", default=(), metavar="N", help="default 1 and all")
    add("--csv", type=Path, metavar="PATH", help="where to append, default benchmarks/results.csv")
    add("--alone", action="store_true", help="no other contenders, no linear layer; recorded with --csv")
    add("--quick", action="store_true", help="small shapes in float32; recorded with --csv")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    command = parser()
    args = command.parse_args(arguments)
    selection = Selection(args.task, args.shape, args.dtype, args.threads, args.quick)
    chosen = cells(selection, torch.get_num_threads())
    unused = [shape for shape in args.shape if shape not in {cell.shape for cell in chosen}]
    if unused:
        fitting = f"expected shapes that fit {', '.join(args.task or TASKS)}"
        command.error(f"argument --shape: {fitting}, got {'x'.join(map(str, unused[0]))}")
    path = args.csv or (None if args.quick or args.alone else results.DEFAULT_PATH)
    if path:
        try:
            results.prepare(path)
        except (OSError, ValueError) as error:
            command.error(f"argument --csv: {path}: {error}")
    try:
        run(chosen, args.seconds or (1.0 if args.quick else 2.0), path, args.alone)
    except KeyboardInterrupt:
        note("interrupted; the lines so far are recorded" if path else "interrupted")
        return INTERRUPTED
    return 0


def run(chosen: Sequence[Cell], seconds: float, path: Path | None, alone: bool = False) -> None:
    """Measure, print and record the cells; `alone` as for `measure`."""
    made = results.origin()
    if float(made["load"]) > BUSY * int(made["cores"]):
        note(f"the machine is busy, load {made['load']} on {made['cores']} cores; expect noise")
    print(", ".join(f"{key} {value}" for key, value in made.items()))
    print("3.1x 2.0m: 3.1 times the time of the first, peak memory of 2.0 times the logits beyond them")
    packages = {one.package for cell in chosen for one in TASKS[cell.task].contenders.values()}
    missing = unavailable(sorted(packages))
    for package, reason in missing.items():
        note(f"{package} left out ({reason}); {INSTALL}")
    for index, cell in enumerate(chosen):
        if index == 0 or chosen[index - 1].task != cell.task:
            print_head(cell.task, missing)
        progress(f"[{index + 1}/{len(chosen)}] {cell}")
        found = measure(cell, seconds, missing, note, alone)
        progress("")
        print_row(cell, found, missing)
        if path:
            results.append(path, results.lines(made, cell, TASKS[cell.task].contenders, found))


def parse_shape(text: str) -> Shape:
    """The shape that a text such as 128x10 names."""
    parts = text.split("x")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected ROWSxCLASSES such as 128x10, got {text!r}")
    return tuple(int(part) for part in parts)


def _threads(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def _one_of(choices: Collection[str]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(choices)}, got {text!r}")
        return text

    return check


if __name__ == "__main__":
    sys.exit(main())
