"""Predictions and labels that tests of metrics share."""

import torch
from hypothesis import strategies as st
from torch import Tensor

__all__ = ["answers", "coarse_scores", "forecast", "seeds", "two_classes"]

seeds = st.integers(0, 2**31)


def forecast(examples: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, probabilities and labels; about half of the predictions are right."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    other = torch.randint(classes, (examples,), generator=generator)
    right = torch.rand(examples, generator=generator) < 0.5
    return logits, logits.softmax(1), torch.where(right, logits.argmax(1), other)


def two_classes(confidence: list[float], correct: list[bool]) -> tuple[Tensor, Tensor]:
    """Probabilities of three classes, the first predicted with the given confidence, the third impossible."""
    top = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([top, 1 - top, 0 * top], 1), torch.tensor([0 if right else 1 for right in correct])


def coarse_scores(examples: int, seed: int) -> Tensor:
    """Scores with many ties."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, (examples,), generator=generator).double() / 2


def answers(examples: int, seed: int, *, ties: bool) -> tuple[Tensor, Tensor]:
    """Confidences, and whether each was right; the surer the likelier."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(examples, generator=generator, dtype=torch.float64)
    if ties:
        confidence = (8 * confidence).round() / 8
    return confidence, torch.rand(examples, generator=generator, dtype=torch.float64) < confidence
