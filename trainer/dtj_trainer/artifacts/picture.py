"""Decides when the content of the checkpoints folder is complete. Reads neither disk nor clock.

A *look* is what one walk of the folder found. A *picture* is the content of the whole folder at one moment: what a
snapshot in the bucket holds. Programs write checkpoints in their own ways and do not report when one is complete, so
the rules follow from what every way has in common: a save ends, and nothing changes for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from dtj_trainer.artifacts.look import SECOND, Look, Node, fewer_kinds, folders_of, is_below, topmost_new
from dtj_trainer.artifacts.node_track import Track

SHORT_SETTLE = 1 * SECOND
"""How long nothing may change where the program's own operations show that files are complete."""
NEVER_QUIET = 30 * SECOND
"""After so long without a quiet moment, SHORT_SETTLE suffices."""
OPEN_LIMIT = 120 * SECOND
"""How long an open file, or an archive without its end, delays pictures."""
FEWER_LIMIT, FEWER_AT_MOST = 300 * SECOND, 1800 * SECOND
"""How long a folder that may lack files delays pictures: after its last change, and in total."""
AT_LONGEST = 600 * SECOND
"""After so long with something new and without a picture, what is unfinished is passed over."""
LOG_BYTES = 64 * 10**6
"""A file that is open for OPEN_LIMIT and grew less is a log."""
BUSY_EVERY = 15 * SECOND
"""Busy files alone make a picture due once in this time."""


@dataclass(frozen=True)
class Picture:
    """The content of the folder at one moment, by path.

    `passed_over`: what has its stored content, or none, because it stays unfinished. `at_ns`: the time of the look
    that showed the content. `busy`: files that change all the time.
    """

    nodes: Mapping[str, Node]
    passed_over: tuple[str, ...] = ()
    at_ns: int = field(default=0, compare=False)
    busy: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True)
class Waits:
    """Why there is no picture now. `path`: what holds it up, if that is one file or folder."""

    reason: str
    path: str = ""


NOTHING = Waits("nothing new is complete")


