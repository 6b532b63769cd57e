"""Residual networks for small images: pre-activation ResNets (He et al. 2016b) and wide ResNets.

The stem is one 3×3 convolution at full resolution, as for CIFAR's 32×32 pixels. `width` scales every layer;
the paper's networks have 64 (ResNet) and 16 times the factor (wide ResNet).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from beliefmatch._errors import fail
from beliefmatch._validate import require_choice, require_index

__all__ = [
    "Basic",
    "Bottleneck",
    "ResidualNetwork",
    "preact_resnet18",
    "preact_resnet34",
    "preact_resnet50",
    "wide_resnet",
    "wrn28_2",
    "wrn28_10",
]

Activation = Callable[[], nn.Module]
ACTIVATIONS: dict[str, Activation] = {"relu": nn.ReLU, "leaky_relu": partial(nn.LeakyReLU, 0.1)}
"""By name; the second is that of the wide ResNets of semi-supervised learning (Oliver et al. 2018)."""


class Basic(nn.Module):
    """x + two 3×3 convolutions of x, each after normalisation and activation."""

    expansion = 1

    def __init__(
        self, channels: int, width: int, *, stride: int, activation: Activation, dropout: float
    ) -> None:
        super().__init__()
        self.activation, self.dropout = activation(), nn.Dropout(dropout)
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), _convolution(channels, width, 3, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), _convolution(width, width, 3)
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map features to features."""
        active = self.activation(self.norm1(x))
        skipped = x if self.shortcut is None else self.shortcut(active)
        x = self.conv1(self.dropout(active))
        return self.conv2(self.dropout(self.activation(self.norm2(x)))) + skipped


class Bottleneck(nn.Module):
    """x + a 1×1, a 3×3 and a 1×1 convolution of x, the last four times as wide."""

    expansion = 4

    def __init__(
        self, channels: int, width: int, *, stride: int, activation: Activation, dropout: float
    ) -> None:
        super().__init__()
        wide = self.expansion * width
        self.activation, self.dropout = activation(), nn.Dropout(dropout)
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), _convolution(channels, width, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), _convolution(width, width, 3, stride)
        self.norm3, self.conv3 = nn.BatchNorm2d(width), _convolution(width, wide, 1)
        self.shortcut = _shortcut(channels, wide, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map features to features."""
        active = self.activation(self.norm1(x))
        skipped = x if self.shortcut is None else self.shortcut(active)
        x = self.conv1(self.dropout(active))
        x = self.conv2(self.dropout(self.activation(self.norm2(x))))
        return self.conv3(self.dropout(self.activation(self.norm3(x)))) + skipped


class ResidualNetwork(nn.Module):
    """Stages of blocks, each but the first at half the resolution of the one before.

    Args:
        block: `Basic` or `Bottleneck`.
        depths: blocks in each stage.
        widths: channels in each stage, before a bottleneck's expansion.
        stem: channels of the first convolution.
        num_classes: number of logits K.
        channels: of the images.
        activation: "relu", or "leaky_relu" with a slope of 0.1.
        dropout: rate in front of the linear layer, and where `dropout_in_blocks` of every convolution too.
        dropout_in_blocks: dropout in all layers rather than in the last.
        stem_stride: of the first convolution; 2 quarters the cost of all that follows.
    """

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        *,
        stem: int,
        num_classes: int = 10,
        channels: int = 3,
        activation: Literal["relu", "leaky_relu"] = "relu",
        dropout: float = 0.0,
        dropout_in_blocks: bool = False,
        stem_stride: int = 1,
    ) -> None:
        super().__init__()
        require_choice("ResidualNetwork", "activation", activation, tuple(ACTIVATIONS))
        if require_index("ResidualNetwork", "stem_stride", stem_stride) < 1:
            raise fail("ResidualNetwork", f"`stem_stride` must be at least 1, got {stem_stride}.")
        inner: dict[str, Any] = {
            "activation": ACTIVATIONS[activation],
            "dropout": dropout if dropout_in_blocks else 0.0,
        }
        self.stem = _convolution(channels, stem, 3, stem_stride)
        stages, at = [], stem
        for index, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            stages.append(_stage(block, at, width, depth, 1 if index == 0 else 2, inner))
            at = width * block.expansion
        self.stages = nn.Sequential(*stages)
        self.norm, self.activation = nn.BatchNorm2d(at), ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(at, num_classes)
        _initialise(self)

    def features(self, images: Tensor) -> Tensor:
        """What the linear layer sees: (N, F)."""
        x = self.stages(self.stem(images))
        return self.activation(self.norm(x)).mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to logits (N, K)."""
        return self.head(self.dropout(self.features(images)))


def preact_resnet18(*, width: int = 64, **options: Any) -> ResidualNetwork:
    """Pre-activation ResNet-18; 11.2 million parameters at width 64."""
    return _resnet(Basic, (2, 2, 2, 2), width, options)


def preact_resnet34(*, width: int = 64, **options: Any) -> ResidualNetwork:
    """Pre-activation ResNet-34; 21.3 million parameters at width 64."""
    return _resnet(Basic, (3, 4, 6, 3), width, options)


def preact_resnet50(*, width: int = 64, **options: Any) -> ResidualNetwork:
    """Pre-activation ResNet-50; 23.5 million parameters at width 64."""
    return _resnet(Bottleneck, (3, 4, 6, 3), width, options)


def wide_resnet(*, depth: int = 28, factor: int = 2, width: int = 16, **options: Any) -> ResidualNetwork:
    """Wide ResNet (Zagoruyko and Komodakis 2016); WRN-28-2 has 1.5 and WRN-28-10 36.5 million parameters."""
    if depth < 10 or (depth - 4) % 6:
        raise fail("wide_resnet", f"`depth` must be 10, 16, 22, 28, ... (6n + 4), got {depth}.")
    widths = [factor * width, 2 * factor * width, 4 * factor * width]
    return ResidualNetwork(Basic, [(depth - 4) // 6] * 3, widths, stem=width, **options)


def wrn28_2(*, width: int = 16, **options: Any) -> ResidualNetwork:
    """Wide ResNet of depth 28 and factor 2."""
    return wide_resnet(depth=28, factor=2, width=width, **options)


def wrn28_10(*, width: int = 16, **options: Any) -> ResidualNetwork:
    """Wide ResNet of depth 28 and factor 10."""
    return wide_resnet(depth=28, factor=10, width=width, **options)


def _resnet(
    block: type[Basic] | type[Bottleneck], depths: Sequence[int], width: int, options: dict[str, Any]
) -> ResidualNetwork:
    return ResidualNetwork(block, depths, [width, 2 * width, 4 * width, 8 * width], stem=width, **options)


def _stage(
    block: type[Basic] | type[Bottleneck],
    channels: int,
    width: int,
    depth: int,
    stride: int,
    options: dict[str, Any],
) -> nn.Sequential:
    first = block(channels, width, stride=stride, **options)
    others = (block(width * block.expansion, width, stride=1, **options) for _ in range(depth - 1))
    return nn.Sequential(first, *others)


def _convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel, stride=stride, padding=kernel // 2, bias=False)


def _shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Conv2d | None:
    """A 1×1 convolution of the activated input where the shape changes, else x itself."""
    unchanged = channels_in == channels_out and stride == 1
    return None if unchanged else _convolution(channels_in, channels_out, 1, stride)


def _initialise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
