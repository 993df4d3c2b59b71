"""The fence between the attempts of a job: only the newest attempt may write to keys that attempts share.

The pod that writes for its attempt claims the job's prefix at its start, by compare-and-swap on one small object. A
claim is replaced by a later claim only. A claim protects two kinds of objects:

- Checkpoints: each claim writes, prunes and cleans up below folders of its own (`<step>-<claim>`), and removes the
  folders of earlier claims. No two claims share a key. A writer that was stopped after it checked its claim, and
  that continues later with a put or a delete, therefore cannot damage a later writer's checkpoint, with any store.
  Such a writer may still complete one checkpoint of its own. That checkpoint is intact, belongs to the same
  training, counts as older than those of later attempts, and is valid to resume from.
- Other files: each put names the ETag of the object that it replaces. A writer whose put fails because the object
  changed checks the claim before it tries again.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.s3 import (
    CLAIM_TRIES,
    FENCED_PUT_TRIES,
    Changed,
    LastingS3Error,
    NoSuchKey,
    NotSupported,
    S3Error,
)
from dtj_trainer.artifacts.store import ABSENT
from dtj_trainer.clock import now_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.artifacts.store import Store


log = logging.getLogger(__name__)


_NO_OBJECT = f'"{"0" * 32}"'
"""An ETag that no object has, for a put that must fail."""


class Superseded(LastingS3Error):
    """A later attempt has the claim. This attempt must never write again."""


@dataclass(frozen=True)
class Claim:
    """Which process may write. `number` rises with each claim, and equals the attempt's number wherever possible.

    `writer` is unique to a process. It distinguishes two pods of the same attempt, and it identifies a claim that the
    store accepted although the response was lost. `time` is RFC 3339 in UTC. `restores`: the URI of the snapshot that
    the process restores, empty if there is none, None before the choice; `restored`: whether it has the snapshot.
    """

    attempt: int
    number: int
    writer: str
    time: str
    restores: str | None = None
    restored: bool = False


def read_claim(store: Store, key: str) -> tuple[Claim | None, str]:
    """Read a claim and its ETag; (None, ABSENT) where nobody has claimed. Raises S3Error."""
    try:
        content, etag = store.get_with_etag(key)
    except NoSuchKey:
        return None, ABSENT
    try:
        read = json.loads(content)
        restores = read.get("restores")
        claim = Claim(
            int(read["attempt"]),
            int(read["number"]),
            str(read["writer"]),
            str(read["time"]),
            None if restores is None else str(restores),
            bool(read.get("restored")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise S3Error(
            f"the claim file {store.uri(key)} can't be read ({error!r}): delete it if no pod of this job runs",
            transient=False,
        ) from error
    return claim, etag


def claim_of_attempt(store: Store, key: str, attempt: int) -> Claim | None:
    """Return the claim of an attempt, None if there is none yet. Raises Superseded and other S3Errors."""
    found, _ = read_claim(store, key)
    if found is None or found.attempt < attempt:
        return None
    if found.attempt > attempt:
        raise Superseded(f"attempt {found.attempt} has taken over {store.location.uri}")
    return found


class Fence:
    """The claim of one process. Thread-safe."""

    def __init__(
        self, store: Store, key: str, attempt: int, on_superseded: Callable[[], None] = lambda: None
    ) -> None:
        """`store` is the job's prefix. `on_superseded` is called once, by the thread that detects a later attempt."""
        self._store = store
        self._key = key
        self._attempt = attempt
        self._on_superseded = on_superseded
        self._writer = uuid.uuid4().hex
        self._own: Claim | None = None
        self._etag = ABSENT
        self._conditional = True
        self._lock = threading.Lock()
        self.superseded: Superseded | None = None
        """The error to raise once a later attempt has claimed the prefix; None before. Never reset."""

    @property
    def attempt(self) -> int:
        """The attempt for which this process claims the prefix."""
        return self._attempt

    @property
    def is_claimed(self) -> bool:
        """Whether this process has had the claim."""
        return self._own is not None

    @property
    def number(self) -> int:
        """The number of the claim. Call `hold` successfully before reading it."""
        assert self._own is not None
        return self._own.number

    def hold(self) -> None:
        """Verify that this process has the claim, or take the claim. Usually one small request.

        Raises Superseded when a later attempt has claimed, S3Error when the claim can't be read or written.
        """
        with self._lock:
            if self.superseded:
                raise self.superseded
            for _ in range(CLAIM_TRIES):
                found, etag = self._read()
                if found and found.writer == self._writer:
                    self._own, self._etag = found, etag
                    return
                if found and self._is_later(found):
                    raise self._lost(found)
                if self._claim(found, etag):
                    return
            raise S3Error(
                f"other processes change the claim file {self._store.uri(self._key)} all the time",
                transient=True,
            )

    def announce_restore(self, uri: str, *, restored: bool) -> None:
        """Tell the other pods of the attempt which snapshot this process restores, and whether it has done so.

        uri: empty if there is none. Call `hold` before. Raises S3Error.
        """
        with self._lock:
            assert self._own is not None
            told = replace(self._own, restores=uri, restored=restored)
            if told != self._own:
                content = json.dumps(asdict(told)).encode()
                try:
                    self._etag = self._store.put_bytes(
                        self._key, content, replaces=self.expecting(self._etag)
                    )
                except Changed as error:
                    # Another process wrote the claim, or an earlier put of this process arrived and its answer was
                    # lost.
                    raise S3Error(str(error), transient=True) from error
                self._own = told

    def expecting(self, replaces: str) -> str | None:
        """Return the condition of a put over the object with that ETag (or ABSENT), or None without conditional
        writes.
        """
        return replaces if self._conditional else None

    def without_conditions(self) -> None:
        """Continue without conditional writes, because this store does not support them."""
        if self._conditional:
            log.warning(
                "the store of %s has no conditional writes: a pod from a lost node that reconnects is detected only "
                "between its uploads",
                self._store.location.uri,
            )
        self._conditional = False

    def _read(self) -> tuple[Claim | None, str]:
        return read_claim(self._store, self._key)

    def _is_later(self, found: Claim) -> bool:
        if found.attempt != self._attempt:
            return found.attempt > self._attempt
        # Within one attempt, the pod that started last has the claim.
        return self._own is not None and found.number >= self._own.number

    def _lost(self, found: Claim) -> Superseded:
        self.superseded = Superseded(
            f"attempt {found.attempt} has taken over {self._store.location.uri}: this pod of attempt "
            f"{self._attempt} is a leftover and uploads nothing more but its log"
        )
        self._on_superseded()
        return self.superseded

    def _claim(self, found: Claim | None, etag: str) -> bool:
        """Replace the claim that was read; return False when the caller must read again."""
        numbers = [self._attempt, found.number + 1 if found else 1, self._own.number if self._own else 1]
        wanted = Claim(self._attempt, max(numbers), self._writer, now_text())
        content = json.dumps(asdict(wanted)).encode()
        try:
            if found and self._conditional and not self._refuses_to_replace(content):
                self.without_conditions()
            else:
                self._etag = self._store.put_bytes(self._key, content, replaces=self.expecting(etag))
        except Changed:
            return False
        except NotSupported:
            if not self._conditional:
                raise
            self.without_conditions()
            return False
        self._own = wanted
        return True

    def _refuses_to_replace(self, content: bytes) -> bool:
        """Return whether the store enforces both conditions, If-None-Match and If-Match, while another claim exists.

        Some stores ignore both conditions. Others enforce If-None-Match and ignore If-Match.
        """
        for impossible in (ABSENT, _NO_OBJECT):
            try:
                self._store.put_bytes(self._key, content, replaces=impossible)
            except Changed:
                continue
            return False
        return True


# put_fenced replaces an object only while the object has the expected ETag, or this process holds the claim of its
# attempt.


def put_fenced(
    store: Store, fence: Fence, key: str, etag: str, put: Callable[[str | None], str | None]
) -> str:
    """Call `put` with the condition for replacing the object of that ETag (or ABSENT); return the ETag of the new
    object.

    When the condition fails, the object may stem from an earlier attempt, or from this very put if its response was
    lost. The holder of the claim may replace either object. A process that lost the claim gets Superseded before the
    put. Raises Superseded, S3Error.
    """
    for _ in range(FENCED_PUT_TRIES):
        fence.hold()
        try:
            return put(fence.expecting(etag)) or etag
        except Changed:
            try:
                etag = store.etag(key)
            except NoSuchKey:
                etag = ABSENT
        except NotSupported:
            if fence.expecting(etag) is None:
                raise
            fence.without_conditions()
    store.abort_uploads(key)
    raise S3Error(f"other processes change {store.uri(key)} all the time", transient=True)
