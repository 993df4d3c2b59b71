"""The caches of objects that jobs own, such as pods and Services.

Anybody may create objects with a job's labels or with any owner. The caches limit the number of such objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from dtj.reconcile.informer import Cache
from dtj.reconcile.view import Key

MOST_STRAYS = 1_000
"""The number of objects of one kind in one namespace that are kept although no cached job is their owner."""
MOST_OF_JOB = 64
"""The number of Services, ConfigMaps, Deployments or record pods that are kept of one job. A job has few of each."""


class _Owned(Protocol):
    @property
    def owner(self) -> str:
        """The uid of the job, or an empty string."""


T = TypeVar("T", bound=_Owned)


class OwnedCache(Cache[T]):
    """Keeps the objects of jobs, and nothing of an object without an owner.

    The newest objects with an unknown owner stay, because the operator may receive an object before the object's job.
    """

    def __init__(
        self,
        see: Callable[[Mapping[str, Any]], T],
        knows: Callable[[str, Key], bool],
        changed: Callable[[Key], None],
        changed_little: Callable[[Key], None],
        urgent: Callable[[Key, T | None, T | None], bool] | None = None,
        key: Callable[[Mapping[str, Any]], Key] | None = None,
        most: Callable[[Key], int] = lambda _: MOST_OF_JOB,
    ) -> None:
        """knows: returns whether the cache of jobs has a job of this uid, at this key.
        most: returns how many objects are kept of the job at this key.

        See `Cache` for the rest.
        """

        def owned(manifest: Mapping[str, Any]) -> T | None:
            seen = see(manifest)
            fits = manifest["metadata"]["uid"] in self._keys or self._held[seen.owner] < most(
                self._key(manifest)
            )
            return seen if seen.owner and fits else None

        super().__init__(owned, changed, changed_little, urgent, key)
        self._knows = knows
        self._held = Counter[str]()
        """The number of objects by the uid of their owner."""
        self._strays: dict[str, dict[str, None]] = {}
        """The uids of the objects with an unknown owner, by namespace, the oldest first."""

    def put(self, manifest: Mapping[str, Any]) -> None:
        """See `Cache`."""
        super().put(manifest)
        uid = manifest["metadata"]["uid"]
        if uid not in self._keys:
            return
        key = self._keys[uid]
        if self._is_known(uid):
            self._strays.get(key[0], {}).pop(uid, None)
            return
        strays = self._strays.setdefault(key[0], {})
        strays[uid] = None
        if len(strays) > MOST_STRAYS:
            oldest = next(iter(strays))
            del strays[oldest]
            if not self._is_known(oldest):
                self.drop(oldest)

    def drop(self, uid: str) -> None:
        """See `Cache`."""
        if (key := self._keys.get(uid)) is not None and key[0] in self._strays:
            self._strays[key[0]].pop(uid, None)
            if not self._strays[key[0]]:
                del self._strays[key[0]]
        super().drop(uid)

    def _notify(self, key: Key, before: T | None, after: T | None) -> None:
        for seen, more in ((before, -1), (after, 1)):
            if seen is not None:
                self._held[seen.owner] += more
                if not self._held[seen.owner]:
                    del self._held[seen.owner]
        super()._notify(key, before, after)

    def _is_known(self, uid: str) -> bool:
        key = self._keys[uid]
        return self._knows(self._jobs[key][uid].owner, key)
