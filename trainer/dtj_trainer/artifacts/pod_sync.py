"""Synchronizes all artifacts of one pod: restore at its start, uploads while it runs and at its end."""

from __future__ import annotations

import logging
import math
import socket
import time
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.backoff import Deadline, Result, retry_transient
from dtj_trainer.artifacts.checkpoint_mirror import POLL_SECONDS, CheckpointMirror
from dtj_trainer.artifacts.checkpoint_parts import PartUploader
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence, Superseded
from dtj_trainer.artifacts.file_fetch import Near
from dtj_trainer.artifacts.file_upload import FileUploader
from dtj_trainer.artifacts.history import HistoryWriter
from dtj_trainer.artifacts.multipart import Uploads
from dtj_trainer.artifacts.pace import Pace
from dtj_trainer.artifacts.peer_client import CheckpointPeers
from dtj_trainer.artifacts.peer_server import PeerServer
from dtj_trainer.artifacts.picture_watch import PictureWatch
from dtj_trainer.artifacts.pod_files_upload import PodFilesUploader
from dtj_trainer.artifacts.pod_sources import METRICS_KEYS, PodFiles, pod_sources
from dtj_trainer.artifacts.restore import RESUME_NEVER, Restored
from dtj_trainer.artifacts.restore_choice import restore_checkpoint
from dtj_trainer.artifacts.room import Room
from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error
from dtj_trainer.artifacts.snapshot import StepAt
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.artifacts.stored_segments import restore_growing
from dtj_trainer.artifacts.sync_loop import SyncLoop
from dtj_trainer.artifacts.sync_settings import SyncSettings
from dtj_trainer.artifacts.unuploaded import Unuploaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.newest_picture import Complete
    from dtj_trainer.artifacts.upload_rules import Begin

log = logging.getLogger(__name__)

CLOSING_SECONDS = 5.0
"""Seconds to wait at the end for passes under way. None of them sends anything more."""

CLAIM_KEYS = {"primary": contract.CLAIM_FILE, "evaluator": contract.EVALUATOR_CLAIM_FILE}
"""The evaluator restarts alone, so that its attempts differ from the chief's."""


