"""A process beside `dtj run` that outlives it: however dtj ends, no process of its run is left.

It waits for the end of a pipe that dtj holds, and keeps open what the last uploads need.
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
    """dtj's end of the guard."""

    def __init__(self, variable: str, value: str, run: Path, held: Sequence[int]) -> None:
        """Start the guard. variable, value: the mark of the run's processes. run: the folder of the run. held: file
        descriptors that the guard keeps open.
        """
        reader, self._pipe = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-P", "-m", "dtj.local.guard", variable, value, str(run)],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=held,
        )
        os.close(reader)

    def release(self) -> None:
        """Let the guard end the remaining processes of the run, and wait until the guard has ended."""
        os.close(self._pipe)
        self._process.wait()


def main() -> None:
    """The guard's own process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 64):
        pass
    variable, value, run = sys.argv[1:]
    end_marked(variable, value, STOP_SECONDS)
    # These folders hold credentials.
    for folder in Path(run).glob(f"*/{contract.RUN}"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
