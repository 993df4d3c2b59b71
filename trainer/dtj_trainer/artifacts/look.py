"""What one walk of the checkpoints folder found, as data."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

SECOND = 10**9
"""In nanoseconds, as all times here."""
LATEST_NS = 2**62 - 1
"""The latest modification time that a manifest has."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Node:
    """A file, a folder or a link below the checkpoints folder. `path` is relative to the folder, with `/`.

    `changed_ns`: the change time (ctime), which a program can't set. `mtime_ns`: the modification time. `target`: of
    a link.
    """

    path: str
    kind: Literal["file", "directory", "link"]
    size: int = 0
    changed_ns: int = 0
    inode: int = 0
    target: str = ""
    mtime_ns: int = 0

    def same(self, other: Node | None) -> bool:
        """Return whether the other node has the same content. Of a folder, only its existence is content."""
        if other is None or self.kind != other.kind:
            return False
        return self.kind == "directory" or self == other


@dataclass(frozen=True)
class Look:
    """One walk of the folder.

    `at_ns`: when the walk began, by the wall clock. `nodes`: by path, with each node's folders. `open`: inodes that a
    process has open for writing. `renamed`: names of the top folder whose last event was a rename into it.
    `archives`: by path, whether a zip archive has its directory, which its writer adds last; other files are absent.
    `steps`: of each folder that `checkpoints.save` wrote, its step by its name.
    """

    at_ns: int
    nodes: Mapping[str, Node]
    open: frozenset[int] = frozenset()
    renamed: frozenset[str] = frozenset()
    archives: Mapping[str, bool] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)


def folders_of(path: str) -> Iterator[str]:
    """Yield each parent folder of a path, the topmost first."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)


def is_below(path: str, roots: Set[str]) -> bool:
    """Return whether the path is one of the roots, or below one."""
    return bool(roots) and (path in roots or any(folder in roots for folder in folders_of(path)))


def topmost_new(path: str, known: Container[str]) -> str:
    """Return the topmost folder of a path that is not among the known ones; the path itself without one."""
    return next((folder for folder in folders_of(path) if folder not in known), path)


def is_inside(path: str, target: str) -> bool:
    """Return whether a link with this path and target leads to a place in the checkpoints folder.

    `..` may only come first: after the name of another link, `..` is the parent of what that link leads to.
    """
    parts = target.split("/")
    above = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return bool(target) and parts[0] != "" and above <= path.count("/") and ".." not in parts[above:]


def kind_of(name: str) -> str:
    """Return a name, or a path, with each run of digits as `#`."""
    return _DIGITS.sub("#", name)


def place_of(path: str) -> tuple[str, str]:
    """Return the folder of a path, and the kind of its name."""
    parent, _, name = path.rpartition("/")
    return parent, kind_of(name)


def _elders_of(folders: Set[str], *looks: Mapping[str, Node]) -> dict[str, str]:
    """Return the elder of each folder that has one: of those whose names are of the same kind, the newest before it.

    looks: the nodes of looks, by path. The first that has a folder says how old the folder is.
    """
    found: dict[tuple[str, str], dict[str, int]] = {place_of(folder): {} for folder in folders}
    for nodes in looks if folders else ():
        for path, node in nodes.items():
            if node.kind == "directory" and (place := place_of(path)) in found:
                found[place].setdefault(path, node.changed_ns)
    elders = {}
    for folder in folders:
        siblings = found[place_of(folder)]
        if older := [path for path, at in siblings.items() if at < siblings[folder]]:
            elders[folder] = max(older, key=lambda path: siblings[path])
    return elders


def _kinds_in(nodes: Mapping[str, Node], folders: Set[str]) -> dict[str, set[str]]:
    """Return the kinds of files below each of the folders, by their paths in it with each run of digits as `#`."""
    found: dict[str, set[str]] = {folder: set() for folder in folders}
    for path, node in nodes.items() if folders else ():
        if node.kind != "directory":
            for folder in folders_of(path):
                if folder in found:
                    found[folder].add(kind_of(path[len(folder) + 1 :]))
    return found


def fewer_kinds(folders: Set[str], last: Mapping[str, Node], nodes: Mapping[str, Node]) -> set[str]:
    """Return the folders that have fewer kinds of files than their elder, or than they had before.

    last, nodes: what was there before, and now. A folder that was there before is its own elder.
    """
    elders = _elders_of(folders - last.keys(), last, nodes)
    elder_or_itself = {elders.get(folder, folder) for folder in folders}
    before, now = _kinds_in(last, elder_or_itself), _kinds_in(nodes, elder_or_itself | folders)
    return {
        folder
        for folder in folders
        if len(now[folder])
        < len(before[folder] if folder not in elders else before[elders[folder]] | now[elders[folder]])
    }
