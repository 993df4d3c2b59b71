"""What the routes of both protocols share: models by name, room for requests, decoding and answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from dtj_trainer.serving.batching import Overfull
from dtj_trainer.serving.bodies import read_body
from dtj_trainer.serving.refusal import Refused, Room, overfull

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from starlette.requests import Request

    from dtj_trainer.serving.batching import Outcome
    from dtj_trainer.serving.loaded_model import LoadedModel
    from dtj_trainer.serving.metrics import Metrics
    from dtj_trainer.serving.refusal import Held
    from dtj_trainer.serving.shelf import Slot

P = ParamSpec("P")
T = TypeVar("T")


_FEW_BYTES = 16384
"""Are read in less time than another thread needs to begin."""


@dataclass(frozen=True)
class RequestLimits:
    """`body`: bytes of one. `body_seconds`: time for its arrival. `pixels`: of a picture. `batch`: examples of one.

    `json`: bytes of JSON in one; its numbers take ten times as much memory while they are parsed.

    `requests` and `held`: requests, and the bytes of their content, at the same time.
    """

    body: int
    json: int
    body_seconds: float
    pixels: int
    batch: int
    requests: int
    held: int


class Service:
    """The models and limits of one server. Routes call it in the event loop; work is done by threads."""

    def __init__(
        self, slots: Mapping[str, Slot], limits: RequestLimits, metrics: Metrics, decoders: int
    ) -> None:
        self.slots, self.limits, self.metrics = slots, limits, metrics
        self.room = Room(limits.requests, limits.held)
        self._decoders = ThreadPoolExecutor(decoders, "decoder")

    def slot(self, name: str) -> Slot:
        """Return the model of a name. Raises Refused (404)."""
        if name in self.slots:
            return self.slots[name]
        raise Refused(
            HTTPStatus.NOT_FOUND, "name", f"there is no model {name[:200]!r}, only: {', '.join(self.slots)}"
        )

    def model(self, slot: Slot, version: str | None) -> LoadedModel:
        """Return the model of a version, or the present one. Raises Refused (404)."""
        model = slot.model
        if version not in (None, model.version):
            message = f"the model {slot.name} has no version {str(version)[:200]!r}, only {model.version}"
            raise Refused(HTTPStatus.NOT_FOUND, "name", message)
        return model

    async def body(self, request: Request, held: Held) -> bytes:
        """Read the body of a request. Raises Refused."""
        return await read_body(request, held, self.limits.body, self.limits.body_seconds)

    async def decoded(
        self, size: int | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function in a thread of those that decode, or at once for few bytes.

        `size`: bytes that it reads; None where its time does not follow from them.
        """
        if size is not None and size <= _FEW_BYTES:
            return function(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoders, lambda: function(*args, **kwargs))

    async def outputs(
        self, slot: Slot, model: LoadedModel, inputs: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return the model's outputs. Raises Refused: 429 when the queue is full, 500 when the model failed."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[np.ndarray]] = loop.create_future()

        def tell(outcome: Outcome) -> None:
            with suppress(RuntimeError):  # After the loop's end, nobody waits.
                loop.call_soon_threadsafe(_settle, answer, outcome)

        try:
            slot.batcher.submit(model, inputs, tell)
        except Overfull as error:
            raise overfull() from error
        try:
            return await answer
        except Exception as error:  # onnxruntime raises classes of its own; the batcher has logged it.
            message = f"the model {slot.name} failed; the server's log says why"
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "model", message) from error

    def close(self) -> None:
        """End the threads after the requests that they have."""
        for slot in self.slots.values():
            slot.batcher.close()
        self._decoders.shutdown()


def _settle(answer: asyncio.Future[list[np.ndarray]], outcome: Outcome) -> None:
    if answer.done():  # It was cancelled.
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def input_bytes(model: LoadedModel, examples: int) -> int:
    """Return the bytes of a model's inputs."""
    return examples * sum(math.prod(each.shape) * each.dtype.itemsize for each in model.inputs)
