"""Where the history of jobs is, what the cluster still has of it, and the place of a past job by its name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from dtj.api.errors import DtjError, NotFound, Unreachable, Unusable
from dtj.cli.bucket_place import BucketPlace
from dtj.cli.connection import connect
from dtj.cli.places import ClusterPlace, PastChoice, Place
from dtj.cli.terminal import errors
from dtj.client.history import History
from dtj.client.history_query import HistoryQuery
from dtj.client.past_job import written
from dtj.client.store_environment import user_environment
from dtj.cluster.port import ApiError

if TYPE_CHECKING:
    from dtj.client import Client, DistributedTrainingJob

ARTIFACTS_VARIABLE = "DTJ_ARTIFACTS"
"""The `artifacts.uri` of the history that `--past` reads, if `--from` is not given."""


@dataclass(frozen=True)
class Cluster:
    """What the cluster answers about its present jobs."""

    jobs: Sequence[DistributedTrainingJob] = ()
    namespace: str | None = None
    client: Client | None = None
    fault: DtjError | None = None
    """Why the cluster can't be asked."""

    def tell_fault(self) -> None:
        """Print a line if the cluster can't be asked. The history then comes from the bucket alone."""
        if self.fault:
            errors.print(f"the cluster can't be asked, so this is what the bucket has: {self.fault.message}")


def ask(namespace: str | None, context: str | None) -> Cluster:
    """Return the present jobs: of a namespace, else of all namespaces that the user may list."""
    try:
        client = connect(namespace, context)
    except DtjError as error:
        return Cluster(fault=error)
    return ask_client(client, everywhere=namespace is None)


def ask_client(client: Client, *, everywhere: bool) -> Cluster:
    """Return the present jobs of the client's namespace, or of all namespaces that the user may list."""
    try:
        if everywhere:
            try:
                return Cluster(client.list(all_namespaces=True), client.namespace, client)
            except Unreachable as error:
                # The user may not list the jobs of all namespaces. Do not wait twice for a cluster that is away.
                if (
                    not isinstance(error.__cause__, ApiError)
                    or error.__cause__.status != HTTPStatus.FORBIDDEN
                ):
                    raise
        return Cluster(client.list(), client.namespace, client)
    except DtjError as error:
        return Cluster(client=client, fault=error)


def named_history(source: str | None) -> str | None:
    """Return the `artifacts.uri` that the option --from, or the variable DTJ_ARTIFACTS, names."""
    return source or os.environ.get(ARTIFACTS_VARIABLE) or None


def open_history(source: str | None, cluster: Cluster, endpoint: str | None = None) -> History:
    """Open the history that the user means. endpoint: URL of the store for this machine, of an option.

    source: the option --from. By default it is the variable DTJ_ARTIFACTS, then the artifacts.uri of the present
    jobs of the namespace. Raises Unusable if none is known, or more than one.
    """
    if named := named_history(source):
        return History(named, user_environment(endpoint))
    found: dict[tuple[str, str | None], DistributedTrainingJob] = {}
    for job in cluster.jobs:
        if job.spec.artifacts and job.namespace == cluster.namespace:
            found.setdefault((job.spec.artifacts.uri.rstrip("/"), job.spec.artifacts.endpoint), job)
    remedy = "give --from s3://BUCKET/PREFIX, the artifacts.uri of the jobs, or set DTJ_ARTIFACTS"
    if not found:
        why = (
            f"the cluster can't be asked for one: {cluster.fault.message}"
            if cluster.fault
            else f"no present job of namespace {cluster.namespace} has an artifacts.uri"
        )
        raise Unusable(f"no history is known: neither --from nor DTJ_ARTIFACTS is given, and {why}", remedy)
    if len(found) > 1:
        listed = ", ".join(sorted(uri + (f" at {endpoint}" if endpoint else "") for uri, endpoint in found))
        raise Unusable(f"the jobs of namespace {cluster.namespace} have several histories: {listed}", remedy)
    ((uri, _), job), *_ = found.items()
    assert cluster.client is not None, "the client listed the jobs"
    return History(uri, cluster.client.artifacts(job, endpoint=endpoint).environment)


def find_past(name: str, choice: PastChoice, namespace: str | None, context: str | None) -> Place:
    """Find a job by its name in a history. Raises NotFound if no job has the name.

    If several jobs have the name, the newest is meant, and a line on standard error says so. namespace: by default
    any. If the cluster still has the object of the job, the place is the cluster.
    """
    cluster = ask(namespace, context)
    with open_history(choice.source, cluster, choice.endpoint) as history:
        found = history.find(HistoryQuery(name=name, namespace=namespace, uid=choice.uid))
        uri, environment = history.uri, history.environment
    cluster.tell_fault()
    if not found:
        where = f" in namespace {namespace}" if namespace else ""
        with_uid = f" with a uid that begins with {choice.uid}" if choice.uid else ""
        raise NotFound(
            f"the history of {uri} has no job {name}{where}{with_uid}",
            f"`dtj list --past --from {uri}` lists the jobs",
        )
    entry = found[0]
    if len(found) > 1:
        errors.print(
            f"{len(found)} jobs are called {name}: this is the newest, {entry.namespace}/{name} with uid "
            f"{entry.uid}, created {written(entry.created)}; --uid chooses another one"
        )
    if any(job.uid == entry.uid for job in cluster.jobs):
        assert cluster.client is not None, "the client listed the jobs"
        return ClusterPlace(cluster.client, name, entry.namespace)
    return BucketPlace(f"{uri}/{entry.prefix}", environment)


def on_the_cluster(place: Place, context: str | None) -> Place:
    """Return the place of a job on the cluster if the cluster still has its object, else the place in the bucket."""
    if not isinstance(place, BucketPlace):
        return place
    past = place.past
    try:
        client = connect(past.namespace, context)
        job = client.get(past.name)
        # Without any record, the short uid of the prefix is all that is known.
        if past.uid in (job.uid, job.job.short_uid):
            return ClusterPlace(client, past.name)
    except NotFound:
        pass
    except DtjError as error:
        Cluster(fault=error).tell_fault()
    return place
