"""Watches the checkpoints folder of a pod that uploads nothing: a job without artifacts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.folder_pictures import FolderPictures
from dtj_trainer.artifacts.newest_picture import Name, NewestPicture
from dtj_trainer.artifacts.picture import Picture
from dtj_trainer.artifacts.snapshot import later_number, step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dtj_trainer.artifacts.look import Node
    from dtj_trainer.artifacts.snapshot import StepAt

REST, LONGEST_REST_SECONDS = 20, 60.0
"""After a look, the next one waits for REST times the processor time that the look took."""


class PictureWatch:
    """Takes the pictures of a folder in passes. One thread makes all passes; other threads may read `pictures`.

    The number of the attempt takes the place of a claim.
    """

    def __init__(
        self,
        folder: Path,
        *,
        attempt: int,
        settle_seconds: float,
        step_at: StepAt,
        program_runs: Callable[[], bool] = lambda: True,
    ) -> None:
        self._attempt, self._step_at = attempt, step_at
        self.pictures = NewestPicture()
        self._folder = FolderPictures(folder, settle_seconds, program_runs)
        self.start, self.close, self.note_torn = (
            self._folder.start,
            self._folder.close,
            self._folder.note_torn,
        )
        self._number, self._not_before = -1, 0.0
        self._step: int | None = None

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The content of the folder at the last look."""
        return self._folder.nodes

    def watch_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Look at the folder, and take the picture that is due; return True."""
        over = ended or died_ns is not None
        if not over and time.monotonic() < self._not_before:
            return True
        began = time.thread_time()
        self._folder.look(over=over)
        found = self._folder.due(ended=ended, died_ns=died_ns)
        if isinstance(found, Picture):
            self._take(found)
        rest = min(REST * (time.thread_time() - began), LONGEST_REST_SECONDS)
        self._not_before = time.monotonic() + rest
        return True

    def _take(self, picture: Picture) -> None:
        marks, last = self._folder.marks, self._folder.last
        self._step = step_of(picture.nodes, marks, last, self._step_at, self._step)
        self._number = later_number(self._step, self._number)
        name = Name(self._attempt, self._number, self._step)
        self.pictures.note(picture, lambda: name)
        self._folder.taken(picture)
