"""Which replicas start again where a strategy does not restart the whole job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dtj.api.status import JobStatus
from dtj.status.failure import is_lost
from dtj.status.pods import PodView

_MOST_NAMES = 4


def vanished(old: JobStatus, attempts: Mapping[str, int], pods: Sequence[PodView]) -> list[str]:
    """Names of pods that were counted in the stored status and are gone without a trace.

    A pod that is not there may also be one that was not made yet: those that started again last are.
    """
    if old.all_running_time is None:
        return []  # before all ran, a pod that goes is simply made again
    there = {pod.name for pod in pods}
    gone = []
    for role, status in old.replica_statuses.items():
        known = status.active + status.succeeded + status.failed - sum(pod.role == role for pod in pods)
        missing = [name for name in attempts if _role(name) == role and name not in there]
        gone += sorted(missing, key=lambda name: attempts[name])[: max(known, 0)]
    return gone


def start_again(
    restarts_with: Mapping[str, frozenset[str]],
    decisive: Collection[str],
    pods: Sequence[PodView],
    gone: Collection[str],
) -> set[str]:
    """Names of the pods that start again after the loss of those in `pods` that are lost and of those `gone`."""
    lost = {pod.name for pod in pods if is_lost(pod)} | set(gone)
    again: set[str] = set().union(*(restarts_with.get(name, ()) for name in lost))
    # What is not there yet is made for the new attempt.
    again |= restarts_with.keys() - {pod.name for pod in pods}
    if not again.isdisjoint(decisive):
        # The training goes on from a checkpoint: it needs also those whose program had come to its end.
        again |= {pod.name for pod in pods if pod.succeeded}
    return again


def told_again(names: Collection[str], of: int) -> str:
    """The same in words."""
    if len(names) == of:
        return "all start again from the newest checkpoint"
    shown = sorted(names)
    some = ", ".join(shown[:_MOST_NAMES]) + (
        f" and {len(shown) - _MOST_NAMES} more" if shown[_MOST_NAMES:] else ""
    )
    return f"{some} {'starts' if len(shown) == 1 else 'start'} again, the others go on"


def _role(name: str) -> str:
    return name.rsplit("-", 2)[-2]
