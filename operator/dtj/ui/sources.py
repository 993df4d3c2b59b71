"""The sources of the page's jobs: the cluster of the user, and the history of a bucket.

`__main__` chooses one for the whole life of the page. `machine_sources` has the runs of this machine.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from dtj.api.errors import DtjError, NotFound
from dtj.client.history_query import HistoryQuery
from dtj.views.bucket_place import BucketPlace
from dtj.views.histories import PresentJobs, jobs_of_client, named_history, open_history
from dtj.views.places import ClusterPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dtj.client import Client, DistributedTrainingJob, PastJob
    from dtj.client.history import History
    from dtj.views.places import Place


class SourceKind(StrEnum):
    """The kinds of sources."""

    CLUSTER = "cluster"
    """The cluster of the user, and the history of a bucket."""
    BUCKET = "bucket"
    """The history of a bucket alone."""
    MACHINE = "machine"
    """The runs of this machine, and their embedded store."""


class JobSources(Protocol):
    """Finds the jobs of the page. The methods block, and raise DtjError."""

    @property
    def kind(self) -> SourceKind:
        """Return the kind of the sources."""

    @property
    def namespace(self) -> str | None:
        """Return the namespace of the listed jobs; None: all namespaces."""

    @property
    def context(self) -> str | None:
        """Return the context of the kubeconfig; None: the current one, or none."""

    @property
    def history(self) -> str | None:
        """Return the `artifacts.uri` that the user named for the jobs of the past."""

    @property
    def client(self) -> Client | None:
        """Return the client that changes jobs; None: the page changes nothing."""

    def present(self, *, all_namespaces: bool) -> Sequence[DistributedTrainingJob]:
        """Return the present jobs of the namespace, or of all namespaces."""

    def past(self, query: HistoryQuery, limit: int) -> Sequence[PastJob]:
        """Return jobs of the history that are not present. Raises Unusable if no history is known."""

    def past_options(self, limit: int) -> dict[str, dict[str, str]]:
        """Return the options of the programs of the newest jobs of the history, by uid. Raises as `past`."""

    def find(self, namespace: str, name: str, uid: str = "") -> Place:
        """Return a present job, or the newest job of the name in the history.

        uid: return only the job of this uid. Raises the cluster's error, such as NotFound, if neither has the job.
        """

    def words(self, namespace: str | None) -> list[str]:
        """Return the options of a `dtj` command for a job of a namespace; None: for an `s3://` address."""


class BucketSources:
    """Implements `JobSources` for the history of a bucket."""

    kind = SourceKind.BUCKET
    context: str | None = None
    client: Client | None = None

    def __init__(self, history: str | None, namespace: str | None) -> None:
        """Store the place. history: the `artifacts.uri` of the jobs; None: the variable DTJ_ARTIFACTS."""
        self.history = named_history(history)
        self.namespace = namespace

    def present(self, *, all_namespaces: bool) -> Sequence[DistributedTrainingJob]:
        """See `JobSources.present`."""
        del all_namespaces
        return []

    def past(self, query: HistoryQuery, limit: int) -> Sequence[PastJob]:
        """See `JobSources.past`."""
        present = self._present(everywhere=True)
        with open_history(self.history, present) as history:
            found = history.jobs(query, limit=limit, present=present.jobs)
        return [job for job in found if job.present is None]

    def past_options(self, limit: int) -> dict[str, dict[str, str]]:
        """See `JobSources.past_options`."""
        with self._opened() as history:
            return history.options(islice(history.entries(), limit))

    def find(self, namespace: str, name: str, uid: str = "") -> Place:
        """See `JobSources.find`."""
        with self._opened() as history:
            return place_in(history, namespace, name, uid)

    def words(self, namespace: str | None) -> list[str]:
        """See `JobSources.words`."""
        return ["-n", namespace] if namespace else []

    def _opened(self) -> History:
        """Open the history that the user named, or else the history of the namespace's jobs in the cluster."""
        return open_history(self.history, PresentJobs() if self.history else self._present(everywhere=False))

    def _present(self, *, everywhere: bool) -> PresentJobs:
        """Return the present jobs of the cluster."""
        del everywhere
        return PresentJobs()


class ClusterSources(BucketSources):
    """Implements `JobSources` for the cluster of the user, and the history of a bucket."""

    kind = SourceKind.CLUSTER
    client: Client

    def __init__(self, client: Client, context: str | None, history: str | None) -> None:
        """Store the places.

        context: of the kubeconfig, for the shown commands; None: the current one. history: the `artifacts.uri` of the
        jobs of the past; None: DTJ_ARTIFACTS, else the one that the present jobs of the namespace have.
        """
        super().__init__(history, client.namespace)
        self.client = client
        self.context = context

    def present(self, *, all_namespaces: bool) -> Sequence[DistributedTrainingJob]:
        """See `JobSources.present`."""
        return self.client.list(all_namespaces=all_namespaces)

    def find(self, namespace: str, name: str, uid: str = "") -> Place:
        """See `JobSources.find`."""
        try:
            self.client.get(name, namespace=namespace, uid=uid or None)
            return ClusterPlace(self.client, name, namespace)
        except DtjError as error:
            why: DtjError = error
        try:
            return super().find(namespace, name, uid)
        except DtjError:
            # Raise the error of the cluster, which is more important than that of a missing history.
            raise why from None

    def words(self, namespace: str | None) -> list[str]:
        """See `JobSources.words`."""
        return ["-n", namespace, *(["--context", self.context] if self.context else [])] if namespace else []

    def _present(self, *, everywhere: bool) -> PresentJobs:
        return jobs_of_client(self.client, everywhere=everywhere)


def place_in(history: History, namespace: str, name: str, uid: str) -> BucketPlace:
    """Return the newest job of a name in a history, or that of a uid. Raises NotFound."""
    found = history.find(HistoryQuery(name=name, namespace=namespace, uid=uid))
    if not found:
        with_uid = f" with uid {uid}" if uid else ""
        raise NotFound(f"the history of {history.uri} has no job {name} in namespace {namespace}{with_uid}")
    return BucketPlace(f"{history.uri}/{found[0].prefix}", history.environment)
