"""The newest complete capture of a pod's checkpoints folder, whether the bucket has it or not.

No copy of a capture is kept. The pod can put back a capture that the bucket does not have while the folder still has
each of its files, under whatever name. A program that writes new files, or renames files over older ones, leaves such
files. After a program that writes into an existing file, or has removed a file, the pod can put back an earlier
capture whose files are all there, or else the newest capture in the bucket.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer import contract
from dtj_trainer.artifacts.capture import SECOND, Capture
from dtj_trainer.artifacts.folder_captures import FolderCaptures
from dtj_trainer.artifacts.local_checkpoints import read_mark
from dtj_trainer.artifacts.manifest import Manifest, StoredFile
from dtj_trainer.artifacts.snapshot import folders_and_links, later_number, step_of
from dtj_trainer.clock import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dtj_trainer.artifacts.capture import Node
    from dtj_trainer.artifacts.snapshot import StepAt
    from dtj_trainer.artifacts.sync import SyncSettings


_MOST_UNSENT = 3
"""The most captures that are remembered although the bucket does not have them."""


class Name(NamedTuple):
    """Identifies a capture. `claim`, `number`: as in `Manifest`; None: not known yet from the pod of rank 0."""

    claim: int | None
    number: int | None
    step: int | None


@dataclass(frozen=True)
class Complete:
    """A complete capture. `uploaded`: whether the bucket has the capture. `manifest`: set where this pod has one."""

    capture: Capture
    name: Name
    uploaded: bool = False
    manifest: Manifest | None = None

    def reported(self) -> contract.PodCheckpoint:
        """Return the capture in the form of the pod's report."""
        said: contract.PodCheckpoint = {
            "uploaded": self.uploaded,
            "time": text_of(self.capture.at_ns / SECOND),
        }
        for key, value in self.name._asdict().items():
            if value is not None:
                said[key] = value  # type: ignore[literal-required]  # the fields of a Name are some of its keys
        return said


class _Written(NamedTuple):
    """Properties that a rename or a hard link does not change, and that a write changes."""

    size: int
    mtime_ns: int
    inode: int


def _written(node: Node) -> _Written:
    return _Written(node.size, node.mtime_ns, node.inode)


def sources_of(capture: Capture, nodes: Mapping[str, Node]) -> dict[str, str | None]:
    """Return where the folder has each file of a capture: by the file's path the present path, or None.

    nodes: the content of the folder now.
    """
    by_content: dict[_Written, str] | None = None
    found: dict[str, str | None] = {}
    for path, node in capture.nodes.items():
        if node.kind != "file":
            continue
        now = nodes.get(path)
        if now is not None and (now is node or _written(now) == _written(node)):
            found[path] = path
        else:
            if by_content is None:
                by_content = {_written(each): at for at, each in nodes.items() if each.kind == "file"}
            found[path] = by_content.get(_written(node))
    return found


class NewestCapture:
    """Remembers the complete captures of one folder. Thread-safe."""

    def __init__(self, stored: Callable[[Node], StoredFile | None] = lambda _: None) -> None:
        """`stored`: returns the file in the bucket that has the content of a local one."""
        self._stored = stored
        self._lock = threading.Lock()
        self._uploaded: Complete | None = None
        self._unsent: tuple[Complete, ...] = ()
        """Complete captures that the bucket does not have, the newest last."""

    def note(self, capture: Capture, name_of: Callable[[], Name]) -> None:
        """Note a complete capture that the bucket does not have."""
        with self._lock:
            if not (self._unsent and self._unsent[-1].capture == capture):
                self._unsent = (*self._unsent, Complete(capture, name_of()))[-_MOST_UNSENT:]

    def name(self, capture: Capture, name: Name) -> None:
        """Give a remembered capture another name."""
        with self._lock:
            self._unsent = tuple(
                replace(each, name=name) if each.capture == capture else each for each in self._unsent
            )

    def note_uploaded(self, capture: Capture, name: Name, manifest: Manifest | None = None) -> None:
        """Note that the bucket has a capture, and forget the earlier captures."""
        with self._lock:
            self._uploaded = Complete(capture, name, uploaded=True, manifest=manifest)
            self._unsent = tuple(
                each
                for each in self._unsent
                if each.capture.at_ns > capture.at_ns and each.capture != capture
            )

    def now(self, nodes: Mapping[str, Node]) -> Complete | None:
        """Return the newest capture that can be put back. nodes: the content of the folder now."""
        with self._lock:
            unsent, uploaded = self._unsent, self._uploaded
        for each in reversed(unsent):
            lacking = (path for path, source in sources_of(each.capture, nodes).items() if source is None)
            if all(self._stored(each.capture.nodes[path]) for path in lacking):
                return each
        return uploaded

    def manifest_of(
        self, found: Complete, nodes: Mapping[str, Node], attempt: int, sha256_of: Callable[[str], str]
    ) -> Manifest:
        """Return the manifest of a capture that `now` has found: files without a key are in the folder alone.

        nodes: the content of the folder then. sha256_of: returns the hash of the file that the folder has at a path,
        or raises OSError.
        """
        if found.manifest:
            return found.manifest
        files = []
        sources = sources_of(found.capture, nodes)
        for path, node in found.capture.nodes.items():
            if stored := self._stored(node):
                files.append(replace(stored, path=path, mtime_ns=node.mtime_ns))
            elif source := sources.get(path):
                files.append(StoredFile(path, "", node.size, sha256_of(source), node.mtime_ns))
        name, time = found.name, text_of(found.capture.at_ns / SECOND)
        folders, links = folders_and_links(found.capture.nodes)
        number, claim = name.number or 0, name.claim or 0
        return Manifest(number, name.step, time, attempt, tuple(files), folders, links, claim=claim)

    @property
    def uploaded(self) -> Complete | None:
        """The newest capture that the bucket has."""
        with self._lock:
            return self._uploaded

    def begin_round(self, capture: Capture, manifest: Manifest | None) -> None:
        """Forget the captures that a round does not begin with: their files are gone.

        capture: what the folder has now. manifest: the snapshot of the capture; None: the round begins with nothing.
        """
        with self._lock:
            self._unsent, uploaded = (), self._uploaded
            if manifest:
                name = Name(manifest.claim, manifest.number, manifest.step)
                if uploaded and uploaded.name == name:
                    self._uploaded = replace(uploaded, capture=capture)
                else:
                    self._unsent = (Complete(capture, name, manifest=manifest),)


