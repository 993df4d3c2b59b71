"""Remembers replicas that have succeeded, so that the loss of a completed pod does not count as a failure.

A completed pod may disappear before the job ends. For example, an autoscaler removes the nodes of other ranks while
rank 0 still exports and uploads. `evaluate` calls the functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from dtj.api.shape import Shape
from dtj.api.stored_job import AnyJob
from dtj.status.failure import SETTLE_SECONDS, is_complete
from dtj.status.pods import Exit, PodSet, PodView
from dtj.status.times import read_time, seconds_since

MOST_REPLICAS = 100_000
"""An upper bound of the replicas of a role. It limits the work for an invalid `completedIndexes` in a status."""


def with_completed(job: AnyJob, shape: Shape, pods: PodSet) -> tuple[dict[str, str] | None, PodSet]:
    """Return the indexes of the attempt's completed replicas by role, and its pods with those of these replicas.

    A completed pod that is gone, or is being removed, is shown as it was. A suspended job starts all of them again.
    """
    if not shape.completes or job.run_policy.suspend:
        return None, pods
    leader = pods.named.get(shape.decisive[0])
    complete = {
        pod.name
        for pod in pods.unusual
        if pod.name in shape.completes and is_complete(pod) and not is_needed_again(pod, leader, shape)
    }
    if not complete and not job.status.completed_indexes:
        return None, pods
    indexes = {}
    shown = dict(pods.named)
    for role, names in shape.roles.items():
        known = set(indexes_in((job.status.completed_indexes or {}).get(role, "")))
        done = [index for index, name in enumerate(names) if name in complete or index in known]
        if done:
            indexes[role] = indexes_text(done)
        for index in done:
            shown[names[index]] = _as_completed(shown.get(names[index]), names[index], role, index, shape)
    return indexes or None, PodSet(shown.values())


def completed_without(
    indexes: Mapping[str, str] | None, shape: Shape, again: Collection[str]
) -> dict[str, str] | None:
    """Return the indexes of completed replicas without those of the pods in `again`, which start again."""
    stay = {
        role: indexes_text(i for i in indexes_in(text) if shape.roles[role][i] not in again)
        for role, text in (indexes or {}).items()
    }
    return {role: text for role, text in stay.items() if text} or None


def is_needed_again(pod: PodView, leader: PodView | None, shape: Shape) -> bool:
    """Return whether a pod succeeded after its leader failed and before the next leader trained.

    A leader that ends closes its queues. A worker that waits in a queue then sees the end of the input
    (MonitoredTrainingSession catches OutOfRangeError). The next leader would wait for this worker without end.
    leader: the decisive pod of the present attempt, if that pod exists.
    """
    if pod.attempt >= shape.attempts[shape.decisive[0]]:
        return False
    if leader is None or not leader.running:
        return True
    begun, finished = leader.scheduled_at, pod.exit.finished if pod.exit else None
    if not begun or not finished:
        return False
    # Allow SETTLE_SECONDS between the end of the program and the end of its pod: the pod uploads files in between.
    return seconds_since(begun, read_time(finished)) <= SETTLE_SECONDS


def with_shown(observed: PodSet, pods: Sequence[PodView]) -> Sequence[PodView]:
    """Return the observed pods, and those of `pods` that only the status knows: no such pod is created again."""
    if pods is observed:
        return observed
    return [*observed, *(pod for pod in pods if pod.name not in observed.named)]


def _as_completed(pod: PodView | None, name: str, role: str, index: int, shape: Shape) -> PodView:
    if pod is not None and not (pod.deleting or pod.disrupted):
        return pod
    if pod is not None:
        return replace(pod, phase="Succeeded", deleting=False, disrupted=False, reason="", delete_by=None)
    return PodView(
        name=name,
        uid="",
        role=role,
        index=index,
        attempt=shape.attempts[name],
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
    """Yield the indexes of a text such as `1,3-5,7`. Invalid parts, which a user may have written, yield nothing."""
    for run in text.split(","):
        first, _, last = run.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            yield from range(int(first), min(int(last or first), MOST_REPLICAS) + 1)
