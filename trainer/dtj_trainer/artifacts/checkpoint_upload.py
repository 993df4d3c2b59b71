"""Uploads snapshots of the checkpoints folder while a program runs.

`sync` calls the uploader. Not here: the deletion of snapshots that are not kept (`checkpoint_removal`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.capture import NOTHING, SECOND, Capture, Waits, is_below
from dtj_trainer.artifacts.checkpoint_removal import CheckpointRemoval
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.folder_captures import FolderCaptures
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, newest_of, prune
from dtj_trainer.artifacts.manifest import Manifest, ManifestError, StoredFile, check_paths, folder_name
from dtj_trainer.artifacts.newest_capture import Name, NewestCapture
from dtj_trainer.artifacts.other_pods import OtherPods
from dtj_trainer.artifacts.pod_manifest import is_lent
from dtj_trainer.artifacts.s3 import RefusedKey
from dtj_trainer.artifacts.sent_files import FileChanged, SentFiles, why_unsent
from dtj_trainer.artifacts.size_limit import SizeLimit
from dtj_trainer.artifacts.snapshot import (
    CheckpointIndex,
    Due,
    StepAt,
    age,
    folders_and_links,
    keys_of,
    later_number,
    new_names,
    new_number,
    read_index,
    ref_of,
    saves_to_keep,
    step_of,
)
from dtj_trainer.artifacts.upload_rules import RefusedFiles
from dtj_trainer.clock import now_text, seconds_of

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.artifacts.capture import Node
    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.store import Store


log = logging.getLogger(__name__)


def lent_paths(manifest: Manifest) -> set[str]:
    """Return the paths of the files that other pods gave to a snapshot."""
    return {file.path for file in manifest.files if is_lent(file)}


@dataclass(frozen=True)
class _Round:
    """The snapshot with which a round begins; None: an empty folder. `capture`: the folder's content at that time."""

    manifest: Manifest | None
    capture: Capture


MOST_CAPTURES = 4
"""The largest number of captures of the folder that one upload pass sends."""
COPY_AFTER = 2
"""After this many captures (states of the checkpoints folder) in a row of which a file changed before it was sent,
files are copied first, and the copies are sent."""


