"""Uploads files that grow or appear while a program runs: TensorBoard, logs, metrics, the model."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.s3 import Changed, NoSuchKey, NotSupported, S3Error
from dtj_trainer.artifacts.store import ABSENT, Store, usable_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.fence import Fence

log = logging.getLogger(__name__)

COSTLY_SHARE = 10
"""A file that took t seconds to upload rests for this many times t, so that uploads stay a small share."""
CONDITIONAL_TRIES = 3
"""Of a put over what others put there: none of them may write any more, so that the second one succeeds."""


@dataclass(frozen=True)
class Rule:
    """When a changed file is uploaded (again); all times in seconds.

    `interval`: at most so often; a growing file is seen while it runs, at a bounded cost.
    `quiet`: only when unchanged for so long. `finished_quiet`: for a file that is not the newest of its
    folder (a finished part), this instead of the other two. `appended`: others only append to it, so any
    beginning of it is whole; else what changes during its upload is uploaded again.
    `only_once`: never again after the first time.
    """

    interval: float = 0.0
    quiet: float = 0.0
    finished_quiet: float | None = None
    appended: bool = False
    only_once: bool = False


TENSORBOARD = Rule(interval=10.0, finished_quiet=5.0, appended=True)
"""With what fetching it and TensorBoard itself take, a new event is seen within 30 s."""
MODEL = Rule(interval=30.0, quiet=5.0)
METRICS = Rule(interval=10.0, appended=True)
LOG = Rule(interval=15.0, appended=True)
ONCE = Rule(only_once=True)


@dataclass(frozen=True)
class Source:
    """A file, or a folder with all that lies below it, and the key (prefix) it goes to.

    `fence`: for keys that other attempts have too; None: the keys are this pod's own.
    """

    path: Path
    key: str
    rule: Rule
    fence: Fence | None = None
    pattern: str = "*"
    """What the names of a folder's files are like."""

    def files(self) -> Iterator[tuple[Path, str]]:
        """The files there are now with their keys; hidden and temporary ones are not artifacts."""
        if self.path.is_file():
            yield self.path, self.key
            return
        for path in sorted(self.path.rglob(self.pattern)):
            relative = path.relative_to(self.path)
            if all(usable_name(part) for part in relative.parts) and path.is_file():
                yield path, f"{self.key}/{relative.as_posix()}"


@dataclass(frozen=True)
class _State:
    size: int
    changed_ns: int
    inode: int


@dataclass
class _Known:
    """What is known of one file; times are monotonic seconds."""

    seen_first: float
    uploaded: _State | None = None
    uploaded_at: float = -math.inf
    duration: float = 0.0
    etag: str = ABSENT
    """What this process put there, or found there."""


