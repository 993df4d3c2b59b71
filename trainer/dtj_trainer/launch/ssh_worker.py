"""A worker that ranks reach by ssh: restores, then lets ssh in, and uploads while ranks run."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence

from dtj_trainer import contract
from dtj_trainer.launch.control import ControlServer
from dtj_trainer.launch.pod import ArtifactsUnavailable, Pod, stop_sync_seconds
from dtj_trainer.launch.program import die_with_parent
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.supervisor import RankSupervisor
from dtj_trainer.launch.termination import write_termination

log = logging.getLogger(__name__)

SSHD_FOLDERS = "/usr/sbin:/usr/local/sbin"
"""Where sshd lies, which is not on the PATH of everyone."""
POLL_SECONDS = 0.2


class SshWorker:
    """One worker pod, until it is told to stop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = False

    def run(self) -> int:
        """Serve until SIGTERM, then upload what is left; the exit code."""
        settings = self._settings
        try:
            pod = Pod(settings, part="primary" if settings.index == 0 else "other", log_names=None)
            pod.open()
        except ArtifactsUnavailable as error:
            return self._fail("ArtifactsUnavailable", str(error), contract.EXIT_UNAVAILABLE)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        supervisor = RankSupervisor(pod)
        ControlServer(settings.control_socket, supervisor).start()
        program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SSHD_FOLDERS}")
        if program is None:
            return self._fail(
                "CommandNotFound",
                "the image has no sshd, which a Horovod worker needs: install openssh-server",
                contract.EXIT_COMMAND_NOT_FOUND,
            )
        sshd = subprocess.Popen(  # noqa: S603 - fixed words and our own config
            [program, "-De", "-f", str(settings.config_dir / "sshd_config")],
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )
        log.info("worker %d is ready for ssh on port %d", settings.index, settings.ssh_port)
        while not self._stopping and sshd.poll() is None:
            time.sleep(POLL_SECONDS)
        if not self._stopping:
            supervisor.stop()
            code = self._fail(
                "ApplicationError",
                f"sshd ended with exit code {sshd.returncode}; its log says why",
                contract.EXIT_CONFIG,
            )
            self._last_sync(pod, ended=False)
            return code
        log.info("worker %d is told to stop", settings.index)
        succeeded = supervisor.stop()
        complete = self._last_sync(pod, ended=succeeded, timeout=stop_sync_seconds(settings.sync_timeout))
        sshd.terminate()
        try:
            sshd.wait(5)
        except subprocess.TimeoutExpired:
            sshd.kill()
        return 0 if complete else contract.EXIT_UNAVAILABLE

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _last_sync(self, pod: Pod, *, ended: bool, timeout: float | None = None) -> bool:
        try:
            pod.finish(ended=ended, timeout=timeout)
        except ArtifactsUnavailable as error:
            self._fail("ArtifactsUnavailable", str(error), contract.EXIT_UNAVAILABLE)
            return False
        return True

    def _fail(self, cause: contract.FailureClass, message: str, code: int) -> int:
        log.error("%s", message)
        write_termination(
            self._settings.termination_log,
            {
                "class": cause,
                "message": message,
                "role": self._settings.role or "worker",
                "index": self._settings.index,
                "host": self._settings.host,
                "exitCode": code,
            },
        )
        return code


def run_worker(settings: Settings, command: Sequence[str]) -> int:
    """Run a worker pod; the user's command comes later, by ssh."""
    del command
    return SshWorker(settings).run()
