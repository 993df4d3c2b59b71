"""Gathers requests to batches, which a separate thread runs: the event loop never waits for a model."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.serving.loaded_model import LoadedModel

log = logging.getLogger(__name__)
Outcome = list[np.ndarray] | Exception
"""The outputs for a request, or why there are none."""


class Overfull(Exception):
    """The queue has no place for the request. A later try may succeed."""


@dataclass(frozen=True)
class Limits:
    """`batch`: the most examples of a batch. `delay`: the most seconds that a batch waits for further examples.
    `waiting`: the most examples in the queue.
    """

    batch: int
    delay: float
    waiting: int


class _Request(NamedTuple):
    model: LoadedModel
    inputs: Mapping[str, np.ndarray]
    examples: int
    tell: Callable[[Outcome], None]


class Batcher:
    """The queue of one model's name. A request is answered by the version of the model that it was made for.

    Requests wait until there are as many as in the last batch, within the limits: one client alone never waits.
    `runs` limits how many batchers run a model at the same time. `observe` is told the examples of each batch.
    """

    def __init__(
        self, name: str, limits: Limits, runs: threading.Semaphore, observe: Callable[[int], None]
    ) -> None:
        self._name, self._limits, self._runs, self._observe = name, limits, runs, observe
        self._queue: deque[_Request] = deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._ended = False
        self._expected = 1
        self._thread = threading.Thread(target=self._work, name=f"batches of {name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of examples in the queue."""
        return self._waiting

    def submit(
        self, model: LoadedModel, inputs: Mapping[str, np.ndarray], tell: Callable[[Outcome], None]
    ) -> None:
        """Add a request. Raises Overfull.

        `inputs`, by name, have the model's types and shapes, and the same number of examples, at most `Limits.batch`.
        `tell` is called once, in the batcher's thread, with the outputs; it must not raise.
        """
        examples = len(next(iter(inputs.values())))
        with self._changed:
            if self._ended or self._waiting + examples > self._limits.waiting:
                raise Overfull
            self._queue.append(_Request(model, inputs, examples, tell))
            self._waiting += examples
            # Do not notify for each request: each time, the thread would take Python's global lock from the event
            # loop.
            if len(self._queue) == 1 or self._enough():
                self._changed.notify()

    def close(self) -> None:
        """Answer what is in the queue, and end the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            with self._runs:
                self._run(batch)

    def _next(self) -> list[_Request]:
        """Wait for requests; return a batch of requests for the same model, or an empty list after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ended)
            until = time.monotonic() + self._limits.delay
            while not (self._ended or self._enough()):
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            batch: list[_Request] = []
            examples = 0
            while self._queue and (not batch or self._fits(batch[0], examples)):
                batch.append(self._queue.popleft())
                examples += batch[-1].examples
            self._waiting -= examples
            self._expected = len(batch)
            return batch

    def _enough(self) -> bool:
        return len(self._queue) >= self._expected or self._waiting >= self._limits.batch

    def _fits(self, first: _Request, examples: int) -> bool:
        following = self._queue[0]
        return following.model is first.model and examples + following.examples <= self._limits.batch

    def _run(self, batch: list[_Request]) -> None:
        self._observe(sum(request.examples for request in batch))
        try:
            found = self._outputs(batch)
        except Exception as error:  # onnxruntime's errors have no common base class.
            log.exception("the model %s failed on a batch of %d requests", self._name, len(batch))
            for request in batch:
                request.tell(error)
            return
        start = 0
        for request in batch:
            end = start + request.examples
            request.tell([output[start:end] for output in found])
            start = end

    @staticmethod
    def _outputs(batch: list[_Request]) -> list[np.ndarray]:
        first = batch[0]
        if len(batch) == 1:
            return first.model.run(first.inputs)
        inputs = {name: np.concatenate([each.inputs[name] for each in batch]) for name in first.inputs}
        return first.model.run(inputs)
