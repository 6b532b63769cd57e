"""Time of fitting heads on cached features: one, five and twenty at once, and beside the usual loops.

    python benchmarks/adapt_heads.py                              50,000 rows of 2048 features, 10 classes
    python benchmarks/adapt_heads.py --rows 10000 --rounds 3      smaller
    python benchmarks/adapt_heads.py --threads 1 --cpu            processor seconds of one thread

The numbers of heads take turns, a few epochs each; ratios are those of epochs of the same round. Heads are of
belief matching, λ and seeds different. `--cpu` counts the processor's seconds instead of the clock's, for a
machine that others use too (sensible with one thread).

The usual loops: `nn.Linear`, cross-entropy and torch's Adam over a DataLoader of the cached features, one
head at a time; and the same with the network's forward pass in every epoch. That is not run in full: some
batches of 32×32 pictures are timed through a pre-activation ResNet-18 without gradients, and multiplied up to
the number of rows. A ResNet-50 at 224×224, whose features have this width, multiplies seven times as much.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from beliefmatch._environment import hardware, versions
from beliefmatch.adaptation.batched import BATCH_SIZE, fit_heads, paper_rate
from beliefmatch.adaptation.candidates import candidates
from beliefmatch.adaptation.types import Features
from beliefmatch.models.resnet import preact_resnet18

HEADS = (1, 5, 20)
EPOCHS = 2  # of a turn that are timed
PICTURES, BATCHES = 64, 3  # of the network's forward pass that are timed


def some_features(rows: int, width: int, classes: int) -> Features:
    """Features as a ReLU and an average leave them, with classes that can be separated."""
    chance = torch.Generator().manual_seed(0)
    targets = torch.randint(classes, (rows,), generator=chance)
    centres = torch.randn(classes, width, generator=chance)
    values = torch.randn(rows, width, generator=chance).add_(centres[targets]).relu_().mul_(0.4)
    return Features(values.numpy(), targets, "made up")


def epoch_seconds(
    features: Features, heads: int, args: argparse.Namespace, clock: Callable[[], float]
) -> float:
    """Seconds of an epoch of so many heads, without what comes before the first."""
    chosen = candidates(args.classes, seeds=range(4), controls=[])[:heads]
    ends: list[float] = []
    fit_heads(
        features,
        chosen,
        classes=args.classes,
        epochs=1 + EPOCHS,
        batch_size=args.batch,
        on_progress=lambda share, doing: ends.append(clock()),
    )
    return (ends[EPOCHS] - ends[0]) / EPOCHS


def plain_loop(features: Features, classes: int, batch: int, share: float) -> Callable[[], None]:
    """A share of an epoch of one head, as one writes it first."""
    rows = torch.from_numpy(features.rows)
    data = TensorDataset(rows[: int(share * len(rows))], features.targets[: int(share * len(rows))])
    head = nn.Linear(rows.shape[1], classes)
    optimizer = torch.optim.Adam(head.parameters(), lr=paper_rate(batch))

    def epoch() -> None:
        for inputs, targets in DataLoader(data, batch_size=batch, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(head(inputs), targets).backward()
            optimizer.step()

    return epoch


def forward_seconds(clock: Callable[[], float]) -> float:
    """Seconds of a picture through the network."""
    network, pictures = preact_resnet18(num_classes=10).eval(), torch.randn(PICTURES, 3, 32, 32)
    seconds = []
    with torch.inference_mode():
        for _ in range(BATCHES + 1):
            start = clock()
            network(pictures)
            seconds.append(clock() - start)
    return median(seconds[1:]) / PICTURES


def timed(work: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


def main() -> None:
    """Measure and print."""
    read = argparse.ArgumentParser(description="Time of fitting heads on cached features.")
    for name, default in (("rows", 50_000), ("width", 2048), ("classes", 10), ("rounds", 5)):
        read.add_argument(f"--{name}", type=int, default=default)
    read.add_argument("--batch", type=int, default=BATCH_SIZE)
    read.add_argument("--threads", type=int, default=torch.get_num_threads())
    read.add_argument("--cpu", action="store_true")
    args = read.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu else time.perf_counter
    print(hardware(), versions("torch", "numpy"))
    print(
        f"{args.rows:,} x {args.width:,}, K = {args.classes}, batches of {args.batch}, "
        f"threads {args.threads}, {'processor' if args.cpu else 'wall'} seconds"
    )
    features = some_features(args.rows, args.width, args.classes)
    rounds = [
        {heads: epoch_seconds(features, heads, args, clock) for heads in HEADS} for _ in range(args.rounds)
    ]
    for heads in HEADS:
        seconds = [one[heads] for one in rounds]
        ratio = median(one[heads] / one[1] for one in rounds)
        print(
            f"{heads:3d} heads: {median(seconds):.3f} s an epoch (least {min(seconds):.3f}), "
            f"{ratio:.2f} times one; 100 epochs {100 * median(seconds):.0f} s"
        )
    share = 0.2
    loop = timed(plain_loop(features, args.classes, args.batch, share), clock) / share
    forward = forward_seconds(clock) * args.rows
    one, twenty = (median(each[heads] for each in rounds) for heads in (1, 20))
    print(f"usual loop over cached features, one head: {loop:.2f} s an epoch, {loop / one:.1f} times ours")
    whole = forward + loop
    batches = f"{BATCHES} batches of {PICTURES} times {args.rows / PICTURES / BATCHES:.0f}"
    print(f"usual loop with the network in it: {whole:.1f} s an epoch (ResNet-18 at 32x32, {batches})")
    in_all = 2000 * whole / (forward + 100 * twenty)  # the features are computed once
    print(
        f"  an epoch of one head is {whole / one:.0f} times ours, of twenty one by one "
        f"{20 * whole / twenty:.0f}; 100 epochs of twenty, computing the features included, {in_all:.0f}"
    )


if __name__ == "__main__":
    main()
