"""Measures the parts of training steps: forward, backward, communication, optimizer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from dtj_trainer.train.protocols import StepParts

MEASURED_STEPS = 16
"""On a GPU, about this many steps between two calls of `take` are measured, spread evenly."""

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle


class _Pass(NamedTuple):
    """Marks of a forward and a backward pass: their begin, the first and the last gradient, the end."""

    forward: Any
    backward: Any
    first: Any
    last: Any
    end: Any


class NoClock:
    """A clock that measures nothing; see StepClock for its methods."""

    def forward(self) -> None:
        """See StepClock."""

    def backward(self) -> None:
        """See StepClock."""

    def passed(self) -> None:
        """See StepClock."""

    def averaged(self) -> None:
        """See StepClock."""

    def updated(self) -> None:
        """See StepClock."""

    def take(self) -> StepParts:
        """Return no parts."""
        return StepParts()


class StepClock(NoClock):
    """Measures steps of a network; the caller names each part when the part begins.

    On a CPU, marks are times. On a GPU, whose work runs after the calls, marks are events in its stream. The ranks
    exchange gradients beside the backward pass. What the clock calls communication is the rest: from the rank's own
    last gradient until all gradients are averaged. A step costs eight marks: 3 us on a CPU. The events of a GPU cost
    some 100 us, and to read them costs as much while the GPU waits: there, the sums are those of some steps, scaled.
    """

    def __init__(self, network: nn.Module, device: torch.device, *, exchanged: bool) -> None:
        self._of_gpu = device.type == "cuda"
        weights = [each for each in network.parameters() if each.requires_grad]
        self._bytes = sum(each.numel() * each.element_size() for each in weights) if exchanged else 0
        self._order: list[Tensor] = []
        self._hooks: dict[Tensor, RemovableHandle] = {
            each: each.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
            for each in weights
        }
        self._passes: list[_Pass] = []
        self._steps: list[tuple[list[_Pass], Any, Any]] = []
        self._every, self._since = 1, 0
        """`_every`: one of this many steps is measured. `_since`: the steps since the last call of `take`."""
        self._forward_at = self._backward_at = self._first = self._last = self._averaged_at = None

    def forward(self) -> None:
        """Begin a forward pass."""
        self._forward_at, self._first, self._last = self._mark(), None, None

    def backward(self) -> None:
        """Begin a backward pass."""
        self._backward_at = self._mark()

    def passed(self) -> None:
        """End a backward pass."""
        end = self._mark()
        if self._order and len(self._hooks) > 2:
            # Each pass computes the gradients in the same order: from now on, hooks of the first and the last
            # gradient suffice.
            for each in self._hooks.keys() - {self._order[0], self._order[-1]}:
                self._hooks.pop(each).remove()
        first, last = self._first or end, self._last or end
        self._passes.append(_Pass(self._forward_at, self._backward_at, first, last, end))

    def averaged(self) -> None:
        """Begin the optimizer's step: the gradients are averaged."""
        self._averaged_at = self._mark()

    def updated(self) -> None:
        """End the step."""
        if self._measures:
            self._steps.append((self._passes, self._averaged_at, self._mark()))
        self._passes = []
        self._since += 1

    def take(self) -> StepParts:
        """Return the sums over the steps since the last call. The first step is always measured."""
        steps, self._steps = self._steps, []
        done, self._since = self._since, 0
        if self._of_gpu:
            self._every = max(done // MEASURED_STEPS, 1)
        if not steps:
            return StepParts()
        forward = backward = communication = optimizer = exchanging = 0.0
        for passes, averaged, updated in steps:
            for each in passes:
                forward += self._between(each.forward, each.backward)
                backward += self._between(each.backward, each.last if each is passes[-1] else each.end)
            communication += self._between(passes[-1].last, averaged)
            exchanging += self._between(passes[-1].first, averaged)
            optimizer += self._between(averaged, updated)
        seconds = [
            each * done / len(steps) for each in (forward, backward, communication, optimizer, exchanging)
        ]
        return StepParts._make((done, *seconds, float(done * self._bytes)))

    def _ready(self, weight: Tensor) -> None:
        """Note that a gradient is computed, the last one so far."""
        if len(self._hooks) > 2:
            self._order.append(weight)
        self._last = self._mark()
        self._first = self._first or self._last

    @property
    def _measures(self) -> bool:
        return self._since % self._every == 0

    def _mark(self) -> Any:
        if not self._measures:
            return None
        if not self._of_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> float:
        if not self._of_gpu:
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000