@dataclass
class FileUploader:
    """Brings the files of some sources into the bucket, pass by pass, from one thread."""

    store: Store
    sources: list[Source]
    bytes_uploaded: int = 0
    _known: dict[Path, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload what is due. After the program's end all that is left is due, except files that must be whole and
        were not yet quiet when it was killed.

        True when nothing is left to do for the files of this moment. A key that the store refuses keeps no other
        file from its upload; the pass raises its S3Error at the end. An error that may pass by itself ends the
        source, not the pass. What a later attempt has taken over is left alone, without an error: the others are
        still this pod's.
        """
        over = ended or died_ns is not None
        errors: list[S3Error] = []
        all_done = True
        for source in self.sources:
            with contextlib.suppress(Superseded):
                all_done &= self._upload_source(source, over, died_ns, errors)
        if errors:
            raise min(errors, key=lambda error: error.transient)
        return all_done

    def _upload_source(self, source: Source, over: bool, died_ns: int | None, errors: list[S3Error]) -> bool:
        """Upload what is due of a source, and note what failed; whether all of it is done for now."""
        newest = _newest_of_folders(source)
        done = True
        for path, key in list(source.files()):
            try:
                done &= self._consider(source, path, key, path in newest, over, died_ns)
            except Superseded:
                raise
            except S3Error as error:
                errors.append(error)
                if error.transient:
                    return False  # With the bucket away each file would wait for its timeout.
        return done

    def uploaded_below(self, key_prefix: str) -> bool:
        """Whether some file below that key prefix is in the bucket by this process."""
        return any(
            known.uploaded is not None and (source.key == key_prefix)
            for source in self.sources
            for path, known in list(self._known.items())
            if path.is_relative_to(source.path)
        )

    def _consider(
        self, source: Source, path: Path, key: str, newest: bool, over: bool, died_ns: int | None
    ) -> bool:
        """Upload one file if it is due; whether it is done for now."""
        rule = source.rule
        known = self._known.setdefault(path, _Known(seen_first=time.monotonic()))
        try:
            state = _state_of(path)
            if state == known.uploaded or (rule.only_once and known.uploaded):
                return True
            if died_ns is not None and rule.quiet and state.changed_ns > died_ns - rule.quiet * 1e9:
                return True  # Cut off in the middle, perhaps.
            if not over and rule.appended and not state.size:
                return True  # Its first lines would have to wait for the next interval.
            if not over and not _due(rule, known, state, newest):
                return False
            started = time.monotonic()
            if source.fence:
                self._put_fenced(source.fence, rule, path, key, state, known)
            else:
                self._put(rule, path, key, state)
            if not rule.appended and _state_of(path) != state:
                return False
        except OSError as error:
            log.debug("%s was not uploaded: %s", path, error)
            return not path.exists()
        known.uploaded = state
        known.uploaded_at = time.monotonic()
        known.duration = known.uploaded_at - started
        return True

    def _put(
        self, rule: Rule, path: Path, key: str, state: _State, replaces: str | None = None
    ) -> str | None:
        if rule.appended:
            return self.store.put_start_of_file(key, path, state.size, self._count_bytes, replaces=replaces)
        return self.store.put_file(key, path, self._count_bytes, replaces=replaces)

    def _put_fenced(
        self, fence: Fence, rule: Rule, path: Path, key: str, state: _State, known: _Known
    ) -> None:
        """Put a file over what this process knows to be there; over anything else only as the claim's holder.

        What is in the way may be an earlier attempt's, or this put itself, its answer lost: with the claim in
        hand both may be replaced, and who has lost the claim learns it before any put.
        """
        for _ in range(CONDITIONAL_TRIES):
            fence.hold()
            try:
                known.etag = self._put(rule, path, key, state, fence.expecting(known.etag)) or known.etag
                return
            except Changed:
                try:
                    known.etag = self.store.etag(key)
                except NoSuchKey:
                    known.etag = ABSENT
            except NotSupported:
                if fence.expecting(known.etag) is None:
                    raise
                fence.without_conditions()
        raise S3Error(f"{self.store.uri(key)} is being changed all the time", transient=True)

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount


def _due(rule: Rule, known: _Known, state: _State, newest: bool) -> bool:
    quiet_for = time.time() - state.changed_ns / 1e9
    if rule.finished_quiet is not None and not newest:
        return quiet_for >= rule.finished_quiet
    rest = max(rule.interval, COSTLY_SHARE * known.duration)
    last = max(known.uploaded_at, known.seen_first if rule.finished_quiet is not None else -math.inf)
    settled = rule.quiet == 0 or quiet_for >= rule.quiet
    return settled and time.monotonic() - last >= rest


def _newest_of_folders(source: Source) -> set[Path]:
    """The most recently changed file of each folder; only asked for where it matters."""
    if source.rule.finished_quiet is None:
        return set()
    newest: dict[Path, tuple[int, Path]] = {}
    for path, _ in source.files():
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            continue
        newest[path.parent] = max(newest.get(path.parent, (0, path)), (changed, path))
    return {path for _, path in newest.values()}


def _state_of(path: Path) -> _State:
    status = path.stat()
    return _State(status.st_size, status.st_ctime_ns, status.st_ino)
