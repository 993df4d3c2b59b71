"""Where the page finds jobs: on the cluster, and in the history of a bucket after they were deleted."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from dtj.api.errors import DtjError
from dtj.cli.bucket_place import BucketPlace
from dtj.cli.past_place import Cluster, ask_client, named_history, open_history
from dtj.cli.places import ClusterPlace
from dtj.client.history_query import HistoryQuery

if TYPE_CHECKING:
    from dtj.cli.places import Place
    from dtj.client import Client, PastJob
    from dtj.client.history import History


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

    def past_options(self, limit: int) -> dict[str, dict[str, str]]:
        """Return the options of the programs of the newest jobs of the history, by uid. Raises as `past`."""
        with self._opened() as history:
            return history.options(islice(history.entries(), limit))

    def find(self, namespace: str, name: str, uid: str = "") -> Place:
        """Return a job: the object of the cluster, or the newest job of the name in the history.

        uid: the job of this uid alone. Raises what the cluster answers, such as NotFound, if neither has the job.
        """
        try:
            self.client.get(name, namespace=namespace, uid=uid or None)
            return ClusterPlace(self.client, name, namespace)
        except DtjError as error:
            why: DtjError = error
        try:
            with self._opened() as history:
                found = history.find(HistoryQuery(name=name, namespace=namespace, uid=uid))
                if found:
                    return BucketPlace(f"{history.uri}/{found[0].prefix}", history.environment)
        except DtjError:
            pass  # What the cluster said matters more than a history that is not there.
        raise why

    def _opened(self) -> History:
        """Open the history. Only where nobody named one, the present jobs of the namespace are asked for theirs."""
        named = named_history(self._history)
        return open_history(named, Cluster() if named else ask_client(self.client, everywhere=False))
