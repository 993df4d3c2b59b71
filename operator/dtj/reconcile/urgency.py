"""Which changes of a job's pods call for a pass at once, and which may wait for the next."""

from __future__ import annotations

from collections import Counter

from dtj.reconcile.view import Key, OwnedPod

_PENDING, _RUNNING, _READY, _ENDING = range(4)


class PodUrgency:
    """Knows how far the pods of each job are."""

    def __init__(self) -> None:
        self._pods: dict[Key, Counter[int]] = {}
        """How many pods of a job are how far."""

    def __call__(self, key: Key, before: OwnedPod | None, after: OwnedPod | None) -> bool:
        """Whether a change of a pod may let its job go on, or stop. None: the pod is not there.

        A pod that came was made by a pass. Pods that start let a job go on when the last of them does. A node, or an
        image that is pulled, changes figures of the status alone.
        """
        counts = self._pods.setdefault(key, Counter())
        was, now = _how_far(before), _how_far(after)
        counts[was] -= before is not None
        counts[now] += after is not None
        if not counts.total():
            del self._pods[key]
        if after is None or _end(after) != (_end(before) if before else _NO_END):
            return True
        return now > was and not any(counts[far] for far in range(now))


def _how_far(pod: OwnedPod | None) -> int:
    if pod is None or pod.view.phase == "Pending":
        return _PENDING
    if not pod.view.running:
        return _ENDING
    return _READY if pod.view.ready else _RUNNING


def _end(pod: OwnedPod) -> tuple[object, ...]:
    view = pod.view
    return (
        view.phase in ("Succeeded", "Failed"),
        view.ended,
        view.exit,
        view.deleting,
        view.disrupted,
        view.silent,
    )


_NO_END = False, False, None, False, False, False
