"""The services of a pod with user programs: workspace, artifacts, progress, its deadline after SIGTERM, its report.

`replica`, `worker` and `launcher` make a Pod (the launcher's own has no programs) and decide what happens to the
programs. Not here: uploads and restore (`artifacts/sync.py`), the HTTP server (`status_server`).
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.capture import is_below
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.round_peers import NotPutBack
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.sync import PodSync, SyncSettings
from dtj_trainer.background import Background
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.tracking import RunStatus
from dtj_trainer.curves.curves import Curves
from dtj_trainer.data.layouts import fixed_files
from dtj_trainer.data.staging import stage_ahead
from dtj_trainer.launch.accelerators import AcceleratorCheck
from dtj_trainer.launch.processes import RunningPrograms
from dtj_trainer.launch.round_messages import Snapshot
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.status_server import PhaseLog, ProgressWatch, Stacks, StatusServer
from dtj_trainer.launch.tracking import Tracking, tracked
from dtj_trainer.utilisation.figures import Sampler

if TYPE_CHECKING:
    from collections.abc import Collection


# Grace is the one deadline of a pod that is told to stop. The time counts from the arrival of the signal.
#
# All requests to the store end by the deadline: the last upload, the history's record, the end of tracking, and the
# aborts of incomplete uploads. The kubelet kills the pod after its grace period in any case.

REPORT_SECONDS = 10.0
"""Seconds of the grace period that the last upload leaves to what follows it."""
EXIT_SECONDS = 2.0
"""Seconds of the grace period for the exit of the process, which no request may take."""


class Grace:
    """The rest of a pod's grace period, in seconds. Without limit until the first SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._ends = math.inf

    def watch(self, on_begin: Callable[[int], None] = lambda _: None) -> None:
        """Begin with the first SIGTERM or SIGINT. The handlers that are installed now get the signals, too.

        `on_begin` gets the number of the first signal, in the main thread.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self._watch(number, signal.getsignal(number), on_begin)

    def _watch(self, number: int, then: object, on_begin: Callable[[int], None]) -> None:
        def handle(number: int, frame: object) -> None:
            first = not self.begun
            self.begin()
            if callable(then):
                then(number, frame)
            if first:
                on_begin(number)

        signal.signal(number, handle)

    def begin(self) -> None:
        """Begin now, unless it has begun."""
        self._ends = min(self._ends, time.monotonic() + contract.TERMINATION_GRACE_SECONDS)

    @property
    def begun(self) -> bool:
        """Whether the pod was told to stop."""
        return self._ends < math.inf

    def left(self) -> float:
        """Return the seconds in which requests to the store and to trackers must end."""
        return self._ends - EXIT_SECONDS - time.monotonic()

    def left_to_upload(self) -> float:
        """Return the seconds in which the last upload must end."""
        return self._ends - REPORT_SECONDS - time.monotonic()


# FilesOutside names large files that a program writes to folders which dtj does not keep.

log = logging.getLogger(__name__)

FIRST_SECONDS, EVERY_SECONDS = 120.0, 600.0
MOST_ENTRIES = 10_000
LEAST_BYTES = 1_000_000
MOST_NAMED = 10
"""The most files that a pod names in its life."""


class FilesOutside:
    """Walks the working directories of a pod's programs now and then, and names what it finds there once."""

    def __init__(
        self, pids: Callable[[], Collection[int]], kept: Collection[Path], elsewhere: Path | None = None
    ) -> None:
        """`pids`: the processes of the programs. `kept`: the files and folders that dtj keeps, or has made.

        `elsewhere`: a folder that has another content for the programs than for this process.
        """
        self._pids = pids
        self._kept = frozenset(map(os.path.realpath, kept))
        self._unseen = self._kept | {str(elsewhere)} if elsewhere else self._kept
        self._since_ns = time.time_ns()
        self._named: set[Path] = set()

    def start(self, background: Background) -> None:
        """Look in the background."""

        def run() -> None:
            pause = FIRST_SECONDS
            while not background.wait(pause):
                self.look()
                pause = EVERY_SECONDS

        background.start(run, "files outside")

    def look(self) -> None:
        """Name a file of each folder that has new large files and was not named before."""
        for folder in {where for pid in self._pids() if (where := working_directory(pid))}:
            if is_below(str(folder), self._unseen):
                continue
            for path, size in new_files(folder, self._kept, self._since_ns):
                top = folder / path.parts[0] if len(path.parts) > 1 else folder
                if top not in self._named and len(self._named) < MOST_NAMED:
                    self._named.add(top)
                    log.warning("%s", sentence(path, size, folder))


