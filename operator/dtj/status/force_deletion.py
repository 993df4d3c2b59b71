"""Force-delete pods that did not end within their grace period.

Only a kubelet can confirm that a pod has ended. A pod on a lost node stays `Terminating` without end. Force deletion
removes the pod from the API server. The containers may still run if the node is only disconnected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from dtj.status.decision import Decision
from dtj.status.pods import PodView

FORCE_SLACK_SECONDS = 30.0
"""Seconds that a kubelet has to remove the pod after the grace period. A kubelet of Kubernetes 1.20 needed 16 s. The
rest allows for different clocks of several API servers, one of which writes the deletion time."""
_MOST_NAMES = 8


def seconds_until_force_deletion(pod: PodView, now: datetime) -> float | None:
    """Return the seconds until the pod is force-deleted; None if the pod is not being deleted or force has no effect.

    Force has no effect on a pod that a finalizer holds. A pod keeps its whole grace period unless its node is silent.
    """
    if pod.told_to_end is None or not pod.grace_seconds:
        return None
    grace = 0.0 if pod.silent else pod.grace_seconds
    return grace + FORCE_SLACK_SECONDS - (now - pod.told_to_end).total_seconds()


def pods_to_force_delete(pods: Iterable[PodView], now: datetime) -> list[PodView]:
    """Return the pods to force-delete now."""
    return [pod for pod in pods if (left := seconds_until_force_deletion(pod, now)) is not None and left <= 0]


def next_force_deletion(pods: Iterable[PodView], now: datetime) -> float | None:
    """Return the seconds until the next pod is force-deleted; None if no pod will be."""
    return min(
        (left for pod in pods if (left := seconds_until_force_deletion(pod, now)) is not None and left > 0),
        default=None,
    )


def with_force_deletion(decision: Decision, pods: Sequence[PodView], now: datetime) -> Decision:
    """Add the pods to force-delete now, and a pass at the time of the next force deletion."""
    waits = [wait for wait in (decision.look_again, next_force_deletion(pods, now)) if wait is not None]
    force = frozenset(pod.name for pod in pods_to_force_delete(pods, now))
    return replace(decision, look_again=min(waits, default=None), pods=replace(decision.pods, force=force))


def describe_force_deletion(pod: PodView) -> str:
    """Describe why a pod is force-deleted. The message is constant for a pod."""
    if pod.silent:
        # Do not wait for the end of the grace period: no kubelet reports, so none can end the pod.
        what, why = "", "does not answer"
    else:
        what = f", which should have ended by {pod.delete_by},"
        why = f"has not ended the pod within {pod.grace_seconds:.0f} s"
    return (
        f"pod {pod.name} of attempt {pod.attempt}{what} is force-deleted: "
        f"node {pod.node} {why}, and may still run the pod"
    )


def describe_ending(pods: Iterable[PodView]) -> str:
    """Describe the pods for whose end a job waits."""
    # Name pods on silent nodes first, because an administrator can repair the node. The list is cut after a few
    # names.
    ordered = sorted(pods, key=lambda pod: (not pod.silent, pod.name))
    return some([f"{pod.name}{_held_by(pod)}" for pod in ordered])


def _held_by(pod: PodView) -> str:
    if pod.silent:
        return f" (node {pod.node} does not answer)"
    return f" (its finalizer {pod.finalizers[0]} holds it)" if pod.finalizers else ""


def some(names: Sequence[str]) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else ""
    return ", ".join(names[:_MOST_NAMES]) + more
