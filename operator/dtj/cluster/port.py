"""What the operator needs of a cluster, as a Protocol: the real API server or a test's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from dtj.api.job import Manifest


class ApiError(Exception):
    """A request that the API server did not carry out.

    status: HTTP status, 0 when no answer came. reason: the server's one word. message: its sentence.
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
    """None: of every namespace."""


class Source(Protocol):
    """Objects and their changes, as one API server tells them. Each raises ApiError, also in the middle."""

    def pages(self, selection: Selection) -> AsyncIterator[tuple[list[Manifest], str]]:
        """All objects that are there now, page by page, each with the version from which to watch."""

    def changes(self, selection: Selection, resource_version: str) -> AsyncIterator[tuple[str, Manifest]]:
        """What happens after that version, until the server ends it after some minutes: ADDED, MODIFIED or DELETED
        and the object; or BOOKMARK and an object that has a version and nothing else. 410: that version is too old.
        """


class Cluster(Protocol):
    """The requests that the operator makes. Each raises ApiError."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Make an object; 409 when one of that name is there. Unknown fields are refused where the server can."""

    async def get(self, manifest: Manifest) -> Manifest | None:
        """The object of the same kind, namespace and name, if there is one."""

    async def pods_of(self, namespace: str, job: str) -> list[Manifest]:
        """The metadata of all pods that carry the job's label, as they are stored now: no cache is asked."""

    async def replace_data(self, manifest: Manifest) -> Manifest:
        """Replace the data of a ConfigMap."""

    async def delete(self, manifest: Manifest, uid: str) -> None:
        """Delete that very object; one that is gone already is no error."""

    async def update_deployment(self, manifest: Manifest) -> Manifest:
        """Bring a Deployment's annotations, replicas and pod template to the manifest's, as far as that has them."""

    async def delete_pod(self, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        """Tell that very pod to end; one that is gone already is no error. force: it is gone at once, whether or not
        its node has ended it.
        """

    async def serves_kind(self, api_version: str, plural: str) -> bool:
        """Whether the API server has objects of this kind in this very version now."""

    async def delete_tree(self, manifest: Manifest) -> None:
        """Delete that very object after all that it owns; one that is gone already is no error."""

    async def expire_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        """Delete that very job, its objects after it; 409 when it is not at that version any more. One that is gone
        already is no error.
        """

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Manifest
    ) -> Manifest:
        """Merge a patch into a job's status; 409 when the job is not at that version any more."""
