"""The place of a job: an interface to read a job on a cluster, on this machine, or below a prefix of a bucket.

`cli` and `ui` choose the place, and then treat all places alike. This module has the place on a cluster; the others
are in `local_place` and `bucket_place`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from dtj.client import Artifacts, Client, DistributedTrainingJob, JobEvent, LogLine, LogQuery, Pod


class Place(Protocol):
    """The place of one job. Its methods raise DtjError, as the methods of `dtj.client.Client` do."""

    def job(self) -> DistributedTrainingJob:
        """Return the current job."""

    def note(self) -> str | None:
        """Return a sentence about a state that the status of the job does not show."""

    def pods(self) -> list[Pod]:
        """List the present pods of the job. A local run has no pods."""

    def events(self) -> list[JobEvent]:
        """List the events of the job, oldest first."""

    def artifacts(self, endpoint: str | None = None) -> AbstractContextManager[Artifacts]:
        """Return the artifacts of the job in its bucket. The store answers inside the `with` block.

        endpoint: URL of the store for this machine; see `Client.artifacts`.
        """

    def get_code(self, folder: Path, endpoint: str | None = None) -> list[Path]:
        """Copy the files of the job's code; see `Client.get_code`."""

    def logs(self, query: LogQuery) -> Iterator[LogLine]:
        """Yield the lines that the ranks and replicas printed; see `Client.logs`."""


class ClusterPlace:
    """A job of a cluster."""

    def __init__(self, client: Client, name: str, namespace: str | None = None) -> None:
        """Store the place. namespace: by default the namespace of the client."""
        self._client = client
        self._name = name
        self._namespace = namespace

    def job(self) -> DistributedTrainingJob:
        """See `Place.job`."""
        return self._client.get(self._name, namespace=self._namespace)

    def note(self) -> str | None:
        """See `Place.note`."""
        return None

    def pods(self) -> list[Pod]:
        """See `Place.pods`."""
        return self._client.pods(self._name, namespace=self._namespace)

    def events(self) -> list[JobEvent]:
        """See `Place.events`."""
        return self._client.events(self._name, namespace=self._namespace)

    @contextmanager
    def artifacts(self, endpoint: str | None = None) -> Iterator[Artifacts]:
        """See `Place.artifacts`."""
        yield self._client.artifacts(self._name, endpoint=endpoint, namespace=self._namespace)

    def get_code(self, folder: Path, endpoint: str | None = None) -> list[Path]:
        """See `Place.get_code`."""
        return self._client.get_code(self._name, folder, endpoint=endpoint, namespace=self._namespace)

    def logs(self, query: LogQuery) -> Iterator[LogLine]:
        """See `Place.logs`."""
        return self._client.logs(self._name, query, namespace=self._namespace)
