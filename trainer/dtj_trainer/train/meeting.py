"""What the ranks exchange while they train and test, and how often."""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtj_trainer.train.protocols import Ranks

MEETING_SECONDS = 0.5
"""The approximate interval at which the ranks exchange their sums and stop requests."""
MEETING_STEPS_MAX = 200


@dataclass(frozen=True)
class Sums:
    """The work of the ranks since their last meeting: of one rank, or added up over all.

    `loss`, `right` and `top5` are sums over `examples`.

    `stop` counts ranks that were asked to stop, `save` those whose clock
    asks for a checkpoint. `seconds` have passed, of which `waited` were spent waiting for data. `skipped` counts the
    examples that were left out because they can't be read. The others are those of StepParts.
    """

    loss: float = 0.0
    right: float = 0.0
    examples: float = 0.0
    stop: float = 0.0
    save: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    steps: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    communication: float = 0.0
    optimizer: float = 0.0
    exchanging: float = 0.0
    reduced: float = 0.0
    skipped: float = 0.0
    top5: float = 0.0

    def __add__(self, more: Sums) -> Sums:
        """Return the sums over both periods."""
        return Sums(*map(operator.add, astuple(self), astuple(more)))

    def over_all(self, ranks: Ranks, name: str) -> Sums:
        """Return the sums over all ranks. Every rank gets equal sums, so that all ranks decide alike."""
        return Sums(*ranks.total(astuple(self), name))

    def step_seconds(self) -> dict[str, float]:
        """Return the mean seconds of each part of a step, by name; nothing if the model measures no parts."""
        if not self.steps:
            return {}
        names = ("forward", "backward", "communication", "optimizer")
        parts = {"data": self.waited} | {name: getattr(self, name) for name in names}
        return {name: seconds / self.steps for name, seconds in parts.items()}


class MeetingPace:
    """Decides when the ranks meet next: after a number of steps that takes about `seconds`; 0: after each step.

    The decision follows from sums over all ranks, so that it is the same on every rank.
    """

    def __init__(self, seconds: float = MEETING_SECONDS) -> None:
        self._seconds = seconds
        self._steps = 1
        self._since = 0

    def step(self) -> bool:
        """Count a step; return whether the ranks meet after it."""
        self._since += 1
        return self._since >= self._steps

    def met(self, seconds: float) -> None:
        """Record a meeting. `seconds`: the time since the meeting before, averaged over the ranks."""
        per_step = seconds / max(self._since, 1)
        self._steps = max(1, min(int(self._seconds / max(per_step, 1e-9)), MEETING_STEPS_MAX))
        self._since = 0
