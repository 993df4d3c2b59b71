"""Walks the checkpoints folder for `picture`."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from dtj_trainer import contract
from dtj_trainer.artifacts import zip_archives
from dtj_trainer.artifacts.folder_watch import FolderWatch
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, RECORD_FILE, Mark, read_mark
from dtj_trainer.artifacts.look import LATEST_NS, Look, Node, is_inside
from dtj_trainer.artifacts.open_files import held_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

_LEFT_OUT = (".tmp", ".part")
_KINDS: dict[int, Literal["file", "directory", "link"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
}
_NO_NODES: Mapping[str, Node] = {}
_OF_NFS = ".nfs"
"""How NFS names a file that is removed while a process has it open."""


class FolderLooks:
    """The looks at one folder. `start` before the first look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watch = FolderWatch(folder)
        self._before: Mapping[str, Node] = {}
        self._archives: dict[str, bool] = {}
        self._open: frozenset[int] = frozenset()
        self._told: set[str] = set()
        self.torn: frozenset[str] = frozenset()
        """Paths whose content is known to be incomplete, and stays so."""
        self.marks: dict[str, Mark] = {}
        """The marks of the folders of `checkpoints.save`, by the folders' names."""

    def start(self) -> None:
        """Watch the existing folder."""
        self._watch.start()

    def close(self) -> None:
        """End the watch."""
        self._watch.close()

    def look(self) -> Look:
        """Walk the folder: one `stat` for each path, and the start and the end of each changed file.

        What vanishes meanwhile is absent. A folder that is gone has nothing. Raises OSError if the folder can't be
        listed.
        """
        at_ns = time.time_ns()
        before = self._before
        try:
            device = self._folder.stat().st_dev
            nodes = {node.path: node for node in walk(self._folder, self._tell, before=before)}
        except (FileNotFoundError, NotADirectoryError):  # The program has removed the folder.
            device, nodes = 0, {}
        if nodes and self._watch.ended:  # The program has made the folder anew.
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
            whole = zip_archives.is_whole(self._folder / node.path)
            if whole is not None:
                archives[node.path] = whole
            name, _, rest = node.path.partition("/")
            if rest == MARK_FILE and (mark := read_mark(self._folder / name)):
                marks[name] = mark
        archives |= dict.fromkeys(self.torn & nodes.keys(), False)
        self._before, self._archives, self.marks = nodes, archives, marks
        # Of a file that does not change, or that `save` has completed, it makes no difference.
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
    """Return whether a file of this name is never part of a picture."""
    hidden = name[0] == "." and (name.startswith(_OF_NFS) or name == RECORD_FILE)
    return hidden or name.endswith(_LEFT_OUT) or ".tfevents." in name


def walk(
    folder: Path,
    on_outside: Callable[[str, str], None] = lambda *_: None,
    *,
    below: str = "",
    before: Mapping[str, Node] = _NO_NODES,
) -> Iterator[Node]:
    """Yield what belongs to a picture of a folder; each folder before what is in it.

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
    """Return whether a node has this status, except for the time of its change."""
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
    """Return the target of a link; an absolute one that leads into the folder as a relative one."""
    try:
        target = os.readlink(folder / path)  # noqa: PTH115 - the text, as the program wrote it
    except OSError:
        return None
    if not target.startswith("/"):
        return target
    # Under `dtj run`, the folder has the last two paths for the program alone.
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
    """Return the names that a restore has left in the bucket: see `on_demand`."""
    try:
        record = json.loads((directory / RECORD_FILE).read_bytes())
        return {PurePosixPath(file["path"]).name for file in record["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
