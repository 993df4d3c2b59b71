"""The checkpoints folder as it lies on disk: entries, and the checkpoints they form."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.steps import step_of
from dtj_trainer.artifacts.store import usable_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.manifest import EntryKind, MetricMode

MARK_FILE = ".dtj-checkpoint.json"
"""In a directory made by `dtj_trainer.artifacts.checkpoints.save`: complete, with its step and metric."""


@dataclass(frozen=True)
class FileState:
    """What changes when a file's content does. Sizes in bytes, times in nanoseconds."""

    path: str
    size: int
    changed_ns: int
    inode: int


@dataclass(frozen=True)
class Mark:
    """What `save` wrote into its directory."""

    step: int
    metric: float | None
    metric_mode: MetricMode


@dataclass(frozen=True)
class LocalEntry:
    """One file or directory directly below the checkpoints folder; paths are relative to that folder."""

    name: str
    kind: EntryKind
    files: tuple[FileState, ...]
    changed_ns: int
    """The kernel's change time (ctime), the last of all it holds: a program can't set it, unlike the modification
    time."""
    mark: Mark | None

    @property
    def step(self) -> int | None:
        """The step that its mark or its name tells."""
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
    """The entry as it is now; None when it is gone, empty, or changes while it is read."""
    path = folder / name
    try:
        if path.is_symlink():
            return None
        changed_ns = path.stat().st_ctime_ns
        if path.is_dir():
            below = sorted(path.rglob("*"))
            files = tuple(
                _state(folder, file)
                for file in below
                if file.is_file() and not file.name.endswith((".tmp", ".part"))
            )
            changed_ns = max([changed_ns, *(inner.stat().st_ctime_ns for inner in below)])
            return LocalEntry(name, "directory", files, changed_ns, read_mark(path)) if files else None
        if not path.is_file():
            return None
        return LocalEntry(name, "file", (_state(folder, path),), changed_ns, None)
    except OSError:
        return None


def read_entries(folder: Path) -> list[LocalEntry]:
    """All entries of the folder by name, without hidden and temporary ones."""
    try:
        names = sorted(path.name for path in folder.iterdir() if _is_entry(path.name))
    except OSError:
        return []
    return [entry for name in names if (entry := read_entry(folder, name))]


def _is_entry(name: str) -> bool:
    # TensorFlow's sessions write events and the graph among their checkpoints: a time in a name is no step.
    return usable_name(name) and ".tfevents." not in name and name != "graph.pbtxt"


def read_mark(directory: Path) -> Mark | None:
    """The mark that `save` left in a directory, if any."""
    try:
        content = json.loads((directory / MARK_FILE).read_bytes())
        metric = content.get("metric")
        return Mark(
            step=int(content["step"]),
            metric=float(metric) if metric is not None and math.isfinite(metric) else None,
            metric_mode="min" if content.get("metricMode") == "min" else "max",
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _state(folder: Path, file: Path) -> FileState:
    status = file.stat()
    return FileState(file.relative_to(folder).as_posix(), status.st_size, status.st_ctime_ns, status.st_ino)


def by_step(entries: Iterable[LocalEntry], without_number: int) -> list[LocalCheckpoint]:
    """Entries grouped into checkpoints, the oldest step first.

    Entries of one step belong together (`model-100.pt`, `optimizer-100.pt`). One without a number
    (`latest.pt`, TensorFlow's `checkpoint`) belongs to the newest step among the others, or to
    `without_number` when there are no others.
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
