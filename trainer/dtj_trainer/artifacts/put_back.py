"""Makes the checkpoints folder equal to a snapshot: files, folders and links, with their modification times."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.arriving_file import beside
from dtj_trainer.artifacts.file_fetch import (
    Near,
    fault_in_bucket,
    fetch_files,
    on_demand_files,
    write_records,
)
from dtj_trainer.artifacts.folder_captures import walk
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE
from dtj_trainer.artifacts.manifest import UNKNOWN_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

    from dtj_trainer.artifacts.manifest import Manifest, StoredFile, StoredNode
    from dtj_trainer.artifacts.store import Store


# TensorFlow's state file, `checkpoint`, names the newest checkpoint in its folder.

STATE_FILE = "checkpoint"
_NEWEST = re.compile(rb'^model_checkpoint_path: "([^"\n]+)"')


def is_state(path: Path) -> bool:
    """Return whether the file is TensorFlow's state file, and not a checkpoint of that name."""
    return _named_by(path) is not None


def write_state(folder: Path, names: Sequence[str]) -> bool:
    """Ensure that the state file in `folder` names a checkpoint among the files `names`; return whether it was
    written.

    The program's state file may be missing, or may name a later checkpoint, when the program saves faster than
    checkpoints become complete. TensorFlow would then find no checkpoint and start from 0. Without TensorFlow's files
    the function does nothing.
    """
    prefixes = [
        prefix
        for prefix in (name.removesuffix(".index") for name in names if name.endswith(".index"))
        if any(name.startswith(f"{prefix}.data-") for name in names)
    ]
    state = folder / STATE_FILE
    if not prefixes or (state.exists() and _named_by(state) in {None, *prefixes}):
        return False
    state.write_text(f'model_checkpoint_path: "{prefixes[0]}"\nall_model_checkpoint_paths: "{prefixes[0]}"\n')
    return True


def _named_by(state: Path) -> str | None:
    """Return the name of the checkpoint that TensorFlow's state file names, without the folder."""
    try:
        with state.open("rb") as file:
            found = _NEWEST.match(file.read(4096))
    except OSError:
        return None
    return PurePosixPath(found[1].decode(errors="replace")).name if found else None


log = logging.getLogger(__name__)

NOWHERE = Near()
_IN_ORDER = 64
"""A restore gives this many of the newest files and folders change times in the order of their modification times."""
_ARRIVING, _REMOVED = ".restore-", ".removed-"


def put_back(
    store: Store,
    manifest: Manifest,
    folder: Path,
    near: Near = NOWHERE,
    *,
    whole: bool = True,
    present: Mapping[str, StoredFile] | None = None,
    sources: Mapping[str, str] | None = None,
) -> str | None:
    """Bring a snapshot, verify it and move it into place; return a description of the first fault, or None.

    store: the checkpoints' prefix. `whole`: without it, files that the program reads on demand (see `file_fetch`)
    stay in the bucket, and those for which there is no `near.room`. `present`: files that are known to be in place,
    by path; what is unchanged of them stays. `sources`: where the folder has files of the snapshot, by their paths in
    it. Call `leave_only` to remove what the snapshot does not have.

    Files that an interrupted call already fetched are not fetched again. A program that reads `folder` meanwhile sees
    complete files only. Files and folders appear in the order of their times, the oldest first, and the change times
    of the newest have that order, too: scripts choose by either. Raises S3Error and OSError.
    """
    arriving = arriving_folder(folder, manifest)
    if not _is_folder(arriving):
        arriving.unlink(missing_ok=True)
    arriving.mkdir(parents=True, exist_ok=True)
    if near.offered:
        near.offered.offer(manifest, arriving, folder)
    stays = _staying(manifest, present or {}, folder)
    _link(
        {path: source for path, source in (sources or {}).items() if path not in stays},
        manifest,
        folder,
        arriving,
    )
    lacking = [file for file in manifest.files if file.path not in stays]
    marks = [file for file in manifest.marks if file.path not in stays]
    fault = (not whole and fetch_files(store, marks, arriving, near)) or None
    on_demand = [] if whole or fault else on_demand_files(manifest, arriving, folder)
    later = [file for file in on_demand if file.path not in stays]
    fault = fault or fault_in_bucket(store, manifest.folder, later)
    room = None if whole else near.room
    if not fault:
        bring = room.bring if room else fetch_files
        fault = bring(store, [file for file in lacking if file not in later], arriving, near)
    if fault:
        shutil.rmtree(arriving, ignore_errors=True)
        return fault
    left = room.left_out if room else ()
    saved = {mark.path.partition("/")[0] for mark in manifest.marks}
    later += [file for file in left if file.path.count("/") == 1 and file.path.partition("/")[0] in saved]
    if later:
        log.info(
            "%d files of the checkpoint stay in the bucket until checkpoints.bring() fetches them", len(later)
        )
        write_records(store, manifest.folder, later, arriving)
    if manifest.version == 1:
        write_state(arriving, [path for path in manifest.paths if "/" not in path])
    _complete(manifest, arriving)
    _move(arriving, folder)
    shutil.rmtree(arriving, ignore_errors=True)
    _set_times_in_order([node for node in _oldest_first(manifest) if node.path not in stays], folder)
    return None


def arriving_folder(folder: Path, manifest: Manifest) -> Path:
    """Return the folder that has the files of a snapshot before they are moved into their place."""
    return folder / f"{_ARRIVING}{manifest.folder}"


