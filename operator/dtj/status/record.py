"""The condition `Recorded`, and when a job needs a record pod: at an end that no pod recorded, or a long suspension.

A record pod writes `end.json` into the bucket. A job has at most one record pod at a time. The condition alone tells
whether the job still needs a record pod. `reconcile.record` creates and deletes the pod.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from dtj.api.job import Job
from dtj.api.reasons import Reason
from dtj.api.status import Condition, Conditions, ConditionStatus, ConditionType, JobStatus, Phase
from dtj.status.decision import Decision
from dtj.status.draft import LONGEST_CONDITION
from dtj.status.times import seconds_since, written_time
from dtj_trainer.contract import END_FILE

SUSPENDED_SECONDS = 60.0
"""Seconds of a suspension until the suspension is recorded: Kueue often suspends a job for a shorter time."""
POD_SECONDS = 300.0
"""Seconds from the creation of a record pod, or from the first refusal of one, until the operator gives up."""
TURN_SECONDS = 3600.0
"""Seconds after a job's end in which the operator may create its record pod. Few jobs have record pods at a time."""
_OURS = (Reason.SUSPENSION_RECORDED, Reason.RECORD_REFUSED, Reason.RECORD_GIVEN_UP)


@dataclass(frozen=True, slots=True)
class RecordPod:
    """The record pod of a job."""

    name: str
    uid: str
    created: str
    """When the pod was created, RFC 3339."""
    deleting: bool = False
    succeeded: bool = False
    fault: str | None = None
    """Why the pod has not written the record, and another pod would not write it either."""
    lost: bool = False
    """Whether the cluster took the pod away, so that another pod may write the record."""
    held: str | None = None
    """What keeps the pod from being scheduled; None: nothing does."""


@dataclass(frozen=True)
class Refusal:
    """The API server refuses the record pod."""

    why: str
    since: str
    """When the API server first refused the pod, RFC 3339."""
    lasting: bool
    """Whether the API server would refuse the same pod again, because the pod is invalid."""


@dataclass(frozen=True)
class Recording:
    """What a pass does about the record of a job."""

    decision: Decision
    wanted: bool = False
    """Whether the job needs a record pod."""


def recording(
    job: Job, decision: Decision, pod: RecordPod | None, refusal: Refusal | None, now: datetime
) -> Recording:
    """Set the condition `Recorded`, and decide whether the job needs a record pod.

    job: a job that keeps artifacts, with its stored status. pod: its record pod of the attempt in the decision.
    refusal: why the API server refused the record pod last.
    """
    status = decision.status
    if status.conditions.finished:
        return _ended(job, decision, pod, refusal, now)
    suspended = status.conditions.by_type.get(ConditionType.SUSPENDED)
    # A job that was suspended before it had pods has no history in the bucket that could be completed.
    if status.phase is not Phase.SUSPENDED or suspended is None or status.attempt < 2:
        return Recording(decision)
    if ConditionType.SUSPENDED not in status.conditions.holding or _is_about(status, status.attempt):
        return Recording(decision)
    left = SUSPENDED_SECONDS - seconds_since(suspended.last_transition_time, now)
    if left > 0:
        return Recording(_soon(decision, left))
    return _by_pod(job, decision, pod, refusal, now)


def as_recorded(job: Job, status: JobStatus, pod: str, now: datetime) -> JobStatus:
    """Return the status that a job has when its record pod of this name has written the record."""
    reason = Reason.END_RECORDED if status.conditions.finished else Reason.SUSPENSION_RECORDED
    return _with(job, status, reason, _wrote(pod), now)