# Unuploaded warns of artifacts in a pod that is not the pod of rank 0 or of the chief, which alone upload artifacts.

log = logging.getLogger(__name__)


class Unuploaded:
    """Looks in the workspace of one pod for artifacts that the pod does not upload, and warns of the first one."""

    def __init__(self, settings: SyncSettings) -> None:
        root, part = settings.root, settings.part
        self._folders = [] if part == "primary" else [root / contract.MODEL]
        if part == "other":
            self._folders.append(root / contract.TENSORBOARD)
            self._folders += [] if settings.shards else [settings.checkpoints]
        self.restored: set[str] = set()
        """The names of the restored checkpoints."""

    def warn(self) -> None:
        """Look for such artifacts again, unless a warning was given."""
        for folder in self._folders:
            with suppress(OSError):  # The program may have removed the folder itself.
                for path in folder.iterdir():
                    if self._is_of_the_program(path):
                        self._folders = []
                        log.warning(
                            "%s is not uploaded: only the pod of rank 0 or of the chief uploads artifacts",
                            path,
                        )
                        return

    def _is_of_the_program(self, path: Path) -> bool:
        mark = read_mark(path)
        part = mark is not None and mark.parts > 1
        return not part and not path.name.startswith(".") and path.name not in self.restored


# CaptureWatch watches the checkpoints folder of a pod in a job without a bucket, where nothing is uploaded.

REST, LONGEST_REST_SECONDS = 20, 60.0
"""After a look, the next one waits for REST times the processor time that the look took."""


class CaptureWatch:
    """Takes the captures of a folder in passes. Thread-safe.

    The number of the attempt takes the place of a claim.
    """

    def __init__(
        self,
        folder: Path,
        *,
        attempt: int,
        settle_seconds: float,
        step_at: StepAt,
        program_runs: Callable[[], bool] = lambda: True,
    ) -> None:
        self._attempt, self._step_at = attempt, step_at
        self.captures = NewestCapture()
        self._folder = FolderCaptures(folder, settle_seconds, program_runs)
        self.start, self.close, self.note_torn = (
            self._folder.start,
            self._folder.close,
            self._folder.note_torn,
        )
        self._number, self._not_before = -1, 0.0
        self._step: int | None = None
        self.still = self._lock = threading.RLock()
        """See `FolderCaptures`."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The content of the folder at the last look."""
        return self._folder.nodes

    def watch_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Look at the folder, and take the capture that is due; return True."""
        with self._lock:
            return self._pass(ended=ended, died_ns=died_ns)

    def look_last(self, died_ns: int | None) -> None:
        """See `FolderCaptures`."""
        self.watch_pass(ended=died_ns is None, died_ns=died_ns)

    def begin_round(self, manifest: Manifest | None) -> None:
        """Start from the folder's present content: a snapshot that was put back, or nothing (None)."""
        with self._lock:
            nodes = self._folder.begin_round(manifest.paths if manifest else set(), set())
            self.captures.begin_round(Capture(dict(nodes), at_ns=time.time_ns()), manifest)
            self._step, self._not_before = manifest.step if manifest else None, 0.0

    def _pass(self, *, ended: bool, died_ns: int | None) -> bool:
        over = ended or died_ns is not None
        if not over and time.monotonic() < self._not_before:
            return True
        began = time.thread_time()
        self._folder.look(over=over)
        found = self._folder.due(ended=ended, died_ns=died_ns)
        if isinstance(found, Capture):
            self._take(found)
        rest = min(REST * (time.thread_time() - began), LONGEST_REST_SECONDS)
        self._not_before = time.monotonic() + rest
        return True

    def _take(self, capture: Capture) -> None:
        marks, last = self._folder.marks, self._folder.last
        self._step = step_of(capture.nodes, marks, last, self._step_at, self._step)
        self._number = later_number(self._step, self._number)
        name = Name(self._attempt, self._number, self._step)
        self.captures.note(capture, lambda: name)
        self._folder.taken(capture)
