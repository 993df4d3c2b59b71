"""Remembers the checkpoint files that were uploaded before their manifest, so that no later pass sends them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtj_trainer.artifacts.local_checkpoints import FileState
    from dtj_trainer.artifacts.manifest import StoredFile


class SentFiles:
    """Uploaded files by the checkpoint's folder in the bucket and by their local state. Not thread-safe."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, FileState], StoredFile] = {}

    def get(self, folder: str, state: FileState) -> StoredFile | None:
        """Return the stored file of a local file in that folder; None when it has not arrived."""
        return self._sent.get((folder, state))

    def add(self, folder: str, state: FileState, stored: StoredFile) -> StoredFile:
        """Remember a file that has arrived."""
        self._sent[folder, state] = stored
        return stored

    def forget(self, folder: str) -> None:
        """Forget a folder whose manifest is written, or whose objects are removed."""
        self._sent = {sent: file for sent, file in self._sent.items() if sent[0] != folder}

    def keep_only(self, states: set[FileState]) -> None:
        """Forget the files whose local state is not among `states`."""
        self._sent = {sent: file for sent, file in self._sent.items() if sent[1] in states}
