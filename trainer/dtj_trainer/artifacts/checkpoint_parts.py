"""Checkpoints of which each pod holds a part, as those of FSDP.

Each pod uploads its files into the checkpoint's folder in the bucket, and then a part manifest. The pod with the
claim writes the checkpoint's manifest once all parts are there. Until then the folder is no checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.fence import claim_of_attempt
from dtj_trainer.artifacts.folder_looks import walk
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, prune, saved_folders
from dtj_trainer.artifacts.look import is_below
from dtj_trainer.artifacts.manifest import (
    PARTS,
    PODS,
    Manifest,
    ManifestError,
    StoredFile,
    folder_name,
)
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.sent_files import Changed, SentFiles
from dtj_trainer.artifacts.snapshot import keys_of
from dtj_trainer.clock import now_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dtj_trainer.artifacts.look import Node
    from dtj_trainer.artifacts.snapshot import Due
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

LATE_SECONDS = 30.0
"""How long the pod with the claim waits, after the end of its program, for the parts of other pods."""


def read_parts(store: Store, folder: str) -> list[Manifest]:
    """Return the part manifests in a checkpoint's folder. Raises S3Error."""
    found = []
    for item in store.objects(f"{folder}/{PARTS}"):
        try:
            part = Manifest.from_json(store.get_bytes(item.key), folder)
            if part.folder != folder:
                raise ManifestError(f"the part is of checkpoint {part.folder}")
            found.append(part)
        except ManifestError as error:
            log.warning("part %s can't be used: %s", store.uri(item.key), error)
    return found


def united(files: tuple[StoredFile, ...], parts: list[Manifest]) -> tuple[StoredFile, ...]:
    """Return the files of all parts. Raises S3Error where two parts have files of the same name."""
    all_files = [*files, *(file for part in parts for file in part.files)]
    counts = Counter(file.path for file in all_files)
    if twice := {path for path, count in counts.items() if count > 1}:
        raise S3Error(
            f"several pods have saved a file {min(twice)}: each file of a checkpoint in parts needs its own name",
            transient=False,
        )
    return tuple(all_files)


def with_parts(
    store: Store, due: Due, files: tuple[StoredFile, ...], last: Manifest | None, claim: int
) -> tuple[tuple[StoredFile, ...], str]:
    """Return the files of a snapshot with the parts of other pods, and what is missing. Raises S3Error.

    last: the last snapshot of the folder, if it has the same folder of `save`.
    """
    if due.mark is None or due.mark.parts == 1 or due.saved is None:
        return files, ""
    if last:
        own = {file.path for file in files}
        before = (file for file in last.files if is_below(file.path, {due.saved}))
        return (*files, *(file for file in before if file.path not in own)), ""
    folder = folder_name(due.mark.step, claim)
    found = read_parts(store, folder)
    if len(found) < due.mark.parts - 1:
        return files, f"checkpoint {store.uri(folder)} has {len(found) + 1} of {due.mark.parts} parts"
    return united(files, found), ""


class Lateness:
    """How long a pod whose program has ended waits for the parts of other pods."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: float | None = None
        self._signs: object = None

    def given_up(self, lacking: str, limit: float | None = None, signs: object = None) -> bool:
        """Return whether the wait that began at the first call is over. `lacking`: what is missing, for the log.

        signs: begins the wait again when it changes.
        """
        if signs != self._signs:
            self._signs, self._since = signs, None
        limit = LATE_SECONDS if limit is None else limit
        self._since = self._now() if self._since is None else self._since
        if self._now() - self._since < limit:
            return False
        log.warning("%s: other pods have not uploaded their files; it does not count", lacking)
        return True


class PartUploader:
    """Uploads a pod's parts of checkpoints. For a pod without the claim.

    `job` is the job's prefix with the claim at `claim_key`, `store` its checkpoints prefix. One thread makes all
    passes; other threads may read `bytes_uploaded`.
    """

    def __init__(
        self,
        folder: Path,
        job: Store,
        store: Store,
        *,
        claim_key: str,
        attempt: int,
        keep: int,
        pod: str,
    ) -> None:
        self._folder, self._job, self._store = folder, job, store
        self._claim_key, self._attempt, self._keep, self._pod = claim_key, attempt, keep, pod
        self._done: set[Node] = set()
        self._keys: set[str] = set()
        """All keys of this process: manifests may name them, also of a step that is saved again."""
        self._sent = SentFiles(store, folder, self._count_bytes)
        self._lock = threading.Lock()
        self.bytes_uploaded = 0

    def note_restored(self, manifest: Manifest) -> None:
        """Mark the files of a restored checkpoint as uploaded."""
        paths = manifest.paths
        self._done.update(node for node in walk(self._folder) if node.path in paths)

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload the parts of complete checkpoints, newest first; return True when nothing is left. Raises S3Error.

        A part that `save` has not completed is no part, whether the program runs or has died.
        """
        del ended, died_ns
        marks = {name: mark for name, mark in saved_folders(self._folder).items() if mark.parts > 1}
        marks = prune(self._folder, marks, self._keep)
        files = {name: self._files(name) for name in marks}
        present = {node for nodes in files.values() for node in nodes}
        self._done &= present
        self._sent.keep_only(present)
        waiting = [name for name, nodes in files.items() if not self._done.issuperset(nodes)]
        waiting.sort(key=lambda name: marks[name].step, reverse=True)
        try:
            return all(self._upload(name, marks[name].step, files[name]) for name in waiting)
        except (Changed, OSError) as error:
            log.info("a part of a checkpoint changed while it was uploaded: %s", error)
            return False

    def _files(self, name: str) -> list[Node]:
        """Return the files of this pod's part. The pod with the claim has the mark as well."""
        mark = f"{name}/{MARK_FILE}"
        nodes = walk(self._folder, below=name)
        return [node for node in nodes if node.kind == "file" and node.path != mark]

    def _upload(self, name: str, step: int, nodes: list[Node]) -> bool:
        """Upload one part and its manifest; return False if nobody of this attempt has the claim yet."""
        claim = self._claim()
        if claim is None:
            return False
        folder = folder_name(step, claim)
        keys = keys_of(nodes, f"{folder}/{PODS}/{self._pod}", name, self._keys)
        self._keys.update(keys.values())
        files = tuple(self._sent.send(keys, self._store.uri(folder)))
        if self._claim() != claim:
            return False
        part = Manifest(step, step, now_text(), self._attempt, files, claim=claim)
        self._store.put_bytes(f"{folder}/{PARTS}/{self._pod}.json", part.to_json())
        self._done.update(nodes)
        log.info("uploaded a part of checkpoint %s (%d bytes)", self._store.uri(folder), part.size)
        return True

    def _claim(self) -> int | None:
        claim = claim_of_attempt(self._job, self._claim_key, self._attempt)
        return claim.number if claim else None

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount
