"""Synchronizes all artifacts of one pod: restore at its start, uploads while it runs and at its end.

`launch/pod.py` and `launch/launcher.py` make a PodSync. Each kind of artifact has an uploader of its own, whose
passes a SyncLoop repeats (`sync_loop`). Not here: what a pass uploads (`checkpoint_upload`, `pod_files_upload`,
`other_pods`, `file_upload`), and the snapshots of rounds (`round_snapshot`).
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence, Superseded
from dtj_trainer.artifacts.file_fetch import Near, Room
from dtj_trainer.artifacts.file_upload import METRICS_KEYS, FileUploader, PodFiles, pod_sources
from dtj_trainer.artifacts.growing import restore_growing
from dtj_trainer.artifacts.history import HistoryWriter
from dtj_trainer.artifacts.multipart import Uploads
from dtj_trainer.artifacts.newest_capture import CaptureWatch, Unuploaded
from dtj_trainer.artifacts.other_pods import PartUploader
from dtj_trainer.artifacts.peers import CheckpointPeers, PeerServer
from dtj_trainer.artifacts.pod_files_upload import PodFilesUploader
from dtj_trainer.artifacts.restore import (
    ALL,
    POLL_SECONDS,
    RESUME_NEVER,
    CheckpointMirror,
    Lineage,
    Restored,
    restore_checkpoint,
)
from dtj_trainer.artifacts.round_snapshot import RoundSnapshots
from dtj_trainer.artifacts.s3 import (
    BYTES_PER_SECOND,
    Deadline,
    NoSuchKey,
    Pace,
    Result,
    S3Error,
    retry_transient,
)
from dtj_trainer.artifacts.snapshot import StepAt
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.artifacts.sync_loop import SyncLoop

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.manifest import Manifest
    from dtj_trainer.artifacts.newest_capture import Complete
    from dtj_trainer.artifacts.peer_hosts import PeerHosts
    from dtj_trainer.artifacts.upload_rules import Begin


# SyncSettings has the settings of a pod's restore and uploads.


@dataclass(frozen=True)
class SyncSettings:
    """The artifacts of a pod, and their places. Times in seconds.

    `uri` is the job's own prefix; None means that no artifacts are kept. The logs in `log_names` are uploaded; None
    means all logs.
    """

    root: Path
    config_dir: Path
    uri: str | None
    part: contract.Part
    attempt: int
    resume: str
    keep: int
    settle_seconds: float
    log_names: tuple[str, ...] | None = None
    checkpoints_dir: Path | None = None
    """The folder that has the checkpoints; None: CHECKPOINTS in the workspace."""
    keep_every: float = 0.0
    """The period, in seconds, of which the first snapshot is kept; 0: none. See `retention.kept`."""
    keep_bytes: int = 0
    """The bytes that one snapshot may have; 0: no limit."""
    upload_bytes_per_second: float = BYTES_PER_SECOND
    """The limit while the program runs; 0: no limit."""
    pod: str | None = None
    """`<role>-<index>` of this pod if its utilisation is sampled."""
    peers: PeerHosts | None = None
    """The pods that restore the same checkpoint as this pod; None: no other pod does."""
    resume_since: int = 0
    """The first attempt after the user went back to the job's snapshot `resume`; 0: `resume` is not one of them."""
    resume_skip: tuple[str, ...] = ()
    """Folders of snapshots from which earlier attempts made no progress."""
    shards: bool = False
    """Whether several pods run ranks, so that each may have checkpoint files that no other has."""
    tracked: bool = False
    """Whether this pod writes the job's run to a tracking server."""
    history: contract.History | None = None
    """The data with which this pod writes the job's history; None: this pod writes no history."""
    archives: tuple[tuple[str, Path], ...] = ()
    """The archives of `spec.code` that are in no bucket yet, each with its name in the bucket."""
    rounds: bool = False
    """Whether a restart in place may start the programs again in this pod."""
    alone: bool = True
    """Whether no other pod has ranks."""

    @property
    def lineage(self) -> Lineage:
        """The snapshots of the job that a restore may choose."""
        return Lineage(self.resume.rpartition("/")[2], self.resume_since) if self.resume_since else ALL

    @property
    def checkpoints(self) -> Path:
        """The folder that a restore fills and that uploads read."""
        return self.checkpoints_dir or self.root / contract.CHECKPOINTS


log = logging.getLogger(__name__)

ROUND_BUCKET_SECONDS = 60.0
"""How long a round waits for a bucket that sends nothing."""
CLOSING_SECONDS = 5.0
"""Seconds to wait at the end for passes under way. None of them sends anything more."""

