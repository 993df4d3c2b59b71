"""Sends the files of a checkpoint before its manifest, and remembers them, so that no later pass sends them again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.manifest import StoredFile
from dtj_trainer.artifacts.small_files import SMALL_BYTES, upload_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dtj_trainer.artifacts.local_checkpoints import FileState
    from dtj_trainer.artifacts.store import Store


class SentFiles:
    """Uploaded files by the checkpoint's folder in the bucket and by their local state.

    Threads may add files at once. The other methods are for one thread, while no other adds files.
    """

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


def send_files(
    store: Store,
    local: Path,
    folder: str,
    keys: Mapping[FileState, str],
    sent: SentFiles,
    on_bytes: Callable[[int], None],
) -> dict[FileState, StoredFile]:
    """Send the files that have not arrived, small ones several at a time; return the stored file of each of `keys`.

    store: the checkpoints' prefix. local: the checkpoints' folder on disk. folder: the checkpoint's in the bucket.
    keys: below the folder. Raises OSError, S3Error.
    """

    def send(state: FileState, key: str) -> StoredFile:
        sha256 = store.put_with_sha256(f"{folder}/{key}", local / state.path, on_bytes)
        return sent.add(folder, state, StoredFile(state.path, key, state.size, sha256))

    left = [(state, key) for state, key in keys.items() if sent.get(folder, state) is None]
    small = [partial(send, state, key) for state, key in left if state.size < SMALL_BYTES]
    if len(small) > 1:
        upload_at_once(small, store.uploads.pace, store.uri(folder))
    return {state: sent.get(folder, state) or send(state, key) for state, key in keys.items()}
