"""`status` of a DistributedTrainingJob."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from dtj.api.base import ApiModel
from dtj.api.reasons import FAILURE_CLASSES
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

# The types of a job's conditions. The descriptions in the CRD are made from this list.


class ConditionType(StrEnum):
    """The conditions that a job can have, in the order in which the status lists them.

    `Created` and `Running` are always there. The others appear when they hold for the first time.
    """

    CREATED = "Created"
    """The operator has taken up the job."""
    RUNNING = "Running"
    """All pods that the training needs run. While the condition is False, its message says what the job waits for."""
    RESTARTING = "Restarting"
    """The training, or replicas of it, start again after a loss. Becomes False when all pods run."""
    SUSPENDED = "Suspended"
    """The user or a queue has suspended the job, and all its pods have ended."""
    SUCCEEDED = "Succeeded"
    """The program came to its end. The job has ended."""
    FAILED = "Failed"
    """The job has ended without success."""
    BOTTLENECK = "Bottleneck"
    """Parameter servers or one worker hold up the training."""
    CHECKPOINT_DELAYED = "CheckpointDelayed"
    """Files change, and have made no checkpoint for minutes: they are incomplete, or a pod's files are missing."""
    STALLED = "Stalled"
    """All pods run, and the step does not change. Unknown: the pod that reports the step does not answer."""
    ARTIFACTS_INCOMPLETE = "ArtifactsIncomplete"
    """Files of pods can't be read, the bucket refuses them, or a volume had no room for them at the restore. The
    message names the files."""
    RECORDED = "Recorded"
    """`end.json` in the bucket says how the job ended, or that it is suspended. A job without artifacts has none."""


OF_UPLOADS = (ConditionType.CHECKPOINT_DELAYED, ConditionType.ARTIFACTS_INCOMPLETE)
"""The conditions that tell of problems with the uploads of a job."""


Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time in UTC as RFC 3339, in whole seconds."""


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
    """The reason for the condition's status, in one CamelCase word."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """The reason for the condition's status, in a sentence."""
    last_transition_time: Time
    """When the condition's status changed last."""
    observed_generation: int = 0
    """The generation of the spec from which this was computed."""


class Conditions(tuple[Condition, ...]):
    """The conditions of a status, in order. The tuple is immutable, so each property is computed only once."""

    @cached_property
    def by_type(self) -> Mapping[ConditionType, Condition]:
        """The first condition of each type."""
        return {each.type: each for each in reversed(self)}

    @cached_property
    def holding(self) -> frozenset[ConditionType]:
        """The types of the conditions that are True."""
        return frozenset([kind for kind, each in self.by_type.items() if each.status == ConditionStatus.TRUE])

    @cached_property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed for good."""
        return not self.holding.isdisjoint((ConditionType.SUCCEEDED, ConditionType.FAILED))

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(cls, handler.generate_schema(tuple[Condition, ...]))


class ReplicaStatus(ApiModel):
    """How many pods of a role are in which state, in the present attempt."""

    desired: int = 0
    """Pods asked for."""
    active: int = 0
    """Pods that wait to run or run. After the end of the job, pods that end with the job do not count."""
    ready: int = 0
    """Running pods that answer."""
    succeeded: int = 0
    """Pods that ended with exit code 0."""
    failed: int = 0
    """Pods that ended otherwise."""


class Restarts(ApiModel):
    """How often the job was started again, by cause."""

    application: int = 0
    """Restarts after failures of the program, which count against runPolicy.backoffLimit."""
    in_place: int | None = None
    """How many of the restarts after failures of the program were in place: the ranks started again in the pods that
    ran. None if there was none."""
    infrastructure: int = 0
    """Restarts after lost pods or nodes, evictions and preemptions."""
    evaluator: int | None = None
    """Restarts of the evaluator alone, for any cause. They do not interrupt the training."""

    @property
    def of_training(self) -> int:
        """How often the training was started again, whatever the cause."""
        return self.application + self.infrastructure

    @property
    def in_words(self) -> str:
        """How often the training was started again: `3 restarts, 2 in place`."""
        count = self.of_training
        words = f"{count} restart" + ("" if count == 1 else "s")
        return f"{words}, {self.in_place} in place" if self.in_place else words

    @property
    def by_cause(self) -> str:
        """The number of restarts of each cause: `2 application (1 in place), 1 evaluator`; empty for none."""
        application = f"application ({self.in_place} in place)" if self.in_place else "application"
        counts = {
            application: self.application,
            "infrastructure": self.infrastructure,
            "evaluator": self.evaluator,
        }
        return ", ".join(f"{count} {cause}" for cause, count in counts.items() if count)


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
    """Step at which the checkpoint was saved."""
    time: ReportedTime = None
    """When the upload of the checkpoint was complete."""
    uri: ReportedUri = None
    """URI of the checkpoint."""
    new: ReportedNames = None
    """Names of up to three of the newest files in the checkpoint."""


class PodCheckpointStatus(ApiModel):
    """A complete checkpoint on the disk of the pod of rank 0, or of the chief, that the bucket does not have."""

    number: Count = None
    """Number of the checkpoint among those of the same claim."""
    claim: Count = None
    """Number of the claim with which the attempt writes to the bucket; without artifacts the attempt."""
    step: Count = None
    """Step at which the checkpoint was saved."""
    time: ReportedTime = None
    """When the checkpoint was complete."""


class RestoredStatus(ApiModel):
    """The checkpoint that an attempt restored. Not told of checkpoints by dtj_trainer's save, which are complete."""

    attempt: Count = None
    """The attempt."""
    uri: ReportedUri = None
    """URI of the checkpoint."""
    first_step: Count = None
    """The first step that the program reported after the restore."""


