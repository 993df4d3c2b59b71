"""Files of a restored checkpoint that stay in the bucket until the program reads them.

`checkpoints.save(…, on_demand=PATTERN)` names such files. A restore leaves them out, and writes a record of them into
the checkpoint's folder. The program asks for the files that it reads; each comes once for all processes of a pod.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.backoff import SYNC_TIMEOUT_SECONDS, retry_transient
from dtj_trainer.artifacts.file_fetch import Near, fetch_files
from dtj_trainer.artifacts.local_checkpoints import RECORD_FILE, read_mark
from dtj_trainer.artifacts.manifest import DAMAGED_FILE, StoredFile
from dtj_trainer.artifacts.peer_client import CheckpointPeers
from dtj_trainer.artifacts.peer_hosts import peers_from_environment
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.manifest import Manifest
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)


def on_demand_files(manifest: Manifest, arriving: Path) -> list[StoredFile]:
    """Return the files that a restore leaves out, by the marks, which are below `arriving` already."""
    patterns = {_place(file)[0]: read_mark((arriving / file.path).parent) for file in manifest.marks}
    return [
        file
        for file in manifest.files
        if len(place := _place(file)) == 2
        and (mark := patterns.get(place[0]))
        and fnmatchcase(place[1], mark.on_demand)
    ]


def fault_in_bucket(store: Store, snapshot: str, files: list[StoredFile]) -> str | None:
    """Describe the first file that is not in the bucket with its size, or that a rank has found to be damaged.

    store: the checkpoints' prefix. snapshot: the name of its folder. Returns None if all are there. Raises S3Error.
    """
    folders = {snapshot, *(file.key.partition("/")[0] for file in files)} if files else ()
    sizes = {item.key: item.size for folder in folders for item in store.objects(folder)}
    if (damaged := f"{snapshot}/{DAMAGED_FILE}") in sizes:
        return store.get_bytes(damaged).decode(errors="replace")
    for file in files:
        if (size := sizes.get(file.key)) is None:
            return f"{file.path} is missing in the bucket"
        if size != file.size:
            return f"{file.path} has {size} bytes in the bucket instead of {file.size}"
    return None


def write_records(store: Store, snapshot: str, files: list[StoredFile], arriving: Path) -> None:
    """Record in each directory of a snapshot which of its files are in the bucket alone."""
    for name in {_place(file)[0] for file in files}:
        content = {
            "uri": store.location.uri,
            "snapshot": snapshot,
            "files": [asdict(file) for file in files if _place(file)[0] == name],
        }
        (arriving / name / RECORD_FILE).write_text(json.dumps(content))


@dataclass(frozen=True)
class InBucket:
    """Files of a snapshot by their names, the URI of the checkpoints' prefix, and the snapshot's folder there."""

    uri: str
    snapshot: str
    files: dict[str, StoredFile]


def in_bucket(folder: Path) -> InBucket:
    """Return the files of a checkpoint's folder that a restore has left in the bucket."""
    try:
        content = json.loads((folder / RECORD_FILE).read_bytes())
    except FileNotFoundError:
        return InBucket("", "", {})
    files = [StoredFile(**file) for file in content["files"]]
    return InBucket(content["uri"], content["snapshot"], {_place(file)[1]: file for file in files})


def bring(folder: Path, names: Iterable[str]) -> None:
    """Fetch files of a restored checkpoint that are in the bucket alone, and verify them by the manifest.

    The processes of a pod may call it at once: each file is fetched once. Other names are left alone. Raises S3Error
    when a file is missing or damaged, or when the bucket can't be read.
    """
    record = in_bucket(folder)
    lacking = [name for name in names if name in record.files and not (folder / name).exists()]
    if not lacking:
        return
    store, near = open_store(record.uri), _near()
    for name in lacking:
        with _locked(folder / f"{name}.lock.tmp"):
            if (folder / name).exists():  # Another process of the pod has fetched it meanwhile.
                continue
            file = record.files[name]
            # No process may take a file that still arrives, or of which a killed process has left a part.
            arriving = folder / f"{name}.fetch.tmp"
            if fault := _fetched(store, file, arriving, near):
                shutil.rmtree(arriving, ignore_errors=True)
                store.put_bytes(f"{record.snapshot}/{DAMAGED_FILE}", fault.encode())
                raise S3Error(
                    f"checkpoint {store.uri(record.snapshot)}: {fault}; the next attempt goes on from the "
                    "checkpoint before",
                    transient=False,
                )
            (arriving / file.path).rename(folder / name)
            shutil.rmtree(arriving, ignore_errors=True)
    log.info("fetched %d files of checkpoint %s", len(lacking), store.uri(record.snapshot))


def _near() -> Near:
    hosts = peers_from_environment()
    # All pods have started: the training has begun.
    return Near(CheckpointPeers(hosts, patience=0) if hosts else None)


def _fetched(store: Store, file: StoredFile, folder: Path, near: Near) -> str | None:
    def on_wait(error: S3Error, delay: float) -> None:
        log.warning("%s waits %.1f s for S3: %s", file.path, delay, error)

    return retry_transient(
        lambda: fetch_files(store, [file], folder, near),
        # dtj-launch has checked the variable before it started the program.
        timeout=float(os.environ.get(contract.ENV_SYNC_TIMEOUT_SECONDS) or SYNC_TIMEOUT_SECONDS),
        progress=lambda: store.received.total,
        on_wait=on_wait,
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock of this pod's processes and threads. The kernel ends the lock of a dead process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _place(file: StoredFile) -> tuple[str, ...]:
    return PurePosixPath(file.path).parts
