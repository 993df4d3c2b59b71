"""The optimizers of the PyTorch programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import SGD, Adadelta, Adam, AdamW, Optimizer

if TYPE_CHECKING:
    from torch import nn

    from dtj_trainer.train.options import Options


def make(options: Options, network: nn.Module, *, fused: bool = False) -> Optimizer:
    """Make the optimizer of `--optimizer`, with PyTorch's defaults for what has no option.

    fused: update all weights in one kernel. A fused optimizer also skips a step with infinite gradients on the GPU:
    without it, `GradScaler` makes the CPU wait for the GPU in each step.
    """
    weights, rate, decay = network.parameters(), options.lr, options.weight_decay
    one_kernel = fused or None  # None: PyTorch chooses, as without the argument.
    match options.optimizer:
        case "adam":
            return Adam(weights, lr=rate, weight_decay=decay, fused=one_kernel)
        case "adamw":
            return AdamW(weights, lr=rate, weight_decay=decay, fused=one_kernel)
        case "adadelta":
            return Adadelta(weights, lr=rate, weight_decay=decay)
        case _:
            return SGD(weights, lr=rate, momentum=options.momentum, weight_decay=decay, fused=one_kernel)
