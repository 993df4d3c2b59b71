"""Uploads the files of the checkpoints folder that this pod alone has; see `PodManifest`."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.capture import Capture, is_below, kind_of
from dtj_trainer.artifacts.fence import claim_of_attempt
from dtj_trainer.artifacts.folder_captures import FolderCaptures
from dtj_trainer.artifacts.manifest import ManifestError, folder_name
from dtj_trainer.artifacts.newest_capture import Name, NewestCapture
from dtj_trainer.artifacts.pod_manifest import (
    ANNOUNCED,
    LATE_AT_END_SECONDS,
    LATE_SECONDS,
    PodManifest,
    answer_place,
    beginning,
    folders_in,
    giver_of,
    of_the_next,
    pod_manifest_key,
)
from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error
from dtj_trainer.artifacts.sent_files import FileChanged, SentFiles, why_unsent
from dtj_trainer.artifacts.snapshot import keys_of, step_of
from dtj_trainer.artifacts.upload_rules import RefusedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Set
    from pathlib import Path

    from dtj_trainer.artifacts.capture import Node
    from dtj_trainer.artifacts.manifest import Manifest, StoredFile
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

_MOST_BYTES = 64 * 2**20
_LONGEST_PAUSE_SECONDS = 10.0
COPY_AFTER = 2
"""After this many captures (states of the checkpoints folder) in a row of which a file changed before it was sent,
files are copied first, and the copies are sent."""


class _Announced:
    """What the pod of rank 0 announces. For one thread."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._etag: str | None = None
        self._asked_at = now()
        self.said = PodManifest()

    def read(self, claim: int, waits_since: float) -> None:
        """Read the announcement. The longer the wait, the rarer the requests. Raises S3Error."""
        if self._now() - self._asked_at < min(_LONGEST_PAUSE_SECONDS, (self._asked_at - waits_since) / 8):
            return
        self._asked_at = self._now()
        try:
            changed = self._store.get_changed(pod_manifest_key(claim, ANNOUNCED), self._etag, _MOST_BYTES)
            if changed:
                self.said, self._etag = PodManifest.from_json(changed[0]), changed[1]
        except NoSuchKey:
            return
        except ManifestError as error:
            log.warning("%s: %s", self._store.uri(pod_manifest_key(claim, ANNOUNCED)), error)


