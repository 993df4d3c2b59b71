"""Fetches data to the pod once, however many ranks the pod has.

The first process downloads under a lock, and the others wait for it. An interrupted download resumes at the byte
where it stopped. A file gets its name only after its checksum was compared, together with a record of its version, so
that later starts of the pod reuse the file. Within an attempt, processes trust the record without a request: all
ranks of a pod read the same files, and only one rank has to reach S3.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dtj_trainer import contract
from dtj_trainer.artifacts.download import ByteCount
from dtj_trainer.artifacts.s3 import DATA_TIMEOUT_SECONDS, DamagedObject, S3Error, retry_transient
from dtj_trainer.data.errors import DataCorrupt, DataError, DataNotFound, DataUnavailable
from dtj_trainer.data.sources import DataSource, RemoteFile, local_folder, s3_location, s3_source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    Choose = Callable[[Collection[str]], list[str]]

log = logging.getLogger(__name__)

_RECORD = ".staged.json"
Answer = TypeVar("Answer")


def stage(uri: str, choose: Choose, *, timeout: float = DATA_TIMEOUT_SECONDS) -> dict[str, Path]:
    """Make the files at `uri` that `choose` names available on this machine; return their paths by name.

    Local folders are used in place; `s3://` is copied to the workspace. Raises DataNotFound, DataCorrupt or
    DataUnavailable (after `timeout` seconds without a received byte), which name the URI and the files.
    """
    folder = local_folder(uri)
    if folder is not None:
        names = {path.name for path in folder.iterdir() if path.is_file()}
        return {name: folder / name for name in _chosen(uri, choose, names)}
    with _locked_target(uri) as target:
        with suppress(DataNotFound):
            staged = _chosen(uri, choose, _staged_in_this_attempt(target))
            return {name: target / name for name in staged}
        return _stage_remote(uri, s3_source(uri), choose, target, timeout)


def stage_ahead(uri: str, choose: Choose) -> None:
    """Fetch the files, if all of them exist, before a program asks for them.

    Raises nothing and retries nothing: the program that needs the files reports errors and missing files.
    """
    try:
        if local_folder(uri) is None:
            with _locked_target(uri) as target:
                _fetch_all(uri, s3_source(uri), choose, target, ByteCount(), pages=1)
    except (DataError, S3Error, OSError) as error:
        log.debug("nothing of %s is staged ahead: %s", uri, error)


def asked(
    uri: str, ask: Callable[[], Answer], received: ByteCount, timeout: float = DATA_TIMEOUT_SECONDS
) -> Answer:
    """Ask the store, again after transient errors, until `timeout` seconds pass in which `received` does not rise.

    Raises DataUnavailable or DataNotFound, which name the URI.
    """

    def on_wait(error: S3Error, delay: float) -> None:
        log.warning("fetching data: retry in %.1f s: %s", delay, error)

    try:
        return retry_transient(ask, timeout=timeout, progress=lambda: received.total, on_wait=on_wait)
    except S3Error as error:
        if error.transient:
            raise DataUnavailable(f"{uri}: {error}") from error
        raise DataNotFound(f"{uri}: {error}") from error


def _stage_remote(
    uri: str, source: DataSource, choose: Choose, target: Path, timeout: float
) -> dict[str, Path]:
    received = ByteCount()

    def attempt() -> dict[str, Path]:
        return _fetch_all(uri, source, choose, target, received)

    return asked(uri, attempt, received, timeout)


def _fetch_all(
    uri: str,
    source: DataSource,
    choose: Choose,
    target: Path,
    received: ByteCount,
    pages: int | None = None,
) -> dict[str, Path]:
    """Fetch all files, in one try. `pages`: as for `DataSource.list`."""
    remote = source.list(pages)
    chosen = _chosen(uri, choose, remote)
    for name in chosen:
        _fetch(source, remote[name], target, received)
    return {name: target / name for name in chosen}


def _chosen(uri: str, choose: Choose, names: Collection[str]) -> list[str]:
    try:
        return choose(names)
    except DataNotFound as missing:
        raise DataNotFound(f"{uri} {missing}") from None


def _fetch(source: DataSource, file: RemoteFile, target: Path, received: ByteCount) -> None:
    """Fetch `file` into `target` and verify it; an interrupted download resumes.

    `received` counts the bytes as they arrive.
    """
    records = _read_records(target)
    final = target / file.name
    if records.get(file.name, {}).get("etag") == file.etag and _size(final) == file.size:
        records[file.name]["attempt"] = this_attempt()
        _write_records(target, records)
        return
    final.unlink(missing_ok=True)
    partial = target / f".{file.name}.{hashlib.sha256(file.etag.encode()).hexdigest()[:12]}.part"
    for stale in target.glob(f".{file.name}.*.part"):
        if stale != partial:
            stale.unlink()
    start = _size(partial) or 0
    if start > file.size:
        partial.unlink()
        start = 0
    began = time.monotonic()
    with partial.open("ab") as output:
        if start < file.size:
            try:
                for chunk in source.read(file, start):
                    output.write(chunk)
                    received.add(len(chunk))
            except DamagedObject as error:
                partial.unlink()  # Remove the file: the next try would take it for complete.
                raise DataCorrupt(str(error)) from error
        output.flush()
        os.fsync(output.fileno())
    sha256 = _check(source, partial, file)
    partial.rename(final)
    records[file.name] = {"size": file.size, "etag": file.etag, "sha256": sha256, "attempt": this_attempt()}
    _write_records(target, records)
    seconds = time.monotonic() - began
    log.info(
        "staged %s: %.1f MB in %.1f s%s", file.name, file.size / 1e6, seconds, ", resumed" if start else ""
    )


def _check(source: DataSource, path: Path, file: RemoteFile) -> str:
    """Return the file's sha256. If size or MD5 differ from the store's, remove the file and raise DataCorrupt."""
    sha256 = hashlib.sha256()
    md5 = hashlib.md5(usedforsecurity=False)
    size = 0
    with path.open("rb") as content:
        while chunk := content.read(1 << 20):
            sha256.update(chunk)
            md5.update(chunk)
            size += len(chunk)
    try:
        compare(source, file, size, md5.hexdigest())
    except DataCorrupt:
        path.unlink()
        raise
    return sha256.hexdigest()


def compare(source: DataSource, file: RemoteFile, size: int, md5: str) -> None:
    """Raise DataCorrupt if size, in bytes, or MD5 of the received content differ from the store's."""
    etag = file.etag.strip('"')
    # The ETag of a file uploaded in one piece is its MD5. The ETag of a multipart upload contains a `-`. The ETag of
    # an encrypted file may look like an MD5 without being one: ask the store, but only if the digests differ.
    differs = re.fullmatch(r"[0-9a-f]{32}", etag) is not None and md5 != etag
    if size != file.size:
        raise DataCorrupt(f"{file.name} arrived with {size} bytes, and has {file.size} in the store")
    if differs and source.keeps_md5(file):
        raise DataCorrupt(f"{file.name} arrived with the MD5 {md5}, and has the MD5 {etag} in the store")


