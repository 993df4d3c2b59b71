"""The draft of a status, to which each policy adds its part, and the counts of pods by role.

`evaluate` makes one draft in a pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime

from dtj.api.reasons import Reason
from dtj.api.shape import Shape
from dtj.api.status import (
    ArtifactsStatus,
    Condition,
    Conditions,
    ConditionStatus,
    ConditionType,
    Failure,
    JobStatus,
    Phase,
    PodCheckpointStatus,
    ProgressStatus,
    ReplicaStatus,
    Restarts,
    ResumedFromStatus,
)
from dtj.api.stored_job import AnyJob
from dtj.status.pods import PodSet
from dtj.status.times import written_time

LONGEST_CONDITION = 1024
"""Maximum length of a condition's message, in characters."""
_STATUSES = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}


@dataclass
class Draft:
    """The draft of a status. Each field has its stored value until code assigns another one."""

    job: AnyJob
    now: datetime
    time: str = field(init=False)
    """`now` as the API writes it."""
    conditions: dict[ConditionType, Condition] = field(init=False)
    replica_statuses: dict[str, ReplicaStatus] = field(init=False)
    completed_indexes: dict[str, str] | None = field(init=False)
    start_time: str | None = field(init=False)
    all_running_time: str | None = field(init=False)
    retry_time: str | None = field(init=False)
    restart_time: str | None = field(init=False)
    trained_time: str | None = field(init=False)
    nothing_kept: bool | None = field(init=False)
    attempt: int = field(init=False)
    replica_attempts: dict[str, int] | None = field(init=False)
    restarts: Restarts = field(init=False)
    restarts_in_a_row: int | None = field(init=False)
    node_failures: dict[str, int] | None = field(init=False)
    progress: ProgressStatus | None = field(init=False)
    step_time: str | None = field(init=False)
    artifacts: ArtifactsStatus | None = field(init=False)
    pod_checkpoint: PodCheckpointStatus | None = field(init=False)
    skipped_checkpoints: list[str] | None = field(init=False)
    resumed_from: ResumedFromStatus | None = field(init=False)
    failure: Failure | None = field(init=False)

    def __post_init__(self) -> None:
        self.time = written_time(self.now)
        for name in _VALUES:
            setattr(self, name, getattr(self.job.status, name))
        self.conditions = {condition.type: condition for condition in self.job.status.conditions}

    def set(self, kind: ConditionType, holds: bool | None, reason: str, message: str) -> None:
        """Set a condition. The transition time changes only with the status of the condition.

        holds: None sets the status Unknown.
        """
        status = _STATUSES[holds]
        old = self.conditions.get(kind)
        if old is None and holds is False and kind is not ConditionType.RUNNING:
            return
        flipped = old is None or old.status != status
        self.conditions[kind] = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message[:LONGEST_CONDITION],
            last_transition_time=self.time if flipped or old is None else old.last_transition_time,
            observed_generation=self.job.generation,
        )

    def finish(self, phase: Phase, reason: str, message: str) -> JobStatus:
        """Return the status of a job that has ended."""
        ended = ConditionType.SUCCEEDED if phase is Phase.SUCCEEDED else ConditionType.FAILED
        self.set(ConditionType.RUNNING, False, reason, message)
        self.set(ConditionType.RESTARTING, False, reason, message)
        self.set(ended, True, reason, message)
        return self.status(phase=phase, completion_time=self.time)

    def status(self, **values: object) -> JobStatus:
        """Return the status with the fields of the draft and with `values`."""
        running = self.conditions.get(ConditionType.RUNNING)
        runs = (
            running is not None
            and running.status is ConditionStatus.TRUE
            and running.reason == Reason.JOB_RUNNING
        )
        if not runs:
            self.pod_checkpoint = (
                None  # The checkpoint is on the pod's disk, and another pod may replace the pod.
            )
        for kind in (ConditionType.STALLED, ConditionType.CHECKPOINT_DELAYED):
            known = self.conditions.get(kind)
            if known is not None and known.status is not ConditionStatus.FALSE and not runs:
                self.set(kind, False, Reason.NOT_RUNNING, "not all pods of the training run")
        return self.job.status.model_copy(
            update={
                **{name: getattr(self, name) for name in _VALUES},
                **values,
                "conditions": Conditions(
                    [self.conditions[kind] for kind in ConditionType if kind in self.conditions]
                ),
                "observed_generation": self.job.generation,
            }
        )


_VALUES = tuple(
    each.name for each in fields(Draft) if not each.init and each.name not in ("conditions", "time")
)
"""The fields of a status that are also fields of a draft."""


# The pods of the present attempt, and their counts by role and state.


def present(shape: Shape, pods: PodSet, attempt: int) -> PodSet:
    """Return the pods of the present attempt. If all pods restart together, pods of removed replicas belong to it."""
    if shape.restarts_with is None and pods.attempts == {attempt} == {shape.newest_attempt}:
        return pods
    others = attempt if shape.restarts_with is None else None
    return PodSet(pod for pod in pods if pod.attempt == shape.attempts.get(pod.name, others))


def earlier(shape: Shape, pods: PodSet, attempt: int) -> PodSet:
    """Return the pods of attempts before the present one. attempt: that of pods of removed replicas."""
    if min(pods.attempts, default=attempt) >= max(attempt, shape.newest_attempt):
        return PodSet()
    return PodSet(pod for pod in pods if pod.attempt < shape.attempts.get(pod.name, attempt))


def replica_statuses(shape: Shape, pods: PodSet) -> dict[str, ReplicaStatus]:
    """Count the pods of each role by state."""
    statuses = {}
    for role, names in shape.roles.items():
        of_role = [pod for pod in pods.unusual if pod.role == role]
        succeeded = sum(pod.succeeded for pod in of_role)
        failed = sum(not pod.succeeded and (pod.phase == "Failed" or pod.exit is not None) for pod in of_role)
        statuses[role] = ReplicaStatus(
            desired=len(names),
            active=pods.sizes.get(role, 0) - succeeded - failed,
            ready=pods.sizes.get(role, 0) - sum(not (pod.running and pod.ready) for pod in of_role),
            succeeded=succeeded,
            failed=failed,
        )
    return statuses
