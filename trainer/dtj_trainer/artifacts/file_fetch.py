"""Brings files of checkpoints from other pods or the bucket, and verifies them by the manifest.

`put_back` and `restore` call it at a pod's start, `checkpoints.bring` when the program reads a file that is still
in the bucket. Not here: which snapshot is restored (`restore`), and who gives files to whom (`peers`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.arriving_file import ArrivingFile
from dtj_trainer.artifacts.local_checkpoints import RECORD_FILE, read_mark
from dtj_trainer.artifacts.manifest import DAMAGED_FILE, StoredFile, fault_of
from dtj_trainer.artifacts.multipart import AT_ONCE, SMALL_BYTES, at_once
from dtj_trainer.artifacts.peer_hosts import peers_from_environment
from dtj_trainer.artifacts.peers import CheckpointPeers
from dtj_trainer.artifacts.pod_manifest import giver_of
from dtj_trainer.artifacts.s3 import (
    SYNC_TIMEOUT_SECONDS,
    Changed,
    DamagedObject,
    NoSuchKey,
    S3Error,
    retry_transient,
)
from dtj_trainer.artifacts.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.manifest import Manifest
    from dtj_trainer.artifacts.peers import OfferedFiles
    from dtj_trainer.artifacts.store import Store


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Near:
    """The places from which a pod gets checkpoint files faster than from the bucket. None: there is no such place.

    `room`: leaves files of other pods in the bucket if the volume is too small; None: a restore brings all files.
    """

    peers: CheckpointPeers | None = None
    offered: OfferedFiles | None = None
    """The files that this pod offers to the job's other pods."""
    room: Room | None = None

    def __str__(self) -> str:
        """Return how many bytes came from other pods, as text for the log; empty without other pods."""
        return f"{self.peers.bytes_received} of them from other pods" if self.peers else ""


def fetch_files(checkpoint: Store, files: Iterable[StoredFile], folder: Path, near: Near) -> str | None:
    """Bring files to their paths below `folder`; return a description of the first fault, or None.

    Files that an interrupted call already fetched are not fetched again. Raises S3Error and OSError.
    """
    files = list(files)
    small = [file for file in files if file.size < SMALL_BYTES]
    if len(small) > 1:
        transfers = (partial(_fetch, checkpoint, file, folder / file.path, near) for file in small)
        if fault := next(filter(None, at_once(transfers)), None):
            return fault
        files = [file for file in files if file.size >= SMALL_BYTES]
    for file in near.peers.in_own_order(files) if near.peers else files:
        if fault := _fetch(checkpoint, file, folder / file.path, near):
            return fault
    return None


def _fetch(checkpoint: Store, file: StoredFile, path: Path, near: Near) -> str | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and fault_of(path, file) is None:
        return None
    if near.peers and near.peers.takes(file) and _arrived(checkpoint, file, path, near.peers):
        return None
    # Fetch a damaged file once more: the transfer may have damaged it.
    return _downloaded(checkpoint, file, path) and _downloaded(checkpoint, file, path)


def _arrived(checkpoint: Store, file: StoredFile, path: Path, peers: CheckpointPeers) -> bool:
    """Fetch a file from other pods, and the missing bytes from the bucket; return whether size and SHA-256 are right.

    Other pods may read the file from this pod while the file arrives.
    """
    with ArrivingFile(path, shared=True) as arriving:
        peers.bring(file, arriving, checkpoint.received)
        given = arriving.at
        if given < file.size and file.key:
            try:
                checkpoint.get_rest(file.key, arriving)
            except (NoSuchKey, DamagedObject, Changed):
                # The caller then downloads the file from the bucket. That download reports what is wrong.
                return False
        if (arriving.at, arriving.sha256) == (file.size, file.sha256):
            arriving.put()
            return True
    if given:
        log.warning(
            "%s is damaged (%d of its bytes came from other pods), and is fetched again", file.path, given
        )
    return False


def _downloaded(checkpoint: Store, file: StoredFile, path: Path) -> str | None:
    """Download one file and verify it; return a description of the fault, or None."""
    if not file.key:
        return f"no other pod sends {file.path}, and the bucket does not have the file"
    try:
        sha256 = checkpoint.get_with_sha256(file.key, path, small=file.size < SMALL_BYTES)
    except NoSuchKey:
        return f"{file.path} is missing in the bucket"
    except (DamagedObject, Changed) as error:
        return str(error)
    return fault_of(path, file, sha256)


# Room decides which files of other pods a restore brings. Files for which the volume has no room stay in the bucket.
#
# A pod needs its own files and those of rank 0's pod. The files of the other pods come after these, the newest first.

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_MOST_NAMED = 3


