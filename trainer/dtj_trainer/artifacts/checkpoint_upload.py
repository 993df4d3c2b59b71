"""Uploads snapshots of the checkpoints folder while a program runs. `checkpoint_removal` deletes those not kept."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_index import CheckpointIndex, read_index
from dtj_trainer.artifacts.checkpoint_removal import CheckpointRemoval
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.folder_pictures import FolderPictures
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, newest_of, prune
from dtj_trainer.artifacts.look import SECOND, is_below
from dtj_trainer.artifacts.manifest import Manifest, ManifestError, StoredFile, check_paths, folder_name
from dtj_trainer.artifacts.newest_picture import Name, NewestPicture
from dtj_trainer.artifacts.other_pods import OtherPods
from dtj_trainer.artifacts.picture import NOTHING, Picture, Waits
from dtj_trainer.artifacts.pod_manifest import is_lent
from dtj_trainer.artifacts.refused_files import RefusedFiles
from dtj_trainer.artifacts.s3 import RefusedKey
from dtj_trainer.artifacts.sent_files import Changed, SentFiles
from dtj_trainer.artifacts.size_limit import SizeLimit
from dtj_trainer.artifacts.snapshot import (
    Due,
    StepAt,
    folders_and_links,
    keys_of,
    later_number,
    new_names,
    new_number,
    ref_of,
    saves_to_keep,
    step_of,
)
from dtj_trainer.clock import now_text, seconds_of

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.look import Node
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

MOST_PICTURES = 4  # of a pass
COPY_AFTER = 2
"""After so many void pictures in a row, files are copied before they are sent."""


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
        keep_bytes: int = 0,
        shards: bool = False,
    ) -> None:
        """`keep…`: see `SyncSettings`. `shards`: other pods may have files of their own."""
        self._folder = folder
        self._store = store
        self._fence = fence
        self._keep, self._keep_every = keep, keep_every
        self._pictures = FolderPictures(folder, settle_seconds, program_runs, self._note_complete)
        self.note_torn, self.close = self._pictures.note_torn, self._pictures.close
        self._step_at = step_at
        self._index: CheckpointIndex | None = None
        self._done: set[Node] = set()
        """Files of folders of `save` that a snapshot has, because a pass uploaded them or a restore brought them."""
        self._on_demand: dict[Node, list[StoredFile]] = {}
        """Files of the restored snapshot that are in the bucket alone, by the mark of their folder."""
        self._sent = SentFiles(store, folder, self._count_bytes)
        self.pictures = NewestPicture(self._sent.get)
        self._limit = SizeLimit(keep_bytes)
        self._others = OtherPods(store, fence, shards=shards)
        self._removal = CheckpointRemoval(
            store, fence=fence, keep=keep, keep_every=keep_every, sent=self._sent, others=self._others
        )
        self._unreadable: dict[str, Node] = {}  # As they were then, by path.
        self._voids = 0
        self._begun: set[int] = set()  # Numbers of snapshots that are not completed.
        self._under_way: Due | None = None
        self._waiting: Picture | None = None  # It lacked files of other pods when it was tried.
        self._last: Manifest | None = None
        self._lock = threading.Lock()
        self.newest: contract.CheckpointRef | None = None
        """The newest snapshot with a manifest in the bucket, as far as this process has seen manifests."""
        self.bytes_uploaded, self.refused = 0, RefusedFiles()
        self.held_up = ""  # What has held up the next snapshot for minutes.

    def start(self) -> None:
        """Begin to watch the folder. Call it before the program writes there."""
        self._pictures.start()

    def note_restored(self, manifest: Manifest, *, own: bool) -> None:
        """Take the folder as a restore of this snapshot left it. own: the snapshot is one of this job."""
        lent = {file.path for file in manifest.files if is_lent(file)}
        restored = self._pictures.begin_from(manifest.paths, lent)
        self._done.update(node for node in restored.values() if node.kind == "file")
        self._others.note_restored(manifest, restored)
        if own:
            for file in manifest.files:
                node = restored.get(file.path)
                if node and node.size == file.size:
                    self._sent.add(node, replace(file, mtime_ns=node.mtime_ns))
                mark = restored.get(f"{file.path.partition('/')[0]}/{MARK_FILE}")
                if node is None and mark:
                    self._on_demand.setdefault(mark, []).append(file)
            self._last, self._removal.needed = manifest, manifest.folder
            picture = Picture(restored, at_ns=int(seconds_of(manifest.time) * SECOND))
            self._note_uploaded(picture, manifest)
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
        over, pictures = ended or died_ns is not None, 0
        self._sent.ended = over
        # What changes all the time has a new picture after each. A pass must end, to be told of the program's end.
        while pictures < MOST_PICTURES:
            # Prune first: the disk must not fill up while uploads are slow or the bucket does not answer.
            self._pictures.look(over=over)
            if len(prune(self._folder, self._pictures.marks, self._keep)) < len(self._pictures.marks):
                self._pictures.look(over=over)
            index = self._loaded_index()
            self._store.uploads.abort_changed()
            self.held_up = self._others.held_up or self._pictures.held_up
            self._others.begin(ended=over)
            found: Picture | Waits = NOTHING
            if self._under_way is None:
                found = self._pictures.due(ended=ended, died_ns=died_ns)
                last = self._pictures.last
                if isinstance(found, Waits) and self._others.have_news(self._last, last, ended=over):
                    found = self._waiting or Picture(last)
            newest = self._under_way or (self._named(index, found) if isinstance(found, Picture) else None)
            # A checkpoint whose files of other pods are late does not hold up the ones before.
            tried = False
            for due in (newest, *self._older_saves(index)):
                if due is None:
                    continue
                tried = True
                waited = due is self._under_way
                if (stored := self._upload(index, due, newest=due is newest)) is None and not waited:
                    return False
                pictures += due is newest
                if stored is not False:
                    break
            else:
                self._removal.prune(index)
                if tried or (over and self._others.lacking):
                    return over and self._others.given_up()
                return over or found == NOTHING
            self._removal.prune(index)
        return over

    def _loaded_index(self) -> CheckpointIndex:
        if self._index is None:
            # Check the claim: the index of a superseded attempt must not list snapshots of a later one for removal.
            self._fence.hold()
            self._index = read_index(self._store)
            for manifest in self._index.newest_first()[:1] if self.newest is None else ():
                self._tell_newest(manifest)
        return self._index

    def _named(self, index: CheckpointIndex, picture: Picture) -> Due:
        """Name the snapshot of a picture."""
        began, nodes = time.thread_time(), picture.nodes
        marks = {name: mark for name, mark in self._pictures.marks.items() if name in nodes}
        saved = newest_of(marks)
        mark = marks[saved] if saved else None
        step = self._step_of(picture)
        number = new_number(step, self._fence.number, index.manifests.values())
        self.pictures.name(picture, Name(self._fence.number, number, step))
        alone = saved is not None and all(is_below(path, {saved}) for path in nodes)
        self._sent.keep_only([*self._pictures.nodes.values(), *self._pictures.last.values()])
        self._pictures.rest_after(time.thread_time() - began)
        return Due(picture, number, step, saved, mark, alone)

    def _step_of(self, picture: Picture) -> int | None:
        before = self._last.step if self._last else None
        return step_of(picture.nodes, self._pictures.marks, self._pictures.last, self._step_at, before)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The content of the folder at the last look."""
        return self._pictures.nodes

    def _note_complete(self, picture: Picture) -> None:
        """Note a picture, which may come while another one is sent, or while the bucket does not answer."""

        def name() -> Name:
            step = self._step_of(picture)
            if not self._fence.is_claimed:
                return Name(None, None, step)
            claim = self._fence.number
            known = self._index.manifests.values() if self._index else filter(None, [self._last])
            number = new_number(step, claim, known)
            before = self._under_way.number if self._under_way else -1
            return Name(claim, number if number > before else later_number(step, before), step)

        self.pictures.note(picture, name)

    def _note_uploaded(self, picture: Picture, manifest: Manifest) -> None:
        name = Name(manifest.claim, manifest.number, manifest.step)
        self.pictures.note_uploaded(picture, name, manifest)

    def _older_saves(self, index: CheckpointIndex) -> Iterator[Due]:
        """Yield the older folders of `save` that are to be kept and in no snapshot, the newest first."""
        marks, claim = self._pictures.marks, self._fence.number
        fresh: dict[str, int] = {}
        for path, node in self._pictures.nodes.items() if len(marks) > 1 else ():
            if node.kind == "file" and node not in self._done and (name := path.partition("/")[0]) in marks:
                fresh[name] = max(fresh.get(name, 0), node.changed_ns)
        new = {name: (marks[name], at / 1e9) for name, at in fresh.items()}
        for name, number in saves_to_keep(new, claim, index.manifests.values(), self._keep, self._keep_every):
            if name != newest_of(marks):
                picture = Picture(
                    {path: node for path, node in self._pictures.nodes.items() if is_below(path, {name})}
                )
                yield Due(picture, number, marks[name].step, name, marks[name], alone=True)

    def _upload(self, index: CheckpointIndex, due: Due, *, newest: bool) -> bool | None:
        """Upload files, then the manifest.

        Return None if a file changed before it was sent, False if parts of other pods are missing.
        """
        self._fence.hold()
        self._under_way = due if newest else None
        folder = folder_name(due.number, self._fence.number)
        self._begun.add(due.number)
        started = time.monotonic()
        try:
            with self._pictures.looking():
                files = self._send(due, folder)
            manifest = self._manifest(due, files)
        except (Changed, OSError, ManifestError) as error:
            self._drop(due, error)
            return None
        except RefusedKey as error:
            self.refused.add(self._folder, str(error))
            self._under_way = None  # The next picture may have no file that is refused.
            raise
        if manifest is None:
            self._under_way, self._waiting = None, due.picture if newest else self._waiting
            return False
        self._fence.hold()
        self._store.put_bytes(f"{folder}/{contract.MANIFEST_FILE}", manifest.to_json())
        index.manifests[folder] = manifest
        if not due.alone:
            self._others.stored(manifest.files)
        if newest:
            self._pictures.taken(due.picture, self._sent.unsent)
            self._last = manifest
            self._note_uploaded(due.picture, manifest)
        self._drop()
        nodes = self._pictures.nodes
        self._unreadable = {path: node for path, node in self._unreadable.items() if nodes.get(path) == node}
        self.refused.only({self._folder / path for path in self._unreadable})
        self._done = {node for node in self._done if nodes.get(node.path) == node}
        self._done.update(node for node in due.picture.nodes.values() if node.kind == "file")
        self._tell_newest(index.newest_first()[0])
        log.info(
            "uploaded checkpoint %s (%d bytes, %.1f s)",
            self._store.uri(folder),
            manifest.size,
            time.monotonic() - started,
        )
        self._begun.discard(due.number)
        given_up = {number for number in self._begun if number < due.number}
        self._begun -= given_up
        of_parts = due.mark is not None and due.mark.parts > 1
        self._removal.note_uploaded(index, manifest, given_up, of_parts=of_parts)
        return True

    def _drop(self, due: Due | None = None, error: Exception | None = None) -> None:
        """Begin with another picture, because this one is stored, or has become void by an error."""
        self._under_way, self._waiting, self._voids = None, None, self._voids + 1 if due else 0
        self._sent.drop_copies()
        if due is None:
            return
        uri = self._store.uri(folder_name(due.number, self._fence.number))
        log.info("checkpoint %s changed while it was uploaded: %s", uri, error)
        if isinstance(error, PermissionError) or (isinstance(error, OSError) and self._voids > COPY_AFTER):
            path = os.path.relpath(str(error.filename), self._folder)
            if (node := due.picture.nodes.get(path)) is not None:
                self._unreadable[path] = node
                self.refused.add(self._folder / path, error.strerror or repr(error))

    def _send(self, due: Due, folder: str) -> list[StoredFile]:
        """Send what the bucket does not have of a picture; return all. Raises Changed, OSError, S3Error."""
        picture, last = due.picture, self._pictures.last
        present = [later for mark, later in self._on_demand.items() if picture.nodes.get(mark.path) == mark]
        if picture.nodes is last:  # Other pods have files for the same picture.
            paths = last.keys() | {file.path for later in present for file in later}
            return [file for file in (self._last.files if self._last else ()) if file.path in paths]
        self._others.announce(due)
        nodes = self._limit.wanted((node for node in picture.nodes.values() if node.kind == "file"), last)
        known = {node: stored for node in nodes if (stored := self._sent.get(node))}
        lacking = [
            node
            for node in nodes
            # Of another job's snapshot, the bucket does not have what the program has overwritten.
            if node not in known
            and self._unreadable.get(node.path) != node
            and (node != last.get(node.path) or node == self._pictures.nodes.get(node.path))
        ]
        taken = self._sent.keys() | self._loaded_index().keys_in(folder) if lacking else set()
        own = [node for node in lacking if not self._others.has_lent(node)]
        keys = keys_of(own, folder, due.saved if due.alone else None, taken)
        keys |= self._others.keys_of_lent(lacking, folder, taken)
        busy = [node for node in keys if node.path in picture.busy]
        calm = {node: key for node, key in keys.items() if node.path not in picture.busy}
        if self._voids >= COPY_AFTER:
            self._sent.copy_aside(calm)
        files = [*known.values(), *self._sent.send(calm, self._store.uri(folder))]
        for node in busy:
            before = last.get(node.path)
            stored = self._sent.send_as_it_is(node, keys[node], self._sent.get(before) if before else None)
            files += [stored] if stored else []
        there = {file.path for file in files}
        files += [file for later in present for file in later if file.path not in there]
        return sorted(files, key=lambda file: file.path)

    def _manifest(self, due: Due, files: list[StoredFile]) -> Manifest | None:
        """Return the manifest of a snapshot; None while parts of other pods are missing. Raises ManifestError."""
        whole = self._others.files(due, files, self._last, self._pictures.last)
        if whole is None:
            return None
        began, nodes, mark = time.thread_time(), due.picture.nodes, due.mark
        manifest = Manifest(
            due.number,
            due.step,
            now_text(),
            self._fence.attempt,
            *self._limit.limited(whole, *folders_and_links(nodes), due.saved),
            new=new_names(nodes, self._pictures.last),
            metric=mark.metric if mark else None,
            metric_mode=mark.metric_mode if mark else "max",
            claim=self._fence.number,
        )
        check_paths(manifest)
        self._pictures.rest_after(time.thread_time() - began)
        return manifest

    def _tell_newest(self, manifest: Manifest) -> None:
        self.newest = ref_of(manifest, self._store.uri(manifest.folder))

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount
