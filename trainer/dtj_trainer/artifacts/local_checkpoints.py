"""Reads the checkpoints folder on disk: entries, and the checkpoints that they form."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.retention import Candidate, kept
from dtj_trainer.artifacts.steps import step_of
from dtj_trainer.artifacts.store import usable_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dtj_trainer.artifacts.manifest import EntryKind, MetricMode

MARK_FILE = ".dtj-checkpoint.json"
"""The mark that `dtj_trainer.artifacts.checkpoints.save` writes into a complete directory, with step and metric."""

RECORD_FILE = ".dtj-in-bucket.json"
"""What a restore leaves in the bucket of a directory: see `on_demand`."""


@dataclass(frozen=True)
class FileState:
    """Properties that change with a file's content. Sizes in bytes, times in nanoseconds."""

    path: str
    size: int
    changed_ns: int
    inode: int


@dataclass(frozen=True)
class Mark:
    """The content of the mark file that `save` writes into a checkpoint's directory."""

    step: int
    metric: float | None
    metric_mode: MetricMode
    parts: int = 1
    """The number of pods that each hold a part of the checkpoint."""
    on_demand: str = ""
    """A pattern of the names of files that a restore leaves in the bucket until the program reads them."""


@dataclass(frozen=True)
class LocalEntry:
    """One file or directory directly below the checkpoints folder; paths are relative to that folder."""

    name: str
    kind: EntryKind
    files: tuple[FileState, ...]
    changed_ns: int
    """The latest change time (ctime) of the entry and of all files below it. Unlike the modification time, a program
    can't set the change time."""
    mark: Mark | None

    @property
    def step(self) -> int | None:
        """The step from the mark, or from the name."""
        return self.mark.step if self.mark else step_of(self.name)


@dataclass(frozen=True)
class LocalCheckpoint:
    """The entries that belong to one step."""

    step: int
    entries: tuple[LocalEntry, ...]

    @property
    def files(self) -> tuple[FileState, ...]:
        """The files of all entries."""
        return tuple(file for entry in self.entries for file in entry.files)

    @property
    def mark(self) -> Mark | None:
        """The mark of the entry that has one."""
        return next((entry.mark for entry in self.entries if entry.mark), None)


def read_entry(folder: Path, name: str) -> LocalEntry | None:
    """Read an entry; None when it does not exist, is empty, or changes during the read."""
    path = folder / name
    try:
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return LocalEntry(name, "file", (_state(name, status),), status.st_ctime_ns, None)
        if not stat.S_ISDIR(status.st_mode):
            return None
        files: list[FileState] = []
        # Files that arrive later of a restored checkpoint are in the bucket already.
        changed_ns = _walk(str(path), name, _names_in_bucket(path), files)
        changed_ns = max(changed_ns, status.st_ctime_ns)
        return LocalEntry(name, "directory", tuple(files), changed_ns, read_mark(path)) if files else None
    except OSError:
        return None


def _walk(directory: str, below: str, left_out: set[str], files: list[FileState]) -> int:
    """Add the files below a directory, ordered by path; return the latest change time below it.

    below: the path of the directory that the files get. left_out: names. The call costs one `stat` for each path.
    """
    changed_ns = 0
    with os.scandir(directory) as listed:
        found = sorted(listed, key=lambda each: each.name)
    for each in found:
        if each.name in left_out:
            continue
        path = f"{below}/{each.name}"
        try:
            status = each.stat()
        except OSError:
            if not each.is_symlink():
                raise
            continue  # A link without a target is no reason to leave out the other files.
        changed_ns = max(changed_ns, status.st_ctime_ns)
        if each.is_dir(follow_symlinks=False):
            changed_ns = max(changed_ns, _walk(each.path, path, left_out, files))
        elif stat.S_ISREG(status.st_mode) and not each.name.endswith((".tmp", ".part")):
            files.append(_state(path, status))
    return changed_ns


def read_entries(folder: Path) -> list[LocalEntry]:
    """List the entries of the folder by name, without hidden and temporary ones."""
    try:
        names = sorted(path.name for path in folder.iterdir() if _is_entry(path.name))
    except OSError:
        return []
    return [entry for name in names if (entry := read_entry(folder, name))]


def _is_entry(name: str) -> bool:
    # TensorFlow's sessions write events and the graph beside checkpoints. The number in an event file's name is a
    # time.
    return usable_name(name) and ".tfevents." not in name and name != "graph.pbtxt"


def read_mark(directory: Path) -> Mark | None:
    """Read the mark that `save` left in a directory; None when the directory has none."""
    try:
        content = json.loads((directory / MARK_FILE).read_bytes())
        metric = content.get("metric")
        return Mark(
            step=int(content["step"]),
            metric=float(metric) if metric is not None and math.isfinite(metric) else None,
            metric_mode="min" if content.get("metricMode") == "min" else "max",
            parts=int(content.get("parts", 1)),
            on_demand=str(content.get("onDemand", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _names_in_bucket(directory: Path) -> set[str]:
    try:
        record = json.loads((directory / RECORD_FILE).read_bytes())
        return {Path(file["path"]).name for file in record["files"]}
    except (OSError, ValueError, KeyError, TypeError):  # No record of a restore.
        return set()


def prune(folder: Path, entries: Iterable[LocalEntry], keep: int) -> list[LocalEntry]:
    """Remove directories that `save` made, except the newest and the best, and return the entries left.

    What the program wrote without `save` stays.
    """
    entries = list(entries)
    marked = {Candidate(1, e.mark.step, e.mark.metric, e.mark.metric_mode): e for e in entries if e.mark}
    stay = kept(marked, keep)
    surplus = {entry.name for candidate, entry in marked.items() if candidate not in stay}
    for name in surplus:
        shutil.rmtree(folder / name, ignore_errors=True)
    return [entry for entry in entries if entry.name not in surplus]


def _state(path: str, status: os.stat_result) -> FileState:
    return FileState(path, status.st_size, status.st_ctime_ns, status.st_ino)


def by_step(entries: Iterable[LocalEntry], without_number: int) -> list[LocalCheckpoint]:
    """Group entries into checkpoints, ordered from the oldest step.

    Entries of one step belong together (`model-100.pt`, `optimizer-100.pt`). An entry without a number (`latest.pt`,
    TensorFlow's `checkpoint`) belongs to the newest step among the other entries, or to the step `without_number`
    when no other entry has a number.
    """
    numbered: dict[int, list[LocalEntry]] = {}
    unnumbered: list[LocalEntry] = []
    for entry in entries:
        if entry.step is None:
            unnumbered.append(entry)
        else:
            numbered.setdefault(entry.step, []).append(entry)
    if unnumbered:
        numbered.setdefault(max(numbered, default=without_number), []).extend(unnumbered)
    return [LocalCheckpoint(step, tuple(numbered[step])) for step in sorted(numbered)]