CLAIM_KEYS = {"primary": contract.CLAIM_FILE, "evaluator": contract.EVALUATOR_CLAIM_FILE}
"""The claim file by the pod's part. The evaluator has its own, because it restarts alone and counts its own
attempts."""


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
        self._watch: CaptureWatch | None = None
        self._mirror: CheckpointMirror | None = None
        self._mirroring: SyncLoop | None = None
        self._files: FileUploader | None = None
        self._loops: list[SyncLoop] = []
        self._step_at = step_at
        self._programs_run = programs_run
        self._died = False
        self._died_ns = 0
        self._restored: Restored | None = None
        self._metrics_begin: Begin | None = None
        self._unuploaded, self._room = Unuploaded(settings), Room({settings.pod or "", socket.gethostname()})
        self._server: PeerServer | None = None
        self._rounds: RoundSnapshots | None = None
        self._foreign: Restored | None = None
        """What the pod restored from another job."""

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
        """Return the places from which this pod gets checkpoint files faster than from the bucket. From now on, other
        pods may read files from this pod.
        """
        hosts = self._settings.peers
        server = None if hosts is None or hosts.loopback else self._peer_server(hosts)
        if hosts is None or server is None:
            return Near(room=self._room)
        return Near(CheckpointPeers(hosts), server.files, self._room)

    def _peer_server(self, hosts: PeerHosts) -> PeerServer | None:
        """Return the server for the job's other pods; None if it can't listen."""
        if self._server is None:
            try:
                self._server = PeerServer(hosts)
            except OSError as error:  # Another pod of the node with hostNetwork may use the port.
                log.warning("can't exchange checkpoints with other pods on port %d: %s", hosts.port, error)
                return None
            self._server.start()
        return self._server

    def _restore_tracking(self, store: Store) -> None:
        """Restore tracking.json. All attempts of a job belong to one run, also attempts that train from step 0."""
        path = self._settings.root / contract.TRACKING_FILE
        try:
            path.write_bytes(store.get_bytes(contract.TRACKING_FILE))
        except NoSuchKey:
            path.unlink(missing_ok=True)

    def start(self) -> None:
        """Start to upload in the background."""
        if self._settings.rounds:
            self._rounds = self._round_snapshots()
        if self._store is None:
            self._watch_captures()
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

    def _watch_captures(self) -> None:
        settings = self._settings
        if settings.part != "primary" and not settings.shards:
            return
        self._watch = CaptureWatch(
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

    def newest_capture(self) -> Complete | None:
        """Return the newest complete capture of the checkpoints folder that this pod can put back."""
        source = self._captures
        return source.captures.now(source.nodes) if source else None

    @property
    def _captures(self) -> CheckpointUploader | PodFilesUploader | CaptureWatch | None:
        return self._checkpoints or self._pod_files or self._watch

    def _round_snapshots(self) -> RoundSnapshots:
        settings = self._settings
        snapshots = RoundSnapshots(
            settings.checkpoints,
            self._store.below(contract.CHECKPOINTS) if self._store else None,
            attempt=settings.attempt,
            alone=settings.alone,
            hosts=settings.peers,
            server=self._peer_server(settings.peers) if settings.peers else None,
            room=self._room,
        )
        if restored := self._restored:
            snapshots.note_restored(restored.manifest, own=restored.own)
            self._foreign = None if restored.own else restored
        return snapshots

    def end_round(self, *, closed: bool) -> None:
        """Record that all programs of the pod are gone. closed: they ended by themselves, so that what they left is
        complete. Otherwise what was incomplete at the first death stays incomplete. Uploads go on.
        """
        if self._died or not closed:
            self.program_died(time.time_ns())
            return
        for loop in self._loops:
            loop.program_ended()
        self._pace.hurry()

    def newest_snapshot(self) -> tuple[Manifest, str] | None:
        """Name the newest complete snapshot, and its hash; None: there is none. Call it after `end_round`, in the pod
        of rank 0.

        Raises NotPutBack where there are snapshots, but none that all pods can get.
        """
        rounds, source = self._rounds, self._captures
        assert rounds
        assert source
        return rounds.newest(source, self._died_ns if self._died else None)

    def begin_round(self, snapshot: tuple[int, int, str] | None) -> None:
        """Make the checkpoints folder exactly this snapshot, and reset the uploads for a new round.

        snapshot: claim, number, and the hash of its manifest; None: nothing. Call it after `end_round`. Raises
        NotPutBack.
        """
        rounds, source = self._rounds, self._captures
        assert rounds
        manifest = None
        with source.still if source else nullcontext():
            if snapshot:
                manifest = rounds.put_back(*snapshot, ROUND_BUCKET_SECONDS, self._unsent_saves)
            else:
                rounds.clear()
            if source:
                source.begin_round(manifest)
        if self._parts:
            self._parts.begin_round(manifest)
        if self._files:
            self._files.begin_round(self._died_ns if self._died else None)
        self._restored = self._restored_by(manifest) if manifest else None
        with suppress(OSError):
            self._unuploaded.restored = {path.name for path in self._settings.checkpoints.iterdir()}
        self._died, self._died_ns = False, 0
        self._pace.ease()
        for loop in self._loops:
            loop.program_began()

    def _restored_by(self, manifest: Manifest) -> Restored:
        if manifest.claim == 0 and self._foreign:
            return self._foreign
        uri = self._store.below(contract.CHECKPOINTS).uri(manifest.folder) if self._store else ""
        return Restored(manifest, uri, own=True)

    def _unsent_saves(self, manifest: Manifest) -> set[str]:
        if self._checkpoints is None or manifest.step is None or not manifest.marks:
            return set()
        return self._checkpoints.unsent_saves(manifest.step)

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
        self._died, self._died_ns = True, self._died_ns or at_ns
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
        # Call `hurry` after `ask`: an upload that hands over to a thread of normal priority needs the thread that
        # `ask` starts.
        self._pace.hurry()
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

        `seconds`: the longest wait for the bucket.
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
        """The error to raise once a later attempt has claimed the prefix; None before. Never reset."""
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
            # Tell the operator which snapshot was restored, unless `checkpoints.save` wrote it: other snapshots may
            # be incomplete, and a retry may have to skip them.
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
