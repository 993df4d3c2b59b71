"""What a pod with user programs in it keeps up: workspace, artifacts, progress and its report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from dtj_trainer import contract
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.pod_sync import PodSync, SyncSettings
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.failure_class import FailureClass
from dtj_trainer.launch.accelerators import AcceleratorCheck
from dtj_trainer.launch.phases import PhaseLog
from dtj_trainer.launch.progress_watch import ProgressWatch
from dtj_trainer.launch.running_programs import RunningPrograms
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.stacks import Stacks
from dtj_trainer.launch.status_server import StatusServer

log = logging.getLogger(__name__)

STRANGERS_CHECK_SECONDS = 30.0
STOP_SECONDS = 45.0
"""What programs get to save a checkpoint and end by themselves after SIGTERM."""
TELL_SECONDS = 10.0
"""What is left of the pod's grace for the termination message and sshd's end."""
LOG_SYNC_SECONDS = 60.0
"""A pod's log is worth so much waiting at its end; where there is more to upload, the sync timeout holds."""


class ArtifactsUnavailable(Exception):
    """Artifacts could not be restored or uploaded, or something else that a program needs is not there; the message
    says why, `cause` which class of failure it is.
    """

    def __init__(self, message: str, cause: FailureClass = FailureClass.ARTIFACTS_UNAVAILABLE) -> None:
        super().__init__(message)
        self.cause = cause


def stop_sync_seconds(sync_timeout: float) -> float:
    """How long the last sync of a pod that is told to stop may take: it ends before the pod's grace."""
    return min(sync_timeout, contract.TERMINATION_GRACE_SECONDS - STOP_SECONDS - TELL_SECONDS)


def sync_settings(settings: Settings, *, log_names: tuple[str, ...] | None) -> SyncSettings:
    """What a container syncs. `log_names`: the logs to upload, all when None."""
    return SyncSettings(
        root=settings.root,
        config_dir=settings.config_dir,
        uri=settings.artifacts_uri,
        part=settings.pod.uploads,
        attempt=settings.attempt,
        resume=settings.resume,
        keep=settings.keep,
        settle_seconds=settings.settle,
        log_names=log_names,
        upload_bytes_per_second=settings.upload_bytes_per_second,
    )


class Pod:
    """The services of one pod, made by its supervisor. May be used from several threads once started."""

    def __init__(
        self,
        settings: Settings,
        *,
        log_names: tuple[str, ...] | None,
        on_superseded: Callable[[], None] = lambda: None,
    ) -> None:
        """`log_names`: the logs to upload, all when None. `on_superseded`: called once when a later attempt
        writes instead of this pod's, whose work is for nothing from then on.
        """
        self.phases = PhaseLog()
        self.phases.reached("started")
        self.programs = RunningPrograms()
        self.stacks = Stacks(settings.logs, self.programs)
        self._settings = settings
        self._watch = ProgressWatch(settings.progress_file, self.phases)
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

    def prepare(self) -> None:
        """Make the workspace's folders, and serve the report."""
        self._sync.make_folders()
        self._settings.progress_file.unlink(missing_ok=True)
        if self._settings.progress_port:
            try:
                StatusServer(
                    self._settings.progress_port, self.report, self._metrics, self.stacks.ask
                ).start()
            except OSError as error:
                log.warning("progress is not served on port %d: %s", self._settings.progress_port, error)

    def open(self) -> None:
        """Restore what the pod is to restore, and begin to upload; the pod is prepared.

        Raises ArtifactsUnavailable when what is to be restored can't be had, or no accelerator of those that were
        asked for.
        """
        self._refuse_without_accelerator(wait=False)
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
        self._watch.start()
        threading.Thread(target=self._look_for_strangers, daemon=True).start()

    def _refuse_without_accelerator(self, *, wait: bool) -> None:
        if fault := self._accelerators.fault(wait=wait):
            raise ArtifactsUnavailable(fault, FailureClass.NO_ACCELERATOR)

    def report(self) -> contract.Report:
        """Progress, artifacts and phases as they are now."""
        found: contract.Report = {}
        if now := self._watch.now():
            found["progress"] = now
        if artifacts := self._sync.artifacts():
            found["artifacts"] = artifacts
        found["phases"] = self.phases.times()
        return found

    @property
    def superseded(self) -> ArtifactsUnavailable | None:
        """That a later attempt writes instead of this pod's; None while none does."""
        return _superseded(self._sync.superseded) if self._sync.superseded else None

    def program_died(self, at_ns: int) -> None:
        """A program of this pod was killed, or its disk was full: what was not complete then is not uploaded."""
        self._sync.program_died(at_ns)

    def finish(self, *, ended: bool, timeout: float | None = None) -> None:
        """Upload all that is left; `ended` says that the programs ended and closed what they wrote.

        Raises ArtifactsUnavailable when that can't be done within `timeout` seconds, or by default when
        nothing more was uploaded for as long as the sync timeout.
        """
        self._watch.now()
        self._sync.warn_of_strangers()
        seconds = self._settings.sync_timeout if timeout is None else timeout
        try:
            self._sync.finish(seconds, ended=ended, at_most=timeout is not None)
        except Superseded as error:
            raise _superseded(error) from error
        except S3Error as error:
            raise ArtifactsUnavailable(
                f"not all artifacts could be uploaded within {seconds:.0f} s: {error}"
                if error.transient
                else f"artifacts could not be uploaded: {error}"
            ) from error
        self.phases.reached("synced")

    def close(self) -> None:
        """Upload nothing more: the process ends."""
        self._sync.close()

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
            values["dtj_checkpoint_step"] = float(checkpoint["step"])
            values["dtj_checkpoint_timestamp_seconds"] = datetime.fromisoformat(
                checkpoint["time"]
            ).timestamp()
        return values

    def _look_for_strangers(self) -> None:
        wait = threading.Event()
        while not wait.wait(STRANGERS_CHECK_SECONDS):
            self._sync.warn_of_strangers()


def _superseded(error: Superseded) -> ArtifactsUnavailable:
    return ArtifactsUnavailable(str(error), FailureClass.SUPERSEDED)
