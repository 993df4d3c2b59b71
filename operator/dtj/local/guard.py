"""A process that outlives `dtj run` and ends all processes of the run, even if dtj was killed.

The guard waits until dtj closes its end of a pipe. Meanwhile the guard keeps the lock files of the run and of the
object store open, which the last uploads need.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dtj.local.processes import end_marked
from dtj_trainer import contract

STOP_SECONDS = 5.0
"""Seconds that programs get to save a checkpoint after dtj was killed."""


class Guard:
    """The guard process, as seen by `dtj run`."""

    def __init__(self, variable: str, value: str, run: Path, descriptors: Sequence[int]) -> None:
        """Start the guard.

        variable, value: the environment variable that marks the processes of the run. run: the folder of the run.
        descriptors: file descriptors that the guard keeps open.
        """
        reader, self._pipe = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - this module
            [sys.executable, "-P", "-m", "dtj.local.guard", variable, value, str(run)],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=descriptors,
        )
        os.close(reader)

    def release(self) -> None:
        """Let the guard end the remaining processes of the run, and wait until the guard has ended."""
        os.close(self._pipe)
        self._process.wait()


def main() -> None:
    """Wait for the end of dtj, and then end the processes of the run and remove credentials."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 64):
        pass
    variable, value, run = sys.argv[1:]
    end_marked(variable, value, STOP_SECONDS)
    # These folders contain credentials.
    for folder in Path(run).glob(f"*/{contract.RUN}"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
