"""Leaves the oldest files out of a snapshot that would have too many bytes: DTJ_CHECKPOINTS_KEEP_BYTES.

A program that never removes its checkpoints would otherwise fill the bucket: each snapshot has the whole folder.
"""

from __future__ import annotations

import heapq
import logging
import posixpath
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.capture import folders_of, is_below, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set

    from dtj_trainer.artifacts.capture import Node
    from dtj_trainer.artifacts.manifest import StoredFile, StoredFolder, StoredLink

log = logging.getLogger(__name__)


class SizeLimit:
    """The files that the snapshots of one folder leave out. `most_bytes`: of a snapshot; 0: no limit."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._left_out: set[str] = set()
        self._warned = False

    def wanted(self, nodes: Iterable[Node], last: Mapping[str, Node]) -> list[Node]:
        """Return the nodes without those that the last snapshot left out, if they are unchanged since."""
        nodes = list(nodes)
        if self._left_out:
            self._left_out &= {each for node in nodes for each in _folders_and(node.path)}
            for node in nodes:
                if node != last.get(node.path):
                    self._left_out.difference_update(_folders_and(node.path))
        return [node for node in nodes if not is_below(node.path, self._left_out)]

    def limited(
        self,
        files: Sequence[StoredFile],
        folders: Sequence[StoredFolder],
        links: Sequence[StoredLink],
        saved: str | None,
    ) -> tuple[tuple[StoredFile, ...], tuple[StoredFolder, ...], tuple[StoredLink, ...]]:
        """Return the part of this content that a snapshot has within the limit. saved: a folder that stays whole."""
        if not self._most_bytes:
            return tuple(files), tuple(folders), tuple(links)
        if out := left_out(files, links, self._most_bytes, saved):
            if not out <= self._left_out:
                log.info(
                    "the checkpoint leaves out old files (%s and %d more), to stay within %s=%d bytes",
                    *(min(out), len(out) - 1, contract.ENV_CHECKPOINTS_KEEP_BYTES, self._most_bytes),
                )
            self._left_out |= out
        kept = tuple(file for file in files if not is_below(file.path, self._left_out))
        size = sum(file.size for file in kept)
        if size > self._most_bytes and not self._warned:
            self._warned = True
            log.warning(
                "the checkpoint is too large: the newest files of each kind have %d bytes, more than %s=%d",
                *(size, contract.ENV_CHECKPOINTS_KEEP_BYTES, self._most_bytes),
            )
        return (
            kept,
            tuple(folder for folder in folders if not is_below(folder.path, self._left_out)),
            tuple(link for link in links if not is_below(link.path, self._left_out)),
        )


@dataclass
class _Unit:
    """A file, or a folder with all that is in it, which a snapshot has as a whole or not at all."""

    path: str
    size: int = 0
    newest: tuple[int, str] = (-(2**63), "")
    """The modification time of the unit's newest file, and the folder of the snapshot that first had this file."""


def left_out(
    files: Sequence[StoredFile], links: Sequence[StoredLink], most_bytes: int, saved: str | None
) -> Set[str]:
    """Return the files and folders to leave out, so that the others have at most `most_bytes`.

    Names that differ in their digits alone are of one kind, such as `epoch-1.pt` and `epoch-2.pt` in one folder. The
    oldest of the most numerous kind goes first. The newest of each kind stays, with those that came in the same
    snapshot, because they may be its parts. What a link names stays, too.
    """
    excess = sum(file.size for file in files) - most_bytes
    if excess <= 0:
        return frozenset()
    groups = _groups(file for file in files if saved is None or not is_below(file.path, {saved}))
    named = {
        prefix
        for link in links
        for prefix in _folders_and(
            posixpath.normpath(posixpath.join(posixpath.dirname(link.path), link.target))
        )
    }
    queue: list[tuple[int, int, list[_Unit]]] = []
    for number, units in enumerate(groups):
        units.sort(key=lambda unit: (unit.newest, unit.path), reverse=True)
        born = units[0].newest[1]
        droppable = [unit for unit in units if unit.newest[1] != born and unit.path not in named]
        if droppable:
            queue.append((-len(units), number, droppable))
    heapq.heapify(queue)
    out: set[str] = set()
    while queue and excess > 0:
        count, number, units = heapq.heappop(queue)
        unit = units.pop()
        out.add(unit.path)
        excess -= unit.size
        if units:
            heapq.heappush(queue, (count + 1, number, units))
    return out


def _groups(files: Iterable[StoredFile]) -> list[list[_Unit]]:
    """Return the units (files or folders) of each kind. Kinds with a single unit are left out."""
    files = list(files)
    members: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file in files:
        for prefix in _folders_and(file.path):
            members[place_of(prefix)].add(prefix)
    units: dict[str, _Unit] = {}
    for file in files:
        root = next((each for each in _folders_and(file.path) if len(members[place_of(each)]) > 1), None)
        if root is not None:
            unit = units.setdefault(root, _Unit(root))
            unit.size += file.size
            unit.newest = max(unit.newest, (file.mtime_ns, file.key.partition("/")[0]))
    groups: dict[tuple[str, str], list[_Unit]] = defaultdict(list)
    for unit in units.values():
        groups[place_of(unit.path)].append(unit)
    return list(groups.values())


def _folders_and(path: str) -> tuple[str, ...]:
    return (*folders_of(path), path)
