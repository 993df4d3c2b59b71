"""Mirrors the newest complete checkpoint of the bucket into the evaluator's own checkpoints folder."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.backoff import Backoff
from dtj_trainer.artifacts.checkpoint_index import age, read_index
from dtj_trainer.artifacts.manifest import Manifest
from dtj_trainer.artifacts.restore import fetch, remove
from dtj_trainer.artifacts.tensorflow_state import STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0
LONGEST_RETRY_SECONDS = 60.0
"""The longest delay in seconds before a checkpoint that did not arrive completely is fetched again."""


class CheckpointMirror:
    """Brings the newest checkpoint below `store` into `folder`, pass by pass, from one thread.

    The newest `keep` checkpoints stay in `folder`, because the program may still read them. The program sees complete
    files and directories only, and never sees TensorFlow's state file before the files that the state file names. The
    files of one checkpoint appear and disappear one by one.
    """

    def __init__(
        self, folder: Path, store: Store, *, keep: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._store = store
        self._keep = keep
        self._now = now
        self._listed: dict[str, str] = {}
        """The ETags of the manifests at the last pass, by key."""
        self._retry_at = math.inf
        self._backoff = Backoff(LONGEST_RETRY_SECONDS)
        self._mirrored: list[Manifest] = []
        self.newest: contract.CheckpointRef | None = None
        """The checkpoint mirrored last. Other threads may read it."""

    def mirror_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Fetch the newest checkpoint if it is newer than the last one; always return True. Raises S3Error.

        While no manifest changed and no retry is due, a pass costs one request.
        """
        del ended, died_ns
        manifests = f"/{contract.MANIFEST_FILE}"
        listed = {item.key: item.etag for item in self._store.objects() if item.key.endswith(manifests)}
        if listed != self._listed or self._now() >= self._retry_at:
            skipped = self._fetch_newest()
            self._listed = listed
            # No manifest changes after the last checkpoint of a run. A timer starts the retry instead.
            self._retry_at = self._now() + self._backoff.next_delay() if skipped else math.inf
            if not skipped:
                self._backoff.reset()
        return True

    def _fetch_newest(self) -> bool:
        """Fetch the newest checkpoint that arrives completely. Return whether a newer one could not be fetched."""
        skipped = False
        last = _age(self._mirrored[-1]) if self._mirrored else None
        for manifest in read_index(self._store).newest_first():
            if last is not None and _age(manifest) <= last:
                break
            fault = fetch(self._store.below(manifest.folder), manifest, self._folder)
            if fault is None:
                self._take(manifest)
                break
            # The chief may have removed the checkpoint during the download. The next pass then reads a newer
            # manifest.
            log.warning("checkpoint %s is not mirrored: %s", manifest.folder, fault)
            skipped = True
        return skipped

    def _take(self, manifest: Manifest) -> None:
        # A resume from an earlier step makes later steps of the previous attempt obsolete. Drop them.
        kept = [*(m for m in self._mirrored if m.step < manifest.step), manifest][-self._keep :]
        wanted = {STATE_FILE, *(entry.name for m in kept for entry in m.entries)}
        for name in {entry.name for m in self._mirrored for entry in m.entries} - wanted:
            remove(self._folder / name)
        self._mirrored = kept
        self.newest = {
            "step": manifest.step,
            "time": manifest.time,
            "uri": self._store.uri(manifest.folder),
        }
        log.info("mirrored checkpoint %s (%d bytes)", self.newest["uri"], manifest.size)


def _age(manifest: Manifest) -> tuple[tuple[int, int], str]:
    return age(manifest), manifest.time
