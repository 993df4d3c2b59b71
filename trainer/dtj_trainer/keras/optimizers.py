"""The optimizers of the Keras programs whose ranks exchange gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING:
    from dtj_trainer.train.options import TrainingOptions


def make_optimizer(options: TrainingOptions) -> keras.optimizers.Optimizer:
    """Make the optimizer of `--optimizer`, with the constants of PyTorch. Only adamw applies `--weight-decay`."""
    match options.optimizer:
        case "adam":
            return keras.optimizers.Adam(options.lr, epsilon=1e-8)
        case "adamw":
            return keras.optimizers.AdamW(options.lr, weight_decay=options.weight_decay, epsilon=1e-8)
        case "adadelta":
            return keras.optimizers.Adadelta(options.lr, rho=0.9, epsilon=1e-6)
        case _:
            return keras.optimizers.SGD(options.lr, momentum=options.momentum)
