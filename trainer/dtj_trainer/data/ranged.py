"""Fetches ranges of objects: retried, and hedged when an answer is slow.

A hedged request is asked a second time, and the first answer counts (Dean and Barroso,
"The Tail at Scale", CACM 2013).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dtj_trainer.artifacts.download import ByteCount
from dtj_trainer.artifacts.s3 import (
    DATA_TIMEOUT_SECONDS,
    NoSuchKey,
    S3Error,
    S3Location,
    make_client,
    retry_transient,
    sentences,
)
from dtj_trainer.artifacts.store import PresignedGets
from dtj_trainer.data.daemon_pool import DaemonPool
from dtj_trainer.data.errors import DataCorrupt, DataNotFound, DataUnavailable
from dtj_trainer.data.sources import local_folder, s3_location

if TYPE_CHECKING:
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

log = logging.getLogger(__name__)

CONNECTIONS = 8
"""Requests at the same time, without the second requests of hedging."""
SLOW_SHARE = 0.95
"""A request is slow when it takes SLOW_FACTOR times this quantile of the durations of the last SAMPLES requests."""
SLOW_FACTOR = 2.0
LEAST_SLOW_SECONDS = 0.05
SAMPLES = 128
ENOUGH_SAMPLES = 16
"""Requests are hedged only after so many have finished: fewer durations do not show which requests are slow."""


def log_wait(error: S3Error, delay: float) -> None:
    """Log why a read is repeated, and when: in `delay` seconds."""
    log.warning("reading data: retry in %.1f s: %s", delay, error)


class Range(NamedTuple):
    """`length` bytes from `offset` on of the object `key`, relative to the URI of the data.

    `version` identifies the object's content, as the index describes it. No request asks for the version: a copy of
    the data in another bucket has other ETags, and the CRC-32 of the index tells whether the content is right.
    """

    key: str
    offset: int
    length: int
    version: str


class Objects(Protocol):
    """The objects of a data set."""

    uri: str
    remote: bool
    """Whether reads may fail for a while, or be slow, for reasons of a network."""

    def read(self, range_: Range) -> bytes:
        """Return the bytes of a range, in one try; fewer when the object is shorter. Raises S3Error or OSError."""


class S3Objects:
    """The objects below an S3 prefix."""

    remote = True

    def __init__(self, location: S3Location, client: S3Client | None = None) -> None:
        self.uri = location.uri
        self._location = location
        self._client = client or make_client()
        self._presigned = PresignedGets(self._client)

    def read(self, range_: Range) -> bytes:
        """See Objects."""
        where = self._location / range_.key
        content = self._presigned.get(where, range_.offset, range_.length)
        if content is not None:
            return content
        last = range_.offset + range_.length - 1
        with sentences(where.uri):
            answer = self._client.get_object(
                Bucket=where.bucket, Key=where.prefix, Range=f"bytes={range_.offset}-{last}"
            )
            with contextlib.closing(answer["Body"]) as body:
                return body.read()


class FolderObjects:
    """The files below a folder of this machine."""

    remote = False

    def __init__(self, folder: Path, uri: str) -> None:
        self.uri = uri
        self._folder = folder

    def read(self, range_: Range) -> bytes:
        """See Objects."""
        descriptor = os.open(self._folder / range_.key, os.O_RDONLY)
        try:
            return os.pread(descriptor, range_.length, range_.offset)
        finally:
            os.close(descriptor)


class Latencies:
    """How long requests took lately, and from which time on one of them is slow. Thread-safe."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=SAMPLES)
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """Add the seconds of a finished request."""
        with self._lock:
            self._seconds.append(seconds)

    def slow_after(self) -> float | None:
        """Return the seconds after which a request is slow; None while too few requests have finished."""
        with self._lock:
            if len(self._seconds) < ENOUGH_SAMPLES:
                return None
            usual = sorted(self._seconds)[int(SLOW_SHARE * (len(self._seconds) - 1))]
        return max(SLOW_FACTOR * usual, LEAST_SLOW_SECONDS)


class RangedReader:
    """Reads ranges of `objects`. Up to `connections` threads may call `read` at once.

    `received` counts the bytes that arrived, those of unused second answers too. `hedged` counts second requests.
    """

    def __init__(
        self, objects: Objects, *, connections: int = CONNECTIONS, timeout: float = DATA_TIMEOUT_SECONDS
    ) -> None:
        self.objects = objects
        self.received = ByteCount()
        self.hedged = ByteCount()
        self._timeout = timeout
        self._pace = Latencies()
        # Half of the threads are for second requests, and for first requests that were given up but still hang.
        self._pool = DaemonPool(2 * connections, "dtj-range") if objects.remote else None
        self._spare = threading.Semaphore(connections)

    def read(self, range_: Range) -> bytes:
        """Return all bytes of a range.

        Raises DataNotFound, DataCorrupt (the object is shorter), or DataUnavailable.
        """
        where = f"{self.objects.uri.rstrip('/')}/{range_.key}"
        try:
            content = retry_transient(
                lambda: self._read_hedged(range_),
                timeout=self._timeout,
                progress=lambda: self.received.total,
                on_wait=log_wait,
            )
        except (NoSuchKey, FileNotFoundError) as error:
            raise DataNotFound(f"{where} does not exist, but the index names it") from error
        except S3Error as error:
            if error.transient:
                raise DataUnavailable(str(error)) from error
            raise DataNotFound(str(error)) from error
        except OSError as error:
            raise DataUnavailable(f"{where} can't be read: {error}") from error
        if len(content) != range_.length:
            raise DataCorrupt(
                f"{where} ends at byte {range_.offset + len(content)}, but the index names "
                f"{range_.length} bytes from byte {range_.offset} on"
            )
        return content

    def close(self) -> None:
        """End the threads. Requests that run are left to their timeouts."""
        if self._pool:
            self._pool.close()

    def _read_hedged(self, range_: Range) -> bytes:
        if self._pool is None:
            return self._read_once(range_, threading.Event())
        abandoned = threading.Event()
        once = partial(self._read_once, range_, abandoned)
        asked = [self._pool.submit(once)]
        try:
            wait(asked, self._pace.slow_after())
            if not asked[0].done() and self._spare.acquire(blocking=False):
                self.hedged.add(1)
                asked.append(self._pool.submit(once))
                asked[1].add_done_callback(lambda _: self._spare.release())
            return _first_answer(asked)
        finally:
            abandoned.set()

    def _read_once(self, range_: Range, abandoned: threading.Event) -> bytes:
        if abandoned.is_set():  # The other request has answered while this one waited for a thread.
            return b""
        began = time.monotonic()
        content = self.objects.read(range_)
        self._pace.add(time.monotonic() - began)
        self.received.add(len(content))
        return content


def open_ranges(uri: str) -> RangedReader:
    """Return a reader of the objects below a URI. Raises DataNotFound for a folder that does not exist."""
    folder = local_folder(uri)
    return RangedReader(FolderObjects(folder, uri) if folder else S3Objects(s3_location(uri)))


def _first_answer(asked: list[Future[bytes]]) -> bytes:
    """Return the first result that arrives; raise an error only when no request has a result."""
    while True:
        done, running = wait(asked, return_when=FIRST_COMPLETED)
        good = next((future for future in done if future.exception() is None), None)
        if good is not None or not running:
            return (good or done.pop()).result()
        asked = list(running)
