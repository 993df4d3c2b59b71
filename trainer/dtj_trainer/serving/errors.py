"""Errors of the export and of the server as sentences for users, and refused requests with their HTTP status.

Every module of `serving` raises them; `app` turns them into answers. Room is the budget of memory by which requests
are refused.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.contract import program_error

if TYPE_CHECKING:
    from collections.abc import Iterator


class ServingError(Exception):
    """A model can't be exported or served. The message is for the user."""

    exit_code = contract.EXIT_DATA


class ModelMissing(ServingError):
    """No model is at the place that was named."""


class ModelDamaged(ServingError):
    """A file of a model differs from its manifest or is not in its format."""


class NotExportable(ServingError):
    """A model has no form that can be converted to ONNX."""


class StoreUnavailable(ServingError):
    """The store of a model does not answer, or refuses. A later try may succeed."""

    exit_code = contract.EXIT_UNAVAILABLE


def first_line(error: Exception) -> str:
    """Return class and first line of an error of another library."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the process on a ServingError in this block; see `program_error`."""
    try:
        yield
    except ServingError as error:
        program_error.end(error, error.exit_code)


# Refused is the answer to a request, and RequestRoom is the budget of memory for which requests are refused.


class Refused(Exception):
    """The answer to a request that can't be served. `reason` is a word for the metrics."""

    def __init__(
        self, status: HTTPStatus, reason: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.headers = headers or {}


def bad(message: str) -> Refused:
    """Return the refusal of a request whose content is wrong."""
    return Refused(HTTPStatus.BAD_REQUEST, "content", message)


def overfull() -> Refused:
    """Return the refusal of a request for which the server has no room now."""
    return Refused(
        HTTPStatus.TOO_MANY_REQUESTS,
        "overfull",
        "the server holds as many requests as it can: try again after the seconds in Retry-After",
        {"Retry-After": "1"},
    )


class RequestRoom:
    """The requests, and the bytes of requests, that the server holds at the same time."""

    def __init__(self, requests: int, size: int) -> None:
        self._requests, self._bytes = requests, size
        self._all = requests, size
        self._lock = threading.Lock()

    @property
    def held(self) -> tuple[int, int]:
        """The number of requests that the server holds, and their bytes."""
        return self._all[0] - self._requests, self._all[1] - self._bytes

    def enter(self) -> Held:
        """Let a request in. Raises Refused (429)."""
        with self._lock:
            if not self._requests:
                raise overfull()
            self._requests -= 1
        return Held(self)

    def take(self, size: int) -> bool:
        """Take bytes of a request; return whether there was room for them."""
        with self._lock:
            if size > self._bytes:
                return False
            self._bytes -= size
            return True

    def leave(self, size: int) -> None:
        """Free a request and its bytes."""
        with self._lock:
            self._requests += 1
            self._bytes += size


class Held:
    """The bytes of one request; a context that frees them."""

    def __init__(self, room: RequestRoom) -> None:
        self._room = room
        self._bytes = 0

    def add(self, size: int) -> None:
        """Add bytes, or remove them if negative. Raises Refused (429)."""
        if not self._room.take(size):
            raise overfull()
        self._bytes += size

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.leave(self._bytes)