class Pictures:
    """The looks at one folder, and the pictures that follow from them.

    `settle_ns`: how long nothing may change before a picture is taken. `last`: the picture that a restore left. The
    bucket has the content of the last picture: call `taken` once it has that of a later one.
    """

    def __init__(
        self,
        settle_ns: int,
        last: Mapping[str, Node] | None = None,
        foreign: Mapping[str, Node] | None = None,
    ) -> None:
        """foreign: what a restore brought of other pods. The program of this pod does not write such files."""
        self._foreign = foreign or {}
        self._settle_ns = settle_ns
        self.last: Mapping[str, Node] = dict(last or {})
        self._offered: Mapping[str, Node] = {}
        """The content of the picture that was offered last."""
        self._taken_ns = 0
        self._look = Look(0, self.last)
        self._tracks: dict[str, Track] = {}
        self._removed: dict[str, int] = {}
        """When nodes of the last picture, or of the offered one, vanished: the time of the look before."""
        self._removed_ns = 0
        self._unquiet_since: int | None = None
        self._new_since: int | None = None
        """Since when something is new."""
        self._fewer_since: dict[str, int] = {}

    def see(self, look: Look) -> None:
        """Take a look into account. Looks come in the order of their times."""
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

    def taken(self, picture: Picture, unsent: Set[str] = frozenset()) -> None:
        """Note that the picture is stored: the next one needs something newer. Looks may have come meanwhile.

        unsent: files that are stored with their content in the last picture, or not at all.
        """
        nodes = picture.nodes
        if unsent:
            nodes = {path: node for path, node in nodes.items() if path not in unsent}
            nodes |= {path: self.last[path] for path in unsent if path in self.last}
        self.last, self._taken_ns, self._offered = nodes, picture.at_ns, {}
        self._new_since = None
        self._removed = {path: at for path, at in self._removed.items() if path in self.last}
        # A busy file stays known as one.
        nodes = self._look.nodes
        self._tracks = {
            path: track
            for path, track in self._tracks.items()
            if not nodes[path].same(self.last.get(path)) or track.often()
        }

    def picture(self, *, ended: bool = False, died_ns: int | None = None) -> Picture | Waits:
        """Return the picture that is due after the last look, if one is, and offer it.

        `ended`: the program ended by itself, with whatever exit code. `died_ns`: when the program was killed.
        """
        found = self.found(ended=ended, died_ns=died_ns)
        self.offer(found)
        return found

    def found(self, *, ended: bool = False, died_ns: int | None = None) -> Picture | Waits:
        """Return the picture that `picture` would return now, while another one may be offered."""
        return self._before_unfinished(died_ns) if died_ns is not None else self._complete(ended=ended)

    def offer(self, found: Picture | Waits) -> None:
        """Note that the next `taken` may be of this picture."""
        self._offered = found.nodes if isinstance(found, Picture) else {}

    def _complete(self, *, ended: bool) -> Picture | Waits:
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
        """Return what a picture waits for, and the files and folders that it passes over."""
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
                    return Waits("the archive has no end", path), over
                over.add(topmost_new(path, self.last))
        if (settle := self._changing(now, self._needed(over), over)) is not None:
            return settle, over
        fewer = self._fewer()
        self._fewer_since = {folder: self._fewer_since.get(folder, now) for folder in fewer}
        for folder, changed_ns in fewer.items():
            # A folder in which other files change all the time does not wait for ever.
            if now - changed_ns < FEWER_LIMIT and now - self._fewer_since[folder] < FEWER_AT_MOST:
                return Waits("the folder has fewer kinds of files than the one before", folder), over
        return None, over

    def _restless(self) -> set[str]:
        """Return what to pass over in a folder that gives no quiet moment: what is open, torn or has just changed."""
        now, restless = self._look.at_ns, set(self._fewer())
        for path in self._new(files=True):
            track = self._tracks[path]
            recent = now - self._changed_ns(path) < SHORT_SETTLE and not self._renamed(path)
            if track.open_since is not None or recent or self._look.archives.get(path) is False:
                restless.add(path if self._busy(path, now) else topmost_new(path, self.last))
        return restless

    def _changed_ns(self, path: str) -> int:
        """Return when a new node changed. The clock of another machine's disk may be ahead."""
        return min(self._look.nodes[path].changed_ns, self._tracks[path].seen_ns)

    def _new_save(self) -> Picture | None:
        """Return the picture in which only the newest folder of `save` is new, if that is new: it is complete."""
        steps = self._look.steps
        newest = max(steps, key=lambda name: steps[name], default="")
        if not any(is_below(path, {newest}) for path in self._new(files=True)):
            return None
        nodes = {path: node for path, node in self.last.items() if not is_below(path, steps.keys())}
        nodes |= {path: node for path, node in self._look.nodes.items() if is_below(path, {newest})}
        return Picture(nodes, at_ns=self._look.at_ns)

    def _changing(self, now: int, settle_ns: int, over: Set[str] = frozenset()) -> Waits | None:
        """Return why the moment is not quiet; None if it is."""
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
        """Return how long nothing may change before a picture."""
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
        """Return whether the program's operations show that the content is complete."""
        folder = path.rpartition("/")[0]
        archive = self._look.archives.get(path) is True and (not folder or folder in self.last)
        return archive or self._renamed(path)

    def _renamed(self, path: str) -> bool:
        """Return whether the content was renamed into the top folder, or is of a folder that `save` renamed."""
        top = path.partition("/")[0]
        unchanged = self._look.nodes[path].changed_ns <= self._look.nodes[top].changed_ns
        return top in self._look.steps or (top in self._look.renamed and unchanged)

    def _fewer(self) -> dict[str, int]:
        """Return the last change of each changed folder that has fewer kinds of files than its elder, or than before.

        A new folder inside a new folder is judged as a part of it.
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

    # --- after a kill ----------------------------------------------------------------------------

    def _before_unfinished(self, died_ns: int) -> Picture | Waits:
        """Return the picture of the moment before the oldest unfinished thing began."""
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
        """Return the latest moment, not after the given one, at which no new folder was under way."""
        while True:
            later = {
                topmost_new(path, self.last) for path in self._new(files=True) if not self._before(path, cut)
            }
            began = self._began({root for root in later if self._look.nodes[root].kind == "directory"})
            if began is None or began >= cut:
                return cut
            cut = began

    def _before(self, path: str, cut: int) -> bool:
        """Return whether the present content was there at a moment."""
        track = self._tracks.get(path)
        return track is None or (track.began_ns < cut and self._look.nodes[path].changed_ns <= cut)

    def _torn_by_death(self, path: str, died_ns: int) -> bool:
        whole = self._look.archives.get(path)
        if whole is not None or self._renamed(path):
            return whole is False
        closed = self._tracks[path].closed_since
        return closed is None or closed >= died_ns - self._settle_ns

    def _began(self, roots: set[str]) -> int | None:
        """Return a time before the first difference of files and folders from the last picture; None without any."""
        inside = [track.began_ns for path, track in self._tracks.items() if is_below(path, roots)]
        gone = [at for path, at in self._removed.items() if is_below(path, roots)]
        return min(inside + gone, default=None)

    # --- the content -----------------------------------------------------------------------------

    def _without(self, over: set[str], *, busy_too: bool) -> Picture | Waits:
        """Return the present content, with the stored content of what is passed over."""
        nodes = {path: node for path, node in self._look.nodes.items() if not is_below(path, over)}
        nodes |= {path: node for path, node in self.last.items() if is_below(path, over)}
        if not busy_too and self._look.at_ns - self._taken_ns < BUSY_EVERY:
            new = [path for path in self._new() if not self._busy(path, self._look.at_ns)]
            if all(is_below(path, over) or self._look.nodes[path].kind == "directory" for path in new):
                return NOTHING
        return self._due(nodes, tuple(sorted(over)))

    def _due(self, nodes: dict[str, Node], passed_over: tuple[str, ...]) -> Picture | Waits:
        """Return the picture unless it has nothing new. Of the folders of `save`, the newest alone belongs to it."""
        steps = self._look.steps
        newest = max(steps, key=lambda name: steps[name], default=None)
        older = {name for name in steps if name != newest}
        nodes = {path: node for path, node in nodes.items() if not is_below(path, older)}
        content = {
            folder for path, node in nodes.items() if node.kind != "directory" for folder in folders_of(path)
        }
        for folder in content:  # Its files may be older than the folder's own change.
            if folder not in nodes or nodes[folder].kind != "directory":
                present = self._look.nodes.get(folder)
                nodes[folder] = present if present and present.kind == "directory" else self.last[folder]
        new = any(
            node.kind != "directory" and not node.same(self.last.get(path)) for path, node in nodes.items()
        )
        now = self._look.at_ns
        busy = frozenset(path for path in self._tracks if self._busy(path, now))
        return Picture(nodes, passed_over, now, busy) if new else NOTHING

    def _new(self, *, files: bool = False) -> Iterator[str]:
        """Yield the paths that differ from the last picture."""
        for path in self._tracks:
            node = self._look.nodes[path]
            if not node.same(self.last.get(path)) and (not files or node.kind == "file"):
                yield path

    def _busy(self, path: str, now: int) -> bool:
        return path in self._tracks and self._tracks[path].busy(now)
