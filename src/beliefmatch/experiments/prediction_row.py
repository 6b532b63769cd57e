"""What is said of one image; read without torch."""

from dataclasses import dataclass

__all__ = ["Row"]


@dataclass(frozen=True)
class Row:
    """What is said of one image."""

    name: str
    predicted: int
    class_name: str
    confidence: float
    entropy: float
    """Of the probabilities, in nats."""
    mutual_information: float | None
    """Mutual information under the belief, in nats, for methods that have one."""
    abstained: bool
    probs: tuple[float, ...]