class PodFilesUploader:
    """Uploads, in passes, what this pod has in its checkpoints folder and the pod of rank 0 has not.

    `job` is the job's prefix with the claim at `claim_key`, `store` its checkpoints prefix. One thread makes all
    passes; other threads may read `bytes_uploaded`. A pod without new files makes no request. A pod that once had the
    same paths as the pod of rank 0 makes one request, a minute after a new file of such a kind.
    """

    def __init__(
        self,
        folder: Path,
        job: Store,
        store: Store,
        *,
        claim_key: str,
        attempt: int,
        pod: str,
        settle_seconds: float,
        program_runs: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._job, self._store, self._pod = folder, job, store, pod
        self._claim_key, self._attempt, self._now = claim_key, attempt, now
        self._captures = FolderCaptures(folder, settle_seconds, program_runs, self._note_complete)
        self.captures = NewestCapture()
        self.note_torn, self.close = self._captures.note_torn, self._captures.close
        self.still = self._captures.still
        self._process = uuid.uuid4().hex[:8]
        self._lock = threading.Lock()
        self.bytes_uploaded = 0
        self.refused = RefusedFiles()
        self._not_own: set[Node] = set()
        """Files that all pods have restored, or that can't be sent."""
        self._given: set[str] = set()
        """The paths of the restored files that this pod gave."""
        self._answers = self._voids = 0
        self._due: Capture | None = None
        self._round: tuple[Manifest | None, Mapping[str, Node]] | None = None
        """The last round, until a pass takes it into account."""
        self._new_since: float | None = None
        self._claim = -1
        self._begin_claim(-1)

    def _begin_claim(self, claim: int) -> None:
        """Reset the state for another claim: the process with that claim does not know the earlier manifests of this
        pod, and may have removed this pod's files from the bucket.
        """
        self._claim = claim
        self._sent = SentFiles(self._store, self._folder, self._count_bytes)
        self._announced = _Announced(self._store, self._now)
        self._said, self._said_etag, self._said_at = PodManifest(), "", self._now()
        self._theirs: dict[str, Node] = {}
        """Files on this disk that the pod of rank 0 has as well, or had while they had their current content."""
        self._their_paths: set[str] = set()
        self._their_folders: set[str] = set()
        self._shared: set[str] = set()
        """The kinds of the files in `_theirs`: their names with digits as `#`."""
        self._noisy: dict[str, tuple[Node | None, float]] = {}
        """By path of a file that changes all the time: how it was last, and since when. Such a file makes no answer
        to the pod of rank 0 necessary until it is calm."""
        self._answerable = False
        """Whether the pod of rank 0 has announced a capture since this pod's first new file."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The content of the folder at the last look."""
        return self._captures.nodes

    def _note_complete(self, capture: Capture) -> None:
        """Note a complete capture. Without a mark file of `checkpoints.save`, the number comes from the pod with the
        claim.
        """
        step = step_of(capture.nodes, self._captures.marks, self._captures.last, lambda _: None, None)
        self.captures.note(capture, lambda: Name(self._claim if self._claim >= 0 else None, step, step))

    def start(self) -> None:
        """Begin to watch the folder. Call it before the program writes there."""
        self._captures.start()

    def note_restored(self, manifest: Manifest) -> None:
        """Start from the folder's present content: all pods have restored this snapshot."""
        nodes = self._captures.begin_from(manifest.paths, self._others_in(manifest))
        self._begin_from(manifest, nodes)

    def _begin_from(self, manifest: Manifest, nodes: Mapping[str, Node]) -> None:
        self._given = {file.path for file in manifest.files} - self._others_in(manifest)
        self._not_own = set(nodes.values())

    def _others_in(self, manifest: Manifest) -> set[str]:
        return {file.path for file in manifest.files if giver_of(file) != self._pod}

    def begin_round(self, manifest: Manifest | None) -> None:
        """Start from the folder's present content: a snapshot that was put back, or nothing (None).

        An upload that is under way goes on. Any thread may call this method.
        """
        paths, others = (manifest.paths, self._others_in(manifest)) if manifest else (set[str](), set[str]())
        nodes = self._captures.begin_round(paths, others)
        self.captures.begin_round(Capture(dict(nodes), at_ns=time.time_ns()), manifest)
        self._round = manifest, nodes

    def look_last(self, died_ns: int | None) -> None:
        """See `FolderCaptures`. Any thread may call it."""
        self._captures.look_last(died_ns)

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload what is complete, and name it in the pod's manifest; return True when nothing is left.

        Raises S3Error.
        """
        over = ended or died_ns is not None
        if self._round:
            (manifest, nodes), self._round = self._round, None
            self._given, self._not_own = set(), set()
            if manifest:
                self._begin_from(manifest, nodes)
            self._due, self._new_since, self._voids = None, None, 0
        self._captures.look(over=over)
        new = self._new(over=over)
        if not new and not self._said.pending and not self._is_any_calm():
            self._new_since = None
            return True
        self._new_since = self._now() if self._new_since is None else self._new_since
        late = self._now() - self._new_since >= (LATE_AT_END_SECONDS if over else LATE_SECONDS)
        shared = not over and not self._said.pending and self._are_shared(new)
        if shared and not late:
            return False
        if self._due is None:
            found = self._captures.due(ended=ended, died_ns=died_ns)
            self._due = found if isinstance(found, Capture) else None
        if not self._said.pending:
            # After the program's end, files without a capture are not complete, and never will be.
            if not self._new(over=over) or (over and self._due is None):
                return True
            if not self._holds_claim():
                return False
            self._hear()
            self._answerable = False
        else:
            self._answerable |= self._hear()
        new = self._new(over=over)
        # Snapshots must not wait for files that vanished, that the pod of rank 0 has as well, or that will never
        # be complete.
        pending = set() if over and self._due is None else {node.path for node in new}
        if pending != set(self._said.pending) and (
            not self._said.pending or self._due is None or not pending
        ):
            self._say_pending(pending)
        if not pending:
            self._note_shared(())
            return True
        return self._due is not None and self._answer(self._due, late=late, over=over)

    def _note_shared(self, own: Iterable[Node]) -> None:
        self._shared |= {kind_of(path) for path in self._theirs} - {kind_of(node.path) for node in own}

    def _holds_claim(self) -> bool:
        """Return whether a pod of this attempt has the claim, and has had it since this pod last wrote its
        manifest.
        """
        claim = claim_of_attempt(self._job, self._claim_key, self._attempt)
        if claim is None:
            return False
        if claim.number != self._claim:
            before, self._voids = self._claim, 0
            self._begin_claim(claim.number)
            return before < 0
        return True

    def _new(self, *, over: bool) -> list[Node]:
        """Return the new files that may be this pod's alone."""
        last = self._captures.last
        return [
            node
            for node in self._own(self._captures.nodes)
            if not node.same(last.get(node.path)) and (over or self._counts(node))
        ]

    def _counts(self, node: Node) -> bool:
        """Return whether a file makes an answer to the pod of rank 0 necessary."""
        if node.path not in self._noisy:
            return True
        return self._due is not None and self._due.nodes.get(node.path) == node and self._is_calm(node)

    def _is_any_calm(self) -> bool:
        last, nodes = self._captures.last, self._captures.nodes
        noisy = [node for path in self._noisy if (node := nodes.get(path)) and not node.same(last.get(path))]
        calm = [self._is_calm(node) for node in noisy]
        return any(calm)

    def _is_calm(self, node: Node) -> bool:
        """Return whether a file that changed all the time has not changed for a while."""
        seen, since = self._noisy[node.path]
        if seen != node:
            self._noisy[node.path] = node, self._now()
            return False
        return self._now() - since >= LATE_SECONDS

    def _own(self, nodes: Mapping[str, Node]) -> list[Node]:
        """Return the files that the pod of rank 0 neither has nor had, and did not write by
        `checkpoints.save`.
        """
        saved = self._captures.marks.keys()
        return [
            node
            for path, node in nodes.items()
            if node.kind == "file"
            and node not in self._not_own
            and path not in self._their_paths
            and not node.same(self._theirs.get(path))
            and not is_below(path, saved)
        ]

    def _are_shared(self, new: Iterable[Node]) -> bool:
        return all(kind_of(node.path) in self._shared for node in new)

    def _hear(self) -> bool:
        """Read the announcement; return whether it has another capture, or waits for the files that this pod
        announced last.
        """
        since = self._now() if self._new_since is None else self._new_since
        before = self._announced.said
        self._announced.read(self._claim, since)
        said, nodes = self._announced.said, self._captures.nodes
        folders = folders_in(said.paths)
        gone, self._their_folders = self._their_folders - folders, folders
        self._their_paths = set(said.paths)
        theirs = self._their_paths & nodes.keys()
        theirs |= {path for path in nodes if is_below(path, gone) and path not in self._theirs}
        self._theirs = {path: node for path, node in self._theirs.items() if path in nodes}
        self._theirs |= {path: nodes[path] for path in theirs}
        asked = (self._pod, beginning(self._said_etag)) in said.waits_for
        return asked or (said.number, said.paths) != (before.number, before.paths)

    def _answer(self, capture: Capture, *, late: bool, over: bool) -> bool:
        """Send the files that the announced capture lacks, and name them in the pod's manifest; return whether
        nothing is left.
        """
        if not (self._answerable or late) or not self._holds_claim():
            return False
        said = self._announced.said
        own = self._own(capture.nodes)
        known = self._their_folders | folders_in(file.path for file in self._said.files)
        later = set() if late else of_the_next((node.path for node in own), known, self._their_folders)
        if later:
            self._answerable = False
            own = [node for node in own if node.path not in later]
            if {node.path for node in own} == {file.path for file in self._said.files}:
                return False
            nodes = {path: node for path, node in capture.nodes.items() if path not in later}
            capture = replace(capture, nodes=nodes)
        folder = folder_name(max(said.number, 0), self._claim)
        self._answers, self._sent.ended = self._answers + 1, over
        place = answer_place(self._pod, self._process, self._answers)
        stored = self._send(own, capture.busy, f"{folder}/{place}")
        if stored is None or not self._holds_claim():
            return False
        gone = tuple(sorted(self._given - capture.nodes.keys()))
        self._say(PodManifest(said.number, tuple(sorted(later)), files=stored, answer=place, gone=gone))
        self.captures.note_uploaded(capture, Name(self._claim, said.number, None))
        self._sent.keep_only(own)
        if self.refused.text:
            kept = (path for path, node in self._captures.nodes.items() if node in self._not_own)
            self.refused.only({self._folder / path for path in kept})
        self._captures.taken(capture, self._sent.unsent)
        self._noisy = dict.fromkeys((*capture.passed_over, *capture.busy), (None, 0.0))
        self._note_shared(own)
        self._new_since = self._new_since if later else None
        return over or not self._new(over=over)

    def _send(self, own: list[Node], busy: Set[str], place: str) -> tuple[StoredFile, ...] | None:
        """Send the files that the bucket lacks, and return all files; None if a file changed before it was sent."""
        self._due = None
        lacking = [node for node in own if self._sent.get(node) is None]
        keys = keys_of(lacking, place, None, set())
        calm = {node: key for node, key in keys.items() if node.path not in busy}
        try:
            with self._captures.looking():
                if self._voids >= COPY_AFTER:
                    self._sent.copy_aside(calm)
                self._sent.send(calm, self._store.uri(place))
        except (FileChanged, OSError) as error:
            self._voids += 1
            log.info("checkpoint files of this pod: %s", why_unsent(error))
            if isinstance(error, OSError) and (
                isinstance(error, PermissionError) or self._voids > COPY_AFTER
            ):
                path = os.path.relpath(str(error.filename), self._folder)
                self._not_own.update(node for node in own if node.path == path)
                self.refused.add(self._folder / path, error.strerror or repr(error))
            return None
        self._voids = 0
        self._sent.drop_copies()
        stored = [file for node in own if (file := self._sent.get(node))]
        said = {file.path: file for file in self._said.files}
        stored += [
            file
            for node, key in keys.items()
            if node.path in busy and (file := self._sent.send_as_it_is(node, key, said.get(node.path)))
        ]
        if lacking:
            size = sum(node.size for node in lacking)
            log.info(
                "uploaded %d files of this pod to %s (%d bytes)", len(lacking), self._store.uri(place), size
            )
        return tuple(stored)

    def _say_pending(self, paths: Iterable[str]) -> None:
        self._say(replace(self._said, pending=tuple(sorted(paths))))

    def _count_bytes(self, amount: int) -> None:
        """Count bytes that are sent, and let the pod of rank 0 know once a minute that bytes flow."""
        with self._lock:
            self.bytes_uploaded += amount
            if not self._said.pending or self._now() - self._said_at < LATE_SECONDS:
                return
            with suppress(S3Error):
                self._say(replace(self._said, sent=self.bytes_uploaded))

    def _say(self, said: PodManifest) -> None:
        self._said_etag = self._store.put_bytes(pod_manifest_key(self._claim, self._pod), said.to_json())
        self._said, self._said_at = said, self._now()
