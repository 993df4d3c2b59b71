"""A cache of objects in the API server, listed once and then watched, after client-go's reflector."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Generic, NoReturn, TypeVar

from dtj.api.identity import LABEL_JOB
from dtj.cluster.interface import ApiError, Selection, Source
from dtj.reconcile.view import Key

_log = logging.getLogger(__name__)
_GONE = 410
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 30.0
T = TypeVar("T")


class Cache(Generic[T]):
    """A cache of objects, by the job that each object belongs to."""

    def __init__(
        self,
        see: Callable[[Mapping[str, Any]], T | None],
        changed: Callable[[Key], None],
        changed_little: Callable[[Key], None] | None = None,
        urgent: Callable[[Key, T | None, T | None], bool] | None = None,
        key: Callable[[Mapping[str, Any]], Key] | None = None,
    ) -> None:
        """see: returns the part of a manifest that the cache keeps; None for an object that it does not keep.
        changed: called with each job of which an object was added, deleted, or changed.
        changed_little: called instead of `changed` when the change is not urgent.
        urgent: called with the job, the old object and the new object; None stands for no object. By default, a new
        object is not urgent: a pass created the object.
        key: returns the job that an object belongs to. By default, the labels of an object name the job.
        """
        self._see = see
        self._changed = changed
        self._changed_little = changed_little or changed
        self._urgent = urgent or _existed_before
        self._key = key or job_key
        self._jobs: dict[Key, dict[str, T]] = {}
        self._keys: dict[str, Key] = {}
        self._listed: dict[Key, tuple[T, ...]] = {}
        """The tuple that `of` returns for a job, until an object of the job changes."""

    def of(self, job: Key) -> tuple[T, ...]:
        """Return the objects of a job: the same tuple until one of the objects changes."""
        if job not in self._jobs:
            return ()
        if job not in self._listed:
            self._listed[job] = tuple(self._jobs[job].values())
        return self._listed[job]

    def items(self) -> list[tuple[Key, T]]:
        """Return each object with the job that the object belongs to."""
        return [(key, seen) for key, objects in self._jobs.items() for seen in objects.values()]

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Add an object, or replace the cached object."""
        metadata = manifest["metadata"]
        uid, key, seen = metadata["uid"], self._key(manifest), self._see(manifest)
        if seen is None:
            self.drop(uid)
            return
        if self._keys.get(uid, key) != key:
            self.drop(uid)
        before = self._jobs.get(key, {}).get(uid)
        if before != seen:
            self._set(key, uid, seen)
            self._keys[uid] = key
            self._notify(key, before, seen)

    def _set(self, key: Key, uid: str, seen: T) -> None:
        self._jobs.setdefault(key, {})[uid] = seen
        self._listed.pop(key, None)

    def drop(self, uid: str) -> None:
        """Remove an object that was deleted."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        before = self._jobs[key].pop(uid)
        self._listed.pop(key, None)
        if not self._jobs[key]:
            del self._jobs[key]
        self._notify(key, before, None)

    def _notify(self, key: Key, before: T | None, after: T | None) -> None:
        (self._changed if self._urgent(key, before, after) else self._changed_little)(key)

    def keep(self, uids: Set[str], namespace: str | None) -> None:
        """Remove all objects of this namespace but those with these uids. namespace: None for all namespaces."""
        cached = [uid for uid, key in self._keys.items() if namespace in (None, key[0])]
        for uid in cached:
            if uid not in uids:
                self.drop(uid)


def _existed_before(_key: Key, before: object | None, _after: object | None) -> bool:
    return before is not None


class Informer(Generic[T]):
    """Keeps a cache up to date with the API server, also after interrupted connections and missed events."""

    def __init__(self, source: Source, selection: Selection, cache: Cache[T]) -> None:
        self.synced = asyncio.Event()
        """Set once the cache has all objects of the first list."""
        self.refusal: str | None = None
        """The API server's message if it refuses to list or watch the objects; None if it permits both."""
        self._source = source
        self._selection = selection
        self._cache = cache
        self._version: str | None = None

    async def run(self) -> NoReturn:
        """List and watch until the task is cancelled."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            version, at_least = self._version, 0.0
            try:
                await self._follow()
            except ApiError as error:
                if error.status == _GONE:
                    self._version = None
                at_least = error.retry_after or 0.0
                self._tell(error)
            else:
                self._allowed()
            # Do not lengthen the pause if the watch had made progress. This also holds after a 410 (version too old),
            # which needs a new list at once.
            moved = self._version != version
            pause = _FIRST_PAUSE_SECONDS if moved else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(max(at_least, pause * random.uniform(0.5, 1.5)))  # noqa: S311 - jitter

    async def _follow(self) -> None:
        if self._version is None:
            self._version = await self._list()
            self.synced.set()
        async for what, about in self._source.changes(self._selection, self._version):
            if what == "DELETED":
                self._cache.drop(about["metadata"]["uid"])
            elif what != "BOOKMARK":
                self._put(about)
            self._version = about["metadata"]["resourceVersion"]
            self._allowed()
            del about  # Free the object, which may be large, before the next object is read.

    async def _list(self) -> str:
        listed, version = set[str](), ""
        async for items, at in self._source.pages(self._selection):
            version = at or version
            listed |= self._put_all(items)
        self._cache.keep(listed, self._selection.namespace)
        self._allowed()
        return version

    def _tell(self, error: ApiError) -> None:
        """Log a refused request. Warn only once for the same message, since the request is repeated without end.

        An interrupted watch is no cause for a warning: it resumes at its last version.
        """
        refused = error.status not in (0, _GONE)
        level = logging.WARNING if refused and str(error) != self.refusal else logging.DEBUG
        _log.log(level, "the cache of %s may be out of date: %s", self._what, error)
        if refused:
            self.refusal = str(error)

    def _allowed(self) -> None:
        if self.refusal is not None:
            self.refusal = None
            _log.info("the cache of %s is up to date again", self._what)

    @property
    def _what(self) -> str:
        namespace = self._selection.namespace
        return self._selection.kind + (f" in namespace {namespace}" if namespace else "")

    def _put_all(self, items: Sequence[Mapping[str, Any]]) -> set[str]:
        for manifest in items:
            self._put(manifest)
        return {manifest["metadata"]["uid"] for manifest in items}

    def _put(self, manifest: Mapping[str, Any]) -> None:
        try:
            self._cache.put(manifest)
        except Exception:  # noqa: BLE001 - whoever may label a pod must not be able to stop the operator
            metadata = manifest["metadata"]
            where = f"{metadata.get('namespace')}/{metadata['name']}"
            _log.exception("%s %s can't be read", self._selection.kind, where)


def job_key(manifest: Mapping[str, Any]) -> Key:
    """Return the job that the labels of a manifest name."""
    metadata = manifest["metadata"]
    return metadata["namespace"], metadata["labels"][LABEL_JOB]
