"""The optimizers of the PyTorch programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import SGD, Adadelta, Adam, AdamW, Optimizer

if TYPE_CHECKING:
    from torch import nn

    from dtj_trainer.train.options import Options


def make(options: Options, network: nn.Module) -> Optimizer:
    """Make the optimizer of `--optimizer`, with PyTorch's defaults for what has no option."""
    weights, rate, decay = network.parameters(), options.lr, options.weight_decay
    match options.optimizer:
        case "adam":
            return Adam(weights, lr=rate, weight_decay=decay)
        case "adamw":
            return AdamW(weights, lr=rate, weight_decay=decay)
        case "adadelta":
            return Adadelta(weights, lr=rate, weight_decay=decay)
        case _:
            return SGD(weights, lr=rate, momentum=options.momentum, weight_decay=decay)