class PodSync:
    """Restores, then uploads in background threads. No upload ever blocks the program."""

    def __init__(
        self,
        settings: SyncSettings,
        step_at: StepAt,
        on_superseded: Callable[[], None] = lambda: None,
        programs_run: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_superseded`: see `Fence`. `programs_run`: whether no program of the pod is dead or about to die.

        Raises ValueError for a malformed `uri`.
        """
        self._settings = settings
        self._pace = Pace(beside_program=True, bytes_per_second=settings.upload_bytes_per_second)
        uploads = Uploads(self._pace)
        self._store: Store | None = open_store(settings.uri, uploads=uploads) if settings.uri else None
        claim = CLAIM_KEYS.get(settings.part)
        self._fence = (
            Fence(self._store, claim, settings.attempt, on_superseded) if self._store and claim else None
        )
        self._history = (
            HistoryWriter(self._store, settings.history) if self._store and settings.history else None
        )
        self._checkpoints: CheckpointUploader | None = None
        self._parts: PartUploader | None = None
        self._pod_files: PodFilesUploader | None = None
        self._watch: PictureWatch | None = None
        self._mirror: CheckpointMirror | None = None
        self._mirroring: SyncLoop | None = None
        self._files: FileUploader | None = None
        self._loops: list[SyncLoop] = []
        self._step_at = step_at
        self._programs_run = programs_run
        self._died = False
        self._restored: Restored | None = None
        self._metrics_begin: Begin | None = None
        self._unuploaded, self._room = Unuploaded(settings), Room({settings.pod or "", socket.gethostname()})
        self._server: PeerServer | None = None

    def make_folders(self) -> None:
        """Create the workspace's folders."""
        for name in contract.FOLDERS:
            (self._settings.root / name).mkdir(parents=True, exist_ok=True)

    def restore(self, timeout: float, sleep: Callable[[float], None] = time.sleep) -> Restored | None:
        """Claim the prefix for this attempt; restore the newest good checkpoint and the pod's metrics.

        The evaluator restores no checkpoint, because it mirrors checkpoints while it runs.

        Waits up to `timeout` seconds without a received byte, and then raises S3Error. A wrong bucket or wrong
        credentials raise S3Error at once, so that a job never starts from 0 by mistake. Raises Superseded when a
        later attempt has begun.
        """
        if self._store is None:
            log.info("no artifacts are kept: the job has no spec.artifacts.uri")
            return None
        store, settings = self._store, self._settings
        near = self._near()

        def restore_metrics(key: str) -> None:
            path, resumes = settings.root / contract.METRICS_FILE, settings.resume != RESUME_NEVER
            self._metrics_begin = restore_growing(store, key, path, content=resumes)

        def on_wait(error: S3Error, delay: float) -> None:
            log.warning("restore waits %.1f s for S3: %s", delay, error)

        def retried(step: Callable[[], Result]) -> Result:
            """Repeat only this step: a failure of the next one must not bring a checkpoint again."""
            return retry_transient(
                step, timeout=timeout, progress=lambda: store.received.total, on_wait=on_wait, sleep=sleep
            )

        if self._fence:
            # Claim before the restore lists checkpoints: an earlier attempt starts no upload after the claim.
            retried(self._fence.hold)
        if settings.part != "evaluator":
            self._restored = retried(lambda: restore_checkpoint(store, settings, near, self._fence, timeout))
        if metrics := METRICS_KEYS.get(settings.part):
            retried(lambda: restore_metrics(metrics))
        if settings.tracked:
            retried(lambda: self._restore_tracking(store))
        if self._history and self._fence and settings.part == "primary":
            self._history.begin(self._fence)
        return self._restored

    def _near(self) -> Near:
        """Return where files of checkpoints may be. The job's other pods may read them here from now on."""
        hosts = self._settings.peers
        if hosts is None:
            return Near(room=self._room)
        if self._server is None:
            try:
                self._server = PeerServer(hosts)
            except OSError as error:  # For example another pod in the host's network.
                log.warning("no files of checkpoints from other pods: port %d: %s", hosts.port, error)
                return Near(room=self._room)
            self._server.start()
        return Near(CheckpointPeers(hosts), self._server.files, self._room)

    def _restore_tracking(self, store: Store) -> None:
        """Restore tracking.json. All attempts of a job belong to one run, also attempts that train from step 0."""
        path = self._settings.root / contract.TRACKING_FILE
        try:
            path.write_bytes(store.get_bytes(contract.TRACKING_FILE))
        except NoSuchKey:
            path.unlink(missing_ok=True)

    def start(self) -> None:
        """Start to upload in the background."""
        if self._store is None:
            self._watch_pictures()
            return
        settings, root, fence = self._settings, self._settings.root, self._fence
        files = PodFiles(
            root,
            settings.config_dir,
            settings.part,
            settings.attempt,
            settings.log_names,
            settings.pod,
            settings.archives,
        )
        self._files = FileUploader(self._store, pod_sources(files, fence, self._metrics_begin))
        self._loops.append(SyncLoop.of("uploading files", self._files))
        if settings.part == "primary" and fence:
            self._checkpoints = CheckpointUploader(
                settings.checkpoints,
                self._store.below(contract.CHECKPOINTS),
                fence=fence,
                keep=settings.keep,
                keep_every=settings.keep_every,
                keep_bytes=settings.keep_bytes,
                settle_seconds=settings.settle_seconds,
                step_at=self._step_at,
                program_runs=self._program_runs,
                shards=settings.shards,
            )
            if self._restored:
                self._checkpoints.note_restored(self._restored.manifest, own=self._restored.own)
            self._checkpoints.start()
            self._loops.append(SyncLoop.of("uploading checkpoints", self._checkpoints))
        elif settings.part == "evaluator":
            self._mirror = CheckpointMirror(
                settings.checkpoints,
                self._store.below(contract.CHECKPOINTS),
                keep=settings.keep,
                lineage=settings.lineage,
            )
            # The mirror is not in `_loops`, because `finish` must not wait for it.
            self._mirroring = SyncLoop("mirroring checkpoints", self._mirror.mirror_pass, POLL_SECONDS)
            self._mirroring.start()
        else:
            self._upload_parts(self._store)
        for loop in self._loops:
            loop.start()

    def _watch_pictures(self) -> None:
        settings = self._settings
        if settings.part != "primary" and not settings.shards:
            return
        self._watch = PictureWatch(
            settings.checkpoints,
            attempt=settings.attempt,
            settle_seconds=settings.settle_seconds,
            step_at=self._step_at,
            program_runs=self._program_runs,
        )
        self._watch.start()
        loop = SyncLoop("watching checkpoints", self._watch.watch_pass, beside_program=True)
        self._loops.append(loop)
        loop.start()

    def newest_picture(self) -> Complete | None:
        """Return the newest complete picture of the checkpoints folder that this pod can put back."""
        source = self._checkpoints or self._pod_files or self._watch
        return source.pictures.now(source.nodes) if source else None

    def _upload_parts(self, store: Store) -> None:
        folder, settings = self._settings.checkpoints, self._settings
        self._parts = PartUploader(
            folder,
            store,
            store.below(contract.CHECKPOINTS),
            claim_key=contract.CLAIM_FILE,
            attempt=settings.attempt,
            keep=settings.keep,
            pod=socket.gethostname(),
        )
        if self._restored:
            self._unuploaded.restored = {path.name for path in folder.iterdir()}
            self._parts.note_restored(self._restored.manifest)
        self._loops.append(SyncLoop.of("uploading parts of checkpoints", self._parts))
        if settings.shards:
            self._pod_files = PodFilesUploader(
                folder,
                store,
                store.below(contract.CHECKPOINTS),
                claim_key=contract.CLAIM_FILE,
                attempt=settings.attempt,
                pod=settings.pod or socket.gethostname(),
                settle_seconds=settings.settle_seconds,
                program_runs=self._program_runs,
            )
            if self._restored:
                self._pod_files.note_restored(self._restored.manifest)
            self._pod_files.start()
            self._loops.append(SyncLoop.of("uploading checkpoint files of this pod", self._pod_files))

    def _program_runs(self) -> bool:
        return not self._died and self._programs_run()

    def warn_of_unuploaded(self) -> None:
        """Warn once of artifacts on a pod that does not upload them."""
        if self._store:
            self._unuploaded.warn()

    def program_died(self, at_ns: int) -> None:
        """Record that the program was killed at this wall-clock time. What was incomplete then stays incomplete."""
        self._died = True
        for loop in self._loops:
            loop.program_died(at_ns)
        self._pace.hurry()

    def note_torn(self, paths: Iterable[Path]) -> None:
        """Note that files are incomplete and stay so: the processes that wrote them were killed."""
        paths = list(paths)
        for each in (self._files, self._checkpoints, self._pod_files, self._watch):
            if each:
                each.note_torn(paths)

    def finish(
        self,
        timeout: float,
        *,
        ended: bool,
        at_most: bool = False,
        until: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Upload all that is left; `ended` says that the program ended by itself, with whatever exit code.

        Gives up after `timeout` seconds without progress, or, with `at_most`, after `timeout` seconds in all; in any
        case when `until` has no more seconds. Raises S3Error, which says what could not be uploaded and why, or
        Superseded when a later attempt has the claim.
        """
        progress = None if at_most else lambda: sum(loop.progress for loop in self._loops)
        if not ended:
            self.program_died(time.time_ns())
        asked = [(loop, loop.ask(ended=ended)) for loop in self._loops]
        deadline = Deadline(timeout, progress, until)
        self._pace.hurry()  # After `ask`: an upload that stops for a handover needs the loop's next thread.
        errors: list[S3Error] = []
        for loop, number in asked:
            try:
                loop.wait(number, deadline.left)
            except S3Error as error:
                errors.append(error)  # Continue: the other loops may still upload the last checkpoint.
        if self.superseded:
            raise self.superseded
        if errors:
            raise errors[0]

    def record_success(self, by: str, report: contract.Report, seconds: float) -> bool:
        """Record the job's success as the pod that decides it, `<role>-<index>`; return whether the bucket has it.

        Waits for the bucket for at most so many seconds.
        """
        return self._history is not None and self._history.end(
            by, self._settings.attempt, report, self._fence, seconds
        )

    def close(self, seconds: float = math.inf) -> None:
        """End uploads, servers and threads, and leave no parts of files in the bucket.

        `seconds`: the limit for that.
        """
        loops = [*self._loops, *([self._mirroring] if self._mirroring else [])]
        for loop in loops:
            loop.stop()
        if self._store:
            self._store.uploads.close(seconds)
        if self._server:
            self._server.close()
        for each in (self._checkpoints, self._pod_files, self._watch):
            if each:
                each.close()
        deadline = time.monotonic() + min(seconds, CLOSING_SECONDS)
        for loop in loops:
            loop.join(max(deadline - time.monotonic(), 0))

    @property
    def superseded(self) -> Superseded | None:
        """Set when a later attempt has the claim, and never reset."""
        return self._fence.superseded if self._fence else None

    def artifacts(self) -> contract.Artifacts:
        """Return what is in the bucket already."""
        if self._store is None:
            return {}
        found: contract.Artifacts = {"uri": self._store.location.uri}
        source = self._checkpoints or self._mirror
        if source and (newest := source.newest):
            found["checkpoint"] = newest
        if self._checkpoints and self._checkpoints.held_up:
            found["heldUp"] = self._checkpoints.held_up
        each = (self._files, self._checkpoints, self._pod_files)
        if refused := "; ".join(
            uploader.refused.text for uploader in each if uploader and uploader.refused.text
        ):
            found["notUploaded"] = refused
        if self._room.text:
            found["notRestored"] = self._room.text
        if self._checkpoints and self._restored and not self._restored.manifest.of_save:
            # `checkpoints.save` leaves nothing incomplete. The content of a whole folder can be of no use.
            found["restored"] = {"attempt": self._settings.attempt, "uri": self._restored.uri}
        if self._files and self._files.uploaded_below(contract.MODEL):
            found["model"] = self._store.uri(contract.MODEL)
        if self._files and self._files.uploaded_below(contract.TENSORBOARD):
            found["tensorboard"] = self._store.uri(contract.TENSORBOARD)
        return found

    @property
    def bytes_uploaded(self) -> int:
        """Bytes sent so far."""
        each = (self._files, self._checkpoints, self._parts, self._pod_files)
        return sum(uploader.bytes_uploaded for uploader in each if uploader)

    @property
    def failures(self) -> int:
        """The number of failed passes so far."""
        return sum(loop.failures for loop in self._loops)
