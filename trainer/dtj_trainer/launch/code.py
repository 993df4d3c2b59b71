"""Brings the code of a job (`spec.code`) into the workspace, anew for each start of the programs."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.artifacts.backoff import retry_transient
from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error, make_client, parse_s3_uri, sentences
from dtj_trainer.contract.code_archive import PACKED_BYTES, CodeError, unpack
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.settings import Settings

log = logging.getLogger(__name__)

_CHUNK = 1024**2


class CodeUnavailable(Exception):
    """Code or packages could not be brought into the workspace. The message says why; `cause` is the class of the
    failure.
    """

    def __init__(self, message: str, cause: FailureClass) -> None:
        super().__init__(message)
        self.cause = cause


def bring_code(settings: Settings) -> None:
    """Unpack the archive of the job, if the job has one. Raises CodeUnavailable.

    A bucket that does not answer is asked again for the sync timeout.
    """
    if settings.code is None:
        return
    source, digest = settings.code
    folder = settings.root / contract.CODE
    with (
        unavailable(source, f"the code could not be unpacked to {folder}"),
        local_archive(source, settings, contract.CODE_FILE) as archive,
    ):
        unpack(archive, digest, folder)


@contextmanager
def unavailable(source: str, what: str) -> Iterator[None]:
    """Raise the errors of an archive as CodeUnavailable. what: the sentence of an error of the file system."""
    try:
        yield
    except (CodeError, NoSuchKey, ValueError) as error:
        raise CodeUnavailable(f"{source}: {error}", FailureClass.CODE_UNUSABLE) from error
    except S3Error as error:
        raise CodeUnavailable(f"{source}: {error}", FailureClass.ARTIFACTS_UNAVAILABLE) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename == source:
            what = f"{source} is not there"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cause = FailureClass.DISK_FULL if full else FailureClass.CODE_UNUSABLE
        raise CodeUnavailable(f"{what}: {error}", cause) from error


@contextmanager
def local_archive(source: str, settings: Settings, name: str) -> Iterator[Path]:
    """Give the path of an archive; an archive in a bucket is copied for the time of the context.

    A bucket that does not answer is asked again for the sync timeout. Raises S3Error; CodeError for an object above
    the limit of an archive.
    """
    if not source.startswith("s3://"):
        yield Path(source)
        return
    copy = settings.root / f".{name}"
    try:
        retry_transient(
            lambda: _download(source, copy),
            timeout=settings.sync_timeout,
            on_wait=lambda error, seconds: log.warning("%s; again in %.0f s", error, seconds),
        )
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def _download(uri: str, copy: Path) -> None:
    place = parse_s3_uri(uri)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with sentences(uri):
        answer = make_client().get_object(Bucket=place.bucket, Key=place.prefix)
        if (size := answer["ContentLength"]) > PACKED_BYTES:
            raise CodeError(f"the archive has {size:,} bytes, and may have {PACKED_BYTES:,}")
        with closing(answer["Body"]) as body, copy.open("wb") as file:
            read: Callable[[int], bytes] = body.read
            while content := read(_CHUNK):
                file.write(content)