def _link(sources: Mapping[str, str], manifest: Manifest, folder: Path, arriving: Path) -> None:
    """Hard-link files of `folder` into `arriving`. A file that the snapshot has at two paths is copied, because a
    program may later write into either of the two files.
    """
    taken = manifest.paths
    for path, source in sources.items():
        target = arriving / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            if source in taken and source != path:
                raise OSError(errno.EMLINK, "the snapshot has this file at another path, too", source)
            os.link(folder / source, target)
            taken.add(source)
        except OSError:  # The error above, or a file system without hard links.
            shutil.copyfile(folder / source, target)


def _set_times_in_order(nodes: list[StoredNode], folder: Path) -> None:
    """Set the times of folders, which moves have changed, and of the newest nodes, each with a later change time.

    A kernel's change times may have ticks of some milliseconds. To wait for a tick after each of thousands of files
    would take too long, so that only the newest are put in order.
    """
    changed_ns = 0
    for place, node in enumerate(nodes):
        newest = place >= len(nodes) - _IN_ORDER
        path = folder / node.path
        if node.mtime_ns == UNKNOWN_TIME or not (newest or _is_folder(path)) or not os.path.lexists(path):
            continue
        _set_time(path, node.mtime_ns)
        while newest and path.lstat().st_ctime_ns <= changed_ns:
            time.sleep(0.001)
            _set_time(path, node.mtime_ns)
        changed_ns = path.lstat().st_ctime_ns


def _staying(manifest: Manifest, present: Mapping[str, StoredFile], folder: Path) -> set[str]:
    """Return the paths of files that are in place. A folder of `checkpoints.save` stays as a whole, or not at all."""
    stays = {file.path for file in manifest.files if _stays(file, present.get(file.path), folder)}
    new = {file.path.partition("/")[0] for file in manifest.marks if file.path not in stays}
    return {path for path in stays if path.partition("/")[0] not in new}


def _stays(file: StoredFile, before: StoredFile | None, folder: Path) -> bool:
    if before is None or (before.size, before.sha256, before.mtime_ns) != (
        file.size,
        file.sha256,
        file.mtime_ns,
    ):
        return False
    try:
        status = (folder / file.path).lstat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)


def _complete(manifest: Manifest, arriving: Path) -> None:
    """Add folders and links to the files that have arrived, and set all times, the oldest first."""
    for folder in manifest.folders:
        (arriving / folder.path).mkdir(parents=True, exist_ok=True)
    for link in manifest.links:
        path = arriving / link.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(link.target)
    for node in _oldest_first(manifest):
        if node.mtime_ns != UNKNOWN_TIME and os.path.lexists(arriving / node.path):
            _set_time(arriving / node.path, node.mtime_ns)


def _oldest_first(manifest: Manifest) -> list[StoredNode]:
    return sorted(manifest.nodes, key=lambda node: (node.mtime_ns, node.path))


def _set_time(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def _move(arriving: Path, folder: Path) -> None:
    """Rename everything below a folder into another one, the oldest first; a new folder with all that is in it.

    TensorFlow's state file names other files, so it comes last: a manifest without times leaves files with the times
    of their downloads, which end in any order.
    """
    units = [
        (source.name == STATE_FILE and not _is_folder(source), source.lstat().st_mtime_ns, source)
        for source in _units(arriving, folder, "")
    ]
    for _, _, source in sorted(units):
        target = folder / source.relative_to(arriving)
        if _is_folder(source) or _is_folder(target):
            remove(target)
        source.rename(target)


def _units(arriving: Path, folder: Path, below: str) -> Iterator[Path]:
    for source in (arriving / below).iterdir():
        path = f"{below}{source.name}"
        merges = _is_folder(source) and _is_folder(folder / path)
        if merges and not (source / MARK_FILE).exists():
            yield from _units(arriving, folder, f"{path}/")
        else:
            yield source


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def remove_others(folder: Path, wanted: Set[str]) -> None:
    """Remove what belongs to a capture and is not among the wanted paths, and what interrupted restores left."""
    for left in (*folder.glob(f"{_ARRIVING}*"), *folder.glob(f"{_REMOVED}*")):
        shutil.rmtree(left, ignore_errors=True)
    for node in list(walk(folder)):
        if node.path not in wanted:
            try:
                remove(folder / node.path)
            except OSError as error:  # The path may be a mounted volume.
                log.warning(
                    "checkpoints/%s is not part of the restored checkpoint, and can't be removed: %s",
                    node.path,
                    error,
                )


def leave_only(folder: Path, manifest: Manifest, but: Set[str] = frozenset()) -> None:
    """Remove what does not belong to a snapshot that `put_back` has put back. Folders keep the snapshot's times.

    but: further paths that stay.
    """
    remove_others(folder, manifest.paths | but)
    for node in manifest.folders:  # The removal of an entry has changed the folder's modification time.
        path = folder / node.path
        known = node.mtime_ns != UNKNOWN_TIME and _is_folder(path)
        if known and path.stat().st_mtime_ns != node.mtime_ns:
            _set_time(path, node.mtime_ns)


def remove(path: Path) -> None:
    """Remove a file or a directory if it exists. A reader sees all of a directory or nothing."""
    if _is_folder(path):
        hidden = beside(path, _REMOVED, "")
        if hidden.exists():  # An interrupted call left the folder.
            shutil.rmtree(hidden)
        path.rename(hidden)
        shutil.rmtree(hidden)
    else:
        path.unlink(missing_ok=True)
