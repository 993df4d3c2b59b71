"""`status` of a DistributedTrainingJob."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, WithJsonSchema

from dtj.api.base import ApiModel
from dtj.api.condition_types import ConditionType
from dtj.api.failure_classes import FAILURE_CLASSES
from dtj.api.reported import (
    Count,
    Measured,
    Percent,
    ReportedNames,
    ReportedSentence,
    ReportedSource,
    ReportedTime,
    ReportedUri,
)
from dtj.api.shown import enumerated

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339, UTC, whole seconds."""


MOST_SKIPPED = 3


class Phase(StrEnum):
    """Where a job is, in one word."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One condition, as metav1.Condition."""

    type: Annotated[ConditionType, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 316})] = (
        Field(
            description=f"{enumerated(ConditionType, 'or')}. Other controllers may set conditions of other types."
        )
    )
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, in one CamelCase word."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, in a sentence."""
    last_transition_time: Time
    """When status changed last."""
    observed_generation: int = 0
    """The generation of the spec that this was computed from."""


class ReplicaStatus(ApiModel):
    """How many pods of a role are in which state, in the present attempt."""

    desired: int = 0
    """Pods asked for."""
    active: int = 0
    """Pods waiting to run or running; when the job has ended, without those that end with it."""
    ready: int = 0
    """Running pods that answer."""
    succeeded: int = 0
    """Pods that ended with exit code 0."""
    failed: int = 0
    """Pods that ended otherwise."""


class Restarts(ApiModel):
    """How often the job was started again, by cause."""

    application: int = 0
    """After failures of the program; counts against runPolicy.backoffLimit."""
    infrastructure: int = 0
    """After lost pods or nodes, evictions and preemptions."""
    evaluator: int | None = None
    """Of the evaluator alone, whatever the cause: the training does not notice."""

    @property
    def of_training(self) -> int:
        """How often the training was started again, whatever the cause."""
        return self.application + self.infrastructure


class ProgressStatus(ApiModel):
    """How far training is, as rank 0 reports it."""

    step: Count = None
    """Optimizer steps done."""
    total_steps: Count = None
    """Optimizer steps in all."""
    epoch: Count = None
    """Epoch in work, from 1."""
    percent: Percent = None
    """step of totalSteps."""
    examples_per_second: Measured = None
    """Examples a second over all ranks, lately."""
    steps_per_second: Measured = None
    """Optimizer steps a second, lately, where the program does not say how many examples a step has."""
    loss: Measured = None
    """Training loss, lately."""
    accuracy: Measured = None
    """Test accuracy, 0 to 1, when last measured."""
    eta_seconds: Measured = None
    """Seconds that training still takes at the present rate."""
    applied_twice: Count = None
    """Batches that asynchronous parameter servers applied again after a loss, in all attempts."""
    export_error: ReportedSentence = None
    """Why the final model was not exported, by its framework or to ONNX."""
    source: ReportedSource = None
    """Where these figures come from, if the program does not report them: Program (its rows in metrics.jsonl),
    TensorBoard (its event files), Output, or TrustedOutput (DTJ_READ_OUTPUT is trusted)."""
    updated_time: ReportedTime = None
    """When rank 0 reported this."""


class CheckpointStatus(ApiModel):
    """The newest complete checkpoint in the bucket."""

    step: Count = None
    """Step at which it was made."""
    time: ReportedTime = None
    """When its upload was complete."""
    uri: ReportedUri = None
    """Where it is."""
    new: ReportedNames = None
    """Up to three of the newest names in it."""


class PodCheckpointStatus(ApiModel):
    """A complete checkpoint on the disk of the pod of rank 0, or of the chief, that the bucket does not have."""

    number: Count = None
    """Orders the checkpoints of a claim."""
    claim: Count = None
    """The claim; without artifacts the attempt."""
    step: Count = None
    """Step at which it was made."""
    time: ReportedTime = None
    """When it was complete."""


class RestoredStatus(ApiModel):
    """The checkpoint that an attempt restored. Not told of checkpoints by dtj_trainer's save, which are complete."""

    attempt: Count = None
    """The attempt."""
    uri: ReportedUri = None
    """Where the checkpoint is."""
    first_step: Count = None
    """The first step that the program reported since."""


class ResumedFromStatus(ApiModel):
    """The checkpoint of the job itself from which its user resumed it."""

    uri: str
    """The value of spec.artifacts.resumeUri."""
    attempt: int
    """The attempt that restored it first. A later one restores it while there is none of this attempt or after it."""

    @property
    def checkpoint(self) -> str:
        """Where the checkpoint is. A slash at the end of `uri` only makes it another value."""
        return self.uri.removesuffix("/")


class ArtifactsStatus(ApiModel):
    """What is in the bucket."""

    uri: ReportedUri = None
    """The job's own prefix."""
    checkpoint: CheckpointStatus | None = None
    """The newest complete checkpoint."""
    restored: RestoredStatus | None = None
    """The checkpoint from which the last attempt went on."""
    model: ReportedUri = None
    """The final model."""
    tensorboard: ReportedUri = None
    """TensorBoard event files."""


class TensorBoardStatus(ApiModel):
    """The job's own TensorBoard."""

    url: str | None = None
    """Where it is, in the cluster."""
    ready: bool = False
    """Whether it answers."""
    message: str | None = None
    """Why it can't be made, where the API server says so."""


