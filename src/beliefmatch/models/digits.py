"""A small convolutional network for images of 8 by 8 pixels."""

from torch import Tensor, nn

__all__ = ["DigitsNet"]


class DigitsNet(nn.Module):
    """Two convolutions with batch normalisation and a linear layer.

    Args:
        num_classes: number of logits K.
        width: channels of the first convolution; the second has twice as many.
    """

    def __init__(self, *, num_classes: int = 10, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_block(1, width),
            *_block(width, 2 * width),
            nn.Flatten(),
            nn.Linear(2 * width * 2 * 2, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 1, 8, 8) to logits (N, K)."""
        if images.ndim != 4 or tuple(images.shape[1:]) != (1, 8, 8):
            raise ValueError(f"DigitsNet: `images` must have shape (N, 1, 8, 8), got {tuple(images.shape)}.")
        return self.layers(images)


def _block(channels_in: int, channels_out: int) -> list[nn.Module]:
    """A convolution at full size, then half the height and width."""
    return [
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
