"""The limit of a job's wait for its pods (runPolicy.startDeadlineSeconds), and pods with a node and no container.

`evaluate` calls the functions while not all pods run. The pause before a restart is in `restart_policy`, and the wait
in a queue in `suspension`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from dtj.api.reasons import OBSTACLES, OperatorFailureClass, Reason
from dtj.api.shape import Shape
from dtj.api.status import ConditionType, Failure, JobStatus, Phase
from dtj.status.draft import Draft
from dtj.status.failure import Loss
from dtj.status.observed import Observed, hindered
from dtj.status.pods import PodView
from dtj.status.restart_policy import pause
from dtj.status.times import seconds_since, written_time


def start_left(draft: Draft) -> float | None:
    """Return the seconds until the start deadline; None without a deadline or after all needed replicas have run.

    The deadline counts from the start of the job, from its resumption, or from `retry_begins`.
    """
    status, deadline = draft.job.status, draft.job.run_policy.start_deadline_seconds
    if (
        deadline is None
        or draft.start_time is None
        or (status.all_running_time and ConditionType.RESTARTING not in status.conditions.holding)
    ):
        return None
    waited = seconds_since(draft.start_time, draft.now)
    if status.retry_time is not None:
        # Take the shorter wait: a job that was resumed, or that `dtj run` continues, has started after its last
        # retry.
        waited = min(waited, seconds_since(status.retry_time, draft.now))
    return deadline - waited


def retry_begins(draft: Draft, loss: Loss) -> str | None:
    """Return the time from which the start deadline of a retry counts: the end of the pause.

    A loss by the infrastructure before all replicas ran does not restart the deadline, because such losses have no
    other limit. Failures of the program have the backoff limit.
    """
    status = draft.job.status
    all_ran = (
        status.all_running_time is not None and ConditionType.RESTARTING not in status.conditions.holding
    )
    if loss.infrastructure and not all_ran:
        return status.retry_time
    return written_time(draft.now + timedelta(seconds=pause(draft.status())))


def too_late(
    draft: Draft, shape: Shape, observed: Observed, pods: Sequence[PodView], why: tuple[str, str] | None
) -> JobStatus:
    """Return the status of a job whose start deadline has passed. why: reason and message of the known obstacle."""
    running = draft.job.status.conditions.by_type.get(ConditionType.RUNNING)
    if why is None and running is not None and running.reason in OBSTACLES:
        # A restarted operator does not know yet that the API server refuses a pod. Use the reason in the stored
        # status.
        why = running.reason, running.message
    absent = [
        pod
        for pod in pods
        if pod.name in shape.needed and not pod.succeeded and not (pod.running and pod.ready)
    ]
    known = why is not None and why[0] in OBSTACLES
    pod = hindered(absent) if known and observed.refusal is None else None
    attempt, deadline = draft.attempt, draft.job.run_policy.start_deadline_seconds
    message = f"not all pods ran in {deadline} s (runPolicy.startDeadlineSeconds)"
    if why is not None:
        message += f"; it waited for: {why[1]}"
    elif absent:
        pod = absent[0]
        message += f"; it waited for {pod.name}, {_state(pod)}: see the events of the pod"
    again = draft.job.status.conditions.by_type.get(ConditionType.RESTARTING)
    if again is not None and ConditionType.RESTARTING in draft.job.status.conditions.holding:
        message += f"; the last restart was after {again.message}"
    draft.failure = Failure(
        attempt=attempt,
        role=pod.role if pod else None,
        index=pod.index if pod else None,
        pod=pod.name if pod else None,
        node=pod.node if pod else None,
        failure_class=why[0] if why and known else OperatorFailureClass.START_DEADLINE_EXCEEDED,
        message=message,
    )
    return draft.finish(Phase.FAILED, Reason.START_DEADLINE_EXCEEDED, message)


def _state(pod: PodView) -> str:
    if not pod.scheduled:
        return "which has no node yet"
    return "which runs but is not ready" if pod.phase == "Running" else f"which {pod.node} has not started"


# Pods with a node and without a container. A volume, the network or the image is missing, but no container status
# tells which.

_SECONDS = 30.0
"""Seconds from a pod's scheduling after which a missing container is reported. A large image may take longer."""


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
