"""The upload state of one file that grows while a program writes it."""

from __future__ import annotations

import logging
import math
import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from dtj_trainer.artifacts.rotation import KEPT_ROTATED, remove_up_to, rotated, rotated_numbers
from dtj_trainer.artifacts.segments import FIRST, Segment, segment_bytes
from dtj_trainer.artifacts.store import ABSENT
from dtj_trainer.artifacts.upload_rules import MARK_BYTES, Begin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dtj_trainer.artifacts.upload_rules import Growing

log = logging.getLogger(__name__)

COSTLY_SHARE = 10
"""A file that took t seconds to upload is not uploaded again for this many times t, to keep the load small."""


class Put(Protocol):
    """Puts content to a key over the object with that ETag (or ABSENT); returns the new ETag. Raises S3Error."""

    def __call__(self, key: str, content: bytes, etag: str) -> str:
        """Put the content."""


class State(NamedTuple):
    """The size, change time and inode of a file; one of them differs after a change."""

    size: int
    changed_ns: int
    inode: int


_ROTATED_ONLY = State(-1, 0, 0)
"""The state of a log whose current file does not exist at the moment, between two rotations."""


def state_of(status: os.stat_result) -> State:
    """Take the state from the result of `stat`."""
    return State(status.st_size, status.st_ctime_ns, status.st_ino)


class GrowingFile:
    """A file, or a log with all its rotated files (see `rotation`), as one sequence of segments. Not thread-safe.

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
        # Offsets in the local file: where the open segment begins, the end of what is uploaded, and the bytes before
        # that.
        self._at, self._sent, self._mark = begin.at, begin.sent, begin.mark
        self._closed = begin.at
        self._opened_at = math.inf
        self._found_at = now
        # The number of the log file to read: the oldest rotated file, or the number that the current file will get.
        self._rotation = min(rotated_numbers(path), default=FIRST)
        self._inode = 0
        # The state of the current file when all of it was uploaded.
        self._whole: State | None = None
        self._duration = 0.0
        self.put_at = -math.inf
        """When the last put ended, in monotonic seconds."""
        self.quiet_since = now
        """The time of the last growth, in monotonic seconds."""
        self.remains = True
        """Whether the last pass left something that is not uploaded."""

    def close_segments(self, put: Put, now: float, *, over: bool, age: float) -> None:
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

    def put_open(self, put: Put, clock: Callable[[], float], *, over: bool, at_most: float) -> int | None:
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

    def _look(self) -> State | None:
        try:
            return state_of(self.path.stat())
        except FileNotFoundError:
            return _ROTATED_ONLY if rotated(self.path, self._rotation).exists() else None

    def _to_close(self, state: State, now: float, age: float) -> bool:
        other = state.inode != self._inode
        full = state.size - self._at >= segment_bytes(self._closed)
        return other or full or state.size < self._sent or self._aged(now, age)

    def _aged(self, now: float, age: float) -> bool:
        return now - self._opened_at >= age

    def _close_files(self, put: Put, now: float, age: float) -> None:
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
            if (
                self._look() is None
            ):  # The writer ended right after the rotation, so that no current file exists.
                return

    def _close_former(self, file: BinaryIO, put: Put) -> None:
        """Put the rest of a rotated file. A rotated file does not grow any more."""
        size = os.fstat(file.fileno()).st_size
        while (left := size - self._at) > 0:
            limit = segment_bytes(self._closed)
            content = _read(file, self._at, left) if left <= limit else self._full(file, left, limit)
            self._close(put, file, content or _read(file, self._at, left))

    def _close_present(self, file: BinaryIO, put: Put, now: float, age: float) -> None:
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

    def _close(self, put: Put, file: BinaryIO, content: bytes) -> None:
        if len(content) != self._sent - self._at:
            self._put(put, file, content)
        self._closed += len(content)
        self._at += len(content)
        self._number += 1
        self._etag = ABSENT

    def _put(self, put: Put, file: BinaryIO, content: bytes) -> None:
        self._etag = put(Segment(self._key, self._number).key, content, self._etag)
        self._sent = self._at + len(content)
        self._mark = _read(file, max(0, self._sent - MARK_BYTES), min(self._sent, MARK_BYTES))

    def _open(self, stack: ExitStack) -> tuple[BinaryIO, bool]:
        """Open the file to read from `_at` on; the second value says whether the file is rotated. Raises
        FileNotFoundError.
        """
        present = former = None
        # Open the current file first: a rotation in between renames it to the rotated file, never the other way
        # round.
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
