"""The budget of memory for the jobs of each namespace, and the jobs that do not fit into it."""

from __future__ import annotations

from bisect import bisect_left, insort

NAMESPACE_BYTES = 64_000_000
"""The default budget of one namespace, in bytes."""
_LARGE_PART = 64
"""A job that takes more than this fraction (1/64) of its namespace's budget is large."""
_SMALL, _BIG, _OVER = range(3)
_Rank = tuple[int, float, str]
"""The order in which jobs get room: small, large, or ended; the order among these; the uid."""


class Budget:
    """The jobs of one namespace, in the order in which they have room: small jobs, large jobs, ended jobs.

    Of the unended jobs the oldest are first, so that the newest of the large jobs has no room. Of the ended jobs the
    newest are first: they may still have to be recorded. The order does not depend on the order in which the operator
    receives the jobs, so that each leader comes to the same decision.
    """

    def __init__(self, most: int) -> None:
        """most: bytes that the jobs may take together."""
        self._most = most
        self._order: list[_Rank] = []
        self._ranks: dict[str, _Rank] = {}
        self._bytes: dict[str, int] = {}
        self._fitting = 0
        """The number of jobs, from the beginning of the order, that fit into the budget."""
        self._held = 0
        """The bytes of the jobs that fit into the budget."""

    def put(self, uid: str, created: float, size: int, *, ended: bool) -> set[str]:
        """Add a job, or replace its size. Return the uids of the jobs that may have got or lost room.

        created: Unix time at which the job was created.
        """
        self._take_out(uid)
        kind = _OVER if ended else _BIG if self.is_large(size) else _SMALL
        rank = (kind, -created if ended else created, uid)
        if bisect_left(self._order, rank) < self._fitting:
            self._fitting += 1
            self._held += size
        insort(self._order, rank)
        self._ranks[uid], self._bytes[uid] = rank, size
        return self._settled() | {uid}

    def drop(self, uid: str) -> set[str]:
        """Remove a job. Return the uids of the jobs that have got room."""
        self._take_out(uid)
        return self._settled()

    def is_large(self, size: int) -> bool:
        """Return whether a job of so many bytes is large."""
        return size > self._most // _LARGE_PART

    def has_room(self, uid: str) -> bool:
        """Return whether a job fits with all jobs before it."""
        rank = self._ranks[uid]
        return self._fitting == len(self._order) or rank < self._order[self._fitting]

    def __len__(self) -> int:
        return len(self._order)

    @property
    def held(self) -> int:
        """The bytes of the jobs that have room."""
        return self._held

    def _take_out(self, uid: str) -> None:
        rank = self._ranks.pop(uid, None)
        if rank is None:
            return
        place, size = bisect_left(self._order, rank), self._bytes.pop(uid)
        del self._order[place]
        if place < self._fitting:
            self._fitting -= 1
            self._held -= size

    def _settled(self) -> set[str]:
        moved = set[str]()
        while self._held > self._most:
            self._fitting -= 1
            self._held -= self._of(self._fitting, moved)
        while self._fitting < len(self._order):
            size = self._of(self._fitting, moved)
            if self._held + size > self._most:
                break
            self._held += size
            self._fitting += 1
        return moved

    def _of(self, place: int, moved: set[str]) -> int:
        uid = self._order[place][2]
        moved.add(uid)
        return self._bytes[uid]
