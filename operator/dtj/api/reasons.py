"""The values of `reason`, one CamelCase word, in conditions and events.

Programs of users wait for these words. The operator also reads some of them back from the stored status: a word keeps
its meaning for ever. docs/reference.md lists the reasons with the texts below.

A condition may have a reason that is not listed here: a word of the kubelet or of the API server for what keeps a pod
from running, or the class of a failure that is not counted as a restart.
"""

from __future__ import annotations

from enum import StrEnum

from dtj_trainer.contract.failure_class import FailureClass


class Reason(StrEnum):
    """A reason that the operator gives."""

    # --- Created ---
    JOB_CREATED = "JobCreated"
    """The operator has taken up the job."""
    SPEC_INVALID = "SpecInvalid"
    """The spec of a job with pods is wrong. The pods continue, and no pod is created until the spec is correct."""

    NAMESPACE_FULL = "NamespaceFull"
    """The jobs of the namespace take all the memory that the operator has for one namespace. The job waits, or
    its pods continue, and no pod is created until other jobs have ended or are deleted."""

    # --- Running, while the job starts and runs ---
    PODS_STARTING = "PodsStarting"
    """Not all pods run yet."""
    PODS_ENDING = "PodsEnding"
    """Pods of the attempt before have not ended yet."""
    BACKOFF = "Backoff"
    """The job pauses before the next attempt."""
    QUEUED = "Queued"
    """A queue or a gang scheduler holds the pods."""
    JOB_RUNNING = "JobRunning"
    """All pods run."""
    RANK_LOST = "RankLost"
    """A pod was lost, and nothing is counted yet: another pod may turn out to be the cause."""
    INFRASTRUCTURE_FAILURE = "InfrastructureFailure"
    """The attempt ended because the cluster took a pod away."""
    APPLICATION_FAILURE = "ApplicationFailure"
    """The attempt ended because the program failed."""
    COMPLETED = "Completed"
    """A replica ended with exit code 0 because its chief failed. The next chief needs the replica again."""

    # --- Running, after the training ---
    EVALUATING = "Evaluating"
    """The training is over, and the evaluator has not seen the last checkpoint yet."""
    EVALUATED = "Evaluated"
    """The evaluator has seen the last checkpoint, or there is none, and has not ended yet."""

    # --- Running: what keeps pods from running ---
    IMAGE_PULL = "ImagePull"
    """The kubelet can't pull an image."""
    UNSCHEDULABLE = "Unschedulable"
    """No node takes a pod."""
    POD_NOT_STARTED = "PodNotStarted"
    """A pod has had a node for 30 s and has no container: its events say what the kubelet waits for."""
    CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError"
    """A Secret, a ConfigMap or a key of it is missing."""
    CREATE_CONTAINER_ERROR = "CreateContainerError"
    """The kubelet can't create a container."""
    RUN_CONTAINER_ERROR = "RunContainerError"
    """The kubelet can't start a container."""
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
    """A sidecar or an init container of the template ends again and again."""
    SIDECAR_ENDED = "SidecarEnded"
    """A sidecar of the template has ended, and the pod is not ready without it."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """The quota of the namespace is used up."""
    FORBIDDEN = "Forbidden"
    """A policy or a webhook of the cluster refuses an object of the job."""
    NAME_TAKEN = "NameTaken"
    """Another object has a name that the job needs."""
    SCHEDULER_MISSING = "SchedulerMissing"
    """The cluster does not serve the PodGroup of runPolicy.schedulingPolicy.gang."""
    MPIJOB_NOT_SERVED = "MPIJobNotServed"
    """The cluster does not serve MPIJobs of v2beta1."""
    MPIJOB_NOT_TAKEN_UP = "MPIJobNotTakenUp"
    """No controller has updated the MPIJob."""
    API_SERVER_ERROR = "ApiServerError"
    """The API server could not create an object of the job."""
    API_UNREACHABLE = "ApiUnreachable"
    """The API server did not answer."""

    # --- Suspended, and Running while the pods of such a job end ---
    SUSPENDING = "Suspending"
    """runPolicy.suspend is true, and pods have not ended yet."""
    JOB_SUSPENDED = "JobSuspended"
    """runPolicy.suspend is true, and all pods have ended."""
    JOB_RESUMED = "JobResumed"
    """runPolicy.suspend is false again."""
    WORKLOAD_DEACTIVATED = "WorkloadDeactivated"
    """Kueue has deactivated the job's Workload. The job waits until the user resumes it."""
    MPIJOB_SUSPENDED = "MPIJobSuspended"
    """A queue has suspended the MPIJob."""
    MPIJOB_RESUMED = "MPIJobResumed"
    """The MPIJob is not suspended any more."""

    # --- Succeeded and Failed ---
    JOB_SUCCEEDED = "JobSucceeded"
    """The program ended with exit code 0."""
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    """The program failed once more than runPolicy.backoffLimit."""
    MODULE_NOT_FOUND = "ModuleNotFound"
    """Python did not find a module, and no retry would find it."""
    CODE_UNUSABLE = "CodeUnusable"
    """An archive of spec.code can't be unpacked or installed, or is another one than the job asks for."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """runPolicy.activeDeadlineSeconds passed."""
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    """runPolicy.startDeadlineSeconds passed before all pods ran."""
    VALIDATION_FAILED = "ValidationFailed"
    """The spec is invalid, or the API server refuses an object of the job as invalid."""

    # --- Stalled ---
    NO_PROGRESS = "NoProgress"
    """All pods run, and the step has not changed for runPolicy.stallTimeoutSeconds."""
    NO_ANSWER = "NoAnswer"
    """The pod that reports the step does not answer the operator."""
    PROGRESS_RESUMED = "ProgressResumed"
    """The step changes again."""
    PROGRAM_ENDED = "ProgramEnded"
    """The training is over, and its files are exported and uploaded."""
    NOT_RUNNING = "NotRunning"
    """Not all pods run any more."""
    NOT_WATCHED = "NotWatched"
    """runPolicy.stallTimeoutSeconds is not set any more."""

    # --- Bottleneck ---
    PARAMETER_SERVERS_SLOW = "ParameterServersSlow"
    """The workers wait for the parameter servers."""
    STRAGGLING_WORKER = "StragglingWorker"
    """The others wait for one worker."""
    NO_BOTTLENECK = "NoBottleneck"
    """The last report names no bottleneck."""

    # --- CheckpointDelayed ---
    CHECKPOINT_INCOMPLETE = "CheckpointIncomplete"
    """What the next checkpoint waits for is not complete."""
    CHECKPOINT_COMPLETE = "CheckpointComplete"
    """Nothing holds up the next checkpoint."""

    # --- ArtifactsIncomplete ---
    FILES_REFUSED = "FilesRefused"
    """Files are not uploaded, or not restored, for the reasons in the message."""
    FILES_UPLOADED = "FilesUploaded"
    """No file is refused any more."""

    # --- Recorded ---
    END_RECORDED = "EndRecorded"
    """`end.json` has the end of the job."""
    SUSPENSION_RECORDED = "SuspensionRecorded"
    """`end.json` says that the job is suspended."""
    RECORD_PENDING = "RecordPending"
    """The job has ended, and a record pod is to write `end.json`."""
    RECORD_REFUSED = "RecordRefused"
    """The record pod could not write `end.json`: the credentials, the store, or a policy of the cluster."""
    RECORD_GIVEN_UP = "RecordGivenUp"
    """No record pod ran in time."""

    # --- Events without a condition ---
    JOB_RESTARTING = "JobRestarting"
    """The next attempt begins after a loss."""
    RESTARTED_IN_PLACE = "RestartedInPlace"
    """The ranks started again in the pods that ran, after a failure of the program."""
    EXPORT_FAILED = "ExportFailed"
    """The final model was not exported, by its framework or to ONNX. The job does not fail because of it."""
    EVALUATOR_RESTARTING = "EvaluatorRestarting"
    """The evaluator starts again, and the training continues."""
    POD_FORCE_DELETED = "PodForceDeleted"
    """The operator deletes a pod by force: its node has not ended the pod in time."""
    NOT_QUEUED = "NotQueued"
    """Kueue has not taken the pods of a job that is to be queued. The pods run without quota."""
    STATUS_REFUSED = "StatusRefused"
    """The API server refused a status, which is stored without the reports of pods."""


QUIET: frozenset[str] = frozenset(
    {
        Reason.PODS_STARTING,
        Reason.POD_NOT_STARTED,
        Reason.PODS_ENDING,
        Reason.BACKOFF,
        Reason.JOB_SUCCEEDED,
        Reason.RANK_LOST,
        Reason.JOB_SUSPENDED,
    }
)
"""Reasons of `Running` with status False that belong to the normal course of a job. They cause no event."""

FAILED = (
    Reason.BACKOFF_LIMIT_EXCEEDED,
    Reason.MODULE_NOT_FOUND,
    Reason.CODE_UNUSABLE,
    Reason.DEADLINE_EXCEEDED,
    Reason.START_DEADLINE_EXCEEDED,
    Reason.VALIDATION_FAILED,
)
"""All reasons that the condition `Failed` can have."""

STOPPED: frozenset[str] = frozenset(
    {Reason.DEADLINE_EXCEEDED, Reason.START_DEADLINE_EXCEEDED, Reason.VALIDATION_FAILED}
)
"""Reasons of `Failed` for which the operator ends every pod, whatever runPolicy.cleanPodPolicy says."""


# The values of `status.failure.class`. docs/troubleshooting.md describes all of them for users, and a test compares
# the page with this list. The description in the CRD is generated from FAILURE_CLASSES.


class OperatorFailureClass(StrEnum):
    """Failures that only the operator can tell. `FailureClass` has those that a container can know of itself."""

    EVICTED = "Evicted"
    """The cluster evicted the pod. The program is at fault where it filled its storage, otherwise nobody is."""
    POD_LOST = "PodLost"
    """The pod was deleted, or its node was lost. No program is at fault."""

    # Reasons that kept a pod from running until a deadline of the run policy passed.
    IMAGE_PULL = Reason.IMAGE_PULL
    UNSCHEDULABLE = Reason.UNSCHEDULABLE
    QUOTA_EXCEEDED = Reason.QUOTA_EXCEEDED
    FORBIDDEN = Reason.FORBIDDEN
    CREATE_CONTAINER_CONFIG_ERROR = Reason.CREATE_CONTAINER_CONFIG_ERROR
    CREATE_CONTAINER_ERROR = Reason.CREATE_CONTAINER_ERROR
    RUN_CONTAINER_ERROR = Reason.RUN_CONTAINER_ERROR
    CRASH_LOOP_BACK_OFF = Reason.CRASH_LOOP_BACK_OFF
    SIDECAR_ENDED = Reason.SIDECAR_ENDED

    STALLED = "Stalled"
    """The step did not change for runPolicy.stallTimeoutSeconds, and runPolicy.stallPolicy is Restart."""
    MPIJOB_FAILED = "MPIJobFailed"
    """mpi-operator reports a failed MPIJob, and no pod says why."""
    START_DEADLINE_EXCEEDED = Reason.START_DEADLINE_EXCEEDED
    """runPolicy.startDeadlineSeconds passed, and no known obstacle is to blame."""
    DEADLINE_EXCEEDED = Reason.DEADLINE_EXCEEDED
    """runPolicy.activeDeadlineSeconds passed."""
    VALIDATION_FAILED = Reason.VALIDATION_FAILED
    """The spec is invalid, or the API server refuses an object of the plan as invalid."""


FAILURE_CLASSES: tuple[str, ...] = (*FailureClass, *OperatorFailureClass)
"""All classes that dtj itself uses. A program that writes its own termination message may name any other class."""

OBSTACLES: frozenset[str] = frozenset(
    {
        OperatorFailureClass.IMAGE_PULL,
        OperatorFailureClass.UNSCHEDULABLE,
        OperatorFailureClass.QUOTA_EXCEEDED,
        OperatorFailureClass.FORBIDDEN,
        OperatorFailureClass.CREATE_CONTAINER_CONFIG_ERROR,
        OperatorFailureClass.CREATE_CONTAINER_ERROR,
        OperatorFailureClass.RUN_CONTAINER_ERROR,
        OperatorFailureClass.CRASH_LOOP_BACK_OFF,
        OperatorFailureClass.SIDECAR_ENDED,
    }
)
"""Reasons of `Running` that become the class of the failure when runPolicy.startDeadlineSeconds passes."""
