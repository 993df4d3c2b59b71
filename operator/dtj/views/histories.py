"""Finds the history of past jobs that a user means, and the jobs of this history that the cluster still has.

`cli` calls it for `--past`, and `ui` for its list of past jobs. `dtj.client.history` reads the history itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from dtj.api.errors import DtjError, Unreachable, Unusable
from dtj.client.history import History
from dtj.client.store_environment import user_environment
from dtj.cluster.interface import ApiError

if TYPE_CHECKING:
    from dtj.client import Client, DistributedTrainingJob

ARTIFACTS_VARIABLE = "DTJ_ARTIFACTS"
"""The variable with the `artifacts.uri` of the history that `--past` reads if `--from` is not given."""


@dataclass(frozen=True)
class PresentJobs:
    """The jobs that a cluster still has, or why it can't be asked for them."""

    jobs: Sequence[DistributedTrainingJob] = ()
    namespace: str | None = None
    client: Client | None = None
    fault: DtjError | None = None
    """The error of the request to the cluster; None if the cluster answered."""


def jobs_of_client(client: Client, *, everywhere: bool) -> PresentJobs:
    """Return the present jobs of the client's namespace, or of all namespaces that the user may list."""
    try:
        if everywhere:
            try:
                return PresentJobs(client.list(all_namespaces=True), client.namespace, client)
            except Unreachable as error:
                # If the user may not list the jobs of all namespaces, list those of one namespace. Do not try again
                # if the cluster did not answer.
                if (
                    not isinstance(error.__cause__, ApiError)
                    or error.__cause__.status != HTTPStatus.FORBIDDEN
                ):
                    raise
        return PresentJobs(client.list(), client.namespace, client)
    except DtjError as error:
        return PresentJobs(client=client, fault=error)


def named_history(source: str | None) -> str | None:
    """Return the `artifacts.uri` that the option --from, or the variable DTJ_ARTIFACTS, names."""
    return source or os.environ.get(ARTIFACTS_VARIABLE) or None


def open_history(source: str | None, present: PresentJobs, endpoint: str | None = None) -> History:
    """Open the history that the user means. endpoint: URL of the store for this machine, of an option.

    source: the option --from. By default it is the variable DTJ_ARTIFACTS, then the artifacts.uri of the present
    jobs of the namespace. Raises Unusable if none is known, or more than one.
    """
    if named := named_history(source):
        return History(named, user_environment(endpoint))
    found: dict[tuple[str, str | None], DistributedTrainingJob] = {}
    for job in present.jobs:
        if job.spec.artifacts and job.namespace == present.namespace:
            found.setdefault((job.spec.artifacts.uri.rstrip("/"), job.spec.artifacts.endpoint), job)
    remedy = "give --from s3://BUCKET/PREFIX, the artifacts.uri of the jobs, or set DTJ_ARTIFACTS"
    if not found:
        why = (
            f"the jobs of the cluster can't be listed: {present.fault.message}"
            if present.fault
            else f"no job in namespace {present.namespace} has an artifacts.uri"
        )
        raise Unusable(
            f"no history of jobs is known: neither --from nor DTJ_ARTIFACTS is set, and {why}", remedy
        )
    if len(found) > 1:
        listed = ", ".join(sorted(uri + (f" at {endpoint}" if endpoint else "") for uri, endpoint in found))
        raise Unusable(
            f"the jobs of namespace {present.namespace} have several artifacts.uri: {listed}", remedy
        )
    ((uri, _), job), *_ = found.items()
    assert present.client is not None, "the client listed the jobs"
    return History(uri, present.client.artifacts(job, endpoint=endpoint).environment)
