"""A multilayer perceptron for the rows of a table."""

from itertools import pairwise

from torch import Tensor, nn

from beliefmatch._errors import fail

__all__ = ["MLP"]


class MLP(nn.Module):
    """Linear layers with ReLU between them.

    Args:
        num_classes: number of logits K.
        channels: number of inputs of a row.
        width: units of each hidden layer.
        layers: number of hidden layers; 0 is a linear model.
        dropout: rate in front of the last layer, which for a linear model is a rate of the inputs.
        dropout_in_blocks: dropout in front of the other layers but the first too.

    >>> import torch
    >>> MLP(num_classes=3, channels=13)(torch.zeros(5, 13)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        *,
        num_classes: int = 2,
        channels: int = 1,
        width: int = 128,
        layers: int = 2,
        dropout: float = 0.0,
        dropout_in_blocks: bool = False,
    ) -> None:
        super().__init__()
        if width < 1 or layers < 0:
            got = f"a width of {width} and {layers} layers"
            raise fail("MLP", f"`width` must be at least 1 and `layers` at least 0, got {got}.")
        self.channels = channels
        sizes = [channels] + [width] * layers
        blocks: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            if blocks:
                blocks.append(nn.Dropout(dropout if dropout_in_blocks else 0.0))
            blocks += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        self.layers = nn.Sequential(*blocks, nn.Dropout(dropout), nn.Linear(sizes[-1], num_classes))

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows (N, channels) to logits (N, K)."""
        if rows.ndim != 2 or rows.shape[1] != self.channels:
            expected = f"(N, {self.channels})"
            raise fail("MLP", f"`rows` must have shape {expected}, got {tuple(rows.shape)}.")
        return self.layers(rows)
