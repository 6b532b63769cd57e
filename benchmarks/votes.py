"""What a model is worth before any vote: the likelihood of later votes, and the votes that it saves.

    python benchmarks/votes.py --cifar10h votes_cifar10h.npz --chaosnli votes_chaosnli.npz --json votes.json

Both files hold the votes of people as `counts`, and what a linear head is fitted on:

- CIFAR-10H (Peterson et al. 2019), 10,000 test images and 51 votes each: `features` (10000, 64), the inputs
  of the last layer of a CIFAR-10 ResNet-20 with 8.3 % errors;
- ChaosNLI (Nie et al. 2020), 3,083 pairs of sentences and 100 votes each: `logits` (3083, 3, 3) of three
  RoBERTa networks.

In each of five resplits, heads are fitted to five votes for each item of one half (a fifth of it chooses λ
and weight decay) and judged on the other half:

- nats a vote: −ln of the probability of a vote after m others of the same item, averaged over all that are
  left. Scales, precisions and the class Dirichlet are fitted to the five votes of validation items;
- votes an item at equal error: replays of `beliefmatch votes --simulate` with a panel of five, along the
  confidence asked for, interpolated to the error in the heading, which is against the majority of the five;
- the same with a panel of twenty, where the error is against the majority of all votes of the item: a wider
  question, since the majority of five is often not that of fifty.

± is the standard deviation over the resplits. The last row of each table is the paired difference of belief
matching and softmax with its 95 % interval (Student's t over the resplits, which share their items).
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from beliefmatch._environment import provenance
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features, features_digest
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.data.votes import Votes
from beliefmatch.experiments.votes import (
    NO_MODEL,
    ONE_PRECISION,
    OWN_PRECISION,
    ModelBelief,
    VotesInput,
    simulate,
)
from beliefmatch.experiments.votes_record import SimulatedRule, VotesConfig
from beliefmatch.votes import fit_class_prior, fit_scale, votes_log_likelihood

TRAINING_VOTES = PANEL = 5
LARGE_PANEL = 20
AFTER = (0, 1, 5)
ERRORS = {"CIFAR-10H": (0.01, 0.02), "ChaosNLI": (0.15, 0.2)}
CONTROL, SCALED = "softmax, one fitted precision", "belief matching, fitted scale"
WEIGHT_DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)


def main() -> None:
    """Fit, judge, and show the tables."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    command.add_argument("--cifar10h", type=Path, help="features (N, 64) and counts (N, 10)")
    command.add_argument("--chaosnli", type=Path, help="logits (N, 3, 3) and counts (N, 3)")
    command.add_argument("--resplits", type=int, default=5)
    command.add_argument("--json", type=Path, help="file to write every number to")
    args = command.parse_args()
    sets = {}
    if args.cifar10h:
        with np.load(args.cifar10h, allow_pickle=False) as stored:
            sets["CIFAR-10H"] = stored["features"].astype(np.float32), stored["counts"]
    if args.chaosnli:
        with np.load(args.chaosnli, allow_pickle=False) as stored:
            logits = stored["logits"].reshape(len(stored["counts"]), -1)
            sets["ChaosNLI"] = logits.astype(np.float32), stored["counts"]
    if not sets:
        command.error("one of the arguments --cifar10h and --chaosnli is required")
    began, rows = time.perf_counter(), []
    warnings.simplefilter("ignore")
    for name, (features, counts) in sets.items():
        for seed in range(args.resplits):
            rows.append({"set": name, "seed": seed, **judged(features, counts, seed, ERRORS[name])})
            print(f"{name}, resplit {seed + 1} of {args.resplits}", flush=True)
    print(*(table(rows, measure) for measure in ("nats", "votes", "votes, all")), sep="\n\n")
    if args.json:
        origin = provenance(time.perf_counter() - began, "beliefmatch", "torch", "numpy")
        settings = {
            "training_votes": TRAINING_VOTES,
            "panel": PANEL,
            "large_panel": LARGE_PANEL,
            "resplits": args.resplits,
        }
        args.json.write_text(json.dumps({"settings": settings, "rows": rows, **origin}, indent=1) + "\n")


def judged(features: np.ndarray, counts: np.ndarray, seed: int, errors: tuple[float, ...]) -> dict[str, Any]:
    """Both measures of every belief in one resplit."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(counts))
    half, fifth = len(counts) // 2, len(counts) // 10
    validation, train, test = order[:fifth], order[fifth:half], order[half:]
    few = drawn(counts, TRAINING_VOTES, rng)
    fit_on, choose_on = (as_features(features[rows], few[rows]) for rows in (train, validation))
    sets = FeatureSets(fit_on, choose_on)
    made = refit(sets, adapt_config=AdaptConfig(labels="new", controls=("softmax",), vote_scale=False))
    on_validation, on_test = (torch.from_numpy(features[rows]) for rows in (validation, test))
    heads: dict[str, tuple[Tensor, Tensor]] = {}
    for name, label in (("softmax", "softmax"), ("belief matching", "belief matching")):
        head = next(heads[0] for key, heads in made.table.items() if key == label)
        weight, bias = head.weight.double(), head.bias.double()
        heads[name] = on_validation.double() @ weight.T + bias, on_test.double() @ weight.T + bias
    heads["Pólya"] = polya_head(features, few, (train, validation, test))
    seen = torch.from_numpy(few[validation])
    beliefs = {
        "uniform prior, no model": torch.zeros(len(test), counts.shape[1], dtype=torch.float64),
        "class Dirichlet, no model": fit_class_prior(seen).expand(len(test), -1),
    }
    for name, (of_validation, of_test) in heads.items():
        if name == "softmax":
            of_validation, of_test = of_validation.log_softmax(1), of_test.log_softmax(1)
        else:
            title = f"{name}, as it comes" if name == "belief matching" else "Pólya likelihood as the loss"
            beliefs[title] = of_test
        if name != "Pólya":
            title = CONTROL if name == "softmax" else SCALED
            beliefs[title] = of_test + math.log(fit_scale(of_validation, seen))
    later = {m: drawn(counts[test], m, rng) for m in AFTER}
    nats = {
        f"after {m}": {
            name: after(z, torch.from_numpy(votes), torch.from_numpy(counts[test] - votes))
            for name, z in beliefs.items()
        }
        for m, votes in later.items()
    }
    of_five = stopping(heads, counts[test], seed, errors)
    of_all = stopping(heads, counts[test], seed, errors, panel=LARGE_PANEL, of_all_votes=True)
    return {"nats": nats, "votes": of_five, "votes, all": of_all}


def as_features(rows: np.ndarray, counts: np.ndarray) -> Features:
    values, targets = np.ascontiguousarray(rows), torch.from_numpy(counts).float()
    return Features(values, targets, features_digest(values, targets))


def drawn(counts: np.ndarray, votes: int, rng: np.random.Generator) -> np.ndarray:
    """So many of each item's votes, by chance and without replacement."""
    return np.stack([rng.multivariate_hypergeometric(row, votes) for row in counts.astype(np.int64)])


