"""Where the page finds jobs: on the cluster, and in the history of a bucket after they were deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from dtj.api.errors import DtjError, NotFound
from dtj.cli.bucket_place import BucketPlace
from dtj.cli.past_place import ask_client, open_history
from dtj.client.history_query import HistoryQuery

if TYPE_CHECKING:
    from dtj.client import (
        Artifacts,
        Client,
        DistributedTrainingJob,
        JobEvent,
        LogLine,
        LogQuery,
        PastJob,
        Pod,
    )


class JobSource(Protocol):
    """One job, wherever it is. The methods raise DtjError, as those of `dtj.cli.places.Place` do."""

    def job(self) -> DistributedTrainingJob:
        """Return the job."""

    def pods(self) -> list[Pod]:
        """List its pods."""

    def events(self) -> list[JobEvent]:
        """List its events, oldest first."""

    def artifacts(self) -> AbstractContextManager[Artifacts]:
        """Open its files in the bucket."""

    def logs(self, query: LogQuery) -> Iterator[LogLine]:
        """Yield lines of its output."""


class Sources:
    """The cluster of the user, and the history of a bucket."""

    def __init__(self, client: Client, context: str | None, history: str | None) -> None:
        """Store the places.

        context: of the kubeconfig, for the shown commands; None: the current one. history: the `artifacts.uri` of the
        jobs of the past; None: DTJ_ARTIFACTS, else the one that the present jobs of the namespace have.
        """
        self.client = client
        self.context = context
        self._history = history

    def past(self, query: HistoryQuery, limit: int) -> list[PastJob]:
        """Return jobs of the history that the cluster no longer has. Raises Unusable if no history is known."""
        cluster = ask_client(self.client, everywhere=True)
        with open_history(self._history, cluster) as history:
            found = history.jobs(query, limit=limit, present=cluster.jobs)
        return [job for job in found if job.present is None]

    def find(self, namespace: str, name: str, uid: str = "") -> JobSource:
        """Return a job: the object of the cluster, or the newest job of the name in the history.

        uid: the job of this uid alone. Raises what the cluster answers, such as NotFound, if neither has the job.
        """
        try:
            if uid in ("", self.client.get(name, namespace=namespace).uid):
                return _OnCluster(self.client, namespace, name)
            why: DtjError = NotFound(f"the cluster has no job {name} with the uid {uid}")
        except DtjError as error:
            why = error
        try:
            with open_history(self._history, ask_client(self.client, everywhere=False)) as history:
                found = history.find(HistoryQuery(name=name, namespace=namespace, uid=uid))
                if found:
                    return BucketPlace(f"{history.uri}/{found[0].prefix}", history.environment)
        except DtjError:
            pass  # What the cluster said matters more than a history that is not there.
        raise why


class _OnCluster:
    """A job of the cluster, in any namespace."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client, self._namespace, self._name = client, namespace, name

    def job(self) -> DistributedTrainingJob:
        return self._client.get(self._name, namespace=self._namespace)

    def pods(self) -> list[Pod]:
        return self._client.pods(self._name, namespace=self._namespace)

    def events(self) -> list[JobEvent]:
        return self._client.events(self._name, namespace=self._namespace)

    @contextmanager
    def artifacts(self) -> Iterator[Artifacts]:
        yield self._client.artifacts(self._name, namespace=self._namespace)

    def logs(self, query: LogQuery) -> Iterator[LogLine]:
        return self._client.logs(self._name, query, namespace=self._namespace)
