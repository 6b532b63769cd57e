"""Methods trained alike on embedded digits, and asked about a 3 that turns upside down."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from beliefmatch.data.digits import Examples, load_digits, rotated
from beliefmatch.environment import hardware, versions
from beliefmatch.experiments.records import (
    CompareConfig,
    CompareRecord,
    Rotation,
    RunRecord,
    Scores,
)
from beliefmatch.methods import build
from beliefmatch.methods.base import Predictor
from beliefmatch.metrics import error, expected_calibration_error, nll
from beliefmatch.models.digits import DigitsNet
from beliefmatch.train.loop import Schedule, fit

__all__ = ["Comparison"]

DIGIT = 3  # the paper's opening example
ANGLES = list(range(0, 181, 15))


class Comparison:
    """A comparison ready to run: all that a user can get wrong is refused on construction.

    Every method trains the same network from the same initial weights on the same batches.
    """

    def __init__(self, config: CompareConfig) -> None:
        self.config = config
        self.methods = {name: build(name, **config.options_of(name)) for name in config.methods}
        self.schedule = Schedule(epochs=config.epochs)
        self.digits = load_digits()
        test = self.digits.test
        chosen = test.images[test.targets == DIGIT]
        self.turned = torch.stack([rotated(image, ANGLES) for image in chosen], dim=1)

    @property
    def total_epochs(self) -> int:
        """Epochs of all runs together, each announced by one call of `on_epoch`."""
        return len(self.config.methods) * self.config.seeds * self.config.epochs

    def run(self, on_epoch: Callable[[str], None] | None = None) -> CompareRecord:
        """Train and judge every method with every seed.

        Args:
            on_epoch: called after each epoch with the name of the method in training.
        """
        start = time.perf_counter()
        seeds = range(self.config.seed, self.config.seed + self.config.seeds)
        with _one_thread():
            runs = [self._run(name, seed, on_epoch) for seed in seeds for name in self.methods]
            machine = {**hardware(), "torch_threads": torch.get_num_threads()}
        splits = vars(self.digits)
        return CompareRecord(
            config=self.config,
            training=_plain({"optimizer": "adam", **asdict(self.schedule)}),
            examples={name: len(examples) for name, examples in splits.items()},
            digit=DIGIT,
            digit_examples=self.turned.shape[1],
            angles=ANGLES,
            images=self.turned[:, 0, 0].tolist(),
            runs=runs,
            versions=versions("beliefmatch", "torch", "numpy", "scikit-learn", "scipy"),
            hardware=machine,
            wall_seconds=time.perf_counter() - start,
        )

    def _run(self, name: str, seed: int, on_epoch: Callable[[str], None] | None) -> RunRecord:
        start = time.perf_counter()
        method, train = self.methods[name], self.digits.train
        network = _network(seed)
        losses = fit(
            network,
            method.objective,
            train.images,
            train.targets,
            schedule=self.schedule,
            seed=seed,
            on_epoch=on_epoch and (lambda epoch, loss: on_epoch(name)),
        )
        predictor = method.predictor(network)
        return RunRecord(
            method=name,
            options=dict(method.options),
            seed=seed,
            losses=losses,
            validation=_scores(predictor, self.digits.validation),
            test=_scores(predictor, self.digits.test),
            rotation=_rotation(predictor, self.turned),
            wall_seconds=time.perf_counter() - start,
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Fastest for a network this small, and sums come out the same on any number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; with lists a record equals what is read back from its file."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


def _network(seed: int) -> DigitsNet:
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random state alone
        torch.manual_seed(seed)
        return DigitsNet()


def _scores(predictor: Predictor, examples: Examples) -> Scores:
    probs = predictor.predict(examples.images).probs
    return Scores(
        error=error(probs, examples.targets),
        nll=nll(probs, examples.targets),
        ece=expected_calibration_error(probs, examples.targets),
    )


def _rotation(predictor: Predictor, turned: Tensor) -> Rotation:
    """Ask about images (angles, digits, 1, H, W), of which the first digit is pictured."""
    pictured = predictor.predict(turned[:, 0])
    confidence, predicted = pictured.probs.max(-1)
    probs = predictor.predict(turned.flatten(0, 1)).probs.unflatten(0, turned.shape[:2])
    all_confidence, all_predicted = probs.max(-1)
    belief = pictured.belief
    return Rotation(
        predicted=predicted.tolist(),
        confidence=confidence.tolist(),
        entropy=torch.special.entr(pictured.probs).sum(-1).tolist(),
        spread=None if belief is None else belief.mutual_information().tolist(),
        mean_confidence=all_confidence.mean(1).tolist(),
        recognised=(all_predicted == DIGIT).double().mean(1).tolist(),
        wrong_confidence=_wrong_confidence(confidence, predicted),
        mean_wrong_confidence=_wrong_confidence(all_confidence, all_predicted),
    )


def _wrong_confidence(confidence: Tensor, predicted: Tensor) -> float | None:
    wrong = confidence[predicted != DIGIT]
    return wrong.mean().item() if len(wrong) else None