def polya_head(features: np.ndarray, votes: np.ndarray, parts: Any) -> tuple[Tensor, Tensor]:
    """Logits of a linear head that maximises the likelihood of the votes, for validation and test rows."""
    train, validation, _ = parts
    mean, spread = features[train].mean(0), features[train].std(0) + 1e-6
    x = {
        rows: torch.from_numpy((features[part] - mean) / spread).double()
        for rows, part in zip("tvs", parts, strict=True)
    }
    y, found = torch.from_numpy(votes), []
    for decay in WEIGHT_DECAYS:
        weight = torch.zeros(votes.shape[1], features.shape[1] + 1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], max_iter=300, line_search_fn="strong_wolfe")

        def closure(weight: Tensor = weight, decay: float = decay, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            logits = x["t"] @ weight[:, 1:].T + weight[:, 0]
            loss = -votes_log_likelihood(logits, y[train]) + 0.5 * decay * weight[:, 1:].square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            logits = [x[part] @ weight[:, 1:].T + weight[:, 0] for part in "vs"]
        found.append((votes_log_likelihood(logits[0], y[validation]).item(), logits))
    _, (on_validation, on_test) = max(found, key=lambda one: one[0])
    return on_validation, on_test


def after(z: Tensor, votes: Tensor, rest: Tensor) -> float:
    """−ln of the probability of each vote that is left, after the given ones."""
    log_alpha = torch.where(votes > 0, torch.logaddexp(z, votes.double().log()), z)
    surprise = -torch.where(rest > 0, rest * log_alpha.log_softmax(1), 0.0).sum(1)
    return (surprise / rest.sum(1)).mean().item()


def stopping(
    heads: dict[str, tuple[Tensor, Tensor]],
    counts: np.ndarray,
    seed: int,
    errors: tuple[float, ...],
    panel: int = PANEL,
    of_all_votes: bool = False,
) -> dict[str, dict[str, float]]:
    """Votes an item at each error, for the test items."""
    items = tuple(f"{i}" for i in range(len(counts)))
    classes = tuple(f"{k}" for k in range(counts.shape[1]))
    votes = Votes("", "counts", items, classes, torch.from_numpy(counts).double())
    config = VotesConfig(panel=panel, repetitions=1, seed=seed)
    rules: dict[str, SimulatedRule] = {}
    for name, variant, title in (
        ("softmax", ONE_PRECISION, CONTROL),
        ("belief matching", OWN_PRECISION, SCALED),
    ):
        found = simulate(
            VotesInput(votes, ModelBelief(name, heads[name][1], True)), config, of_all_votes=of_all_votes
        )
        by_name = {rule.name: rule for rule in found.rules}
        rules.setdefault("class Dirichlet, no model", by_name[NO_MODEL])
        rules[title] = by_name[variant]
    shown = {f"at {100 * error:g} %": error for error in errors}
    return {
        text: {name: votes_at(rule, error) for name, rule in rules.items()} for text, error in shown.items()
    }


def votes_at(rule: SimulatedRule, error: float) -> float:
    """Votes an item at which the error is reached; NaN where it is not."""
    votes = rule.votes_at(error)
    return math.nan if votes is None else votes


def table(rows: list[dict[str, Any]], measure: str) -> str:
    """Mean ± standard deviation over the resplits."""
    columns = list(dict.fromkeys((row["set"], key) for row in rows for key in row[measure]))
    names = list(dict.fromkeys(name for row in rows for values in row[measure].values() for name in values))
    lines = [
        "| | " + " | ".join(f"{one} {key}" for one, key in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name in names:
        cells = []
        for one, key in columns:
            values = [row[measure][key][name] for row in rows if row["set"] == one]
            spread = stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{fmean(values):.3f} ± {spread:.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if len({row["seed"] for row in rows}) > 1:
        pairs = [
            [row[measure][key][SCALED] - row[measure][key][CONTROL] for row in rows if row["set"] == one]
            for one, key in columns
        ]
        lines.append(f"| belief matching minus softmax | {' | '.join(map(interval, pairs))} |")
    return "\n".join(lines)


def interval(differences: list[float]) -> str:
    """Mean and 95 % interval."""
    mean, n = fmean(differences), len(differences)
    half = stdtrit(n - 1, 0.975) * stdev(differences) / math.sqrt(n)
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


if __name__ == "__main__":
    main()