class ResumedFromStatus(ApiModel):
    """The checkpoint of the job itself from which its user resumed it."""

    uri: str
    """The value of spec.artifacts.resumeUri."""
    attempt: int
    """The attempt that restored the checkpoint first. Later attempts restore it again until a newer checkpoint
    exists."""

    @property
    def checkpoint(self) -> str:
        """The URI of the checkpoint. `uri` may end with a slash, with which a user resumes from it a second time."""
        return self.uri.removesuffix("/")


class ArtifactsStatus(ApiModel):
    """The files of the job in the bucket."""

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
    """URL of the TensorBoard in the cluster."""
    ready: bool = False
    """Whether the TensorBoard answers."""
    message: str | None = None
    """Why the API server refuses the TensorBoard's objects; none if it does not."""


class Failure(ApiModel):
    """Why the job, or its last failed attempt, ended."""

    attempt: int | None = None
    """The attempt that failed."""
    role: str | None = None
    """Role of the replica at fault."""
    index: int | None = None
    """Index of the replica in the role."""
    rank: int | None = None
    """Rank at fault, if it is known."""
    pod: str | None = None
    """Pod of the replica."""
    node: str | None = None
    """Node on which the pod ran."""
    exit_code: int | None = None
    """Exit code, 0 to 255; 128+n after signal n."""
    signal: int | None = None
    """Signal that ended the program."""
    failure_class: str | None = Field(
        default=None, alias="class", description=f"{enumerated(FAILURE_CLASSES, 'or')}."
    )
    message: str | None = None
    """The cause in a sentence."""
    last_log_lines: list[str] | None = None
    """Last lines that the replica printed, at most 20."""

    @property
    def source(self) -> str:
        """What failed, in a few words: `rank 1 in mnist-worker-1`."""
        rank = None if self.rank is None else f"rank {self.rank}"
        replica = f"{self.role}-{self.index}" if self.role else None
        return " in ".join(filter(None, (rank, self.pod or replica)))


