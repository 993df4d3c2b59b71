"""Uploads growing files in segments, so that a pod uploads about as many bytes as its program writes.

A closed segment is uploaded once. The open segment of each file is uploaded again while it grows, within an allowance
of the pod: every few seconds at first, and less often after hours of much output.
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
    source: Source

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
        self, sources: Iterable[Source], names: FolderNames, errors: PassErrors, *, over: bool
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

    def _find(self, source: Source, names: FolderNames, errors: PassErrors, *, over: bool) -> None:
        for path, key in source.files(names):
            if path in self._growing or path in self._quiet or errors.over(source):
                continue
            with errors.of(source, path):
                if over or path.stat().st_size:
                    begin = source.begin or self._begin(source, key)
                    file = GrowingFile(path, key, _growing(source), begin, self._clock())
                    self._growing[path] = _Known(file, source)

    def _begin(self, source: Source, key: str) -> Begin:
        """Return where to begin: after segments of another pod of this attempt. For shared keys, the restore
        decides.
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
