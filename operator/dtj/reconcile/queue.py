"""A work queue of keys, after client-go's workqueue: each key at most once, and never in two hands at a time.

Namespaces take turns: hundreds of jobs of one tenant keep no other tenant's job waiting.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Callable

from dtj.reconcile.view import Key

_BACKOFF_SECONDS = 0.05
_BACKOFF_LIMIT_SECONDS = 60.0
_SOON_SECONDS = 1.0


class WorkQueue:
    """Keys that wait for a worker."""

    def __init__(
        self,
        clock: Callable[[], float],
        rng: random.Random | None = None,
        rest: float = 0.0,
        *,
        opened: bool = True,
    ) -> None:
        """rest: seconds for which no worker gets a key again: the echo of a pass's own writes is one pass. opened:
        whether workers get keys at once, or only after `open`.
        """
        self._clock = clock
        self._rest = rest
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self.opened = opened
        """Whether workers get keys."""
        self._ready: OrderedDict[str, deque[Key]] = OrderedDict()
        """Keys that wait, by namespace; the namespace whose turn it is comes first."""
        self._since: dict[Key, float] = {}
        """Keys that wait, and since when."""
        self._busy: dict[Key, float] = {}
        """Keys in a worker's hands, and since when."""
        self._waited: dict[Key, float] = {}
        """How long each of these had waited."""
        self._again: set[Key] = set()
        """Busy and resting keys that were added meanwhile."""
        self._resting: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def open(self) -> None:
        """Let workers have keys from now on."""
        self.opened = True
        self._wake.set()

    def add(self, key: Key) -> None:
        """Let a worker take the key as soon as one is free."""
        if key in self._busy or key in self._resting:
            self._again.add(key)
        elif key not in self._since:
            self._since[key] = self._clock()
            self._ready.setdefault(key[0], deque()).append(key)
            self._wake.set()

    def add_soon(self, key: Key) -> None:
        """Add the key within a second: a pass that comes sooner does for it."""
        self.add_after(key, _SOON_SECONDS)

    def add_after(self, key: Key, seconds: float) -> None:
        """Add the key later; of several such wishes the soonest counts."""
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
        """Add the key after a failure: later with each failure in a row, and not in step with others."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        pause = min(_BACKOFF_SECONDS * 2 ** min(count, 16), _BACKOFF_LIMIT_SECONDS)
        self.add_after(key, max(at_least, pause * self._rng.uniform(0.5, 1.5)))

    def forget(self, key: Key) -> None:
        """The key went well: its next failure is the first."""
        self._failures.pop(key, None)

    def drop(self, key: Key) -> None:
        """The job is gone: nothing is to be remembered of it."""
        self.forget(key)
        self._cancel_timer(key)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def take(self) -> Key:
        """The key that has waited longest in the next namespace; waits for one. Give it back with `done`."""
        while not (self._ready and self.opened):
            self._wake.clear()
            await self._wake.wait()
        namespace, keys = self._ready.popitem(last=False)
        key = keys.popleft()
        if keys:
            self._ready[namespace] = keys
        self._cancel_timer(key)  # the pass says anew when the next one is due
        self._busy[key] = now = self._clock()
        self._waited[key] = now - self._since.pop(key)
        return key

    def waited(self, key: Key) -> float:
        """Seconds that a key in a worker's hands had waited for one."""
        return self._waited[key]

    def moved(self, key: Key) -> None:
        """The worker that has the key makes headway."""
        if key in self._busy:
            self._busy[key] = self._clock()

    def done(self, key: Key, rest: float = 0.0) -> None:
        """The worker has finished with the key. rest: seconds for which no worker gets it, if more than of others."""
        del self._busy[key], self._waited[key]
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
        """Whether more than one key waits or is in a worker's hands."""
        return len(self._since) + len(self._busy) > 1

    def oldest(self) -> float:
        """Seconds that a key has waited, or been in hands that made no headway, at most."""
        now = self._clock()
        return max(
            (now - since for times in (self._since, self._busy) for since in times.values()), default=0.0
        )
