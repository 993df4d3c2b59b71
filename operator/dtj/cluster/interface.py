"""Protocols of the cluster that the operator needs: implemented by the real API server and by tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dtj.api.job import Manifest


class ApiError(Exception):
    """A request that failed.

    status: HTTP status, 0 without an answer. reason: the server's one-word reason. message: the server's sentence.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Selection:
    """Objects of one kind with these labels."""

    api_version: str
    kind: str
    labels: str = ""
    """A label selector."""
    namespace: str | None = None
    """The namespace of the objects; None: all namespaces."""
    name: str = ""
    """The name of the only object; empty: objects of every name."""
    see: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Reduces a large object to the parts that are needed, in a thread; None: large objects stay whole."""


class Source(Protocol):
    """Lists and watches objects. Each method raises ApiError, also in the middle of an iteration."""

    def pages(self, selection: Selection) -> AsyncIterator[tuple[Sequence[Mapping[str, Any]], str]]:
        """Yield all current objects, a few at a time, with an empty version, and at last the resource version from
        which to watch. Each list is emptied before the next one comes. A large object is the last of its list.
        """

    def changes(
        self, selection: Selection, resource_version: str
    ) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        """Yield the events after that version, until the server ends the watch after some minutes. An event is ADDED,
        MODIFIED or DELETED with the object, or BOOKMARK with an object that has only a version. Raises ApiError 410
        for a version that is too old.
        """


class Cluster(Protocol):
    """The requests that the operator makes. Each method raises ApiError."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object; 409 when the name exists. A server with field validation refuses unknown fields."""

    async def get(self, manifest: Manifest) -> Manifest | None:
        """Return the object with the same kind, namespace and name; None when it does not exist."""

    async def pods_of(self, namespace: str, job: str) -> list[Manifest]:
        """List the metadata of all pods with the job's label. The request reads the store, not a cache."""

    async def replace_data(self, manifest: Manifest) -> Manifest:
        """Replace the data of a ConfigMap."""

    async def delete(self, manifest: Manifest, uid: str) -> None:
        """Delete the object with this uid. An object that no longer exists is not an error."""

    async def update_deployment(self, manifest: Manifest) -> Manifest:
        """Patch the annotations, replicas and pod template that the manifest contains into a Deployment."""

    async def delete_pod(self, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        """Delete the pod with this uid. A pod that no longer exists is not an error. force: remove the pod from the
        API at once, whether or not the kubelet has stopped its containers.
        """

    async def serves_kind(self, api_version: str, plural: str) -> bool:
        """Return whether the API server currently serves this kind in this version."""

    async def delete_tree(self, manifest: Manifest) -> None:
        """Delete the object with this uid in the foreground. An object that no longer exists is not an error."""

    async def expire_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        """Delete the job with this uid, then its objects; 409 when the job has another version. A job that no longer
        exists is not an error.
        """

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Manifest
    ) -> Manifest:
        """Merge a patch into a job's status; 409 when the job has another version. Return the job, or its metadata
        alone.
        """
