"""Names large files that a program writes where dtj does not keep them."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.look import is_below

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from dtj_trainer.background import Background

log = logging.getLogger(__name__)

FIRST_SECONDS, EVERY_SECONDS = 120.0, 600.0
MOST_ENTRIES = 10_000
LEAST_BYTES = 1_000_000
MOST_NAMED = 10
"""So many files are named in the life of a pod."""


class FilesOutside:
    """Walks the working directories of a pod's programs now and then, and names what it finds there once."""

    def __init__(
        self, pids: Callable[[], Collection[int]], kept: Collection[Path], elsewhere: Path | None = None
    ) -> None:
        """`pids`: the processes of the programs. `kept`: the files and folders that dtj keeps, or has made.

        `elsewhere`: a folder that the programs see with another content than this process.
        """
        self._pids = pids
        self._kept = frozenset(map(os.path.realpath, kept))
        self._unseen = self._kept | {str(elsewhere)} if elsewhere else self._kept
        self._since_ns = time.time_ns()
        self._named: set[Path] = set()

    def start(self, background: Background) -> None:
        """Look in the background."""

        def run() -> None:
            pause = FIRST_SECONDS
            while not background.wait(pause):
                self.look()
                pause = EVERY_SECONDS

        background.start(run, "files outside")

    def look(self) -> None:
        """Name a file of each folder that has new large files and was not named before."""
        for folder in {where for pid in self._pids() if (where := working_directory(pid))}:
            if is_below(str(folder), self._unseen):
                continue
            for path, size in new_files(folder, self._kept, self._since_ns):
                top = folder / path.parts[0] if len(path.parts) > 1 else folder
                if top not in self._named and len(self._named) < MOST_NAMED:
                    self._named.add(top)
                    log.warning("%s", sentence(path, size, folder))


def sentence(path: Path, size: int, folder: Path) -> str:
    """Return what a user needs to know of a file `path` below the working directory `folder`."""
    where = f"write checkpoints below {contract.checkpoints()}"
    if len(path.parts) > 1:
        # The variable is relative to the first working directory, which the program may have left.
        top = path.parts[0] if folder == Path.cwd() else str(folder / path.parts[0])
        where += f", or set {contract.ENV_CHECKPOINTS_DIR} to {top!r}"
    return (
        f"dtj does not keep {str(folder / path)!r} ({size / 1e6:.0f} MB). If the program needs the file after a "
        f"restart, {where}"
    )


def new_files(folder: Path, kept: Collection[str], since_ns: int) -> Iterator[tuple[Path, int]]:
    """Yield the relative path and the bytes of each large file below `folder` that changed since a time.

    Reads MOST_ENTRIES entries at most, those near the top first. Passes over hidden folders, links, other file
    systems and what is in `kept`, which are real paths.
    """
    seen, waiting = 0, deque([folder])
    try:
        device = folder.stat().st_dev
    except OSError:
        return
    while waiting:
        with suppress(OSError), os.scandir(waiting.popleft()) as entries:  # The program may remove folders.
            for entry in entries:
                seen += 1
                if seen > MOST_ENTRIES:
                    return
                if entry.path in kept:
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    large = status.st_size >= LEAST_BYTES and status.st_ctime_ns >= since_ns
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name[0] != "." and status.st_dev == device:
                            waiting.append(Path(entry.path))
                    elif large and entry.is_file(follow_symlinks=False):
                        yield Path(entry.path).relative_to(folder), status.st_size


def working_directory(pid: int) -> Path | None:
    """Return the folder that a process works in; None for one that has ended, or of another user."""
    try:
        folder = Path(f"/proc/{pid}/cwd").readlink()
        return folder if folder.is_absolute() and folder.is_dir() else None
    except OSError:  # The process has ended, or is of another user.
        return None
