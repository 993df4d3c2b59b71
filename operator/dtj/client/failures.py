"""Errors of the API server as errors with a remedy for the user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dtj.api.errors import DtjError, NotFound, Unreachable, Unusable
from dtj.client.resource import DistributedTrainingJob
from dtj.cluster.interface import ApiError

_OTHER_UID = re.compile(r"UID in (the )?precondition|metadata\.uid")
"""Matches the API server's message to a deletion (409) or a patch (422) that names the uid of another job."""


class NameTaken(DtjError):
    """Another job has the name."""


@contextmanager
def explained(host: str, namespace: str | None = None, name: str | None = None) -> Iterator[None]:
    """Convert an ApiError of the block into a DtjError. name: name of the job in the request."""
    try:
        yield
    except ApiError as error:
        raise explanation(error, host, namespace, name) from error


def explanation(
    error: ApiError, host: str, namespace: str | None = None, name: str | None = None
) -> DtjError:
    """Return the DtjError for an ApiError."""
    message = " ".join(error.message.split())
    match error.status:
        case 0:
            return Unreachable(
                f"the cluster at {host} does not answer: {message}",
                "`kubectl cluster-info` shows whether kubectl reaches it",
            )
        case 401:
            return Unreachable(
                f"the cluster at {host} does not accept your credentials",
                "log in again as for kubectl; `kubectl auth whoami` shows the user",
            )
        case 403:
            return Unreachable(
                f"the cluster does not allow the request: {message.rpartition('is forbidden: ')[2]}",
                "ask an administrator of the cluster for this permission",
            )
        case 404 if error.reason != "NotFound":
            # The API server does not serve the path of the request. For a missing job, the reason would be NotFound.
            return Unreachable(
                f"the cluster at {host} does not serve DistributedTrainingJobs",
                "dtj is not installed in the cluster: `dtj doctor` shows what is missing",
            )
        case 404 if name and f'"{name}"' in message:
            return missing(name, namespace)
        case 404:
            return NotFound(message)
        case 409 | 422 if name and _OTHER_UID.search(message):
            return replaced(name, namespace)
        case 409:
            return NameTaken(
                f"there is a job {name} in namespace {namespace} already",
                f"`dtj delete {name}` deletes it; or take another name",
            )
        case 400 | 422:
            return Unusable(f"the cluster refuses the request: {message}")
        case _:
            return Unreachable(f"the cluster at {host} answered {error.status} {error.reason}: {message}")


def deleted(job: DistributedTrainingJob, when: str) -> NotFound:
    """Return the error for a deleted job. when: the rest of the sentence, e.g. `while waiting for its end`."""
    ttl = job.spec.run_policy.ttl_seconds_after_finished
    return NotFound(
        f"{job.name} was deleted {when}",
        # The job may have been deleted by its TTL before this client saw that the job had finished.
        None if ttl is None else f"the job may have ended: its runPolicy.ttlSecondsAfterFinished is {ttl}",
    )


def replaced(name: str, namespace: str | None) -> NotFound:
    """Return the error for a job that another job of the same name replaced."""
    return NotFound(
        f"the job {name} in namespace {namespace} was deleted, and another job has its name",
        f"`dtj status {name}` shows the other job",
    )


def missing(name: str, namespace: str | None) -> NotFound:
    """Return the error for a job that does not exist."""
    return NotFound(
        f"there is no job {name} in namespace {namespace}",
        "`dtj list -A` lists the jobs of all namespaces; `dtj list --past` also lists deleted jobs, and "
        f"`dtj status {name} --past` shows one",
    )
