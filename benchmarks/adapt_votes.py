"""What votes are worth: heads fitted on the votes of people for each image, or on the majority's label alone.

    python benchmarks/adapt_votes.py --images cifar10_test.npz --votes cifar10h_counts.npz \
        --weights cifar10_resnet20-12fca82f.th --out runs/votes

writes, for each seed, two archives for `beliefmatch adapt --features`: votes-SEED.npz and labels-SEED.npz.
They hold the same rows: 4,000 to fit on, 1,000 to choose on, 5,000 to report on. In the second a row to fit
or choose on has one vote, that of the majority. All heads are fitted as the command fits them, and judged:

- NLL of a vote, KL from the shares of the votes to the probabilities, ECE and error, as the command has them;
- AUROC of "people disagree": the entropy of the prediction tells images on which fewer than 80 % of people
  agree from the others; of a belief also its mutual information;
- NLL of the votes in turn: each vote is predicted after the votes before it (Dirichlet-multinomial with
  concentrations λα). A head without a belief gets one precision for all images, fitted on validation votes.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, f"{Path(__file__).parents[1]}")  # for the networks of examples

from examples.pretrained import resnet20_cifar, resnet32_cifar

from beliefmatch._environment import hardware, versions
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.features import extract
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.heads import Backbone, find_head, head_weights
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.stored import feature_sets
from beliefmatch.metrics import auroc
from beliefmatch.models import load_weights
from beliefmatch.votes import fit_scale, votes_log_likelihood

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PARTS = {"train": 4000, "validation": 1000, "test": 5000}
NETWORKS = {"resnet20": resnet20_cifar, "resnet32": resnet32_cifar}
AGREEMENT = 0.8
COLUMNS = {
    "vote_nll": ("NLL of a vote", 1),
    "kl": ("KL", 1),
    "ece": ("ECE %", 100),
    "error": ("error %", 100),
    "disagree_entropy": ("disagreement: AUROC % by entropy", 100),
    "disagree_mutual_information": ("by mutual information", 100),
    "in_turn_nll": ("NLL of the votes in turn", 1),
}


def main() -> None:
    """Write the archives, fit, judge, and show the table."""
    args = arguments()
    place = Path(args.out)
    place.mkdir(parents=True, exist_ok=True)
    features, head, counts = network_features(args)
    rows = []
    for seed in range(args.seeds):
        for path, fitted_on in archives(place, seed, features, head, counts):
            rows += [{"seed": seed, "fitted_on": fitted_on, **row} for row in judged(path)]
    record = {
        "network": args.network,
        "rows": PARTS,
        "heads": rows,
        "versions": versions("beliefmatch", "torch", "numpy"),
        "hardware": hardware(),
    }
    (place / "votes.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(table(rows))


def arguments() -> argparse.Namespace:
    """Files and the number of divisions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", required=True, help=".npz with images (N, 32, 32, 3)")
    parser.add_argument("--votes", required=True, help=".npz with counts (N, 10), in the same order")
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs/votes")
    return parser.parse_args()