class Failure(ApiModel):
    """Why the job, or its last failed attempt, ended."""

    attempt: int | None = None
    """The attempt that failed."""
    role: str | None = None
    """Role of the replica at fault."""
    index: int | None = None
    """Its index in the role."""
    rank: int | None = None
    """Its rank, where one process is at fault."""
    pod: str | None = None
    """Its pod."""
    node: str | None = None
    """The node on which it ran."""
    exit_code: int | None = None
    """0 to 255; 128+n by signal n."""
    signal: int | None = None
    """The signal that ended it."""
    failure_class: str | None = Field(
        default=None, alias="class", description=f"{enumerated(FAILURE_CLASSES, 'or')}."
    )
    message: str | None = None
    """The cause in a sentence."""
    last_log_lines: list[str] | None = None
    """At most 20 lines that it printed last."""

    @property
    def source(self) -> str:
        """What failed, in a few words: `rank 1 in mnist-worker-1`."""
        rank = None if self.rank is None else f"rank {self.rank}"
        replica = f"{self.role}-{self.index}" if self.role else None
        return " in ".join(filter(None, (rank, self.pod or replica)))


class JobStatus(ApiModel):
    """What became of the job so far."""

    observed_generation: int | None = None
    """The generation of the spec that this was computed from."""
    phase: Phase | None = Field(default=None, description=f"{enumerated(Phase, 'or')}.")
    state: str | None = None
    """The phase, or in its place the lasting condition that a person must know, such as Stalled, Unschedulable,
    ImagePullBackOff or OOMKilled."""
    message: str | None = None
    """Why, in one line; none where the state says all."""
    gpus: int | None = None
    """GPUs, or other accelerators, that the job asks for at its present size, over all replicas; none for a job
    without them. Devices of resourceClaims do not count."""
    conditions: list[Condition] = Field(default=[], description=f"{', '.join(ConditionType)}.")
    replica_statuses: dict[str, ReplicaStatus] = {}
    """Pods by role."""
    completed_indexes: dict[str, str] | None = None
    """The replicas of the present attempt that have completed, by role, as completedIndexes of a Kubernetes Job:
    1,3-5. Only where pods train in step, as in TorchDistributed. Their pods may go before the job ends."""
    start_time: Time | None = None
    """When the operator took the job up, or it was resumed; none while it is suspended."""
    all_running_time: Time | None = None
    """When all ranks ran first: of the present attempt, where an attempt is a start of all of them."""
    retry_time: Time | None = None
    """From when on replicas could start again, after the pause: runPolicy.startDeadlineSeconds counts from then, also
    over retries that the cluster ended before all of them ran."""
    restart_time: Time | None = None
    """When the job, or replicas of it, were started again last: the pause before counts from then."""
    trained_time: Time | None = None
    """When the training came to its end, where an evaluator is waited for since:
    parameterServer.evaluatorTimeoutSeconds counts from then."""
    nothing_kept: bool | None = None
    """True where an evaluator is waited for, and the training has left neither a checkpoint nor a model."""
    completion_time: Time | None = None
    """When the job succeeded or failed."""
    attempt: int = 0
    """Which attempt this is, from 1: one more with each restart of the job or of replicas of it, and each time
    that it goes on after it was suspended."""
    replica_attempts: dict[str, int] | None = None
    """In which attempt replicas were started that have been started again alone, by <role>-<index>; the others: 1.
    Only where a strategy restarts less than the whole job."""
    restarts: Restarts = Restarts()
    """How often the job, or replicas of it, were started again, by cause."""
    restarts_in_a_row: int | None = None
    """How many of them without 10 minutes of training in between: the pause before the next one grows with it."""
    ssh_secret: str | None = None
    """Name of the Secret with the job's ssh key, where its strategy needs one."""
    node_failures: dict[str, int] | None = None
    """How often the job lost pods on a node, by the node's name (runPolicy.avoidNodeAfterFailures)."""
    progress: ProgressStatus | None = None
    """How far training is."""
    step_time: Time | None = None
    """When the operator saw progress.step move last; only with runPolicy.stallTimeoutSeconds."""
    artifacts: ArtifactsStatus | None = None
    """What is in the bucket."""
    pod_checkpoint: PodCheckpointStatus | None = None
    """A checkpoint that only a pod of the running attempt has. It goes with the pod. It changes together with
    progress or artifacts, so it may be older than the newest one."""
    skipped_checkpoints: list[str] | None = None
    """Checkpoints from which attempts failed before their first step: the next attempt restores another one. None
    once there is a newer checkpoint, or the job is resumed."""
    resumed_from: ResumedFromStatus | None = None
    """The checkpoint to which the user went back last (dtj resume --checkpoint)."""
    tensorboard: TensorBoardStatus | None = None
    """The job's own TensorBoard; none where spec.tensorboard asks for none, or the job is suspended."""
    failure: Failure | None = None
    """Why the job, or its last failed attempt, ended."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, if there is one."""
        return next((c for c in self.conditions if c.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition of that type is True."""
        found = self.condition(kind)
        return found is not None and found.status == ConditionStatus.TRUE

    @property
    def checkpoints_to_skip(self) -> list[str]:
        """The folders of the checkpoints that the next attempt does not restore. After the failures of
        MOST_SKIPPED checkpoints, checkpoints are not the cause, and the newest one is restored again.
        """
        skipped = self.skipped_checkpoints or []
        return [uri.rpartition("/")[2] for uri in skipped] if len(skipped) < MOST_SKIPPED else []

    @property
    def current_attempt(self) -> int:
        """The number of the attempt that runs, or of the first one while the job has not begun."""
        return max(self.attempt, 1)

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed for good."""
        return self.holds(ConditionType.SUCCEEDED) or self.holds(ConditionType.FAILED)
