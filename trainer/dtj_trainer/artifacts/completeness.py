"""Decides which checkpoints of a program are complete: renamed into place, or closed by their writer.

Programs write checkpoints in their own ways, and do not report when a checkpoint is complete. A file without changes
may still be incomplete, because a program may pause in the middle of a file.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dtj_trainer.artifacts import zip_archives
from dtj_trainer.artifacts.folder_watch import EntryEvent, EventKind, FolderWatch
from dtj_trainer.artifacts.open_files import held_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.local_checkpoints import LocalEntry

TOGETHER_SECONDS = 1.0
"""While the program runs, entries of one step that are renamed within this time count as one checkpoint."""
DEATH_SECONDS = 1.0
"""A shell outlives its killed child for a moment: a file closed so shortly before the shell's end may be torn."""


class Completeness:
    """Judges the entries of a checkpoints folder, pass by pass.

    An entry that `dtj_trainer` saved has a mark, and is complete. Rules for other entries:

    - While the program runs: what was renamed into the folder is complete. What was written in its place is complete
      when no process has it open for writing and it did not change for `settle_seconds`: other files of the same step
      may still come. The program must run after these observations, because its death closes files too.
    - The program ended by itself, with whatever exit code: it closed its files, so that all entries are complete.
    - The program was killed: complete is what was renamed, and what was closed while the program still ran.

    A zip archive (`torch.save`, `numpy.savez`, Keras) ends with its directory. An archive without the directory is
    never complete. An archive with the directory is complete even if its writer was killed.
    """

    def __init__(
        self, folder: Path, settle_seconds: float, program_runs: Callable[[], bool] = lambda: True
    ) -> None:
        """`program_runs`: whether the kernel has not begun to end the program, however late its end is reported."""
        self._folder = folder
        self._settle_ns = int(settle_seconds * 1e9)
        self._program_runs = program_runs
        self._watch = FolderWatch(folder, program_runs)
        self._held: set[str] = set()
        """Entries that a process had open for writing when the last pass saw the program run."""

    def start(self) -> None:
        """Start to watch the existing folder."""
        self._watch.start()

    def of(self, entries: Iterable[LocalEntry], *, ended: bool, died_ns: int | None) -> set[str]:
        """Return the names of the complete entries.

        `ended`: the program ended by itself. `died_ns`: when the program was killed (wall clock). Neither: it runs.
        """
        entries = list(entries)
        found = {entry.name for entry in entries if entry.mark is not None}
        unmarked = [entry for entry in entries if entry.mark is None]
        whole = {entry.name: self._whole(entry) for entry in unmarked}
        if ended:
            may = unmarked
        elif died_ns is not None:
            may = [e for e in unmarked if whole[e.name] or self._before_death(e, died_ns)]
        else:
            may = self._while_it_runs(unmarked, time.time_ns())
        return found | {entry.name for entry in may if whole[entry.name] is not False}

    def _renamed(self, entry: LocalEntry) -> bool:
        seen = self._watch.last(entry.name)
        return seen is not None and seen.what is EventKind.RENAMED and entry.changed_ns <= seen.at_ns

    def _while_it_runs(self, entries: Iterable[LocalEntry], now: int) -> list[LocalEntry]:
        found, quiet = [], []
        for entry in entries:
            seen = self._watch.last(entry.name)
            if self._renamed(entry):
                if entry.changed_ns <= now - TOGETHER_SECONDS * 1e9:
                    found.append(entry)
            elif entry.changed_ns <= now - self._settle_ns and (seen is None or _closed_by(seen, now)):
                quiet.append(entry)
        held = held_open(self._folder.stat().st_dev) if quiet else set()
        open_ = {entry.name for entry in quiet if any(file.inode in held for file in entry.files)}
        if not self._program_runs():
            return found
        self._held = open_
        return found + [entry for entry in quiet if entry.name not in open_]

    def _before_death(self, entry: LocalEntry, died_ns: int) -> bool:
        if self._renamed(entry):
            return True
        seen = self._watch.last(entry.name)
        if seen is not None:
            return seen.what is EventKind.CLOSED and _closed_by(seen, died_ns)
        return entry.changed_ns <= died_ns - self._settle_ns and entry.name not in self._held

    def _whole(self, entry: LocalEntry) -> bool | None:
        """Return whether the zip archives of an entry are complete; None unless all of its files are archives."""
        found = [zip_archives.is_whole(self._folder / file.path) for file in entry.files]
        return False if False in found else None if None in found else True


def _closed_by(seen: EntryEvent, now_ns: int) -> bool:
    """Whether an entry was closed long enough before."""
    return seen.what is not EventKind.WRITTEN and seen.at_ns <= now_ns - DEATH_SECONDS * 1e9
