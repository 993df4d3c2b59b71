"""Decides when the content of the checkpoints folder is complete. Reads neither disk nor clock.

A *look* is what one walk of the folder found. A *capture* is the content of the whole folder at one moment: what a
snapshot in the bucket holds. Programs write checkpoints in their own ways and do not report when one is complete, so
the rules follow from what every way has in common: a save ends, and nothing changes for a while.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

# The following classes and functions describe what one walk of the checkpoints folder found.

SECOND = 10**9
"""One second in nanoseconds, the unit of all times in this module."""
LATEST_NS = 2**62 - 1
"""The latest modification time that a manifest may have."""
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
        """Return whether the other node has the same content. Two folders at one path are always the same."""
        if other is None or self.kind != other.kind:
            return False
        return self.kind == "directory" or self == other


@dataclass(frozen=True)
class Look:
    """One walk of the folder.

    `at_ns`: when the walk began, by the wall clock. `nodes`: by path, with each node's folders. `open`: inodes that a
    process has open for writing. `renamed`: entries of the top folder whose last inotify event was a rename to there.
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
    """Return the topmost parent folder of a path that is not in `known`; the path itself if `known` has all."""
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
    """Return the elder of each folder: the newest earlier folder whose name differs in its digits alone, as `epoch-1`
    and `epoch-2` do.

    looks: the nodes of several looks, by path. The first look that has a folder gives the folder's age.
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
    """Return, by folder, the kinds of the files below: each path in the folder with each run of digits as `#`."""
    found: dict[str, set[str]] = {folder: set() for folder in folders}
    for path, node in nodes.items() if folders else ():
        if node.kind != "directory":
            for folder in folders_of(path):
                if folder in found:
                    found[folder].add(kind_of(path[len(folder) + 1 :]))
    return found


def fewer_kinds(folders: Set[str], last: Mapping[str, Node], nodes: Mapping[str, Node]) -> set[str]:
    """Return the folders that have fewer kinds of files than their elder, or than they had before.

    last, nodes: the content of the last capture, and the present content. A folder of `last` is its own elder.
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


# A Track records what successive walks show of one file, folder or link that differs from the last capture.

BUSY_CHANGES, BUSY_WITHIN = 4, 30 * SECOND
"""A file is busy if it changed BUSY_CHANGES times within BUSY_WITHIN."""


@dataclass
class Track:
    """What is known of a node that differs from the last capture."""

    began_ns: int
    """The time of the last look before the node began to differ from the last capture, or before its latest change if
    it had settled."""
    changes: tuple[int, ...] = ()
    """The times of the latest changes, at most BUSY_CHANGES."""
    open_since: int | None = None
    size_when_opened: int = 0
    closed_since: int | None = None
    """The time of the look that first found the current content and no process that had the file open for writing."""
    seen_ns: int = 0
    """The time of the look that first found the current content."""

    def forget_times(self, now: int) -> None:
        """Restart all waits, because the clock was set back."""
        self.changes, self.seen_ns, self.began_ns = (), now, min(self.began_ns, now)
        self.open_since = None if self.open_since is None else now
        self.closed_since = None if self.closed_since is None else now

    def follow(self, node: Node, before: Look, look: Look, settle_ns: int) -> None:
        """Note what has changed in a file or folder from one walk of the checkpoints folder to the next."""
        if not node.same(before.nodes.get(node.path)):
            if self.closed_since is not None and before.at_ns - self.closed_since >= settle_ns:
                self.began_ns = before.at_ns
            self.seen_ns = look.at_ns
            self.changes = (*self.changes, min(node.changed_ns, look.at_ns))[-BUSY_CHANGES:]
            self.closed_since = None
        if node.inode not in look.open:
            self.open_since, self.closed_since = None, self.closed_since or look.at_ns
        elif self.open_since is None:
            self.open_since, self.size_when_opened, self.closed_since = look.at_ns, node.size, None

    def often(self) -> bool:
        """Return whether the node has changed so often that it may be busy."""
        return len(self.changes) == BUSY_CHANGES

    def busy(self, now: int) -> bool:
        """Return whether the node changes all the time."""
        return self.often() and now - self.changes[0] <= BUSY_WITHIN


