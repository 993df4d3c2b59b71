"""A process beside `dtj run` that outlives it: however dtj ends, no process of its run is left.

It waits for the end of a pipe that dtj holds, and keeps open what the last uploads need.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from dtj.local.processes import end_marked

STOP_SECONDS = 5.0
"""What a run without dtj gets to save a checkpoint."""


class Guard:
    """dtj's end of the guard."""

    def __init__(self, variable: str, value: str, held: Sequence[int]) -> None:
        """Start it. variable, value: the mark of the run's processes. held: descriptors that it keeps open."""
        reader, self._pipe = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-P", "-m", "dtj.local.guard", variable, value],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=held,
        )
        os.close(reader)

    def release(self) -> None:
        """Let it end what is left of the run, and itself."""
        os.close(self._pipe)
        self._process.wait()


def main() -> None:
    """The guard's own process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 64):
        pass
    end_marked(sys.argv[1], sys.argv[2], STOP_SECONDS)


if __name__ == "__main__":
    main()
