"""The learning rate, as a function of how much of the training is done: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear scaling with the number of ranks, reached over a warm-up (Goyal et al., 2017), then a decay.

    `rate` is that of one rank; `scale` the number of ranks (1: no scaling, and no warm-up). Lengths in
    epochs.
    """

    rate: float
    scale: float
    warmup_epochs: float
    epochs: float
    decay: str = "constant"

    def at(self, epochs_done: float) -> float:
        """The learning rate when so many epochs are done, as a fraction where one is not over."""
        if epochs_done < self.warmup_epochs:
            return self.rate * (1 + (self.scale - 1) * epochs_done / self.warmup_epochs)
        peak = self.rate * self.scale
        if self.decay == "constant":
            return peak
        left = max(self.epochs - self.warmup_epochs, 1e-9)
        return peak * 0.5 * (1 + math.cos(math.pi * min((epochs_done - self.warmup_epochs) / left, 1.0)))
