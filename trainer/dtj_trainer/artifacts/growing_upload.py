"""Uploads files that grow for as long as a program runs, in segments: what a week sends is what a week writes.

Closed segments go once. The open segment of each file is put again while it grows, as far as an allowance of the pod
lasts: at first each few seconds, after hours of much output more seldom.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.fenced_put import put_fenced
from dtj_trainer.artifacts.growing import GrowingFile
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.segments import segment_seconds, segments_of
from dtj_trainer.artifacts.upload_rules import Begin, Growing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.folder_names import FolderNames
    from dtj_trainer.artifacts.growing import Put
    from dtj_trainer.artifacts.pass_errors import PassErrors
    from dtj_trainer.artifacts.store import Store
    from dtj_trainer.artifacts.upload_rules import Source

AGAIN_BYTES_PER_SECOND = 1000.0
"""So much a pod may send that it will send again: 0.6 GB a week."""
AGAIN_AT_ONCE_BYTES = 128 * 1024 * 1024
"""As much may be saved up, and is there at the start: the first hours are seen at once."""
AGAIN_SHARE = 0.1
"""And this share of what is new."""
QUIET_SECONDS = 60.0
"""A file that was quiet for so long is looked at once in QUIET_PASSES."""
QUIET_PASSES = 60


class Allowance:
    """The bytes that may be sent although they will be sent again."""

    def __init__(self, now: float) -> None:
        self.bytes = float(AGAIN_AT_ONCE_BYTES)
        self._at = now

    def refill(self, now: float) -> None:
        """Count the time since the last call. `now`: monotonic seconds."""
        more = max(0.0, now - self._at) * AGAIN_BYTES_PER_SECOND
        self.bytes = min(float(AGAIN_AT_ONCE_BYTES), self.bytes + more)
        self._at = now

    def sent(self, amount: int) -> None:
        """Count what was sent for good."""
        self.bytes += AGAIN_SHARE * amount

    def spend(self, amount: int) -> None:
        """Count what will be sent again."""
        self.bytes -= amount


class _Known(NamedTuple):
    file: GrowingFile
    source: Source

    @property
    def is_ours(self) -> bool:
        """Whether no later attempt has taken over what the file's key belongs to."""
        return not (self.source.fence and self.source.fence.superseded)


class GrowingUploader:
    """The growing files of some sources. For one thread."""

    def __init__(self, store: Store, clock: Callable[[], float], count_bytes: Callable[[int], None]) -> None:
        """`clock`: monotonic seconds. `count_bytes` gets the size of each put."""
        self._store = store
        self._clock = clock
        self._count_bytes = count_bytes
        self._allowance = Allowance(clock())
        self._growing: dict[Path, _Known] = {}
        self._quiet: dict[Path, _Known] = {}
        self._turns: deque[Path] = deque()
        """The quiet files in the order in which they are looked at."""
        self.uploaded: set[str] = set()
        """The keys of the sources of which something is in the bucket by this process."""

    def upload(
        self, sources: Iterable[Source], names: FolderNames, errors: PassErrors, *, over: bool
    ) -> bool:
        """Upload what is due; whether nothing is left to do for now. `over`: all that is left is due."""
        self._allowance.refill(self._clock())
        for source in sources:
            self._find(source, names, errors, over=over)
        self._look_at_quiet(len(self._turns) if over else -(-len(self._turns) // QUIET_PASSES))
        self._close_segments(errors, over=over)
        self._put_open_segments(errors, over=over)
        done = not any(known.file.remains and known.is_ours for known in self._growing.values())
        self._set_quiet_aside()
        return done

    def _find(self, source: Source, names: FolderNames, errors: PassErrors, *, over: bool) -> None:
        for path, key in source.files(names):
            if path in self._growing or path in self._quiet or errors.over(source):
                continue
            with errors.of(source):
                if over or path.stat().st_size:
                    begin = source.begin or self._begin(source, key)
                    file = GrowingFile(path, key, _growing(source), begin, self._clock())
                    self._growing[path] = _Known(file, source)

    def _begin(self, source: Source, key: str) -> Begin:
        """Behind what another pod of this attempt left there; what attempts share is known from its restore."""
        if source.fence:
            return Begin()
        try:
            there = segments_of(key, (item.key for item in self._store.named(key)))
        except S3Error as error:
            if error.transient:
                raise
            there = []  # Listing is not allowed: uploading may be.
        return Begin(there[-1].number + 1) if there else Begin()

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
            if not errors.over(source):
                with errors.of(source):
                    file.close_segments(self._put(source, self._allowance.sent), now, over=over, age=age)

    def _put_open_segments(self, errors: PassErrors, *, over: bool) -> None:
        now = self._clock()
        due = [known for known in self._growing.values() if known.file.remains]
        due = [known for known in due if over or known.file.open_due(now)]
        # Who waits longest is first: once there is enough for it.
        for file, source in sorted(due, key=lambda known: known.file.put_at):
            at_most = math.inf if over else self._allowance.bytes
            put = self._put(source, self._allowance.spend)
            if not errors.over(source):
                with errors.of(source):
                    if file.put_open(put, self._clock, over=over, at_most=at_most) is None:
                        return

    def _put(self, source: Source, account: Callable[[int], None]) -> Put:
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


def _growing(source: Source) -> Growing:
    assert isinstance(source.rule, Growing)
    return source.rule
