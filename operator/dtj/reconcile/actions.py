"""The requests of a pass as data. Each is idempotent."""

from __future__ import annotations

from dataclasses import dataclass

from dtj.api.job import Manifest
from dtj.plan.model import Replica


@dataclass(frozen=True)
class Create:
    """Make an object."""

    manifest: Manifest


@dataclass(frozen=True)
class CreatePod:
    """Make a pod of the plan; its manifest is made at that moment."""

    replica: Replica


@dataclass(frozen=True)
class AwaitEarlier:
    """Go on once no pod of an attempt before this one is there: a cache may miss one that is."""

    attempt: int


@dataclass(frozen=True)
class EnsurePodGroup:
    """Make the PodGroup, in place of one that says something else."""

    manifest: Manifest


@dataclass(frozen=True)
class DeletePodGroup:
    """Take the PodGroup away: a scheduler keeps room for one that is there."""

    manifest: Manifest


@dataclass(frozen=True)
class CreateOwn:
    """Make an object whose name carries the job's uid, unless there is one."""

    manifest: Manifest


@dataclass(frozen=True)
class CreateSshSecret:
    """Make the Secret with a new ssh key, unless there is one."""


@dataclass(frozen=True)
class ReplaceData:
    """Bring a ConfigMap to what the plan says."""

    manifest: Manifest


@dataclass(frozen=True)
class DeletePod:
    """Tell a pod to end."""

    name: str
    uid: str


@dataclass(frozen=True)
class ForceDeletePod:
    """Take a pod away that was told to end and did not."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True)
class CreateMpiJob:
    """Hand the job over, if the cluster has MPIJobs."""

    manifest: Manifest


@dataclass(frozen=True)
class DeleteMpiJob:
    """Delete the MPIJob after all that mpi-operator made of it."""

    manifest: Manifest


@dataclass(frozen=True)
class ExpireJob:
    """Delete the job itself; the garbage collector ends what it owns."""


PodAction = CreatePod | DeletePod | ForceDeletePod
"""An action on one pod."""
ObjectAction = Create | CreateOwn | CreateSshSecret | ReplaceData | ExpireJob
"""An action on another object that every job may have, or on the job itself."""
ControllerAction = AwaitEarlier | EnsurePodGroup | DeletePodGroup | CreateMpiJob | DeleteMpiJob
"""An action that a scheduler or another operator has a part in, or that waits for one."""
Action = PodAction | ObjectAction | ControllerAction
