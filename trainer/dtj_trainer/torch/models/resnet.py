"""ResNet-18 for small pictures: a 3x3 stem without pooling, as for CIFAR-10 (He et al., 2015)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class _BatchNorm(nn.BatchNorm2d):
    """BatchNorm2d that also accepts a single value for each channel during training.

    One value has no variance: it is normalized by the running statistics, which stay unchanged.
    """

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or values.numel() > self.num_features:
            return super().forward(values)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)  # Equal on all ranks, whatever examples each rank got.
        return functional.batch_norm(
            values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            _BatchNorm(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            _BatchNorm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), _BatchNorm(outputs)
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.activation(self.body(values) + self.shortcut(values))
        return out


class ResNet18(nn.Module):
    """11.2 million parameters. Takes (batch, channels, height, width), gives (batch, classes)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(channels, 64, 3, padding=1, bias=False),
            _BatchNorm(64),
            nn.ReLU(inplace=True),
        ]
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [_Block(inputs, outputs, stride), _Block(outputs, outputs, 1)]
            inputs = outputs
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of each class."""
        logits: Tensor = self.head(self.body(pictures))
        return logits
