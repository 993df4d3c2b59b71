"""The changes of a job's pods that need a pass at once, and the changes that may wait for the next pass."""

from __future__ import annotations

from collections import Counter

from dtj.reconcile.view import Key, OwnedPod

_PENDING, _RUNNING, _READY, _ENDING = range(4)


class PodUrgency:
    """Counts the pods of each job by their stage: pending, running, ready, or ending."""

    def __init__(self) -> None:
        self._pods: dict[Key, Counter[int]] = {}
        """The number of pods in each stage, by job."""

    def __call__(self, key: Key, before: OwnedPod | None, after: OwnedPod | None) -> bool:
        """Return whether a change of a pod may advance its job or stop its job.

        A new pod is not urgent: a pass created the pod. Pods that start advance a job when the last of them starts.
        The choice of a node and the pull of an image change only figures of the status.

        before, after: the pod before and after the change; None when the pod does not exist.
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
