"""A network with its normalization, so that the model takes pixels as they are in the data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from dtj_trainer.torch.models.batch_norm import accept_single_values
from dtj_trainer.torch.models.cnn import Cnn
from dtj_trainer.torch.models.densenet import DenseNet121
from dtj_trainer.torch.models.form import form_of
from dtj_trainer.torch.models.mobilenet import MobileNetV2
from dtj_trainer.torch.models.outputs import logits_and_loss
from dtj_trainer.torch.models.resnet import ResNet18
from dtj_trainer.torch.models.shufflenet import ShuffleNetV2
from dtj_trainer.torch.models.vgg import Vgg16
from dtj_trainer.train.own_model import is_own, made_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dtj_trainer.torch.models.form import NetworkForm

_NETWORKS: Mapping[str, Callable[[int, int, NetworkForm], nn.Module]] = {
    "resnet18": ResNet18,
    "vgg16": lambda channels, classes, form: Vgg16(channels, classes, form, batch_norm=False),
    "vgg16_bn": lambda channels, classes, form: Vgg16(channels, classes, form, batch_norm=True),
    "mobilenet_v2": MobileNetV2,
    "shufflenet_v2": ShuffleNetV2,
    "densenet121": DenseNet121,
}
"""Makers of networks, by name. Arguments: channels of a picture, number of classes, form for the pictures' size."""

MODELS = ("cnn", *_NETWORKS)


class Outputs(NamedTuple):
    """What a PictureClassifier returns in training if its network has a loss of its own."""

    logits: Tensor
    loss: Tensor


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

    def forward(self, pixels: Tensor) -> Any:
        """Return the logits of each class; in training, with the network's own loss if it has one."""
        logits, loss = logits_and_loss(self.network(normalized(pixels, self.mean, self.deviation)))
        return Outputs(logits, loss) if self.training and loss is not None else logits


def normalized(pixels: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Scale pixels to 0 to 1, and normalize them."""
    return (pixels.float() / 255.0 - mean) / deviation


def build(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    mean: Sequence[float] | None = None,
    deviation: Sequence[float] | None = None,
) -> PictureClassifier:
    """Build a new model for pictures of `shape` (channels, height, width).

    `name` is one of MODELS, or `package.module:factory` for a network of the user, see `own_model`. Raises ValueError
    for an unknown name, for pictures too small for the network, and for a factory that makes no network for them.
    """
    channels, height, width = shape
    if is_own(name):
        network = _own(name, shape, classes)
    elif name not in MODELS:
        raise ValueError(f"no model {name!r}: there are {', '.join(MODELS)}")
    elif min(height, width) < 8:
        raise ValueError(f"{name} needs pictures of at least 8x8, these are {height}x{width}")
    elif name == "cnn":
        network = Cnn(channels, height, width, classes)
    else:
        network = _NETWORKS[name](channels, classes, form_of(height, width))
    return PictureClassifier(network, mean or [0.0] * channels, deviation or [1.0] * channels)


def _own(path: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    network = made_by(path, channels=shape[0], classes=classes)
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"--model={path} returned {type(network).__name__}, and has to return a torch.nn.Module"
        )
    accept_single_values(network)
    return network