SHORT_SETTLE = 1 * SECOND
"""The quiet time before a capture if a rename or a complete zip archive shows that each new file is complete."""
NEVER_QUIET = 30 * SECOND
"""After this long without a quiet moment, a quiet time of SHORT_SETTLE suffices for a capture."""
OPEN_LIMIT = 120 * SECOND
"""How long an open file, or an incomplete zip archive, delays captures."""
FEWER_LIMIT, FEWER_AT_MOST = 300 * SECOND, 1800 * SECOND
"""How long a folder that may still lack files delays captures: after its last change, and in total."""
AT_LONGEST = 600 * SECOND
"""After this long with new content and without a capture, the next capture leaves out unfinished files."""
LOG_BYTES = 64 * 10**6
"""A file that is open for OPEN_LIMIT and grew by fewer bytes counts as a log."""
BUSY_EVERY = 15 * SECOND
"""Changes of busy files alone make a capture due at most once in this time."""


@dataclass(frozen=True)
class Capture:
    """The content of the folder at one moment, by path.

    `passed_over`: unfinished files and folders, of which the capture has the content of the last capture, or nothing.
    `at_ns`: the time of the look that showed the content. `busy`: files that change all the time.
    """

    nodes: Mapping[str, Node]
    passed_over: tuple[str, ...] = ()
    at_ns: int = field(default=0, compare=False)
    busy: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True)
class Waits:
    """Why there is no capture now. `path`: the file or folder that delays the capture; empty: not a single one."""

    reason: str
    path: str = ""


NOTHING = Waits("no new file is complete")


