"""What the routes of both protocols share: models by name and version, room for requests, decoding and answers.

`torchserve` and `inference_protocol` call it. Not here: how a model runs (`loaded_model`, `batching`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from dtj_trainer.serving.batching import Batcher, Limits, Overfull
from dtj_trainer.serving.bodies import read_body
from dtj_trainer.serving.errors import Refused, RequestRoom, ServingError, overfull
from dtj_trainer.serving.loaded_model import LoadedModel, load

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from starlette.requests import Request

    from dtj_trainer.serving.batching import Outcome
    from dtj_trainer.serving.errors import Held
    from dtj_trainer.serving.metrics import Metrics
    from dtj_trainer.serving.places import ModelPlace


P = ParamSpec("P")
T = TypeVar("T")


_FEW_BYTES = 16384
"""Bodies of up to this many bytes are decoded in the event loop itself: another thread would need more time to
begin."""


@dataclass(frozen=True)
class RequestLimits:
    """Each limit is the largest allowed value.

    `body`: bytes of a body. `body_seconds`: time for the arrival of a body. `pixels`: pixels of a picture. `batch`:
    examples of a request. `json`: bytes of JSON in a request, whose numbers take ten times as much memory while they
    are parsed. `requests` and `held`: requests, and the bytes of their content, at the same time.
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
        self.room = RequestRoom(limits.requests, limits.held)
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
        """Call a function in a decoder thread, or in the event loop if the function reads only few bytes.

        `size`: the bytes that the function reads; None if they do not show how long the function takes.
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
            with suppress(RuntimeError):  # The event loop has ended: no request waits for the answer.
                loop.call_soon_threadsafe(_settle, answer, outcome)

        try:
            slot.batcher.submit(model, inputs, tell)
        except Overfull as error:
            raise overfull() from error
        try:
            return await answer
        except Exception as error:  # Any error of onnxruntime, which the batcher has logged.
            message = f"the model {slot.name} failed: see the log of dtj serve for the reason"
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "model", message) from error

    def close(self) -> None:
        """End the threads after the requests that they have."""
        for slot in self.slots.values():
            slot.batcher.close()
        self._decoders.shutdown()


def _settle(answer: asyncio.Future[list[np.ndarray]], outcome: Outcome) -> None:
    if answer.done():  # The request was cancelled.
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def input_bytes(model: LoadedModel, examples: int) -> int:
    """Return the bytes of a model's inputs."""
    return examples * sum(math.prod(each.shape) * each.dtype.itemsize for each in model.inputs)


# A Slot has one of the server's models, and Watch replaces the models by newer versions.

log = logging.getLogger(__name__)
_LONGEST_PAUSE = 16
"""After the n-th failure in a row, a slot skips the next 2^(n-1) - 1 checks of the manifest, at most this number."""


class Slot:
    """A name with the version that answers. A newer version takes new requests; the older answers those it has.

    Raises ServingError when the model can't be loaded.
    """

    def __init__(
        self,
        name: str,
        place: ModelPlace,
        limits: Limits,
        runs: threading.Semaphore,
        threads: int,
        metrics: Metrics,
    ) -> None:
        self.name = name
        self._place, self._threads, self._metrics = place, threads, metrics
        self._seen = place.version()
        self.model: LoadedModel = load(place, threads)
        metrics.loaded(name, self.model, None)
        self.batcher = Batcher(name, limits, runs, lambda examples: metrics.ran(name, examples))
        self._failures = self._left_out = 0

    @property
    def uri(self) -> str:
        """The model's folder."""
        return self._place.uri

    def refresh(self) -> None:
        """Load the model if its manifest has changed. If the new model can't be loaded, keep the present model."""
        if self._left_out:
            self._left_out -= 1
            return
        try:
            # Read the version before the files: if the manifest changes meanwhile, the next call sees the change.
            version = self._place.version()
            if version == self._seen:
                self._failures = 0
                return
            new = load(self._place, self._threads)
        except ServingError as error:
            self._left_out = min(2**self._failures - 1, _LONGEST_PAUSE)
            self._failures += 1
            self._metrics.load_failed(self.name)
            log.warning(
                "the model %s keeps version %s: a newer one can't be loaded: %s",
                self.name,
                self.model.version,
                error,
            )
            return
        self._seen, self._failures = version, 0
        if new.version == self.model.version and new.description == self.model.description:
            return
        self._metrics.loaded(self.name, new, self.model)
        log.info("the model %s: version %s replaces %s", self.name, new.version, self.model.version)
        self.model = new


class Watch:
    """A thread that refreshes slots every `seconds`."""

    def __init__(self, slots: Mapping[str, Slot], seconds: float) -> None:
        self._slots, self._seconds = slots, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="manifests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(self._seconds):
            for slot in self._slots.values():
                try:
                    slot.refresh()
                except Exception:
                    log.exception("the check for a newer version of the model %s failed", slot.name)
