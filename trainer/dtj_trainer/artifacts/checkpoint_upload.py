"""Uploads snapshots of the checkpoints folder while a program runs. `checkpoint_removal` deletes those not kept."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_index import CheckpointIndex, read_index
from dtj_trainer.artifacts.checkpoint_parts import Lateness, read_parts, united
from dtj_trainer.artifacts.checkpoint_removal import CheckpointRemoval
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.folder_pictures import FolderPictures
from dtj_trainer.artifacts.local_checkpoints import Mark, newest_of, prune
from dtj_trainer.artifacts.look import is_below
from dtj_trainer.artifacts.manifest import Manifest, StoredFile, folder_name
from dtj_trainer.artifacts.picture import NOTHING, Picture, Waits
from dtj_trainer.artifacts.sent_files import Changed, SentFiles
from dtj_trainer.artifacts.snapshot import (
    folders_and_links,
    keys_of,
    new_names,
    new_number,
    saves_to_keep,
    step_of_tensorflow,
)
from dtj_trainer.clock import now_text

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.look import Node
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

StepAt = Callable[[int], int | None]
"""The program's step at a time (wall clock, nanoseconds); None for a program that reports no steps."""
REST, COSTLY_SECONDS = 20, 0.1
"""After a picture that took COSTLY_SECONDS or more, without the time to send files, the next one waits for REST times
what it took."""


@dataclass(frozen=True)
class _Due:
    """A picture to upload, and what its snapshot is called.

    `saved`: its newest folder of `checkpoints.save`. `alone`: that folder is all of it.
    """

    picture: Picture
    number: int
    step: int | None
    saved: str | None
    mark: Mark | None
    alone: bool


