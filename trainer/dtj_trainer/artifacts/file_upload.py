"""Uploads what a pod's program writes to its workspace: complete files as a whole, and growing files in segments."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from dtj_trainer import contract
from dtj_trainer.artifacts import model_manifest
from dtj_trainer.artifacts.fence import Superseded, put_fenced
from dtj_trainer.artifacts.growing import COSTLY_SHARE, FileState, GrowingUploader, state_of
from dtj_trainer.artifacts.store import ABSENT, Store
from dtj_trainer.artifacts.upload_rules import (
    BESIDE_EVENTS,
    EVENTS,
    LOG,
    METRICS,
    MODEL,
    ONCE,
    TRACKING,
    UTILISATION,
    UTILISATION_EVENTS,
    FolderNames,
    Growing,
    PassErrors,
    RefusedFiles,
    Rule,
    UploadSource,
    is_event_file,
    is_no_event_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.multipart import Uploaded
    from dtj_trainer.artifacts.upload_rules import Begin


log = logging.getLogger(__name__)

TRIES_AT_END = 3
"""How often a file that still changes after the program's end is uploaded. The bucket keeps the last upload."""


class Clock(Protocol):
    """The two clocks of the module `time`, so that tests can replace them."""

    def monotonic(self) -> float:
        """Return monotonic seconds."""

    def time(self) -> float:
        """Return seconds since 1970."""


@dataclass
class _Known:
    """The state of one file that is uploaded as a whole. Times are monotonic seconds."""

    uploaded: FileState | None = None
    uploaded_at: float = -math.inf
    duration: float = 0.0
    changed_at_end: int = 0
    """How often the file changed during its upload after the program's end."""
    etag: str = ABSENT
    """The ETag that this process's last put returned, or ABSENT."""
    sha256: str = ""
    """The SHA-256 of the bytes that the last put sent."""

    def note(self, put: Uploaded) -> str:
        """Remember what was sent; return the ETag."""
        self.sha256 = put.sha256
        return put.etag


