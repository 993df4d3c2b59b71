"""Removes checkpoints from the bucket: those that are no longer kept, and what torn uploads left.

A manifest is deleted first, the files of its checkpoint afterwards: a checkpoint with a manifest is always whole.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_index import CheckpointIndex, candidate_of
from dtj_trainer.artifacts.retention import kept
from dtj_trainer.artifacts.s3 import S3Error

if TYPE_CHECKING:
    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.manifest import Manifest
    from dtj_trainer.artifacts.sent_files import SentFiles
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)


class CheckpointRemoval:
    """Deletes folders of checkpoints in the bucket. For one thread. Its methods raise S3Error.

    `store` is the job's checkpoints prefix; `fence` says whether this attempt may still write there. `keep` is the
    number of the newest checkpoints that stay, `keep_every` the period in seconds. `sent` forgets the files
    of each folder that is removed.
    """

    def __init__(self, store: Store, *, fence: Fence, keep: int, keep_every: float, sent: SentFiles) -> None:
        self._store = store
        self._fence = fence
        self._keep = keep
        self._keep_every = keep_every
        self._sent = sent
        self._doomed: set[str] = set()
        """Folders whose manifest is deleted and whose files are not yet."""
        self._undeletable: set[str] = set()
        """Folders with an object that the bucket refused to delete. They are not tried again."""
        self._uploaded_any = False

    def note_uploaded(self, manifest: Manifest) -> None:
        """Delete what torn or replaced uploads left beside a checkpoint whose manifest was just written."""
        self._uploaded_any = True
        self._doomed.discard(manifest.folder)
        named = {f"{manifest.folder}/{file.key}" for file in manifest.files}
        named.add(f"{manifest.folder}/{contract.MANIFEST_FILE}")
        strays = [item.key for item in self._store.objects(manifest.folder) if item.key not in named]
        if strays:
            self._delete(manifest.folder, strays)

    def prune(self, index: CheckpointIndex) -> None:
        """Delete checkpoints except those to keep, and take them out of the index."""
        candidates = {candidate_of(m): folder for folder, m in index.manifests.items()}
        keep = kept(candidates, self._keep, self._keep_every)
        surplus = [
            folder
            for candidate, folder in candidates.items()
            if candidate not in keep and folder not in self._undeletable
        ]
        if surplus or self._doomed or (index.torn and self._uploaded_any):
            # Check the claim before the first deletion: a later attempt may be restoring one of these checkpoints.
            self._fence.hold()
        for folder in surplus:
            if self._delete(folder, [f"{folder}/{contract.MANIFEST_FILE}"]):
                del index.manifests[folder]
                self._doomed.add(folder)
        if self._uploaded_any:
            # Torn uploads of earlier attempts stay until this attempt has uploaded a checkpoint of its own.
            self._doomed |= index.torn
            index.torn.clear()
        for folder in sorted(self._doomed):
            self._sent.forget(folder)
            keys = [item.key for item in self._store.objects(folder)]
            if keys:
                self._delete(folder, keys)
            self._doomed.discard(folder)

    def _delete(self, folder: str, keys: list[str]) -> bool:
        """Delete objects of a checkpoint's folder. Return False where the bucket refuses the deletion permanently.

        A permanent refusal is only logged: object lock, or a policy without s3:DeleteObject, is a decision of the
        bucket's owner, and the checkpoints to keep are uploaded anyway. Raises S3Error for a transient failure.
        """
        try:
            self._store.delete(keys)
        except S3Error as error:
            if error.transient:
                raise
            if not self._undeletable:
                log.warning("old checkpoints stay in the bucket: %s", error)
            self._undeletable.add(folder)
            return False
        return True
