"""Pods that have a node and no container: a volume, the network or the image is missing, and no container says so."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dtj.api.reasons import Reason
from dtj.status.pods import PodView
from dtj.status.times import seconds_since

_SECONDS = 30.0
"""A container begins within seconds of its pod's scheduling, unless its image is large."""


def not_started(
    why: tuple[str, str] | None, pods: Iterable[PodView], now: datetime
) -> tuple[tuple[str, str] | None, list[float]]:
    """Return reason and message of the first pod that has had a node for long and has no container.

    Return also the seconds until the next pod has waited for long. why: a known obstacle, which is returned as it is.
    """
    if why is not None:
        return why, []
    waiting = {
        pod: seconds_since(pod.scheduled_at, now)
        for pod in pods
        if pod.unstarted and pod.scheduled_at is not None and not pod.deleting
    }
    left = sorted(_SECONDS - waited for waited in waiting.values() if waited < _SECONDS)[:1]
    late = [pod for pod, waited in waiting.items() if waited >= _SECONDS]
    if not late:
        return None, left
    pod = min(late, key=lambda each: (each.role, each.index))
    where = f"{pod.name} on {pod.node} has no container yet (volume, network or image)"
    return (Reason.POD_NOT_STARTED, f"{where}: kubectl describe pod {pod.name}"), left