class FolderState:
    """Decides from the looks at one folder when a capture is due.

    `settle_ns`: how long nothing may change before a capture is taken. `last`: the content that a restore left. Call
    `taken` as soon as the bucket has the content of a capture.
    """

    def __init__(
        self,
        settle_ns: int,
        last: Mapping[str, Node] | None = None,
        foreign: Mapping[str, Node] | None = None,
    ) -> None:
        """foreign: restored files that other pods saved. The program of this pod does not write such files."""
        self._foreign = foreign or {}
        self._settle_ns = settle_ns
        self.last: Mapping[str, Node] = dict(last or {})
        self._offered: Mapping[str, Node] = {}
        """The content of the capture that was offered last."""
        self._taken_ns = 0
        self._look = Look(0, self.last)
        self._tracks: dict[str, Track] = {}
        self._removed: dict[str, int] = {}
        """By path of a node of the last or the offered capture that has vanished: the time of the last look that
        showed the node."""
        self._removed_ns = 0
        self._unquiet_since: int | None = None
        self._new_since: int | None = None
        """Since when the folder has something that the last capture lacks."""
        self._fewer_since: dict[str, int] = {}

    def see(self, look: Look) -> None:
        """Update the state by the next look. Looks come in the order of their times."""
        before, self._look = self._look, look
        if look.at_ns < before.at_ns:
            self._forget_times(look.at_ns)
        for path in before.nodes.keys() - look.nodes.keys():
            if not self._busy(path, look.at_ns) and path.partition("/")[0] not in before.steps:
                self._removed_ns = look.at_ns
            if path in self.last or path in self._offered:
                self._removed[path] = before.at_ns
        for path in self._removed.keys() & look.nodes.keys():
            del self._removed[path]
        tracks = {}
        for path, node in look.nodes.items():
            if path in self._tracks or not node.same(self.last.get(path)):
                tracks[path] = self._tracks.get(path) or Track(before.at_ns)
                tracks[path].follow(node, before, look, self._settle_ns)
        self._tracks = tracks
        if not any(True for _ in self._new(files=True)):
            self._new_since = None
        elif self._new_since is None:
            self._new_since = look.at_ns
        if self._changing(look.at_ns, self._settle_ns) is None:
            self._unquiet_since = None
        elif self._unquiet_since is None:
            self._unquiet_since = look.at_ns

    def _forget_times(self, now: int) -> None:
        """Restart all waits, because the clock was set back."""
        self._removed_ns = self._taken_ns = 0
        self._unquiet_since, self._new_since, self._fewer_since = None, None, {}
        for track in self._tracks.values():
            track.forget_times(now)

    def taken(self, capture: Capture, unsent: Set[str] = frozenset()) -> None:
        """Note that the bucket has the capture: the next capture needs newer content. Looks may have come meanwhile.

        unsent: files that are stored with their content in the last capture, or not at all.
        """
        nodes = capture.nodes
        if unsent:
            nodes = {path: node for path, node in nodes.items() if path not in unsent}
            nodes |= {path: self.last[path] for path in unsent if path in self.last}
        self.last, self._taken_ns, self._offered = nodes, capture.at_ns, {}
        self._new_since = None
        self._removed = {path: at for path, at in self._removed.items() if path in self.last}
        # Keep the tracks of busy files, so that they stay known as busy.
        nodes = self._look.nodes
        self._tracks = {
            path: track
            for path, track in self._tracks.items()
            if not nodes[path].same(self.last.get(path)) or track.often()
        }

    def capture(self, *, ended: bool = False, died_ns: int | None = None) -> Capture | Waits:
        """Return the capture that is due after the last look, if one is, and offer it.

        `ended`: the program ended by itself, with whatever exit code. `died_ns`: when the program was killed.
        """
        found = self.found(ended=ended, died_ns=died_ns)
        self.offer(found)
        return found

    def found(self, *, ended: bool = False, died_ns: int | None = None) -> Capture | Waits:
        """Return what `capture` would return now, without offering the capture."""
        return self._before_unfinished(died_ns) if died_ns is not None else self._complete(ended=ended)

    def offer(self, found: Capture | Waits) -> None:
        """Note that the next call of `taken` may get this capture."""
        self._offered = found.nodes if isinstance(found, Capture) else {}

    def _complete(self, *, ended: bool) -> Capture | Waits:
        over = {path for path in self._new(files=True) if self._look.archives.get(path) is False}
        if not ended:
            waits, over = self._unfinished(over)
            if waits and self._new_since is not None and self._look.at_ns - self._new_since >= AT_LONGEST:
                over |= self._restless()
            elif waits:
                return self._new_save() or waits
        return self._without(over, busy_too=ended)

    # --- while the program runs -----------------------------------------------------------------

    def _unfinished(self, torn: set[str]) -> tuple[Waits | None, set[str]]:
        """Return what a capture waits for, and the files and folders that it passes over."""
        now = self._look.at_ns
        over: set[str] = set()
        for path in self._new(files=True):
            track, node = self._tracks[path], self._look.nodes[path]
            if track.open_since is not None:
                if now - track.open_since >= OPEN_LIMIT:
                    log = node.size - track.size_when_opened < LOG_BYTES
                    over.add(path if log else topmost_new(path, self.last))
                elif self._busy(path, now):
                    over.add(path)
                else:
                    return Waits("a process has the file open for writing", path), over
            elif path in torn:
                if now - self._changed_ns(path) < OPEN_LIMIT:
                    return Waits("the zip archive is incomplete", path), over
                over.add(topmost_new(path, self.last))
        if (settle := self._changing(now, self._needed(over), over)) is not None:
            return settle, over
        fewer = self._fewer()
        self._fewer_since = {folder: self._fewer_since.get(folder, now) for folder in fewer}
        for folder, changed_ns in fewer.items():
            # Limit the wait: other files of the folder may change all the time.
            if now - changed_ns < FEWER_LIMIT and now - self._fewer_since[folder] < FEWER_AT_MOST:
                return Waits("the folder has fewer kinds of files than the previous checkpoint", folder), over
        return None, over

    def _restless(self) -> set[str]:
        """Return what to pass over in a folder that never rests: files that are open, incomplete or just changed."""
        now, restless = self._look.at_ns, set(self._fewer())
        for path in self._new(files=True):
            track = self._tracks[path]
            recent = now - self._changed_ns(path) < SHORT_SETTLE and not self._renamed(path)
            if track.open_since is not None or recent or self._look.archives.get(path) is False:
                restless.add(path if self._busy(path, now) else topmost_new(path, self.last))
        return restless

    def _changed_ns(self, path: str) -> int:
        """Return when a new node changed, but no later than its first look: the clock of a network disk may be
        ahead.
        """
        return min(self._look.nodes[path].changed_ns, self._tracks[path].seen_ns)

    def _new_save(self) -> Capture | None:
        """Return a capture in which only the newest folder of `checkpoints.save` is new; None if that folder is not
        new. `save` completes a folder before the folder gets its name.
        """
        steps = self._look.steps
        newest = max(steps, key=lambda name: steps[name], default="")
        if not any(is_below(path, {newest}) for path in self._new(files=True)):
            return None
        nodes = {path: node for path, node in self.last.items() if not is_below(path, steps.keys())}
        nodes |= {path: node for path, node in self._look.nodes.items() if is_below(path, {newest})}
        return Capture(nodes, at_ns=self._look.at_ns)

    def _changing(self, now: int, settle_ns: int, over: Set[str] = frozenset()) -> Waits | None:
        """Return what has changed within `settle_ns` before `now`; None if nothing has."""
        if now - self._removed_ns < settle_ns:
            return Waits("files are removed")
        for path in self._new():
            node = self._look.nodes[path]
            if node.kind == "directory" or self._busy(path, now) or is_below(path, over):
                continue
            if now - self._changed_ns(path) < settle_ns and path.partition("/")[0] not in self._look.steps:
                return Waits("the file has just changed", path)
        return None

    def _needed(self, over: set[str]) -> int:
        """Return for how many nanoseconds nothing may change before a capture is taken."""
        unquiet = self._unquiet_since
        if unquiet is not None and self._look.at_ns - unquiet >= NEVER_QUIET:
            return min(SHORT_SETTLE, self._settle_ns)
        changed = [
            path
            for path in self._new()
            if not is_below(path, over) and not self._busy(path, self._look.at_ns)
        ]
        if all(self._shown_complete(path) for path in changed):
            return min(SHORT_SETTLE, self._settle_ns)
        return self._settle_ns

    def _shown_complete(self, path: str) -> bool:
        """Return whether a rename or a complete zip archive shows that the content of a file is complete."""
        folder = path.rpartition("/")[0]
        archive = self._look.archives.get(path) is True and (not folder or folder in self.last)
        return archive or self._renamed(path)

    def _renamed(self, path: str) -> bool:
        """Return whether the content was renamed into the top folder, or is in a folder of `checkpoints.save`."""
        top = path.partition("/")[0]
        unchanged = self._look.nodes[path].changed_ns <= self._look.nodes[top].changed_ns
        return top in self._look.steps or (top in self._look.renamed and unchanged)

    def _fewer(self) -> dict[str, int]:
        """Return the last change of each changed folder that has fewer kinds of files than its elder, or than before.

        A new folder inside a new folder is judged as a part of the outer one.
        """
        changed: dict[str, int] = {}
        for path in self._new(files=True):
            for folder in folders_of(path):
                changed[folder] = max(changed.get(folder, 0), self._look.nodes[path].changed_ns)
                if folder not in self.last:
                    break
        changed = {
            folder: at for folder, at in changed.items() if folder.partition("/")[0] not in self._look.steps
        }
        fewer = fewer_kinds(changed.keys(), self._own(self.last), self._own(self._look.nodes))
        return {folder: at for folder, at in changed.items() if folder in fewer}

    def _own(self, nodes: Mapping[str, Node]) -> Mapping[str, Node]:
        if not self._foreign:
            return nodes
        return {path: node for path, node in nodes.items() if node != self._foreign.get(path)}

    # --- after the program was killed ------------------------------------------------------------

    def _before_unfinished(self, died_ns: int) -> Capture | Waits:
        """Return the capture of the moment before the program began the oldest file or folder that is unfinished."""
        torn = {path for path in self._new(files=True) if self._torn_by_death(path, died_ns)}
        busy = {path for path in torn if self._busy(path, died_ns)}
        began = self._began(torn - busy | self._fewer().keys())
        if began is None:
            return self._without(busy, busy_too=True)
        cut = self._cut(began)
        nodes = {path: node for path, node in self.last.items() if self._removed.get(path, cut) >= cut}
        nodes |= {path: node for path, node in self._look.nodes.items() if self._before(path, cut)}
        return self._due(nodes, ())

    def _cut(self, cut: int) -> int:
        """Return the latest time, at most `cut`, at which no new folder was being written."""
        while True:
            later = {
                topmost_new(path, self.last) for path in self._new(files=True) if not self._before(path, cut)
            }
            began = self._began({root for root in later if self._look.nodes[root].kind == "directory"})
            if began is None or began >= cut:
                return cut
            cut = began

    def _before(self, path: str, cut: int) -> bool:
        """Return whether the file or folder at `path` already had its present content at the time `cut`, in ns."""
        track = self._tracks.get(path)
        return track is None or (track.began_ns < cut and self._look.nodes[path].changed_ns <= cut)

    def _torn_by_death(self, path: str, died_ns: int) -> bool:
        whole = self._look.archives.get(path)
        if whole is not None or self._renamed(path):
            return whole is False
        closed = self._tracks[path].closed_since
        return closed is None or closed >= died_ns - self._settle_ns

    def _began(self, roots: set[str]) -> int | None:
        """Return a time before the first change of `roots`, or below, since the last capture; None: no change."""
        inside = [track.began_ns for path, track in self._tracks.items() if is_below(path, roots)]
        gone = [at for path, at in self._removed.items() if is_below(path, roots)]
        return min(inside + gone, default=None)

    # --- the content of the next capture ----------------------------------------------------------

    def _without(self, over: set[str], *, busy_too: bool) -> Capture | Waits:
        """Return the current content; of the paths in `over`, the content that the last capture has."""
        nodes = {path: node for path, node in self._look.nodes.items() if not is_below(path, over)}
        nodes |= {path: node for path, node in self.last.items() if is_below(path, over)}
        if not busy_too and self._look.at_ns - self._taken_ns < BUSY_EVERY:
            new = [path for path in self._new() if not self._busy(path, self._look.at_ns)]
            if all(is_below(path, over) or self._look.nodes[path].kind == "directory" for path in new):
                return NOTHING
        return self._due(nodes, tuple(sorted(over)))

    def _due(self, nodes: dict[str, Node], passed_over: tuple[str, ...]) -> Capture | Waits:
        """Return a capture of these nodes, or why there is none. Of the folders of `checkpoints.save`, a capture has
        the newest alone.
        """
        steps = self._look.steps
        newest = max(steps, key=lambda name: steps[name], default=None)
        older = {name for name in steps if name != newest}
        nodes = {path: node for path, node in nodes.items() if not is_below(path, older)}
        content = {
            folder for path, node in nodes.items() if node.kind != "directory" for folder in folders_of(path)
        }
        # Add the folders of all files: `nodes` may lack a folder that changed later than its files.
        for folder in content:
            if folder not in nodes or nodes[folder].kind != "directory":
                present = self._look.nodes.get(folder)
                nodes[folder] = present if present and present.kind == "directory" else self.last[folder]
        new = any(
            node.kind != "directory" and not node.same(self.last.get(path)) for path, node in nodes.items()
        )
        now = self._look.at_ns
        busy = frozenset(path for path in self._tracks if self._busy(path, now))
        return Capture(nodes, passed_over, now, busy) if new else NOTHING

    def _new(self, *, files: bool = False) -> Iterator[str]:
        """Yield the paths that differ from the last capture."""
        for path in self._tracks:
            node = self._look.nodes[path]
            if not node.same(self.last.get(path)) and (not files or node.kind == "file"):
                yield path

    def _busy(self, path: str, now: int) -> bool:
        return path in self._tracks and self._tracks[path].busy(now)
