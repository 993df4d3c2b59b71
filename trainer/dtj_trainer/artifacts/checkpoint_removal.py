"""Deletes snapshots from the bucket: those that `retention` no longer keeps, and files of abandoned uploads.

`checkpoint_upload` calls CheckpointRemoval. The manifest of a snapshot is deleted before the files that no other
manifest names. A snapshot with a manifest is therefore always whole.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.manifest import Manifest, folder_name, number_and_claim
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import DELETE_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.other_pods import OtherPods
    from dtj_trainer.artifacts.sent_files import SentFiles
    from dtj_trainer.artifacts.snapshot import CheckpointIndex
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)


class CheckpointRemoval:
    """Deletes snapshots in the bucket. For one thread. Its methods raise S3Error, Superseded among them.

    `store` is the job's checkpoints prefix; `fence` checks whether this attempt may still write there. `keep` is the
    number of the newest snapshots that stay; of each period of `keep_every` seconds, the first snapshot stays, too.
    `sent` forgets the files that are removed. `others`: names the keys of other pods, which stay as well.
    """

    def __init__(
        self,
        store: Store,
        *,
        fence: Fence,
        keep: int,
        keep_every: float,
        sent: SentFiles,
        others: OtherPods,
    ) -> None:
        self._store = store
        self._fence = fence
        self._keep = keep
        self._keep_every = keep_every
        self._sent = sent
        self._others = others
        self._dropped: dict[str, Manifest] = {}
        """The snapshots whose manifest is deleted and whose files are still in the bucket, by folder."""
        self._undeletable: set[str] = set()
        """Snapshot folders with an object that the bucket refused to delete. No later pass tries to delete them."""
        self._swept = False
        self.needed = ""
        """The folder of the snapshot that this attempt restored. The folder stays until the attempt has uploaded a
        snapshot of its own."""

    def note_uploaded(
        self, index: CheckpointIndex, manifest: Manifest, given_up: Set[int], *, of_parts: bool
    ) -> None:
        """Delete the files of abandoned uploads, after the manifest of a snapshot was written.

        given_up: numbers of snapshots whose upload this attempt has begun and given up. `of_parts`: other pods sent
        parts of the snapshot, and perhaps of earlier snapshots that were skipped. The first call also removes what
        earlier attempts left: only now a later attempt can resume from a snapshot of this attempt.
        """
        skipped = [
            folder
            for folder in (self._store.folders() if of_parts else ())
            if (place := number_and_claim(folder))
            and place[1] == manifest.claim
            and place[0] <= manifest.number
            and folder not in index.manifests
        ]
        begun = {folder_name(number, manifest.claim) for number in given_up}
        for folder in sorted({manifest.folder, *begun, *skipped}):
            self._delete_unnamed(index, (item.key for item in self._store.objects(folder)), folder)
        if not self._swept:
            self._sweep(index)
            self._swept = True

    def _sweep(self, index: CheckpointIndex) -> None:
        """Delete the files that earlier claims left. Folders of this claim stay: other pods may be uploading parts
        there.
        """
        earlier = {
            folder
            for folder in (*index.manifests, *index.bare, *index.damaged)
            if (place := number_and_claim(folder)) and place[1] < self._fence.number
        }
        # Skip snapshots that consist of a folder of `checkpoints.save`: their manifests name all files of their
        # folders in the bucket.
        alone = {folder for folder, manifest in index.manifests.items() if manifest.of_save}
        for folder in sorted(earlier - alone):
            self._delete_unnamed(index, (item.key for item in self._store.objects(folder)), folder)
        index.bare -= earlier
        index.damaged -= earlier

    def prune(self, index: CheckpointIndex) -> None:
        """Delete snapshots except those to keep, and take them out of the index."""
        keep = index.kept(self._keep, self._keep_every)
        if not any(manifest.claim == self._fence.number for manifest in index.manifests.values()):
            keep.add(self.needed)
        surplus = [folder for folder in index.manifests if folder not in keep | self._undeletable]
        if surplus or self._dropped:
            # Check the claim before the first deletion: a later attempt may be restoring one of these snapshots.
            self._fence.hold()
        for folder in surplus:
            if self._delete([f"{folder}/{contract.MANIFEST_FILE}"], folder):
                self._dropped[folder] = index.manifests.pop(folder)
        for folder, manifest in list(self._dropped.items()):
            listed = (item.key for item in self._store.objects(folder))
            self._delete_unnamed(index, [*listed, *(file.key for file in manifest.files)], folder)
            del self._dropped[folder]

    def _delete_unnamed(self, index: CheckpointIndex, keys: Iterable[str], folder: str) -> None:
        """Delete those of the objects `keys` that no manifest names. folder: the snapshot folder that log messages
        name.
        """
        own = self._fence.number
        named = {file.key for manifest in index.manifests.values() for file in manifest.files}
        named.update(f"{folder}/{contract.MANIFEST_FILE}" for folder in index.manifests)
        named |= self._others.named
        unnamed = [
            key
            for key in dict.fromkeys(keys)
            if key not in named
            and self._others.may_remove(key)
            and (place := number_and_claim(key.partition("/")[0]))
            # A later release may name files of earlier claims in manifests that this release can't read: keep those
            # files.
            and (place[1] == own or (place[1] < own and not index.newer))
        ]
        if unnamed:
            self._sent.forget(set(unnamed))
        for start in range(0, len(unnamed), DELETE_BATCH):
            if start:
                self._fence.hold()
            self._delete(unnamed[start : start + DELETE_BATCH], folder)

    def _delete(self, keys: list[str], folder: str) -> bool:
        """Delete objects. Return False where the bucket refuses the deletion permanently.

        A permanent refusal is only logged: object lock, or a policy without s3:DeleteObject, is a decision of the
        bucket's owner, and the snapshots to keep are uploaded anyway. Raises S3Error for a transient failure.
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