def network_features(args: argparse.Namespace) -> tuple[np.ndarray, tuple[Tensor, Tensor], np.ndarray]:
    """The inputs of the last layer for every image, the last layer, and the votes."""
    with np.load(args.votes, allow_pickle=False) as stored:
        counts = stored["counts"].astype(np.float32)
    with np.load(args.images, allow_pickle=False) as stored:
        images = torch.from_numpy(stored["images"])
    network = NETWORKS[args.network]()
    load_weights(network, args.weights)
    inputs = ((images.float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)
    layer = find_head(network, inputs[:4])
    labels = torch.from_numpy(counts.argmax(1))
    found = extract(
        network, Backbone(network, layer), (inputs, labels), key_parts={"head": layer.name}, cache=None
    )
    head = head_weights(network, layer)
    assert head is not None
    return np.asarray(found.rows, np.float32), head, counts


def archives(
    place: Path, seed: int, features: np.ndarray, head: tuple[Tensor, Tensor], counts: np.ndarray
) -> Iterator[tuple[Path, str]]:
    """Two archives of the same rows, with all votes and with the majority's alone."""
    order = np.random.default_rng(seed).permutation(len(counts))
    majority = np.eye(counts.shape[1], dtype=np.float32)[counts.argmax(1)]
    ends = np.cumsum([*PARTS.values()])
    for name, fitted_on in (("labels", majority), ("votes", counts)):
        arrays: dict[str, Any] = {"weight": head[0].numpy(), "bias": head[1].numpy()}
        for part, end in zip(PARTS, ends, strict=True):
            rows = np.sort(order[end - PARTS[part] : end])
            arrays[f"{part}_features"] = features[rows]
            arrays[f"{part}_counts"] = (counts if part == "test" else fitted_on)[rows]
        np.savez(place / f"{name}-{seed}.npz", **arrays)
        yield place / f"{name}-{seed}.npz", name


def judged(path: Path) -> Iterator[dict[str, Any]]:
    """Scores of every line of the command's table on the test rows."""
    sets, init = feature_sets(path)
    made = refit(sets, init=init, adapt_config=AdaptConfig(vote_scale=False))
    assert sets.test is not None
    votes = sets.test.targets.double()
    disagree = votes.amax(1) / votes.sum(1) < AGREEMENT
    for label, (head, *_) in made.table.items():
        prediction = head.predict(torch.tensor(np.asarray(sets.test.rows)))
        shares, (confidence, predicted) = votes / votes.sum(1, keepdim=True), prediction.probs.max(1)
        hits = shares.gather(1, predicted[:, None])[:, 0]
        surprise = -torch.where(shares > 0, shares * prediction.probs.log(), 0.0).sum(1)
        doubts = {"entropy": torch.special.entr(prediction.probs).sum(1)}
        if prediction.belief is not None:
            doubts["mutual_information"] = prediction.belief.mutual_information()
            concentration = head.candidate.kl_weight * prediction.belief.alpha.double()
        else:
            concentration = precision(head, sets.validation.rows, sets.validation.targets) * prediction.probs
        yield {
            "head": label,
            "name": head.candidate.name,
            "converged": head.converged,
            "vote_nll": surprise.mean().item(),
            "kl": (surprise - torch.special.entr(shares).sum(1)).mean().item(),
            "ece": ece(confidence, hits),
            "error": (1 - hits).mean().item(),
            **{
                f"disagree_{name}": float(auroc(doubt[~disagree], doubt[disagree]))
                for name, doubt in doubts.items()
            },
            "in_turn_nll": in_turn(concentration, votes),
        }


def ece(confidence: Tensor, hits: Tensor, bins: int = 15) -> float:
    """Expected calibration error in bins of equal width; a vote counts by its share."""
    place = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, (confidence - hits).double())
    return (gaps.abs().sum() / len(hits)).item()


def precision(head: FittedHead, rows: Any, votes: Tensor) -> float:
    """The number under which the votes are likeliest; labels tell nothing of it: a million, no learning."""
    most = int(votes.sum(1).max())
    if most <= 1:
        return 1e6
    probs = head.predict(torch.tensor(np.asarray(rows))).probs
    return fit_scale(probs.double().log(), votes, max_votes=most)


def in_turn(concentration: Tensor, votes: Tensor) -> float:
    """−ln of the probability of all votes of an image, one after the other, for each vote."""
    likelihood = votes_log_likelihood(concentration.double().log(), votes, reduction="none")
    return -(likelihood / votes.sum(1)).mean().item()


def table(rows: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation over the seeds, a line for each head that every seed has."""
    lines = [f"| fitted on | head | {' | '.join(title for title, _ in COLUMNS.values())} |"]
    lines.append("|---|---|" + "---:|" * len(COLUMNS))
    for fitted_on, head in dict.fromkeys((row["fitted_on"], row["head"]) for row in rows):
        own = [row for row in rows if (row["fitted_on"], row["head"]) == (fitted_on, head)]
        if len(own) < len({row["seed"] for row in rows}):
            continue
        cells = [
            cell([row[name] for row in own], scale) if name in own[0] else ""
            for name, (_, scale) in COLUMNS.items()
        ]
        lines.append(f"| {fitted_on} | {head} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: list[float], scale: float) -> str:
    """Mean and standard deviation."""
    scaled, digits = [scale * value for value in values], 2 if scale > 1 else 3
    return f"{fmean(scaled):.{digits}f} ± {stdev(scaled) if len(scaled) > 1 else 0.0:.{digits}f}"


if __name__ == "__main__":
    main()
