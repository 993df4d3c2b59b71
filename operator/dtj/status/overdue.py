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
"""How long after a pod's time has come a kubelet that lives has removed it: 16 s were seen of a 1.20 one. It also
covers clocks of several API servers, of which one writes the time, that differ."""


_MOST_NAMES = 8


def force_in(pod: PodView, now: datetime) -> float | None:
    """Return the seconds until the pod is force-deleted; None if the pod is not being deleted or force has no effect.

    Force has no effect on a pod that a finalizer holds. A pod keeps its whole grace period unless its node is silent.
    """
    if pod.told_to_end is None or not pod.grace_seconds:
        return None
    grace = 0.0 if pod.silent else pod.grace_seconds
    return grace + FORCE_SLACK_SECONDS - (now - pod.told_to_end).total_seconds()


def overdue(pods: Iterable[PodView], now: datetime) -> list[PodView]:
    """Return the pods to force-delete now."""
    return [pod for pod in pods if (left := force_in(pod, now)) is not None and left <= 0]


def next_due(pods: Iterable[PodView], now: datetime) -> float | None:
    """Return the seconds until the next pod is force-deleted; None if no pod will be."""
    return min((left for pod in pods if (left := force_in(pod, now)) is not None and left > 0), default=None)


def with_overdue(decision: Decision, pods: Sequence[PodView], now: datetime) -> Decision:
    """The decision, with the pods that are overdue and a look when the next one will be."""
    looks = [look for look in (decision.look_again, next_due(pods, now)) if look is not None]
    force = frozenset(pod.name for pod in overdue(pods, now))
    return replace(decision, look_again=min(looks, default=None), pods=replace(decision.pods, force=force))


def describe_overdue(pod: PodView) -> str:
    """Describe why a pod is force-deleted. The message is constant for a pod."""
    why = "does not answer" if pod.silent else f"has not ended it within {pod.grace_seconds:.0f} s"
    return (
        f"pod {pod.name} of attempt {pod.attempt}, which was to end by {pod.delete_by}, is deleted by force: "
        f"its node {pod.node} {why}, and may still run it"
    )


def describe_ending(pods: Iterable[PodView]) -> str:
    """The pods for whose end a job waits, in words."""
    # Those whose node is silent first: a person can do something about them.
    ordered = sorted(pods, key=lambda pod: (not pod.silent, pod.name))
    return some(
        [f"{pod.name} (node {pod.node} does not answer)" if pod.silent else pod.name for pod in ordered]
    )


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else ""
    return ", ".join(names[:_MOST_NAMES]) + more
