"""What was done lately and the cache may not show yet: it is not done again."""

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

# A cache that is further behind costs requests that change nothing; an object that went before the cache showed it
# is missed for so long.
_SECONDS = 3.0
_Key = tuple[str, ...]


class Expectations:
    """The requests that the API server has taken for one job and whose effect was not seen so far."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        """elapsed: seconds that never step back."""
        self._elapsed = elapsed
        self._until: dict[_Key, float] = {}

    def add(self, action: Action) -> None:
        """An action was carried out."""
        key = _key(action)
        if key is not None:
            self._until[key] = self._elapsed() + _SECONDS

    def without(self, todo: Sequence[Action]) -> list[Action]:
        """Those that are still to be done. What nobody asks for any more has been seen."""
        wanted, now = {_key(action) for action in todo}, self._elapsed()
        self._until = {key: time for key, time in self._until.items() if key in wanted and time > now}
        return [action for action in todo if _key(action) not in self._until]

    def due_in(self) -> float | None:
        """Seconds until one would be done again; None when there is none."""
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
