"""Takes pictures of a real folder while a program runs: looks at it, and has `picture` decide."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.folder_looks import FolderLooks
from dtj_trainer.artifacts.look import SECOND
from dtj_trainer.artifacts.picture import Picture, Pictures, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Set
    from pathlib import Path

    from dtj_trainer.artifacts.local_checkpoints import Mark
    from dtj_trainer.artifacts.look import Node

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the folder is looked at while files are sent."""
REST, COSTLY_SECONDS, LONGEST_REST_SECONDS = 20, 0.1, 60.0
"""After a picture that took COSTLY_SECONDS or more of a processor, without sending files, the next one waits for REST
times what it took."""
TELL_AFTER = 600 * SECOND
"""A folder that changes and has no picture for so long is told in the log, with what holds the picture up."""


class FolderPictures:
    """The pictures of one folder. For one thread; within `looking`, another one looks."""

    def __init__(
        self,
        folder: Path,
        settle_seconds: float,
        program_runs: Callable[[], bool],
        on_complete: Callable[[Picture], None] = lambda _: None,
    ) -> None:
        """`program_runs`: whether the kernel has not begun to end the program, however late its end is reported.

        `on_complete`: called with each picture that is found, also while another one is sent, or nothing can be sent.
        """
        self._folder = folder
        self._settle_ns = int(settle_seconds * SECOND)
        self._program_runs = program_runs
        self._looks = FolderLooks(folder)
        self._pictures = Pictures(self._settle_ns)
        self._on_complete = on_complete
        self._found: Picture | Waits | None = None  # after the last look
        self._waits_since: int | None = None
        self._not_before = 0.0
        self._at_ns = 0
        self.held_up = ""
        """What has held up the next picture for TELL_AFTER; empty: nothing."""
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
        """The content of the last picture that was stored."""
        return self._pictures.last

    def note_torn(self, paths: Iterable[Path]) -> None:
        """Note that files, of this folder or of another one, are incomplete and stay so."""
        folder = self._folder
        self._looks.torn |= {str(path.relative_to(folder)) for path in paths if path.is_relative_to(folder)}

    def begin_from(self, paths: Set[str], foreign: Set[str] = frozenset()) -> Mapping[str, Node]:
        """Take these paths of the folder, as they are now, as the last picture; return their nodes.

        foreign: those of files that other pods gave.
        """
        nodes = self._looks.look().nodes
        restored = {path: node for path, node in nodes.items() if path in paths}
        others = {path: node for path, node in restored.items() if path in foreign}
        self._pictures, self._found = Pictures(self._settle_ns, restored, others), None
        return restored

    def look(self, *, over: bool = False) -> None:
        """Look at the folder. over: the program has ended."""
        with suppress(OSError):  # The folder can't be listed at the moment.
            look = self._looks.look()
            # The death of a program closes files, before anybody tells of the death. Ask after the look.
            if over or self._program_runs():
                self.nodes, self._at_ns = look.nodes, look.at_ns
                self._pictures.see(look)
                self._found = None if over else self._pictures.found()
                if isinstance(self._found, Picture):
                    self._on_complete(self._found)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at the folder from another thread, while this one sends files: a picture needs what happens now."""
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

    def due(self, *, ended: bool, died_ns: int | None) -> Picture | Waits:
        """Return the picture that is due after the last look, if one is; see `Pictures.picture`."""
        if not ended and died_ns is None and time.monotonic() < self._not_before:
            return Waits("the last picture was taken a moment ago")
        over = ended or died_ns is not None
        if over or self._found is None:
            self._found = self._pictures.found(ended=ended, died_ns=died_ns)
            if isinstance(self._found, Picture):
                self._on_complete(self._found)
        found = self._found
        self._pictures.offer(found)
        if isinstance(found, Picture) or not found.path:
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
        """Note how long a processor worked for a picture."""
        if seconds >= COSTLY_SECONDS:
            rest = min(REST * seconds, LONGEST_REST_SECONDS)
            self._not_before = max(self._not_before, time.monotonic() + rest)

    def taken(self, picture: Picture, unsent: Set[str] = frozenset()) -> None:
        """Note that a picture is stored; see `Pictures.taken`."""
        self._pictures.taken(picture, unsent)
        self._found = None
