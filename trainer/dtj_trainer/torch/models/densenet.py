"""DenseNet-121 (Huang et al., 2016, "Densely Connected Convolutional Networks"): 8.0 million parameters.

The forms for smaller pictures lack the pooling of the stem; the one for small pictures has the 3x3 stem that the
paper uses for CIFAR-10. The state has the names of torchvision's `densenet121`.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from dtj_trainer.torch.models.batch_norm import BatchNorm2d
from dtj_trainer.torch.models.blocks import Block, mean_of_pixels
from dtj_trainer.torch.models.form import NetworkForm

_BLOCKS = (6, 12, 24, 16)
_GROWTH = 32
"""The channels that each layer adds."""


class DenseNet121(nn.Module):
    """Takes (batch, channels, height, width); returns (batch, classes)."""

    def __init__(self, channels: int, classes: int, form: NetworkForm) -> None:
        super().__init__()
        inputs = 64
        if form is NetworkForm.SMALL:
            stem = nn.Conv2d(channels, inputs, 3, padding=1, bias=False)
        else:
            stem = nn.Conv2d(channels, inputs, 7, stride=2, padding=3, bias=False)
        layers: OrderedDict[str, nn.Module] = OrderedDict(conv0=stem, norm0=BatchNorm2d(inputs))
        layers["relu0"] = nn.ReLU(inplace=True)
        layers["pool0"] = nn.MaxPool2d(3, stride=2, padding=1) if form is NetworkForm.LARGE else nn.Identity()
        for block, size in enumerate(_BLOCKS, start=1):
            layers[f"denseblock{block}"] = nn.Sequential(
                OrderedDict(
                    (f"denselayer{layer}", _Layer(inputs + (layer - 1) * _GROWTH))
                    for layer in range(1, size + 1)
                )
            )
            inputs += size * _GROWTH
            if block < len(_BLOCKS):
                layers[f"transition{block}"] = _transition(inputs, inputs // 2)
                inputs //= 2
        layers["norm5"] = BatchNorm2d(inputs)
        self.features = nn.Sequential(layers)
        self.classifier = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def blocks(self) -> list[Block]:
        """See `blocks_of`. Each layer of a dense block, and each layer of a transition, is a block."""
        features: list[Block] = []
        for each in self.features:
            features += each if isinstance(each, nn.Sequential) else [each]
        return [*features, _rectified, mean_of_pixels, self.classifier]

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of each class."""
        logits: Tensor = self.classifier(mean_of_pixels(_rectified(self.features(pictures))))
        return logits


def _rectified(values: Tensor) -> Tensor:
    return functional.relu(values, inplace=True)


class _Layer(nn.Module):
    """Adds channels that a 1x1 and a 3x3 convolution make of all channels before."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        inner = 4 * _GROWTH
        self.norm1 = BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm2 = BatchNorm2d(inner)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(inner, _GROWTH, 3, padding=1, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        inner = self.conv1(self.relu1(self.norm1(values)))
        return torch.cat((values, self.conv2(self.relu2(self.norm2(inner)))), dim=1)


def _transition(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            norm=BatchNorm2d(inputs),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(inputs, outputs, 1, bias=False),
            pool=nn.AvgPool2d(2, ceil_mode=True),
        )
    )
