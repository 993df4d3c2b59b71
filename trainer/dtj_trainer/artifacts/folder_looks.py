"""Walks the checkpoints folder for `picture`."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts import zip_archives
from dtj_trainer.artifacts.folder_watch import EventKind, FolderWatch
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, RECORD_FILE, Mark, read_mark
from dtj_trainer.artifacts.look import Look, Node, is_inside
from dtj_trainer.artifacts.open_files import held_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

log = logging.getLogger(__name__)

_LEFT_OUT = (".tmp", ".part")
_OF_NFS = ".nfs"
"""How NFS names a file that is removed while a process has it open."""


class FolderLooks:
    """The looks at one folder. `start` before the first look."""

    def __init__(self, folder: Path, program_runs: Callable[[], bool] = lambda: True) -> None:
        """`program_runs`: whether the kernel has not begun to end the program, however late its end is reported."""
        self._folder = folder
        self._watch = FolderWatch(folder, program_runs)
        self._before: Mapping[str, Node] = {}
        self._archives: dict[str, bool] = {}
        self._open: frozenset[int] = frozenset()
        self._told: set[str] = set()
        self.marks: dict[str, Mark] = {}
        """The marks of the folders of `checkpoints.save`, by the folders' names."""

    def start(self) -> None:
        """Watch the existing folder."""
        self._watch.start()

    def look(self) -> Look:
        """Walk the folder: one `stat` for each path, and the start and the end of each changed file.

        What vanishes meanwhile is absent. Raises OSError if the folder can't be listed.
        """
        at_ns = time.time_ns()
        nodes = {node.path: node for node in walk(self._folder, self._tell)}
        changed = [
            node for node in nodes.values() if node.kind == "file" and node != self._before.get(node.path)
        ]
        self._archives = {
            path: whole for path, whole in self._archives.items() if nodes.get(path) == self._before[path]
        }
        self.marks = {
            name: mark
            for name, mark in self.marks.items()
            if nodes.get(place := f"{name}/{MARK_FILE}") == self._before[place]
        }
        for node in changed:
            whole = zip_archives.is_whole(self._folder / node.path)
            if whole is not None:
                self._archives[node.path] = whole
            name, _, rest = node.path.partition("/")
            if rest == MARK_FILE and (mark := read_mark(self._folder / name)):
                self.marks[name] = mark
        self._before = nodes
        if changed or self._open:  # Of a file that does not change, it makes no difference.
            inodes = {node.inode for node in nodes.values()}
            self._open = frozenset(held_open(self._folder.stat().st_dev) & inodes)
        return Look(
            at_ns,
            nodes,
            self._open,
            frozenset(
                name
                for name in nodes
                if "/" not in name and (event := self._watch.last(name)) and event.what is EventKind.RENAMED
            ),
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
    return name.endswith(_LEFT_OUT) or name.startswith(_OF_NFS) or ".tfevents." in name or name == RECORD_FILE


def walk(
    folder: Path, on_outside: Callable[[str, str], None] = lambda *_: None, *, below: str = ""
) -> Iterator[Node]:
    """Yield what belongs to a picture of a folder; each folder before what is in it.

    on_outside: called with path and target of each link that leads out of the folder. below: the path of a folder,
    of which alone the content is yielded. Raises OSError if the folder can't be listed.
    """
    yield from _walk(folder, os.fspath(folder / below), f"{below}/" if below else "", on_outside)


def _walk(folder: Path, directory: str, below: str, on_outside: Callable[[str, str], None]) -> Iterator[Node]:
    """Yield what is below a directory. below: the path of the directory in the folder, with a final `/`."""
    try:
        with os.scandir(directory) as listed:
            found = sorted(listed, key=lambda each: each.name)
    except OSError:
        if not below:
            raise
        return
    arriving = _names_in_bucket(directory) if any(each.name == RECORD_FILE for each in found) else ()
    for each in found:
        if is_left_out(each.name) or each.name in arriving:
            continue
        path = below + each.name
        try:
            status = each.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        changed_ns, inode, mtime_ns = status.st_ctime_ns, status.st_ino, status.st_mtime_ns
        if stat.S_ISDIR(status.st_mode):
            if not each.name.startswith("."):
                yield Node(path, "directory", 0, changed_ns, inode, mtime_ns=mtime_ns)
                yield from _walk(folder, each.path, f"{path}/", on_outside)
        elif stat.S_ISREG(status.st_mode):
            yield Node(path, "file", status.st_size, changed_ns, inode, mtime_ns=mtime_ns)
        elif stat.S_ISLNK(status.st_mode):
            target = _target(folder, path)
            if target is None:
                continue
            if is_inside(path, target):
                yield Node(path, "link", 0, changed_ns, inode, target, mtime_ns)
            else:
                on_outside(path, target)


def _target(folder: Path, path: str) -> str | None:
    """Return the target of a link; an absolute one that leads into the folder as a relative one."""
    try:
        target = os.readlink(folder / path)  # noqa: PTH115 - the text, as the program wrote it
    except OSError:
        return None
    # Under `dtj run`, the folder has its usual path for the program alone.
    for inside in (f"{os.fspath(folder)}/", f"{contract.ROOT}/{contract.CHECKPOINTS}/"):
        if target.startswith(inside):
            above = "../" * path.count("/")
            return f"{above}{target.removeprefix(inside).strip('/')}" or "."
    return target


def _names_in_bucket(directory: str) -> set[str]:
    """Return the names that a restore has left in the bucket: see `on_demand`."""
    try:
        record = json.loads((Path(directory) / RECORD_FILE).read_bytes())
        return {PurePosixPath(file["path"]).name for file in record["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
