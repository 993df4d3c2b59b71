"""How a try that the cluster refuses is repeated: after 10 s, then ever later, up to every 5 minutes."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 300.0
_DOUBLINGS = 8
_JITTER = 0.2
_ROUNDING_SECONDS = 0.01


def pause(failed: int, uid: str) -> float:
    """Return the seconds until the next try after so many tries in a row that failed.

    Jobs that are refused at the same time, for example by one quota, are not all tried at the same time: the uid of
    the job shortens each of its pauses by a share of up to a fifth.
    """
    share = 1 - _JITTER * crc32(f"{uid} {failed}".encode()) / 2**32
    return share * min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failed - 1, _DOUBLINGS))


class Tries:
    """The tries of one thing for one job."""

    def __init__(self, uid: str, elapsed: Callable[[], float]) -> None:
        """elapsed: returns seconds of a monotonic clock."""
        self._uid = uid
        self._elapsed = elapsed
        self._next = 0.0
        self.failed = 0
        """The tries in a row that failed."""

    def fail(self) -> None:
        """Note that a try failed just now."""
        self.failed += 1
        self._next = self._elapsed() + pause(self.failed, self._uid)

    def reset(self) -> None:
        """Note that a try succeeded, or that the next one is of something else."""
        self.failed, self._next = 0, 0.0

    def due_in(self) -> float:
        """Return the seconds until the next try is due; 0: now."""
        left = self._next - self._elapsed()
        return left if left > _ROUNDING_SECONDS else 0.0
