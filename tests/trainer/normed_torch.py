"""A small PyTorch network with BatchNorm, for tests of resumes and of batch statistics."""

from torch import nn


def network(channels: int, classes: int) -> nn.Module:
    """See `dtj_trainer.train.own_model`."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )
