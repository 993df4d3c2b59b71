"""Find the job that the options of a command name: on the cluster, on this machine, or in a history of past jobs.

`dtj.views.places` has the places themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj.api.errors import DtjError, NotFound, Unusable
from dtj.cli.connection import connect, opened
from dtj.cli.options import ContextOption, FromOption, LocalOption, NamespaceOption, PastOption, UidOption
from dtj.cli.terminal import errors
from dtj.views.places import ClusterPlace, Place

if TYPE_CHECKING:
    from dtj.views.histories import PresentJobs


@dataclass(frozen=True)
class PastChoice:
    """Chooses a job from the history of a bucket."""

    source: str | None
    """The `artifacts.uri` of the jobs; None: `dtj.views.histories.open_history` finds it."""
    uid: str
    """The beginning of the job's uid; empty: choose the newest job of the name."""
    endpoint: str | None = None
    """URL of the store for this machine; None: the endpoint in the environment."""


@dataclass(frozen=True)
class PlaceOptions:
    """The options of a command that reads a job, wherever the job is; see `dtj.cli.options.with_fields`."""

    past: PastOption = False
    from_: FromOption = None
    uid: UidOption = ""
    local: LocalOption = False
    namespace: NamespaceOption = None
    context: ContextOption = None

    def find(self, name: str, endpoint: str | None = None) -> Place:
        """Find a job, as the function `find` does. endpoint: URL of the store for this machine."""
        past = self.choice(endpoint)
        return find(name, local=self.local, namespace=self.namespace, context=self.context, past=past)

    def choice(self, endpoint: str | None = None) -> PastChoice | None:
        """Return what --past, --from and --uid choose. Raises Unusable if they contradict."""
        if not self.past and (self.from_ is not None or self.uid):
            raise Unusable(
                f"{'--uid' if self.uid else '--from'} is only for past jobs in the history of a bucket",
                "give --past",
            )
        return PastChoice(self.from_, self.uid, endpoint) if self.past else None


def find(
    name: str, *, local: bool, namespace: str | None, context: str | None, past: PastChoice | None = None
) -> Place:
    """Find a job. Raises NotFound if the job does not exist, and Unreachable if cluster or store does not answer.

    name: the name of the job, or its prefix in a bucket, `s3://…`. past: look for the name in a history.
    """
    if past and local:
        raise Unusable("--past and --local exclude each other", "leave out one of them")
    if name.startswith("s3://"):
        from dtj.views.bucket_place import BucketPlace

        return BucketPlace(name, store_of(name, local=local))
    if past:
        return _find_past(name, past, namespace, context)
    if local:
        from dtj.local.runs import Runs, home
        from dtj.views.local_place import LocalPlace

        return LocalPlace(Runs(home()).find(name, namespace), home())
    client = connect(namespace, context)
    client.get(name)
    return ClusterPlace(client, name)


def store_of(uri: str, *, local: bool, endpoint: str | None = None) -> dict[str, str]:
    """Return the AWS variables with which this machine reaches an `s3://` address.

    The address is in the embedded store of `dtj run` if `local` is set, and if it is that of a run of this machine.
    The embedded store is then started unless it runs, and stays until the command ends. Otherwise the address is in
    the store of the user. endpoint: URL of the store for this machine. Raises Unusable if the address is malformed.
    """
    from dtj.client.store_environment import user_environment
    from dtj.local.runs import Runs, home
    from dtj_trainer.artifacts.s3 import parse_s3_uri

    try:
        bucket = parse_s3_uri(uri).bucket
    except ValueError as error:
        raise Unusable(str(error)) from None
    if endpoint is None and (local or Runs(home()).at(uri)):
        from dtj.local.object_store import open_store

        return opened.enter_context(open_store(home(), [bucket])).environment
    return user_environment(endpoint)


def _find_past(name: str, choice: PastChoice, namespace: str | None, context: str | None) -> Place:
    """Find a job by its name in a history. Raises NotFound if no job has the name.

    If several jobs have the name, return the newest, and print a line that says so. namespace: by default any. If the
    cluster still has the object of the job, the place is the cluster.
    """
    from dtj.client.history_query import HistoryQuery
    from dtj.client.past_job import written
    from dtj.views.bucket_place import BucketPlace
    from dtj.views.histories import open_history

    present = present_jobs(namespace, context)
    with open_history(choice.source, present, choice.endpoint) as history:
        found = history.find(HistoryQuery(name=name, namespace=namespace, uid=choice.uid))
        uri, environment = history.uri, history.environment
    print_fault(present.fault)
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
    if any(job.uid == entry.uid for job in present.jobs):
        assert present.client is not None, "the client listed the jobs"
        return ClusterPlace(present.client, name, entry.namespace)
    return BucketPlace(f"{uri}/{entry.prefix}", environment)


def on_the_cluster(place: Place, context: str | None) -> Place:
    """Return the place of a job on the cluster if the cluster still has its object, else the place in the bucket."""
    from dtj.views.bucket_place import BucketPlace

    if not isinstance(place, BucketPlace):
        return place
    past = place.past
    try:
        client = connect(past.namespace, context)
        job = client.get(past.name)
        # A job without any record in the bucket is known only by the short uid in its prefix.
        if past.uid in (job.uid, job.job.short_uid):
            return ClusterPlace(client, past.name)
    except NotFound:
        pass
    except DtjError as error:
        print_fault(error)
    return place


def present_jobs(namespace: str | None, context: str | None) -> PresentJobs:
    """Return the present jobs: of a namespace, else of all namespaces that the user may list."""
    from dtj.views.histories import PresentJobs, jobs_of_client

    try:
        client = connect(namespace, context)
    except DtjError as error:
        return PresentJobs(fault=error)
    return jobs_of_client(client, everywhere=namespace is None)


def print_fault(fault: DtjError | None) -> None:
    """Print why the cluster can't be asked for jobs, if there is a fault. Past jobs come from the bucket alone."""
    if fault:
        errors.print(f"only the bucket was read, because the cluster can't be asked: {fault.message}")
