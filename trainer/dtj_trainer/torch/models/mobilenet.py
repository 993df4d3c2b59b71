"""MobileNetV2 (Sandler et al., 2018, "Inverted Residuals and Linear Bottlenecks"): 3.5 million parameters.

The forms for smaller pictures have a stride of 1 in place of 2 in the second stage, or also in the stem. The state
has the names and shapes of torchvision's `mobilenet_v2`.
"""

from __future__ import annotations

from torch import Tensor, nn

from dtj_trainer.torch.models.batch_norm import BatchNorm2d
from dtj_trainer.torch.models.blocks import Block, flat
from dtj_trainer.torch.models.form import NetworkForm

_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""The paper's table 2: expansion, outputs, blocks, stride of the first block."""


class MobileNetV2(nn.Module):
    """Takes (batch, channels, height, width); returns (batch, classes)."""

    def __init__(self, channels: int, classes: int, form: NetworkForm) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            _convolution(channels, 32, 3, stride=1 if form is NetworkForm.SMALL else 2)
        ]
        inputs = 32
        for expansion, outputs, blocks, first in _STAGES:
            stride = 1 if form is not NetworkForm.LARGE and outputs == 24 else first
            for block in range(blocks):
                layers.append(_InvertedResidual(inputs, outputs, stride if block == 0 else 1, expansion))
                inputs = outputs
        layers.append(_convolution(inputs, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def blocks(self) -> list[Block]:
        """See `blocks_of`."""
        return [*self.features, self.avgpool, flat, *self.classifier]

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of each class."""
        values = self.avgpool(self.features(pictures))
        logits: Tensor = self.classifier(flat(values))
        return logits


class _InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, filter each channel by itself, project to few channels; add the input."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.conv = nn.Sequential(
            *([_convolution(inputs, inner, 1)] if expansion != 1 else []),
            _convolution(inner, inner, 3, stride=stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            BatchNorm2d(outputs),
        )
        self._adds = stride == 1 and inputs == outputs

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.conv(values)
        return values + out if self._adds else out


def _convolution(inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False),
        BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )
