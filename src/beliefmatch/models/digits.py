"""A small convolutional network for images of 8 by 8 pixels."""

from torch import Tensor, nn

from beliefmatch._errors import fail

__all__ = ["DigitsNet"]


class DigitsNet(nn.Module):
    """Two convolutions with batch normalisation and a linear layer.

    Args:
        num_classes: number of logits K.
        channels: of the images.
        width: channels of the first convolution; the second has twice as many.
        dropout: rate in front of the linear layer, and where `dropout_in_blocks` of the second convolution.
        dropout_in_blocks: dropout in all layers rather than in the last.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        channels: int = 1,
        width: int = 32,
        dropout: float = 0.0,
        dropout_in_blocks: bool = False,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.layers = nn.Sequential(
            *_block(channels, width),
            nn.Dropout(dropout if dropout_in_blocks else 0.0),
            *_block(width, 2 * width),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * 2 * 2, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, 8, 8) to logits (N, K)."""
        if images.ndim != 4 or tuple(images.shape[1:]) != (self.channels, 8, 8):
            expected = f"(N, {self.channels}, 8, 8)"
            raise fail("DigitsNet", f"`images` must have shape {expected}, got {tuple(images.shape)}.")
        return self.layers(images)


def _block(channels_in: int, channels_out: int) -> list[nn.Module]:
    """A convolution at full size, then half the height and width."""
    return [
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