class CheckpointUploader:
    """Uploads the checkpoints folder of one attempt in passes.

    `store` is the job's checkpoints prefix; `fence` checks whether this attempt may still write there. `step_at`
    returns the step of snapshots in which nothing else names a step. One thread makes all passes; other threads may
    read `newest` and `bytes_uploaded`.
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
        self._captures = FolderCaptures(folder, settle_seconds, program_runs, self._note_complete)
        self.note_torn, self.close = self._captures.note_torn, self._captures.close
        self.still = self._captures.still
        self._step_at = step_at
        self._index: CheckpointIndex | None = None
        self._done: set[Node] = set()
        """Files in folders of `checkpoints.save` that a snapshot in the bucket has, by an upload or because a restore
        brought them."""
        self._on_demand: dict[Node, list[StoredFile]] = {}
        """Files of the restored snapshot that the restore left in the bucket, by the mark file of their folder."""
        self._sent = SentFiles(store, folder, self._count_bytes)
        self.captures = NewestCapture(self._sent.get)
        self._limit = SizeLimit(keep_bytes)
        self._others = OtherPods(store, fence, shards=shards)
        self._removal = CheckpointRemoval(
            store, fence=fence, keep=keep, keep_every=keep_every, sent=self._sent, others=self._others
        )
        # Files that could not be read, by path, with their state at that time: an unchanged file is not tried again.
        self._unreadable: dict[str, Node] = {}
        self._voids = 0
        self._begun: set[int] = set()  # numbers of snapshots whose upload has begun and is not complete
        self._under_way: Due | None = None
        # The capture whose upload was tried, and failed because files of other pods were missing.
        self._waiting: Capture | None = None
        self._last: Manifest | None = None
        self._stored = self._captures.last
        """The content of the last snapshot that was uploaded or restored. The last round may have begun with another
        snapshot."""
        self._round: _Round | None = None
        """The last round, until a pass takes it into account."""
        self._begins_with: Due | None = None
        """The snapshot that the last round began with, while the bucket does not have it."""
        self._lock = threading.Lock()
        self.newest: contract.CheckpointRef | None = None
        """The newest snapshot with a manifest in the bucket, as far as this process has seen manifests."""
        self.bytes_uploaded, self.refused = 0, RefusedFiles()
        self.held_up = ""  # What has held up the next snapshot for minutes; empty: nothing.

    def start(self) -> None:
        """Begin to watch the folder. Call it before the program writes there."""
        self._captures.start()

    def note_restored(self, manifest: Manifest, *, own: bool) -> None:
        """Start from the folder's present content, which a restore of this snapshot left. own: of this job."""
        restored = self._captures.begin_from(manifest.paths, lent_paths(manifest))
        self._begin_from(manifest, restored, own=own)
        self._stored = self._captures.last
        if own:
            capture = Capture(restored, at_ns=int(seconds_of(manifest.time) * SECOND))
            self._note_uploaded(capture, manifest)
            self._tell_newest(manifest)

    def _begin_from(self, manifest: Manifest, restored: Mapping[str, Node], *, own: bool) -> None:
        self._done.update(node for node in restored.values() if node.kind == "file")
        self._others.note_restored(manifest, restored)
        if own:
            self._note_sent(manifest, restored)
            self._last, self._removal.needed = manifest, manifest.folder

    def _note_sent(self, manifest: Manifest, restored: Mapping[str, Node]) -> None:
        """Note which of the files that were put back are in the bucket."""
        for file in manifest.files:
            node = restored.get(file.path)
            if node and node.size == file.size and file.key:
                self._sent.add(node, replace(file, mtime_ns=node.mtime_ns))
            mark = restored.get(f"{file.path.partition('/')[0]}/{MARK_FILE}")
            if node is None and mark:
                self._on_demand.setdefault(mark, []).append(file)

    def look_last(self, died_ns: int | None) -> None:
        """See `FolderCaptures`. Any thread may call it."""
        self._captures.look_last(died_ns)

    def unsent_saves(self, before: int) -> set[str]:
        """Return the names of the folders of `save` that no snapshot has, and whose steps are lower than `before`.

        Any thread may call this method.
        """
        done = self._done
        unsent = {
            path.partition("/")[0]
            for path, node in self.nodes.items()
            if node.kind == "file" and node not in done
        }
        return {name for name, mark in self._captures.marks.items() if name in unsent and mark.step < before}

    def begin_round(self, manifest: Manifest | None) -> None:
        """Start from the folder's present content: a snapshot that was put back, or nothing (None).

        An upload that is under way goes on. A snapshot that the bucket does not have is uploaded next. Any thread may
        call this method.
        """
        paths, lent = (manifest.paths, lent_paths(manifest)) if manifest else (set[str](), set[str]())
        capture = Capture(dict(self._captures.begin_round(paths, lent)), at_ns=time.time_ns())
        self.captures.begin_round(capture, manifest)
        self._round = _Round(manifest, capture)

    def _take_round(self, begun: _Round) -> None:
        """Reset the state of the uploads to the snapshot with which a round begins."""
        self._round, self._waiting, self._voids, self._begins_with = None, None, 0, None
        manifest, nodes = begun.manifest, begun.capture.nodes
        if manifest is None:
            return
        last = self._last
        stored = self._index.manifests.get(manifest.folder) if self._index else None
        if last and last.folder == manifest.folder:
            stored = last
        self._begin_from(stored or manifest, nodes, own=stored is not None)
        if stored:
            self._stored = self._captures.last
        else:
            self._note_sent(manifest, nodes)
            if manifest.claim == self._fence.number and (last is None or age(manifest) > age(last)):
                self._begins_with = self._due(begun.capture, manifest.number, manifest.step)

    def _go_on_from_stored(self) -> None:
        """End the upload of the snapshot with which the last round began. The next capture includes its files."""
        self._begins_with = None
        self._captures.begin_again(self._stored)
        self._stored = self._captures.last

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload the capture of the folder that is due, then remove what is no longer kept.

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
        over, captures = ended or died_ns is not None, 0
        self._sent.ended = over
        # Limit the captures of a pass: a folder that changes all the time always has a new capture, and only the next
        # pass learns that the program has ended.
        while captures < MOST_CAPTURES:
            if self._round:
                self._take_round(self._round)
            # Delete old checkpoints on the disk first: the disk must not fill up while uploads are slow or the bucket
            # does not answer.
            self._captures.look(over=over)
            if len(prune(self._folder, self._captures.marks, self._keep)) < len(self._captures.marks):
                self._captures.look(over=over)
            index = self._loaded_index()
            self._store.uploads.abort_changed()
            self.held_up = self._others.held_up or self._captures.held_up
            self._others.begin(ended=over)
            found: Capture | Waits = NOTHING
            if self._under_way is None and self._begins_with is None:
                found = self._captures.due(ended=ended, died_ns=died_ns)
                last, calm = self._stored, isinstance(found, Waits) and self._captures.last is self._stored
                if calm and self._others.have_news(self._last, last, ended=over):
                    found = self._waiting or Capture(last)
            newest = self._under_way or self._begins_with
            newest = newest or (self._named(index, found) if isinstance(found, Capture) else None)
            # While the newest checkpoint waits for files of other pods, upload earlier checkpoints.
            tried = False
            for due in (newest, *self._older_saves(index)):
                if due is None:
                    continue
                tried = True
                waited = due is self._under_way
                if (stored := self._upload(index, due, newest=due is newest)) is None and not waited:
                    return False
                captures += due is newest
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

    def _named(self, index: CheckpointIndex, capture: Capture) -> Due:
        """Give the snapshot of a capture its number and its step."""
        began, step = time.thread_time(), self._step_of(capture)
        number = new_number(step, self._fence.number, index.manifests.values())
        self.captures.name(capture, Name(self._fence.number, number, step))
        due = self._due(capture, number, step)
        self._sent.keep_only([*self._captures.nodes.values(), *self._captures.last.values()])
        self._captures.rest_after(time.thread_time() - began)
        return due

    def _due(self, capture: Capture, number: int, step: int | None) -> Due:
        marks = {name: mark for name, mark in self._captures.marks.items() if name in capture.nodes}
        saved = newest_of(marks)
        alone = saved is not None and all(is_below(path, {saved}) for path in capture.nodes)
        return Due(capture, number, step, saved, marks[saved] if saved else None, alone)

    def _step_of(self, capture: Capture) -> int | None:
        before = self._last.step if self._last else None
        return step_of(capture.nodes, self._captures.marks, self._captures.last, self._step_at, before)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The content of the folder at the last look."""
        return self._captures.nodes

    def _note_complete(self, capture: Capture) -> None:
        """Note a complete capture of the folder, also while another capture is sent or the bucket does not answer."""

        def name() -> Name:
            step = self._step_of(capture)
            if not self._fence.is_claimed:
                return Name(None, None, step)
            claim = self._fence.number
            known = self._index.manifests.values() if self._index else filter(None, [self._last])
            number = new_number(step, claim, known)
            before = self._under_way.number if self._under_way else -1
            return Name(claim, number if number > before else later_number(step, before), step)

        self.captures.note(capture, name)

    def _note_uploaded(self, capture: Capture, manifest: Manifest) -> None:
        name = Name(manifest.claim, manifest.number, manifest.step)
        self.captures.note_uploaded(capture, name, manifest)

    def _older_saves(self, index: CheckpointIndex) -> Iterator[Due]:
        """Yield the older folders of `checkpoints.save` that retention keeps and no snapshot has yet, the newest
        first.
        """
        marks, claim = self._captures.marks, self._fence.number
        fresh: dict[str, int] = {}
        for path, node in self._captures.nodes.items() if len(marks) > 1 else ():
            if node.kind == "file" and node not in self._done and (name := path.partition("/")[0]) in marks:
                fresh[name] = max(fresh.get(name, 0), node.changed_ns)
        new = {name: (marks[name], at / 1e9) for name, at in fresh.items()}
        for name, number in saves_to_keep(new, claim, index.manifests.values(), self._keep, self._keep_every):
            if name != newest_of(marks):
                capture = Capture(
                    {path: node for path, node in self._captures.nodes.items() if is_below(path, {name})}
                )
                yield Due(capture, number, marks[name].step, name, marks[name], alone=True)

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
            with self._captures.looking():
                files = self._send(due, folder)
            manifest = self._manifest(due, files)
        except (FileChanged, OSError, ManifestError) as error:
            self._drop(due, error)
            return None
        except RefusedKey as error:
            self.refused.add(self._folder, str(error))
            self._under_way = None  # The next capture of the folder may not have the refused file.
            if due is self._begins_with:
                self._go_on_from_stored()
            raise
        if manifest is None:
            self._under_way, self._waiting = None, due.capture if newest else self._waiting
            if due is self._begins_with:
                self._go_on_from_stored()
            return False
        self._fence.hold()
        self._store.put_bytes(f"{folder}/{contract.MANIFEST_FILE}", manifest.to_json())
        index.manifests[folder] = manifest
        if not due.alone:
            self._others.stored(manifest.files)
        if newest:
            taken, begun = self._captures.taken(due.capture, self._sent.unsent), self._begins_with
            self._last = manifest
            self._note_uploaded(due.capture, manifest)
            if taken or (begun and begun.number == due.number):
                self._stored = self._captures.last
            if begun and begun.number <= due.number:
                self._begins_with = None
        self._drop()
        nodes = self._captures.nodes
        self._unreadable = {path: node for path, node in self._unreadable.items() if nodes.get(path) == node}
        self.refused.only({self._folder / path for path in self._unreadable})
        self._done = {node for node in self._done if nodes.get(node.path) == node}
        self._done.update(node for node in due.capture.nodes.values() if node.kind == "file")
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
        """Let the next pass take another capture: the present one is stored, or `error` prevents its upload."""
        self._under_way, self._waiting, self._voids = None, None, self._voids + 1 if due else 0
        self._sent.drop_copies()
        if due is None or error is None:
            return
        if due is self._begins_with:
            self._go_on_from_stored()
        uri = self._store.uri(folder_name(due.number, self._fence.number))
        log.info("checkpoint %s: %s", uri, why_unsent(error))
        if isinstance(error, PermissionError) or (isinstance(error, OSError) and self._voids > COPY_AFTER):
            path = os.path.relpath(str(error.filename), self._folder)
            if (node := due.capture.nodes.get(path)) is not None:
                self._unreadable[path] = node
                self.refused.add(self._folder / path, error.strerror or repr(error))

    def _send(self, due: Due, folder: str) -> list[StoredFile]:
        """Send the files of a capture that the bucket lacks; return all files. Raises FileChanged, OSError,
        S3Error.
        """
        capture, last = due.capture, self._stored
        present = [later for mark, later in self._on_demand.items() if capture.nodes.get(mark.path) == mark]
        # This pod's files have not changed: only other pods have new files for the last capture.
        if capture.nodes is last:
            paths = last.keys() | {file.path for later in present for file in later}
            return [file for file in (self._last.files if self._last else ()) if file.path in paths]
        self._others.announce(due)
        nodes = self._limit.wanted((node for node in capture.nodes.values() if node.kind == "file"), last)
        known = {node: stored for node in nodes if (stored := self._sent.get(node))}
        lacking = [
            node
            for node in nodes
            # Skip files of the last capture that the program has overwritten: after a restore from another job, this
            # job's bucket does not have their old content.
            if node not in known
            and self._unreadable.get(node.path) != node
            and (node != last.get(node.path) or node == self._captures.nodes.get(node.path))
        ]
        taken = self._sent.keys() | self._loaded_index().keys_in(folder) if lacking else set()
        own = [node for node in lacking if not self._others.has_lent(node)]
        keys = keys_of(own, folder, due.saved if due.alone else None, taken)
        keys |= self._others.keys_of_lent(lacking, folder, taken)
        busy = [node for node in keys if node.path in capture.busy]
        calm = {node: key for node, key in keys.items() if node.path not in capture.busy}
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
        whole = self._others.files(due, files, self._last, self._captures.last)
        if whole is None:
            return None
        began, nodes, mark = time.thread_time(), due.capture.nodes, due.mark
        manifest = Manifest(
            due.number,
            due.step,
            now_text(),
            self._fence.attempt,
            *self._limit.limited(whole, *folders_and_links(nodes), due.saved),
            new=new_names(nodes, self._stored),
            metric=mark.metric if mark else None,
            metric_mode=mark.metric_mode if mark else "max",
            claim=self._fence.number,
        )
        check_paths(manifest)
        self._captures.rest_after(time.thread_time() - began)
        return manifest

    def _tell_newest(self, manifest: Manifest) -> None:
        self.newest = ref_of(manifest, self._store.uri(manifest.folder))

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount
