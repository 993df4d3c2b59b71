"""A small convolutional network: 106 thousand parameters for 28x28 pictures of one channel."""

from __future__ import annotations

from torch import Tensor, nn


class Cnn(nn.Module):
    """Two convolutions with pooling, two dense layers; no normalisation over the batch.

    Smooth throughout (SiLU, average pooling): the rounding by which n ranks differ from one process stays
    rounding, where a ReLU's or a maximum's switch to the other side makes it a thousand times larger.
    Takes (batch, channels, height, width), gives (batch, classes).
    """

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=3, padding=1),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(32 * (height // 4) * (width // 4), 64),
            nn.SiLU(),
            nn.Linear(64, classes),
        )
        for layer in [*self.features, self.head[0]]:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits of each class."""
        logits: Tensor = self.head(self.features(pictures))
        return logits
