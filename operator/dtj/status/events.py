"""The Kubernetes events for the change from one status of a job to the next."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from dtj.api.identity import API_VERSION, KIND, MANAGER
from dtj.api.job import Manifest
from dtj.api.reasons import QUIET, Reason
from dtj.api.status import (
    OF_UPLOADS,
    Condition,
    ConditionStatus,
    ConditionType,
    JobStatus,
    Phase,
)
from dtj.api.stored_job import AnyJob
from dtj.status.failure import describe
from dtj.status.suspension import is_suspending


@dataclass(frozen=True)
class Happening:
    """The content of one Kubernetes event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    same: str | None = None
    """Key of the event. Happenings with the same key produce one event. The default key is the message."""
    final: bool = False
    """Whether the happening is the end of the job, which always produces an event."""


def happenings(old: JobStatus, new: JobStatus) -> list[Happening]:
    """Return the events for the change from `old` to `new`."""
    if old.conditions.finished:
        return _unrecorded(old, new)
    return [*_export(old, new), *_in_place(old, new), *_course(old, new)]


def _export(old: JobStatus, new: JobStatus) -> list[Happening]:
    """Return the event of an export that failed. It may come together with the end of the job."""
    error = new.progress and new.progress.export_error
    if not error or (old.progress is not None and old.progress.export_error):
        return []
    message = f"attempt {new.attempt}: the model is not exported: {error}; the weights are saved, see docs/export.md"
    # Emit at most one event per attempt: the program may report another error each time.
    return [Happening("Warning", Reason.EXPORT_FAILED, message, same=f"attempt {new.attempt}")]


def _in_place(old: JobStatus, new: JobStatus) -> list[Happening]:
    """Return one event for each report with a higher number of restarts in place than the stored one."""
    counted = new.restarts.in_place or 0
    more = counted - (old.restarts.in_place or 0)
    if more <= 0 or new.failure is None:
        return []
    times = f", {more} times since the last report" if more > 1 else ""
    message = f"attempt {new.attempt}: {describe(new.failure)}; the ranks started again in their pods{times}"
    return [Happening("Warning", Reason.RESTARTED_IN_PLACE, message, same=f"in place {counted}")]


def _course(old: JobStatus, new: JobStatus) -> list[Happening]:
    if new.conditions.finished:
        ended = ConditionType.SUCCEEDED if new.phase is Phase.SUCCEEDED else ConditionType.FAILED
        condition = new.conditions.by_type.get(ended)
        assert condition is not None
        kind: Literal["Normal", "Warning"] = "Normal" if new.phase is Phase.SUCCEEDED else "Warning"
        return [Happening(kind, condition.reason, condition.message, final=True)]
    result = []
    created, before = (
        new.conditions.by_type.get(ConditionType.CREATED),
        old.conditions.by_type.get(ConditionType.CREATED),
    )
    if (
        created
        and created.reason in (Reason.SPEC_INVALID, Reason.NAMESPACE_FULL)
        and (not before or before.message != created.message)
    ):
        result.append(Happening("Warning", created.reason, created.message))
    slow, before = (
        new.conditions.by_type.get(ConditionType.BOTTLENECK),
        old.conditions.by_type.get(ConditionType.BOTTLENECK),
    )
    # Emit one event per attempt and kind of bottleneck, because the figures may change with every report.
    if (
        slow
        and ConditionType.BOTTLENECK in new.conditions.holding
        and (not before or before.reason != slow.reason)
    ):
        result.append(Happening("Warning", slow.reason, slow.message, same=f"attempt {new.attempt}"))
    result += _troubles(old, new)
    stalled, stands = (
        new.conditions.by_type.get(ConditionType.STALLED),
        ConditionType.STALLED in new.conditions.holding,
    )
    if stalled and stands != (ConditionType.STALLED in old.conditions.holding) and new.phase is Phase.RUNNING:
        result.append(Happening("Warning" if stands else "Normal", stalled.reason, stalled.message))
    if new.restarts.evaluator != old.restarts.evaluator and new.failure is not None:
        message = (
            f"attempt {old.attempt}: {describe(new.failure)}; the evaluator restarts, the training continues"
        )
        result.append(Happening("Warning", Reason.EVALUATOR_RESTARTING, message))
    elif ConditionType.SUSPENDED in new.conditions.holding ^ old.conditions.holding:
        condition = new.conditions.by_type.get(ConditionType.SUSPENDED)
        assert condition is not None
        result.append(_suspension(condition))
    elif (running := new.conditions.by_type.get(ConditionType.RUNNING)) and is_suspending(new):
        if not is_suspending(old):
            result.append(_suspension(running))
    elif new.attempt > max(old.attempt, 1) and ConditionType.SUSPENDED not in new.conditions.holding:
        condition = new.conditions.by_type.get(ConditionType.RESTARTING)
        result.append(Happening("Warning", Reason.JOB_RESTARTING, condition.message if condition else ""))
    elif new.phase is Phase.RUNNING and old.phase is not Phase.RUNNING:
        running = new.conditions.by_type.get(ConditionType.RUNNING)
        result.append(
            Happening(
                "Normal", Reason.JOB_RUNNING, f"attempt {new.attempt}: {running.message if running else ''}"
            )
        )
    else:
        result += _obstacle(old, new)
    return result


def _troubles(old: JobStatus, new: JobStatus) -> list[Happening]:
    """Return an event if checkpoints or files can't be uploaded: at most one for each attempt and condition."""
    found = [
        new.conditions.by_type.get(kind)
        for kind in OF_UPLOADS
        if kind in new.conditions.holding and kind not in old.conditions.holding
    ]
    return [Happening("Warning", c.reason, c.message, same=f"attempt {new.attempt}") for c in found if c]


def _unrecorded(old: JobStatus, new: JobStatus) -> list[Happening]:
    """Return the event of a finished job whose end was not recorded in the bucket."""
    before, now = (
        old.conditions.by_type.get(ConditionType.RECORDED),
        new.conditions.by_type.get(ConditionType.RECORDED),
    )
    failed = now is not None and now.reason in (Reason.RECORD_REFUSED, Reason.RECORD_GIVEN_UP)
    if now is None or not failed or (before is not None and before.reason == now.reason):
        return []
    return [Happening("Warning", now.reason, now.message)]


def _suspension(condition: Condition) -> Happening:
    # A job whose Workload was deactivated continues only after the user acts.
    kind: Literal["Normal", "Warning"] = (
        "Warning" if condition.reason == Reason.WORKLOAD_DEACTIVATED else "Normal"
    )
    return Happening(kind, condition.reason, condition.message)


def _obstacle(old: JobStatus, new: JobStatus) -> list[Happening]:
    before, now = (
        old.conditions.by_type.get(ConditionType.RUNNING),
        new.conditions.by_type.get(ConditionType.RUNNING),
    )
    if now is None or now.status == ConditionStatus.TRUE or now.reason in QUIET:
        return []
    if before is not None and (before.reason, before.message) == (now.reason, now.message):
        return []
    return [Happening("Normal" if now.reason == Reason.QUEUED else "Warning", now.reason, now.message)]


def event(job: AnyJob, happening: Happening, time: str) -> Manifest:
    """Return the Event object.

    Equal happenings of a job give the same object name, so that a restarted operator creates no duplicate.
    """
    digest = sha256(
        "\0".join((job.uid, happening.type, happening.reason, happening.same or happening.message)).encode()
    ).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{digest[:16]}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
        },
        "type": happening.type,
        "reason": happening.reason,
        "message": happening.message[:1024],
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
