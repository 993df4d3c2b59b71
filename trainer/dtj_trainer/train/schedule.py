"""The learning rate as a function of the progress of the training."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


def rate_scale(optimizer: str, times: int) -> float:
    """Return the factor of the learning rate for a batch that is `times` as large.

    For SGD the factor is `times` (Goyal et al., 2017, "Accurate, Large Minibatch SGD"). Adam divides by the size of
    the gradients, whose noise shrinks with the square root of the batch size: the factor is that root (Malladi et
    al., 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms"). AdamW and Adadelta divide so too.
    """
    return float(times) if optimizer == "sgd" else math.sqrt(times)


@dataclass(frozen=True)
class Ramp:
    """A warm-up: from the epoch `begun` on, the scale changes from `start` to `end`.

    Checkpoints store the ramp.
    """

    begun: float
    start: float
    end: float

    def at(self, epochs_done: float, length: float) -> float:
        """Return the scale of the rate. `length` is the warm-up's length in epochs."""
        done = (epochs_done - self.begun) / length if length > 0 else 1.0
        return self.start + (self.end - self.start) * done if done < 1 else self.end

    def to(self, scale: float, epochs_done: float, length: float) -> Ramp:
        """Return the ramp for a training that resumes with another scale.

        A larger scale gets another warm-up, which begins at the current scale. A smaller scale applies at once.
        """
        if scale == self.end:
            return self
        now = self.at(epochs_done, length)
        return Ramp(epochs_done, min(now, scale), scale)

    def plain(self) -> dict[str, Any]:
        """Return the ramp as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Schedule:
    """The rate of one rank times the ramp's scale, followed by a decay.

    Lengths in epochs. The decay begins after `warmup_epochs`. A cosine ends at `epochs`; steps multiply the rate by
    `step_gamma` after each `step_epochs`, or at each epoch of `step_at`.
    """

    rate: float
    ramp: Ramp
    warmup_epochs: float
    epochs: float
    decay: str = "constant"
    step_epochs: float = 10.0
    step_gamma: float = 0.1
    step_at: tuple[float, ...] = ()

    def at(self, epochs_done: float) -> float:
        """Return the learning rate after so many epochs, which may be a fraction."""
        rate = self.rate * self.ramp.at(epochs_done, self.warmup_epochs)
        if self.decay == "constant" or epochs_done < self.warmup_epochs:
            return rate
        if self.decay == "step":
            falls = sum(epochs_done >= each for each in self.step_at) if self.step_at else None
            return rate * math.pow(
                self.step_gamma, epochs_done // self.step_epochs if falls is None else falls
            )
        left = max(self.epochs - self.warmup_epochs, 1e-9)
        return rate * 0.5 * (1 + math.cos(math.pi * min((epochs_done - self.warmup_epochs) / left, 1.0)))


def ramp_of(
    saved: dict[str, Any] | None, scale: float, epochs_done: float, warmup_epochs: float, start: float = 1.0
) -> Ramp:
    """Return the ramp of a training with this scale that resumes after `epochs_done`. `saved`: the checkpoint's
    `plain`.

    `saved` is None at the beginning, and for a checkpoint of an old release, which stored no ramp. The first warm-up
    begins at the scale `start`.
    """
    return Ramp(**saved).to(scale, epochs_done, warmup_epochs) if saved else Ramp(0.0, start, scale)
