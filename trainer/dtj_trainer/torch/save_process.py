"""A process that writes checkpoints by `torch.save`, from memory that it shares with the rank.

A thread of the rank would hold Python's global lock for long parts of a save, so that the training would wait. The
executor of `torch.distributed.checkpoint` that saves in a process needs a process group, which Horovod's ranks and
single processes do not have.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.multiprocessing  # Lets connections carry tensors in shared memory.
from torch import Tensor

from dtj_trainer.artifacts.background_priority import run_in_background
from dtj_trainer.parent_death import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Sequence


class SaveProcessEnded(RuntimeError):
    """The process that writes checkpoints has ended, so that the checkpoint is not written."""


class _Request(NamedTuple):
    path: str
    plain: bytes
    """The pickled state, with a number in place of each tensor."""
    tensors: list[Tensor] | None
    """The tensors by number, in shared memory; None: those of the request before, whose values have changed."""


class SaveProcess:
    """The rank's end. Construct it in the main thread; the process ends with that thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # The process inherits the mask. Signals of a stop are for the rank, which lets the save end.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - no word of it comes from outside
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._connection = Connection(ours.detach())
        # Tensors travel as file descriptors, which both sides' keys protect from other users of the machine.
        self._connection.send_bytes(bytes(multiprocessing.current_process().authkey))
        self._places: Sequence[tuple[object, ...]] = []

    def write(self, path: Path, state: Any) -> None:
        """Let the process write `state` to `path`, and wait for it. The tensors of `state` are in shared memory.

        Raises SaveProcessEnded; OSError or RuntimeError with what the process says about another failure.
        """
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(state)
        places = [(each.data_ptr(), each.dtype, each.shape, each.stride()) for each in pickler.tensors]
        # To send a thousand tensors takes a tenth of a second. The stager uses the same memory again.
        tensors = None if places == self._places else pickler.tensors
        try:
            self._connection.send(_Request(str(path), stream.getvalue(), tensors))
            error: Exception | None = self._connection.recv()
        except (EOFError, OSError) as lost:
            self.close()
            raise SaveProcessEnded(
                f"the process that writes checkpoints ended with {self._process.returncode}"
            ) from lost
        if error is not None:
            raise error
        self._places = places

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


class _Pickler(pickle.Pickler):
    """Puts numbers in place of tensors, which it collects."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: list[Tensor] = []

    def persistent_id(self, given: Any) -> int | None:
        """Return the number of a tensor; None for anything else."""
        if not isinstance(given, Tensor):
            return None
        self.tensors.append(given)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    """Puts tensors in place of their numbers."""

    def __init__(self, stream: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> Tensor:
        """Return the tensor with this number."""
        tensor: Tensor = self._tensors[number]
        return tensor


def _serve(connection: Connection) -> None:
    """Answer requests until the rank ends."""
    multiprocessing.current_process().authkey = connection.recv_bytes()
    tensors: list[Tensor] = []
    while True:
        try:
            request: _Request = connection.recv()
        except EOFError:
            return
        if request.tensors is not None:
            tensors = request.tensors
        try:
            torch.save(_Unpickler(io.BytesIO(request.plain), tensors).load(), request.path)
        except (OSError, RuntimeError) as error:
            connection.send(error)
        else:
            connection.send(None)


def main() -> None:
    """Run the process."""
    die_with_parent()()
    run_in_background()
    torch.set_num_threads(1)
    _serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
