"""A process that writes checkpoints from memory that it shares with the rank.

A thread of the rank would hold Python's global lock for long parts of a save, so that the training would wait.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from dtj_trainer.background import run_in_background
from dtj_trainer.parent_death import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE_BYTES = 16 * 2**20
"""A process writes a state of at least so many bytes. A thread writes a smaller state: it holds Python's global lock
only for milliseconds."""


class WriterProcessEnded(RuntimeError):
    """The process that writes checkpoints has ended, so that the checkpoint is not written."""


class WriterProcess:
    """The rank's handle of a process that writes checkpoints. Construct it in the main thread.

    The process ends with the thread that constructs the handle. The process runs `module`, which calls `serve`, and
    inherits `descriptors`, whose numbers are its arguments.
    """

    def __init__(self, module: str, *descriptors: int) -> None:
        ours, theirs = socket.socketpair()
        # Block signals while the process starts, because the process inherits the mask: a signal that stops the
        # rank's process group must not end the process, whose save the rank waits for.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            with theirs:
                inherited = (theirs.fileno(), *descriptors)
                self._process = subprocess.Popen(  # noqa: S603 - no argument comes from outside
                    [sys.executable, "-m", module, *map(str, inherited)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=inherited,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.connection = Connection(ours.detach())

    def ask(self, request: object) -> None:
        """Let the process do what `request` says, and wait for it.

        Raises WriterProcessEnded if the process has ended, and the OSError, RuntimeError or ValueError that the
        request raised in the process.
        """
        try:
            self.connection.send(request)
            error: Exception | None = self.connection.recv()
        except (EOFError, OSError) as lost:
            self.close()
            raise WriterProcessEnded(
                f"the process that writes checkpoints ended with exit code {self._process.returncode}"
            ) from lost
        if error is not None:
            raise error

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


def connected() -> Connection:
    """Return the connection of this process, which a WriterProcess started, to its rank. Lowers the priority."""
    die_with_parent()()
    run_in_background()
    return Connection(int(sys.argv[1]))


def serve(connection: Connection, write: Callable[[Any], None]) -> None:
    """Answer each request by `write` until the rank ends."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            write(request)
        except (OSError, RuntimeError, ValueError) as error:
            connection.send(error)
        else:
            connection.send(None)
