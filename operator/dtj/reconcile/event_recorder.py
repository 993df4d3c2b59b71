"""Events of a job: each is told once and in order, also when the API server does not take it at once."""

from __future__ import annotations

import logging
from collections import deque

from dtj.api.job import Manifest
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import ApiError, Cluster
from dtj.reconcile.boot_clock import Clock
from dtj.status.events import Happening, event
from dtj.status.times import written_time

_log = logging.getLogger(__name__)
_MOST_WAITING = 20
# As client-go's EventSourceObjectSpamFilter: so many events of a job at once, and one more in so many seconds. A
# program that reports another state each time would otherwise fill etcd.
_BURST, _REFILL_SECONDS = 25, 300.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 300.0
# The answers after which the same request may do: none, an expired token, too many requests; and all from 500 on.
_PASSING = (0, 401, 429)


class EventRecorder:
    """Events of one job that wait for the API server, oldest first.

    They are in memory only: an operator that dies may lose one, a request that fails does not.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Manifest] = deque(maxlen=_MOST_WAITING)
        self._pause = 0.0
        self._not_before: float | None = None
        self._tokens = float(_BURST)
        self._refilled: float | None = None
        self._recorded: deque[str] = deque(maxlen=_BURST)
        """Names of the last events."""

    def record(self, job: AnyJob, happening: Happening) -> None:
        """Let something be told after all that waits already, unless the job has told too much lately."""
        made = event(job, happening, written_time(self._clock.now()))
        name = made["metadata"]["name"]
        if name in self._recorded:
            return
        if not happening.final and not self._take():
            _log.debug("%s/%s: no event, too many lately: %s", job.namespace, job.name, happening.reason)
            return
        self._recorded.append(name)
        _log.info("%s/%s: %s: %s", job.namespace, job.name, happening.reason, happening.message)
        self._waiting.append(made)

    def _take(self) -> bool:
        """Take a token of the job's, if there is one."""
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
        """Create the events that wait; after one that fails, no other is tried before a pause is over."""
        if self._not_before is not None and self._clock.elapsed() < self._not_before:
            return
        while self._waiting:
            made = self._waiting[0]
            try:
                await cluster.create(made)
            except ApiError as error:
                if error.status != 409:  # told before, or by an answer that was lost
                    _log.warning("event %s: %s", made["metadata"]["name"], error)
                if error.status in _PASSING or error.status >= 500:
                    self._pause = min(2 * self._pause or _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
                    wait = max(self._pause, error.retry_after or 0.0)
                    self._not_before = self._clock.elapsed() + wait
                    return
            self._waiting.popleft()
        self._pause, self._not_before = 0.0, None

    def due_in(self) -> float | None:
        """Seconds until events are to be tried again; None when none waits."""
        return None if self._not_before is None else max(self._not_before - self._clock.elapsed(), 0.0)
