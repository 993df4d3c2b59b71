"""Rules that say which files of a pod's workspace are uploaded, to which keys, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.key_names import key_of
from dtj_trainer.artifacts.segments import FIRST, Cut, whole_lines, whole_records
from dtj_trainer.artifacts.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.folder_names import FolderNames

MARK_BYTES = 64
EVENT_FILE_MARK = "tfevents"
"""Part of the name of every event file. TensorBoard recognizes event files by it."""


@dataclass(frozen=True)
class Rule:
    """When a file is uploaded as a whole. All times in seconds.

    `interval`: the shortest time between two uploads. `quiet`: how long the file must be unchanged. `unbroken`: an
    incomplete file is useless; a file that changed less than `quiet` before the program was killed is left out.
    `only_once`: never upload the file again. `manifest`: the files of the folder belong together, and get a manifest.
    """

    interval: float = 0.0
    quiet: float = 0.0
    unbroken: bool = False
    only_once: bool = False
    manifest: bool = False


@dataclass(frozen=True)
class Growing:
    """A file that its writer only appends to, uploaded in segments (see `segments`).

    `interval`: the shortest time between two uploads of new bytes, in seconds. `age`: the age in seconds at which a
    segment is closed, where `segment_seconds` is less. `cut`: finds the places where the file may be divided.
    `longest`: a unit of up to this many bytes enlarges a segment; a longer unit is divided.
    `in_order`: the files of a folder continue each other; a new file is uploaded only after the rest of the others.
    """

    interval: float = 0.0
    age: float = 0.0
    cut: Cut = whole_lines
    longest: int = 0
    in_order: bool = False


# TensorBoard drops the events of a newer file when an older file grows afterwards: an event preempts all later steps.
EVENTS = Growing(interval=10.0, cut=whole_records, longest=64 * 1024 * 1024, in_order=True)
"""A new event appears in TensorBoard within 30 s, including the time to fetch and load it, while uploads are
frequent."""
METRICS = Growing(interval=10.0)
LOG = Growing(interval=15.0)
UTILISATION = Growing(interval=120.0, age=6 * 3600.0)
"""A few hundred bytes a minute: seldom sent, and few segments."""
UTILISATION_EVENTS = replace(UTILISATION, cut=whole_records, in_order=True)
MODEL = Rule(interval=30.0, quiet=5.0, unbroken=True, manifest=True)
BESIDE_EVENTS = Rule(interval=30.0, quiet=5.0)
"""Files that libraries keep beside event files: profiles, embeddings."""
ONCE = Rule(only_once=True)
TRACKING = Rule(interval=30.0)


@dataclass(frozen=True)
class Begin:
    """Where to continue the upload of a growing file that an earlier attempt began."""

    number: int = FIRST
    """The number of the open segment."""
    at: int = 0
    """The offset in the local file where the open segment begins."""
    sent: int = 0
    """The bytes of the local file that are uploaded."""
    mark: bytes = b""
    """The last of the uploaded bytes, at most MARK_BYTES, to verify that the local file is still the same."""
    etag: str = ABSENT
    """The ETag of the open segment."""


def any_name(name: str) -> bool:
    """Accept every file."""
    del name
    return True


def is_event_file(name: str) -> bool:
    """Return whether TensorBoard treats a file of this name as an event file."""
    return EVENT_FILE_MARK in name


def is_no_event_file(name: str) -> bool:
    """Return whether the file is not an event file."""
    return not is_event_file(name)


@dataclass(frozen=True)
class Source:
    """A file, or a folder with all files below it, and the key or key prefix of its objects.

    `fence`: guards keys that attempts share; None means that the keys are this pod's own. `takes`: selects files of a
    folder by name. `begin`: where to continue a growing file; None when nothing is known of an earlier upload.
    `essential`: without one of the files, the job has failed.
    """

    path: Path
    key: str
    rule: Rule | Growing
    fence: Fence | None = None
    takes: Callable[[str], bool] = any_name
    begin: Begin | None = None
    essential: bool = False

    def files(self, names: FolderNames) -> Iterator[tuple[Path, str]]:
        """List the existing files with their keys, without hidden and temporary files."""
        if self.path.is_file():
            yield self.path, self.key
            return
        start = len(str(self.path)) + 1
        for path in names.files(self.path):
            if self.takes(path.name):
                yield path, f"{self.key}/{key_of(str(path)[start:])}"
