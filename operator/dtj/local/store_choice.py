"""Which object store a run has, and the environment that leads to it."""

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
    """Where the artifacts and the data of a local run are."""

    EMBEDDED = "embedded"
    JOB = "job"


@dataclass(frozen=True)
class ChosenStore:
    """The store of a run."""

    kind: S3Store
    environment: dict[str, str]
    """Variables that lead to it."""
    held: tuple[int, ...] = ()
    """Descriptors that keep it up."""


@contextmanager
def chosen_store(
    job: Job, wish: S3Store, home: Path, data: Path | None, tell: Callable[[str], None]
) -> Iterator[ChosenStore]:
    """The store of a job's run, kept up meanwhile.

    wish: the embedded one is left alone where the job's own endpoint answers and there are credentials for it.
    data: a folder that is put at the job's data.uri, unless that is there. tell: hears of it. Raises DtjError.
    """
    if wish is S3Store.EMBEDDED and not _own_is_reachable(job):
        with _embedded(job, home, data, tell) as chosen:
            yield chosen
        return
    if data is not None:
        raise Unusable("--data needs the embedded store, this run uses the job's own", "leave --data out")
    endpoint = job.spec.artifacts.endpoint if job.spec.artifacts else None
    if endpoint and not _answers(endpoint):
        raise Unreachable(
            f"the job's S3 endpoint {endpoint} does not answer", "leave --s3=job out for an embedded store"
        )
    yield ChosenStore(S3Store.JOB, {})


@contextmanager
def _embedded(job: Job, home: Path, data: Path | None, tell: Callable[[str], None]) -> Iterator[ChosenStore]:
    buckets = sorted({parse_s3_uri(uri).bucket for uri in _uris(job) if uri.startswith("s3://")})
    if data is not None and not (job.spec.data and job.spec.data.uri.startswith("s3://")):
        raise Unusable("--data is for a job whose data.uri begins with s3://, which this one's does not")
    if not buckets:
        yield ChosenStore(S3Store.EMBEDDED, {})
        return
    from dtj.local.object_store import open_store

    with open_store(home, buckets) as store:
        if data is not None and job.spec.data is not None:
            _put(store, data, job.spec.data.uri, tell)
        # The programs reach the store on loopback without a proxy.
        none = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1")))
        # What the job's own bucket demands, encryption by a key of KMS for example, this store may not know.
        unset = dict.fromkeys(contract.S3_SETTINGS, "")
        environment = {**store.environment, **unset, "NO_PROXY": none, "no_proxy": none}
        yield ChosenStore(S3Store.EMBEDDED, environment, (store.lock_fd,))


def _put(store: OpenStore, folder: Path, uri: str, tell: Callable[[str], None]) -> None:
    if not folder.is_dir():
        raise Unusable(f"--data {folder} is no folder")
    if sent := store.put_folder(folder, uri):
        tell(f"{folder} was put into {uri} of the embedded store ({sent / 1e6:.1f} MB)")


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
