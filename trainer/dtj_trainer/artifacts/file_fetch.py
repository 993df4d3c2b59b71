"""Brings files of a checkpoint, from the node's cache or the bucket, and verifies them by the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_trainer.artifacts.checkpoint_cache import BeingFetched
from dtj_trainer.artifacts.manifest import StoredFile, fault_of
from dtj_trainer.artifacts.s3 import Changed, DamagedObject, NoSuchKey

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.checkpoint_cache import CheckpointCache
    from dtj_trainer.artifacts.store import Store


def fetch_files(
    checkpoint: Store, files: Iterable[StoredFile], folder: Path, cache: CheckpointCache | None
) -> str | None:
    """Bring files to their paths below `folder`; return a description of the first fault, or None.

    Files that an interrupted call already fetched are not fetched again. Pods with one cache fetch different files at
    a time: each goes to the next file while another fetches one. Raises S3Error and OSError.
    """
    left: list[StoredFile] = []
    for file in files:
        try:
            if fault := _fetch(checkpoint, file, folder / file.path, cache, wait=False):
                return fault
        except BeingFetched:
            left.append(file)
    for file in left:
        if fault := _fetch(checkpoint, file, folder / file.path, cache, wait=True):
            return fault
    return None


def _fetch(
    checkpoint: Store, file: StoredFile, path: Path, cache: CheckpointCache | None, *, wait: bool
) -> str | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and fault_of(path, file) is None:
        return None

    def download() -> str | None:
        # Fetch a damaged file once more: the transfer may have damaged it.
        return _downloaded(checkpoint, file, path) and _downloaded(checkpoint, file, path)

    return cache.bring(file, path, download, wait=wait) if cache else download()


def _downloaded(checkpoint: Store, file: StoredFile, path: Path) -> str | None:
    """Download one file and verify it; return a description of the fault, or None."""
    try:
        sha256 = checkpoint.get_with_sha256(file.key, path)
    except NoSuchKey:
        return f"{file.path} is missing in the bucket"
    except (DamagedObject, Changed) as error:
        return str(error)
    return fault_of(path, file, sha256)
