"""A digit rotated upside down: the paper's opening example."""

from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch.data.digits import load_digits, rotated
from beliefmatch.experiments.records import RotatedDigit, Rotation
from beliefmatch.methods.base import Predictor

__all__ = ["ANGLES", "DIGIT", "DigitRotation", "confidence_when_wrong"]

DIGIT = 3
ANGLES = list(range(0, 181, 15))


@dataclass(frozen=True, eq=False)
class DigitRotation:
    """Test images of the digit at every angle, (angles, digits, 1, 8, 8); the first is pictured."""

    images: Tensor

    @classmethod
    def load(cls) -> "DigitRotation":
        """Rotate the embedded digits."""
        test = load_digits().test
        chosen = test.images[test.targets == DIGIT]
        return cls(torch.stack([rotated(image, ANGLES) for image in chosen], dim=1))

    def described(self) -> RotatedDigit:
        """The images as a record holds them."""
        return RotatedDigit(DIGIT, self.images.shape[1], ANGLES, self.images[:, 0, 0].tolist())

    def seen_by(self, predictor: Predictor) -> Rotation:
        """What a predictor predicts for the images."""
        pictured = predictor.predict(self.images[:, 0])
        confidence, predicted = pictured.probs.max(-1)
        probs = predictor.predict(self.images.flatten(0, 1)).probs.unflatten(0, self.images.shape[:2])
        all_confidence, all_predicted = probs.max(-1)
        information = pictured.mutual_information()
        return Rotation(
            predicted=predicted.tolist(),
            confidence=confidence.tolist(),
            entropy=torch.special.entr(pictured.probs).sum(-1).tolist(),
            mutual_information=None if information is None else information.tolist(),
            mean_confidence=all_confidence.mean(1).tolist(),
            recognised=(all_predicted == DIGIT).double().mean(1).tolist(),
            wrong_confidence=confidence_when_wrong(confidence, predicted),
            mean_wrong_confidence=confidence_when_wrong(all_confidence, all_predicted),
        )


def confidence_when_wrong(confidence: Tensor, predicted: Tensor) -> float | None:
    """Mean confidence in classes other than the digit's; None if there were none."""
    wrong = confidence[predicted != DIGIT]
    return wrong.mean().item() if len(wrong) else None
