"""Which pods fetch a file, so that it leaves the bucket once and each pod passes it on to two others.

The pods ask one of them, which the file's SHA-256 chooses, where to get the file. The first that asks is told: from
the bucket. The others form a binary tree in the order in which they ask: no pod waits for one that starts later.
"""

from __future__ import annotations

import threading

MOST_FILES = 4096
"""The number of files that a pod remembers. Who asks for others makes it forget the oldest."""
TRACKERS = 3
"""How many pods may know about a file: the second and the third are asked where the one before does not answer."""


def trackers_of(sha256: str, pods: int) -> list[int]:
    """Return the numbers of the pods that know who fetches a file, the first one first."""
    first = int(sha256[:8], 16) % pods
    return [(first + each) % pods for each in range(min(TRACKERS, pods))]


class Askers:
    """The pods that have asked for each file. Thread-safe; a question costs the same for any number of pods."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[list[int], dict[int, int]]] = {}
        """By file: the pods in their order, and the place of each."""
        self._lock = threading.Lock()

    def ask(self, sha256: str, pod: int) -> list[int]:
        """Return the pods from which this one may get the file, the best one first; empty: from the bucket.

        A pod that asks again keeps its place, so that no two pods wait for each other.
        """
        with self._lock:
            if sha256 not in self._files and len(self._files) >= MOST_FILES:
                del self._files[next(iter(self._files))]
            order, places = self._files.setdefault(sha256, ([], {}))
            place = places.setdefault(pod, len(order))
            if place == len(order):
                order.append(pod)
            return [order[above] for above in _above(place)]


def _above(place: int) -> list[int]:
    found = []
    while place:
        place = (place - 1) // 2
        found.append(place)
    return found
