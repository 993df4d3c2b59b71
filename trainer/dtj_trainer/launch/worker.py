"""A worker whose pod runs ranks: serves ssh, restores before programs start, and uploads while they run."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Sequence

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.control import ControlServer
from dtj_trainer.launch.data_ahead import begin_staging
from dtj_trainer.launch.earlier_logs import set_aside_earlier
from dtj_trainer.launch.pod import LOG_SYNC_SECONDS, ArtifactsUnavailable, Pod, stop_sync_seconds
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.sshd import Sshd, SshdMissing
from dtj_trainer.launch.supervisor import RankSupervisor
from dtj_trainer.launch.termination import forget_termination, write_termination

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2


class Worker:
    """One worker pod, until a signal stops it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = False

    def run(self) -> int:
        """Serve until SIGTERM, then upload what is left; return the exit code."""
        settings = self._settings
        set_aside_earlier(settings.root)
        forget_termination(settings.termination_log)
        try:
            pod = Pod(settings, log_names=None)
        except ArtifactsUnavailable as error:
            return self._fail(error.cause, str(error), contract.EXIT_UNAVAILABLE)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        supervisor = RankSupervisor(pod)
        try:
            pod.prepare()
            with contextlib.closing(ControlServer(settings.control_socket, supervisor)) as control:
                control.start()
                return self._serve(pod, supervisor)
        finally:
            pod.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _serve(self, pod: Pod, supervisor: RankSupervisor) -> int:
        settings = self._settings
        begin_staging(settings)
        sshd: Sshd | None = None
        try:
            if not settings.ssh_after_restore:
                # mpirun may connect during the restore: the ranks wait for its end.
                sshd = self._let_ranks_in()
            pod.open()
            if settings.ssh_after_restore:
                sshd = self._let_ranks_in()
        except SshdMissing as error:
            return self._fail(FailureClass.COMMAND_NOT_FOUND, str(error), contract.EXIT_COMMAND_NOT_FOUND)
        except ArtifactsUnavailable as error:
            code = self._fail(error.cause, str(error), contract.EXIT_UNAVAILABLE)
            supervisor.opened(error)
            if sshd:
                sshd.stop()
            return code
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        pod.grace.watch()
        supervisor.opened()
        while not self._stopping and not pod.superseded and not (sshd and sshd.ended):
            time.sleep(POLL_SECONDS)
        if superseded := pod.superseded:
            supervisor.stop()
            code = self._fail(superseded.cause, str(superseded), contract.EXIT_UNAVAILABLE)
            with contextlib.suppress(ArtifactsUnavailable):  # The ranks' logs are uploaded all the same.
                pod.finish(ended=False, timeout=LOG_SYNC_SECONDS)
            if sshd:
                sshd.stop()
            return code
        if sshd and not self._stopping:
            supervisor.stop()
            code = self._fail(
                FailureClass.APPLICATION_ERROR,
                f"sshd ended with exit code {sshd.exit_code}; its log says why",
                contract.EXIT_CONFIG,
            )
            self._last_sync(pod, ended=False)
            return code
        log.info("worker %d was asked to stop", settings.pod.index)
        all_closed = supervisor.stop()
        seconds = stop_sync_seconds(settings.sync_timeout, pod.grace)
        complete = self._last_sync(pod, ended=all_closed, timeout=seconds)
        pod.end_tracking("KILLED", stopped=True)
        if sshd:
            sshd.stop()
        return 0 if complete else contract.EXIT_UNAVAILABLE

    def _let_ranks_in(self) -> Sshd | None:
        """Start sshd, unless ranks are started on this machine without ssh. Raises SshdMissing."""
        settings = self._settings
        sshd = None if settings.local_workers else Sshd(settings.config_dir)
        by = f"ssh on port {settings.ssh_port}" if sshd else "ranks of this machine"
        log.info("worker %d is ready for %s", settings.pod.index, by)
        return sshd

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _last_sync(self, pod: Pod, *, ended: bool, timeout: float | None = None) -> bool:
        try:
            pod.finish(ended=ended, timeout=timeout)
        except ArtifactsUnavailable as error:
            self._fail(error.cause, str(error), contract.EXIT_UNAVAILABLE)
            return False
        return True

    def _fail(self, cause: FailureClass, message: str, code: int) -> int:
        log.error("%s", message)
        write_termination(
            self._settings.termination_log,
            {
                "class": cause,
                "message": message,
                "role": self._settings.pod.role,
                "index": self._settings.pod.index,
                "host": self._settings.host,
                "exitCode": code,
            },
        )
        return code


def run_worker(settings: Settings, command: Sequence[str]) -> int:
    """Run a worker pod. The user's command arrives later, with the ranks."""
    del command
    return Worker(settings).run()
