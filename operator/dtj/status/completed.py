"""Replicas that have completed: a success that was seen stays one, whatever becomes of the pod.

A completed pod may go before the job ends: rank 0 still exports and uploads while an autoscaler removes the nodes of
the others, or a drain evicts their completed pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dtj.api.unreadable import AnyJob
from dtj.status.failure import is_complete
from dtj.status.observed import Expected
from dtj.status.pods import Exit, PodView

MOST_REPLICAS = 100_000
"""No role has as many: the bound of what a wrong text costs."""


def with_completed(
    job: AnyJob, expected: Expected, pods: Sequence[PodView]
) -> tuple[dict[str, str] | None, Sequence[PodView]]:
    """Return the indexes of the attempt's completed replicas by role, and its pods with those of these replicas.

    A completed pod that is gone, or is being removed, is shown as it was. The indexes are None unless several pods
    train in step, and restart together. A suspended job starts all of them again.
    """
    if len(expected.peers) < 2 or job.run_policy.suspend:
        return None, pods
    complete = {pod.name for pod in pods if pod.name in expected.peers and is_complete(pod)}
    indexes = {}
    shown = {pod.name: pod for pod in pods}
    for role, names in expected.roles.items():
        known = set(indexes_in((job.status.completed_indexes or {}).get(role, "")))
        done = [index for index, name in enumerate(names) if name in complete or index in known]
        if done:
            indexes[role] = indexes_text(done)
        for index in done:
            shown[names[index]] = _as_completed(shown.get(names[index]), names[index], role, index, expected)
    return indexes or None, list(shown.values())


def with_shown(observed: Sequence[PodView], pods: Sequence[PodView]) -> Sequence[PodView]:
    """Return the observed pods, and those of `pods` that only the status knows: no such pod is created again."""
    names = {pod.name for pod in observed}
    return [*observed, *(pod for pod in pods if pod.name not in names)]


def _as_completed(pod: PodView | None, name: str, role: str, index: int, expected: Expected) -> PodView:
    if pod is not None and not (pod.deleting or pod.disrupted):
        return pod
    if pod is not None:
        return replace(pod, phase="Succeeded", deleting=False, disrupted=False, reason="", delete_by=None)
    return PodView(
        name=name,
        uid="",
        role=role,
        index=index,
        attempt=expected.attempts[name],
        phase="Succeeded",
        ready=False,
        deleting=False,
        scheduled=True,
        node=None,
        ip=None,
        reason="",
        message="",
        disrupted=False,
        waiting=None,
        exit=Exit(code=0, signal=None, reason="Completed", message="", finished=None),
        ended=True,
    )


def indexes_text(indexes: Iterable[int]) -> str:
    """Return ascending indexes as `completedIndexes` of a Kubernetes Job has them: `1,3-5,7`."""
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def indexes_in(text: str) -> Iterable[int]:
    """Yield the indexes of such a text. Anybody with the right to write the status may have written it."""
    for run in text.split(","):
        first, _, last = run.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            yield from range(int(first), min(int(last or first), MOST_REPLICAS) + 1)
