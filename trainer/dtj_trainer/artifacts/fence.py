"""The fence between the attempts of a job: only the newest one may write what they share in the bucket.

The pod that writes for its attempt claims the job's prefix at its start, by compare-and-swap on one small
object; a claim is only ever replaced by a later one. What a claim then protects, and how:

- Checkpoints: each claim writes, prunes and cleans up below folders of its own (`<step>-<claim>`), and
  removes those of earlier claims. No key is ever shared, so that a writer that was stopped between its look
  at the claim and a put or delete can't hurt a later one, with any store. What it may still do in that
  moment is to complete a checkpoint of its own: a whole one of the same training, older than any of the
  later attempts, and as good as another to go on from.
- Other files: each put names the ETag of what it replaces. The one that lost the race looks at the claim.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.s3 import Changed, LastingS3Error, NoSuchKey, NotSupported, S3Error
from dtj_trainer.artifacts.store import ABSENT
from dtj_trainer.clock import now_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

TRIES = 5
"""Of a compare-and-swap, one after the other: more writers than that never start at once."""


_NO_OBJECT = f'"{"0" * 32}"'
"""An ETag that no claim has."""


class Superseded(LastingS3Error):
    """A later attempt writes now: this one may write no more, ever."""


@dataclass(frozen=True)
class Claim:
    """Who may write. `number` rises with each claim, and is that of the attempt wherever possible.

    `writer` is unique to a process: two pods of one attempt are told apart, and a claim that arrived although its
    answer was lost is recognized. `time` is RFC 3339 in UTC.
    """

    attempt: int
    number: int
    writer: str
    time: str


class Fence:
    """One process's claim. May be used by several threads."""

    def __init__(
        self, store: Store, key: str, attempt: int, on_superseded: Callable[[], None] = lambda: None
    ) -> None:
        """`store` is the job's prefix; `on_superseded` is called once, from the thread that finds it out."""
        self._store = store
        self._key = key
        self._attempt = attempt
        self._on_superseded = on_superseded
        self._writer = uuid.uuid4().hex
        self._own: Claim | None = None
        self._conditional = True
        self._lock = threading.Lock()
        self.superseded: Superseded | None = None
        """Set for good once a later attempt was seen."""

    @property
    def attempt(self) -> int:
        """The attempt that it claims for."""
        return self._attempt

    @property
    def number(self) -> int:
        """The number of the claim, which was held at least once."""
        assert self._own is not None
        return self._own.number

    def hold(self) -> None:
        """Make sure that the claim is this process's, and make it so at first; one small request as a rule.

        Raises Superseded when a later attempt has claimed, S3Error when that can't be found out.
        """
        with self._lock:
            if self.superseded:
                raise self.superseded
            for _ in range(TRIES):
                found, etag = self._read()
                if found and found.writer == self._writer:
                    self._own = found
                    return
                if found and self._is_later(found):
                    raise self._lost(found)
                if self._claim(found, etag):
                    return
            raise S3Error(f"{self._store.uri(self._key)} is being changed all the time", transient=True)

    def expecting(self, replaces: str) -> str | None:
        """The condition for a put over an object with that ETag (or ABSENT); None where the store knows none."""
        return replaces if self._conditional else None

    def without_conditions(self) -> None:
        """Go on without conditional writes, as this store does not have them."""
        if self._conditional:
            log.warning(
                "the store of %s has no conditional writes: a lost pod that comes back is noticed only "
                "between its uploads",
                self._store.location.uri,
            )
        self._conditional = False

    def _read(self) -> tuple[Claim | None, str]:
        try:
            content, etag = self._store.get_with_etag(self._key)
        except NoSuchKey:
            return None, ABSENT
        try:
            read = json.loads(content)
            claim = Claim(int(read["attempt"]), int(read["number"]), str(read["writer"]), str(read["time"]))
        except (ValueError, KeyError, TypeError) as error:
            raise S3Error(
                f"{self._store.uri(self._key)} can't be read ({error!r}): delete it if no pod of this job runs",
                transient=False,
            ) from error
        return claim, etag

    def _is_later(self, found: Claim) -> bool:
        if found.attempt != self._attempt:
            return found.attempt > self._attempt
        # Of one attempt the pod that was started last has it.
        return self._own is not None and found.number >= self._own.number

    def _lost(self, found: Claim) -> Superseded:
        self.superseded = Superseded(
            f"attempt {found.attempt} has taken over {self._store.location.uri}: this pod of attempt "
            f"{self._attempt} is a leftover and uploads nothing more but its log"
        )
        self._on_superseded()
        return self.superseded

    def _claim(self, found: Claim | None, etag: str) -> bool:
        """Replace what was found; False when that is to be tried again."""
        numbers = [self._attempt, found.number + 1 if found else 1, self._own.number if self._own else 1]
        wanted = Claim(self._attempt, max(numbers), self._writer, now_text())
        content = json.dumps(asdict(wanted)).encode()
        try:
            if found and self._conditional and not self._refuses_to_replace(content):
                self.without_conditions()
            else:
                self._store.put_bytes(self._key, content, replaces=self.expecting(etag))
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
        """Whether the store heeds both conditions, where the claim of another is in the way.

        Some stores ignore conditions. Others heed If-None-Match and ignore If-Match.
        """
        for impossible in (ABSENT, _NO_OBJECT):
            try:
                self._store.put_bytes(self._key, content, replaces=impossible)
            except Changed:
                continue
            return False
        return True
