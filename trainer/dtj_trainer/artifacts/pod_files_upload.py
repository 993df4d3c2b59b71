"""Uploads the files of the checkpoints folder that this pod alone has; see `pod_manifest`."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.fence import claim_of_attempt
from dtj_trainer.artifacts.folder_pictures import FolderPictures
from dtj_trainer.artifacts.look import is_below, kind_of
from dtj_trainer.artifacts.manifest import PODS, ManifestError, folder_name
from dtj_trainer.artifacts.picture import Picture
from dtj_trainer.artifacts.pod_manifest import (
    ANNOUNCED,
    LATE_AT_END_SECONDS,
    LATE_SECONDS,
    PodManifest,
    folders_in,
    of_the_next,
    pod_manifest_key,
)
from dtj_trainer.artifacts.s3 import NoSuchKey
from dtj_trainer.artifacts.sent_files import Changed, SentFiles
from dtj_trainer.artifacts.snapshot import keys_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Set
    from pathlib import Path

    from dtj_trainer.artifacts.look import Node
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

_MOST_BYTES = 64 * 2**20
_LONGEST_PAUSE_SECONDS = 10.0


class _Announced:
    """What the pod with the claim announces. For one thread."""

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
    """Uploads, in passes, what this pod has in its checkpoints folder and the pod with the claim has not.

    `job` is the job's prefix with the claim at `claim_key`, `store` its checkpoints prefix. One thread makes all
    passes; other threads may read `bytes_uploaded`. A pod without new files makes no request. A pod that once had the
    same paths as the pod with the claim makes one request, a minute after a new file of such a kind.
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
        self._pictures = FolderPictures(folder, settle_seconds, program_runs)
        self._lock = threading.Lock()
        self.bytes_uploaded = 0
        self._not_own: set[Node] = set()
        """Files that all pods have restored, or that can't be read."""
        self._answers = 0
        self._claim = -1
        self._begin_claim(-1)

    def _begin_claim(self, claim: int) -> None:
        """Forget what another process with the claim was told, and may have removed from the bucket."""
        self._claim = claim
        self._sent = SentFiles(self._store, self._folder, self._count_bytes)
        self._announced = _Announced(self._store, self._now)
        self._said, self._said_etag = PodManifest(), ""
        self._new_since: float | None = None
        self._theirs: set[str] = set()
        """The paths and folders on this disk that the pod with the claim has had: they are not this pod's."""
        self._shared: set[str] = set()
        """The kinds of the files among them."""
        self._noisy: set[str] = set()
        """Files that change all the time: they do not make an answer necessary."""
        self._due: Picture | None = None
        self._answerable = False
        """Whether an announcement came after the first new file."""

    def start(self) -> None:
        """Begin to watch the folder. Call it before the program writes there."""
        self._pictures.start()

    def note_restored(self, paths: Set[str]) -> None:
        """Take these paths of the folder as those of a snapshot that all pods have restored."""
        self._not_own = set(self._pictures.begin_from(paths).values())

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload what is complete, and name it in the pod's manifest; return True when nothing is left.

        Raises S3Error.
        """
        over = ended or died_ns is not None
        self._pictures.look(over=over)
        new = self._new(over=over)
        if not new and not self._said.pending:
            self._new_since = None
            return True
        self._new_since = self._now() if self._new_since is None else self._new_since
        late = self._now() - self._new_since >= (LATE_AT_END_SECONDS if over else LATE_SECONDS)
        shared = not over and not self._said.pending and self._are_shared(new)
        if shared and not late:
            return False
        claim = claim_of_attempt(self._job, self._claim_key, self._attempt)
        if claim is None:
            return False
        if claim.number != self._claim:
            self._begin_claim(claim.number)
        if self._due is None:
            found = self._pictures.due(ended=ended, died_ns=died_ns)
            self._due = found if isinstance(found, Picture) else None
        if over and self._due is None:  # What is there is not complete, and never will be.
            if self._said.pending:
                self._say(PodManifest(self._said.number, files=self._said.files))
            return True
        if not self._said.pending:
            self._hear()
            if shared and not self._new(over=over):
                return True
            self._answerable = False
            pending = tuple(sorted(node.path for node in new))
            self._say(PodManifest(self._said.number, pending, files=self._said.files))
        return self._due is not None and self._answer(self._due, late=late, over=over)

    def _new(self, *, over: bool) -> list[Node]:
        """Return the new files that may be this pod's alone."""
        last, saved = self._pictures.last, self._pictures.marks.keys()
        return [
            node
            for path, node in self._pictures.nodes.items()
            if node.kind == "file"
            and not node.same(last.get(path))
            and path not in self._theirs
            and node not in self._not_own
            and (over or path not in self._noisy)
            and not is_below(path, saved)
        ]

    def _are_shared(self, new: Iterable[Node]) -> bool:
        return all(kind_of(node.path) in self._shared for node in new)

    def _hear(self) -> bool:
        """Read what is announced; return whether that is another picture, or waits for what this pod said last."""
        since = self._now() if self._new_since is None else self._new_since
        before = self._announced.said
        self._announced.read(self._claim, since)
        said = self._announced.said
        paths = set(said.paths)
        self._theirs = (self._theirs | paths | folders_in(paths)) & self._pictures.nodes.keys()
        asked = (self._pod, self._said_etag) in said.waits_for
        return asked or (said.number, said.paths) != (before.number, before.paths)

    def _answer(self, picture: Picture, *, late: bool, over: bool) -> bool:
        """Answer what is announced; return whether nothing is left."""
        self._answerable |= self._hear()
        if not self._answerable and not late:
            return False
        said = self._announced.said
        folders = folders_in(said.paths)
        gone = self._theirs - folders - set(said.paths)
        files = [
            node
            for node in picture.nodes.values()
            if node.kind == "file"
            and node not in self._not_own
            and not is_below(node.path, self._pictures.marks.keys())
        ]
        own = [node for node in files if node.path not in self._theirs and not is_below(node.path, gone)]
        known = folders | folders_in(file.path for file in self._said.files)
        later = set() if late else of_the_next((node.path for node in own), known, folders)
        if later:
            self._answerable = False
            own = [node for node in own if node.path not in later]
            picture = replace(
                picture, nodes={path: node for path, node in picture.nodes.items() if path not in later}
            )
        if later and {node.path for node in own} == {file.path for file in self._said.files}:
            return False
        self._answers += 1
        folder = folder_name(max(said.number, 0), self._claim)
        lacking = [node for node in own if self._sent.get(node) is None]
        # A key of its own for each answer: the pod with the claim may be removing what earlier answers named.
        keys = keys_of(lacking, f"{folder}/{PODS}/{self._pod}/{self._answers}", None, set())
        busy = [node for node in lacking if node.path in picture.busy]
        calm = {node: key for node, key in keys.items() if node.path not in picture.busy}
        self._due = None
        try:
            with self._pictures.looking():
                self._sent.send(calm, self._store.uri(folder))
        except PermissionError as error:
            path = os.path.relpath(str(error.filename), self._folder)
            self._not_own.update(node for node in own if node.path == path)
            log.warning("%s is not saved: %s", error.filename, error.strerror)
            return False
        except (Changed, OSError) as error:
            log.info("a file changed while it was uploaded: %s", error)
            return False
        stored = [file for node in own if (file := self._sent.get(node))]
        stored += [file for node in busy if (file := self._sent.send_as_it_is(node, keys[node]))]
        claim = claim_of_attempt(self._job, self._claim_key, self._attempt)
        if claim is None or claim.number != self._claim:
            return False
        self._say(PodManifest(said.number, tuple(sorted(later)), files=tuple(stored)))
        self._sent.keep_only(own)
        self._pictures.taken(picture)
        self._noisy = {*picture.passed_over, *picture.busy}
        mine = {kind_of(node.path) for node in own}
        self._shared |= {kind_of(node.path) for node in files if node.path in self._theirs} - mine
        self._new_since = self._new_since if later else None
        if lacking:
            size = sum(node.size for node in lacking)
            log.info("uploaded %d files of this pod for checkpoint %s (%d bytes)", len(lacking), folder, size)
        return over or not self._new(over=over)

    def _say(self, said: PodManifest) -> None:
        self._said_etag = self._store.put_bytes(pod_manifest_key(self._claim, self._pod), said.to_json())
        self._said = said

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount
