"""What of a pod's workspace is uploaded, to which keys, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.segments import FIRST, Cut, whole_lines, whole_records
from dtj_trainer.artifacts.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.folder_names import FolderNames

MARK_BYTES = 64
EVENT_FILE_MARK = "tfevents"
"""In the name of every event file: TensorBoard finds them by it."""


@dataclass(frozen=True)
class Rule:
    """When a file is uploaded (again) as a whole; all times in seconds.

    `interval`: at most so often. `quiet`: only when unchanged for so long. `unbroken`: a part of it is of no use; a
    file that changed less than `quiet` before the program was killed is left out. `only_once`: never again after the
    first time.
    """

    interval: float = 0.0
    quiet: float = 0.0
    unbroken: bool = False
    only_once: bool = False


@dataclass(frozen=True)
class Growing:
    """A file to which others only append, uploaded in segments (see `segments`).

    `interval`: what is new goes at most so often, in seconds. `cut`: between which bytes the file may be divided.
    `longest`: a unit of so many bytes may make a segment larger; a longer one is divided.
    """

    interval: float = 0.0
    cut: Cut = whole_lines
    longest: int = 0


EVENTS = Growing(interval=10.0, cut=whole_records, longest=64 * 1024 * 1024)
"""With what fetching it and TensorBoard itself take, a new event is seen within 30 s at first."""
METRICS = Growing(interval=10.0)
LOG = Growing(interval=15.0)
MODEL = Rule(interval=30.0, quiet=5.0, unbroken=True)
BESIDE_EVENTS = Rule(interval=30.0, quiet=5.0)
"""What libraries keep beside event files: profiles, embeddings."""
ONCE = Rule(only_once=True)


@dataclass(frozen=True)
class Begin:
    """Where the upload of a growing file goes on that an earlier attempt began."""

    number: int = FIRST
    """Of the segment that is still open."""
    at: int = 0
    """The byte of the local file with which that segment begins."""
    sent: int = 0
    """So many bytes of the local file are in the bucket."""
    mark: bytes = b""
    """The last of them, at most MARK_BYTES: by these the file is known to be the same one."""
    etag: str = ABSENT
    """Of the open segment."""


def any_name(name: str) -> bool:
    """Takes every file."""
    del name
    return True


def is_event_file(name: str) -> bool:
    """Whether TensorBoard takes a file of this name for an event file."""
    return EVENT_FILE_MARK in name


def is_no_event_file(name: str) -> bool:
    """The others."""
    return not is_event_file(name)


@dataclass(frozen=True)
class Source:
    """A file, or a folder with all that lies below it, and the key (prefix) it goes to.

    `fence`: for keys that other attempts have too; None: the keys are this pod's own. `takes`: which names of a
    folder's files. `begin`: of a growing file; None where nothing is known of an earlier one.
    """

    path: Path
    key: str
    rule: Rule | Growing
    fence: Fence | None = None
    takes: Callable[[str], bool] = any_name
    begin: Begin | None = None

    def files(self, names: FolderNames) -> Iterator[tuple[Path, str]]:
        """The files there are now with their keys; hidden and temporary ones are not artifacts."""
        if self.path.is_file():
            yield self.path, self.key
            return
        start = len(str(self.path)) + 1
        for path in names.files(self.path):
            if self.takes(path.name):
                yield path, f"{self.key}/{str(path)[start:]}"
