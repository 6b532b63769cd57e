"""What votes are worth: heads fitted on the votes of several people for each image, and on one label each.

    python examples/votes.py --images cifar10_test.npz --votes cifar10h_counts.npz \
        --weights cifar10_resnet20-12fca82f.th --out runs/votes

Half of the images is used to fit and choose, the other half to evaluate: how far are the predicted
probabilities from the votes there? Of the votes to fit on, some are drawn without replacement: 1, 3, 10, or
all.

The votes of one image are scored twice: each by itself, and one after the other, where a belief is updated
by each vote (Bayes' rule). For a softmax the two scores are the same. To see what the belief of each image is
worth there, softmax is also given one precision for all images: the one that suits the votes of the
validation images best, and label smoothing the one that is the target of belief matching.
The images and the network's weights are described in docs/adapt.md.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, f"{Path(__file__).parents[1]}")

from beliefmatch._environment import hardware, versions
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.features import extract
from beliefmatch.adaptation.heads import Backbone, find_head
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.models import load_weights
from beliefmatch.votes import fit_scale, votes_log_likelihood
from examples.pretrained import resnet20_cifar, resnet32_cifar

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VALIDATION = 1000
NETWORKS = {"resnet20": resnet20_cifar, "resnet32": resnet32_cifar}
CONTROLS = ("softmax", "label_smoothing")


def main() -> None:
    """Fit, evaluate, write and show."""
    args = _arguments()
    features, votes, labels = _data(args)
    lines = [
        {"trial": trial, "fitted_on": what, **row}
        for trial in range(args.trials)
        for what, targets in _targets(votes, labels, trial)
        for row in _evaluated(features, targets, votes, trial)
    ]
    record = {
        "network": args.network,
        "trials": args.trials,
        "images": len(votes),
        "rows": lines,
        "versions": versions("beliefmatch", "torch", "numpy"),
        "hardware": hardware(),
    }
    place = Path(args.out)
    place.mkdir(parents=True, exist_ok=True)
    (place / "votes.json").write_text(json.dumps(record, indent=1) + "\n")
    print(_table(lines))
    print(place / "votes.json")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", required=True, help=".npz with images (N, 32, 32, 3) and labels")
    parser.add_argument("--votes", required=True, help=".npz with counts (N, 10), in the same order")
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--out", default="runs/votes")
    return parser.parse_args()


def _data(args: argparse.Namespace) -> tuple[Features, Tensor, Tensor]:
    with np.load(args.images, allow_pickle=False) as stored:
        images, labels = stored["images"], torch.from_numpy(stored["labels"]).long()
    with np.load(args.votes, allow_pickle=False) as stored:
        votes = torch.from_numpy(stored["counts"]).float()
    network = NETWORKS[args.network]()
    load_weights(network, args.weights)
    pixels = (torch.from_numpy(images).float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    inputs = pixels.permute(0, 3, 1, 2)
    head = find_head(network, inputs[:4])
    whole = extract(
        network,
        Backbone(network, head),
        (inputs, labels),
        key_parts={"head": head.name},
        cache=None,
    )
    return whole, votes, labels


def _targets(votes: Tensor, labels: Tensor, trial: int) -> Iterator[tuple[str, Tensor]]:
    """The label, as one vote, and some of the votes of each image."""
    yield "label", torch.nn.functional.one_hot(labels, votes.shape[1]).float()
    chance = np.random.default_rng(trial)
    for many in (1, 3, 10):
        drawn = [chance.multivariate_hypergeometric(row, many) for row in votes.long().numpy()]
        yield f"{many} vote{'s' if many > 1 else ''}", torch.tensor(np.stack(drawn)).float()
    yield "all votes", votes


def _evaluated(features: Features, targets: Tensor, votes: Tensor, trial: int) -> Iterator[dict[str, Any]]:
    order = np.random.default_rng(1000 + trial).permutation(len(votes))
    half = len(order) // 2
    fit, choose, evaluate = order[: half - VALIDATION], order[half - VALIDATION : half], order[half:]
    labelled = Features(features.rows, targets, f"{features.digest}-{trial}")
    sets = FeatureSets(labelled.subset(np.sort(fit)), labelled.subset(np.sort(choose)))
    adapt_config = AdaptConfig(labels="new", controls=CONTROLS, vote_scale=False)
    made = refit(sets, classes=votes.shape[1], adapt_config=adapt_config)
    rows, people = _rows(features, evaluate), votes[torch.from_numpy(np.sort(evaluate))].double()
    known = labelled.targets[torch.from_numpy(np.sort(choose))].double()
    for label in ("softmax", "label smoothing", "belief matching"):
        heads = made.table[label]
        said, kl_weight = heads[0].predict(rows), made.table["belief matching"][0].candidate.kl_weight
        scores = _distance(said.probs, people)
        in_turn = scores["vote_nll"]
        if said.belief is not None:
            in_turn = _in_turn(kl_weight * said.belief.alpha.double(), people)
        yield {"head": label, "kl_weight": kl_weight, **scores, "in_turn_nll": in_turn}
        if said.belief is None:
            looked = heads[0].predict(_rows(features, choose)).probs
            target_precision = kl_weight * votes.shape[1] + known.sum(1).mean().item()
            for name, precision in _precisions(label, looked, known, target_precision).items():
                in_turn = _in_turn(precision * said.probs, people)
                yield {"head": f"{label}, {name}", **scores, "in_turn_nll": in_turn}


def _precisions(label: str, probs: Tensor, votes: Tensor, target_precision: float) -> dict[str, float]:
    """One number for all images: fitted to votes, or the optimum of belief matching (λ and votes, summed)."""
    if label != "softmax":
        return {"precision of the optimum": target_precision}
    several = votes.sum(1).min() > 1  # one vote tells nothing of the next
    return {"one precision for all": _precision(probs, votes)} if several else {}


def _rows(features: Features, numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(features.rows[np.sort(numbers)], dtype=np.float32))


def _precision(probs: Tensor, votes: Tensor) -> float:
    """The one number that makes the votes likeliest if each image's shares are Dirichlet around `probs`."""
    return fit_scale(probs.double().log(), votes, max_votes=int(votes.sum(1).max()))


