"""A finished run as the teacher of another; read without torch."""

import math
from dataclasses import dataclass

__all__ = ["TeacherPlan"]

_SEED = "{seed}"


@dataclass(frozen=True)
class TeacherPlan:
    """Whose belief about each training image is the prior of a student's.

    Args:
        run: directory of the finished run; "{seed}" in it stands for the student's seed.
        strength: votes that the teacher's belief counts as, beside the one of a label. With a student's λ and
            a uniform prior of 1 its prior is then β = 1 + strength/λ times the teacher's probabilities.
        temperature: that the teacher's logits are divided by before.
        weight: of the loss of unlabelled images, beside that of labelled ones.
        fingerprint: of the teacher's plan, by which it is known wherever it lies; found out if not given.
    """

    run: str
    strength: float = 1.0
    temperature: float = 1.0
    weight: float = 1.0
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if not self.run.strip():
            raise ValueError("teacher: `prior_from` must be the directory of a finished run, got none.")
        for name in ("strength", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"teacher: `prior_{name}` must be finite and above 0, got {getattr(self, name)!r}."
                )
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"teacher: `prior_weight` must be finite and not negative, got {self.weight!r}.")

    @property
    def has_seeds(self) -> bool:
        """Whether each seed has a teacher of its own."""
        return _SEED in self.run

    def run_of(self, seed: int) -> str:
        """The directory for a student's seed.

        >>> TeacherPlan("runs/teacher-{seed}").run_of(3)
        'runs/teacher-3'
        """
        return self.run.replace(_SEED, str(seed))
