"""The services of a pod with user programs: workspace, artifacts, progress and its report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.pod_sync import PodSync
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.sync_settings import SyncSettings
from dtj_trainer.background import Background
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.tracker import RunStatus
from dtj_trainer.curves.curves import Curves
from dtj_trainer.launch.accelerators import AcceleratorCheck
from dtj_trainer.launch.files_outside import FilesOutside, working_directory
from dtj_trainer.launch.grace import REPORT_SECONDS, Grace
from dtj_trainer.launch.phases import PhaseLog
from dtj_trainer.launch.progress_watch import ProgressWatch
from dtj_trainer.launch.running_programs import RunningPrograms
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.stacks import Stacks
from dtj_trainer.launch.status_server import StatusServer
from dtj_trainer.launch.tracking import Tracking, tracked
from dtj_trainer.utilisation.sampler import Sampler

log = logging.getLogger(__name__)

UNUPLOADED_CHECK_SECONDS = 30.0
LOG_SYNC_SECONDS = 60.0
"""Seconds to wait for the upload of a log at the pod's end. Other artifacts have the sync timeout."""


class ArtifactsUnavailable(Exception):
    """Artifacts could not be restored or uploaded, or another prerequisite of the program is missing. The message
    says why; `cause` is the class of the failure.
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
            raise ArtifactsUnavailable(f"{contract.ENV_ARTIFACTS_URI}: {error}") from error
        self._tracking = Tracking(settings, self._sync.artifacts)
        self._first_step: int | None = None

    def prepare(self) -> None:
        """Create the workspace's folders, and serve the report."""
        self._sync.make_folders()
        self._settings.progress_file.unlink(missing_ok=True)
        if self._settings.progress_port:
            try:
                # Under `dtj run`, nobody on the network of this machine is to ask.
                host = "127.0.0.1" if self._settings.own_root else ""
                self._server = StatusServer(
                    self._settings.progress_port, self._served, self._metrics, self.stacks.ask, host
                )
                self._server.start()
            except OSError as error:
                log.warning("progress is not served on port %d: %s", self._settings.progress_port, error)

    def open(self) -> None:
        """Restore the pod's artifacts, and start to upload. Call `prepare` first.

        Raises ArtifactsUnavailable when the restore fails, or when the pod has none of the requested accelerators.
        """
        self._refuse_without_accelerator(wait=False)
        self._tracking.start()
        if self._settings.pod.restores:
            try:
                self._sync.restore(self._settings.sync_timeout)
            except Superseded as error:
                raise _superseded(error) from error
            except (S3Error, ValueError, OSError) as error:
                raise ArtifactsUnavailable(f"checkpoints could not be restored: {error}") from error
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
            output=settings.read_output,
        )

    def _watch_files_outside(self) -> None:
        settings = self._settings
        if settings.artifacts_uri is None or (settings.own_root and settings.pod.uploads == "other"):
            # On one machine, the pods share their working directory. One of them names the files in it.
            return
        own = (*contract.FOLDERS, contract.DATA_CACHE, contract.UTILISATION, contract.METRICS_FILE)
        kept = [settings.checkpoints, *(settings.root / name for name in own)]
        kept += [settings.checkpoints_dir] if settings.checkpoints_dir else []
        elsewhere = Path(contract.ROOT) if settings.own_root else None
        FilesOutside(lambda: self.programs.pids().values(), kept, elsewhere).start(self._background)

    def _refuse_without_accelerator(self, *, wait: bool) -> None:
        if fault := self._accelerators.fault(wait=wait):
            raise ArtifactsUnavailable(fault, FailureClass.NO_ACCELERATOR)

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
        return found

    def _served(self) -> contract.Report:
        """Return the report with the newest checkpoint on disk, and what the pod uses now."""
        found = self.report()
        if self._settings.pod.uploads == "primary" and (newest := self._sync.newest_picture()):
            found["checkpoint"] = newest.reported()
        if used := self._sampler.totals():
            found["utilisation"] = used
        return found

    @property
    def superseded(self) -> ArtifactsUnavailable | None:
        """The failure after a later attempt has taken over; None before."""
        return _superseded(self._sync.superseded) if self._sync.superseded else None

    def program_died(self, at_ns: int) -> None:
        """Record that a program was killed, or its disk was full: files that were incomplete then are not
        uploaded.
        """
        self._sync.program_died(at_ns)

    def note_torn(self, paths: Iterable[Path]) -> None:
        """Record files whose writers were killed after the program's end: they are not uploaded."""
        self._sync.note_torn(paths)

    def finish(self, *, ended: bool, timeout: float | None = None) -> None:
        """Upload all that is left; `ended` says that the programs ended and closed their files.

        Raises ArtifactsUnavailable after `timeout` seconds, or without `timeout` when no byte was uploaded for the
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
            raise ArtifactsUnavailable(
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


def _superseded(error: Superseded) -> ArtifactsUnavailable:
    return ArtifactsUnavailable(str(error), FailureClass.SUPERSEDED)
