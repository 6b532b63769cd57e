"""A small convolutional network for images of any size, for a first run on a CPU."""

from torch import Tensor, nn

from beliefmatch._errors import fail

__all__ = ["SmallCNN"]

_LEAST_SIDE = 4  # below this, halving again would leave nothing to convolve


class SmallCNN(nn.Module):
    """Blocks of a convolution, batch normalisation and ReLU, each at half the height and width of the last.

    The mean over all positions feeds the last layer, so that images may have any size. The first convolution
    of large images has a stride of two, so that most of the work is done at a quarter of their pixels.

    Args:
        num_classes: number of logits K.
        channels: of the images.
        width: channels of the first block; each further block has twice as many.
        blocks: number of blocks.
        stem_stride: stride of the first convolution; 2 for images of about 64 pixels or more.
        dropout: rate in front of the last layer, and where `dropout_in_blocks` behind every block.
        dropout_in_blocks: dropout in all layers rather than in front of the last.

    >>> import torch
    >>> SmallCNN(num_classes=3, channels=1)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        channels: int = 3,
        width: int = 32,
        blocks: int = 3,
        stem_stride: int = 1,
        dropout: float = 0.0,
        dropout_in_blocks: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("blocks", blocks), ("stem_stride", stem_stride)):
            if value < 1:
                raise fail("SmallCNN", f"`{name}` must be at least 1, got {value}.")
        self.channels = channels
        rate = dropout if dropout_in_blocks else 0.0
        sizes = [channels] + [width * 2**block for block in range(blocks)]
        self.blocks = nn.ModuleList(
            _block(fan_in, fan_out, stride=stem_stride if first else 1, dropout=rate)
            for first, fan_in, fan_out in zip(
                [True] + [False] * (blocks - 1), sizes[:-1], sizes[1:], strict=True
            )
        )
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(sizes[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to logits (N, K)."""
        if images.ndim != 4 or images.shape[1] != self.channels:
            expected = f"(N, {self.channels}, H, W)"
            raise fail("SmallCNN", f"`images` must have shape {expected}, got {tuple(images.shape)}.")
        values = images
        for index, block in enumerate(self.blocks):
            if index and min(values.shape[-2:]) >= _LEAST_SIDE:
                values = self.pool(values)
            values = block(values)
        return self.head(self.dropout(values.mean((2, 3))))


def _block(channels_in: int, channels_out: int, *, stride: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.Dropout(dropout),
    )
