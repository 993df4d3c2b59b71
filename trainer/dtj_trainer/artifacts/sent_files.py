"""The files of checkpoints that have arrived in the bucket before their manifest: no later pass sends them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtj_trainer.artifacts.local_checkpoints import FileState
    from dtj_trainer.artifacts.manifest import StoredFile


class SentFiles:
    """Files by the checkpoint's folder in the bucket and by their local state. For one thread."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, FileState], StoredFile] = {}

    def get(self, folder: str, state: FileState) -> StoredFile | None:
        """What a local file is in that folder; None when it has not arrived."""
        return self._sent.get((folder, state))

    def add(self, folder: str, state: FileState, stored: StoredFile) -> StoredFile:
        """Remember a file that has arrived."""
        self._sent[folder, state] = stored
        return stored

    def forget(self, folder: str) -> None:
        """Forget a folder: its manifest is written, or its objects are removed."""
        self._sent = {sent: file for sent, file in self._sent.items() if sent[0] != folder}

    def keep_only(self, states: set[FileState]) -> None:
        """Forget the files that are not in those states any more."""
        self._sent = {sent: file for sent, file in self._sent.items() if sent[1] in states}
