"""VGG-16 (Simonyan and Zisserman, 2014, "Very Deep Convolutional Networks"), with and without BatchNorm.

The published form has 138.4 million parameters, of which 123.6 million are in its three dense layers. The form for
small pictures has a single dense layer, as is usual for CIFAR-10: 14.7 million parameters. The state has the names
of torchvision's `vgg16` and `vgg16_bn`.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from dtj_trainer.torch.models.batch_norm import BatchNorm2d
from dtj_trainer.torch.models.blocks import Block, flat
from dtj_trainer.torch.models.form import NetworkForm

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""The outputs of the 3x3 convolutions between two poolings."""


class Vgg16(nn.Module):
    """Takes (batch, channels, height, width); returns (batch, classes)."""

    def __init__(self, channels: int, classes: int, form: NetworkForm, *, batch_norm: bool) -> None:
        super().__init__()
        outputs = [each for stage in _STAGES for each in stage]
        inputs = iter([channels, *outputs])
        layers: list[nn.Module] = []
        for stage in _STAGES:
            for each in stage:
                layers.append(nn.Conv2d(next(inputs), each, 3, padding=1))
                layers += [BatchNorm2d(each)] if batch_norm else []
                layers.append(nn.ReLU(inplace=True))
            # Round sizes up, so that five poolings leave a pixel of a small picture.
            layers.append(nn.MaxPool2d(2, ceil_mode=form is NetworkForm.SMALL))
        if form is NetworkForm.MEDIUM:
            # Leave out the last pooling: the first dense layer takes 7x7 pixels, and 6x6 are closer than 3x3.
            layers.pop()
        self.features = nn.Sequential(*layers)
        if form is NetworkForm.SMALL:
            self.avgpool: nn.Module = nn.AdaptiveAvgPool2d(1)
            self.classifier: nn.Module = nn.Linear(512, classes)
        else:
            self.avgpool = nn.AdaptiveAvgPool2d(7)
            self.classifier = _dense(512 * 7 * 7, 4096, 4096, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def blocks(self) -> list[Block]:
        """See `blocks_of`."""
        dense = self.classifier
        return [*self.features, self.avgpool, flat, *(dense if isinstance(dense, nn.Sequential) else [dense])]

    def tensor_layers(self) -> dict[str, str]:
        """See `tensor_layers_of`. The one dense layer of the form for small pictures is too small to be shared."""
        if isinstance(self.classifier, nn.Linear):
            return {}
        return {"classifier.0": "column", "classifier.2": "dropout", "classifier.3": "row"}

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of each class."""
        values = self.avgpool(self.features(pictures))
        logits: Tensor = self.classifier(flat(values))
        return logits


def _dense(*sizes: int) -> nn.Sequential:
    """Make dense layers, with ReLU and dropout between two of them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    return nn.Sequential(*layers[:-2])