def workspace_of(uri: str) -> Path:
    """Return the URI's own folder in the workspace, with a recognizable name."""
    last = re.sub(r"[^A-Za-z0-9._-]", "_", uri.rstrip("/").rsplit("/", 1)[-1]) or "data"
    return Path(contract.root()) / contract.DATA / f"{last}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"


def this_attempt() -> str | None:
    """Return the job and attempt of this process; None outside of a job."""
    job, attempt = os.environ.get(contract.ENV_UID), os.environ.get(contract.ENV_ATTEMPT)
    return f"{job}/{attempt}" if job and attempt else None


def _staged_in_this_attempt(target: Path) -> set[str]:
    attempt = this_attempt()
    return {
        name
        for name, record in _read_records(target).items()
        if attempt and record.get("attempt") == attempt and _size(target / name) == record.get("size")
    }


@contextmanager
def _locked_target(uri: str) -> Iterator[Path]:
    """Hold the lock of the URI's own folder. The kernel releases the lock when the process is killed.

    Raises DataNotFound, and creates no folder, for a URI without a valid bucket.
    """
    s3_location(uri)
    target = workspace_of(uri)
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield target


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _read_records(target: Path) -> dict[str, dict[str, object]]:
    try:
        content = json.loads((target / _RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_records(target: Path, records: dict[str, dict[str, object]]) -> None:
    written = target / f"{_RECORD}.new"
    written.write_text(json.dumps(records, indent=1))
    written.replace(target / _RECORD)
