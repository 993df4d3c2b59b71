"""The learning rate, as a function of how much of the training is done."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


def rate_scale(optimizer: str, ranks: int) -> float:
    """By what the rate of one rank is multiplied for a batch that is `ranks` times as large.

    For SGD by as much (Goyal et al., 2017, "Accurate, Large Minibatch SGD"). Adam divides by the gradients' size, of
    which the noise shrinks with the square root of the batch: hence that root (Malladi et al., 2022, "On the SDEs
    and Scaling Rules for Adaptive Gradient Algorithms").
    """
    return math.sqrt(ranks) if optimizer == "adam" else float(ranks)


@dataclass(frozen=True)
class Ramp:
    """A warm-up: when so many epochs were done, the scale began to go from one value to another.

    What a checkpoint keeps of the schedule.
    """

    begun: float
    start: float
    end: float

    def at(self, epochs_done: float, length: float) -> float:
        """The scale of the rate, `length` being the warm-up's epochs."""
        done = (epochs_done - self.begun) / length if length > 0 else 1.0
        return self.start + (self.end - self.start) * done if done < 1 else self.end

    def to(self, scale: float, epochs_done: float, length: float) -> Ramp:
        """What the ramp becomes when the training goes on with another scale.

        To a larger scale there is another warm-up, from the present one on. A smaller one holds at once.
        """
        if scale == self.end:
            return self
        now = self.at(epochs_done, length)
        return Ramp(epochs_done, min(now, scale), scale)

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Schedule:
    """The rate of one rank times the ramp's scale, then a decay.

    Lengths in epochs; the decay begins when `warmup_epochs` are done and ends with `epochs`.
    """

    rate: float
    ramp: Ramp
    warmup_epochs: float
    epochs: float
    decay: str = "constant"

    def at(self, epochs_done: float) -> float:
        """The learning rate when so many epochs are done, as a fraction where one is not over."""
        rate = self.rate * self.ramp.at(epochs_done, self.warmup_epochs)
        if self.decay == "constant" or epochs_done < self.warmup_epochs:
            return rate
        left = max(self.epochs - self.warmup_epochs, 1e-9)
        return rate * 0.5 * (1 + math.cos(math.pi * min((epochs_done - self.warmup_epochs) / left, 1.0)))


def ramp_of(saved: dict[str, Any] | None, scale: float, epochs_done: float, warmup_epochs: float) -> Ramp:
    """The ramp of a training with this scale that goes on where `epochs_done` are done; `saved`: its `plain`.

    None at the beginning, and for a checkpoint of a release that did not write it.
    """
    return Ramp(**saved).to(scale, epochs_done, warmup_epochs) if saved else Ramp(0.0, 1.0, scale)
