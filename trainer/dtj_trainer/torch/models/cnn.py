"""A small convolutional network: 106 thousand parameters for 28x28 pictures of one channel."""

from __future__ import annotations

from torch import Tensor, nn

from dtj_trainer.torch.models.blocks import Block


class Cnn(nn.Module):
    """Two convolutions with pooling, two dense layers, no batch normalization.

    The functions are smooth (SiLU, average pooling). Rounding differences between n ranks and one process therefore
    stay small, whereas a ReLU or a maximum that switches sides enlarges them a thousand times. Takes (batch,
    channels, height, width); returns (batch, classes).
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

    def blocks(self) -> list[Block]:
        """See `blocks_of`."""
        return [*self.features, *self.head]

    def tensor_layers(self) -> dict[str, str]:
        """See `tensor_layers_of`."""
        return {"head.0": "column", "head.2": "row"}

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of each class."""
        logits: Tensor = self.head(self.features(pictures))
        return logits
