"""A worker's sshd, by which mpirun starts ranks from another host."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from dtj_trainer.parent_death import die_with_parent

SSHD_FOLDERS = "/usr/sbin:/usr/local/sbin"
"""Folders of sshd that are not on every user's PATH."""
STOP_SECONDS = 5.0


class SshdMissing(Exception):
    """The image has no sshd."""


class Sshd:
    """A running sshd. Start it in the main thread, because sshd ends with the thread that started it."""

    def __init__(self, config_dir: Path) -> None:
        """Start sshd with the job's `sshd_config`. Raises SshdMissing."""
        program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SSHD_FOLDERS}")
        if program is None:
            raise SshdMissing("the image has no sshd, which a Horovod worker needs: install openssh-server")
        self._process = subprocess.Popen(  # noqa: S603 - fixed words and our own config
            [program, "-De", "-f", str(config_dir / "sshd_config")],
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )

    @property
    def ended(self) -> bool:
        """Whether sshd has ended by itself."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of an sshd that has ended."""
        return self._process.returncode

    def stop(self) -> None:
        """End sshd."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
