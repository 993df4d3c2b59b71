"""ShuffleNetV2, 1.0x (Ma et al., 2018, "Practical Guidelines for Efficient CNN Architecture Design").

2.3 million parameters. The forms for smaller pictures lack the pooling, or also the stride, of the stem. The state
has the names and shapes of torchvision's `shufflenet_v2_x1_0`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dtj_trainer.torch.models.batch_norm import BatchNorm2d
from dtj_trainer.torch.models.blocks import Block, mean_of_pixels
from dtj_trainer.torch.models.form import NetworkForm


class ShuffleNetV2(nn.Module):
    """Takes (batch, channels, height, width); returns (batch, classes)."""

    def __init__(self, channels: int, classes: int, form: NetworkForm) -> None:
        super().__init__()
        self.conv1 = _convolution(channels, 24, 3, stride=1 if form is NetworkForm.SMALL else 2)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if form is NetworkForm.LARGE else nn.Identity()
        self.stage2 = _stage(24, 116, blocks=4)
        self.stage3 = _stage(116, 232, blocks=8)
        self.stage4 = _stage(232, 464, blocks=4)
        self.conv5 = _convolution(464, 1024, 1)
        self.fc = nn.Linear(1024, classes)

    def blocks(self) -> list[Block]:
        """See `blocks_of`."""
        stages = [*self.stage2, *self.stage3, *self.stage4]
        return [self.conv1, self.maxpool, *stages, self.conv5, mean_of_pixels, self.fc]

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of each class."""
        values = self.maxpool(self.conv1(pictures))
        values = self.conv5(self.stage4(self.stage3(self.stage2(values))))
        logits: Tensor = self.fc(mean_of_pixels(values))
        return logits


def _stage(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(_Reducing(inputs, outputs), *(_Keeping(outputs) for _ in range(blocks - 1)))


class _Keeping(nn.Module):
    """Transforms half of the channels, keeps the others, and mixes both."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch2 = _branch(channels // 2, channels // 2, stride=1)

    def forward(self, values: Tensor) -> Tensor:
        kept, transformed = values.chunk(2, dim=1)
        return _shuffled(torch.cat((kept, self.branch2(transformed)), dim=1))


class _Reducing(nn.Module):
    """Halves rows and columns. Both branches take all channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.branch1 = nn.Sequential(*_depthwise(inputs, stride=2), *_convolution(inputs, half, 1))
        self.branch2 = _branch(inputs, half, stride=2)

    def forward(self, values: Tensor) -> Tensor:
        return _shuffled(torch.cat((self.branch1(values), self.branch2(values)), dim=1))


def _branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        *_convolution(inputs, outputs, 1),
        *_depthwise(outputs, stride),
        *_convolution(outputs, outputs, 1),
    )


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False),
        BatchNorm2d(channels),
    ]


def _shuffled(values: Tensor) -> Tensor:
    """Interleave the two halves of the channels, so that the next block's halves have some of each."""
    batch, channels, height, width = values.shape
    halves = values.view(batch, 2, channels // 2, height, width)
    return halves.transpose(1, 2).reshape(batch, channels, height, width)
