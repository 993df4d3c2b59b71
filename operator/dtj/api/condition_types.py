"""The types of a job's conditions. The descriptions in the CRD are made from this list."""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """The conditions that a job can have, in the order in which the status lists them.

    `Created` and `Running` are always there. The others appear when they hold for the first time.
    """

    CREATED = "Created"
    """The operator has taken up the job."""
    RUNNING = "Running"
    """All pods that the training needs run. Its message says what the job waits for while it is False."""
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
"""What hinders the uploads of a job."""
