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

from dtj.api.errors import DtjError, Unreachable, Unusable
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
    are set. data: a folder to copy to data.uri of the embedded store; files that exist there are not sent again.
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
    uri = job.spec.data.uri if job.spec.data else ""
    if data is not None:
        _check_data(data, uri)
    if not buckets:
        yield ChosenStore(S3Store.EMBEDDED, {})
        return
    from dtj.local.object_store import open_store

    with open_store(home, buckets) as store:
        if data is not None:
            _copy(store, data, uri, tell)
        elif uri.startswith("s3://") and _is_empty(store, uri):
            raise Unusable(
                f"the job's data.uri {uri} has no files in the embedded store",
                "copy a folder there with --data DIR, once; or use --s3=job to read the job's own store",
            )
        # The programs reach the store on loopback without a proxy.
        no_proxy = ",".join(
            filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"))
        )
        # Unset the settings for the job's own bucket, for example a KMS key, which this store may not support.
        unset = dict.fromkeys(contract.S3_SETTINGS, "")
        environment = {**store.environment, **unset, "NO_PROXY": no_proxy, "no_proxy": no_proxy}
        yield ChosenStore(S3Store.EMBEDDED, environment, (store.lock_fd,))


def _check_data(folder: Path, uri: str) -> None:
    """Raise Unusable unless a folder can be copied to the URI."""
    if not uri:
        raise Unusable(
            "--data copies a folder to the job's data.uri, and the job has none",
            "add `data: {uri: s3://datasets/NAME}` to the job's spec",
        )
    if not uri.startswith("s3://"):
        raise Unusable(
            f"--data copies a folder to a data.uri that begins with s3://, and the job reads {uri} from this machine",
            f"remove --data, or change the job's data.uri to file://{folder.resolve()}",
        )
    if not folder.is_dir():
        raise Unusable(f"--data {folder} is not a folder")
    if not any(path.is_file() for path in folder.rglob("*")):
        raise Unusable(f"--data {folder} has no files")


def _copy(store: OpenStore, folder: Path, uri: str, tell: Callable[[str], None]) -> None:
    from dtj.local.data_copy import copy_folder

    copied = copy_folder(store.environment, folder, uri)
    if copied.removed:
        files, were = ("1 file", "was") if copied.removed == 1 else (f"{copied.removed} files", "were")
        tell(f"{files} of an earlier --data {were} removed from {uri} in the embedded store")
    if copied.sent:
        tell(f"{folder} was uploaded to {uri} in the embedded store ({copied.sent / 1e6:.1f} MB)")
    if others := copied.others:
        named = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        tell(
            f"{uri} in the embedded store also has {named}, which {folder} has not: the job reads all of them"
        )


def _is_empty(store: OpenStore, uri: str) -> bool:
    from dtj_trainer.artifacts.s3 import S3Error
    from dtj_trainer.artifacts.store import open_store

    try:
        return next(iter(open_store(uri, store.environment).objects()), None) is None
    except S3Error as error:
        raise DtjError(f"{uri} can't be listed in the embedded store: {error}") from error


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
