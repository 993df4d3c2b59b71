"""Uploads files in parts, several at a time, and resumes an upload that an earlier pass could not finish.

A part that is throttled or cut off is retried alone. When retries fail for long, the upload keeps the parts that have
arrived, and the next put of the same file under the same key sends only the missing parts.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import os
import threading
import time
import zlib
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypedDict, TypeVar

from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.s3 import (
    CONNECTIONS,
    CONNECTIONS_BESIDE_PROGRAM,
    LONGEST_PART_DELAY_SECONDS,
    PART_TRIES,
    Backoff,
    Pace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef


# PartBody is one part of an upload as a file object. It counts bytes when botocore reads them, not when the part has
# arrived.

BLOCK_BYTES = 256 * 1024
"""The smallest read by the connection. http.client asks for 16 KiB, and so many small reads cost processor time."""


class PartBody:
    """Rereads a part from its start for each try. Bytes that an earlier try has read are counted once.

    A network may accept bytes and deliver none. As repeated bytes are not counted as progress, a caller that waits
    while an upload makes progress waits at most for the size of the part.
    """

    def __init__(self, content: bytes, on_bytes: Callable[[int], None], counted: int = 0) -> None:
        """`on_bytes` gets the number of bytes that are read for the first time. `counted`: bytes counted before."""
        self._content = memoryview(content)
        self._on_bytes = on_bytes
        self._at = 0
        self.counted = counted

    def __len__(self) -> int:
        """Return the size in bytes of this part of a multipart upload."""
        return len(self._content)

    def read(self, amount: int = -1) -> memoryview:
        """Return the next bytes: `amount`, or BLOCK_BYTES if that is more; empty at the end."""
        end = len(self) if amount < 0 else min(self._at + max(amount, BLOCK_BYTES), len(self))
        block = self._content[self._at : end]
        self._at = end
        if end > self.counted:
            self._on_bytes(end - self.counted)
            self.counted = end
        return block

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Seek as in a file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self)}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position as in a file."""
        return self._at


def crc32_of(content: bytes) -> str:
    """Return the CRC32 in S3's form. With it in the request, botocore does not read the body to compute a
    checksum.
    """
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()


# FileVersion identifies one version of a file on disk.


class FileVersion(NamedTuple):
    """A path with properties that change with the file's content: size in bytes, change time in nanoseconds,
    inode.
    """

    path: Path
    size: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        """Read the file's current version. Raises OSError."""
        status = path.stat()
        return cls(path, status.st_size, status.st_ctime_ns, status.st_ino)

    @property
    def is_current(self) -> bool:
        """Whether the file is still the same."""
        try:
            return FileVersion.of(self.path) == self
        except OSError:
            return False


log = logging.getLogger(__name__)

Result = TypeVar("Result")

MOST_PARTS = 10_000
"""The largest number of parts of one object in S3."""
CLOSING_SECONDS = 5.0
"""Seconds to wait at the end of a process for parts in flight, before an upload is aborted in the store. All aborts
together have the same time, because the grace period of a pod is short and a store may not answer."""


class Condition(TypedDict, total=False):
    """The condition headers of a put."""

    IfMatch: str
    IfNoneMatch: str


class Uploaded(NamedTuple):
    """The result of an upload: the object's ETag, and the SHA-256 of the bytes sent."""

    etag: str
    sha256: str


class HandedOver(s3.S3Error):
    """An upload by a thread of low priority stopped, so that a thread of normal priority sends the missing parts."""

    def __init__(self, uri: str) -> None:
        super().__init__(f"{uri} is handed over to another thread", transient=True)


