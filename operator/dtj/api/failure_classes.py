"""The values of `status.failure.class`. docs/troubleshooting.md describes all of them for users; a test compares the
two, and the description in the CRD is made from FAILURE_CLASSES.
"""

from __future__ import annotations

from enum import StrEnum

from dtj.api.reasons import Reason
from dtj_trainer.contract.failure_class import FailureClass


class OperatorFailureClass(StrEnum):
    """Failures that only the operator can tell. `FailureClass` has those that a container can know of itself."""

    EVICTED = "Evicted"
    """The cluster evicted the pod. The program is at fault where it filled its storage, otherwise nobody is."""
    POD_LOST = "PodLost"
    """The pod was deleted, or its node was lost. No program is at fault."""

    # Obstacles that still kept a pod from running when a deadline of the run policy passed.
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
"""A program that writes its own termination message may say anything else."""

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
