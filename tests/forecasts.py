"""Predictions and labels that tests of metrics share."""

import torch
from hypothesis import strategies as st
from torch import Tensor

__all__ = ["answers", "batches", "coarse_scores", "cuts", "forecast", "seeds", "two_classes"]

seeds = st.integers(0, 2**31)
cuts = st.lists(st.integers(1, 59), max_size=6)
"""Where sixty examples are cut into batches."""


def forecast(examples: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, probabilities and labels; about half of the predictions are right."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    other = torch.randint(classes, (examples,), generator=generator)
    right = torch.rand(examples, generator=generator) < 0.5
    return logits, logits.softmax(1), torch.where(right, logits.argmax(1), other)


def batches(cuts: list[int], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The tensors in pieces that end at the cuts."""
    sizes = torch.tensor([0, *sorted(set(cuts)), len(tensors[0])]).diff().tolist()
    return list(zip(*(tensor.split(sizes) for tensor in tensors), strict=True))


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