@dataclass
class MultipartUpload:
    """One upload of one version of a file: its id, and the parts that have arrived."""

    client: S3Client
    bucket: str
    key: str
    version: FileVersion
    upload_id: str
    environment: s3.Environment | None
    """The environment variables from which the client was made. `s3.explain` needs them for its messages."""
    parts: dict[int, CompletedPartTypeDef] = field(default_factory=dict)
    sending: threading.Lock = field(default_factory=threading.Lock)
    _counted: dict[int, int] = field(default_factory=dict)
    """By part: the bytes that earlier tries have sent. Bytes that a later try sends again do not count as
    progress."""
    _sha256: hashlib._Hash = field(default_factory=hashlib.sha256)
    _hashed: int = 0
    """The number of parts, from the first one, whose bytes are in the digest."""

    @property
    def uri(self) -> str:
        """The URI of the object."""
        return s3.S3Location(self.bucket, self.key).uri

    def _sentences(self) -> AbstractContextManager[None]:
        return s3.sentences(self.uri, self.environment)

    def send(self, pace: Pace, on_bytes: Callable[[int], None]) -> None:
        """Send the missing parts; at most `pace.connections` parts are in memory.

        `on_bytes` gets the number of bytes that are sent for the first time, from several threads. Raises HandedOver
        when the pace stops being gentle, S3Error, OSError. Before HandedOver is raised, parts in flight arrive.
        """
        size, gentle = part_size(self.version.size), pace.gentle
        in_flight: set[Future[None]] = set()
        with ThreadPoolExecutor(CONNECTIONS, "part") as pool, self.version.path.open("rb") as file:
            for number in range(1, -(-self.version.size // size) + 1):
                if number in self.parts:
                    continue
                while len(in_flight) >= pace.connections:
                    in_flight = _wait_for_any(in_flight)
                if gentle and not pace.gentle:
                    wait(in_flight)
                    raise HandedOver(self.uri)
                block = self._read(file.fileno(), number, size)
                in_flight.add(pool.submit(self._send_part, number, block, pace, on_bytes))
                del block  # The pool holds the only reference: the memory is freed when the part has arrived.
            while in_flight:
                in_flight = _wait_for_any(in_flight)

    def _read(self, file: int, number: int, size: int) -> bytes:
        """Read a part's content, and add it to the digest when it is the next part in order."""
        start = (number - 1) * size
        wanted = min(size, self.version.size - start)
        block = os.pread(file, wanted, start)
        while 0 < len(block) < wanted and (more := os.pread(file, wanted - len(block), start + len(block))):
            block += more
        if len(block) < wanted:
            raise OSError(f"{self.version.path} became shorter while it was uploaded")
        if number == self._hashed + 1:
            self._sha256.update(block)
            self._hashed = number
        return block

    def _send_part(self, number: int, block: bytes, pace: Pace, on_bytes: Callable[[int], None]) -> None:
        body, crc32 = PartBody(block, on_bytes, self._counted.get(number, 0)), crc32_of(block)

        def put() -> CompletedPartTypeDef:
            pace.take(len(block))
            body.seek(0)
            answer = self.client.upload_part(
                Bucket=self.bucket,
                Key=self.key,
                UploadId=self.upload_id,
                PartNumber=number,
                Body=body,  # type: ignore[arg-type]  # read, seek and tell are what botocore needs of a file
                ChecksumCRC32=crc32,
            )
            part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
            if "ChecksumCRC32" in answer:
                part["ChecksumCRC32"] = answer["ChecksumCRC32"]
            return part

        try:
            self.parts[number] = with_retries(put, self._sentences, pace)
        finally:
            self._counted[number] = body.counted

    def complete(self, condition: Condition, pace: Pace) -> Uploaded:
        """Join the parts into one object. Raises S3Error."""
        parts: list[CompletedPartTypeDef] = [self.parts[number] for number in sorted(self.parts)]
        answer = with_retries(
            lambda: self.client.complete_multipart_upload(
                Bucket=self.bucket,
                Key=self.key,
                UploadId=self.upload_id,
                MultipartUpload={"Parts": parts},
                **condition,
            ),
            self._sentences,
            pace,
        )
        return Uploaded(answer["ETag"], self._sha256.hexdigest())

    def abort(self) -> None:
        """Abort the upload: the store deletes its parts. Raises S3Error."""
        with self._sentences():
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=self.key, UploadId=self.upload_id)


class Uploads:
    """The incomplete uploads of a process, by bucket and key. Thread-safe, but one key is put by one thread at a
    time.
    """

    def __init__(self, pace: Pace | None = None, *, resumable: bool = True) -> None:
        """`resumable`: a put that fails with a transient error keeps its parts for the next put."""
        self.pace = pace or Pace()
        self._resumable = resumable
        self._unfinished: dict[tuple[str, str], MultipartUpload] = {}
        self._lock = threading.Lock()

    def put(
        self,
        client: S3Client,
        target: s3.S3Location,
        path: Path,
        on_bytes: Callable[[int], None],
        condition: Condition,
        environment: s3.Environment | None = None,
    ) -> Uploaded:
        """Upload a file in parts, and reuse parts of the same version that have arrived. Raises S3Error, OSError.

        `environment` is the one that the client was made from.
        """
        upload = self._begun(client, target, FileVersion.of(path), environment)
        try:
            with upload.sending:
                upload.send(self.pace, on_bytes)
                put = upload.complete(condition, self.pace)
        except BaseException as error:
            if not (self._resumable and isinstance(error, s3.S3Error) and _may_go_on(error)):
                self._abort(upload)
            raise
        self._forget(upload)
        return put

    def _begun(
        self,
        client: S3Client,
        target: s3.S3Location,
        version: FileVersion,
        environment: s3.Environment | None,
    ) -> MultipartUpload:
        with self._lock:
            unfinished = self._unfinished.get(target)
        if unfinished and unfinished.version == version:
            log.info("the upload of %s resumes after %d parts", target.uri, len(unfinished.parts))
            return unfinished
        if unfinished:
            self._abort(unfinished)
        bucket, key = target
        with s3.sentences(target.uri, environment):
            answer = client.create_multipart_upload(Bucket=bucket, Key=key)
        upload = MultipartUpload(client, bucket, key, version, answer["UploadId"], environment)
        with self._lock:
            self._unfinished[target] = upload
        return upload

    def abort_changed(self) -> None:
        """Abort the uploads that wait to be resumed although their file has changed or was removed."""
        with self._lock:
            waiting = list(self._unfinished.values())
        for upload in waiting:
            if not upload.sending.locked() and not upload.version.is_current:
                self._abort(upload)

    def abort_below(self, location: s3.S3Location) -> None:
        """Abort the uploads that wait to be resumed below a prefix, or under that key."""
        start = f"{location.prefix}/".lstrip("/")
        with self._lock:
            waiting = list(self._unfinished.values())
        for upload in waiting:
            if upload.bucket == location.bucket and f"{upload.key}/".startswith(start):
                self._abort(upload)

    def close(self, seconds: float = math.inf) -> None:
        """Send nothing more, and abort all uploads, because the process ends and can't resume them.

        seconds: the time that the process has left. A store that does not answer keeps the parts.
        """
        self.pace.close()
        with self._lock:
            waiting = list(self._unfinished.values())
        ending = [threading.Thread(target=self._end, args=(upload,), daemon=True) for upload in waiting]
        for thread in ending:
            thread.start()
        deadline = time.monotonic() + min(2 * CLOSING_SECONDS, seconds)
        for thread in ending:
            thread.join(max(deadline - time.monotonic(), 0))

    def _end(self, upload: MultipartUpload) -> None:
        if upload.sending.acquire(timeout=CLOSING_SECONDS):
            upload.sending.release()
        self._abort(upload)

    def _abort(self, upload: MultipartUpload) -> None:
        """Abort an upload. If the store can't be reached, the parts stay until a lifecycle rule of the bucket removes
        them.
        """
        try:
            upload.abort()
        except s3.S3Error as error:
            log.debug("an upload was not aborted: %s", error)
        self._forget(upload)

    def _forget(self, upload: MultipartUpload) -> None:
        with self._lock:
            key = (upload.bucket, upload.key)
            if self._unfinished.get(key) is upload:
                del self._unfinished[key]


def _may_go_on(error: s3.S3Error) -> bool:
    """Return whether the parts may be reused: a retry, or a put with another condition, may succeed."""
    return error.transient or isinstance(error, (s3.Changed, s3.NotSupported))


def part_size(size: int) -> int:
    """Return the size in bytes of each part but the last, for an object of `size` bytes."""
    return max(s3.MULTIPART_BYTES, -(-size // MOST_PARTS))


def with_retries(
    call: Callable[[], Result], sentences: Callable[[], AbstractContextManager[None]], pace: Pace
) -> Result:
    """Make one request up to PART_TRIES times, while the error is transient. Raises S3Error, made by `sentences`."""
    backoff = Backoff(LONGEST_PART_DELAY_SECONDS)
    for left in reversed(range(PART_TRIES)):
        if pace.closed:
            raise s3.S3Error("the upload has stopped, because this process is ending", transient=False)
        try:
            with sentences():
                return call()
        except s3.S3Error as error:
            if not error.transient or not left:
                raise
            log.debug("an S3 request is tried again: %s", error)
        pace.rest(backoff.next_delay())
    raise AssertionError


def _wait_for_any(in_flight: set[Future[None]]) -> set[Future[None]]:
    """Wait until a part arrives; return the parts still in flight. Raises what the upload of an arrived part
    raised.
    """
    arrived, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
    for part in arrived:
        part.result()
    return in_flight


# Small files are transferred several at a time, because the bucket's answer takes longer than the transfer of the
# bytes.

SMALL_BYTES = 2**20
"""Files of fewer bytes are small."""
AT_ONCE = 16


def at_once(
    transfers: Iterable[Callable[[], Result]],
    workers: int = AT_ONCE,
    before_each: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Make transfers in threads; yield their results in order.

    After the first error, or when the caller stops, no other transfer begins, and those under way are waited for.
    """

    def one(transfer: Callable[[], Result]) -> Result:
        before_each()
        return transfer()

    with ThreadPoolExecutor(workers, "small file") as pool:
        try:
            for each in [pool.submit(one, transfer) for transfer in transfers]:
                yield each.result()
        finally:
            pool.shutdown(cancel_futures=True)


def upload_at_once(transfers: Iterable[Callable[[], Result]], pace: Pace, uri: str) -> list[Result]:
    """Make uploads below a URI in threads; return their results in order.

    Raises HandedOver when the program beside the uploads ends, because the threads have a low priority. Raises the
    first error of an upload.
    """
    gentle = pace.gentle

    def check() -> None:
        if gentle and not pace.gentle:
            raise HandedOver(uri)

    return [*at_once(transfers, CONNECTIONS_BESIDE_PROGRAM if gentle else AT_ONCE, check)]