def sentence(path: Path, size: int, folder: Path) -> str:
    """Return what a user needs to know of a file `path` below the working directory `folder`."""
    where = f"write checkpoints below {contract.checkpoints()}"
    if len(path.parts) > 1:
        # The variable is relative to the first working directory, which the program may have left.
        top = path.parts[0] if folder == Path.cwd() else str(folder / path.parts[0])
        where += f", or set {contract.ENV_CHECKPOINTS_DIR} to {top!r}"
    return (
        f"dtj does not keep {str(folder / path)!r} ({size / 1e6:.0f} MB). If the program needs the file after a "
        f"restart, {where}"
    )


def new_files(folder: Path, kept: Collection[str], since_ns: int) -> Iterator[tuple[Path, int]]:
    """Yield the relative path and the bytes of each large file below `folder` that changed since a time.

    Reads MOST_ENTRIES entries at most, those near the top first. Passes over hidden folders, links, other file
    systems and what is in `kept`, which are real paths.
    """
    seen, waiting = 0, deque([folder])
    try:
        device = folder.stat().st_dev
    except OSError:
        return
    while waiting:
        with suppress(OSError), os.scandir(waiting.popleft()) as entries:  # The program may remove folders.
            for entry in entries:
                seen += 1
                if seen > MOST_ENTRIES:
                    return
                if entry.path in kept:
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    large = status.st_size >= LEAST_BYTES and status.st_ctime_ns >= since_ns
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name[0] != "." and status.st_dev == device:
                            waiting.append(Path(entry.path))
                    elif large and entry.is_file(follow_symlinks=False):
                        yield Path(entry.path).relative_to(folder), status.st_size


def working_directory(pid: int) -> Path | None:
    """Return the folder that a process works in; None for one that has ended, or of another user."""
    try:
        folder = Path(f"/proc/{pid}/cwd").readlink()
        return folder if folder.is_absolute() and folder.is_dir() else None
    except OSError:  # The process has ended, or is of another user.
        return None


UNUPLOADED_CHECK_SECONDS = 30.0
LOG_SYNC_SECONDS = 60.0
"""Seconds to wait for the upload of a log at the pod's end. Other artifacts have the sync timeout."""


class PrerequisiteMissing(Exception):
    """A prerequisite of the program is missing: its artifacts, an accelerator, its peers or a port. The message says
    why; `cause` is the class of the failure.
    """

    def __init__(self, message: str, cause: FailureClass = FailureClass.ARTIFACTS_UNAVAILABLE) -> None:
        super().__init__(message)
        self.cause = cause


def stop_sync_seconds(sync_timeout: float, grace: Grace) -> float:
    """Return the seconds for the last sync of a pod whose programs were asked to stop.

    A pod that was told to stop has what its programs left of the grace period.
    """
    ordinary = contract.TERMINATION_GRACE_SECONDS - contract.STOP_SECONDS - REPORT_SECONDS
    return min(sync_timeout, grace.left_to_upload() if grace.begun else ordinary)


def sync_settings(settings: Settings, *, log_names: tuple[str, ...] | None) -> SyncSettings:
    """Return the sync settings of a container. `log_names`: the logs to upload; None means all."""
    return SyncSettings(
        root=settings.root,
        config_dir=settings.config_dir,
        uri=settings.artifacts_uri,
        part=settings.pod.uploads,
        attempt=settings.attempt,
        resume=settings.resume,
        resume_since=settings.resume_since,
        resume_skip=settings.resume_skip,
        keep=settings.keep,
        keep_every=settings.keep_every,
        keep_bytes=settings.keep_bytes,
        settle_seconds=settings.settle,
        log_names=log_names,
        checkpoints_dir=settings.checkpoints,
        upload_bytes_per_second=settings.upload_bytes_per_second,
        pod=settings.pod.name,
        peers=settings.peers,
        shards=settings.pod.slots > 0 and settings.pod.peers is not None and settings.pod.peers.count > 1,
        tracked=tracked(settings) is not None,
        history=settings.history,
        archives=settings.archives,
        rounds=settings.pod.rounds is not None,
        alone=settings.pod.slots >= settings.world_size,
    )


