"""The cached objects of the cluster, which a pass reads without requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from dtj.api.identity import GROUP, KIND, LABEL_JOB, LABEL_UID
from dtj.api.job import Job
from dtj.api.mpijob import MPIJOB_KIND
from dtj.api.stored_job import AnyJob
from dtj.reconcile.kept_job import KeptJob
from dtj.status.pods import PodView
from dtj.status.record import RecordPod

# The kinds of the objects that control the pods of an MPIJob, with the suffix of their names after the job's name.
_DELEGATES = {MPIJOB_KIND: "", "Job": "-launcher"}
_LONGEST_UID = 64
Key = tuple[str, str]
"""The namespace and the name of a job."""


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job at one version. Two objects of the same version are equal, without a comparison of their nested specs."""

    uid: str
    version: str
    manifest: KeptJob = field(compare=False)
    """The parts of the job that a pass reads."""
    whole: bool = True
    """Whether the namespace has room for the spec of the job."""
    large: bool = field(default=False, compare=False)
    """Whether a pass over the job takes more than a megabyte."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A Service or ConfigMap of a job."""

    name: str
    owner: str
    """uid of the job."""
    digest: str | None = None
    """The digest of the data of a ConfigMap."""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class OwnedPod:
    """A pod of a job."""

    owner: str
    """uid of the job; empty for a pod that only has the labels of a job."""
    view: PodView
    delegated: bool = False
    """Whether the controller of the pod is another object than the job: an object of mpi-operator."""


@dataclass(frozen=True, slots=True)
class OwnedDeployment:
    """A Deployment of a job, which runs its TensorBoard."""

    name: str
    owner: str
    """uid of the job."""
    uid: str
    digest: str
    """The digest of the spec that the Deployment was created from."""
    ready: bool
    """Whether the pod of the Deployment answers."""
    trouble: str | None
    """Why the Deployment can't create its pod; None when it can."""


@dataclass(frozen=True, slots=True)
class OwnedRecord:
    """A record pod of a job."""

    owner: str
    """uid of the job."""
    pod: RecordPod


class View(Protocol):
    """A cache of the objects in the API server. The cache may be behind the API server."""

    def job(self, key: Key) -> Mapping[str, Any] | None:
        """Return the job's manifest, or None when the job does not exist."""

    def pods(self, key: Key) -> Sequence[OwnedPod]:
        """Return the pods that have the job's label: the same object until one of the pods changes."""

    def services(self, key: Key) -> Sequence[Owned]:
        """Return the Services that have the job's label."""

    def configs(self, key: Key) -> Sequence[Owned]:
        """Return the ConfigMaps that have the job's label."""

    def deployments(self, key: Key) -> Sequence[OwnedDeployment]:
        """Return the Deployments that have the job's label."""

    def records(self, key: Key) -> Sequence[OwnedRecord]:
        """Return the record pods of the job."""

    def active(self) -> Sequence[Key]:
        """Return the jobs that have not ended."""


def data_digest(data: Mapping[str, str]) -> str:
    """Return a digest of the data of a ConfigMap."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def owned_pod(pod: Mapping[str, Any], view: PodView) -> OwnedPod:
    """Return the pod with the uid of its job, from the controller or from the label of a pod of mpi-operator."""
    delegated = _is_of_delegate(pod)
    return OwnedPod(_job_uid(pod, delegated=delegated), view, delegated)


def is_delegated(job: AnyJob) -> bool:
    """Return whether mpi-operator creates the job's pods."""
    return isinstance(job, Job) and job.by_mpi_operator


def is_of(pod: Mapping[str, Any], job: AnyJob) -> bool:
    """Return whether a pod belongs to the job."""
    return _job_uid(pod, delegated=is_delegated(job) and _is_of_delegate(pod)) == job.uid


def _job_uid(pod: Mapping[str, Any], *, delegated: bool) -> str:
    """Return the uid of the job that a pod belongs to, or an empty string: anybody may set labels on any pod."""
    if delegated:
        return str((pod["metadata"].get("labels") or {}).get(LABEL_UID) or "")
    return controller_uid(pod)


def _is_of_delegate(pod: Mapping[str, Any]) -> bool:
    """Return whether the MPIJob of the job that the label names, or the Job of its launcher, controls the pod."""
    owner, labels = _controller(pod), pod["metadata"].get("labels") or {}
    name = f"{labels.get(LABEL_JOB)}{_DELEGATES.get(owner.get('kind', ''), '')}"
    return owner.get("kind") in _DELEGATES and owner.get("name") == name


def controller_uid(manifest: Mapping[str, Any]) -> str:
    """Return the uid of the job that controls this object, or an empty string without such a job."""
    owner = _controller(manifest)
    is_job = owner.get("kind") == KIND and str(owner.get("apiVersion")).startswith(f"{GROUP}/")
    # Cut the uid: the API server accepts a uid of any length.
    return str(owner["uid"])[:_LONGEST_UID] if is_job else ""


def _controller(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})
