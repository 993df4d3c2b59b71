"""Files that grow while a program writes them: their upload in segments, and their restore.

`file_upload` uploads by it, and `sync` restores by it. Not here: the names of segments and of rotated logs
(`segments`), and which files grow (`upload_rules`).
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from dtj_trainer.artifacts.fence import put_fenced
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.segments import (
    FIRST,
    KEPT_ROTATED,
    Segment,
    remove_up_to,
    rotated,
    rotated_numbers,
    segment_bytes,
    segment_seconds,
    segments_of,
)
from dtj_trainer.artifacts.store import ABSENT
from dtj_trainer.artifacts.upload_rules import MARK_BYTES, Begin, Growing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from dtj_trainer.artifacts.store import Store
    from dtj_trainer.artifacts.upload_rules import FolderNames, PassErrors, UploadSource


log = logging.getLogger(__name__)

COSTLY_SHARE = 10
"""A file that took t seconds to upload is not uploaded again for this many times t, to keep the load small."""


class PutContent(Protocol):
    """Puts content to a key over the object with that ETag (or ABSENT); returns the new ETag. Raises S3Error."""

    def __call__(self, key: str, content: bytes, etag: str) -> str:
        """Put the content."""


class FileState(NamedTuple):
    """The size, change time and inode of a file; one of them differs after a change."""

    size: int
    changed_ns: int
    inode: int


_ROTATED_ONLY = FileState(-1, 0, 0)
"""The state of a log whose current file does not exist at the moment, between two rotations."""


def state_of(status: os.stat_result) -> FileState:
    """Take the state from the result of `stat`."""
    return FileState(status.st_size, status.st_ctime_ns, status.st_ino)


class GrowingFile:
    """A file, or a log with all its rotated files (see `segments`), as one sequence of segments. Not thread-safe.

    A file that starts again (it is shorter, or another file has its name) replaces the content of the open segment.
    """

    __slots__ = (
        "_at",
        "_closed",
        "_duration",
        "_etag",
        "_found_at",
        "_inode",
        "_key",
        "_mark",
        "_number",
        "_opened_at",
        "_rotation",
        "_rule",
        "_sent",
        "_whole",
        "path",
        "put_at",
        "quiet_since",
        "remains",
    )

    def __init__(self, path: Path, key: str, rule: Growing, begin: Begin, now: float) -> None:
        self.path = path
        self._key = key
        self._rule = rule
        self._number, self._etag = begin.number, begin.etag
        # Offsets in the local file: where the open segment begins, and where the uploaded bytes end. Then the last
        # uploaded bytes, to recognize the file.
        self._at, self._sent, self._mark = begin.at, begin.sent, begin.mark
        self._closed = begin.at
        self._opened_at = math.inf
        self._found_at = now
        # The number of the log file to read: the oldest rotated file, or the number that the current file will get.
        self._rotation = min(rotated_numbers(path), default=FIRST)
        self._inode = 0
        # The state of the current file when all of it was uploaded.
        self._whole: FileState | None = None
        self._duration = 0.0
        self.put_at = -math.inf
        """When the last put ended, in monotonic seconds."""
        self.quiet_since = now
        """When the file grew last, in monotonic seconds."""
        self.remains = True
        """Whether the last pass left something that is not uploaded."""

    def close_segments(self, put: PutContent, now: float, *, over: bool, age: float) -> None:
        """Put the segments that are full, or older than `age` seconds. Raises S3Error, OSError."""
        state = self._look()
        self.remains = state is not None and state != self._whole
        if state is None or not self.remains:
            return
        self.quiet_since = now
        if state.size > self._at:
            self._opened_at = min(self._opened_at, now)
        if over or self._to_close(state, now, age):
            self._close_files(put, now, age)
            state = self._look()
            self.remains = state is not None and state != self._whole

    @property
    def continues_others(self) -> bool:
        """Whether the other files of the folder must be uploaded before the first bytes of this file."""
        return self._rule.in_order and not self._sent

    @property
    def waits_since(self) -> float:
        """When the last put ended, in monotonic seconds. A file that continues others waits since it was found, so
        that the file is behind the others.
        """
        return self._found_at if self.continues_others else self.put_at

    def open_due(self, now: float) -> bool:
        """Return whether the open segment may be put again."""
        return now - self.put_at >= max(self._rule.interval, COSTLY_SHARE * self._duration)

    def put_open(
        self, put: PutContent, clock: Callable[[], float], *, over: bool, at_most: float
    ) -> int | None:
        """Put the open segment if it has at most `at_most` bytes; return the bytes put, or None if the segment is
        larger.

        While the program runs, the segment ends with a complete line or record. Raises S3Error, OSError.
        """
        if self._sent - self._at > at_most:
            return None
        with ExitStack() as stack:
            file, former = self._open(stack)
            if former:
                return 0  # The file was rotated just now: the next pass closes the segment.
            state = state_of(os.fstat(file.fileno()))
            left = state.size - self._at
            content = _read(file, self._at, left if over else min(left, segment_bytes(self._closed)))
            length = len(content) if over else self._rule.cut(content)
            new = length > self._sent - self._at or (over and self._never_put)
            if new and length > at_most:
                return None
            if new:
                began = clock()
                self._put(put, file, content[:length])
                self.put_at = clock()
                self._duration = self.put_at - began
            if self._sent >= state.size:
                self._whole = state
            self.remains = self._sent < state.size
            return length if new else 0

    @property
    def _never_put(self) -> bool:
        """Whether a log that stayed empty has no object yet. Its object is written at the end of the program."""
        return self._number == FIRST and self._sent == 0 and self.put_at == -math.inf

    def _look(self) -> FileState | None:
        try:
            return state_of(self.path.stat())
        except FileNotFoundError:
            return _ROTATED_ONLY if rotated(self.path, self._rotation).exists() else None

    def _to_close(self, state: FileState, now: float, age: float) -> bool:
        other = state.inode != self._inode
        full = state.size - self._at >= segment_bytes(self._closed)
        return other or full or state.size < self._sent or self._aged(now, age)

    def _aged(self, now: float, age: float) -> bool:
        return now - self._opened_at >= age

    def _close_files(self, put: PutContent, now: float, age: float) -> None:
        while True:
            with ExitStack() as stack:
                file, former = self._open(stack)
                if not former:
                    self._close_present(file, put, now, age)
                    return
                self._close_former(file, put)
            self._rotation += 1
            self._at, self._sent, self._mark = 0, 0, b""
            self._opened_at = now
            remove_up_to(self.path, self._rotation - 1 - KEPT_ROTATED)
            if self._look() is None:
                return  # The writer ended right after the rotation, so that no current file exists.

    def _close_former(self, file: BinaryIO, put: PutContent) -> None:
        """Put the rest of a rotated file. A rotated file does not grow any more."""
        size = os.fstat(file.fileno()).st_size
        while (left := size - self._at) > 0:
            limit = segment_bytes(self._closed)
            content = _read(file, self._at, left) if left <= limit else self._full(file, left, limit)
            self._close(put, file, content or _read(file, self._at, left))

    def _close_present(self, file: BinaryIO, put: PutContent, now: float, age: float) -> None:
        state = state_of(os.fstat(file.fileno()))
        while (left := state.size - self._at) > 0:
            limit = segment_bytes(self._closed)
            if left >= limit:
                content = self._full(file, left, limit)
            elif self._aged(now, age):
                content = _read(file, self._at, left)
                content = content[: self._rule.cut(content)]
            else:
                break
            if not content:
                break
            self._close(put, file, content)
            self._opened_at = now if state.size > self._at else math.inf
        if self._sent >= state.size > 0:
            self._whole = state

    def _full(self, file: BinaryIO, left: int, limit: int) -> bytes:
        """Return a segment of about `limit` bytes; empty while its only line or record is incomplete."""
        window = limit
        while True:
            content = _read(file, self._at, min(window, left))
            if length := self._rule.cut(content):
                return content[:length]
            if len(content) >= max(limit, self._rule.longest):
                return content
            if len(content) >= left:
                return b""
            window *= 2

    def _close(self, put: PutContent, file: BinaryIO, content: bytes) -> None:
        if len(content) != self._sent - self._at:
            self._put(put, file, content)
        self._closed += len(content)
        self._at += len(content)
        self._number += 1
        self._etag = ABSENT

    def _put(self, put: PutContent, file: BinaryIO, content: bytes) -> None:
        self._etag = put(Segment(self._key, self._number).key, content, self._etag)
        self._sent = self._at + len(content)
        self._mark = _read(file, max(0, self._sent - MARK_BYTES), min(self._sent, MARK_BYTES))

    def _open(self, stack: ExitStack) -> tuple[BinaryIO, bool]:
        """Open the file to read from `_at` on; the second value says whether the file is rotated. Raises
        FileNotFoundError.
        """
        present = former = None
        # Open the current file before the rotated one. If a rotation comes in between, both names lead to the same
        # file, and no file is missed.
        with suppress(FileNotFoundError):
            present = stack.enter_context(self.path.open("rb"))
        with suppress(FileNotFoundError):
            former = stack.enter_context(rotated(self.path, self._rotation).open("rb"))
        file = former or present
        if file is None:
            raise FileNotFoundError(self.path)
        self._inode = 0 if former else os.fstat(file.fileno()).st_ino
        if _read(file, self._sent - len(self._mark), len(self._mark)) != self._mark:
            if self._skip_what_was_removed():
                return self._open(stack)
            self._at, self._sent, self._mark = 0, 0, b""
        return file, former is not None

    def _skip_what_was_removed(self) -> bool:
        """Continue with the oldest file of a log whose earlier files were removed before they were uploaded."""
        numbers = [number for number in rotated_numbers(self.path) if number > self._rotation]
        if not numbers:
            return False
        log.warning("%s: the oldest rotated file was removed before it could be uploaded", self.path)
        if self._sent > self._at:
            self._number += 1
            self._etag = ABSENT
        self._rotation = numbers[0]
        self._at, self._sent, self._mark = 0, 0, b""
        return True


def _read(file: BinaryIO, start: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, start)


# GrowingUploader uploads growing files in segments, so that a pod uploads about as many bytes as its program writes.
#
# A closed segment is uploaded once. The open segment of each file is uploaded again while it grows, within an
# allowance of the pod: every few seconds at first, and less often after hours of much output.

AGAIN_BYTES_PER_SECOND = 1000.0
"""The rate of repeated uploads that a pod may reach: 0.6 GB a week."""
AGAIN_AT_ONCE_BYTES = 128 * 1024 * 1024
"""The largest balance of the allowance, and the balance at the start: output of the first hours appears quickly."""
AGAIN_SHARE = 0.1
"""The allowance also grows by this share of the bytes that are uploaded for good."""
QUIET_SECONDS = 60.0
"""A file that did not grow for this many seconds is checked only once in QUIET_PASSES passes."""
QUIET_PASSES = 60


class Allowance:
    """The bytes that may be uploaded although a later pass uploads them again."""

    def __init__(self, now: float) -> None:
        self.bytes = float(AGAIN_AT_ONCE_BYTES)
        self._at = now

    def refill(self, now: float) -> None:
        """Add the allowance for the time since the last call. `now`: monotonic seconds."""
        more = max(0.0, now - self._at) * AGAIN_BYTES_PER_SECOND
        self.bytes = min(float(AGAIN_AT_ONCE_BYTES), self.bytes + more)
        self._at = now

    def sent(self, amount: int) -> None:
        """Add the share for bytes that no later pass uploads again."""
        self.bytes += AGAIN_SHARE * amount

    def spend(self, amount: int) -> None:
        """Subtract bytes that a later pass uploads again."""
        self.bytes -= amount


class _Known(NamedTuple):
    file: GrowingFile
    source: UploadSource

    @property
    def is_ours(self) -> bool:
        """Return whether no later attempt has taken over the file's key."""
        return not (self.source.fence and self.source.fence.superseded)


