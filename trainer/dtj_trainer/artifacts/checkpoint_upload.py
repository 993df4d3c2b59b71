"""Uploads complete checkpoints while a program runs. `checkpoint_removal` deletes those that are no longer kept."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.cache_fill import CacheFill, Uploaded
from dtj_trainer.artifacts.checkpoint_index import CheckpointIndex, candidate_of, read_index
from dtj_trainer.artifacts.checkpoint_parts import Lateness, has_parts, read_parts, united
from dtj_trainer.artifacts.checkpoint_removal import CheckpointRemoval
from dtj_trainer.artifacts.completeness import Completeness
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.local_checkpoints import (
    FileState,
    LocalCheckpoint,
    LocalEntry,
    by_step,
    prune,
    read_entries,
    read_entry,
)
from dtj_trainer.artifacts.manifest import Entry, Manifest, StoredFile, folder_name, sha256_of, step_and_claim
from dtj_trainer.artifacts.retention import Candidate, kept
from dtj_trainer.artifacts.sent_files import SentFiles, send_files
from dtj_trainer.artifacts.tensorflow_state import STATE_FILE, is_state
from dtj_trainer.clock import now_text

if TYPE_CHECKING:
    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

StepAt = Callable[[int], int | None]
"""The program's step at a time (wall clock, nanoseconds); None for a program that reports no steps."""
NO_NUMBER = -1


