"""A network with its normalization, so that the model takes pixels as they are in the data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dtj_trainer.torch.models.cnn import Cnn
from dtj_trainer.torch.models.resnet import ResNet18

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = ("cnn", "resnet18")


class PictureClassifier(nn.Module):
    """Scales the pixels, normalizes them by the data set's mean and deviation, and applies the network.

    Takes uint8 (or float, 0 to 255) of shape (batch, channels, height, width); returns logits of shape
    (batch, classes). Mean and deviation, one for each channel on the scale 0 to 1, are saved with the weights.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits of each class."""
        logits: Tensor = self.network((pixels.float() / 255.0 - self.mean) / self.deviation)
        return logits


def build(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    mean: Sequence[float] | None = None,
    deviation: Sequence[float] | None = None,
) -> PictureClassifier:
    """Build a new model, one of MODELS, for pictures of `shape` (channels, height, width).

    Raises ValueError for an unknown name, or for pictures too small for the network.
    """
    channels, height, width = shape
    if min(height, width) < 8:
        raise ValueError(f"{name} needs pictures of at least 8x8, these are {height}x{width}")
    network: nn.Module
    if name == "cnn":
        network = Cnn(channels, height, width, classes)
    elif name == "resnet18":
        network = ResNet18(channels, classes)
    else:
        raise ValueError(f"no model {name!r}: there are {', '.join(MODELS)}")
    return PictureClassifier(network, mean or [0.0] * channels, deviation or [1.0] * channels)
