"""Brings files of checkpoints from other pods or the bucket, and verifies them by the manifest."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.arriving_file import ArrivingFile
from dtj_trainer.artifacts.manifest import StoredFile, fault_of
from dtj_trainer.artifacts.s3 import Changed, DamagedObject, NoSuchKey
from dtj_trainer.artifacts.small_files import SMALL_BYTES, at_once

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.offered_files import OfferedFiles
    from dtj_trainer.artifacts.peer_client import CheckpointPeers
    from dtj_trainer.artifacts.room import Room
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Near:
    """Where files may be nearer than in the bucket. None: the pod has no such place.

    `room`: for files of other pods; None: all of them are brought, or the restore fails.
    """

    peers: CheckpointPeers | None = None
    offered: OfferedFiles | None = None
    """What this pod offers to the others."""
    room: Room | None = None

    def __str__(self) -> str:
        """Say how many bytes came from near, for the log; empty without such a place."""
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
    """Bring a file from other pods, and what they do not give from the bucket; return whether it is as it should be.

    Other pods may have the file from this one while it arrives.
    """
    with ArrivingFile(path, shared=True) as arriving:
        peers.bring(file, arriving, checkpoint.received)
        given = arriving.at
        if given < file.size:
            try:
                checkpoint.get_rest(file.key, arriving)
            except (NoSuchKey, DamagedObject, Changed):
                return False  # The download that follows says what is wrong.
        if (arriving.at, arriving.sha256) == (file.size, file.sha256):
            arriving.put()
            return True
    if given:
        log.warning("%s is damaged with %d bytes of other pods; it is fetched again", file.path, given)
    return False


def _downloaded(checkpoint: Store, file: StoredFile, path: Path) -> str | None:
    """Download one file and verify it; return a description of the fault, or None."""
    try:
        sha256 = checkpoint.get_with_sha256(file.key, path, small=file.size < SMALL_BYTES)
    except NoSuchKey:
        return f"{file.path} is missing in the bucket"
    except (DamagedObject, Changed) as error:
        return str(error)
    return fault_of(path, file, sha256)