class Pod:
    """The services of one pod, created by its supervisor. Thread-safe once started."""

    def __init__(
        self,
        settings: Settings,
        *,
        log_names: tuple[str, ...] | None,
        on_superseded: Callable[[], None] = lambda: None,
    ) -> None:
        """`log_names`: the logs to upload; None means all. `on_superseded`: called once when a later attempt has
        taken over, so that this pod's work is useless.
        """
        self.phases = PhaseLog()
        self.phases.reached("started")
        self.grace = Grace()
        self.programs = RunningPrograms()
        self.stacks = Stacks(settings.logs, self.programs)
        self._sampler = Sampler(settings, self.programs.pids)
        self._settings = settings
        self._curves = self._curves_of(settings) if settings.pod.uploads == "primary" else None
        told = self._curves.progress if self._curves else contract.Progress
        self._watch = ProgressWatch(settings.progress_file, self.phases, told)
        self._background = Background()
        self._server: StatusServer | None = None
        self._accelerators = AcceleratorCheck(settings.gpus, settings.gpu_resource)
        try:
            self._sync = PodSync(
                sync_settings(settings, log_names=log_names),
                self._watch.step_at,
                on_superseded,
                self.programs.all_run,
            )
        except ValueError as error:
            raise PrerequisiteMissing(f"{contract.ENV_ARTIFACTS_URI}: {error}") from error
        self._tracking = Tracking(settings, self._sync.artifacts)
        self._first_step: int | None = None
        self.restarts: contract.RoundRestarts | None = None
        """The restarts in place so far; None: there was none."""

    def prepare(self) -> None:
        """Create the workspace's folders, and serve the report."""
        self._sync.make_folders()
        self._settings.progress_file.unlink(missing_ok=True)
        if self._settings.progress_port:
            try:
                # Under `dtj run`, serve on loopback only: the machine's network may not be trusted.
                host = "127.0.0.1" if self._settings.own_root else ""
                self._server = StatusServer(
                    self._settings.progress_port, self._served, self._metrics, self.stacks.ask, host
                )
                self._server.start()
            except OSError as error:
                log.warning("progress is not served on port %d: %s", self._settings.progress_port, error)

    def open(self) -> None:
        """Restore the pod's artifacts, and start to upload. Call `prepare` first.

        Raises PrerequisiteMissing when the restore fails, or when the pod has none of the requested accelerators.
        """
        self._refuse_without_accelerator(wait=False)
        self._tracking.start()
        if self._settings.pod.restores:
            try:
                self._sync.restore(self._settings.sync_timeout)
            except Superseded as error:
                raise _superseded(error) from error
            except (S3Error, ValueError, OSError) as error:
                raise PrerequisiteMissing(f"checkpoints could not be restored: {error}") from error
            self.phases.reached("restored")
        self._refuse_without_accelerator(wait=True)
        self._sync.start()
        self._watch.start(self._background)
        if self._curves:
            self._curves.start(self._background)
        self._sampler.start(self._background)
        self._background.start(self._watch_for_unuploaded, "unuploaded")
        self._watch_files_outside()
        self._tracking.begin()

    def _curves_of(self, settings: Settings) -> Curves:
        names = [f"rank-{settings.pod.index * settings.pod.slots}.log", f"{settings.pod.name}.log"]
        own = [settings.root / contract.TENSORBOARD, settings.checkpoints]

        def folders() -> Iterator[Path]:
            yield from own
            yield from filter(None, map(working_directory, self.programs.pids().values()))

        return Curves(
            settings.root / contract.METRICS_FILE,
            settings.progress_file,
            [settings.logs / name for name in names],
            folders,
            settings.attempt,
            # Resolve links, because the working directories from /proc have no links either.
            utilisation=(settings.root / contract.UTILISATION).resolve(),
            output=settings.read_output,
        )

    def _watch_files_outside(self) -> None:
        settings = self._settings
        if settings.artifacts_uri is None or (settings.own_root and settings.pod.uploads == "other"):
            # On one machine, the pods share their working directory: only one pod names the files there.
            return
        own = (*contract.FOLDERS, contract.DATA_CACHE, contract.UTILISATION, contract.METRICS_FILE)
        kept = [settings.checkpoints, *(settings.root / name for name in own)]
        kept += [settings.checkpoints_dir] if settings.checkpoints_dir else []
        elsewhere = Path(contract.ROOT) if settings.own_root else None
        FilesOutside(lambda: self.programs.pids().values(), kept, elsewhere).start(self._background)

    def _refuse_without_accelerator(self, *, wait: bool) -> None:
        if fault := self._accelerators.fault(wait=wait):
            raise PrerequisiteMissing(fault, FailureClass.NO_ACCELERATOR)

    def report(self) -> contract.Report:
        """Return progress, artifacts and phases as they are now."""
        found: contract.Report = {}
        if now := self._watch.now():
            found["progress"] = now
        if artifacts := self._sync.artifacts():
            found["artifacts"] = artifacts
            step = now.get("step") if now else None
            self._first_step = step if self._first_step is None else self._first_step
            if "restored" in artifacts and self._first_step is not None:
                artifacts["restored"]["firstStep"] = self._first_step
        found["phases"] = self.phases.times()
        if self.restarts:
            found["restarts"] = self.restarts
        return found

    def _served(self) -> contract.Report:
        """Return the report with the newest checkpoint on disk, and what the pod uses now."""
        found = self.report()
        if self._settings.pod.uploads == "primary" and (newest := self._sync.newest_capture()):
            found["checkpoint"] = newest.reported()
        if used := self._sampler.totals():
            found["utilisation"] = used
        return found

    @property
    def superseded(self) -> PrerequisiteMissing | None:
        """The failure after a later attempt has taken over; None before."""
        return _superseded(self._sync.superseded) if self._sync.superseded else None

    def program_died(self, at_ns: int) -> None:
        """Record that a program was killed, or its disk was full: files that were incomplete then are not
        uploaded.
        """
        self._sync.program_died(at_ns)

    def end_round(self, *, closed: bool) -> None:
        """Record that no program of the pod is left. closed: all ended by themselves. Uploads go on."""
        self._sync.end_round(closed=closed)

    def newest_snapshot(self) -> Snapshot | None:
        """Name the newest complete checkpoint of this pod, which has rank 0, uploaded or not; None: there is none.

        Call it after `end_round` of all pods; it may take as long as to read a checkpoint. Raises PrerequisiteMissing
        where there is a checkpoint, and not all pods can have it.
        """
        try:
            found = self._sync.newest_snapshot()
        except (NotPutBack, S3Error, OSError) as error:
            raise PrerequisiteMissing(
                f"not all pods can get the files of the newest checkpoint: {error}"
            ) from error
        return Snapshot(found[0].claim, found[0].number, found[1]) if found else None

    def saved_since(self, at_ns: int) -> bool:
        """Whether a complete checkpoint has files from after a wall-clock time in nanoseconds."""
        newest = self._sync.newest_capture()
        return newest is not None and any(
            node.changed_ns > at_ns for node in newest.capture.nodes.values() if node.kind == "file"
        )

    def begin_round(self, number: int, snapshot: Snapshot | None) -> None:
        """Unpack the job's code, make the checkpoints folder exactly this snapshot, and begin anew what belongs to a
        round.

        `number`: of the round, which is also the number of restarts in place. `snapshot`: None empties the folder.
        Call it after `end_round`, and before the programs start. Raises PrerequisiteMissing.
        """
        if self._settings.code:
            # Most jobs bring no code: do not import the module at the start of their pods.
            from dtj_trainer.launch.code import CodeUnavailable, bring_code

            try:
                bring_code(self._settings)
            except CodeUnavailable as error:
                raise PrerequisiteMissing(str(error), error.cause) from error
        try:
            self._sync.begin_round(snapshot)
        except (NotPutBack, OSError) as error:
            raise PrerequisiteMissing(
                f"round {number} can't begin with {_described(snapshot)}: {error}"
            ) from error
        log.info("round %d begins with %s", number, _described(snapshot))
        if self._curves:
            self._curves.begin_round()
        self._watch.begin_round()
        self._first_step = None
        self._tracking.restarts = number

    def note_torn(self, paths: Iterable[Path]) -> None:
        """Record files whose writers were killed after the program's end: they are not uploaded."""
        self._sync.note_torn(paths)

    def finish(self, *, ended: bool, timeout: float | None = None) -> None:
        """Upload all that is left; `ended` says that the programs ended and closed their files.

        Raises PrerequisiteMissing after `timeout` seconds, or without `timeout` when no byte was uploaded for the
        sync timeout; in any case before the grace period ends.
        """
        if self._curves:
            self._curves.look_last()
        self._watch.now()
        self._sync.warn_of_unuploaded()
        seconds = self._settings.sync_timeout if timeout is None else timeout
        try:
            self._sync.finish(
                seconds, ended=ended, at_most=timeout is not None, until=self.grace.left_to_upload
            )
        except Superseded as error:
            raise _superseded(error) from error
        except S3Error as error:
            within = "before the pod ends" if self.grace.left_to_upload() <= 0 else f"within {seconds:.0f} s"
            raise PrerequisiteMissing(
                f"not all artifacts could be uploaded {within}: {error}"
                if error.transient
                else f"artifacts could not be uploaded: {error}"
            ) from error
        self.phases.reached("synced")

    def end_tracking(self, status: RunStatus, *, stopped: bool = False) -> None:
        """Send the last metrics to the tracking server; takes seconds at most. Call it after `finish`."""
        if not self._sync.superseded:
            self._tracking.end(status, stopped=stopped, at_most=self.grace.left())

    def record_success(self) -> bool:
        """Record the job's success as the pod that decides it; return whether the bucket has it. Call it last."""
        seconds = min(self._settings.sync_timeout, self.grace.left())
        return self._sync.record_success(self._settings.pod.name, self.report(), seconds)

    def close(self) -> None:
        """End everything that this start of the programs began: threads, servers, uploads, the tracking process."""
        if self._server:
            self._server.close()
        self.stacks.close()
        self._tracking.close()
        self._background.close()
        self._sync.close(self.grace.left())

    def _metrics(self) -> dict[str, float]:
        progress, artifacts = self._watch.now(), self._sync.artifacts()
        values = {
            "dtj_upload_bytes_total": float(self._sync.bytes_uploaded),
            "dtj_upload_failures_total": float(self._sync.failures),
        }
        named = {
            "dtj_step": progress.get("step"),
            "dtj_total_steps": progress.get("totalSteps"),
            "dtj_epoch": progress.get("epoch"),
            "dtj_examples_per_second": progress.get("examplesPerSecond"),
            "dtj_loss": progress.get("loss"),
            "dtj_accuracy": progress.get("accuracy"),
            "dtj_eta_seconds": progress.get("etaSeconds"),
        }
        values |= {name: float(value) for name, value in named.items() if value is not None}
        checkpoint = artifacts.get("checkpoint")
        if checkpoint:
            if "step" in checkpoint:
                values["dtj_checkpoint_step"] = float(checkpoint["step"])
            values["dtj_checkpoint_timestamp_seconds"] = datetime.fromisoformat(
                checkpoint["time"]
            ).timestamp()
        return values | self._sampler.gauges()

    def _watch_for_unuploaded(self) -> None:
        while not self._background.wait(UNUPLOADED_CHECK_SECONDS):
            self._sync.warn_of_unuploaded()


