"""What a job waits for: the start deadline, the TTL of a finished job, and a spec of which pods can be made."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from dtj.api.condition_types import ConditionType
from dtj.api.failure_classes import OBSTACLES, OperatorFailureClass
from dtj.api.job import Fault, in_a_line
from dtj.api.reasons import Reason
from dtj.api.status import Failure, JobStatus, Phase
from dtj.api.unreadable import AnyJob
from dtj.status.backoff import pause
from dtj.status.decision import Decision
from dtj.status.draft import LONGEST_CONDITION, Draft
from dtj.status.failure import Loss
from dtj.status.observed import Expected, Observed, hindered
from dtj.status.pods import PodView
from dtj.status.times import seconds_since, written_time


def no_pods(draft: Draft, faults: Sequence[Fault], *, waits: bool) -> tuple[str, str]:
    """Say why no pod is created. waits: whether the faults may go without a change of the job."""
    reason = Reason.NAMESPACE_FULL if waits else Reason.SPEC_INVALID
    message = in_a_line(faults, LONGEST_CONDITION)
    draft.set(ConditionType.CREATED, True, reason, message)
    return reason, message


def start_left(draft: Draft) -> float | None:
    """Return the seconds until the start deadline; None without a deadline or after all needed replicas have run.

    The deadline counts from the start of the job, from its resumption, or from `retry_begins`.
    """
    status, deadline = draft.job.status, draft.job.run_policy.start_deadline_seconds
    if (
        deadline is None
        or draft.start_time is None
        or (status.all_running_time and not status.holds(ConditionType.RESTARTING))
    ):
        return None
    waited = seconds_since(draft.start_time, draft.now)
    if status.retry_time is not None:
        # A job that was resumed, or a continued run of `dtj run`, may have started after its last retry.
        waited = min(waited, seconds_since(status.retry_time, draft.now))
    return deadline - waited


def retry_begins(draft: Draft, loss: Loss) -> str | None:
    """Return the time from which the start deadline of a retry counts: the end of the pause.

    A loss by the infrastructure before all replicas ran does not restart the deadline, because such losses have no
    other limit. Failures of the program have the backoff limit.
    """
    status = draft.job.status
    all_ran = status.all_running_time is not None and not status.holds(ConditionType.RESTARTING)
    if loss.infrastructure and not all_ran:
        return status.retry_time
    return written_time(draft.now + timedelta(seconds=pause(draft.status())))


def too_late(
    draft: Draft, expected: Expected, observed: Observed, pods: Sequence[PodView], why: tuple[str, str] | None
) -> JobStatus:
    """Return the status of a job whose start deadline has passed. why: reason and message of the known obstacle."""
    running = draft.job.status.condition(ConditionType.RUNNING)
    if why is None and running is not None and running.reason in OBSTACLES:
        # A new operator has not made the request that the API server refuses. Use the stored obstacle.
        why = running.reason, running.message
    absent = [
        pod
        for pod in pods
        if pod.name in expected.needed and not pod.succeeded and not (pod.running and pod.ready)
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
    again = draft.job.status.condition(ConditionType.RESTARTING)
    if again is not None and draft.job.status.holds(ConditionType.RESTARTING):
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


def after_the_end(job: AnyJob, status: JobStatus, now: datetime) -> Decision:
    """Return the status of a job that has ended, and delete the job after its TTL, as a Kubernetes Job."""
    ttl, ended = job.run_policy.ttl_seconds_after_finished, status.completion_time
    if ttl is None or ended is None:
        return Decision(status)
    left = ttl - seconds_since(ended, now)
    return Decision(status, look_again=left) if left > 0 else Decision(status, expired=True)
