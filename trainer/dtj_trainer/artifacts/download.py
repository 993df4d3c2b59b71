"""Downloads an object: a large one in parts, several at a time, with its SHA-256; a small one by one request.

`store` calls these functions. Not here: the file that grows meanwhile (`arriving_file`), and uploads (`multipart`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.s3 import BODY_TRIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

    from dtj_trainer.artifacts.arriving_file import ArrivingFile

PART_BYTES = 8 * 2**20
CONNECTIONS = 10
AHEAD = CONNECTIONS + 2
"""Parts in flight or not hashed yet. One thread hashes: without a limit, hashing would lag behind the download."""
_BLOCK_BYTES = 2**18


class ByteCount:
    """The number of bytes received so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0

    def add(self, amount: int) -> None:
        """Add to the count."""
        with self._lock:
            self.total += amount


class Version(NamedTuple):
    """One version of an object, identified by its ETag."""

    bucket: str
    key: str
    etag: str
    size: int


def download(client: S3Client, version: Version, arriving: ArrivingFile, received: ByteCount) -> None:
    """Fetch the bytes of this version of an object that have not arrived yet.

    `received` counts the bytes as they arrive.

    Raises botocore's errors (412 when the object has changed), and OSError for errors of the disk.
    """
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        starts = iter(range(arriving.at, version.size, PART_BYTES))
        fetch = partial(_fetch_part, client, version, arriving.file, received)
        parts = deque(pool.submit(fetch, start) for start in islice(starts, AHEAD))
        try:
            while parts:
                arriving.hash_to(parts.popleft().result())
                parts.extend(pool.submit(fetch, start) for start in islice(starts, 1))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def fetch_whole(client: S3Client, bucket: str, key: str, arriving: ArrivingFile, received: ByteCount) -> None:
    """Fetch an object of at most PART_BYTES by one request; of a larger one only the beginning.

    Raises as `download`.
    """
    content, _ = read_body(lambda: client.get_object(Bucket=bucket, Key=key), PART_BYTES)
    received.add(len(content))
    arriving.append(content)


def read_body(get: Callable[[], GetObjectOutputTypeDef], most: int | None = None) -> tuple[bytes, str]:
    """Make a request for a small object, again if the connection breaks meanwhile; return its content and ETag.

    most: bytes from the beginning that are read at most. Raises as `download`.
    """
    broken = _broken()
    for left in reversed(range(BODY_TRIES)):
        answer = get()  # botocore itself repeats a request that gets no answer.
        try:
            with contextlib.closing(answer["Body"]) as body:
                return body.read(most), answer["ETag"]
        except broken:
            if not left:
                raise
    raise AssertionError


def _fetch_part(client: S3Client, version: Version, file: FileIO, received: ByteCount, start: int) -> int:
    """Fetch one part; return the offset of its end."""
    broken = _broken()
    at, end = start, min(start + PART_BYTES, version.size)
    for last in [False] * (BODY_TRIES - 1) + [True]:
        answer = client.get_object(
            Bucket=version.bucket, Key=version.key, IfMatch=version.etag, Range=f"bytes={at}-{end - 1}"
        )
        try:
            with contextlib.closing(answer["Body"]) as body:
                while block := body.read(min(_BLOCK_BYTES, end - at)):
                    received.add(len(block))
                    at = _write(file, block, at)
            break
        except broken:
            if last:
                raise
    return end


def _broken() -> tuple[type[Exception], ...]:
    """Return the errors of a connection that breaks while a body is read, which botocore does not try again."""
    from botocore import exceptions

    return exceptions.ReadTimeoutError, exceptions.ResponseStreamingError, exceptions.IncompleteReadError


def _write(file: FileIO, block: bytes, at: int) -> int:
    """Write a block; return the offset of its end in the file."""
    left = memoryview(block)
    try:
        while left:
            written = os.pwrite(file.fileno(), left, at)
            at, left = at + written, left[written:]
    except OSError as error:
        error.filename = file.name
        raise
    return at
