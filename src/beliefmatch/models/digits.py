"""A small convolutional network for images of 8 by 8 pixels."""

from torch import Tensor, nn

__all__ = ["DigitsNet"]


class DigitsNet(nn.Module):
    """Two convolutions and two linear layers, 13 thousand parameters at the default width.

    Args:
        num_classes: number of logits K.
        width: channels of the first convolution.
    """

    def __init__(self, *, num_classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 2 * 2, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 1, 8, 8) to logits (N, K)."""
        if images.ndim != 4 or tuple(images.shape[1:]) != (1, 8, 8):
            raise ValueError(
                f"DigitsNet: `images` must have shape (N, 1, 8, 8), got {tuple(images.shape)}."
            )
        return self.layers(images)
