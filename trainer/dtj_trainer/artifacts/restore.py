"""Restores the newest good checkpoint from the bucket into the checkpoints folder."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_index import CheckpointIndex, age, read_index
from dtj_trainer.artifacts.file_fetch import Near, fetch_files
from dtj_trainer.artifacts.manifest import VERSION, Manifest, ManifestError
from dtj_trainer.artifacts.on_demand import fault_in_bucket, marks, on_demand_files, write_records
from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.artifacts.tensorflow_state import STATE_FILE, write_state

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

RESUME_AUTO = "Auto"
RESUME_NEVER = "Never"
_TO_START_ANEW = "To start from 0 instead, set spec.artifacts.resume: Never"
_NOWHERE = Near()


class Restored(NamedTuple):
    """A restored checkpoint, and its URI."""

    manifest: Manifest
    uri: str
    own: bool
    """Whether the checkpoint is below the job's own prefix."""


def restore(own: Store, folder: Path, resume: str, near: Near = _NOWHERE) -> Restored | None:
    """Restore the newest good checkpoint into `folder`; None when there is none and training starts from 0.

    `resume` is `Auto` (the job's own checkpoints below `own`), `Never`, or the `s3://` prefix of another job's
    checkpoints, which is used when the job has no checkpoint. Another job may remove its checkpoints at any time: all
    files of those are brought at once. A torn or damaged checkpoint is skipped with a warning,
    and the next older one is restored. Files that are in a place of `near` do not come from the bucket.

    Raises S3Error: the bucket can't be read; none of the existing checkpoints can be restored; or the other prefix
    holds no good checkpoint.
    Raises ValueError: `resume` has another value.
    """
    if resume == RESUME_NEVER:
        log.info("resume is Never: training starts from 0")
        return None
    other = None if resume in {RESUME_AUTO, ""} else open_store(resume, received=own.received)
    manifest = restore_newest(own, folder, near, whole=False)
    if manifest:
        return Restored(manifest, own.uri(manifest.folder), own=True)
    if other is None:
        log.info("no checkpoint below %s: training starts from 0", own.location.uri)
        return None
    return _restore_other(other, folder, near)


def _restore_other(other: Store, folder: Path, near: Near) -> Restored:
    manifest = _restore_exactly(other, folder, near)
    if manifest:
        return Restored(manifest, other.location.uri, own=False)
    for store in (other, other.below(contract.CHECKPOINTS)):
        manifest = restore_newest(store, folder, near)
        if manifest:
            return Restored(manifest, store.uri(manifest.folder), own=False)
    raise S3Error(f"no complete checkpoint to resume from below {other.location.uri}", transient=False)


def _restore_exactly(checkpoint: Store, folder: Path, near: Near) -> Manifest | None:
    """Restore the checkpoint directly below the prefix; None when the prefix has no manifest of its own."""
    try:
        manifest = Manifest.from_json(checkpoint.get_bytes(contract.MANIFEST_FILE))
    except NoSuchKey:
        return None
    except ManifestError as error:
        raise S3Error(f"checkpoint {checkpoint.location.uri}: {error}", transient=False) from error
    fault = fetch(checkpoint, manifest, folder, near)
    if fault:
        raise S3Error(f"checkpoint {checkpoint.location.uri}: {fault}", transient=False)
    return manifest


def restore_newest(
    store: Store, folder: Path, near: Near = _NOWHERE, *, whole: bool = True
) -> Manifest | None:
    """Restore the newest checkpoint below a checkpoints prefix whose files match its manifest.

    `whole`: see `fetch`. Returns None when no upload below the prefix was ever completed. Raises S3Error when all
    checkpoints are damaged, or when a later release wrote the newest one: training from 0 would replace them with new
    checkpoints.
    """
    index = read_index(store, warn=True)
    waiting = index.newest_first()
    damaged = dict(index.damaged)
    while True:
        manifest = waiting.pop(0) if waiting else None
        _refuse_newer(store, index, manifest)
        if manifest is None:
            break
        checkpoint = store.below(manifest.folder)
        fault = fetch(checkpoint, manifest, folder, near, whole=whole)
        if fault is None:
            size = ", ".join(filter(None, (f"{manifest.size} bytes", str(near))))
            log.info("restored checkpoint %s (%s)", checkpoint.location.uri, size)
            return manifest
        now = read_index(store)
        if now != index:  # Another process uploaded a newer checkpoint and removed this one.
            index, waiting, damaged = now, now.newest_first(), dict(now.damaged)
            continue
        damaged[manifest.folder] = fault
        log.warning("checkpoint %s is damaged: %s; skipped", checkpoint.location.uri, fault)
    if damaged:
        described = "; ".join(f"{folder}: {fault}" for folder, fault in list(damaged.items())[:3])
        raise S3Error(
            f"no checkpoint below {store.location.uri} can be restored: {len(damaged)} damaged ({described}). "
            f"{_TO_START_ANEW}",
            transient=False,
        )
    return None


def _refuse_newer(store: Store, index: CheckpointIndex, manifest: Manifest | None) -> None:
    """Raise S3Error when a later release wrote a checkpoint newer than `manifest` (None: any checkpoint)."""
    after = [folder for folder, when in index.newer.items() if manifest is None or when > age(manifest)]
    if after:
        newest = max(after, key=lambda folder: index.newer[folder])
        raise S3Error(
            f"a newer release of dtj_trainer wrote the checkpoint {store.uri(newest)}: this release reads "
            f"manifests up to version {VERSION}. Use an image with the newer release. {_TO_START_ANEW}",
            transient=False,
        )


def fetch(
    checkpoint: Store,
    manifest: Manifest,
    folder: Path,
    near: Near = _NOWHERE,
    *,
    whole: bool = True,
) -> str | None:
    """Bring a checkpoint, verify it and move it into place; return a description of the fault, or None.

    Unless it has to be `whole`, files that the program reads on demand stay in the bucket; see `on_demand`.
    Files that an interrupted call already fetched are not fetched again. A program that reads `folder` meanwhile sees
    complete files only, and sees TensorFlow's state file only after the files that the state file names.
    """
    arriving = folder / f".restore-{manifest.step}"
    near = near.for_checkpoint(manifest.size)
    if near.offered:
        near.offered.offer(manifest, arriving, folder)
    fault = (not whole and fetch_files(checkpoint, marks(manifest), arriving, near)) or None
    later = [] if whole or fault else on_demand_files(manifest, arriving)
    fault = fault or fault_in_bucket(checkpoint, later)
    now = [file for file in manifest.files if file not in later]
    if fault := fault or fetch_files(checkpoint, now, arriving, near):
        shutil.rmtree(arriving, ignore_errors=True)
        return fault
    if later:
        log.info("%d files stay in the bucket until the program reads them", len(later))
        write_records(checkpoint, later, arriving)
    names = [entry.name for entry in manifest.entries]
    if write_state(arriving, names):
        names.append(STATE_FILE)
    for name in sorted(names, key=lambda name: name == STATE_FILE):
        if (folder / name).is_dir() or (arriving / name).is_dir():
            remove(folder / name)
        (arriving / name).replace(folder / name)
    shutil.rmtree(arriving, ignore_errors=True)
    return None


def remove(path: Path) -> None:
    """Remove a file or a directory if it exists. A reader sees all of a directory or nothing."""
    if path.is_dir() and not path.is_symlink():
        hidden = path.with_name(f".removed-{path.name}")
        if hidden.exists():  # An interrupted call left the folder.
            shutil.rmtree(hidden)
        path.rename(hidden)
        shutil.rmtree(hidden)
    else:
        path.unlink(missing_ok=True)
