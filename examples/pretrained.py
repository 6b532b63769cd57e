"""Networks of published weights, written out: `beliefmatch adapt --model examples.pretrained:resnet20_cifar`.

Each function builds the network that its weights were trained in, with the names they have in their files.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

__all__ = ["resnet20_cifar", "resnet32_cifar", "resnet50_keras"]


class _Basic(nn.Module):
    """Two 3x3 convolutions; a shortcut without parameters where channels double (He et al. 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.stride, self.missing = stride, after - before

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if self.missing:
            around = self.missing // 2
            x = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, around, around))
        return relu(x + y)


class _SmallResNet(nn.Module):
    """Three stages of 16, 32 and 64 channels for images of 32x32."""

    def __init__(self, blocks: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, blocks)
        self.layer2 = self._stage(16, 32, blocks)
        self.layer3 = self._stage(32, 64, blocks)
        self.linear = nn.Linear(64, num_classes)

    @staticmethod
    def _stage(before: int, after: int, blocks: int) -> nn.Sequential:
        first = _Basic(before, after, 1 if before == after else 2)
        return nn.Sequential(first, *(_Basic(after, after, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def resnet20_cifar(num_classes: int = 10) -> nn.Module:
    """ResNet-20; mean .485 .456 .406, std .229 .224 .225."""
    return _SmallResNet(3, num_classes)


def resnet32_cifar(num_classes: int = 10) -> nn.Module:
    """ResNet-32; mean .485 .456 .406, std .229 .224 .225."""
    return _SmallResNet(5, num_classes)


class _Bottleneck(nn.Module):
    """1x1, 3x3, 1x1; the stride is in the first of them, as in Keras."""

    def __init__(self, before: int, narrow: int, stride: int) -> None:
        super().__init__()
        wide = 4 * narrow
        self.conv1 = nn.Conv2d(before, narrow, 1, stride, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(narrow)
        self.conv3 = nn.Conv2d(narrow, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.downsample = nn.Identity()
        if before != wide:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(self.conv1(x)), inplace=True)
        y = relu(self.bn2(self.conv2(y)), inplace=True)
        return relu(self.bn3(self.conv3(y)) + self.downsample(x), inplace=True)


class _ResNet50(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(64, 64, 3, 1)
        self.layer2 = self._stage(256, 128, 4, 2)
        self.layer3 = self._stage(512, 256, 6, 2)
        self.layer4 = self._stage(1024, 512, 3, 2)
        self.fc = nn.Linear(2048, num_classes)

    @staticmethod
    def _stage(before: int, narrow: int, blocks: int, stride: int) -> nn.Sequential:
        first = _Bottleneck(before, narrow, stride)
        return nn.Sequential(first, *(_Bottleneck(4 * narrow, narrow, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


def resnet50_keras(num_classes: int = 1000) -> nn.Module:
    """ResNet-50 of Keras; pixels 0..255 minus 123.68, 116.779, 103.939: divided by 255 where ours are."""
    return _ResNet50(num_classes)
