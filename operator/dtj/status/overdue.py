"""Pods that were told to end and are still there: when they are taken away by force.

Only a kubelet can confirm that a pod has ended. On a node that is lost nobody does, and the pod stays `Terminating`
for ever. Taken away by force it is gone for the API server; what it ran may go on where the node is only cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from dtj.status.draft import Evaluation
from dtj.status.pods import PodView

FORCE_SLACK_SECONDS = 30.0
"""How long after a pod's time has come a kubelet that lives has removed it: 16 s were seen of a 1.20 one. It also
covers clocks of several API servers, of which one writes the time, that differ."""


_MOST_NAMES = 8


def force_in(pod: PodView, now: datetime) -> float | None:
    """Seconds until the pod is to be taken away by force; None: it is not told to end, or force is of no more use,
    as for one that a finalizer holds.

    A pod gets its whole grace, unless its node does not answer: nobody is there who would use it.
    """
    if pod.told_to_end is None or not pod.grace_seconds:
        return None
    grace = 0.0 if pod.silent else pod.grace_seconds
    return grace + FORCE_SLACK_SECONDS - (now - pod.told_to_end).total_seconds()


def overdue(pods: Iterable[PodView], now: datetime) -> list[PodView]:
    """The pods to take away by force now."""
    return [pod for pod in pods if (left := force_in(pod, now)) is not None and left <= 0]


def next_due(pods: Iterable[PodView], now: datetime) -> float | None:
    """Seconds until the next pod is due; None when none will be."""
    return min((left for pod in pods if (left := force_in(pod, now)) is not None and left > 0), default=None)


def with_overdue(evaluation: Evaluation, pods: Sequence[PodView], now: datetime) -> Evaluation:
    """The evaluation, with the pods that are overdue and a look when the next one will be."""
    looks = [look for look in (evaluation.look_again, next_due(pods, now)) if look is not None]
    force = frozenset(pod.name for pod in overdue(pods, now))
    return replace(
        evaluation, look_again=min(looks, default=None), pods=replace(evaluation.pods, force=force)
    )


def describe_overdue(pod: PodView) -> str:
    """Why a pod is taken away, in a sentence that stays the same for it."""
    why = "does not answer" if pod.silent else f"has not ended it within {pod.grace_seconds:.0f} s"
    return (
        f"pod {pod.name} of attempt {pod.attempt}, which was to be gone by {pod.delete_by}, is deleted by force: "
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
