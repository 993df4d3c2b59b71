"""The places of record pods. Namespaces share them: the silent store of one tenant holds up no other tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dtj.reconcile.boot_clock import boot_clock
from dtj.reconcile.view import Key

MOST_RECORD_PODS = 16
"""Record pods at a time, of all jobs."""
MOST_IN_VAIN = 2
"""Record pods at a time of a namespace whose last record pod wrote nothing."""
MOST_REMEMBERED = 1_000
"""The namespaces that are remembered because their last record pod wrote nothing: nobody tells of deleted ones."""
# A job that has not asked for its place for so long does not use it: its passes break off, or nobody runs them.
_FORGOTTEN_SECONDS = 600.0


class RecordPlaces:
    """Gives each place that becomes free to the namespace that has fewest, and there to the job that asked first.

    One namespace leaves a quarter of the places free, for the next that comes. A namespace whose last record pod
    wrote nothing has few places until one of its pods writes: a pod waits minutes for a store that does not answer.
    """

    def __init__(
        self,
        most: int = MOST_RECORD_PODS,
        wake: Callable[[Key], None] = lambda _: None,
        elapsed: Callable[[], float] = boot_clock,
    ) -> None:
        """wake: called with a job that has waited for a place and has the place now.
        elapsed: returns seconds of a monotonic clock.
        """
        self._most = most
        self._wake = wake
        self._elapsed = elapsed
        self._held: dict[Key, float] = {}
        """When each job with a place asked for it last, or got it, in seconds of the clock."""
        self._waiting: dict[str, dict[Key, None]] = {}
        """The jobs that wait, by namespace."""
        self._in_vain: dict[str, None] = {}
        """The namespaces whose last record pod wrote nothing, the newest last."""

    def hold(self, key: Key) -> None:
        """Note that a job has a record pod."""
        self._wait_no_more(key)
        self._held[key] = self._elapsed()

    def ended(self, namespace: str, *, wrote: bool) -> None:
        """Note that a record pod of this namespace ended, or was given up."""
        self._in_vain.pop(namespace, None)
        if not wrote:
            self._in_vain[namespace] = None
            if len(self._in_vain) > MOST_REMEMBERED:
                del self._in_vain[next(iter(self._in_vain))]

    def take(self, key: Key) -> bool:
        """Return whether the job has a place. Without a place, the job waits for one from now on."""
        if key not in self._held:
            self._waiting.setdefault(key[0], {})[key] = None
            self._give(asking=key)
        if key in self._held:
            self._held[key] = self._elapsed()
            return True
        return False

    def leave(self, key: Key) -> None:
        """Give up the job's place, or its wait."""
        self._wait_no_more(key)
        if self._held.pop(key, None) is not None:
            self._give()

    def _share(self, namespace: str) -> int:
        return MOST_IN_VAIN if namespace in self._in_vain else self._most - self._most // 4

    def _wait_no_more(self, key: Key) -> None:
        waiting = self._waiting.get(key[0], {})
        waiting.pop(key, None)
        if not waiting:
            self._waiting.pop(key[0], None)

    def _give(self, asking: Key | None = None) -> None:
        now = self._elapsed()
        for key in [key for key, at in self._held.items() if now - at > _FORGOTTEN_SECONDS]:
            del self._held[key]
        while len(self._held) < self._most:
            held = Counter(namespace for namespace, _ in self._held)
            below = [each for each in self._waiting if held[each] < self._share(each)]
            if not below:
                return
            namespace = min(below, key=lambda each: held[each])
            key = next(iter(self._waiting[namespace]))
            self._wait_no_more(key)
            self._held[key] = now
            if key != asking:
                self._wake(key)
