"""A work queue of keys, after client-go's workqueue: each key waits at most once, and at most one worker has a key.

Namespaces take turns, so that hundreds of jobs of one tenant do not delay the jobs of other tenants. Workers that
wait for the API server in passes over the jobs of one tenant leave some workers to the others. One worker at a time
has a large job: a pass holds the job as data.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from dtj.reconcile.view import Key

_BACKOFF_SECONDS = 0.05
_BACKOFF_LIMIT_SECONDS = 60.0
_SOON_SECONDS = 1.0
_Turns = OrderedDict[str, deque[Key]]


class WorkQueue:
    """Keys that wait for a worker."""

    def __init__(
        self,
        clock: Callable[[], float],
        rng: random.Random | None = None,
        rest: float = 0.0,
        *,
        opened: bool = True,
        most: int | None = None,
        large: Callable[[Key], bool] = lambda _: False,
    ) -> None:
        """clock: returns seconds of a monotonic clock.
        rest: seconds after a pass in which no worker gets the key again, so that all watch events that the pass's own
        writes cause lead to one pass.
        opened: whether workers get keys at once; if False, workers get the keys of a namespace only after `open`.
        most: the number of workers that may have keys of one namespace at a time; None: all.
        large: returns whether a key is that of a large job.
        """
        self._clock = clock
        self._rest = rest
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._opened: set[str | None] = {None} if opened else set()
        self._held: dict[Key, None] = {}
        """The keys of namespaces that are not open, in their order. They do not count as late before `open`."""
        self._ready: _Turns = OrderedDict()
        """The keys that wait, by namespace. The first namespace has the next turn."""
        self._large = large
        self._large_ready: _Turns = OrderedDict()
        """The keys of large jobs that wait, by namespace. The first namespace has the next turn."""
        self._large_busy: Key | None = None
        """The key of the large job that a worker has."""
        self._since: dict[Key, float] = {}
        """The keys that wait, and since when, in seconds of the clock."""
        self._busy: dict[Key, float] = {}
        """The keys that workers have, and when each worker last made progress, in seconds of the clock."""
        self._most = most
        self._busy_in: Counter[str] = Counter()
        """The number of keys of `_busy`, by namespace."""
        self._waited: dict[Key, float] = {}
        """The seconds that each key of `_busy` had waited."""
        self._again: set[Key] = set()
        """The busy and resting keys that were added in the meantime."""
        self._resting: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def open(self, namespace: str | None = None) -> None:
        """Give the keys of this namespace to workers from now on; None: the keys of all namespaces."""
        self._opened.add(namespace)
        held, self._held = self._held, {}
        for key in held:
            self.add(key)

    def is_open(self, namespace: str) -> bool:
        """Return whether workers get the keys of this namespace now."""
        return None in self._opened or namespace in self._opened

    def add(self, key: Key) -> None:
        """Add the key. The next free worker takes the key in its turn."""
        if not self.is_open(key[0]):
            self._held[key] = None
        elif key in self._busy or key in self._resting:
            self._again.add(key)
        elif key not in self._since:
            self._since[key] = self._clock()
            ready = self._large_ready if self._large(key) else self._ready
            ready.setdefault(key[0], deque()).append(key)
            self._wake.set()

    def add_soon(self, key: Key) -> None:
        """Add the key after a second, unless a pass over the job begins before."""
        self.add_after(key, _SOON_SECONDS)

    def add_after(self, key: Key, seconds: float) -> None:
        """Add the key after these seconds. Of several calls, the soonest time counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def retry(self, key: Key, at_least: float = 0.0) -> None:
        """Add the key after a failure, with exponential backoff and jitter. at_least: shortest delay in seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        pause = min(_BACKOFF_SECONDS * 2 ** min(count, 16), _BACKOFF_LIMIT_SECONDS)
        self.add_after(key, max(at_least, pause * self._rng.uniform(0.5, 1.5)))

    def forget(self, key: Key) -> None:
        """Reset the backoff of a key after a pass without failure."""
        self._failures.pop(key, None)

    def drop(self, key: Key) -> None:
        """Drop the backoff and the timer of a job that was deleted."""
        self.forget(key)
        self._held.pop(key, None)
        self._cancel_timer(key)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def take(self) -> Key:
        """Wait for a key, and return the oldest key of the next namespace. The worker must call `done` later."""
        while (turn := self._next()) is None:
            self._wake.clear()
            await self._wake.wait()
        ready, namespace = turn
        keys = ready.pop(namespace)
        key = keys.popleft()
        if keys:
            ready[namespace] = keys
        if ready is self._large_ready:
            self._large_busy = key
        self._busy_in[namespace] += 1
        self._cancel_timer(key)  # The pass schedules the next pass itself.
        self._busy[key] = now = self._clock()
        self._waited[key] = now - self._since.pop(key)
        return key

    def _next(self) -> tuple[_Turns, str] | None:
        """Return the turns, `_large_ready` or `_ready`, and their next namespace; None while no key may be taken."""
        for ready in (self._ready,) if self._large_busy else (self._large_ready, self._ready):
            for namespace in ready:  # This loop is short: few namespaces can have the most workers at a time.
                if self._most is None or self._busy_in[namespace] < self._most:
                    return ready, namespace
        return None

    def waited(self, key: Key) -> float:
        """Return the seconds that a key had waited until its worker took the key."""
        return self._waited[key]

    def moved(self, key: Key) -> None:
        """Note that the worker that has the key makes progress."""
        if key in self._busy:
            self._busy[key] = self._clock()

    def done(self, key: Key, rest: float = 0.0) -> None:
        """Note that the worker has finished with the key.

        rest: seconds in which no worker gets the key, if longer than the `rest` of the queue.
        """
        del self._busy[key], self._waited[key]
        if key == self._large_busy:
            self._large_busy = None
        self._busy_in[key[0]] -= 1
        if not self._busy_in[key[0]]:
            del self._busy_in[key[0]]
        self._wake.set()
        rest = max(rest, self._rest)
        if rest:
            self._resting.add(key)
            asyncio.get_running_loop().call_later(rest, self._rested, key)
        else:
            self._rested(key)

    def _rested(self, key: Key) -> None:
        self._resting.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def __len__(self) -> int:
        return len(self._since)

    def crowded(self) -> bool:
        """Return whether workers have, or wait for, more than one key in all."""
        return len(self._since) + len(self._busy) > 1

    def oldest(self) -> float:
        """Return the longest time in seconds that a key has waited, or that its worker has made no progress."""
        now = self._clock()
        return max(
            (now - since for times in (self._since, self._busy) for since in times.values()), default=0.0
        )