class CheckpointUploader:
    """Uploads the checkpoints folder of one attempt in passes.

    `store` is the job's checkpoints prefix; `fence` says whether this attempt may still write there. `step_at` gives
    the step of snapshots in which nothing else names one. One thread makes all passes; other threads may read
    `newest` and `bytes_uploaded`.
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
    ) -> None:
        """`keep`, `keep_every`: of the snapshots in the bucket; see `kept`."""
        self._folder = folder
        self._store = store
        self._fence = fence
        self._keep = keep
        self._keep_every = keep_every
        self._pictures = FolderPictures(folder, settle_seconds, program_runs)
        self._step_at = step_at
        self._index: CheckpointIndex | None = None
        self._done: set[Node] = set()
        """Files of folders of `save` that a snapshot has, because a pass uploaded them or a restore brought them."""
        self._on_demand: tuple[StoredFile, ...] = ()
        """Files of the restored snapshot that are in the bucket alone."""
        self._sent = SentFiles(store, folder, self._count_bytes)
        self._removal = CheckpointRemoval(
            store, fence=fence, keep=keep, keep_every=keep_every, sent=self._sent
        )
        self._unreadable: set[str] = set()
        self._under_way: _Due | None = None
        self._not_before = 0.0
        self._lacking = ""
        """The newest checkpoint that lacks parts of other pods."""
        self._lateness = Lateness()
        self._lock = threading.Lock()
        self._newest: contract.CheckpointRef | None = None
        self.bytes_uploaded = 0

    @property
    def newest(self) -> contract.CheckpointRef | None:
        """The newest snapshot with a manifest in the bucket, as far as this process has seen manifests."""
        with self._lock:
            return self._newest

    def start(self) -> None:
        """Begin to watch the folder. Call it before the program writes there."""
        self._pictures.start()

    def note_restored(self, manifest: Manifest, *, own: bool) -> None:
        """Take the folder as a restore of this snapshot left it. own: the snapshot is one of this job."""
        restored = self._pictures.begin_from(manifest.paths)
        self._done.update(node for node in restored.values() if node.kind == "file")
        if own:
            for file in manifest.files:
                if (node := restored.get(file.path)) and node.size == file.size:
                    self._sent.add(node, file)
            self._on_demand = tuple(file for file in manifest.files if file.path not in restored)
            self._tell_newest(manifest)

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload the picture of the folder that is due, then remove what is no longer kept.

        `ended` says that the program ended by itself; `died_ns` is the time when the program was killed (wall clock,
        nanoseconds). What was not complete by then never will be. Return whether everything in the folder is uploaded
        or will never be complete. Raises S3Error, Superseded among them.
        """
        try:
            return self._upload_due(ended=ended, died_ns=died_ns)
        except Superseded:
            self._store.abort_uploads("")
            raise

    def _upload_due(self, *, ended: bool, died_ns: int | None) -> bool:
        over = ended or died_ns is not None
        while True:
            # Prune first: the disk must not fill up while uploads are slow or the bucket does not answer.
            self._pictures.look(over=over)
            if len(prune(self._folder, self._pictures.marks, self._keep)) < len(self._pictures.marks):
                self._pictures.look(over=over)
            index = self._loaded_index()
            self._store.uploads.abort_changed()
            found: Picture | Waits = Waits("the last picture was taken a moment ago")
            if self._under_way is None and (over or time.monotonic() >= self._not_before):
                found = self._pictures.due(ended=ended, died_ns=died_ns)
            newest = self._under_way or (self._named(index, found) if isinstance(found, Picture) else None)
            # A checkpoint whose parts of other pods are late does not hold up the ones before.
            self._lacking = ""
            tried = False
            for due in (newest, *self._older_saves(index)):
                if due is None:
                    continue
                tried = True
                waited = due is self._under_way
                if (stored := self._upload(index, due, newest=due is newest)) is None and not waited:
                    return False
                if stored is not False:
                    break
            else:
                self._removal.prune(index)
                if tried:
                    return over and bool(self._lacking) and self._lateness.given_up(self._lacking)
                return over or found == NOTHING
            self._removal.prune(index)

    def _loaded_index(self) -> CheckpointIndex:
        if self._index is None:
            # Check the claim: the index of a superseded attempt must not list snapshots of a later one for removal.
            self._fence.hold()
            self._index = read_index(self._store)
            for manifest in self._index.newest_first()[:1]:
                self._tell_newest(manifest)
        return self._index

    def _named(self, index: CheckpointIndex, picture: Picture) -> _Due:
        """Name the snapshot of a picture."""
        started, nodes = time.monotonic(), picture.nodes
        marks = {name: mark for name, mark in self._pictures.marks.items() if name in nodes}
        saved = newest_of(marks)
        mark = marks[saved] if saved else None
        step = mark.step if mark else step_of_tensorflow(nodes)
        if step is None:
            new = [node for path, node in nodes.items() if not node.same(self._pictures.last.get(path))]
            step = self._step_at(max(node.changed_ns for node in new if node.kind != "directory"))
        number = new_number(step, self._fence.number, index.manifests.values())
        alone = saved is not None and all(is_below(path, {saved}) for path in nodes)
        self._sent.keep_only([*self._pictures.nodes.values(), *self._pictures.last.values()])
        self._rest_after(time.monotonic() - started)
        return _Due(picture, number, step, saved, mark, alone)

    def _older_saves(self, index: CheckpointIndex) -> Iterator[_Due]:
        """Yield the older folders of `save` that are to be kept and in no snapshot, the newest first."""
        marks, claim = self._pictures.marks, self._fence.number
        fresh: dict[str, int] = {}
        for path, node in self._pictures.nodes.items() if len(marks) > 1 else ():
            if node.kind == "file" and node not in self._done and (name := path.partition("/")[0]) in marks:
                fresh[name] = max(fresh.get(name, 0), node.changed_ns)
        new = {name: (marks[name], at / 1e9) for name, at in fresh.items()}
        for name in saves_to_keep(new, claim, index.manifests.values(), self._keep, self._keep_every):
            if name != newest_of(marks):
                picture = Picture(
                    {path: node for path, node in self._pictures.nodes.items() if is_below(path, {name})}
                )
                yield _Due(picture, marks[name].step, marks[name].step, name, marks[name], alone=True)

    def _upload(self, index: CheckpointIndex, due: _Due, *, newest: bool) -> bool | None:
        """Upload files, then the manifest.

        Return None if a file changed before it was sent, False if parts of other pods are missing.
        """
        self._fence.hold()
        self._under_way = due if newest else None
        claim, picture, mark = self._fence.number, due.picture, due.mark
        folder = folder_name(due.number, claim)
        started = time.monotonic()
        try:
            with self._pictures.looking():
                files = self._send(due, folder)
        except PermissionError as error:
            self._under_way = None
            self._unreadable.add(str(error.filename))
            log.warning("%s is not saved: %s", error.filename, error.strerror)
            return None
        except (Changed, OSError) as error:
            self._under_way = None
            log.info("checkpoint %s changed while it was uploaded: %s", self._store.uri(folder), error)
            return None
        began = time.monotonic()
        of_parts = folder_name(mark.step, claim) if mark and mark.parts > 1 else folder
        others = self._parts_of_others(of_parts, mark.parts if mark else 1)
        if others is None:
            self._under_way = None
            return False
        self._fence.hold()
        manifest = Manifest(
            due.number,
            due.step,
            now_text(),
            self._fence.attempt,
            united(tuple(files), others),
            *folders_and_links(picture.nodes),
            new=new_names(picture.nodes, self._pictures.last),
            metric=mark.metric if mark else None,
            metric_mode=mark.metric_mode if mark else "max",
            claim=claim,
        )
        self._store.put_bytes(f"{folder}/{contract.MANIFEST_FILE}", manifest.to_json())
        index.manifests[folder] = manifest
        if newest:
            self._pictures.taken(picture)
            self._under_way = None
        self._done = {node for node in self._done if self._pictures.nodes.get(node.path) == node}
        self._done.update(node for node in picture.nodes.values() if node.kind == "file")
        self._tell_newest(index.newest_first()[0])
        log.info(
            "uploaded checkpoint %s (%d bytes, %.1f s)",
            self._store.uri(folder),
            manifest.size,
            time.monotonic() - started,
        )
        self._removal.note_uploaded(index, manifest, of_parts=mark is not None and mark.parts > 1)
        self._rest_after(time.monotonic() - began)
        return True

    def _rest_after(self, seconds: float) -> None:
        if seconds >= COSTLY_SECONDS:
            self._not_before = max(self._not_before, time.monotonic() + REST * seconds)

    def _send(self, due: _Due, folder: str) -> list[StoredFile]:
        """Send the files of a picture that the bucket does not have; return all. Raises Changed, OSError, S3Error."""
        nodes = [node for node in due.picture.nodes.values() if node.kind == "file"]
        known = {node: stored for node in nodes if (stored := self._sent.get(node))}
        last = self._pictures.last
        lacking = [
            node
            for node in nodes
            # Of another job's snapshot, the bucket does not have what the program has overwritten.
            if node not in known
            and str(self._folder / node.path) not in self._unreadable
            and (node != last.get(node.path) or node == self._pictures.nodes.get(node.path))
        ]
        keys = keys_of(
            lacking, folder, due.saved if due.alone else None, self._sent.keys() if lacking else set()
        )
        files = [*known.values(), *self._sent.send(keys, self._store.uri(folder))]
        tops = {path for path in due.picture.nodes if "/" not in path}
        files += [file for file in self._on_demand if file.path.partition("/")[0] in tops]
        return sorted(files, key=lambda file: file.path)

    def _parts_of_others(self, folder: str, parts: int) -> list[Manifest] | None:
        """Return the part manifests of the other pods; None until all of them are there."""
        if parts == 1:
            return []
        found = read_parts(self._store, folder)
        if len(found) < parts - 1:
            self._lacking = f"checkpoint {self._store.uri(folder)} has {len(found) + 1} of {parts} parts"
            return None
        return found

    def _tell_newest(self, manifest: Manifest) -> None:
        found: contract.CheckpointRef = {"time": manifest.time, "uri": self._store.uri(manifest.folder)}
        if manifest.step is not None:
            found["step"] = manifest.step
        if manifest.new:
            found["new"] = list(manifest.new)
        with self._lock:
            self._newest = found

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount
