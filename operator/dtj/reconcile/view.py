"""What is known of the cluster without asking it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dtj.api.identity import LABEL_UID
from dtj.api.job import Job
from dtj.api.mpijob import MPIJOB_KIND
from dtj.api.unreadable import AnyJob
from dtj.status.pods import PodView

# The controllers of an MPIJob's pods: the workers', and the launcher's.
_DELEGATES = frozenset({MPIJOB_KIND, "Job"})
Key = tuple[str, str]
"""Namespace and name of a job."""


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job at one version; two of the same version are equal, however deeply their specs are nested."""

    uid: str
    version: str
    manifest: Mapping[str, Any] = field(compare=False)
    """The parts of the job that a pass reads."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A Service or ConfigMap of a job."""

    name: str
    owner: str
    """uid of the job."""
    data: Mapping[str, str] | None = None
    uid: str = ""


@dataclass(frozen=True, slots=True)
class OwnedPod:
    """A pod of a job."""

    owner: str
    """uid of the job."""
    view: PodView
    delegated: bool = False
    """Whether a controller of another kind made it for the job."""


@dataclass(frozen=True, slots=True)
class OwnedDeployment:
    """A Deployment of a job: its TensorBoard."""

    name: str
    owner: str
    """uid of the job."""
    uid: str
    digest: str
    """Of the spec that it was made of."""
    ready: bool
    """Whether its pod answers."""
    trouble: str | None
    """Why it can't make its pod."""


class View(Protocol):
    """A cache that watches the API server; it may lag behind."""

    def job(self, key: Key) -> Mapping[str, Any] | None:
        """The job's manifest."""

    def pods(self, key: Key) -> Sequence[OwnedPod]:
        """Pods that carry the job's label."""

    def services(self, key: Key) -> Sequence[Owned]:
        """Services that carry the job's label."""

    def configs(self, key: Key) -> Sequence[Owned]:
        """ConfigMaps that carry the job's label."""

    def deployments(self, key: Key) -> Sequence[OwnedDeployment]:
        """Deployments that carry the job's label."""

    def active(self) -> Sequence[Key]:
        """Jobs that have not ended."""


def owned_pod(pod: Mapping[str, Any], view: PodView) -> OwnedPod:
    """The pod with the job that it belongs to: by its controller, or by the label of a pod that mpi-operator made."""
    uid = _job_uid(pod)
    return OwnedPod(uid, view, delegated=uid != controller_uid(pod))


def is_delegated(job: AnyJob) -> bool:
    """Whether mpi-operator creates the job's pods."""
    return isinstance(job, Job) and job.spec.by_mpi_operator


def is_of(pod: Mapping[str, Any], job: AnyJob) -> bool:
    """Whether a pod was made for the job."""
    return (_job_uid(pod) if is_delegated(job) else controller_uid(pod)) == job.uid


def _job_uid(pod: Mapping[str, Any]) -> str:
    """Uid of the job that a pod belongs to; anybody may set the label, but not on a pod that has no controller."""
    kinds = {
        owner.get("kind") for owner in pod["metadata"].get("ownerReferences") or () if owner.get("controller")
    }
    if kinds & _DELEGATES:
        return (pod["metadata"].get("labels") or {}).get(LABEL_UID) or controller_uid(pod)
    return controller_uid(pod)


def controller_uid(manifest: Mapping[str, Any]) -> str:
    """Uid of the object that controls this one; empty when nothing does."""
    for owner in manifest["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return str(owner["uid"])
    return ""
