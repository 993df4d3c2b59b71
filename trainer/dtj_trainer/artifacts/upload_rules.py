"""Which files of a workspace are uploaded, to which keys, and when; what follows for those that are refused.

`file_upload` and `growing` act by these rules, and all uploads report refused files by RefusedFiles. Not here: the
checkpoints folder, which has snapshots (`checkpoint_upload`).
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.s3 import REFUSED_KEY_SECONDS, RefusedKey, S3Error
from dtj_trainer.artifacts.segments import FIRST, Cut, whole_lines, whole_records
from dtj_trainer.artifacts.store import ABSENT, key_of, usable_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

    from dtj_trainer.artifacts.fence import Fence


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


# TensorBoard drops the events of a newer file when an older file grows afterwards: it takes the older file's events
# for a restart, and discards all later steps. Event files are therefore uploaded in order.
EVENTS = Growing(interval=10.0, cut=whole_records, longest=64 * 1024 * 1024, in_order=True)
"""A new event appears in TensorBoard within 30 s, including the time to fetch and load it, while uploads are
frequent."""
METRICS = Growing(interval=10.0)
LOG = Growing(interval=15.0)
UTILISATION = Growing(interval=120.0, age=6 * 3600.0)
"""Utilisation grows by a few hundred bytes a minute: it is sent seldom, in few segments."""
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
class UploadSource:
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


# FolderNames lists the files below a folder, and reads a folder again only when it has changed.

SETTLED_NS = 2 * 10**9
"""A listing is reused only if it began this long after the folder's last change (file system clocks are coarse)."""
LONGEST_NS = 60 * 10**9
"""A listing is reused for at most this time, because some file systems do not update a folder's time."""


@dataclass(frozen=True)
class _Read:
    changed_ns: int
    at_ns: int
    files: tuple[Path, ...]
    folders: tuple[str, ...]

    def holds(self, changed_ns: int, now_ns: int) -> bool:
        settled = self.at_ns - changed_ns > SETTLED_NS
        return changed_ns == self.changed_ns and settled and 0 <= now_ns - self.at_ns < LONGEST_NS


