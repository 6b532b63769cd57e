"""What `beliefmatch evaluate` costs, and on what: two models with one OOD set each.

    python benchmarks/evaluate.py                          10,000 examples of 10 classes
    python benchmarks/evaluate.py --examples 50000 --classes 1000
    python benchmarks/evaluate.py --json evaluate.json     adds the result to a file

Predictions are drawn at random. Times are processor seconds of one thread, beyond importing the libraries:
the median of the rounds, split into reading files, scores, intervals and the report.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from beliefmatch._environment import hardware, versions
from beliefmatch.data.predictions import read_predictions
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.paired_aurocs import PairedAurocs
from beliefmatch.report.evaluation import evaluation_files


def write_predictions(place: Path, examples: int, classes: int) -> list[tuple[Path, Path]]:
    """Files of two models that differ in their confidence, each with one of OOD examples."""
    rng = np.random.default_rng(0)
    targets = rng.integers(classes, size=examples)
    logits = rng.normal(size=(examples, classes)).astype(np.float32)
    ood = rng.normal(size=(examples, classes)).astype(np.float32)
    logits[np.arange(examples), targets] += 3
    files = []
    for name, scale in (("a", 1.0), ("b", 2.0)):
        np.savez(place / f"{name}.npz", logits=scale * logits, targets=targets)
        np.savez(place / f"{name}_ood.npz", logits=scale * ood)
        files.append((place / f"{name}.npz", place / f"{name}_ood.npz"))
    return files


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds, and the result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def measured(files: list[tuple[Path, Path]]) -> dict[str, float]:
    """Seconds of each part."""
    reading, given = seconds(
        lambda: [(read_predictions(own), read_predictions(ood, labelled=False)) for own, ood in files]
    )

    def evaluated(resamples: int) -> Any:
        config = EvaluateConfig(resamples=resamples)
        areas = PairedAurocs()
        return areas.with_differences(
            [
                evaluate(own, name=own.path.stem, ood={"ood": ood}, settings=config, areas=areas)
                for own, ood in given
            ]
        )

    without, _ = seconds(lambda: evaluated(0))
    whole, records = seconds(lambda: evaluated(EvaluateConfig().resamples))
    report, _ = seconds(lambda: list(evaluation_files(records)))
    return {
        "reading": reading,
        "scores": without,
        "intervals": whole - without,
        "report": report,
        "all": reading + whole + report,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file to add the result to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        files = write_predictions(Path(place), args.examples, args.classes)
        measured(files[:1])  # what is imported late, and caches
        rounds = [measured(files) for _ in range(args.rounds)]
    found = {part: median(one[part] for one in rounds) for part in rounds[0]}
    print(f"{args.examples:,} x {args.classes:,}: " + ", ".join(f"{k} {v:.2f} s" for k, v in found.items()))
    if args.json:
        path = Path(args.json)
        results = json.loads(path.read_text("utf-8")) if path.exists() else {}
        facts = {"hardware": hardware(), "versions": versions("beliefmatch", "torch", "numpy", "matplotlib")}
        results[f"{args.examples} x {args.classes}"] = {**found, "rounds": args.rounds, **facts}
        path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
