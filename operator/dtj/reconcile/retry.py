"""How a try that the cluster refuses is repeated: after 10 s, then ever later, up to every 5 to 7 minutes."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 300.0
_GROWTH = 4.0
_MOST_GROWTHS = 8
_JITTER = 0.4
_ROUNDING_SECONDS = 0.01


def pause(failed: int, uid: str, growth: float = _GROWTH) -> float:
    """Return the seconds until the next try after so many tries in a row that failed.

    Jobs that are refused at the same time, for example by one quota, are not all tried at the same time: the uid of
    the job lengthens each of its pauses by a share of up to 0.4. So an hour costs a job at most 13 tries.
    """
    share = 1 + _JITTER * crc32(f"{uid} {failed}".encode()) / 2**32
    return share * min(LONGEST_SECONDS, FIRST_SECONDS * growth ** min(failed - 1, _MOST_GROWTHS))


class Tries:
    """The tries of one thing for one job."""

    def __init__(self, uid: str, elapsed: Callable[[], float], growth: float = _GROWTH) -> None:
        """elapsed: returns seconds of a monotonic clock. growth: the factor from a pause to the next."""
        self._uid = uid
        self._elapsed = elapsed
        self._growth = growth
        self._what: object = None
        self._next = 0.0
        self.failed = 0
        """The tries in a row that failed."""

    def fail(self) -> None:
        """Note that a try failed just now."""
        self.failed += 1
        self._next = self._elapsed() + pause(self.failed, self._uid, self._growth)

    def of(self, what: object) -> None:
        """Reset unless the last try was of the same: its refusal says nothing of this one."""
        if self._what != what:
            self._what = what
            self.reset()

    def reset(self) -> None:
        """Note that a try succeeded, or that the next one is of something else."""
        self.failed, self._next = 0, 0.0

    def due_in(self) -> float:
        """Return the seconds until the next try is due; 0: now."""
        left = self._next - self._elapsed()
        return left if left > _ROUNDING_SECONDS else 0.0