class CheckpointUploader:
    """Uploads the checkpoints folder of one attempt in passes.

    `store` is the job's checkpoints prefix; `fence` says whether this attempt may still write there. `step_at` gives
    the step of entries whose names have none. One thread makes all passes; other threads may read `newest` and
    `bytes_uploaded`.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        *,
        fence: Fence,
        keep: int,
        settle_seconds: float,
        step_at: StepAt,
        program_runs: Callable[[], bool] = lambda: True,
        keep_every: float = 0.0,
        fill: CacheFill | None = None,
    ) -> None:
        """`keep`, `keep_every`: of the checkpoints in the bucket; see `kept`. `fill`: gets what is uploaded."""
        self._folder = folder
        self._store = store
        self._fence = fence
        self._keep = keep
        self._keep_every = keep_every
        self._fill = fill
        self._completeness = Completeness(folder, settle_seconds, program_runs)
        self._step_at = step_at
        self._index: CheckpointIndex | None = None
        self._done: set[FileState] = set()
        """Files that are in the bucket in this state, because a pass uploaded them or a restore downloaded them."""
        self._sent = SentFiles()
        self._removal = CheckpointRemoval(
            store, fence=fence, keep=keep, keep_every=keep_every, sent=self._sent
        )
        self._step_given: tuple[frozenset[FileState], int] = (frozenset(), 0)
        """The files of the last checkpoint whose name has no step, and the step that it got."""
        self._lacking = ""
        """The newest checkpoint that lacks parts of other pods."""
        self._lateness = Lateness()
        self._lock = threading.Lock()
        self._newest: contract.CheckpointRef | None = None
        self.bytes_uploaded = 0

    @property
    def newest(self) -> contract.CheckpointRef | None:
        """The newest checkpoint with a manifest in the bucket, as far as this process has seen manifests."""
        with self._lock:
            return self._newest

    def start(self) -> None:
        """Begin to watch the folder. Call it before the program writes there."""
        self._completeness.start()

    def note_restored(self, manifest: Manifest, *, own: bool) -> None:
        """Mark the files of a restored checkpoint as uploaded. own: the checkpoint is one of this job."""
        names = [*(entry.name for entry in manifest.entries), STATE_FILE]
        entries = [entry for name in names if (entry := read_entry(self._folder, name))]
        self._done.update(file for entry in entries for file in entry.files)
        if own:
            self._tell_newest(manifest)

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload what is complete, newest first, then remove what is no longer kept.

        `ended` says that the program ended by itself; `died_ns` is the time when the program was killed (wall clock,
        nanoseconds). A checkpoint that was not complete by then never will be. Return whether all present entries are
        uploaded or will never be complete. Raises S3Error, Superseded among them.
        """
        try:
            return self._upload_waiting(over=ended or died_ns is not None, ended=ended, died_ns=died_ns)
        except Superseded:
            self._store.abort_uploads("")
            raise

    def _upload_waiting(self, *, over: bool, ended: bool, died_ns: int | None) -> bool:
        while True:
            # Prune first: the disk must not fill up while uploads are slow or the bucket does not answer.
            entries = prune(self._folder, read_entries(self._folder), self._keep)
            index = self._loaded_index()
            present = {file for entry in entries for file in entry.files}
            self._done &= present
            self._sent.keep_only(present)
            self._store.uploads.abort_changed()
            uploaded = {entry.name for entry in entries if self._done.issuperset(entry.files)}
            fresh = [entry for entry in entries if entry.name not in uploaded]
            complete = uploaded | self._completeness.of(fresh, ended=ended, died_ns=died_ns)
            waiting = self._waiting(index, entries, complete)
            if not waiting:
                break
            # A checkpoint whose parts of other pods are late does not hold up the one before.
            if not any(self._upload(index, each) for each in reversed(waiting)):
                return over and bool(self._lacking) and self._lateness.given_up(self._lacking)
            self._removal.prune(index)
        self._removal.prune(index)
        return over or len(complete) == len(entries)

    def _loaded_index(self) -> CheckpointIndex:
        if self._index is None:
            # Check the claim: the index of a superseded attempt must not list checkpoints of a later one for removal.
            self._fence.hold()
            self._index = read_index(self._store)
            # Other pods may already upload their parts of this attempt's checkpoints.
            own = {folder for folder in self._index.torn if _claim_of(folder) == self._fence.number}
            self._index.torn -= {folder for folder in own if has_parts(self._store, folder)}
            for manifest in self._index.newest_first()[:1]:
                self._tell_newest(manifest)
        return self._index

    def _waiting(
        self, index: CheckpointIndex, entries: list[LocalEntry], complete: set[str]
    ) -> list[LocalCheckpoint]:
        """Return the complete local checkpoints to upload, the newest last.

        A step is not uploaded before all its numbered entries are complete.
        """
        unfinished = {entry.step for entry in entries if entry.name not in complete} - {None}
        ready = [e for e in entries if e.name in complete and e.step not in unfinished]
        numbered = by_step(ready, without_number=NO_NUMBER)
        checkpoints = [self._numbered(index, c) for c in numbered if not self._only_names_others(c)]
        fresh = [c for c in checkpoints if not self._done.issuperset(c.files)]
        claim = self._fence.number
        local = {_candidate(c, claim): c for c in fresh}
        replaced = {folder_name(c.step, claim) for c in fresh}
        others = {candidate_of(m) for folder, m in index.manifests.items() if folder not in replaced}
        keep = kept([*local, *others], self._keep, self._keep_every)
        return sorted((local[c] for c in keep if c in local), key=lambda c: c.step)

    def _only_names_others(self, checkpoint: LocalCheckpoint) -> bool:
        """Return whether TensorFlow's state file is the only entry: the files that it names are not complete yet."""
        names = [entry.name for entry in checkpoint.entries]
        return len(names) == 1 and is_state(self._folder / names[0])

    def _numbered(self, index: CheckpointIndex, checkpoint: LocalCheckpoint) -> LocalCheckpoint:
        """Give a checkpoint without a number the step at which it was written, or else the next free step."""
        if checkpoint.step != NO_NUMBER:
            return checkpoint
        content, step = (
            frozenset(checkpoint.files),
            self._step_at(max(f.changed_ns for f in checkpoint.files)),
        )
        last_content, last_step = self._step_given
        if content == last_content:
            step = last_step
        elif step is None:
            step = max([*(m.step for m in index.manifests.values()), last_step]) + 1
        self._step_given = (content, step)
        return replace(checkpoint, step=step)

    def _upload(self, index: CheckpointIndex, checkpoint: LocalCheckpoint) -> bool:
        """Upload files, then the manifest; return False if the files changed meanwhile."""
        self._fence.hold()
        step, claim = checkpoint.step, self._fence.number
        folder = folder_name(step, claim)
        before = index.manifests.get(folder)
        stored = {file.path: file for file in before.files} if before else {}
        taken = {file.key for file in before.files} if before else set()
        if before is None:
            index.torn.add(folder)  # Until its manifest is written.
        started = time.monotonic()
        try:
            same = {
                state: None if self._sent.get(folder, state) else self._same(stored.get(state.path), state)
                for state in checkpoint.files
            }
            keys = {
                state: _free_key(_key_of(checkpoint, state.path), taken)
                for state, old in same.items()
                if old is None
            }
            new = send_files(self._store, self._folder, folder, keys, self._sent, self._count_bytes)
            files = [old or new[state] for state, old in same.items()]
        except OSError as error:
            log.info("checkpoint %d changed while it was uploaded: %s", step, error)
            return False
        if not self._unchanged(checkpoint):
            log.info("checkpoint %d changed while it was uploaded; the next pass uploads it again", step)
            return False
        mark = checkpoint.mark
        others = self._parts_of_others(index, folder, mark.parts if mark else 1)
        if others is None:
            return False
        self._fence.hold()
        manifest = Manifest(
            step=step,
            time=now_text(),
            attempt=self._fence.attempt,
            entries=tuple(Entry(entry.name, entry.kind) for entry in checkpoint.entries),
            files=united(tuple(files), others),
            metric=mark.metric if mark else None,
            metric_mode=mark.metric_mode if mark else "max",
            claim=claim,
        )
        self._store.put_bytes(f"{folder}/{contract.MANIFEST_FILE}", manifest.to_json())
        index.manifests[folder] = manifest
        index.torn.discard(folder)
        self._done.update(checkpoint.files)
        self._sent.forget(folder)
        self._tell_newest(index.newest_first()[0])
        log.info(
            "uploaded checkpoint %s (%d bytes, %.1f s)",
            self._store.uri(folder),
            manifest.size,
            time.monotonic() - started,
        )
        if self._fill:
            self._fill.offer(step, list(map(Uploaded, checkpoint.files, files)))
        self._removal.note_uploaded(manifest)
        return True

    def _parts_of_others(self, index: CheckpointIndex, folder: str, parts: int) -> list[Manifest] | None:
        """Return the part manifests of the other pods; None until all of them are there."""
        self._lacking = ""
        if parts == 1:
            return []
        found = read_parts(self._store, folder)
        if len(found) < parts - 1:
            index.torn.discard(folder)  # A removal would take the parts that others are uploading.
            self._lacking = f"checkpoint {self._store.uri(folder)} has {len(found) + 1} of {parts} parts"
            return None
        # Parts of older checkpoints that this pod has skipped.
        step, claim = step_and_claim(folder) or (0, 0)
        of_claim = [f for f in self._store.folders() if _claim_of(f) == claim]
        index.torn |= {
            f for f in of_claim if f not in index.manifests and (step_and_claim(f) or (step,))[0] < step
        }
        return found

    def _same(self, old: StoredFile | None, state: FileState) -> StoredFile | None:
        """Return the file that the present manifest names, if its content is the same. Raises OSError."""
        same = old and old.size == state.size and old.sha256 == sha256_of(self._folder / state.path)
        return old if same else None

    def _unchanged(self, checkpoint: LocalCheckpoint) -> bool:
        return all(
            (now := read_entry(self._folder, entry.name)) is not None and now.files == entry.files
            for entry in checkpoint.entries
        )

    def _tell_newest(self, manifest: Manifest) -> None:
        with self._lock:
            self._newest = {
                "step": manifest.step,
                "time": manifest.time,
                "uri": self._store.uri(manifest.folder),
            }

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount


def _candidate(checkpoint: LocalCheckpoint, claim: int) -> Candidate:
    mark, time = checkpoint.mark, max(file.changed_ns for file in checkpoint.files) / 1e9
    if mark is None:
        return Candidate(claim, checkpoint.step, time=time)
    return Candidate(claim, checkpoint.step, mark.metric, mark.metric_mode, time)


def _key_of(checkpoint: LocalCheckpoint, path: str) -> str:
    """Return the key below the checkpoint's folder: without the directory's name where it is the only entry."""
    only = checkpoint.entries[0] if len(checkpoint.entries) == 1 else None
    if only and only.kind == "directory":
        return PurePosixPath(path).relative_to(only.name).as_posix()
    return path


def _free_key(key: str, taken: set[str]) -> str:
    """Return a key that the present manifest does not use: its checkpoint stays whole until the next manifest."""
    free, revision = key, 2
    while free in taken or free == contract.MANIFEST_FILE:
        free, revision = f"r{revision}/{key}", revision + 1
    return free


def _claim_of(folder: str) -> int | None:
    found = step_and_claim(folder)
    return found[1] if found else None
