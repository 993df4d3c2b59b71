"""Uploads what a pod's program writes to its workspace: complete files as a whole, and growing files in segments."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dtj_trainer.artifacts import model_manifest
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.fenced_put import put_fenced
from dtj_trainer.artifacts.folder_names import FolderNames
from dtj_trainer.artifacts.growing import COSTLY_SHARE, State, state_of
from dtj_trainer.artifacts.growing_upload import GrowingUploader
from dtj_trainer.artifacts.pass_errors import PassErrors
from dtj_trainer.artifacts.refused_files import RefusedFiles
from dtj_trainer.artifacts.store import ABSENT, Store
from dtj_trainer.artifacts.upload_rules import Growing, Rule, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.multipart import Put

log = logging.getLogger(__name__)

TRIES_AT_END = 3
"""Uploads of a file that changes meanwhile, after the program's end: then its content is taken as it is."""


class Clock(Protocol):
    """The two clocks of the module `time`, so that tests can replace them."""

    def monotonic(self) -> float:
        """Return monotonic seconds."""

    def time(self) -> float:
        """Return seconds since 1970."""


@dataclass
class _Known:
    """The state of one file that is uploaded as a whole. Times are monotonic seconds."""

    uploaded: State | None = None
    uploaded_at: float = -math.inf
    duration: float = 0.0
    changed_at_end: int = 0
    """How often the file changed during its upload after the program's end."""
    etag: str = ABSENT
    """The ETag that this process's last put returned, or ABSENT."""
    sha256: str = ""
    """The SHA-256 of the bytes that the last put sent."""

    def note(self, put: Put) -> str:
        """Remember what was sent; return the ETag."""
        self.sha256 = put.sha256
        return put.etag


class FileUploader:
    """Uploads the files of some sources into the bucket, pass by pass, from one thread."""

    def __init__(self, store: Store, sources: list[Source], clock: Clock = time) -> None:
        self.store = store
        self.sources = sources
        self.bytes_uploaded = 0
        self._clock = clock
        self._names = FolderNames()
        self._growing = GrowingUploader(store, clock.monotonic, self._count_bytes)
        self._known: dict[Path, _Known] = {}
        self._uploaded: set[str] = set()
        self._named: dict[Path, dict[Path, State]] = {}
        """The files of each folder whose manifest is uploaded, as that manifest describes them."""
        self._torn: set[Path] = set()
        self.refused = RefusedFiles(clock.monotonic)
        self._lock = threading.Lock()

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload what is due. After the program's end every file is due, except `unbroken` files that changed shortly
        before the program was killed.

        Returns True when nothing is left to upload at this moment. A file that the store refuses for a lasting reason
        is among `refused`, and does not prevent the upload of other files. After the program's end, the refusal is an
        error too if the source is essential. Another error ends the pass over that source, and the pass goes on with
        the other sources. The pass raises the worst error at its end. A source that a later attempt has taken over is
        skipped without an error, because the other sources still belong to this pod.
        """
        over = ended or died_ns is not None
        self.store.uploads.abort_changed()
        errors = PassErrors(self.refused, last=over)
        growing = [source for source in self.sources if isinstance(source.rule, Growing)]
        all_done = self._growing.upload(growing, self._names, errors, over=over)
        for source in self.sources:
            if isinstance(source.rule, Rule):
                all_done &= self._upload_source(source, source.rule, over, died_ns, errors)
        errors.raise_worst()
        return all_done

    def note_torn(self, paths: Iterable[Path]) -> None:
        """Note that files are incomplete and stay so: they are not uploaded, unless by segments."""
        self._torn |= set(paths)

    def uploaded_below(self, key_prefix: str) -> bool:
        """Return whether this process has uploaded something of the source with that key."""
        return key_prefix in self._uploaded or key_prefix in self._growing.uploaded

    def _upload_source(
        self, source: Source, rule: Rule, over: bool, died_ns: int | None, errors: PassErrors
    ) -> bool:
        """Upload what is due of a source; return whether nothing more is due for now."""
        done = True
        manifest = source.path / model_manifest.NAME if rule.manifest else None
        files = [(path, key) for path, key in source.files(self._names) if path != manifest]
        for path, key in files:
            if errors.passes_over(source, path):
                continue
            with errors.of(source, path):
                done &= self._consider(source, rule, path, key, over, died_ns)
        if manifest and files:
            with errors.of(source):
                done &= self._consider_manifest(source, manifest, [path for path, _ in files])
        return done

    def _consider_manifest(self, source: Source, manifest: Path, files: list[Path]) -> bool:
        """Upload the manifest of a folder whose files are all uploaded as they are; return whether nothing is left.

        A manifest in the folder is not uploaded: its files may have changed before their upload.
        """
        present = {path: state_of(path.stat()) for path in files}
        known_files = {path: known for path in files if (known := self._known.get(path))}
        uploaded = {path: known.uploaded for path, known in known_files.items()}
        if uploaded != present or present == self._named.get(source.path):
            return True  # Whether a file is left was asked before.
        sums = {path: (present[path].size, known.sha256) for path, known in known_files.items()}
        content = model_manifest.manifest_with(source.path, sums).to_json()
        known = self._known.setdefault(manifest, _Known())
        key = f"{source.key}/{model_manifest.NAME}"
        self._put(source, known, key, lambda replaces: self.store.put_bytes(key, content, replaces=replaces))
        self._count_bytes(len(content))
        self._named[source.path] = present
        return True

    def _consider(
        self, source: Source, rule: Rule, path: Path, key: str, over: bool, died_ns: int | None
    ) -> bool:
        """Upload one file if it is due; return whether nothing more of it is due for now."""
        known = self._known.setdefault(path, _Known())
        state = state_of(path.stat())
        as_it_was = path in self._torn or known.changed_at_end >= TRIES_AT_END
        if as_it_was or state == known.uploaded or (rule.only_once and known.uploaded):
            return True
        if died_ns is not None and rule.unbroken and state.changed_ns > died_ns - rule.quiet * 1e9:
            return True  # The program may have been killed in the middle of this file.
        if not over and not self._due(rule, known, state):
            return False
        started = self._clock.monotonic()
        self._put(
            source,
            known,
            key,
            lambda replaces: known.note(
                self.store.put_whole(key, path, self._count_bytes, replaces=replaces)
            ),
        )
        if state_of(path.stat()) != state:
            known.changed_at_end += over
            if known.changed_at_end == TRIES_AT_END:
                log.warning("%s is kept as it was: it changes although the program has ended", path)
            return known.changed_at_end >= TRIES_AT_END
        self.refused.accepted(path)
        known.uploaded = state
        known.uploaded_at = self._clock.monotonic()
        known.duration = known.uploaded_at - started
        self._uploaded.add(source.key)
        return True

    def _put(self, source: Source, known: _Known, key: str, put: Callable[[str | None], str]) -> None:
        """Call `put` with the condition for what it may replace."""
        if source.fence is None:
            put(None)
            return
        try:
            known.etag = put_fenced(self.store, source.fence, key, known.etag, put)
        except Superseded:
            self.store.abort_uploads(key)
            raise

    def _due(self, rule: Rule, known: _Known, state: State) -> bool:
        quiet_for = self._clock.time() - state.changed_ns / 1e9
        rest = max(rule.interval, COSTLY_SHARE * known.duration)
        settled = rule.quiet == 0 or quiet_for >= rule.quiet
        return settled and self._clock.monotonic() - known.uploaded_at >= rest

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount
