"""The place of a job: a cluster, this machine, or a prefix in a bucket. Commands that only read treat them alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dtj.api.errors import Unusable
from dtj.cli.connection import connect, opened

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


@dataclass(frozen=True)
class PastChoice:
    """Chooses a job from the history of a bucket."""

    source: str | None
    """The `artifacts.uri` of the jobs; None: `dtj.cli.past_place` finds it."""
    uid: str
    """The begin of the uid; empty: the newest job of the name."""
    endpoint: str | None = None
    """URL of the store for this machine; None: the one that the environment names."""


def chosen(past: bool, source: str | None, uid: str, endpoint: str | None = None) -> PastChoice | None:
    """Return the choice of the options --past, --from, --uid and --endpoint. Raises Unusable if they contradict."""
    if not past and (source is not None or uid):
        raise Unusable(f"{'--uid' if uid else '--from'} chooses from the history of a bucket", "give --past")
    return PastChoice(source, uid, endpoint) if past else None


def find(
    name: str, *, local: bool, namespace: str | None, context: str | None, past: PastChoice | None = None
) -> Place:
    """Find a job. Raises NotFound if the job does not exist, and Unreachable if its place does not answer.

    name: the name of the job, or its prefix in a bucket, `s3://…`. past: look for the name in a history.
    """
    if past and local:
        raise Unusable("--past and --local exclude each other", "leave out one of them")
    if name.startswith("s3://"):
        from dtj.cli.bucket_place import BucketPlace

        return BucketPlace(name, store_of(name, local=local))
    if past:
        from dtj.cli.past_place import find_past

        return find_past(name, past, namespace, context)
    if local:
        from dtj.cli.local_place import LocalPlace
        from dtj.local.runs import Runs, home

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
