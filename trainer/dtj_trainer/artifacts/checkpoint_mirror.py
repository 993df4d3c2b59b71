"""Mirrors the newest snapshot of the bucket into the evaluator's own checkpoints folder."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.backoff import Backoff
from dtj_trainer.artifacts.checkpoint_index import age, folders_newest_first, read_manifest
from dtj_trainer.artifacts.manifest import Manifest, ManifestError, number_and_claim
from dtj_trainer.artifacts.put_back import put_back, remove_others
from dtj_trainer.artifacts.restore import ALL, Lineage
from dtj_trainer.artifacts.s3 import DamagedObject, NoSuchKey
from dtj_trainer.artifacts.tensorflow_state import STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dtj_trainer import contract
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0
LONGEST_RETRY_SECONDS = 60.0
"""The longest delay in seconds before a snapshot that did not arrive completely is fetched again."""


class CheckpointMirror:
    """Brings the newest snapshot below `store` into `folder`, pass by pass, from one thread.

    What the newest `keep` snapshots have stays in `folder`, because the program may still read it. The program sees
    complete files only, and of new folders all or nothing.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        *,
        keep: int,
        lineage: Lineage = ALL,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """lineage: other snapshots are not mirrored."""
        self._folder = folder
        self._store = store
        self._keep = keep
        self._lineage = lineage
        self._now = now
        self._skipped: set[str] = set()
        """Folders of snapshots that did not arrive completely."""
        self._abandoned: set[str] = set()
        """Folders of snapshots outside of the lineage."""
        self._retry_at = math.inf
        self._backoff = Backoff(LONGEST_RETRY_SECONDS)
        self._mirrored: list[Manifest] = []
        self.newest: contract.CheckpointRef | None = None
        """The snapshot mirrored last. Other threads may read it."""

    def mirror_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Fetch the newest snapshot if it is newer than the last one; always return True. Raises S3Error.

        While there is no newer snapshot, a pass costs one request, and a second one while one is being uploaded.
        """
        del ended, died_ns
        if self._now() >= self._retry_at:
            self._skipped.clear()
        before = len(self._skipped)
        self._fetch_newest()
        if len(self._skipped) > before:
            self._retry_at = self._now() + self._backoff.next_delay()
        elif not self._skipped:
            self._retry_at = math.inf
            self._backoff.reset()
        return True

    def _fetch_newest(self) -> None:
        last = age(self._mirrored[-1]) if self._mirrored else (-1, -1)
        for folder in folders_newest_first(self._store):
            if (number_and_claim(folder) or (0, 0))[::-1] <= last:
                return
            if folder in self._skipped or folder in self._abandoned:
                continue
            try:
                manifest = read_manifest(self._store, folder)
                if not self._lineage.has(folder, manifest.attempt):
                    self._abandoned.add(folder)
                    continue
                present = {file.path: file for file in self._mirrored[-1].files} if self._mirrored else {}
                fault = put_back(self._store, manifest, self._folder, present=present)
            except NoSuchKey:  # It is being uploaded.
                continue
            except (ManifestError, DamagedObject) as error:
                fault = str(error)
            if fault is None:
                self._take(manifest)
                return
            # The chief may have removed the snapshot during the download. The next pass then reads a newer manifest.
            log.warning("checkpoint %s is not mirrored: %s", folder, fault)
            self._skipped.add(folder)

    def _take(self, manifest: Manifest) -> None:
        # A resume from an earlier step makes later steps of the previous attempt obsolete. Drop them.
        earlier = (
            m for m in self._mirrored if m.step is None or manifest.step is None or m.step < manifest.step
        )
        self._mirrored = [*earlier, manifest][-self._keep :]
        remove_others(self._folder, {STATE_FILE}.union(*(each.paths for each in self._mirrored)))
        self.newest = {"time": manifest.time, "uri": self._store.uri(manifest.folder)}
        if manifest.step is not None:
            self.newest["step"] = manifest.step
        log.info("mirrored checkpoint %s (%d bytes)", self.newest["uri"], manifest.size)
