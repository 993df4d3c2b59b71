"""The requests of a pass as data. Each request is idempotent."""

from __future__ import annotations

from dataclasses import dataclass

from dtj.api.job import Manifest
from dtj.api.shape import Replica


@dataclass(frozen=True)
class _OnObject:
    """A request for one object."""

    manifest: Manifest


class Create(_OnObject):
    """Create an object."""


@dataclass(frozen=True)
class CreatePod:
    """Create a pod of the plan. The executor builds the manifest when it carries out the action."""

    replica: Replica


@dataclass(frozen=True)
class AwaitEarlier:
    """Stop the pass while a pod of an earlier attempt exists. Ask the API server: the cache may miss a pod."""

    attempt: int


class EnsurePodGroup(_OnObject):
    """Create the PodGroup. Replace a PodGroup of the job that has another spec."""


class DeletePodGroup(_OnObject):
    """Delete the PodGroup: a scheduler reserves resources for a PodGroup that exists."""


class CreateOwn(_OnObject):
    """Create an object whose name contains the job's uid, unless the object exists."""


@dataclass(frozen=True)
class CreateSshSecret:
    """Create the Secret with a new ssh key, unless the Secret exists."""


class ReplaceData(_OnObject):
    """Replace the data of a ConfigMap with the data in the plan."""


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod with its grace period."""

    name: str
    uid: str


@dataclass(frozen=True)
class ForceDeletePod:
    """Delete a pod without a grace period: the pod was deleted before and has not ended in time."""

    name: str
    uid: str
    why: str


class CreateMpiJob(_OnObject):
    """Create the MPIJob, if the cluster serves MPIJobs."""


class DeleteMpiJob(_OnObject):
    """Delete first the objects that mpi-operator created for the MPIJob, then the MPIJob."""


@dataclass(frozen=True)
class ExpireJob:
    """Delete the job itself. The garbage collector deletes the objects that the job owns."""


PodAction = CreatePod | DeletePod | ForceDeletePod
"""An action on one pod."""
ObjectAction = Create | CreateOwn | CreateSshSecret | ReplaceData | ExpireJob
"""An action on another object that every job may have, or on the job itself."""
ControllerAction = AwaitEarlier | EnsurePodGroup | DeletePodGroup | CreateMpiJob | DeleteMpiJob
"""An action on an object of a scheduler or of another operator, or a wait for pods to end."""
Action = PodAction | ObjectAction | ControllerAction
CREATIONS = (AwaitEarlier, Create, CreateMpiJob, CreateOwn, CreatePod, CreateSshSecret, EnsurePodGroup)
"""The actions that the API server may refuse for a long time, and the wait for earlier pods before a creation."""
