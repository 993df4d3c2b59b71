"""Takes captures of a folder on disk while a program runs. `capture` decides from the walks when one is complete."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import stat
import struct
import threading
import time
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from dtj_trainer import contract
from dtj_trainer.artifacts.capture import (
    LATEST_NS,
    SECOND,
    Capture,
    FolderState,
    Look,
    Node,
    Waits,
    is_inside,
)
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, RECORD_FILE, Mark, read_mark
from dtj_trainer.artifacts.open_files import held_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Set


# FolderWatch records by inotify(7) which entries of a folder were renamed into the folder.

log = logging.getLogger(__name__)

_MODIFY, _CLOSE_WRITE, _MOVED_TO = 0x2, 0x8, 0x80
_CREATE, _MOVED_FROM, _DELETE, _OVERFLOW, _IGNORED = 0x100, 0x40, 0x200, 0x4000, 0x8000
_IS_DIRECTORY = 0x40000000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class FolderWatch:
    """Watches the direct entries of one folder. Entries of its subdirectories are not watched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._renamed: set[str] = set()
        self._watched: tuple[int, int] | None = None
        self.ended = False
        """Whether the watched folder was removed, so that the watch has ended."""
        self._closed = False

    def start(self) -> None:
        """Watch the existing folder in the background. Without inotify, `was_renamed` always returns False.

        Call it again for a folder that was removed and made anew: the watch has ended with the former folder.
        """
        if self._closed:
            return
        self._renamed, self.ended = set(), False
        self._watched = watched = _watch(self._folder)
        if watched is not None:
            descriptor, _ = watched
            threading.Thread(target=self._read, args=(descriptor,), name="watch", daemon=True).start()

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        if self._watched is not None and not self.ended:
            # The thread in `_read` gets IN_IGNORED, and ends.
            ctypes.CDLL(None).inotify_rm_watch(*self._watched)

    def was_renamed(self, name: str) -> bool:
        """Return whether the last event of an entry was a rename into the folder."""
        return name in self._renamed

    def _read(self, descriptor: int) -> None:
        while True:
            for mask, name in _parse(os.read(descriptor, _READ_BYTES)):
                if mask & _IGNORED:  # The folder was removed, or the watch is closed.
                    self.ended = not self._closed
                    os.close(descriptor)
                    return
                self._note(mask, name)

    def _note(self, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            self._renamed.clear()
        elif mask & _MOVED_TO:
            self._renamed.add(name)
        elif mask & (_DELETE | _MOVED_FROM) or not mask & _IS_DIRECTORY:
            self._renamed.discard(name)


def _watch(folder: Path) -> tuple[int, int] | None:
    """Return an inotify descriptor and its watch, or None where the kernel offers none (gVisor, no watch left)."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_CLOEXEC)
    mask = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE | _MOVED_FROM | _DELETE
    if descriptor >= 0 and (watch := libc.inotify_add_watch(descriptor, os.fsencode(folder), mask)) >= 0:
        return int(descriptor), int(watch)
    log.info("inotify can't watch the folder %s: %s", folder, os.strerror(ctypes.get_errno()))
    if descriptor >= 0:
        os.close(descriptor)
    return None


def _parse(events: bytes) -> Iterator[tuple[int, str]]:
    """Yield the mask and the name of each event."""
    at = 0
    while at < len(events):
        _, mask, _, length = _EVENT.unpack_from(events, at)
        at += _EVENT.size
        yield mask, os.fsdecode(events[at : at + length].rstrip(b"\0"))
        at += length


# is_whole tells a complete zip archive (`torch.save`, `numpy.savez`, Keras) from an incomplete one: a writer adds the
# directory of the archive last.

_ZIP_START = b"PK\x03\x04"


def is_whole(path: Path) -> bool | None:
    """Return whether a zip archive has its directory; None for a file that is no archive."""
    try:
        with path.open("rb") as content:
            if content.read(len(_ZIP_START)) != _ZIP_START:
                return None
            return zipfile.is_zipfile(content)
    except OSError:
        return None
    except zipfile.BadZipFile:  # The file is one piece of an archive that spans several files.
        return None


# FolderLooks walks the checkpoints folder. The module `capture` decides from the walks when the content is complete.

_LEFT_OUT = (".tmp", ".part")
_KINDS: dict[int, Literal["file", "directory", "link"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
}
_NO_NODES: Mapping[str, Node] = {}
_OF_NFS = ".nfs"
"""The prefix that NFS gives to the name of a file that is removed while a process has it open."""


class FolderLooks:
    """Walks one folder again and again. Call `start` before the first `look`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watch = FolderWatch(folder)
        self._before: Mapping[str, Node] = {}
        self._archives: dict[str, bool] = {}
        self._open: frozenset[int] = frozenset()
        self._told: set[str] = set()
        self.torn: frozenset[str] = frozenset()
        """Paths of files that were incomplete when the process that wrote them was killed. They stay incomplete."""
        self.marks: dict[str, Mark] = {}
        """The mark files that `checkpoints.save` writes into its folders, by the folders' names."""

    def start(self) -> None:
        """Watch the existing folder."""
        self._watch.start()

    def close(self) -> None:
        """End the watch."""
        self._watch.close()

    def look(self) -> Look:
        """Walk the folder: one `stat` for each path, and the start and the end of each changed file.

        A path that vanishes during the walk is absent. A folder that was removed has no nodes. Raises OSError if the
        folder can't be listed.
        """
        at_ns = time.time_ns()
        before = self._before
        try:
            device = self._folder.stat().st_dev
            nodes = {node.path: node for node in walk(self._folder, self._tell, before=before)}
        except (FileNotFoundError, NotADirectoryError):  # The program has removed the folder.
            device, nodes = 0, {}
        if nodes and self._watch.ended:  # The program has removed the folder and made it again.
            self._watch.start()
        changed = [
            node for path, node in nodes.items() if node is not before.get(path) and node.kind == "file"
        ]
        archives = {path: whole for path, whole in self._archives.items() if nodes.get(path) is before[path]}
        marks = {
            name: mark
            for name, mark in self.marks.items()
            if nodes.get(place := f"{name}/{MARK_FILE}") is before[place]
        }
        for node in changed:
            whole = is_whole(self._folder / node.path)
            if whole is not None:
                archives[node.path] = whole
            name, _, rest = node.path.partition("/")
            if rest == MARK_FILE and (mark := read_mark(self._folder / name)):
                marks[name] = mark
        archives |= dict.fromkeys(self.torn & nodes.keys(), False)
        self._before, self._archives, self.marks = nodes, archives, marks
        # Look for open files only where one was open before, or where a file changed that `checkpoints.save` has not
        # marked as complete.
        if self._open or any(node.path.partition("/")[0] not in self.marks for node in changed):
            inodes = {node.inode for node in nodes.values()}
            self._open = frozenset(held_open(device) & inodes)
        return Look(
            at_ns,
            nodes,
            self._open,
            frozenset(name for name in nodes if "/" not in name and self._watch.was_renamed(name)),
            self._archives,
            {name: mark.step for name, mark in self.marks.items()},
        )

    def _tell(self, path: str, target: str) -> None:
        if path not in self._told:
            self._told.add(path)
            log.warning(
                "checkpoints/%s is not saved: the link leads to %s, outside of the folder", path, target
            )


def is_left_out(name: str) -> bool:
    """Return whether a file of this name is never part of a capture."""
    hidden = name[0] == "." and (name.startswith(_OF_NFS) or name == RECORD_FILE)
    return hidden or name.endswith(_LEFT_OUT) or ".tfevents." in name


def walk(
    folder: Path,
    on_outside: Callable[[str, str], None] = lambda *_: None,
    *,
    below: str = "",
    before: Mapping[str, Node] = _NO_NODES,
) -> Iterator[Node]:
    """Yield what belongs to a capture of a folder; each folder before what is in it.

    on_outside: called with path and target of each link that leads out of the folder. below: the path of a folder,
    of which alone the content is yielded. before: the nodes of an earlier walk; what has not changed is yielded again
    as the same object. What can't be read is absent. Raises OSError if the folder itself can't be listed.
    """
    waiting = [f"{below}/" if below else ""]
    while waiting:
        parent = waiting.pop()
        try:
            listed = os.scandir(folder / parent)
        except OSError:
            if parent:
                continue
            raise
        with listed:
            found = list(listed)
        arriving = (
            _names_in_bucket(folder / parent) if any(each.name == RECORD_FILE for each in found) else ()
        )
        for each in found:
            name = each.name
            if is_left_out(name) or name in arriving:
                continue
            path = parent + name
            try:
                status = each.stat(follow_symlinks=False)
            except OSError:
                continue
            old = before.get(path)
            if old and old.changed_ns == status.st_ctime_ns and _is_same(old, status):
                node = old
            elif (made := _node(folder, path, status)) is not None:
                node = made
            else:
                continue
            if node.kind == "directory":
                if name[0] == ".":
                    continue
                waiting.append(f"{path}/")
            elif node.kind == "link" and not is_inside(path, node.target):
                on_outside(path, node.target)
                continue
            yield node


def _is_same(node: Node, status: os.stat_result) -> bool:
    """Return whether inode, size, modification time and kind of a node are those in `status`. The change time may
    differ.
    """
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    size = status.st_size if kind == "file" else 0
    return (node.inode, node.size, node.mtime_ns, node.kind) == (
        status.st_ino,
        size,
        status.st_mtime_ns,
        kind,
    )


def _node(folder: Path, path: str, status: os.stat_result) -> Node | None:
    """Return the node of a path; None for a socket, a device or a link that vanished."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    target = _target(folder, path) if kind == "link" else ""
    if kind is None or target is None:
        return None
    size = status.st_size if kind == "file" else 0
    mtime_ns = min(max(status.st_mtime_ns, -LATEST_NS), LATEST_NS)
    return Node(path, kind, size, status.st_ctime_ns, status.st_ino, target, mtime_ns)


def _target(folder: Path, path: str) -> str | None:
    """Return the target of a link. An absolute target inside the folder is made relative."""
    try:
        target = os.readlink(folder / path)  # noqa: PTH115 - Path.readlink normalizes the text
    except OSError:
        return None
    if not target.startswith("/"):
        return target
    # Under `dtj run`, only the program sees the folder at the last two of these paths.
    known = (folder, contract.checkpoints(), contract.ROOT / contract.CHECKPOINTS)
    inside = next((each for each in known if target.startswith(f"{each}/")), None) or _same_folder(
        folder, target
    )
    return (
        f"{'../' * path.count('/')}{target.removeprefix(f'{inside}/').strip('/')}" or "."
        if inside
        else target
    )


def _same_folder(folder: Path, target: str) -> PurePosixPath | None:
    """Return the beginning of an absolute path that is another name of the folder, through a symbolic link."""
    for above in PurePosixPath(target).parents:
        with suppress(OSError):
            if above.name and folder.samefile(above):
                return above
    return None


def _names_in_bucket(directory: Path) -> set[str]:
    """Return the names of the files that a restore has left in the bucket; see `file_fetch`."""
    try:
        record = json.loads((directory / RECORD_FILE).read_bytes())
        return {PurePosixPath(file["path"]).name for file in record["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


LOOK_SECONDS = 1.0
"""Seconds between two looks at the folder while files are sent."""
REST, COSTLY_SECONDS, LONGEST_REST_SECONDS = 20, 0.1, 60.0
"""After a capture that took COSTLY_SECONDS or more of processor time, uploads not counted, the next capture waits
REST times as long."""
TELL_AFTER = 600 * SECOND
"""A folder that changes for this long without a complete capture is reported in the log, with the reason."""


class FolderCaptures:
    """The captures of one folder. One thread uploads them; others may look, and `begin_round`."""

    def __init__(
        self,
        folder: Path,
        settle_seconds: float,
        program_runs: Callable[[], bool],
        on_complete: Callable[[Capture], None] = lambda _: None,
    ) -> None:
        """`program_runs`: returns False as soon as the kernel begins to end the program, before the end is reported.

        `on_complete`: called with each capture that is found, also while another one is sent, or nothing can be sent.
        """
        self._folder = folder
        self.still = self._lock = threading.RLock()
        """A caller holds this lock while it changes the folder, so that no thread walks the folder meanwhile."""
        self._round_ns = 0
        """When the last round began. `taken` ignores captures of earlier rounds."""
        self._settle_ns = int(settle_seconds * SECOND)
        self._program_runs = program_runs
        self._looks = FolderLooks(folder)
        self._captures = FolderState(self._settle_ns)
        self._on_complete = on_complete
        self._found: Capture | Waits | None = None
        """What the last look found. None: `due` must find the capture itself, for example after one was stored."""
        self._waits_since: int | None = None
        self._not_before = 0.0
        self._at_ns = 0
        self.held_up = ""
        """What has held up the next capture for TELL_AFTER, as text; empty: nothing."""
        self.nodes: Mapping[str, Node] = {}
        """The content of the folder at the last look."""

    def start(self) -> None:
        """Watch the existing folder."""
        self._looks.start()

    def close(self) -> None:
        """End the watch."""
        self._looks.close()

    @property
    def marks(self) -> Mapping[str, Mark]:
        """The marks of the folders of `checkpoints.save`, by the folders' names."""
        return self._looks.marks

    @property
    def last(self) -> Mapping[str, Node]:
        """The content of the last capture that was stored."""
        return self._captures.last

    def note_torn(self, paths: Iterable[Path]) -> None:
        """Note that files, of this folder or of another one, are incomplete and stay so."""
        folder = self._folder
        self._looks.torn |= {str(path.relative_to(folder)) for path in paths if path.is_relative_to(folder)}

    def begin_from(self, paths: Set[str], foreign: Set[str] = frozenset()) -> Mapping[str, Node]:
        """Use the present content of these paths as the last capture; return their nodes.

        foreign: the paths of files that other pods saved.
        """
        with self._lock:
            nodes = self._looks.look().nodes
            restored = {path: node for path, node in nodes.items() if path in paths}
            others = {path: node for path, node in restored.items() if path in foreign}
            self._captures, self._found = FolderState(self._settle_ns, restored, others), None
            return restored

    def begin_round(self, paths: Set[str], foreign: Set[str]) -> Mapping[str, Node]:
        """Do as `begin_from` for a new round, whose programs may rewrite files: no file counts as incomplete."""
        with self._lock:
            self._looks.torn = frozenset()
            self._round_ns, self._not_before = time.time_ns(), 0.0
            self._waits_since, self.held_up = None, ""
            self.nodes = self.begin_from(paths, foreign)
            return self.nodes

    def begin_again(self, last: Mapping[str, Node]) -> None:
        """Use `last` as the content of the last stored capture."""
        with self._lock:
            self._captures, self._found = FolderState(self._settle_ns, last), None

    def look_last(self, died_ns: int | None) -> None:
        """Look at the folder, and find the last capture of programs that are gone.

        died_ns: when they were killed; None: they ended by themselves.
        """
        with self._lock:
            self.look(over=True)
            found = self._captures.found(ended=died_ns is None, died_ns=died_ns)
            if isinstance(found, Capture):
                self._on_complete(found)

    def look(self, *, over: bool = False) -> None:
        """Look at the folder. over: the program has ended."""
        with self._lock, suppress(OSError):  # The folder can't be listed at the moment.
            look = self._looks.look()
            # Ask after the look whether the program runs: a killed program's files are closed before its death is
            # reported, and a closed file counts as complete.
            if over or self._program_runs():
                self.nodes, self._at_ns = look.nodes, look.at_ns
                self._captures.see(look)
                self._found = None if over else self._captures.found()
                if isinstance(self._found, Capture):
                    self._on_complete(self._found)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Walk the folder in another thread while the caller sends files: later captures depend on these walks."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_SECONDS):
                self.look()

        thread = threading.Thread(target=look, name="looks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def due(self, *, ended: bool, died_ns: int | None) -> Capture | Waits:
        """Return the capture that is due after the last look, if one is; see `FolderState.capture`."""
        with self._lock:
            return self._due(ended=ended, died_ns=died_ns)

    def _due(self, *, ended: bool, died_ns: int | None) -> Capture | Waits:
        if not ended and died_ns is None and time.monotonic() < self._not_before:
            return Waits("the last checkpoint was taken a moment ago")
        over = ended or died_ns is not None
        if over or self._found is None:
            self._found = self._captures.found(ended=ended, died_ns=died_ns)
            if isinstance(self._found, Capture):
                self._on_complete(self._found)
        found = self._found
        self._captures.offer(found)
        if isinstance(found, Capture) or not found.path:
            self._waits_since, self.held_up = None, ""
            return found
        if self._waits_since is None:
            self._waits_since = self._at_ns
        elif self._at_ns - self._waits_since >= TELL_AFTER:
            told, self.held_up = (
                self.held_up,
                (
                    f"no checkpoint for 10 minutes, although files change: {found.reason}: checkpoints/{found.path}"
                ),
            )
            if not told:
                log.warning("%s", self.held_up)
        return found

    def rest_after(self, seconds: float) -> None:
        """Delay the next capture if this capture took many seconds of processor time."""
        if seconds >= COSTLY_SECONDS:
            rest = min(REST * seconds, LONGEST_REST_SECONDS)
            self._not_before = max(self._not_before, time.monotonic() + rest)

    def taken(self, capture: Capture, unsent: Set[str] = frozenset()) -> bool:
        """Note that a capture is stored; see `FolderState.taken`. Return False for a capture of an earlier round."""
        with self._lock:
            if 0 < capture.at_ns < self._round_ns:
                return False
            self._captures.taken(capture, unsent)
            self._found = None
            return True