class FileUploader:
    """Uploads the files of some sources into the bucket, pass by pass, from one thread."""

    def __init__(self, store: Store, sources: list[UploadSource], clock: Clock = time) -> None:
        self.store = store
        self.sources = sources
        self.bytes_uploaded = 0
        self._clock = clock
        self._names = FolderNames()
        self._growing = GrowingUploader(store, clock.monotonic, self._count_bytes)
        self._known: dict[Path, _Known] = {}
        self._uploaded: set[str] = set()
        self._named: dict[Path, dict[Path, FileState]] = {}
        """By folder whose manifest is uploaded: its files as the manifest describes them."""
        self._torn: dict[Path, FileState] = {}
        """Incomplete files, each with the state in which the file was incomplete."""
        self._before_round: tuple[int | None] | None = None
        """The argument of `begin_round`, until a pass takes the new round into account."""
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
        if self._before_round is not None:
            self._begin_round(*self._before_round)
            self._before_round = None
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
        """Note that files are incomplete: until a file changes, only an upload in segments sends the file."""
        for path in paths:
            with suppress(OSError):
                self._torn[path] = state_of(path.stat())

    def begin_round(self, died_ns: int | None) -> None:
        """Note that new programs write from now on. A file that the former programs left incomplete is not uploaded
        until the file changes.

        died_ns: when the former programs were killed; None: they ended by themselves.
        """
        self._before_round = (died_ns,)

    def _begin_round(self, died_ns: int | None) -> None:
        for source in self.sources:
            if died_ns is not None and isinstance(source.rule, Rule) and source.rule.unbroken:
                for path, _ in source.files(self._names):
                    with suppress(OSError):
                        if _is_broken(state := state_of(path.stat()), source.rule, died_ns):
                            self._torn[path] = state
        for known in self._known.values():
            known.changed_at_end = 0

    def uploaded_below(self, key_prefix: str) -> bool:
        """Return whether this process has uploaded something of the source with that key."""
        return key_prefix in self._uploaded or key_prefix in self._growing.uploaded

    def _upload_source(
        self, source: UploadSource, rule: Rule, over: bool, died_ns: int | None, errors: PassErrors
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

    def _consider_manifest(self, source: UploadSource, manifest: Path, files: list[Path]) -> bool:
        """Upload the manifest of a folder once all its files are uploaded and unchanged; return whether nothing is
        left.

        The manifest is made from what was uploaded. A manifest in the folder is not uploaded: files may have changed
        after the program wrote it.
        """
        present = {path: state_of(path.stat()) for path in files}
        known_files = {path: known for path in files if (known := self._known.get(path))}
        uploaded = {path: known.uploaded for path, known in known_files.items()}
        if uploaded != present or present == self._named.get(source.path):
            # A file is not uploaded yet, so that a later pass comes here again, or the stored manifest is current.
            return True
        sums = {path: (present[path].size, known.sha256) for path, known in known_files.items()}
        content = model_manifest.manifest_with(source.path, sums).to_json()
        known = self._known.setdefault(manifest, _Known())
        key = f"{source.key}/{model_manifest.NAME}"
        self._put(source, known, key, lambda replaces: self.store.put_bytes(key, content, replaces=replaces))
        self._count_bytes(len(content))
        self._named[source.path] = present
        return True

    def _consider(
        self, source: UploadSource, rule: Rule, path: Path, key: str, over: bool, died_ns: int | None
    ) -> bool:
        """Upload one file if it is due; return whether nothing more of it is due for now."""
        known = self._known.setdefault(path, _Known())
        state = state_of(path.stat())
        as_it_was = state == self._torn.get(path) or known.changed_at_end >= TRIES_AT_END
        if as_it_was or state == known.uploaded or (rule.only_once and known.uploaded):
            return True
        if died_ns is not None and rule.unbroken and _is_broken(state, rule, died_ns):
            return True  # The program may have been killed while it wrote this file.
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
                log.warning(
                    "%s changes although the program has ended: the bucket keeps the content of the last upload",
                    path,
                )
            return known.changed_at_end >= TRIES_AT_END
        self.refused.accepted(path)
        known.uploaded = state
        known.uploaded_at = self._clock.monotonic()
        known.duration = known.uploaded_at - started
        self._uploaded.add(source.key)
        return True

    def _put(self, source: UploadSource, known: _Known, key: str, put: Callable[[str | None], str]) -> None:
        """Call `put` with the ETag of the object that it may replace, or with None where the source has no fence."""
        if source.fence is None:
            put(None)
            return
        try:
            known.etag = put_fenced(self.store, source.fence, key, known.etag, put)
        except Superseded:
            self.store.abort_uploads(key)
            raise

    def _due(self, rule: Rule, known: _Known, state: FileState) -> bool:
        quiet_for = self._clock.time() - state.changed_ns / 1e9
        rest = max(rule.interval, COSTLY_SHARE * known.duration)
        settled = rule.quiet == 0 or quiet_for >= rule.quiet
        return settled and self._clock.monotonic() - known.uploaded_at >= rest

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount


def _is_broken(state: FileState, rule: Rule, died_ns: int) -> bool:
    # Compute in integers: a float can't hold the nanoseconds since 1970 exactly.
    return state.changed_ns > died_ns - round(rule.quiet * 1e9)


# pod_sources lists what a pod uploads besides checkpoints. The list depends on the pod's part in the job.

METRICS_KEYS = {"primary": contract.METRICS_FILE, "evaluator": contract.EVALUATOR_METRICS_FILE}


@dataclass(frozen=True)
class PodFiles:
    """Where a pod's files are. The logs in `log_names` are uploaded; None means all logs."""

    root: Path
    config_dir: Path
    part: contract.Part
    attempt: int
    log_names: tuple[str, ...] | None = None
    pod: str | None = None
    """`<role>-<index>` of this pod if its utilisation is sampled."""
    archives: tuple[tuple[str, Path], ...] = ()
    """The archives of `spec.code` that are in no bucket yet, each with its name in the bucket."""


def pod_sources(files: PodFiles, fence: Fence | None, metrics: Begin | None = None) -> list[UploadSource]:
    """Return the files of a pod that are uploaded. `metrics`: where the stored metrics of earlier attempts end."""
    root = files.root
    sources = [*_logs(files), *_utilisation(files)]
    if key := METRICS_KEYS.get(files.part):
        # Chief and evaluator upload to one folder. Their keys differ, because the names of event files contain host
        # and time.
        events = UploadSource(root / contract.TENSORBOARD, contract.TENSORBOARD, EVENTS, fence, is_event_file)
        sources += [
            UploadSource(root / contract.METRICS_FILE, key, METRICS, fence, begin=metrics),
            events,
            replace(events, rule=BESIDE_EVENTS, takes=is_no_event_file),
        ]
    if files.part == "primary":
        sources += [
            UploadSource(files.config_dir / contract.JOB_FILE, contract.JOB_FILE, ONCE, fence),
            UploadSource(root / contract.MODEL, contract.MODEL, MODEL, fence, essential=True),
            UploadSource(root / contract.TRACKING_FILE, contract.TRACKING_FILE, TRACKING, fence),
        ]
        sources += [UploadSource(path, key, ONCE, fence) for key, path in files.archives]
    return sources


def _logs(files: PodFiles) -> list[UploadSource]:
    folder, key = files.root / contract.LOGS, f"{contract.LOGS}/attempt-{files.attempt}"
    if files.log_names is None:
        return [UploadSource(folder, key, LOG)]
    stacks = UploadSource(folder, key, LOG, takes=_has_stacks)
    return [stacks, *(UploadSource(folder / name, f"{key}/{name}", LOG) for name in files.log_names)]


def _utilisation(files: PodFiles) -> list[UploadSource]:
    """Return the utilisation files that dtj-launch writes. No other pod of the attempt uses their keys."""
    if files.pod is None:
        return []
    folder, key = files.root / contract.UTILISATION, f"{contract.UTILISATION}/attempt-{files.attempt}"
    lines, events = f"{files.pod}.jsonl", f"{contract.TENSORBOARD}/{key}/{files.pod}"
    return [
        UploadSource(folder / lines, f"{key}/{lines}", UTILISATION),
        UploadSource(folder / contract.TENSORBOARD, events, UTILISATION_EVENTS, takes=is_event_file),
    ]


def _has_stacks(name: str) -> bool:
    return fnmatchcase(name, contract.STACKS_FILES)