class GrowingUploader:
    """Uploads the growing files of some sources. Not thread-safe."""

    def __init__(self, store: Store, clock: Callable[[], float], count_bytes: Callable[[int], None]) -> None:
        """`clock` returns monotonic seconds. `count_bytes` gets the size of each put."""
        self._store = store
        self._clock = clock
        self._count_bytes = count_bytes
        self._allowance = Allowance(clock())
        self._growing: dict[Path, _Known] = {}
        self._quiet: dict[Path, _Known] = {}
        self._turns: deque[Path] = deque()
        """The quiet files in the order in which passes check them."""
        self.uploaded: set[str] = set()
        """The keys of the sources of which this process has uploaded something."""

    def upload(
        self, sources: Iterable[UploadSource], names: FolderNames, errors: PassErrors, *, over: bool
    ) -> bool:
        """Upload what is due; return whether nothing is left for now. `over`: the program ended, and everything is
        due.
        """
        self._allowance.refill(self._clock())
        for source in sources:
            self._find(source, names, errors, over=over)
        look_at_all = over or any(file.continues_others for file, _ in self._growing.values())
        self._look_at_quiet(len(self._turns) if look_at_all else -(-len(self._turns) // QUIET_PASSES))
        self._close_segments(errors, over=over)
        self._put_open_segments(errors, over=over)
        done = not any(
            known.file.remains and known.is_ours and not errors.refuses(known.file.path)
            for known in self._growing.values()
        )
        self._set_quiet_aside()
        return done

    def _find(self, source: UploadSource, names: FolderNames, errors: PassErrors, *, over: bool) -> None:
        for path, key in source.files(names):
            if path in self._growing or path in self._quiet or errors.over(source):
                continue
            with errors.of(source, path):
                if over or path.stat().st_size:
                    begin = source.begin or self._begin(source, key)
                    file = GrowingFile(path, key, _growing(source), begin, self._clock())
                    self._growing[path] = _Known(file, source)

    def _begin(self, source: UploadSource, key: str) -> Begin:
        """Return where the upload begins: after the segments that another pod of this attempt has uploaded. For keys
        that attempts share, the restore has decided.
        """
        if source.fence:
            return Begin()
        try:
            stored = segments_of(key, (item.key for item in self._store.named(key)))
        except S3Error as error:
            if error.transient:
                raise
            stored = []  # The credentials may allow uploads without allowing lists.
        return Begin(stored[-1].number + 1) if stored else Begin()

    def _look_at_quiet(self, count: int) -> None:
        for _ in range(count):
            path = self._turns.popleft()
            self._growing[path] = self._quiet.pop(path)

    def _set_quiet_aside(self) -> None:
        now = self._clock()
        for path, known in list(self._growing.items()):
            if not known.file.remains and now - known.file.quiet_since >= QUIET_SECONDS:
                self._quiet[path] = self._growing.pop(path)
                self._turns.append(path)

    def _close_segments(self, errors: PassErrors, *, over: bool) -> None:
        now, age = self._clock(), segment_seconds(len(self._growing))
        for file, source in self._growing.values():
            if not errors.passes_over(source, file.path):
                put, at_least = self._put(source, self._allowance.sent), _growing(source).age
                with errors.of(source, file.path):
                    file.close_segments(put, now, over=over, age=max(age, at_least))

    def _put_open_segments(self, errors: PassErrors, *, over: bool) -> None:
        now = self._clock()
        waiting = [known for known in self._growing.values() if known.file.remains]
        continued = {file.path.parent for file, _ in waiting if file.continues_others}
        due = [
            known
            for known in waiting
            if over or known.file.open_due(now) or known.file.path.parent in continued
        ]
        # The file that waits longest is first. If the allowance does not suffice for it, no other file is put either.
        for file, source in sorted(due, key=lambda known: (known.file.waits_since, known.file.path)):
            at_most = math.inf if over else self._allowance.bytes
            put = self._put(source, self._allowance.spend)
            if not errors.passes_over(source, file.path):
                with errors.of(source, file.path):
                    if file.put_open(put, self._clock, over=over, at_most=at_most) is None:
                        return
                    if not file.remains:
                        errors.accepted(file.path)

    def _put(self, source: UploadSource, account: Callable[[int], None]) -> PutContent:
        store, fence = self._store, source.fence

        def put(key: str, content: bytes, etag: str) -> str:
            if fence:
                etag = put_fenced(
                    store, fence, key, etag, lambda replaces: store.put_bytes(key, content, replaces=replaces)
                )
            else:
                etag = store.put_bytes(key, content)
            account(len(content))
            self._count_bytes(len(content))
            self.uploaded.add(source.key)
            return etag

        return put


def _growing(source: UploadSource) -> Growing:
    assert isinstance(source.rule, Growing)
    return source.rule


# These functions read files that are stored in segments, by several requests at a time, and restore one for a retry.

REQUESTS_AT_ONCE = 8
SEGMENTS_AT_ONCE = 16
"""The largest number of segments in memory."""


def fetched(get: Callable[[str], bytes], keys: Sequence[str]) -> Iterator[bytes]:
    """Yield the contents of some keys in their order. Several threads call `get`. Raises what `get` raises."""
    if len(keys) == 1:
        yield get(keys[0])
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for start in range(0, len(keys), SEGMENTS_AT_ONCE):
            yield from pool.map(get, keys[start : start + SEGMENTS_AT_ONCE])


def restore_growing(store: Store, key: str, path: Path, *, content: bool) -> Begin | None:
    """Restore the file of that key to `path`; return where its upload continues, or None when no such file is stored.

    Without `content` nothing is restored: the local file begins empty, and its upload continues after the stored
    segments. Raises S3Error.
    """
    stored = {item.key: item for item in store.named(key)}
    parts = segments_of(key, stored)
    if not parts:
        return None
    last = parts[-1]
    if not content:
        return Begin(last.number + 1)
    arriving = path.with_name(f".{path.name}.restore")

    def get(part: str) -> bytes:
        found = store.get_bytes(part)
        store.received.add(len(found))
        return found

    size = at = 0
    mark = b""
    with arriving.open("wb") as file:
        for piece in fetched(get, [part.key for part in parts]):
            file.write(piece)
            at, size = size, size + len(piece)
            mark = (mark + piece)[-MARK_BYTES:]
    arriving.replace(path)
    return Begin(last.number, at, size, mark, stored[last.key].etag)
