"""Images per second of our training loop beside a plain one, data loading and augmentation included.

    python benchmarks/throughput.py                        # width 16 and 64, a few minutes
    python benchmarks/throughput.py --width 16 --rounds 15

The plain loop is what one writes first: float32, torch's default layout, a DataLoader whose dataset shifts,
mirrors and scales one image at a time. Both train the same network on the same random bytes with the same
batch size, optimiser and loss; they take turns, a few steps each; the ratio is that of the medians.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from beliefmatch._environment import hardware, versions
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import MemorySource
from beliefmatch.models.resnet import preact_resnet18
from beliefmatch.train.config import EngineConfig, TrainConfig
from beliefmatch.train.engine import Engine
from beliefmatch.train.loop import fit

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
PADDING = 4


class OneByOne(Dataset):
    """Images that are augmented and scaled when they are asked for."""

    def __init__(self, images: np.ndarray, targets: np.ndarray) -> None:
        self.images, self.targets = images, targets
        self.chance = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        height, width, _ = self.images[index].shape
        padded = np.pad(self.images[index], ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
        top, left = self.chance.integers(0, 2 * PADDING + 1, size=2)
        image = padded[top : top + height, left : left + width]
        if self.chance.random() < 0.5:
            image = image[:, ::-1]
        tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div(255)
        shift, scale = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
        return (tensor - shift) / scale, int(self.targets[index])


def plain(
    network: nn.Module, images: np.ndarray, targets: np.ndarray, options: argparse.Namespace
) -> Callable[[], float]:
    """Images per second of one chunk, each time it is called."""
    loader = DataLoader(
        OneByOne(images, targets),
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        drop_last=True,
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    batches = _endless(loader)
    network.train()

    def chunk() -> float:
        start, total = time.perf_counter(), 0.0
        for _ in range(options.steps):
            inputs, labels = next(batches)
            loss = functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        return options.steps * options.batch_size / (time.perf_counter() - start)

    return chunk


def _endless(loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


def ours(
    network: nn.Module, images: np.ndarray, targets: np.ndarray, options: argparse.Namespace
) -> Callable[[], float]:
    """Images per second of one chunk, each time it is called."""
    preprocessing = Preprocessing(MEAN, STD, augment="crop_flip", padding=PADDING)
    source = MemorySource(images, targets, preprocessing=preprocessing)
    part = source.subset(range(options.steps * options.batch_size))
    recipe = TrainConfig(epochs=1, batch_size=options.batch_size, learning_rate=0.01)

    def chunk() -> float:
        history = fit(
            options.engine, network, part, recipe, objective_at=lambda share: functional.cross_entropy, seed=0
        )
        return history.curve("images_per_second")[0]

    return chunk


def measure(width: int, options: argparse.Namespace) -> None:
    """Print the two speeds and their ratio."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, size=(options.images, 32, 32, 3), dtype=np.uint8)
    targets = chance.integers(0, 10, size=options.images)
    chunks = {
        "plain": plain(preact_resnet18(width=width), images, targets, options),
        "ours": ours(preact_resnet18(width=width), images, targets, options),
    }
    for chunk in chunks.values():
        chunk()
    speeds = {name: [] for name in chunks}
    for number in range(options.rounds):
        for name in sorted(chunks, reverse=bool(number % 2)):
            speeds[name].append(chunks[name]())
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratios = sorted(ours / plain for ours, plain in zip(speeds["ours"], speeds["plain"], strict=True))
    print(
        f"PreAct ResNet-18, width {width:3d}: "
        f"plain {medians['plain']:7.1f}, ours {medians['ours']:7.1f} images/s; "
        f"ratio of medians {medians['ours'] / medians['plain']:.2f}, "
        f"of rounds {ratios[0]:.2f} to {ratios[-1]:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, action="append", help="channels of the first stage; repeatable")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3, help="in a chunk")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=0, help="of the plain loop's DataLoader")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--precision", default="auto", help="of our loop: auto, 32, bf16")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    options.engine = Engine(
        EngineConfig(accelerator="cpu", threads=options.threads, precision=options.precision)
    )  # before torch computes
    print(f"{hardware()['processor']}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    print(
        f"{versions('torch', 'lightning-fabric')}; ours in {options.engine.precision}, channels last; "
        f"batch {options.batch_size}, {options.rounds} rounds of {options.steps} steps, "
        f"{options.workers} workers for the plain loop"
    )
    for width in options.width or (16, 64):
        measure(width, options)


if __name__ == "__main__":
    main()