class JobStatus(ApiModel):
    """What became of the job so far."""

    observed_generation: int | None = None
    """The generation of the spec from which this was computed."""
    phase: Phase | None = Field(default=None, description=f"{enumerated(Phase, 'or')}.")
    state: str | None = None
    """The phase, or instead a word for a lasting problem, such as Stalled, Unschedulable, ImagePullBackOff or
    OOMKilled."""
    message: str | None = None
    """The cause of the state, in one line; none if the state tells all."""
    gpus: int | None = None
    """GPUs, or other accelerators, that the job asks for at its present size, over all replicas; none for a job
    without them. Devices of resourceClaims do not count."""
    conditions: Conditions = Field(default=Conditions(), description=f"{', '.join(ConditionType)}.")
    replica_statuses: dict[str, ReplicaStatus] = {}
    """Pods by role."""
    completed_indexes: dict[str, str] | None = None
    """The replicas of the present attempt that have completed, by role, as completedIndexes of a Kubernetes Job:
    1,3-5. Only where the job needs no more of such a replica, as in TorchDistributed and of workers beside ps. Their
    pods may go before the job ends."""
    start_time: Time | None = None
    """When the operator took up the job, or when the job was last resumed; none while the job is suspended."""
    all_running_time: Time | None = None
    """When all ranks ran for the first time: in the present attempt, if each attempt starts all ranks."""
    retry_time: Time | None = None
    """When the pause before the last restart ended. runPolicy.startDeadlineSeconds counts from this time, also over
    retries that the cluster ended before all replicas ran."""
    restart_time: Time | None = None
    """When the operator last began to restart the job or replicas of it. The pause before the restart counts from
    this time."""
    trained_time: Time | None = None
    """When the training ended, if the job waits for its evaluator. parameterServer.evaluatorTimeoutSeconds counts
    from this time."""
    nothing_kept: bool | None = None
    """True if the job waits for its evaluator, and the training has left neither a checkpoint nor a model."""
    completion_time: Time | None = None
    """When the job succeeded or failed."""
    attempt: int = 0
    """Number of the attempt, from 1. Each restart of the job or of some replicas, and each resumption after a
    suspension, adds one."""
    replica_attempts: dict[str, int] | None = None
    """By <role>-<index>: the attempt in which a replica was started that has restarted alone. Other replicas: 1. Only
    in strategies that restart less than the whole job."""
    restarts: Restarts = Restarts()
    """How often the job, or replicas of it, were started again, by cause."""
    restarts_in_a_row: int | None = None
    """Number of restarts in a row without 10 minutes of training in between. The pause before a restart grows with
    this number."""
    ssh_secret: str | None = None
    """Name of the Secret with the job's ssh key, if the strategy needs one."""
    node_failures: dict[str, int] | None = None
    """How often the job lost pods on a node, by the node's name (runPolicy.avoidNodeAfterFailures)."""
    progress: ProgressStatus | None = None
    """How far training is."""
    step_time: Time | None = None
    """When the operator saw progress.step move last; only with runPolicy.stallTimeoutSeconds."""
    artifacts: ArtifactsStatus | None = None
    """The files of the job in the bucket."""
    pod_checkpoint: PodCheckpointStatus | None = None
    """A checkpoint that only a pod of the running attempt has. The checkpoint is lost with the pod. This field is
    updated only together with progress or artifacts, so the pod may have a newer checkpoint."""
    skipped_checkpoints: list[str] | None = None
    """Checkpoints from which attempts failed before their first step. The next attempt restores another checkpoint.
    Empty again after a newer checkpoint or a resumption of the job."""
    resumed_from: ResumedFromStatus | None = None
    """The checkpoint to which the user went back last (dtj resume --checkpoint)."""
    tensorboard: TensorBoardStatus | None = None
    """The job's own TensorBoard; none where spec.tensorboard asks for none, or the job is suspended."""
    failure: Failure | None = None
    """Why the job, or its last failed attempt, ended."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, if there is one."""
        return self.conditions.by_type.get(kind)

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition of that type is True."""
        return kind in self.conditions.holding

    @property
    def checkpoints_to_skip(self) -> list[str]:
        """The folders of the checkpoints that the next attempt does not restore. After the failures of
        MOST_SKIPPED checkpoints, checkpoints are not the cause, and the newest one is restored again.
        """
        skipped = self.skipped_checkpoints or []
        return [uri.rpartition("/")[2] for uri in skipped] if len(skipped) < MOST_SKIPPED else []

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed for good."""
        return self.conditions.finished
