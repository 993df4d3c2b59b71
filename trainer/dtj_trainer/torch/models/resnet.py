"""ResNet-18 (He et al., 2015, "Deep Residual Learning for Image Recognition"): 11.7 million parameters.

The form for small pictures has the 3x3 stem without pooling that the paper uses for CIFAR-10. The state has the
names of torchvision's `resnet18`.
"""

from __future__ import annotations

from torch import Tensor, nn

from dtj_trainer.torch.models.batch_norm import BatchNorm2d
from dtj_trainer.torch.models.blocks import Block, flat
from dtj_trainer.torch.models.form import NetworkForm


class _Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm2d(outputs)
            )

    def forward(self, values: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(values)))))
        out: Tensor = self.relu(inner + self.downsample(values))
        return out


class ResNet18(nn.Module):
    """Takes (batch, channels, height, width); returns (batch, classes)."""

    def __init__(self, channels: int, classes: int, form: NetworkForm) -> None:
        super().__init__()
        if form is NetworkForm.SMALL:
            self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if form is NetworkForm.LARGE else nn.Identity()
        self.layer1 = nn.Sequential(_Residual(64, 64, 1), _Residual(64, 64, 1))
        self.layer2 = nn.Sequential(_Residual(64, 128, 2), _Residual(128, 128, 1))
        self.layer3 = nn.Sequential(_Residual(128, 256, 2), _Residual(256, 256, 1))
        self.layer4 = nn.Sequential(_Residual(256, 512, 2), _Residual(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def blocks(self) -> list[Block]:
        """See `blocks_of`."""
        stem = [self.conv1, self.bn1, self.relu, self.maxpool]
        return [*stem, *self.layer1, *self.layer2, *self.layer3, *self.layer4, self.avgpool, flat, self.fc]

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of each class."""
        values = self.maxpool(self.relu(self.bn1(self.conv1(pictures))))
        values = self.layer4(self.layer3(self.layer2(self.layer1(values))))
        logits: Tensor = self.fc(flat(self.avgpool(values)))
        return logits