class Room:
    """Brings the files of a snapshot to one pod. `left_out`: the files that the last call left in the bucket."""

    def __init__(
        self, pods: Iterable[str], free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    ) -> None:
        """`pods`: the names under which this pod gives files to snapshots. `free`: the free bytes of a volume."""
        self._needed = {"", *pods}
        self._free = free
        self.left_out: list[StoredFile] = []
        self.text = ""
        """Which files were left in the bucket, and why; empty: none."""

    def bring(self, store: Store, files: Iterable[StoredFile], arriving: Path, near: Near) -> str | None:
        """Bring files as `fetch_files` does, except files of other pods that the volume has no room for.

        Afterwards the volume has room for one more file of the size of the largest file that the pod needs: the
        program will write its next checkpoint.
        """
        self.left_out, self.text = [], ""
        needed: list[StoredFile] = []
        others: list[StoredFile] = []
        for file in files:
            (needed if giver_of(file) in self._needed else others).append(file)
        fault = fetch_files(store, needed, arriving, near)
        if fault or not others:
            return fault
        others.sort(key=lambda file: (-file.mtime_ns, file.path))
        spare = max((file.size for file in needed), default=0)
        fault = self._bring_others(store, others, arriving, near, spare)
        if self.left_out and not fault:
            self._tell(arriving.parent)
        return fault

    def _bring_others(
        self, store: Store, others: list[StoredFile], arriving: Path, near: Near, spare: int
    ) -> str | None:
        if sum(_lacking(file, arriving) for file in others) + spare <= self._free(arriving):
            try:
                return fetch_files(store, others, arriving, near)
            except OSError as error:
                _check_room(error)
        # Measure the free space before each batch: other pods of the node may fill the same volume.
        for batch in _batches(others):
            fits, room = [], self._free(arriving) - spare
            for file in batch:
                size = _lacking(file, arriving)
                if size <= room:
                    fits.append(file)
                    room -= size
                else:
                    self.left_out.append(file)
            try:
                if fault := fetch_files(store, fits, arriving, near):
                    return fault
            except OSError as error:
                _check_room(error)
                self.left_out += [file for file in fits if _lacking(file, arriving)]
        return None

    def _tell(self, folder: Path) -> None:
        named = ", ".join(ascii(file.path) for file in self.left_out[:_MOST_NAMED])
        more = len(self.left_out) - _MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        size = sum(file.size for file in self.left_out)
        self.text = (
            f"the volume of {folder} has no room for {size} bytes of checkpoint files of other pods: {named}"
        )
        log.warning("%s. These files stay in the bucket, and the next checkpoints include them", self.text)


def _check_room(error: OSError) -> None:
    if error.errno not in _NO_ROOM:
        raise error


def _lacking(file: StoredFile, arriving: Path) -> int:
    """Return how many bytes of the volume a file still needs; 0 if the file has arrived."""
    path = arriving / file.path
    return 0 if path.is_file() and path.stat().st_size == file.size else max(file.size, 1)


def _batches(files: Iterable[StoredFile]) -> Iterator[list[StoredFile]]:
    """Yield large files one by one, and small ones that follow each other together, a few at a time."""
    for small, group in groupby(files, lambda file: file.size < SMALL_BYTES):
        found, most = list(group), 4 * AT_ONCE if small else 1
        for at in range(0, len(found), most):
            yield found[at : at + most]


# Some files of a restored checkpoint stay in the bucket until the program reads them.
#
# `checkpoints.save(…, on_demand=PATTERN)` names such files. A restore leaves them out, and writes a record of them
# into the checkpoint's folder. The program asks for the files that it reads. Each file is fetched once for all
# processes of a pod.


def on_demand_files(manifest: Manifest, *folders: Path) -> list[StoredFile]:
    """Return the files that a restore leaves in the bucket, by the mark files, which one of `folders` already has."""
    patterns = {
        name: next(filter(None, (read_mark(folder / name) for folder in folders)), None)
        for name in (_place(file)[0] for file in manifest.marks)
    }
    return [
        file
        for file in manifest.files
        if file.key
        and len(place := _place(file)) == 2
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
        (arriving / name).mkdir(exist_ok=True)
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
            if (folder / name).exists():  # Another process of the pod has fetched the file meanwhile.
                continue
            file = record.files[name]
            # Download into a folder of its own: no process may read a file that still arrives, or that a killed
            # process left incomplete.
            arriving = folder / f"{name}.fetch.tmp"
            if fault := _fetched(store, file, arriving, near):
                shutil.rmtree(arriving, ignore_errors=True)
                store.put_bytes(f"{record.snapshot}/{DAMAGED_FILE}", fault.encode())
                raise S3Error(
                    f"checkpoint {store.uri(record.snapshot)}: {fault}; the next attempt resumes from the "
                    "checkpoint before this one",
                    transient=False,
                )
            (arriving / file.path).rename(folder / name)
            shutil.rmtree(arriving, ignore_errors=True)
    log.info("fetched %d files of checkpoint %s", len(lacking), store.uri(record.snapshot))


def _near() -> Near:
    hosts = peers_from_environment()
    # With `patience=0`, no request waits for a pod to start: the training has begun, so that all pods have started.
    return Near(CheckpointPeers(hosts, patience=0) if hosts and not hosts.loopback else None)


def _fetched(store: Store, file: StoredFile, folder: Path, near: Near) -> str | None:
    def on_wait(error: S3Error, delay: float) -> None:
        log.warning("the download of %s waits %.1f s for S3: %s", file.path, delay, error)

    return retry_transient(
        lambda: fetch_files(store, [file], folder, near),
        # float() does not fail: dtj-launch has checked the variable before it started the program.
        timeout=float(os.environ.get(contract.ENV_SYNC_TIMEOUT_SECONDS) or SYNC_TIMEOUT_SECONDS),
        progress=lambda: store.received.total,
        on_wait=on_wait,
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that excludes other threads and processes of this pod. The kernel releases the lock of a dead
    process.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _place(file: StoredFile) -> tuple[str, ...]:
    return PurePosixPath(file.path).parts
