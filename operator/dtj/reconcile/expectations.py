"""Expectations: a pass does not repeat a request whose effect the cache may not show yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtj.reconcile.actions import (
    Action,
    AwaitEarlier,
    Create,
    CreateOwn,
    CreatePod,
    CreateSshSecret,
    DeletePod,
)

# An expectation expires after this many seconds. A cache that is further behind causes requests that change nothing.
# An object that was deleted before the cache showed it is created again only after these seconds.
_SECONDS = 3.0
_UNSEEN_SECONDS = 3600.0
"""For objects that no cache shows, since the operator may not read them. A user may delete such an object."""
_UNSEEN = (CreateOwn, CreateSshSecret)
_Key = tuple[str, ...]


class Expectations:
    """The requests that the API server has accepted for one job and whose effect the cache has not shown yet."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        """elapsed: returns seconds of a monotonic clock."""
        self._elapsed = elapsed
        self._until: dict[_Key, float] = {}
        self._attempt = 0

    def add(self, action: Action) -> None:
        """Expect the effect of an action that was carried out."""
        key = _key(action)
        if key is not None:
            unseen = isinstance(action, _UNSEEN)
            self._until[key] = self._elapsed() + (_UNSEEN_SECONDS if unseen else _SECONDS)

    def without(self, todo: Sequence[Action], attempt: int) -> list[Action]:
        """Return the actions that are not expected. Drop expectations that `todo` lacks: the cache shows them.

        attempt: the one that the actions are for. Each attempt makes all its objects.
        """
        if attempt != self._attempt:
            self._attempt, self._until = attempt, {}
        wanted, now = {_key(action) for action in todo}, self._elapsed()
        self._until = {key: time for key, time in self._until.items() if key in wanted and time > now}
        return [action for action in todo if _key(action) not in self._until]

    def due_in(self) -> float | None:
        """Return the seconds until the first expectation expires, or None without expectations."""
        soonest = min(self._until.values(), default=None)
        return None if soonest is None else soonest - self._elapsed()


def _key(action: Action) -> _Key | None:
    match action:
        case CreatePod(replica):
            return "create", "Pod", replica.name
        case Create(manifest) | CreateOwn(manifest):
            return "create", manifest["kind"], manifest["metadata"]["name"]
        case CreateSshSecret():
            return ("create", "ssh secret")
        case AwaitEarlier(attempt):
            return "await earlier", str(attempt)
        case DeletePod(_, uid):
            return "delete", uid
        case _:
            return None
