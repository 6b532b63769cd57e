"""Temperature scaling (Guo et al. 2017): softmax of logits divided by a fitted number."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch._rows import work_dtype
from beliefmatch._validate import fail, require_finite_number
from beliefmatch.methods.base import Method, Prediction, Predictor
from beliefmatch.methods.cross_entropy import read

__all__ = ["TemperaturePredictor", "fit_temperature", "temperature"]


def temperature() -> Method:
    """Train with cross-entropy, then divide the logits by the temperature with the lowest validation NLL."""
    return Method(
        objective=functional.cross_entropy,
        predictor=TemperaturePredictor,
        calibrate=_calibrate,
        reads="softmax",
    )


@dataclass(frozen=True)
class TemperaturePredictor:
    """The softmax of a network's logits divided by a temperature."""

    network: nn.Module
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not require_finite_number("temperature", "temperature", self.temperature) > 0:
            raise fail("temperature", f"`temperature` must be positive, got {self.temperature!r}.")

    def facts(self) -> dict[str, float]:
        """The fitted temperature."""
        return {"temperature": self.temperature}

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Logits of a batch before the division."""
        logits = self.network.eval()(x)
        return logits.to(work_dtype(logits.device))

    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        return read(self.logits(x) / self.temperature)


def fit_temperature(logits: Tensor, targets: Tensor, *, init: float = 1.0) -> float:
    """The temperature that minimises the NLL, between e^−5 and e^5.

    The NLL is convex in s = 1/T, so its derivative, the mean of E[z] − z of the label, changes sign once.
    Newton's method finds where, and bisection wherever it would leave the interval known.
    Targets are class ids (N,), or counts (N, K), which are normalised to probabilities; `init` is a guess.
    """
    if targets.is_floating_point():
        label = (targets / targets.sum(1, keepdim=True) * logits).sum(1)
    else:
        label = logits.gather(1, targets[:, None])[:, 0]
    low, high = math.exp(-5), math.exp(5)
    scale = min(max(1 / init, low), high)
    for _ in range(100):
        probs = (logits * scale).softmax(1)
        expected = (probs * logits).sum(1)
        slope = (expected - label).mean().item()
        low, high = (low, scale) if slope > 0 else (scale, high)
        if high / low < 1 + 1e-10 or slope == 0:
            break
        curvature = ((probs * logits.square()).sum(1) - expected.square()).mean().item()
        step = slope / curvature if curvature > 0 else math.inf
        after = scale - step
        if not low < after < high:
            after = math.sqrt(low * high)
        if abs(after - scale) < 1e-9 * scale:
            break
        scale = after
    return 1 / scale


def _calibrate(predictor: Predictor, batches: Iterable[tuple[Tensor, Tensor]]) -> Predictor:
    assert isinstance(predictor, TemperaturePredictor)
    pairs = [(predictor.logits(inputs), targets) for inputs, targets in batches]
    if not pairs:
        raise fail("temperature", "`batches` must contain validation examples, got none.")
    logits, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return replace(predictor, temperature=fit_temperature(logits, targets.to(logits.device)))