def _distance(probs: Tensor, votes: Tensor) -> dict[str, float]:
    """NLL of a vote, KL from the people's shares to the probabilities, and error against the majority."""
    shares = votes / votes.sum(1, keepdim=True)
    surprise = -torch.where(shares > 0, shares * probs.log(), 0.0).sum(1)
    disagreement = torch.special.entr(shares).sum(1)
    wrong = probs.argmax(1) != votes.argmax(1)
    return {
        "vote_nll": surprise.mean().item(),
        "kl": (surprise - disagreement).mean().item(),
        "error": wrong.double().mean().item(),
    }


def _in_turn(concentration: Tensor, votes: Tensor) -> float:
    """−ln of the probability of all votes of an image, one after the other, a vote: Dirichlet-multinomial.

    Concentrations are on the scale of the votes: λ times those of the network, whose optimum is λ + votes.
    """
    likelihood = votes_log_likelihood(concentration.double().log(), votes, reduction="none")
    return -(likelihood / votes.sum(1)).mean().item()


def _table(lines: list[dict[str, Any]]) -> str:
    kinds = list(dict.fromkeys((line["fitted_on"], line["head"]) for line in lines))
    said = [
        "| fitted on | head | NLL of a vote | of the votes in turn | KL to the votes | error % |",
        "|---|---|---|---|---|---|",
    ]
    for fitted_on, head in kinds:
        own = [one for one in lines if (one["fitted_on"], one["head"]) == (fitted_on, head)]
        columns = (("vote_nll", 1), ("in_turn_nll", 1), ("kl", 1), ("error", 100))
        cells = " | ".join(_cell(own, name, scale) for name, scale in columns)
        said.append(f"| {fitted_on} | {head} | {cells} |")
    return "\n".join(said)


def _cell(lines: list[dict[str, Any]], name: str, scale: float) -> str:
    values = scale * np.array([line[name] for line in lines])
    digits = 2 if scale > 1 else 4
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) if len(values) > 1 else 0:.{digits}f}"


if __name__ == "__main__":
    main()
