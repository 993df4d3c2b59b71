"""Walks the checkpoints folder for `picture`."""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer.artifacts import zip_archives
from dtj_trainer.artifacts.folder_watch import EventKind, FolderWatch
from dtj_trainer.artifacts.local_checkpoints import RECORD_FILE, read_mark
from dtj_trainer.artifacts.look import Look, Node
from dtj_trainer.artifacts.open_files import held_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

log = logging.getLogger(__name__)

_LEFT_OUT = (".tmp", ".part")


class FolderLooks:
    """The looks at one folder. `start` before the first look."""

    def __init__(self, folder: Path, program_runs: Callable[[], bool] = lambda: True) -> None:
        """`program_runs`: whether the kernel has not begun to end the program, however late its end is reported."""
        self._folder = folder
        self._watch = FolderWatch(folder, program_runs)
        self._before: Mapping[str, Node] = {}
        self._archives: dict[str, bool] = {}
        self._told: set[str] = set()

    def start(self) -> None:
        """Watch the existing folder."""
        self._watch.start()

    def look(self) -> Look:
        """Walk the folder: one `stat` for each path, and the start and the end of each changed file.

        What vanishes meanwhile is absent. Raises OSError if the folder can't be listed.
        """
        at_ns = time.time_ns()
        nodes = {node.path: node for node in self._walk(os.fspath(self._folder), "")}
        changed = [
            node for node in nodes.values() if node.kind == "file" and node != self._before.get(node.path)
        ]
        self._archives = {
            path: whole for path, whole in self._archives.items() if nodes.get(path) == self._before[path]
        }
        for node in changed:
            whole = zip_archives.is_whole(self._folder / node.path)
            if whole is not None:
                self._archives[node.path] = whole
        self._before = nodes
        tops = [path for path in nodes if "/" not in path]
        return Look(
            at_ns,
            nodes,
            frozenset(held_open(self._folder.stat().st_dev) & {node.inode for node in nodes.values()}),
            frozenset(
                name for name in tops if (event := self._watch.last(name)) and event.what is EventKind.RENAMED
            ),
            self._archives,
            {
                name: mark.step
                for name in tops
                if nodes[name].kind == "directory" and (mark := read_mark(self._folder / name))
            },
        )

    def _walk(self, directory: str, below: str) -> Iterator[Node]:
        """Yield what is below a directory. below: the path of the directory in the folder, with a final `/`."""
        try:
            with os.scandir(directory) as listed:
                found = sorted(listed, key=lambda each: each.name)
        except OSError:
            if not below:
                raise
            return
        for each in found:
            if each.name.endswith(_LEFT_OUT) or ".tfevents." in each.name or each.name == RECORD_FILE:
                continue
            path = below + each.name
            try:
                status = each.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            changed_ns, inode = status.st_ctime_ns, status.st_ino
            if stat.S_ISDIR(status.st_mode):
                if not each.name.startswith("."):
                    yield Node(path, "directory", 0, changed_ns, inode)
                    yield from self._walk(each.path, f"{path}/")
            elif stat.S_ISREG(status.st_mode):
                yield Node(path, "file", status.st_size, changed_ns, inode)
            elif stat.S_ISLNK(status.st_mode) and (target := self._inside(path)) is not None:
                yield Node(path, "link", 0, changed_ns, inode, target)

    def _inside(self, path: str) -> str | None:
        """Return the target of a link; None if the target is outside of the folder, which the log says once."""
        try:
            target = os.readlink(self._folder / path)  # noqa: PTH115 - the text, as the program wrote it
        except OSError:
            return None
        joined = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - no disk
        if not os.path.isabs(target) and joined != ".." and not joined.startswith("../"):  # noqa: PTH117 - a text
            return target
        if path not in self._told:
            self._told.add(path)
            log.warning(
                "checkpoints/%s is not saved: the link leads to %s, outside of the folder", path, target
            )
        return None
