"""The processes of this machine, or of this container, as /proc shows them."""

from __future__ import annotations

import os
from pathlib import Path

MOST_CHARACTERS = 300


def children_by_parent() -> dict[int, list[int]]:
    """Return the process ids of the children of each process that has some, in ascending order."""
    children: dict[int, list[int]] = {}
    for process in numbered(Path("/proc")):
        # The fields after the name, which may contain any character, are state and parent.
        rest = read(process / "stat").rpartition(")")[2].split()
        if rest:
            children.setdefault(int(rest[1]), []).append(int(process.name))
    return {parent: sorted(found) for parent, found in children.items()}


def with_descendants(first: int) -> list[int]:
    """Return a process and all its descendants."""
    children = children_by_parent()
    found = [first]
    for pid in found:
        found += children.get(pid, ())
    return found


def own_children() -> list[int]:
    """Return this process's children, ended ones among them."""
    own = os.getpid()
    try:
        # Far cheaper than a look at all processes. A kernel may be built without these files, see proc(5).
        texts = [(task / "children").read_text() for task in numbered(Path(f"/proc/{own}/task"))]
    except OSError:
        return children_by_parent().get(own, [])
    return [int(pid) for text in texts for pid in text.split()]


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process started; empty for a process that has ended or can't be read."""
    words = read(Path(f"/proc/{pid}/environ")).split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def command_of(pid: int) -> list[str]:
    """Return the words of a process's command line; empty for a process that has ended or can't be read."""
    return read(Path(f"/proc/{pid}/cmdline")).split("\0")[:-1]


def described(pid: int) -> str:
    """Return the command line of a process on one line of at most MOST_CHARACTERS."""
    return " ".join(command_of(pid)).replace("\n", " ")[:MOST_CHARACTERS]


def numbered(folder: Path) -> list[Path]:
    """Return the entries of a folder in /proc that are named by a process or a thread."""
    try:
        return [path for path in folder.iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def read(path: Path) -> str:
    """Return the text of a file in /proc; empty for a process that has ended or can't be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