def _ended(
    job: Job, decision: Decision, pod: RecordPod | None, refusal: Refusal | None, now: datetime
) -> Recording:
    status, known = decision.status, decision.status.conditions.by_type.get(ConditionType.RECORDED)
    if not job.finished:
        # The job ends in this pass. If one of its pods has recorded the success, the condition is already set.
        if known is not None and known.reason == Reason.END_RECORDED:
            return Recording(decision)
        pending = _with(job, status, Reason.RECORD_PENDING, f"a record pod is to write {END_FILE}", now)
        return Recording(replace(decision, status=pending), wanted=True)
    if known is None or known.reason != Reason.RECORD_PENDING:
        return Recording(decision)  # A job that ended under an earlier release has no condition.
    ended = status.completion_time or known.last_transition_time
    result = _by_pod(job, decision, pod, refusal, now)
    if result.wanted and pod is None and seconds_since(ended, now) > TURN_SECONDS:
        late = (
            f"the operator could not create a record pod within {TURN_SECONDS / 60:.0f} minutes after the job's end, "
            "because too many jobs ended at the same time"
        )
        return Recording(replace(decision, status=_with(job, status, Reason.RECORD_GIVEN_UP, late, now)))
    # The record may be late because other jobs came first. Do not delete the job by its TTL while the operator still
    # tries to record the end.
    left = TURN_SECONDS + POD_SECONDS - seconds_since(ended, now)
    now_known = result.decision.status.conditions.by_type.get(ConditionType.RECORDED)
    if decision.expired and left > 0 and now_known is not None and now_known.reason == Reason.RECORD_PENDING:
        return replace(result, decision=_soon(replace(result.decision, expired=False), left))
    return result


def _by_pod(
    job: Job, decision: Decision, pod: RecordPod | None, refusal: Refusal | None, now: datetime
) -> Recording:
    """Set the condition from the state of the record pod, or from the refusal to create the pod."""
    status = decision.status

    def done(reason: Reason, message: str) -> Recording:
        return Recording(replace(decision, status=_with(job, status, reason, message, now)))

    if pod is None:
        if refusal is None:
            return Recording(decision, wanted=True)
        over = seconds_since(refusal.since, now) > POD_SECONDS
        if refusal.lasting or over:
            return done(Reason.RECORD_REFUSED, refusal.why)
        return Recording(decision, wanted=True)
    if pod.succeeded:
        reason = Reason.END_RECORDED if status.conditions.finished else Reason.SUSPENSION_RECORDED
        return done(reason, _wrote(pod.name))
    if pod.fault is not None:
        return done(Reason.RECORD_REFUSED, f"{pod.name}: {pod.fault}")
    left = POD_SECONDS - seconds_since(pod.created, now)
    if left <= 0:
        why = f": {pod.held}" if pod.held else ""
        return done(Reason.RECORD_GIVEN_UP, f"{pod.name} has not ended in {POD_SECONDS:.0f} s{why}")
    if pod.held and status.conditions.finished:
        held = _with(job, status, Reason.RECORD_PENDING, f"{pod.name} waits: {pod.held}", now)
        decision = replace(decision, status=held)
    return Recording(_soon(decision, left), wanted=not pod.lost)


def _wrote(pod: str) -> str:
    return f"{pod} wrote {END_FILE}"


def _is_about(status: JobStatus, attempt: int) -> bool:
    """Return whether the stored condition `Recorded` refers to the suspension after this attempt."""
    known = status.conditions.by_type.get(ConditionType.RECORDED)
    return known is not None and known.reason in _OURS and known.message.startswith(_about(attempt))


def _about(attempt: int) -> str:
    return f"suspended before attempt {attempt}: "


def _soon(decision: Decision, seconds: float) -> Decision:
    known = decision.look_again
    return replace(decision, look_again=seconds if known is None else min(known, seconds))


def _with(job: Job, status: JobStatus, reason: Reason, message: str, now: datetime) -> JobStatus:
    """Return the status with the condition `Recorded` for this reason."""
    holds = reason in (Reason.END_RECORDED, Reason.SUSPENSION_RECORDED)
    value = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    said = message if status.conditions.finished else _about(status.attempt) + message
    old = status.conditions.by_type.get(ConditionType.RECORDED)
    same = old is not None and old.status == value
    condition = Condition(
        type=ConditionType.RECORDED,
        status=value,
        reason=reason,
        message=said[:LONGEST_CONDITION],
        last_transition_time=old.last_transition_time if old is not None and same else written_time(now),
        observed_generation=job.generation,
    )
    by_type = {each.type: each for each in status.conditions} | {condition.type: condition}
    ordered = [by_type[kind] for kind in ConditionType if kind in by_type]
    return status.model_copy(update={"conditions": Conditions(ordered)})
