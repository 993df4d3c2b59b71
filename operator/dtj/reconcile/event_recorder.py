"""Events of a job: each event is created once and in order. A request that fails is repeated."""

from __future__ import annotations

import logging

from dtj.api.job import Manifest
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import ApiError, Cluster
from dtj.reconcile.boot_clock import Clock
from dtj.status.events import Happening, event
from dtj.status.times import written_time

_log = logging.getLogger(__name__)
_MOST_WAITING = 20
# The limits of client-go's EventSourceObjectSpamFilter: a job may have _BURST events at once, and one more event
# every _REFILL_SECONDS. Without the limits, a program that reports another state each time would fill etcd.
_BURST, _REFILL_SECONDS = 25, 300.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 300.0
# Repeat a request after status 0 (no answer), 401 (expired token), 429 (too many requests), and from 500 on.
_PASSING = (0, 401, 429)


class EventRecorder:
    """The events of one job that are not created yet, oldest first.

    The events are in memory only: an event may get lost when the operator dies. A request that fails loses no event.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Lists: an empty deque takes 600 bytes, and each job that has ended has a recorder.
        self._waiting: list[Manifest] = []
        self._pause = 0.0
        self._not_before: float | None = None
        self._tokens = float(_BURST)
        self._refilled: float | None = None
        self._recorded: list[str] = []
        """Names of the last events of the job."""

    def record(self, job: AnyJob, happening: Happening) -> None:
        """Queue an event behind those that wait, unless the job has no token left. A final event needs none."""
        manifest = event(job, happening, written_time(self._clock.now()))
        name = manifest["metadata"]["name"]
        if name in self._recorded:
            return
        if not happening.final and not self._take():
            _log.debug("%s/%s: no event, the job had too many: %s", job.namespace, job.name, happening.reason)
            return
        self._recorded = [*self._recorded, name][-_BURST:]
        _log.info("%s/%s: %s: %s", job.namespace, job.name, happening.reason, happening.message)
        self._waiting = [*self._waiting, manifest][-_MOST_WAITING:]

    def _take(self) -> bool:
        """Take a token of the job, and return whether the job had a token."""
        now = self._clock.elapsed()
        if self._refilled is not None:
            gained = (now - self._refilled) / _REFILL_SECONDS
            self._tokens = min(self._tokens + gained, _BURST)
        self._refilled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def flush(self, cluster: Cluster) -> None:
        """Create the events that wait. After a request that may succeed later, pause before the next request."""
        if self._not_before is not None and self._clock.elapsed() < self._not_before:
            return
        while self._waiting:
            manifest = self._waiting[0]
            try:
                await cluster.create(manifest)
            except ApiError as error:
                if error.status != 409:  # 409: the event exists. An earlier request created the event.
                    _log.warning("event %s: %s", manifest["metadata"]["name"], error)
                if error.status in _PASSING or error.status >= 500:
                    self._pause = min(2 * self._pause or _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
                    wait = max(self._pause, error.retry_after or 0.0)
                    self._not_before = self._clock.elapsed() + wait
                    return
            del self._waiting[0]
        self._pause, self._not_before = 0.0, None

    def due_in(self) -> float | None:
        """Return the seconds until `flush` may send requests again, or None when `flush` is not paused."""
        return None if self._not_before is None else max(self._not_before - self._clock.elapsed(), 0.0)