@dataclass
class FolderNames:
    """A cache of folder listings. Not thread-safe."""

    _read: dict[str, _Read] = field(default_factory=dict)

    def files(self, folder: Path) -> list[Path]:
        """List all files below a folder, ordered by name, without hidden and temporary files."""
        found: list[Path] = []
        waiting = [str(folder)]
        while waiting:
            name = waiting.pop()
            try:
                read = self._names(name)
            except OSError:  # The folder does not exist, or was removed meanwhile.
                self._read.pop(name, None)
                continue
            found += read.files
            waiting += read.folders
        return found

    def _names(self, folder: str) -> _Read:
        changed_ns, now_ns = Path(folder).stat().st_mtime_ns, time.time_ns()
        known = self._read.get(folder)
        if known and known.holds(changed_ns, now_ns):
            return known
        files, folders = [], []
        with os.scandir(folder) as entries:
            for entry in entries:
                if not usable_name(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file():
                    files.append(entry.path)
        listing = _Read(
            changed_ns, now_ns, tuple(Path(file) for file in sorted(files)), tuple(sorted(folders))
        )
        self._read[folder] = listing
        return listing


# RefusedFiles holds the files that the bucket refuses or that can't be read. They are logged once, tried seldom, and
# do not make the job fail.

log = logging.getLogger(__name__)

MOST_FILES = 1000
"""The most refused files that are logged and remembered: the program may make any number of files."""
_MOST_NAMED, _MOST_CHARACTERS = 3, 300
_END_OF_NAME = 60
"""A message has this many characters from the end of a long file name, so that the reason has room."""


class RefusedFiles:
    """The files that a pod could not upload for a lasting reason. For one thread; others may read `text`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._files: dict[Path, tuple[float, str]] = {}
        self.text = ""
        """The first of the files with the reasons, and the number of the others; empty: none."""

    def add(self, path: Path, why: str) -> None:
        """Note that a file was refused, and log the first refusal of each file."""
        told = path in self._files
        if not told and len(self._files) >= MOST_FILES:
            return
        self._files[path] = (self._clock(), why)
        if not told:
            log.warning("%s is not uploaded: %s", ascii(os.fspath(path)), why)
            self._describe()

    def accepted(self, path: Path) -> None:
        """Note that a file was uploaded."""
        if self._files.pop(path, None):
            log.info("%s is uploaded now", ascii(os.fspath(path)))
            self._describe()

    def only(self, paths: Set[Path]) -> None:
        """Note that all other files were uploaded, or do not exist any more."""
        for path in self._files.keys() - paths:
            self.accepted(path)

    def waits(self, path: Path) -> bool:
        """Return whether a refused file is not to be tried yet."""
        if (refused := self._files.get(path)) is None:
            return False
        return self._clock() - refused[0] < REFUSED_KEY_SECONDS

    def _describe(self) -> None:
        first = islice(self._files.items(), _MOST_NAMED)
        named = "; ".join(f"{_short(path.name)!a}: {why}"[:_MOST_CHARACTERS] for path, (_, why) in first)
        more = len(self._files) - _MOST_NAMED
        self.text = named + (f"; and {more} more" if more > 0 else "")


def _short(name: str) -> str:
    return name if len(name) <= _END_OF_NAME else f"...{name[-_END_OF_NAME:]}"


# PassErrors collects the errors of a pass, so that a key that the store refuses does not prevent the upload of other
# keys.


class PassErrors:
    """The errors of one pass."""

    def __init__(self, refused: RefusedFiles, *, last: bool) -> None:
        """`last`: the program has ended, so that refused files are tried once more."""
        self._refused = refused
        self._last = last
        self._errors: list[S3Error] = []
        self._over: set[UploadSource] = set()
        self._refused_now: set[Path] = set()

    @contextmanager
    def of(self, source: UploadSource, path: Path | None = None) -> Iterator[None]:
        """Record an S3Error of this block, or that a file can't be read.

        path: the file; by default that of the source. A file that was removed is not an error.
        """
        path = path or source.path
        try:
            yield
        except Superseded:
            # A later attempt has taken over this source. The other sources still belong to this pod.
            self._over.add(source)
        except RefusedKey as error:
            self._refuse(source, path, error)
        except S3Error as error:
            # Try no more files of this source: with the bucket down, each file would wait for its timeout.
            self._over.add(source)
            self._errors.append(error)
        except FileNotFoundError as error:
            log.debug("a file of %s was not uploaded: %s", source.path, error)
        except OSError as error:
            self._refuse(source, path, RefusedKey(error.strerror or repr(error)))

    def _refuse(self, source: UploadSource, path: Path, error: RefusedKey) -> None:
        self._refused_now.add(path)
        self._refused.add(path, str(error))
        if source.essential and self._last:
            self._errors.append(RefusedKey(f"{str(path)!a} is not uploaded: {error}"))

    def refuses(self, path: Path) -> bool:
        """Return whether a file was refused in this pass."""
        return path in self._refused_now

    def accepted(self, path: Path) -> None:
        """Note that a file was uploaded."""
        self._refused.accepted(path)

    def over(self, source: UploadSource) -> bool:
        """Return whether nothing more of a source can be uploaded in this pass."""
        return source in self._over

    def passes_over(self, source: UploadSource, path: Path) -> bool:
        """Return whether this pass does not try a file: its source is over, or it was refused a short time ago."""
        return self.over(source) or (not self._last and self._refused.waits(path))

    def raise_worst(self) -> None:
        """Raise an error of this pass if there is one; an error that is not transient takes precedence.

        A file that can't be uploaded for a lasting reason is among the refused files. It makes an error only if the
        program has ended, and if the file's source is essential.
        """
        if self._errors:
            raise min(self._errors, key=lambda error: error.transient)