def _described(snapshot: Snapshot | None) -> str:
    return f"checkpoint {snapshot.number} of claim {snapshot.claim}" if snapshot else "no checkpoint"


def _superseded(error: Superseded) -> PrerequisiteMissing:
    return PrerequisiteMissing(str(error), FailureClass.SUPERSEDED)


# set_aside_earlier moves the logs that an earlier start has left in the same workspace, for example on a
# PersistentVolumeClaim.

EARLIER = ".earlier"
"""The folder beside the logs that has the logs of the start before. Hidden folders are not uploaded."""


def set_aside_earlier(root: Path) -> None:
    """Move the logs and the utilisation of an earlier start aside, so that their lines do not count for this start.

    The bucket has these files already, below the attempt that wrote them. The disk keeps the files of one start.
    """
    for folder in (root / contract.LOGS, root / contract.UTILISATION):
        # Ignore a missing folder and a full disk. On a full disk, the new lines follow the earlier ones.
        with suppress(OSError):
            entries = [path for path in folder.iterdir() if path.name != EARLIER]
            if entries:
                shutil.rmtree(folder / EARLIER, ignore_errors=True)
                (folder / EARLIER).mkdir()
            for path in entries:
                path.rename(folder / EARLIER / path.name)


# begin_staging fetches the data of a built-in program while the program still imports its modules.

_BUILT_IN, _OTHER_DATA = "dtj_trainer.programs.", "--data"


def begin_staging(settings: Settings) -> None:
    """Fetch the job's data in the background, if a built-in program of this pod is going to read it.

    Other programs are left alone: they read data in their own ways, and their data may be larger than the disk.
    """
    wanted = settings.pod.reads_data and settings.data_uri
    if wanted and _reads_the_jobs_data(settings.config_dir / contract.JOB_FILE):
        threading.Thread(target=stage_ahead, args=(wanted, fixed_files), name="staging", daemon=True).start()


def _reads_the_jobs_data(job_file: Path) -> bool:
    """Return whether the job file names a built-in program without other data."""
    try:
        text = job_file.read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return _BUILT_IN in text and _OTHER_DATA not in text.replace("--data-workers", "")
