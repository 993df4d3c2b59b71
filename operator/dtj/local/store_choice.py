"""Choose the object store of a run, and the environment with which programs reach the store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dtj.api.errors import Unreachable, Unusable
from dtj.api.job import Job
from dtj_trainer import contract
from dtj_trainer.artifacts.s3 import parse_s3_uri

if TYPE_CHECKING:
    from dtj.local.object_store import OpenStore

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")
_CONNECT_SECONDS = 2.0


class S3Store(StrEnum):
    """The object store with the artifacts and the data of a local run."""

    EMBEDDED = "embedded"
    """SeaweedFS on this machine."""
    JOB = "job"
    """The endpoint of the job."""


@dataclass(frozen=True)
class ChosenStore:
    """The store of a run."""

    kind: S3Store
    environment: dict[str, str]
    """Variables with which programs reach the store."""
    descriptors: tuple[int, ...] = ()
    """File descriptors. The store runs as long as a process has them open."""


@contextmanager
def chosen_store(
    job: Job, wish: S3Store, home: Path, data: Path | None, tell: Callable[[str], None]
) -> Iterator[ChosenStore]:
    """Yield the store of a run. The store runs during the context.

    wish: the preferred store. EMBEDDED still chooses the endpoint of the job if that endpoint answers and credentials
    are set. data: a folder to upload to data.uri of the embedded store; files that exist there are not sent again.
    tell: called with a note for the user. Raises DtjError.
    """
    if wish is S3Store.EMBEDDED and not _own_is_reachable(job):
        with _embedded(job, home, data, tell) as chosen:
            yield chosen
        return
    if data is not None:
        raise Unusable(
            "--data needs the embedded store, but this run uses the job's endpoint", "remove --data"
        )
    endpoint = job.spec.artifacts.endpoint if job.spec.artifacts else None
    if endpoint and not _answers(endpoint):
        raise Unreachable(
            f"the job's S3 endpoint {endpoint} does not answer", "remove --s3=job to use the embedded store"
        )
    yield ChosenStore(S3Store.JOB, {})


@contextmanager
def _embedded(job: Job, home: Path, data: Path | None, tell: Callable[[str], None]) -> Iterator[ChosenStore]:
    buckets = sorted({parse_s3_uri(uri).bucket for uri in _uris(job) if uri.startswith("s3://")})
    if data is not None and not (job.spec.data and job.spec.data.uri.startswith("s3://")):
        raise Unusable("--data needs a job whose data.uri begins with s3://")
    if not buckets:
        yield ChosenStore(S3Store.EMBEDDED, {})
        return
    from dtj.local.object_store import open_store

    with open_store(home, buckets) as store:
        if data is not None and job.spec.data is not None:
            _upload(store, data, job.spec.data.uri, tell)
        # The programs reach the store on loopback without a proxy.
        no_proxy = ",".join(
            filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"))
        )
        # Unset the settings for the job's own bucket, for example a KMS key, which this store may not support.
        unset = dict.fromkeys(contract.S3_SETTINGS, "")
        environment = {**store.environment, **unset, "NO_PROXY": no_proxy, "no_proxy": no_proxy}
        yield ChosenStore(S3Store.EMBEDDED, environment, (store.lock_fd,))


def _upload(store: OpenStore, folder: Path, uri: str, tell: Callable[[str], None]) -> None:
    if not folder.is_dir():
        raise Unusable(f"--data {folder} is not a folder")
    if sent := store.put_folder(folder, uri):
        tell(f"{folder} was uploaded to {uri} in the embedded store ({sent / 1e6:.1f} MB)")


def _uris(job: Job) -> list[str]:
    artifacts = job.spec.artifacts
    uris = [artifacts.uri, artifacts.resume_uri or ""] if artifacts else []
    return [*uris, job.spec.data.uri if job.spec.data else ""]


def _own_is_reachable(job: Job) -> bool:
    endpoint = job.spec.artifacts.endpoint if job.spec.artifacts else None
    return bool(endpoint and any(map(os.environ.get, _CREDENTIALS)) and _answers(endpoint))


def _answers(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
